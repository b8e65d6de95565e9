//! A bucket that refills in steps: whole tokens, and the step they were counted in.

use std::time::Duration;

use super::{Model, Time, ceil_div};
use tidegate_core::Quota;

#[derive(Clone, Debug)]
pub(crate) struct Steps {
    refill: i128,
    period: Time,
    offset: Time,
    burst: i128,
    /// A negative number is debt.
    tokens: i128,
    step: i128,
    now: Time,
}

impl Steps {
    pub(crate) fn new(quota: Quota, offset: Duration) -> Self {
        let burst = i128::from(quota.max_burst());
        Steps {
            refill: i128::from(quota.limit()),
            period: i128::try_from(quota.period().as_micros()).expect("a period that fits"),
            offset: i128::try_from(offset.as_micros()).expect("an offset that fits"),
            burst,
            tokens: burst,
            step: 0,
            now: 0,
        }
    }

    fn step_of(&self, now: Time) -> i128 {
        (now - self.offset).div_euclid(self.period)
    }

    fn time_until(&self, tokens: i128) -> Time {
        let steps = ceil_div(tokens - self.tokens, self.refill);
        if steps <= 0 {
            return 0;
        }
        (self.step + steps) * self.period + self.offset - self.now
    }
}

impl Model for Steps {
    fn capacity(&self) -> i128 {
        self.burst
    }

    fn forgive(&mut self, now: Time) {
        self.step = self.step.min(self.step_of(now));
    }

    fn advance(&mut self, now: Time) {
        let step = self.step_of(now);
        self.tokens = (self.tokens + (step - self.step) * self.refill).min(self.burst);
        self.step = step;
        self.now = now;
    }

    fn left(&self) -> i128 {
        self.tokens.max(0)
    }

    fn wait(&self, cost: i128) -> Time {
        self.time_until(cost)
    }

    fn until_full(&self) -> Time {
        self.time_until(self.burst)
    }

    fn spend(&mut self, cost: i128) {
        self.tokens -= cost;
    }

    fn give_back(&mut self, cost: i128) {
        self.tokens = (self.tokens + cost).min(self.burst);
    }

    fn owes_nothing(&self) -> bool {
        self.tokens >= self.burst
    }

    fn forget(&mut self) {
        self.tokens = self.burst;
    }
}
