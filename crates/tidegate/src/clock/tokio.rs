//! # Clock of a tokio runtime
//!
//! A test under `#[tokio::test(start_paused = true)]` has a time of its own, which jumps to the next timer whenever all
//! tasks wait. A limiter in such a test has to read that time, or its waits and the test's would be unrelated.

use super::Clock;
use crate::wait::Sleep;
use tidegate_core::{ClockKind, Micros};
use tokio::time::{Duration, Instant};

/// A clock that reads tokio's time. Zero is the instant of its creation.
///
/// For tests on a paused runtime; create it inside the runtime. In production prefer
/// [`SteadyClock`](crate::SteadyClock), which is faster to read and has windows that begin on the hour. Only tasks can
/// wait on this clock, not threads: the time of a paused runtime stands still while a thread of it is blocked.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limiter, Quota, TokioClock};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
/// # runtime.block_on(async {
/// let limiter = Limiter::builder(Quota::per_minute(1)).clock(TokioClock::new()).build();
/// assert!(limiter.check().is_allowed());
/// assert!(!limiter.check().is_allowed());
/// tokio::time::sleep(Duration::from_secs(60)).await; // returns immediately: the runtime is paused
/// assert!(limiter.check().is_allowed());
/// # });
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    zero: Instant,
}

/// Longer than any process lives, and in range of every operating system's instants.
const MAX_DURATION: Duration = Duration::from_secs(100 * 366 * 86_400);

impl TokioClock {
    /// A clock that is at zero now.
    #[must_use]
    pub fn new() -> Self {
        TokioClock { zero: Instant::now() }
    }

    fn instant(&self, at: Micros) -> Instant {
        self.zero + Duration::from_micros(at.get()).min(MAX_DURATION)
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        TokioClock::new()
    }
}

impl Clock for TokioClock {
    const KIND: ClockKind = ClockKind::Monotonic;

    fn now(&self) -> Micros {
        Instant::now().saturating_duration_since(self.zero).into()
    }
}

impl Sleep for TokioClock {
    type Sleeping = tokio::time::Sleep;

    fn sleep_until(&self, until: Micros) -> tokio::time::Sleep {
        tokio::time::sleep_until(self.instant(until))
    }
}
