//! # Permits
//!
//! A permit holds a number of slots and returns them when it is dropped, whatever happened to its holder. The drop also
//! counts how the work ended.

use std::fmt;
use std::sync::Arc;

use super::endings::{Ending, Tally};
use super::slots::Slots;

/// Where a permit's slots and the tally of endings are. Dropping the source releases its key, if it has one.
pub(crate) trait PermitSource {
    fn slots(&self) -> &Slots;
    fn tally(&self) -> &Tally;
    /// Called after slots were returned.
    ///
    /// The source of a keyed limiter then wakes the registered waiter when it is dropped.
    fn released(&mut self) {}
}

/// Slots that stay taken until this value is dropped.
#[derive(Debug)]
pub(crate) struct HeldPermit<H: PermitSource> {
    /// `None` once the slots have been moved to another permit.
    source: Option<H>,
    cost: u32,
    ending: Ending,
}

/// The right to be one of a limited number of operations in progress.
///
/// Dropping the permit frees its share of the limit for the next request.
///
/// Borrowed from its limiter. [`into_owned`](Permit::into_owned) turns it into a permit without that borrow.
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct Permit<'a>(pub(super) HeldPermit<&'a Arc<Slots>>);

/// A [`Permit`] that keeps its limiter alive, to be moved into tasks, threads and responses.
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct OwnedPermit(HeldPermit<Arc<Slots>>);

// === impl HeldPermit ===

impl<H: PermitSource> HeldPermit<H> {
    /// Creates a permit for `cost` slots that are already taken.
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
            source.released();
        }
    }
}

// === impl Permit ===

impl Permit<'_> {
    /// Returns how much of the limit this permit takes up.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.0.cost()
    }

    /// Ends the work as successful, and frees the permit. Counted in [`Endings`](crate::stats::Endings).
    pub fn succeeded(self) {
        self.0.succeeded();
    }

    /// Ends the work as rejected or timed out by an overloaded service, and frees the permit.
    ///
    /// Counted in [`Endings`](crate::stats::Endings).
    pub fn overloaded(self) {
        self.0.overloaded();
    }

    /// Turns this permit into one that is not borrowed from its limiter.
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
    /// Returns how much of the limit this permit takes up.
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

// === impl PermitSource ===

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
