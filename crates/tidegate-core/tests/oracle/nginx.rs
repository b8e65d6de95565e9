//! A zone as nginx keeps it: thousandths of a request that are owed, and the millisecond they were written
//! in.
//!
//! Nothing leaks between two requests. Each request subtracts what has leaked since the last write, truncated
//! to a whole number; so the written value determines when there is room, and not what a peek in between has
//! truncated.

use super::{Model, Time, ceil_div};
use tidegate_core::Quota;

const REQUEST: i128 = 1_000;
const MILLI: i128 = 1_000;
/// A step back by more than so many milliseconds is accepted, and counts as one millisecond forward.
const FAR_BACK: i128 = 60_000;

#[derive(Clone, Debug)]
pub(crate) struct Zone {
    /// Thousandths of a request per second.
    rate: i128,
    burst: i128,
    delay: i128,
    owed: i128,
    /// The millisecond it was written in; 0 if nothing is owed.
    written: i128,
    /// Whether the clock has just stepped back far.
    far_back: bool,
    now: Time,
}

impl Zone {
    /// `None` if there is no such rate in nginx.
    pub(crate) fn new(quota: Quota, burst: u32, delay: u32) -> Option<Self> {
        let nanos = i128::try_from(quota.period().as_nanos()).expect("a period that fits");
        let rate = i128::from(quota.limit()) * REQUEST * 1_000_000_000 / nanos;
        let (burst, delay) = (i128::from(burst) * REQUEST, i128::from(delay) * REQUEST);
        let zone = Zone { rate, burst, delay, owed: 0, written: 0, far_back: false, now: 0 };
        (1..=i128::from(u32::MAX)).contains(&rate).then_some(zone)
    }

    fn passed(&self) -> i128 {
        if self.far_back { 1 } else { (self.now / MILLI - self.written).max(0) }
    }

    fn owed_now(&self) -> i128 {
        (self.owed - self.rate * self.passed() / 1_000).max(0)
    }

    /// How long until so much of the written value has leaked.
    fn time_until_leaked(&self, thousandths: i128) -> Time {
        let instant = (self.written + ceil_div(thousandths * 1_000, self.rate)) * MILLI;
        (instant - self.now).max(0)
    }

    fn write(&mut self, owed: i128) {
        if self.passed() > 0 {
            self.written = self.now / MILLI;
        }
        self.owed = owed.max(0);
        if self.owed == 0 {
            self.written = 0;
        }
        self.far_back = false;
    }
}

impl Model for Zone {
    fn capacity(&self) -> i128 {
        self.burst / REQUEST + 1
    }

    fn forgive(&mut self, now: Time) {
        self.far_back = self.written > now / MILLI + FAR_BACK;
        if self.far_back {
            self.written = now / MILLI;
        }
    }

    fn advance(&mut self, now: Time) {
        self.now = now;
    }

    fn left(&self) -> i128 {
        (self.burst + REQUEST - self.owed_now()).max(0) / REQUEST
    }

    fn wait(&self, cost: i128) -> Time {
        self.time_until_leaked(self.owed + cost * REQUEST - self.burst - REQUEST)
    }

    fn until_full(&self) -> Time {
        if self.owed_now() == 0 { 0 } else { self.time_until_leaked(self.owed) }
    }

    fn spend(&mut self, cost: i128) {
        if cost > 0 {
            self.write(self.owed_now() + cost * REQUEST);
        }
    }

    fn turn(&self) -> Time {
        (self.owed - REQUEST - self.delay).max(0) * 1_000 / self.rate * MILLI
    }

    fn give_back(&mut self, cost: i128) {
        if cost > 0 {
            self.write(self.owed_now() - cost * REQUEST);
        }
    }

    fn owes_nothing(&self) -> bool {
        self.owed_now() == 0
    }

    fn forget(&mut self) {
        self.write(0);
    }
}
