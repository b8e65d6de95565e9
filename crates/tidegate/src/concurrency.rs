//! # Concurrency limits: how many operations may be in progress
//!
//! A rate limits how many operations begin in a period. It does not limit how many are in progress: if each takes ten
//! times as long as yesterday, ten times as many are, and what they share (memory, connections, a database) runs out.
//! A concurrency limit counts the operations in progress, and lets none begin while there are `limit` of them.
//!
//! The simplest way is a counter: add one at the start, subtract one at the end. It leaks at the first panic, at the
//! first early return, at the first cancelled task, until the counter says that all slots are in use and none is. Here
//! the slot belongs to a value, the [`Permit`], and is released when that value is dropped. The compiler counts.
//!
//! A request that finds no free slot may wait in a queue. If any request could take a slot the moment it is free, a
//! request for three slots would starve among requests for one, since three are never free together. So the queue is
//! first come, first served:
//!
//! ```text
//!   limit 4                                the queue
//!   ▓▓▓░   one is free, and saved up   ◄── 3  1  1     a 1 would fit, and does not overtake the 3:
//!   ▓▓░░   two are                     ◄── 3  1  1     neither from the queue nor from outside
//!   ▓░░░   three: the 3 is woken       ◄── 1  1
//!   ▓▓▓▓
//! ```
//!
//! That is why [`try_acquire`](ConcurrencyLimiter::try_acquire) is refused while requests wait, even if slots are free:
//! they are being saved up.
//!
//! Laws, checked in `tests/concurrency*.rs`: never more than the limit in progress, at any instant; no slot is lost or
//! counted twice by a drop, a panic, a wait cancelled at any point, or a runtime that shuts down; requests are served in
//! the order of arrival; ten operations of 3 s each under a limit of two run in five pairs, one pair every 3 s.

mod acquire;
mod endings;
mod keyed;
mod permit;
mod request;
pub(crate) mod slots;

use std::fmt;
use std::sync::Arc;

use crate::clock::{Clock, SteadyClock};
use crate::error::{AcquireError, RefusalKind};
use crate::request::{Request, Target};
use slots::Slots;
use tidegate_core::{Decision, Micros, Outcome, Source, Wait};

pub use endings::Endings;
pub(crate) use keyed::{KeyGuard, Keys};
pub use keyed::{
    KeyedConcurrencyLimiter, KeyedConcurrencyLimiterBuilder, KeyedConcurrencyStats, KeyedPermit,
};
pub use permit::{OwnedPermit, Permit};

/// The default maximum number of waiters.
const DEFAULT_MAX_WAITING: usize = 1 << 16;

/// Limits how many operations are in progress; further requests wait or are refused.
///
/// ```
/// use tidegate::ConcurrencyLimiter;
///
/// let uploads = ConcurrencyLimiter::new(2);
/// let one = uploads.try_acquire()?;
/// let two = uploads.try_acquire()?;
/// assert!(uploads.try_acquire().unwrap_err().is_busy());
///
/// drop(one); // or the end of the scope, an early return, a panic
/// let three = uploads.try_acquire()?;
///
/// two.succeeded(); // how the work ended, for the statistics
/// three.overloaded();
/// assert_eq!(uploads.stats().in_use, 0);
/// # Ok::<(), tidegate::AcquireError>(())
/// ```
///
/// | | never waits | waits | waits with a timeout |
/// |---|---|---|---|
/// | anywhere | `try_acquire()` | | |
/// | a task | | `acquire().await` | `request().timeout(d).acquire().await` |
/// | a thread | | `request().acquire_blocking()` | `request().timeout(d).acquire_blocking()` |
///
/// A method that blocks the thread says so in its name: in a task it would stop every other task of that thread.
/// `acquire` works with every runtime; with a timeout on the steady clock it uses the timers of tokio, which takes the
/// feature `tokio`.
///
/// Clones share the slots. A limit of 0 is a pause: no request passes, and waiters wait until
/// [`resize`](ConcurrencyLimiter::resize) raises it.
pub struct ConcurrencyLimiter<C = SteadyClock> {
    slots: Arc<Slots>,
    clock: C,
}

/// Builds a [`ConcurrencyLimiter`]. Made by [`ConcurrencyLimiter::builder`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct ConcurrencyLimiterBuilder<C = SteadyClock> {
    limit: u32,
    max_waiting: usize,
    clock: C,
}

/// A snapshot of a [`ConcurrencyLimiter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConcurrencyStats {
    /// The maximum number of slots in use.
    pub limit: u32,
    /// The number of slots in use. It exceeds the limit for a while after the limit was lowered.
    pub in_use: u64,
    /// The number of waiters, whatever their costs.
    pub waiting: usize,
    /// How the work under released permits ended.
    pub endings: Endings,
}

impl ConcurrencyLimiter {
    /// Creates a limiter of `limit` operations, on the steady clock.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        ConcurrencyLimiter::builder(limit).build()
    }

    /// Starts to build a limiter with another clock or another length of the queue.
    pub fn builder(limit: u32) -> ConcurrencyLimiterBuilder {
        ConcurrencyLimiterBuilder { limit, max_waiting: DEFAULT_MAX_WAITING, clock: SteadyClock::new() }
    }
}

impl<C: Clock> ConcurrencyLimiterBuilder<C> {
    /// The maximum number of waiters; 65,536 by default. With 0 no request waits.
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        ConcurrencyLimiterBuilder { max_waiting, ..self }
    }

    /// Uses another clock. It is read for timeouts only.
    pub fn clock<D: Clock>(self, clock: D) -> ConcurrencyLimiterBuilder<D> {
        let ConcurrencyLimiterBuilder { limit, max_waiting, .. } = self;
        ConcurrencyLimiterBuilder { limit, max_waiting, clock }
    }

    /// Builds the limiter.
    #[must_use]
    pub fn build(self) -> ConcurrencyLimiter<C> {
        let ConcurrencyLimiterBuilder { limit, max_waiting, clock } = self;
        ConcurrencyLimiter { slots: Arc::new(Slots::new(limit, max_waiting)), clock }
    }
}

impl<C: Clock> ConcurrencyLimiter<C> {
    /// Takes a permit if one is free and no request waits. Never waits.
    ///
    /// Refused while earlier requests wait, even if slots are free: they are being saved up for the first of them.
    ///
    /// # Errors
    ///
    /// [`AcquireError`] with [`is_busy`](AcquireError::is_busy).
    #[inline]
    pub fn try_acquire(&self) -> Result<Permit<'_>, AcquireError> {
        self.request().try_acquire()
    }

    /// Waits in the queue, as a task of any runtime, for a permit. See [`Request::acquire`].
    ///
    /// # Errors
    ///
    /// [`AcquireError`] if the queue is full.
    #[inline]
    pub async fn acquire(&self) -> Result<Permit<'_>, AcquireError> {
        self.request().acquire().await
    }

    /// Begins a request, for everything beyond [`try_acquire`](ConcurrencyLimiter::try_acquire) and
    /// [`acquire`](ConcurrencyLimiter::acquire).
    ///
    /// ```
    /// use tidegate::ConcurrencyLimiter;
    ///
    /// let connections = ConcurrencyLimiter::new(10);
    /// let report = connections.request().cost(8).try_acquire()?;
    /// assert!(connections.request().cost(3).try_acquire().unwrap_err().is_busy());
    /// assert!(connections.request().cost(11).try_acquire().unwrap_err().is_never());
    /// # drop(report);
    /// # Ok::<(), tidegate::AcquireError>(())
    /// ```
    #[inline]
    pub fn request(&self) -> Request<'_, Self> {
        Request::new(self, ())
    }

    /// Replaces the limit, for all clones. Never waits.
    ///
    /// A higher limit wakes the waiters that fit now. A lower limit stops no operation: none begins until enough have
    /// ended. A waiter whose cost exceeds the new limit is refused when it is first in the queue. A limit of 0 is a
    /// pause: no request passes, and no cost is too large, until the limit is raised again.
    ///
    /// ```
    /// use tidegate::ConcurrencyLimiter;
    ///
    /// let uploads = ConcurrencyLimiter::new(2);
    /// let (one, two) = (uploads.try_acquire()?, uploads.try_acquire()?);
    /// uploads.resize(1);
    /// assert_eq!(uploads.stats().in_use, 2); // no operation is stopped
    /// drop(one);
    /// assert!(uploads.try_acquire().is_err()); // one is in progress, and no more may be
    /// drop(two);
    /// assert!(uploads.try_acquire().is_ok());
    /// # Ok::<(), tidegate::AcquireError>(())
    /// ```
    pub fn resize(&self, limit: u32) {
        self.slots.resize(limit);
    }

    /// How many operations are in progress, how many requests wait, and how operations ended.
    #[must_use]
    pub fn stats(&self) -> ConcurrencyStats {
        let usage = self.slots.usage();
        let endings = self.slots.tally().endings();
        ConcurrencyStats { limit: usage.limit, in_use: usage.in_use, waiting: usage.waiting, endings }
    }

    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }
}

impl<'a, C> Target<'a> for ConcurrencyLimiter<C> {
    type Key = ();
}

/// Returns the decision for a refused permit.
pub(crate) fn refused(refusal: RefusalKind, at: Micros) -> Decision {
    let limit = match refusal {
        RefusalKind::Never { limit, .. } => limit,
        RefusalKind::Busy { limit, .. } => limit.into(),
        _ => 0,
    };
    let outcome = if let RefusalKind::Never { .. } = refusal { Outcome::Never } else { Outcome::Busy };
    let mut decision = Decision::counted(outcome, at, limit, 0, Wait::default());
    if matches!(refusal, RefusalKind::TooManyKeys { .. }) {
        decision.source = Source::Closed; // there was no state to count in
    }
    decision
}

impl<C: Clone> Clone for ConcurrencyLimiter<C> {
    /// Another handle on the same slots.
    fn clone(&self) -> Self {
        ConcurrencyLimiter { slots: self.slots.clone(), clock: self.clock.clone() }
    }
}

impl<C: Clock + fmt::Debug> fmt::Debug for ConcurrencyLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyLimiter")
            .field("stats", &self.stats())
            .field("clock", &self.clock)
            .finish()
    }
}
