//! The waits of a pacer, computed the slow way: stored permits, the instant the next one is free, and nothing
//! packed.
//!
//! The method is the textbook's: reading at `now` turns the time since `next_free` into stored permits; a
//! request waits for the old `next_free`, takes what it can from the store, and moves `next_free` on by what
//! that costs and by an interval for each permit that was not stored. The code under test keeps neither of
//! the two numbers.
//!
//! The bursty oracle uses exact fractions. The warm-up oracle cannot, because it squares numbers that were
//! squared before; it uses doubles, counted from the start of the episode, which are good to a thousandth of
//! a microsecond.

use std::cmp::Ordering;
use std::ops::{Add, Div, Mul, Sub};
use std::time::Duration;

use tidegate_core::Quota;

/// A fraction in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fraction {
    above: i128,
    below: i128,
}

/// A pacer with the same operations as the code under test.
pub(crate) trait Pacer: Clone {
    /// How long a request at `now` would wait, in microseconds; not rounded.
    fn wait(&self, now: u64) -> f64;
    /// The same rounded up, where the oracle is exact.
    fn wait_up(&self, now: u64) -> Option<u64>;
    fn charge(&mut self, now: u64, permits: u64);
    fn set_rate(&mut self, now: u64, quota: Quota);
}

#[derive(Clone, Debug)]
pub(crate) struct Bursty {
    interval: Fraction,
    max_burst: Fraction,
    stored: Fraction,
    next_free: Fraction,
}

#[derive(Clone, Debug)]
pub(crate) struct WarmUp {
    began: u64,
    warm_up: f64,
    cold: f64,
    interval: f64,
    stored: f64,
    next_free: f64,
}

// === impl Bursty ===

impl Bursty {
    pub(crate) fn new(quota: Quota, max_burst: u64, now: u64) -> Self {
        let zero = Fraction::whole(0);
        let max_burst = Fraction::whole(max_burst.into());
        let next_free = Fraction::whole(now.into());
        Bursty { interval: interval(quota), max_burst, stored: zero, next_free }
    }

    fn most(&self) -> Fraction {
        self.max_burst / self.interval
    }

    fn read_at(&mut self, now: u64) {
        let now = Fraction::whole(now.into());
        if now > self.next_free {
            let grown = self.stored + (now - self.next_free) / self.interval;
            self.stored = if grown > self.most() { self.most() } else { grown };
            self.next_free = now;
        }
    }
}

impl Pacer for Bursty {
    fn wait(&self, now: u64) -> f64 {
        let left = self.next_free - Fraction::whole(now.into());
        (left.above as f64 / left.below as f64).max(0.0)
    }

    fn wait_up(&self, now: u64) -> Option<u64> {
        let left = (self.next_free - Fraction::whole(now.into())).ceil().max(0);
        Some(u64::try_from(left).expect("a wait that fits"))
    }

    fn charge(&mut self, now: u64, permits: u64) {
        self.read_at(now);
        let permits = Fraction::whole(permits.into());
        let from_store = if permits > self.stored { self.stored } else { permits };
        self.stored = self.stored - from_store;
        self.next_free = self.next_free + (permits - from_store) * self.interval;
    }

    /// The store keeps its proportion to its maximum. One thing is not exact: the instant up to which
    /// everything is spent is rounded up to a part of a microsecond in which the new interval is whole.
    fn set_rate(&mut self, now: u64, quota: Quota) {
        self.read_at(now);
        let proportion =
            if self.max_burst.above == 0 { Fraction::whole(0) } else { self.stored / self.most() };
        self.interval = interval(quota);
        let stored_time = proportion * self.most() * self.interval;
        let spent = (self.next_free - stored_time).rounded_up_to(self.interval.below);
        if self.next_free > spent {
            self.stored = (self.next_free - spent) / self.interval;
        } else {
            (self.stored, self.next_free) = (Fraction::whole(0), spent);
        }
    }
}

fn interval(quota: Quota) -> Fraction {
    let nanos = i128::try_from(quota.period().as_nanos()).expect("a period that fits");
    Fraction::of(nanos, i128::from(quota.limit()) * 1_000)
}

// === impl WarmUp ===

impl WarmUp {
    pub(crate) fn new(quota: Quota, warm_up: Duration, cold: f64, now: u64) -> Self {
        let warm_up = warm_up.as_micros() as f64;
        let mut made = WarmUp { began: now, warm_up, cold, interval: 0.0, stored: 0.0, next_free: 0.0 };
        made.interval = micros_apart(quota);
        made.stored = made.most();
        made
    }

    fn threshold(&self) -> f64 {
        0.5 * self.warm_up / self.interval
    }

    fn most(&self) -> f64 {
        self.threshold() + 2.0 * self.warm_up / (self.interval + self.cold * self.interval)
    }

    /// The time that one permit takes while so many are stored.
    fn height(&self, stored: f64) -> f64 {
        let slope = (self.cold * self.interval - self.interval) / (self.most() - self.threshold());
        self.interval + (stored - self.threshold()).max(0.0) * slope
    }

    fn cost_from_store(&self, permits: f64) -> f64 {
        let left = self.stored - permits;
        let sloping = (self.stored - left.max(self.threshold())).max(0.0);
        let mean = (self.height(self.stored) + self.height(left.max(self.threshold()))) / 2.0;
        sloping * mean + (permits - sloping) * self.interval
    }

    fn read_at(&mut self, now: f64) {
        if now > self.next_free {
            let cool_down = self.warm_up / self.most();
            self.stored = (self.stored + (now - self.next_free) / cool_down).min(self.most());
            self.next_free = now;
        }
    }

    fn since(&self, now: u64) -> f64 {
        (now - self.began) as f64
    }
}

impl Pacer for WarmUp {
    fn wait(&self, now: u64) -> f64 {
        (self.next_free - self.since(now)).max(0.0)
    }

    fn wait_up(&self, _: u64) -> Option<u64> {
        None
    }

    fn charge(&mut self, now: u64, permits: u64) {
        self.read_at(self.since(now));
        let from_store = self.stored.min(permits as f64);
        self.next_free += self.cost_from_store(from_store) + (permits as f64 - from_store) * self.interval;
        self.stored -= from_store;
    }

    fn set_rate(&mut self, now: u64, quota: Quota) {
        self.read_at(self.since(now));
        let proportion = self.stored / self.most();
        self.interval = micros_apart(quota);
        self.stored = proportion * self.most();
    }
}

fn micros_apart(quota: Quota) -> f64 {
    quota.period().as_nanos() as f64 / 1_000.0 / quota.limit() as f64
}

// === impl Fraction ===

impl Fraction {
    fn whole(number: i128) -> Self {
        Fraction { above: number, below: 1 }
    }

    fn of(above: i128, below: i128) -> Self {
        let (mut a, mut b) = (above.abs(), below.abs());
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let common = a.max(1) * below.signum();
        Fraction { above: above / common, below: below / common }
    }

    fn ceil(self) -> i128 {
        -(-self.above).div_euclid(self.below)
    }

    fn rounded_up_to(self, parts: i128) -> Self {
        Fraction::of((self * Fraction::whole(parts)).ceil(), parts)
    }
}

impl Add for Fraction {
    type Output = Fraction;

    fn add(self, other: Fraction) -> Fraction {
        Fraction::of(self.above * other.below + other.above * self.below, self.below * other.below)
    }
}

impl Sub for Fraction {
    type Output = Fraction;

    fn sub(self, other: Fraction) -> Fraction {
        self + Fraction { above: -other.above, ..other }
    }
}

impl Mul for Fraction {
    type Output = Fraction;

    fn mul(self, other: Fraction) -> Fraction {
        Fraction::of(self.above * other.above, self.below * other.below)
    }
}

impl Div for Fraction {
    type Output = Fraction;

    fn div(self, other: Fraction) -> Fraction {
        Fraction::of(self.above * other.below, self.below * other.above)
    }
}

impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Fraction) -> Option<Ordering> {
        Some((self.above * other.below).cmp(&(other.above * self.below)))
    }
}
