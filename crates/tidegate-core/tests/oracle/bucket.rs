//! A token bucket in its simplest form: a number of tokens, and when they were counted. A leaky queue is a
//! bucket with one token per queue slot, in which a request waits until few enough slots are taken.
//!
//! A token refills every period/limit. Tokens are counted in fractions of one over the period in nanoseconds,
//! so that one microsecond refills a whole number of fractions and nothing is ever rounded.

use super::{Model, Time, ceil_div};
use tidegate_core::{ClockKind, Quota};

#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// The fractions of a token.
    token: i128,
    /// The fractions that refill in a microsecond.
    pace: i128,
    /// The fractions of a full bucket.
    full: i128,
    /// A request that leaves no more than this missing passes without waiting.
    free: i128,
    /// The content of the bucket, in fractions. A negative content is debt.
    tokens: i128,
    counted: Time,
    /// The latest instant before a far step back, until the clock has caught up with it.
    high: Option<Time>,
    clock: ClockKind,
}

/// Requests pass without waiting, whatever the debt.
const NO_WAIT: i128 = i128::MAX / 2;

impl Bucket {
    pub(crate) fn new(quota: Quota, clock: ClockKind) -> Self {
        let token = i128::try_from(quota.period().as_nanos()).expect("a period that fits");
        let full = i128::from(quota.max_burst()) * token;
        let pace = i128::from(quota.limit()) * 1_000;
        Bucket { token, pace, full, free: NO_WAIT, tokens: full, counted: 0, high: None, clock }
    }

    /// A queue of so many requests, of which `delay` need not wait, and none longer than `max_wait`.
    pub(crate) fn queue(quota: Quota, queue: u32, delay: u32, max_wait: Time, clock: ClockKind) -> Self {
        let it = Bucket::new(quota, clock);
        let free = (i128::from(delay.min(queue)) + 1) * it.token;
        let full = ((i128::from(queue) + 1) * it.token).min(free + max_wait * it.pace);
        Bucket { full, free, tokens: full, ..it }
    }

    /// The content of the bucket at `now`. An instant earlier than the last one takes away the refill of the
    /// time between. Time that had passed before the clock stepped back refills nothing when it comes again.
    fn at(&self, now: Time) -> i128 {
        let passed = match self.high {
            Some(high) if now >= high => now - high,
            _ => now - self.counted,
        };
        (self.tokens + passed * self.pace).min(self.full)
    }

    /// The length of a wait, of which nothing counts from now until the clock has caught up.
    fn wait_with_gap(&self, wait: Time) -> Time {
        match self.high {
            Some(high) if self.counted + wait >= high => wait + (high - self.counted),
            _ => wait,
        }
    }

    /// What is missing in the bucket as it was counted, and the same rounded up to whole tokens.
    fn lacking(&self) -> (i128, i128) {
        let lacking = (self.full - self.tokens).max(0);
        (lacking, ceil_div(lacking, self.token) * self.token)
    }

    fn time_until(&self, fractions: i128) -> Time {
        ceil_div(fractions - self.tokens, self.pace).max(0)
    }
}

impl Model for Bucket {
    fn capacity(&self) -> i128 {
        self.full / self.token
    }

    /// After a step so far back that less than nothing would be left, the bucket is as it was when it last
    /// lacked a whole number of tokens, debt and all, and remembers when that was. From then on every request
    /// counts, also a refused one. On a clock that never steps back an earlier instant is a late reading, and
    /// nothing is to be corrected.
    fn forgive(&mut self, now: Time) {
        let (lacking, whole) = self.lacking();
        let back = (self.counted - now) * self.pace > whole - lacking;
        if back && self.clock == ClockKind::MayStepBack && self.at(now) < 0 {
            let since = self.counted - (whole - lacking).div_euclid(self.pace);
            self.high = self.high.max(Some(since));
            self.tokens = self.full - whole;
            self.counted = now;
        } else if self.high.is_some() && self.at(now) < self.full {
            self.advance(now);
        }
    }

    fn advance(&mut self, now: Time) {
        self.tokens = self.at(now);
        self.counted = now;
        self.high = self.high.filter(|&high| now < high);
    }

    fn left(&self) -> i128 {
        self.tokens.max(0) / self.token
    }

    fn wait(&self, cost: i128) -> Time {
        self.wait_with_gap(self.time_until(cost * self.token))
    }

    fn until_full(&self) -> Time {
        self.wait_with_gap(self.time_until(self.capacity() * self.token))
    }

    fn spend(&mut self, cost: i128) {
        self.tokens -= cost * self.token;
    }

    fn turn(&self) -> Time {
        self.time_until(self.full - self.free)
    }

    fn give_back(&mut self, cost: i128) {
        self.tokens += cost * self.token;
    }

    fn owes_nothing(&self) -> bool {
        self.tokens >= self.full
    }

    /// As of the instant at which whole tokens were lacking, if that has not come yet.
    fn give_back_early(&mut self, now: Time, cost: i128) -> bool {
        let (lacking, whole) = self.lacking();
        let early = (self.counted - now) * self.pace > whole - lacking;
        if !early || self.clock == ClockKind::Monotonic || self.at(now) < 0 {
            return false;
        }
        if cost * self.token >= whole {
            self.forget();
        } else {
            self.give_back(cost);
        }
        true
    }

    fn forget(&mut self) {
        self.tokens = self.full;
        self.counted = 0;
        self.high = None;
    }
}
