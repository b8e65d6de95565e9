//! # A clock that does not stop
//!
//! A lease ends while a machine sleeps, as Redis's time goes on. The usual clocks of a program stand still then, and whoever
//! judges by them goes on spending what is long somebody else's.

use rustix::time::{ClockId, clock_gettime};
use tidegate::{Clock, ClockKind, Micros};

/// Microseconds since the machine was started, those in which it slept included.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BootClock;

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
/// Elsewhere this is the nearest; on some systems it stops in sleep.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

impl Clock for BootClock {
    const KIND: ClockKind = ClockKind::Monotonic;

    fn now(&self) -> Micros {
        let time = clock_gettime(CLOCK);
        let micros = |number: i64, worth: u64| u64::try_from(number).unwrap_or(0).saturating_mul(worth);
        Micros::new(micros(time.tv_sec, 1_000_000).saturating_add(micros(time.tv_nsec, 1) / 1_000))
    }
}
