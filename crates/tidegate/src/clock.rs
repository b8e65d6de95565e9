//! # Where `now` comes from
//!
//! Algorithms are told the time; limiters have to find it out. They ask a [`Clock`], once per decision.
//!
//! * [`SteadyClock`], the default: steady, never back, and as fast as the processor allows.
//! * [`ManualClock`]: stands still until somebody moves it on. For tests, where time is data.
//! * [`SettableClock`]: can also be set back.

mod steady;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use steady::SteadyClock;
use tidegate_core::{Micros, Steadiness};

/// Tells the time to a limiter.
pub trait Clock {
    /// Whether a reading may be earlier than one before it.
    ///
    /// Where it cannot, a thread that finds a state from after its own reading was merely slow to get there, and
    /// decides at the later instant. Where it can, the clock has stepped back, and the state is pulled back with it.
    const STEADINESS: Steadiness;

    /// The current instant, in microseconds of whatever time line this clock keeps.
    fn now(&self) -> Micros;
}

/// A clock that stands still until it is moved, shared by its clones.
///
/// It is as steady as the real one, so that limiters do with it exactly what they do in production.
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
        self.advance_to(Micros::from(by).plus(self.now().get()));
    }

    /// Moves the clock on to an instant; it stays where it is if that has passed.
    pub fn advance_to(&self, to: Micros) {
        self.micros.fetch_max(to.get(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    const STEADINESS: Steadiness = Steadiness::Steady;

    #[inline]
    fn now(&self) -> Micros {
        Micros::new(self.micros.load(Ordering::SeqCst))
    }
}

/// A clock that can be set to any instant, also to an earlier one, as wall clocks are. Shared by its clones.
///
/// For testing what becomes of limits when a clock steps back.
#[derive(Clone, Debug, Default)]
pub struct SettableClock {
    micros: Arc<AtomicU64>,
}

impl SettableClock {
    /// A clock that stands at zero.
    #[must_use]
    pub fn new() -> Self {
        SettableClock::default()
    }

    /// Sets the clock.
    pub fn set(&self, to: Micros) {
        self.micros.store(to.get(), Ordering::SeqCst);
    }
}

impl Clock for SettableClock {
    const STEADINESS: Steadiness = Steadiness::MayStepBack;

    #[inline]
    fn now(&self) -> Micros {
        Micros::new(self.micros.load(Ordering::SeqCst))
    }
}
