//! # One line for everybody
//!
//! A [`Pacer`] is for calls on the way out: nobody is refused for being too many, everybody is told how long to wait,
//! and the calls leave at an even pace. It is one line in which all clones and all threads stand. For *refusing* what
//! is too much, see [`Limiter`](crate::Limiter); the arithmetic of pacing is [`Pacing`]'s.
//!
//! ```text
//!   reserve ──► Reservation: wait so long ──┬── its instant comes ──► it is used; dropping it changes nothing
//!                                           ├── cancelled, or dropped before ──► given back, if it is the last in line
//!                                           └── keep ──► counts, whatever becomes of the handle
//! ```
//!
//! The line is two or three words and the setting they are read by, under one lock: taking it is a compare-and-swap,
//! what is done under it a few additions, and nobody waits for *time* while holding it. A setting that is replaced
//! leaves nothing behind, so a controller may change the rate as often as it likes.

mod wait;

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, SteadyClock};
use crate::sync::{Mutex, MutexGuard};
use tidegate_core::{ClockKind, InvalidQuota, Micros, Pacing, Quota, Reserved, TooLong, Wait};

/// Lets everybody pass, one after the other at an even pace, and tells each how long to wait.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{ManualClock, Pacer, Quota};
///
/// // In a program: Pacer::new(Quota::per_second(5)). Here time stands still until we move it.
/// let clock = ManualClock::new();
/// let pacer = Pacer::new(Quota::per_second(5)).with_clock(clock.clone());
///
/// assert_eq!(pacer.try_acquire_timeout(1, Duration::MAX)?, Duration::ZERO);
/// let wait = pacer.try_acquire_timeout(1, Duration::from_secs(1))?; // charged; now sit it out
/// assert_eq!(wait, Duration::from_millis(200));
///
/// let refused = pacer.try_acquire(1).unwrap_err(); // charged nothing
/// assert_eq!(refused.wait, Duration::from_millis(400));
/// # Ok::<(), tidegate::TooLong>(())
/// ```
///
/// After a rest requests may catch up with up to one second of it; [`Bursty::max_burst`](crate::Bursty::max_burst)
/// says another length, and [`WarmUp`](crate::WarmUp) makes the pace start cold instead: see [`Pacer::with`].
pub struct Pacer<C = SteadyClock> {
    line: Arc<Aligned>,
    clock: C,
}

/// A promised place in the line of a [`Pacer`]: wait as long as it says, then go ahead.
///
/// Dropped before its instant it is given back; from its instant on it counts as used. What is given back is all of
/// it if nobody has reserved after it, and nothing if somebody has: they were promised instants beyond it, and moving
/// the end of the line before them would put two where there is room for one. The same if the rate has changed
/// meanwhile.
#[must_use = "dropped before its instant, a reservation is given back"]
pub struct Reservation<'a, C: Clock = SteadyClock> {
    pacer: &'a Pacer<C>,
    /// Until it is kept or given back.
    place: Option<Reserved>,
    wait: Wait,
    /// How often the rate had changed.
    changes: u64,
}

/// A cache line of its own, so that threads at one pacer do not slow down their neighbours.
#[derive(Debug)]
#[repr(align(128))]
struct Aligned(Mutex<Line>);

#[derive(Debug)]
struct Line {
    pacing: Pacing,
    state: [u64; 3],
    changes: u64,
}

impl Pacer {
    /// At the pace of `quota`, whose burst plays no part, on the steady clock; up to one second may be caught up with.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Pacer::with(Pacing::new(quota))
    }

    /// Any pacing, on the steady clock.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Bursty, Pacer, Pacing, Quota, WarmUp};
    ///
    /// let bytes = Quota::per_second(10_000_000);
    /// let uploads = Pacer::with(Bursty::new(bytes).max_burst(Duration::from_millis(100)));
    /// let cold_start = Pacer::with(WarmUp::new(Quota::per_second(50), Duration::from_secs(10)).cold_factor(4));
    /// let from_a_file = Pacer::with("50/s warm_up 10s cold_factor 2.5".parse::<Pacing>()?);
    /// # Ok::<(), tidegate::InvalidQuota>(())
    /// ```
    #[must_use]
    pub fn with(pacing: impl Into<Pacing>) -> Self {
        Pacer::made(pacing.into(), SteadyClock::new())
    }
}

impl<C: Clock> Pacer<C> {
    /// A pacer like this one on another clock, as if just made.
    ///
    /// The clock must be [steady](Clock::KIND), because a promise is an instant: were the clock set back by an
    /// hour, everybody would wait an hour longer. Another does not compile.
    ///
    /// ```compile_fail
    /// use tidegate::{Pacer, Quota, SettableClock};
    /// let pacer = Pacer::new(Quota::per_second(5)).with_clock(SettableClock::new());
    /// ```
    #[must_use]
    pub fn with_clock<D: Clock>(self, clock: D) -> Pacer<D> {
        Pacer::made(self.line().pacing, clock)
    }

    fn made(pacing: Pacing, clock: C) -> Self {
        const { assert!(matches!(C::KIND, ClockKind::Monotonic), "a pacer needs a clock that never steps back") };
        let mut state = [0; 3];
        pacing.start(&mut state, clock.now());
        let line = Line { pacing, state, changes: 0 };
        Pacer { line: Arc::new(Aligned(Mutex::new(line))), clock }
    }

    /// How long a request would have to wait now, whatever it asks for. Charges nothing.
    ///
    /// # Errors
    /// [`TooLong`] if that is beyond the end of the time line, which takes an absurd number of permits before.
    pub fn peek(&self) -> Result<Wait, TooLong> {
        let now = self.clock.now();
        let line = self.line();
        line.pacing.peek(&line.state, now)
    }

    /// Passes now, or refuses at once and charges nothing. Never waits.
    ///
    /// # Errors
    /// [`TooLong`], with how long the wait would have been, unless it is none.
    #[inline]
    pub fn try_acquire(&self, permits: u64) -> Result<(), TooLong> {
        self.charge(permits, Wait::micros(0)).map(|_at_once| ())
    }

    /// Charges `permits` and tells how long to wait before using them, if that is at most `timeout`. Does not wait
    /// itself.
    ///
    /// Most callers want [`acquire_timeout`](Pacer::acquire_timeout) or
    /// [`acquire_blocking_timeout`](Pacer::acquire_blocking_timeout), which wait; those who may change their mind while
    /// they do something else, [`reserve_within`](Pacer::reserve_within), which can give back.
    ///
    /// # Errors
    /// [`TooLong`], at once and with nothing charged, if the wait would be longer than `timeout`.
    #[inline]
    pub fn try_acquire_timeout(&self, permits: u64, timeout: Duration) -> Result<Wait, TooLong> {
        let place = self.charge(permits, micros(timeout))?;
        Ok(place.map_or(Wait::micros(0), |(place, _)| place.wait()))
    }

    /// Promises `permits` at a later instant, however late. Charged now, given back if dropped before its instant.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Pacer, Quota};
    /// let pacer = Pacer::new(Quota::per_second(5)).with_clock(ManualClock::new());
    /// pacer.try_acquire(1)?;
    /// let reservation = pacer.reserve(10)?;
    /// assert_eq!(reservation.wait(), Duration::from_millis(200));
    /// assert_eq!(pacer.peek()?, Duration::from_millis(2_200));
    /// reservation.cancel();
    /// assert_eq!(pacer.peek()?, Duration::from_millis(200));
    /// # Ok::<(), tidegate::TooLong>(())
    /// ```
    ///
    /// # Errors
    /// [`TooLong`] if the wait would be beyond the end of the time line.
    pub fn reserve(&self, permits: u64) -> Result<Reservation<'_, C>, TooLong> {
        self.reserve_within(permits, Duration::MAX)
    }

    /// As [`reserve`](Pacer::reserve), if the wait is at most `timeout`.
    ///
    /// # Errors
    /// [`TooLong`], at once and with nothing charged, if the wait would be longer than `timeout`.
    pub fn reserve_within(&self, permits: u64, timeout: Duration) -> Result<Reservation<'_, C>, TooLong> {
        let now = self.clock.now();
        let line = &mut *self.line();
        let place = line.pacing.try_within(&mut line.state, now, permits, micros(timeout))?;
        Ok(self.reservation(place, line.changes))
    }

    fn reservation(&self, place: Reserved, changes: u64) -> Reservation<'_, C> {
        Reservation { pacer: self, wait: place.wait(), place: Some(place), changes }
    }

    /// Puts another rate in force, for all clones.
    ///
    /// What was promised stays promised, and what was put by or warmed up stays so in proportion. Only who comes next
    /// pays by the new rate.
    ///
    /// # Errors
    /// [`InvalidQuota`], with nothing changed, if a warm-up could not be counted exactly at that rate; without one,
    /// never.
    pub fn set_rate(&self, quota: Quota) -> Result<(), InvalidQuota> {
        let mut line = self.line();
        let (old, from) = (line.pacing, line.state);
        let next = old.with_quota(quota)?;
        next.migrate_from(&old, &from, &mut line.state);
        line.pacing = next;
        line.changes += 1;
        Ok(())
    }

    /// Charges, however long the wait, and tells from when on to wait.
    pub(crate) fn charge_at(&self, permits: u64) -> (Micros, Result<Wait, TooLong>) {
        let now = self.clock.now();
        let line = &mut *self.line();
        let place = line.pacing.try_within(&mut line.state, now, permits, Wait::micros(u64::MAX));
        (now, place.map(|place| place.wait()))
    }

    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }

    /// The rate in force.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.line().pacing.quota()
    }

    /// Whoever is to wait, blocking or not, charges here, and then waits for the place it is given; `None` if there is nothing
    /// to wait for.
    #[inline]
    fn charge(&self, permits: u64, timeout: Wait) -> Result<Option<(Reserved, u64)>, TooLong> {
        // A reading that grows old before the lock is taken does no harm: the wait is told from that reading, too.
        let now = self.clock.now();
        let line = &mut *self.line();
        if line.pacing.try_now(&mut line.state, now, permits) {
            return Ok(None);
        }
        let place = line.pacing.try_within(&mut line.state, now, permits, timeout)?;
        Ok(Some((place, line.changes)))
    }

    fn give_back(&self, place: Reserved, changes: u64) {
        let now = self.clock.now();
        let line = &mut *self.line();
        if line.changes == changes {
            line.pacing.cancel(&mut line.state, now, place);
        }
    }

    #[inline]
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rounded down: who can wait for half a microsecond cannot wait for a whole one.
fn micros(timeout: Duration) -> Wait {
    Wait::micros(u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX))
}

impl<C: Clone> Clone for Pacer<C> {
    /// Another handle on the same line.
    fn clone(&self) -> Self {
        Pacer { line: self.line.clone(), clock: self.clock.clone() }
    }
}

impl<C: fmt::Debug> fmt::Debug for Pacer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pacer").field("line", &self.line.0).field("clock", &self.clock).finish()
    }
}

// === impl Reservation ===

impl<C: Clock> Reservation<'_, C> {
    /// How long to wait, from when it was reserved. Zero: not at all.
    #[must_use]
    pub const fn wait(&self) -> Wait {
        self.wait
    }

    /// Makes it count, whenever the handle goes.
    pub fn keep(mut self) {
        self.place = None;
    }

    /// Gives it back, as far as that cannot let too much pass: see [`Reservation`]. From its instant on there is
    /// nothing to give back.
    pub fn cancel(mut self) {
        if let Some(place) = self.place.take() {
            self.pacer.give_back(place, self.changes);
        }
    }
}

impl<C: Clock> Drop for Reservation<'_, C> {
    /// Unlike [`cancel`](Reservation::cancel) this cannot know whether it was used. At its very instant it may have
    /// been.
    fn drop(&mut self) {
        if let Some(place) = self.place.take()
            && self.pacer.clock.now() < place.from()
        {
            self.pacer.give_back(place, self.changes);
        }
    }
}

impl<C: Clock> fmt::Debug for Reservation<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("wait", &self.wait).finish_non_exhaustive()
    }
}
