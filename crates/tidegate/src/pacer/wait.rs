//! # The verbs of a pacer that wait
//!
//! A reservation says how long to wait; these sit it out. A wait that is dropped is a reservation that is dropped: it
//! is given back if nobody has reserved after it.

use std::time::Duration;

use super::{Pacer, micros};
use crate::wait::{Park, Sleep};
use tidegate_core::{TooLong, Wait};

impl<C: Sleep> Pacer<C> {
    /// Waits until `permits` may be used, and tells how long that was. The first to come does not wait, however many it
    /// asks for: the next one pays.
    ///
    /// On the [`SteadyClock`](crate::SteadyClock) the timers are tokio's: this needs the feature `tokio`.
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use std::time::Duration;
    /// use tidegate::{Pacer, Quota, TokioClock};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    /// # runtime.block_on(async {
    /// let pacer = Pacer::new(Quota::per_second(5)).with_clock(TokioClock::new());
    /// assert_eq!(pacer.acquire(5).await?, Duration::ZERO);
    /// assert_eq!(pacer.acquire(1).await?, Duration::from_secs(1)); // pays for the five
    /// assert_eq!(pacer.acquire(1).await?, Duration::from_millis(200));
    /// # Ok::<(), tidegate::TooLong>(())
    /// # }).unwrap();
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`TooLong`] if the wait would be beyond the end of the time line.
    ///
    /// # Panics
    ///
    /// On the steady clock, if it has to wait outside a tokio runtime with timers.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point. What it reserved is given back, if nobody has reserved after it.
    #[inline]
    pub async fn acquire(&self, permits: u64) -> Result<Wait, TooLong> {
        self.acquire_timeout(permits, Duration::MAX).await
    }

    /// Waits as [`acquire`](Pacer::acquire) does, if that takes at most `timeout`.
    ///
    /// # Errors
    ///
    /// [`TooLong`], at once and with nothing charged, if the wait would be longer.
    ///
    /// # Panics
    ///
    /// As [`acquire`](Pacer::acquire).
    #[inline]
    pub async fn acquire_timeout(&self, permits: u64, timeout: Duration) -> Result<Wait, TooLong> {
        let Some((place, changes)) = self.charge(permits, micros(timeout))? else {
            return Ok(Wait::micros(0));
        };
        let (wait, instant) = (place.wait(), place.from());
        let reservation = self.reservation(place, changes);
        while self.clock.now() < instant {
            self.clock.sleep_until(instant).await;
        }
        reservation.keep();
        Ok(wait)
    }
}

impl<C: Park> Pacer<C> {
    /// Blocks this thread until `permits` may be used, and tells how long that was. Not for tasks: see
    /// [`acquire`](Pacer::acquire).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Pacer, Quota};
    ///
    /// let clock = ManualClock::new();
    /// let pacer = Pacer::new(Quota::per_second(5)).with_clock(clock.clone());
    /// assert_eq!(pacer.acquire_blocking(1)?, Duration::ZERO);
    /// std::thread::scope(|scope| {
    ///     let waiter = scope.spawn(|| pacer.acquire_blocking(1));
    ///     while pacer.peek()? != Duration::from_millis(400) {
    ///         std::thread::yield_now(); // until it has reserved
    ///     }
    ///     clock.advance(Duration::from_millis(200));
    ///     assert_eq!(waiter.join().unwrap()?, Duration::from_millis(200));
    ///     # Ok(())
    /// })?;
    /// # Ok::<(), tidegate::TooLong>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Pacer::acquire).
    pub fn acquire_blocking(&self, permits: u64) -> Result<Wait, TooLong> {
        self.acquire_blocking_timeout(permits, Duration::MAX)
    }

    /// Blocks this thread as [`acquire_blocking`](Pacer::acquire_blocking) does, if that takes at most `timeout`.
    ///
    /// # Errors
    ///
    /// [`TooLong`], at once and with nothing charged, if the wait would be longer.
    pub fn acquire_blocking_timeout(&self, permits: u64, timeout: Duration) -> Result<Wait, TooLong> {
        let Some((place, changes)) = self.charge(permits, micros(timeout))? else {
            return Ok(Wait::micros(0));
        };
        let (wait, instant) = (place.wait(), place.from());
        let reservation = self.reservation(place, changes);
        while self.clock.now() < instant {
            self.clock.park_until(instant);
        }
        reservation.keep();
        Ok(wait)
    }
}
