//! # Steady clock
//!
//! Asking the operating system for the time takes longer than everything else in a decision. The processor's cycle
//! counter is read in a third of that time. But it counts cycles, not microseconds, and a factor measured once is wrong
//! by some parts in a million: seconds in a day, which a daily window would show.
//!
//! So the factor is measured again and again. About once a second a reader compares the counter with the system's
//! monotonic clock and steers: it changes the pace for the next second just so much that the difference is gone at its
//! end.
//!
//! ```text
//!            system's clock ╱
//!                         ╱ ·       the pace changes at each ×,
//!      ours  ·  ×───────×           the reading never jumps
//!          ·  ╱
//!           ╱     1 s
//! ```
//!
//! The reading starts at the wall clock's time, so that aligned windows begin on the hour. From then on it follows the
//! monotonic clock: setting the wall clock does not change a limit. If the counter cannot be trusted, because it stops
//! or differs between processors, the monotonic clock is read directly.
//!
//! A factor that is measured once at the start is wrong by perhaps a hundred parts in a million, which is
//! eight seconds in a day: a daily window would end early, and two machines would differ by more each day.
//! Steering changes the pace by a thousandth at most. What one second leaves over is corrected in the next,
//! so no error is forgotten, and the reading never steps back. It steps forward only if it is more than a
//! second behind, as after a reset of the counter.
//!
//! The price of ignoring the wall clock: after a large correction of it, aligned windows begin at the old
//! hour until the process is restarted.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::Clock;
use tidegate_core::{ClockKind, Micros};

/// A clock that runs from the wall clock's time at a steady pace and never steps back.
///
/// All copies are one clock. Creating the first one of a process takes a moment, while the cycle counter is measured;
/// create it at start-up, not in the first request.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock(&'static Steady);

impl SteadyClock {
    /// The steady clock of the process.
    #[must_use]
    pub fn new() -> Self {
        static STEADY: OnceLock<Steady> = OnceLock::new();
        SteadyClock(STEADY.get_or_init(Steady::start))
    }
}

impl Default for SteadyClock {
    fn default() -> Self {
        SteadyClock::new()
    }
}

impl Clock for SteadyClock {
    const KIND: ClockKind = ClockKind::Monotonic;

    #[inline]
    fn now(&self) -> Micros {
        self.0.now()
    }
}

/// The number of fractional bits of a reading: readings are in 16ths of a microsecond.
///
/// Steering can thus be finer than what is read.
const FRACTION: u32 = 4;
const SECOND: u64 = 1_000_000 << FRACTION;
/// The latest start: a century before the end of the time line.
///
/// No process lives to see the end. Only a wall clock that is far off is later than this.
const LATEST_START: Micros = Micros::MAX.minus(100 * 366 * 86_400 * 1_000_000);
/// The pace may be steered by at most a thousandth of what was measured.
const MAX_STEERING: u64 = 1_000;

#[derive(Debug)]
struct Steady {
    counter: Counter,
    /// The number of changes of the pace that are done; `begun` counts their beginnings.
    ///
    /// A reader loads `done` before it reads the pace, and `begun` afterwards. If they differ, it may have read half of
    /// a change, and reads again.
    done: AtomicU64,
    begun: AtomicU64,
    base_ticks: AtomicU64,
    base: AtomicU64,
    /// What one tick adds to the reading, in 2⁻⁶⁴ of its unit.
    ///
    /// A reading is then the high half of a product.
    per_tick: AtomicU64,
    /// The number of ticks after its base at which the pace is to be steered again.
    valid_ticks: AtomicU64,
    /// The same, or 0 if the cycles cannot be trusted.
    ///
    /// Then every reading takes the slow path.
    fast_path_ticks: AtomicU64,
    steering: Mutex<Steering>,
    started: Instant,
    started_at: u64,
}

#[derive(Debug)]
struct Counter {
    cycles: quanta::Clock,
    /// Read instead of the cycles if they cannot be trusted.
    system: Option<Instant>,
}

/// The pace from one steering to the next.
#[derive(Clone, Copy, Debug)]
struct Pace {
    base_ticks: u64,
    base: u64,
    per_tick: u64,
}

/// What one steering passes on to the next.
#[derive(Clone, Copy, Debug)]
struct Steering {
    last: Sample,
    /// How long the system's clock has stood still while the counter went on.
    ///
    /// That happens when a machine sleeps.
    slept: u64,
}

/// The counter and the system's clock, read at the same moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    ticks: u64,
    system: u64,
}

// === impl Steady ===

impl Steady {
    fn start() -> Self {
        let counter = Counter::best();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (started, ticks) = (Instant::now(), counter.ticks());
        let started_at = Micros::from(wall).min(LATEST_START).get() << FRACTION;
        let per_tick = counter.initial_rate();
        let valid_ticks = ticks_in(SECOND / 16, per_tick);
        Steady {
            done: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            base_ticks: AtomicU64::new(ticks),
            base: AtomicU64::new(started_at),
            per_tick: AtomicU64::new(per_tick),
            valid_ticks: AtomicU64::new(valid_ticks),
            fast_path_ticks: AtomicU64::new(counter.fast_path_ticks_for(valid_ticks)),
            steering: Mutex::new(Steering { last: Sample { ticks, system: started_at }, slept: 0 }),
            counter,
            started,
            started_at,
        }
    }

    #[inline]
    fn now(&self) -> Micros {
        let done = self.done.load(Ordering::Acquire);
        let (pace, fast_path_ticks) = (self.pace(), self.fast_path_ticks.load(Ordering::Relaxed));
        // A counter behind its own base, reset while the machine was suspended, seems far ahead of the base.
        let passed = self.counter.cycles.raw().wrapping_sub(pace.base_ticks);
        fence(Ordering::Acquire);
        if passed >= fast_path_ticks || self.begun.load(Ordering::Relaxed) != done {
            return self.now_and_steer();
        }
        pace.micros_after(passed)
    }

    #[inline]
    fn pace(&self) -> Pace {
        Pace {
            base_ticks: self.base_ticks.load(Ordering::Relaxed),
            base: self.base.load(Ordering::Relaxed),
            per_tick: self.per_tick.load(Ordering::Relaxed),
        }
    }

    /// The slow path of `now`.
    ///
    /// Taken if the pace is to be steered or is being changed, or if the cycles cannot be trusted.
    #[cold]
    #[inline(never)]
    fn now_and_steer(&self) -> Micros {
        loop {
            let done = self.done.load(Ordering::Acquire);
            let (pace, valid_ticks, ticks) =
                (self.pace(), self.valid_ticks.load(Ordering::Relaxed), self.counter.ticks());
            fence(Ordering::Acquire);
            if self.begun.load(Ordering::Relaxed) == done {
                let passed = ticks.saturating_sub(pace.base_ticks);
                if passed >= valid_ticks || ticks < pace.base_ticks {
                    self.steer();
                }
                return pace.micros_after(passed);
            }
            std::hint::spin_loop();
        }
    }

    /// Changes the pace so that the reading meets the system's clock a second from now.
    fn steer(&self) {
        // A second thread goes on with the old pace, which is good enough for another moment.
        let Ok(mut steering) = self.steering.try_lock() else { return };
        let (sample, pace) = (self.sample(), self.pace());
        let (next, slept) = steering.next_pace(sample, pace);
        self.publish(next);
        *steering = Steering { last: sample, slept };
    }

    fn publish(&self, next: Pace) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.base_ticks.store(next.base_ticks, Ordering::Relaxed);
        self.base.store(next.base, Ordering::Relaxed);
        self.per_tick.store(next.per_tick, Ordering::Relaxed);
        let valid_ticks = ticks_in(SECOND, next.per_tick);
        self.valid_ticks.store(valid_ticks, Ordering::Relaxed);
        self.fast_path_ticks.store(self.counter.fast_path_ticks_for(valid_ticks), Ordering::Relaxed);
        self.done.fetch_add(1, Ordering::Release);
    }

    /// The tightest of a few attempts to read both clocks at the same moment.
    fn sample(&self) -> Sample {
        let attempt = || {
            let before = self.counter.ticks();
            let elapsed = self.started.elapsed();
            let after = self.counter.ticks();
            let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
            let system = self.started_at.saturating_add(nanos.saturating_mul(1 << FRACTION) / 1_000);
            (
                after.saturating_sub(before),
                Sample { ticks: before + after.saturating_sub(before) / 2, system },
            )
        };
        let attempts = [attempt(), attempt(), attempt()];
        attempts.into_iter().min_by_key(|(width, _)| *width).map_or_else(|| attempt().1, |(_, sample)| sample)
    }
}

impl Steering {
    /// The pace from `sample` on, after `pace`, and how long the machine slept in all.
    fn next_pace(self, sample: Sample, pace: Pace) -> (Pace, u64) {
        let here = pace.at(sample.ticks);
        let system = sample.system + self.slept;
        let base_ticks = sample.ticks;
        match measured_pace(self.last, sample, pace.per_tick) {
            _ if here > system + SECOND => {
                // A lead of more than a second is not drift: the system's clock stood still during a sleep. Our reading
                // includes the sleep, so it is kept.
                (Pace { base_ticks, base: here, ..pace }, here - sample.system)
            }
            _ if system > here + SECOND => (Pace { base_ticks, base: system, ..pace }, self.slept),
            measured => {
                let per_tick = steered(measured.unwrap_or(pace.per_tick), here, system);
                (Pace { base_ticks, base: here, per_tick }, self.slept)
            }
        }
    }
}

/// What a tick has really been worth between two samples.
///
/// `None` if they are too close to tell, or if the result is so far from `before` that one of the clocks must have
/// stood still.
fn measured_pace(from: Sample, to: Sample, before: u64) -> Option<u64> {
    let ticks = to.ticks.checked_sub(from.ticks)?;
    let passed = to.system.checked_sub(from.system)?;
    if passed < SECOND / 100 || ticks == 0 {
        return None;
    }
    let measured = u64::try_from((u128::from(passed) << 64) / u128::from(ticks)).ok()?;
    (measured.abs_diff(before) < before / 100).then_some(measured)
}

/// The measured pace, changed so that `here` meets `system` a second from now.
fn steered(measured: u64, here: u64, system: u64) -> u64 {
    let max = measured / MAX_STEERING;
    let correction = |apart: u64| {
        let correction = u128::from(measured) * u128::from(apart) / u128::from(SECOND);
        u64::try_from(correction).unwrap_or(u64::MAX).min(max)
    };
    if here > system { measured - correction(here - system) } else { measured + correction(system - here) }
}

fn ticks_in(span: u64, per_tick: u64) -> u64 {
    u64::try_from((u128::from(span) << 64) / u128::from(per_tick.max(1))).unwrap_or(u64::MAX)
}

// === impl Pace ===

impl Pace {
    #[inline]
    fn at(self, ticks: u64) -> u64 {
        self.after(ticks.saturating_sub(self.base_ticks))
    }

    #[inline]
    fn micros_after(self, ticks: u64) -> Micros {
        // No reading lies beyond the end of the time line: see `LATEST_START`. The two shifts only tell the compiler
        // so.
        Micros::new(self.after(ticks) << (64 - 53 - FRACTION) >> (64 - 53))
    }

    #[inline]
    fn after(self, ticks: u64) -> u64 {
        self.base + ((u128::from(ticks) * u128::from(self.per_tick)) >> 64) as u64
    }
}

// === impl Counter ===

impl Counter {
    fn best() -> Self {
        let system = if kernel_trusts_cycles() { None } else { Some(Instant::now()) };
        Counter { cycles: quanta::Clock::new(), system }
    }

    fn ticks(&self) -> u64 {
        match self.system {
            None => self.cycles.raw(),
            Some(since) => u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// The first estimate of what a tick is worth.
    fn initial_rate(&self) -> u64 {
        let nanos = match self.system {
            None => self.cycles.delta_as_nanos(0, 1 << 40),
            Some(_) => 1 << 40,
        };
        // From nanoseconds in 2⁴⁰ ticks to 2⁻⁶⁴ of 16ths of a microsecond in one tick. A counter slower than 16 MHz
        // would not fit.
        u64::try_from((u128::from(nanos) << (FRACTION + 64 - 40)) / 1_000).unwrap_or(u64::MAX)
    }

    /// For how many ticks the fast path may read a pace: `valid_ticks`, or 0 without cycles.
    fn fast_path_ticks_for(&self, valid_ticks: u64) -> u64 {
        if self.system.is_none() { valid_ticks } else { 0 }
    }
}

/// Whether the kernel trusts the cycle counter.
///
/// Linux watches the counter and removes it from this list when it drifts or differs between processors.
fn kernel_trusts_cycles() -> bool {
    match std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/available_clocksource") {
        Ok(sources) => {
            sources.split_whitespace().any(|source| source == "tsc" || source == "arch_sys_counter")
        }
        Err(_) => true, // not Linux: rely on the counter's own flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tick worth half a unit.
    const HALF: u64 = 1 << 63;

    fn steady(here: u64) -> Pace {
        Pace { base_ticks: 0, base: here, per_tick: HALF }
    }

    #[test]
    fn steering_meets_the_system_clock_after_a_second() {
        for (here, system) in [(0, 4_000), (4_000, 0), (7, 7)] {
            let pace = Pace { per_tick: steered(HALF, here, system), ..steady(here) };
            let apart = pace.at(2 * SECOND).abs_diff(system + SECOND);
            assert!(apart <= 1, "from {here} to {system}: {apart} apart");
        }
    }

    #[test]
    fn steering_never_turns_the_clock_back() {
        let pace = steered(HALF, 1_000 * SECOND, 0);
        assert_eq!(pace, HALF - HALF / MAX_STEERING);
    }

    #[test]
    fn implausible_rate_measurements_are_discarded() {
        let from = Sample { ticks: 1_000, system: 0 };
        let to = Sample { ticks: 1_000 + 3 * SECOND, system: SECOND };
        assert_eq!(measured_pace(from, to, u64::MAX / 3 + 1_000), Some(u64::MAX / 3));
        assert_eq!(measured_pace(from, from, HALF), None, "no time has passed to measure by");
        assert_eq!(measured_pace(from, to, HALF), None, "no clock drifts by a third");
    }

    #[test]
    fn machine_that_slept_continues_at_its_old_rate() {
        let steering = Steering { last: Sample { ticks: 0, system: 0 }, slept: 0 };
        let hour = 3_600 * SECOND;
        let woken = Sample { ticks: 2 * hour, system: SECOND }; // the counter ran on, the system's clock did not
        let (pace, slept) = steering.next_pace(woken, steady(0));
        assert_eq!((pace.at(woken.ticks), pace.per_tick, slept), (hour, HALF, hour - SECOND));

        let later = Sample { ticks: 2 * hour + 2 * SECOND, system: 2 * SECOND };
        let (pace, slept) = Steering { last: woken, slept }.next_pace(later, pace);
        assert_eq!((pace.at(later.ticks), slept), (hour + SECOND, hour - SECOND));
        assert!(pace.per_tick.abs_diff(HALF) < HALF / 1_000_000);
    }

    #[test]
    fn reset_counter_continues_from_the_system_clock() {
        let steering = Steering { last: Sample { ticks: 1 << 50, system: 0 }, slept: 0 };
        let woken = Sample { ticks: 7, system: 90 * SECOND };
        let (pace, slept) = steering.next_pace(woken, Pace { base_ticks: 1 << 50, ..steady(SECOND) });
        assert_eq!((pace.at(7), pace.per_tick, slept), (90 * SECOND, HALF, 0));
    }

    #[test]
    fn clock_starts_at_the_wall_clock_and_never_steps_back() {
        let clock = SteadyClock::new();
        let mut last = clock.now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        assert!(last.get().abs_diff(Micros::from(wall).get()) < 3_600_000_000, "{last} is not today");
        for _ in 0..1_000_000 {
            let now = clock.now();
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
    }

    #[test]
    fn repeated_steering_stays_monotonic_and_near_the_system_clock() {
        let steady = Steady::start();
        let mut last = steady.now();
        for _ in 0..10_000 {
            steady.steer();
            let now = steady.now();
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
        let sample = steady.sample();
        let apart = steady.pace().at(sample.ticks).abs_diff(sample.system);
        assert!(apart < SECOND / 10, "{apart} apart after steering");
    }
}
