//! # Where `now` comes from
//!
//! Algorithms are told the time; limiters have to find it out. They ask a [`Clock`], once per decision.
//!
//! * [`SteadyClock`], the default: steady, never back, and as fast as the processor allows.
//! * [`ManualClock`]: stands still until somebody moves it on. For tests, where time is data.
//! * [`SettableClock`]: can also be set back.
//! * `TokioClock`, with the feature `tokio`: the time of a tokio runtime, which its tests can pause.
//!
//! Most of them can also be waited by: see [`Park`](crate::Park) and [`Sleep`](crate::Sleep).

mod manual;
mod steady;
#[cfg(feature = "tokio")]
mod tokio;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "tokio")]
pub use self::tokio::TokioClock;
pub use manual::{ManualClock, ManualSleep};
pub use steady::SteadyClock;
use tidegate_core::{ClockKind, Micros};

/// Tells the time to a limiter.
pub trait Clock {
    /// Whether a reading may be earlier than one before it.
    ///
    /// Where it cannot, a thread that finds a state from after its own reading was merely slow to get there, and
    /// decides at the later instant. Where it can, the clock has stepped back, and the state is pulled back with it.
    const KIND: ClockKind;

    /// The current instant, in microseconds of whatever time line this clock keeps.
    fn now(&self) -> Micros;
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
    const KIND: ClockKind = ClockKind::MayStepBack;

    #[inline]
    fn now(&self) -> Micros {
        Micros::new(self.micros.load(Ordering::SeqCst))
    }
}
