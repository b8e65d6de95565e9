//! # Where `now` comes from
//!
//! Algorithms are told the time; limiters have to find it out. They ask a [`Clock`], once per decision.
//!
//! * [`SteadyClock`], the default: steady, never back, and as fast as the processor allows.
//! * [`ManualClock`]: stands still until somebody moves it. For tests, where time is data.

mod steady;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use steady::SteadyClock;
use tidegate_core::Micros;

/// Tells the time to a limiter.
pub trait Clock {
    /// Whether a reading may be earlier than one before it.
    ///
    /// Where it cannot, a thread that finds a state from after its own reading was merely slow to get there, and
    /// decides at the later instant. Where it can, the clock has stepped back, and the state is pulled back with it.
    const STEPS_BACK: bool;

    /// The current instant, in microseconds of whatever time line this clock keeps.
    fn now(&self) -> Micros;
}

/// A clock that stands still until it is moved, shared by its clones.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Clock, ManualClock};
///
/// let clock = ManualClock::new();
/// let same = clock.clone();
/// clock.advance(Duration::from_millis(100));
/// assert_eq!(same.now().get(), 100_000);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    micros: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that stands at zero.
    #[must_use]
    pub fn new() -> Self {
        ManualClock::default()
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        self.set(Micros::from(by).plus(self.now().get()));
    }

    /// Sets the clock to any instant, also an earlier one.
    pub fn set(&self, to: Micros) {
        self.micros.store(to.get(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    const STEPS_BACK: bool = true;

    #[inline]
    fn now(&self) -> Micros {
        Micros::new(self.micros.load(Ordering::SeqCst))
    }
}
