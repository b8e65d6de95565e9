//! # Permits
//!
//! A permit is a number of slots that somebody uses, and it gives them back when it is dropped, whatever became of its
//! holder. How the work ended is counted on the way.

use std::fmt;
use std::sync::Arc;

use super::endings::{Ending, Tally};
use super::slots::Slots;

/// Where slots are, and where endings are counted. Whatever keeps it there is given up when it is dropped.
pub(crate) trait PermitSource {
    fn slots(&self) -> &Slots;
    fn tally(&self) -> &Tally;
    /// Slots were given back: whoever keeps it there may tell others when it goes.
    fn refunded(&mut self) {}
}

/// Slots that are taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldPermit<H: PermitSource> {
    /// `None` once the slots have gone elsewhere.
    source: Option<H>,
    cost: u32,
    ending: Ending,
}

/// Leave to be one of those at work; dropping it makes room for the next.
///
/// Borrowed from its limiter. [`into_owned`](Permit::into_owned) makes one that can go anywhere.
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct Permit<'a>(pub(super) HeldPermit<&'a Arc<Slots>>);

/// A [`Permit`] that keeps its limiter alive, to be moved into tasks, threads and responses.
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct OwnedPermit(HeldPermit<Arc<Slots>>);

// === impl Held ===

impl<H: PermitSource> HeldPermit<H> {
    /// For `cost` slots that were taken.
    #[inline]
    pub(crate) fn new(source: H, cost: u32) -> Self {
        HeldPermit { source: Some(source), cost, ending: Ending::Dropped }
    }

    pub(super) fn source(&self) -> Option<&H> {
        self.source.as_ref()
    }

    pub(super) fn cost(&self) -> u32 {
        self.cost
    }

    pub(super) fn succeeded(mut self) {
        self.ending = Ending::Succeeded;
    }

    pub(super) fn overloaded(mut self) {
        self.ending = Ending::Overloaded;
    }
}

impl<H: PermitSource> Drop for HeldPermit<H> {
    #[inline]
    fn drop(&mut self) {
        if let Some(source) = &mut self.source {
            source.tally().count(self.ending);
            source.slots().give_back(self.cost);
            source.refunded();
        }
    }
}

// === impl Permit ===

impl Permit<'_> {
    /// How many of the limit this permit takes up.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.0.cost()
    }

    /// Ends the work as done. Counted in [`Endings`](crate::Endings); the place is free.
    pub fn succeeded(self) {
        self.0.succeeded();
    }

    /// Ends the work as turned away or timed out by whoever is overloaded. Counted in [`Endings`](crate::Endings);
    /// the place is free.
    pub fn overloaded(self) {
        self.0.overloaded();
    }

    /// The same permit, no longer borrowed from its limiter.
    ///
    /// ```
    /// use tidegate::{ConcurrencyLimiter, OwnedPermit};
    ///
    /// fn begin(slots: &ConcurrencyLimiter) -> Option<OwnedPermit> {
    ///     Some(slots.try_acquire().ok()?.into_owned())
    /// }
    /// let permit = begin(&ConcurrencyLimiter::new(2)).expect("nobody else is here");
    /// std::thread::spawn(move || permit.succeeded()).join().unwrap();
    /// ```
    pub fn into_owned(mut self) -> OwnedPermit {
        let source = self.0.source.take().cloned();
        OwnedPermit(HeldPermit { source, cost: self.0.cost, ending: Ending::Dropped })
    }
}

impl OwnedPermit {
    /// How many of the limit this permit takes up.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.0.cost()
    }

    /// As [`Permit::succeeded`].
    pub fn succeeded(self) {
        self.0.succeeded();
    }

    /// As [`Permit::overloaded`].
    pub fn overloaded(self) {
        self.0.overloaded();
    }
}

impl fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("cost", &self.cost()).finish_non_exhaustive()
    }
}

impl fmt::Debug for OwnedPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedPermit").field("cost", &self.cost()).finish_non_exhaustive()
    }
}

// === impl Home ===

impl PermitSource for Arc<Slots> {
    #[inline]
    fn slots(&self) -> &Slots {
        self
    }

    #[inline]
    fn tally(&self) -> &Tally {
        Slots::tally(self)
    }
}

impl<H: PermitSource> PermitSource for &H {
    #[inline]
    fn slots(&self) -> &Slots {
        (**self).slots()
    }

    #[inline]
    fn tally(&self) -> &Tally {
        (**self).tally()
    }
}
