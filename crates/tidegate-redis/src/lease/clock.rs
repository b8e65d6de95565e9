//! # A clock that includes suspend time
//!
//! A lease expires while a machine is suspended, because Redis's clock goes on. The usual clock of a program stands
//! still during that time, so the program would go on to spend tokens that belong to other nodes by then.

use rustix::time::{ClockId, clock_gettime};
use tidegate::clock::{Clock, ClockKind, Micros};

/// Microseconds since boot, including the time in which the machine was suspended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BootClock;

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
/// The nearest equivalent elsewhere; on some systems it stops during suspend.
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
