//! # Clocks
//!
//! Algorithms take the time as an argument. Limiters read it from a [`Clock`], once per decision.
//!
//! * [`SteadyClock`], the default: has a steady pace, never steps back, and is as fast as the processor allows.
//! * [`ManualClock`]: stands still until it is advanced. For tests, where time is data.
//! * [`SettableClock`]: can also be set back.
//! * `TokioClock`, with the feature `tokio`: the time of a tokio runtime, which its tests can pause.
//!
//! Threads or tasks can wait on most of them: see [`Park`] and [`Sleep`].

mod manual;
mod steady;
#[cfg(feature = "tokio")]
mod tokio;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "tokio")]
pub use self::tokio::TokioClock;
pub use crate::wait::{Park, Sleep};
pub use manual::{ManualClock, ManualSleep};
pub use steady::SteadyClock;
pub use tidegate_core::{ClockKind, Micros};

/// Tells the time to a limiter.
pub trait Clock {
    /// Whether a reading may be earlier than a previous one.
    ///
    /// If it cannot, a thread that finds a state later than its own reading was merely slow to get there, and decides
    /// at the later instant. If it can, such a state means that the clock has stepped back, and the state is moved back
    /// with it.
    const KIND: ClockKind;

    /// The current instant, in microseconds on the time line of this clock.
    fn now(&self) -> Micros;
}

/// A clock that can be set to any instant, even an earlier one, as wall clocks can.
///
/// Clones share the time. For tests of limits when a clock steps back.
#[derive(Clone, Debug, Default)]
pub struct SettableClock {
    micros: Arc<AtomicU64>,
}

impl SettableClock {
    /// A clock at zero.
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
