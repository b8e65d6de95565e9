//! # So many at once
//!
//! A rate says how many may begin in a while. It does not say how many are at work: if each takes ten times as long as
//! yesterday, ten times as many are, and what they share (memory, connections, the patience of a database) runs out.
//! So count those at work instead, and let nobody begin while there are `limit` of them.
//!
//! The simplest way is a counter: add one at the start, subtract one at the end. It leaks at the first panic, at the
//! first early return, at the first task that is cancelled, until the counter says that everybody is busy and nobody
//! is. Here the slot belongs to a value, the [`Permit`], and is given back when that is dropped. The compiler counts.
//!
//! Who finds no slot may wait, in a line. The second simplest way lets whoever looks at the right moment have a free
//! slot: then somebody who needs three slots starves among those who need one, since three are never free at once. So
//! the line is kept, first come, first served:
//!
//! ```text
//!   limit 4                                the line
//!   ▓▓▓░   one is free, and saved up   ◄── 3  1  1     a 1 would fit, and does not pass the 3:
//!   ▓▓░░   two are                     ◄── 3  1  1     neither from behind it nor from outside
//!   ▓░░░   three: the 3 is called      ◄── 1  1
//!   ▓▓▓▓
//! ```
//!
//! That is why [`try_acquire`](ConcurrencyLimiter::try_acquire) is refused while somebody waits, even if there seems
//! to be room: the room is being saved up.
//!
//! Laws, checked in `tests/concurrency*.rs`: never more than the limit at once, at any instant; nothing is lost or
//! doubled by a drop, a panic, a wait that is given up at any point, or a runtime that shuts down; who came first is
//! served first; two at once for 3 s each are ten in five pairs, one every 3 s.

mod acquire;
mod endings;
mod keyed;
mod permit;
mod refused;
pub(crate) mod slots;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SteadyClock};
use crate::wait::{Park, Sleep};
use slots::Slots;
use tidegate_core::Micros;

pub use endings::Endings;
pub(crate) use keyed::{KeyGuard, Keys};
pub use keyed::{KeyedConcurrencyCost, KeyedConcurrencyLimiter, KeyedConcurrencyStats, KeyedPermit};
pub use permit::{OwnedPermit, Permit};
pub use refused::Refused;
pub(crate) use refused::refusal;

/// How many may wait at a limiter that was not told.
const DEFAULT_MAX_WAITING: usize = 1 << 16;

/// At most so many at once; the others wait in line, or are refused.
///
/// ```
/// use tidegate::{ConcurrencyLimiter, Refused};
///
/// let slots = ConcurrencyLimiter::new(2);
/// let one = slots.try_acquire()?;
/// let two = slots.try_acquire()?;
/// assert_eq!(slots.try_acquire().unwrap_err(), Refused::Busy { cost: 1, limit: 2 });
///
/// drop(one); // or the end of the scope, an early return, a panic
/// let three = slots.try_acquire()?;
///
/// two.succeeded(); // how it ended, for the statistics
/// three.overloaded();
/// assert_eq!(slots.stats().in_use, 0);
/// # Ok::<(), Refused>(())
/// ```
///
/// | | never waits | waits | waits at most so long |
/// |---|---|---|---|
/// | anywhere | `try_acquire` | | |
/// | a task | | `acquire().await` | `acquire_timeout(d).await` |
/// | a thread | | `acquire_blocking()` | `acquire_blocking_timeout(d)` |
///
/// What blocks a thread says so in its name: in a task it would stop everything else that thread runs. `acquire`
/// needs no runtime in particular; `acquire_timeout` on the steady clock takes its timers from tokio and needs the
/// feature `tokio`.
///
/// Clones share the slots. A limit of 0 is a pause: nobody passes, and whoever waits goes on waiting until
/// [`resize`](ConcurrencyLimiter::resize) raises it.
pub struct ConcurrencyLimiter<C = SteadyClock> {
    slots: Arc<Slots>,
    clock: C,
}

/// A permit's cost, chosen: what [`ConcurrencyLimiter::cost`] returns.
#[derive(Debug)]
#[must_use = "a cost does nothing until a verb follows, such as `.try_acquire()`"]
pub struct ConcurrencyCost<'a, C = SteadyClock> {
    limiter: &'a ConcurrencyLimiter<C>,
    cost: u32,
}

/// A [`ConcurrencyLimiter`] as it was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConcurrencyStats {
    /// How many may be in use.
    pub limit: u32,
    /// How many are. More than the limit for a while, after that was lowered.
    pub in_use: u64,
    /// How many wait in line, whatever they want.
    pub waiting: usize,
    /// What became of the permits that are no more.
    pub endings: Endings,
}

impl ConcurrencyLimiter {
    /// So many at once, on the steady clock; up to 65,536 may wait. A limit of 0 lets nobody pass until it is raised.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        ConcurrencyLimiter {
            slots: Arc::new(Slots::new(limit, DEFAULT_MAX_WAITING)),
            clock: SteadyClock::new(),
        }
    }
}

impl<C> ConcurrencyLimiter<C> {
    /// A limiter like this one in whose line at most `max_waiting` wait, as if never used. With 0 nobody waits.
    #[must_use]
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        let limit = self.slots.limit();
        ConcurrencyLimiter { slots: Arc::new(Slots::new(limit, max_waiting)), ..self }
    }

    /// A limiter like this one on another clock, as if never used. The clock is for time-outs only.
    #[must_use]
    pub fn with_clock<D: Clock>(self, clock: D) -> ConcurrencyLimiter<D> {
        let slots = Arc::new(Slots::new(self.slots.limit(), self.slots.max_waiting()));
        ConcurrencyLimiter { slots, clock }
    }

    /// The verbs for a permit that takes up more than one of the limit.
    ///
    /// ```
    /// use tidegate::{ConcurrencyLimiter, Refused};
    ///
    /// let connections = ConcurrencyLimiter::new(10);
    /// let report = connections.cost(8).try_acquire()?;
    /// assert!(connections.cost(3).try_acquire().is_err());
    /// assert_eq!(connections.cost(11).try_acquire().unwrap_err(), Refused::Never { cost: 11, limit: 10 });
    /// # drop(report);
    /// # Ok::<(), Refused>(())
    /// ```
    #[inline]
    pub fn cost(&self, cost: u32) -> ConcurrencyCost<'_, C> {
        ConcurrencyCost { limiter: self, cost }
    }

    /// A permit, if one is free and nobody waits. Never waits; to wait, see [`acquire`](ConcurrencyLimiter::acquire).
    ///
    /// Refused while others wait, even if something is free: it is being saved up for who came first.
    ///
    /// # Errors
    ///
    /// [`Refused::Busy`]; [`Refused::Never`] if the cost exceeds the limit.
    #[inline]
    pub fn try_acquire(&self) -> Result<Permit<'_>, Refused> {
        self.cost(1).try_acquire()
    }

    /// A permit, waiting in line until it is there.
    ///
    /// Needs no runtime in particular. A thread that is to be blocked uses
    /// [`acquire_blocking`](ConcurrencyLimiter::acquire_blocking).
    ///
    /// # Errors
    ///
    /// [`Refused::LineFull`] if too many wait; [`Refused::Never`] if the cost exceeds the limit, now or when it is
    /// its turn.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point: its place in line is free at once, and if it had just been called, the
    /// next one is called instead. Asked again, it starts at the end of the line.
    #[inline]
    pub async fn acquire(&self) -> Result<Permit<'_>, Refused> {
        self.cost(1).acquire().await
    }

    /// A permit, waiting in line for at most so long.
    ///
    /// On the [`SteadyClock`] the timers are tokio's: this needs the feature `tokio`.
    ///
    /// # Errors
    ///
    /// As [`acquire`](ConcurrencyLimiter::acquire), and [`Refused::TimedOut`].
    ///
    /// # Panics
    ///
    /// On the steady clock, if it has to wait outside a tokio runtime with timers.
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Permit<'_>, Refused>
    where
        C: Sleep,
    {
        self.cost(1).acquire_timeout(timeout).await
    }

    /// A permit, blocking this thread until it is there. Not for tasks: see [`acquire`](ConcurrencyLimiter::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](ConcurrencyLimiter::acquire).
    pub fn acquire_blocking(&self) -> Result<Permit<'_>, Refused> {
        self.cost(1).acquire_blocking()
    }

    /// A permit, blocking this thread for at most so long.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ConcurrencyLimiter, Refused};
    ///
    /// let slots = ConcurrencyLimiter::new(1);
    /// let permit = slots.acquire_blocking()?;
    /// let timeout = Duration::from_millis(1);
    /// assert_eq!(slots.acquire_blocking_timeout(timeout).unwrap_err(), Refused::TimedOut { timeout });
    /// # drop(permit);
    /// # Ok::<(), Refused>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](ConcurrencyLimiter::acquire), and [`Refused::TimedOut`].
    pub fn acquire_blocking_timeout(&self, timeout: Duration) -> Result<Permit<'_>, Refused>
    where
        C: Park,
    {
        self.cost(1).acquire_blocking_timeout(timeout)
    }

    /// Puts another limit in force, for all clones. Never waits.
    ///
    /// A higher one calls those in line who fit in now. A lower one stops nobody who is at work: nobody begins until
    /// enough have ended. Whoever waits for more than the new limit is refused with [`Refused::Never`] when it is its
    /// turn. A limit of 0 is a pause: nobody passes, and nobody is refused for wanting too much, until it is raised
    /// again.
    ///
    /// ```
    /// use tidegate::{ConcurrencyLimiter, Refused};
    ///
    /// let slots = ConcurrencyLimiter::new(2);
    /// let (one, two) = (slots.try_acquire()?, slots.try_acquire()?);
    /// slots.resize(1);
    /// assert_eq!(slots.stats().in_use, 2); // nobody is stopped
    /// drop(one);
    /// assert!(slots.try_acquire().is_err()); // one is at work, and that is all there may be
    /// drop(two);
    /// assert!(slots.try_acquire().is_ok());
    /// # Ok::<(), Refused>(())
    /// ```
    pub fn resize(&self, limit: u32) {
        self.slots.resize(limit);
    }

    /// How many are at work and how many wait, and how the work of others has ended.
    #[must_use]
    pub fn stats(&self) -> ConcurrencyStats {
        let usage = self.slots.usage();
        let endings = self.slots.tally().endings();
        ConcurrencyStats { limit: usage.limit, in_use: usage.in_use, waiting: usage.waiting, endings }
    }
}

impl<C: Clock> ConcurrencyLimiter<C> {
    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }
}

impl<'a, C> ConcurrencyCost<'a, C> {
    /// As [`ConcurrencyLimiter::try_acquire`].
    ///
    /// # Errors
    ///
    /// See there.
    #[inline]
    pub fn try_acquire(self) -> Result<Permit<'a>, Refused> {
        acquire::try_acquire(&self.limiter.slots, self.cost).map(Permit)
    }

    /// As [`ConcurrencyLimiter::acquire`].
    ///
    /// # Errors
    ///
    /// See there.
    #[inline]
    pub async fn acquire(self) -> Result<Permit<'a>, Refused> {
        acquire::wait(&self.limiter.slots, self.cost).await.map(Permit)
    }

    /// As [`ConcurrencyLimiter::acquire_timeout`].
    ///
    /// # Errors
    ///
    /// See there.
    ///
    /// # Panics
    ///
    /// See there.
    pub async fn acquire_timeout(self, timeout: Duration) -> Result<Permit<'a>, Refused>
    where
        C: Sleep,
    {
        let ConcurrencyLimiter { slots, clock } = self.limiter;
        acquire::wait_timeout(slots, self.cost, clock, timeout).await.map(Permit)
    }

    /// As [`ConcurrencyLimiter::acquire_blocking`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn acquire_blocking(self) -> Result<Permit<'a>, Refused> {
        acquire::wait_blocking(&self.limiter.slots, self.cost).map(Permit)
    }

    /// As [`ConcurrencyLimiter::acquire_blocking_timeout`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn acquire_blocking_timeout(self, timeout: Duration) -> Result<Permit<'a>, Refused>
    where
        C: Park,
    {
        let ConcurrencyLimiter { slots, clock } = self.limiter;
        acquire::wait_blocking_timeout(slots, self.cost, clock, timeout).map(Permit)
    }
}

impl<C: Clone> Clone for ConcurrencyLimiter<C> {
    /// Another handle on the same slots.
    fn clone(&self) -> Self {
        ConcurrencyLimiter { slots: self.slots.clone(), clock: self.clock.clone() }
    }
}

impl<C: fmt::Debug> fmt::Debug for ConcurrencyLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyLimiter")
            .field("stats", &self.stats())
            .field("clock", &self.clock)
            .finish()
    }
}
