//! A fixed window as a counter: when the window began, and how much was counted in it.

use std::time::Duration;

use super::{Model, Time};
use tidegate_core::Quota;

#[derive(Clone, Debug)]
pub(crate) struct Window {
    limit: i128,
    period: Time,
    begins: Begins,
    /// The first instant of the window, and its count. `None` without a count.
    counter: Option<(Time, i128)>,
    now: Time,
}

#[derive(Clone, Copy, Debug)]
enum Begins {
    ByTheClock { offset: Time },
    WithTheFirstHit,
}

impl Window {
    pub(crate) fn aligned(quota: Quota, offset: Duration) -> Self {
        let offset = i128::try_from(offset.as_micros()).expect("an offset that fits");
        Window::new(quota, Begins::ByTheClock { offset })
    }

    pub(crate) fn from_first_hit(quota: Quota) -> Self {
        Window::new(quota, Begins::WithTheFirstHit)
    }

    fn new(quota: Quota, begins: Begins) -> Self {
        let period = i128::try_from(quota.period().as_micros()).expect("a period that fits");
        Window { limit: i128::from(quota.limit()), period, begins, counter: None, now: 0 }
    }

    /// The first instant of the window that a request at `now` opens.
    fn start_for(&self, now: Time) -> Time {
        match self.begins {
            Begins::ByTheClock { offset } => offset + (now - offset).div_euclid(self.period) * self.period,
            Begins::WithTheFirstHit => now,
        }
    }

    fn count(&self) -> i128 {
        self.counter.map_or(0, |(_, count)| count)
    }

    fn end(&self) -> Time {
        self.counter.map_or(self.now, |(start, _)| start + self.period)
    }
}

impl Model for Window {
    fn capacity(&self) -> i128 {
        self.limit
    }

    /// The count of a window that has not begun is taken for that of the current one.
    fn forgive(&mut self, now: Time) {
        let current = self.start_for(now);
        self.counter = self.counter.map(|(start, count)| (start.min(current), count));
    }

    fn advance(&mut self, now: Time) {
        self.now = now;
        if self.end() <= now {
            self.counter = None;
        }
    }

    fn left(&self) -> i128 {
        (self.limit - self.count()).max(0)
    }

    fn wait(&self, _cost: i128) -> Time {
        self.end() - self.now
    }

    fn until_full(&self) -> Time {
        self.end() - self.now
    }

    fn spend(&mut self, cost: i128) {
        if cost > 0 {
            let (start, count) = self.counter.unwrap_or((self.start_for(self.now), 0));
            self.counter = Some((start, count + cost));
        }
    }

    fn give_back(&mut self, cost: i128) {
        let less = self.counter.map(|(start, count)| (start, count - cost));
        self.counter = less.filter(|&(_, count)| count > 0);
    }

    fn owes_nothing(&self) -> bool {
        self.counter.is_none()
    }

    fn forget(&mut self) {
        self.counter = None;
    }
}
