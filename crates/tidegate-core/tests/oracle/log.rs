//! A log as a list of ages: one for each unit, the oldest first, as of the instant at which the newest was
//! made.

use super::{Model, Time, first_of_two};
use tidegate_core::Quota;

#[derive(Clone, Debug)]
pub(crate) struct Log {
    limit: i128,
    period: Time,
    room: usize,
    /// How old each entry was at `written`.
    ages: Vec<Time>,
    /// When the newest entry was made.
    written: Time,
    /// The latest instant before a far step back, until the clock has caught up with it.
    high: Option<Time>,
    now: Time,
}

impl Log {
    pub(crate) fn new(quota: Quota, room: u64) -> Self {
        Log {
            limit: i128::from(quota.limit()),
            period: i128::try_from(quota.period().as_micros()).expect("a period that fits"),
            room: usize::try_from(room.max(quota.limit())).expect("a room that fits"),
            ages: Vec::new(),
            written: 0,
            high: None,
            now: 0,
        }
    }

    /// How much time counts from the newest entry until `when`: none before it, and none up to `high`.
    fn counted(&self, when: Time) -> Time {
        match self.high {
            Some(high) if when >= high => when - high,
            _ => (when - self.written).max(0),
        }
    }

    /// How many entries count at `when`. An entry that is exactly a period old has left.
    fn used(&self, when: Time) -> i128 {
        let counted = self.counted(when);
        self.ages.iter().filter(|&&age| age + counted < self.period).count() as i128
    }

    /// How long until that holds. Below `high` entries leave, and at `high` they are back.
    fn time_until(&self, passes: impl Fn(Time) -> bool) -> Time {
        let latest = self.now.max(self.written).max(self.high.unwrap_or(0)) + self.period;
        first_of_two(self.now, self.high, latest, passes) - self.now
    }
}

impl Model for Log {
    fn capacity(&self) -> i128 {
        self.limit
    }

    /// Once the clock has caught up, the newest entry is as if made at `high`. After a far step back it is as
    /// if made now, but not earlier than a period after time began. In both cases all ages stay. A small step
    /// back changes nothing.
    fn forgive(&mut self, now: Time) {
        let back_to = now.max(self.period);
        if let Some(high) = self.high.filter(|&high| now >= high) {
            (self.written, self.high) = (high, None);
            let counted = self.counted(now);
            self.ages.retain(|age| age + counted < self.period);
        } else if !self.ages.is_empty() && self.written - back_to >= self.period {
            self.high = self.high.max(Some(self.written));
            self.written = back_to;
        }
    }

    fn advance(&mut self, now: Time) {
        self.now = now;
        let counted = self.counted(now);
        self.ages.retain(|age| age + counted < self.period);
    }

    fn left(&self) -> i128 {
        (self.limit - self.used(self.now)).max(0)
    }

    fn wait(&self, cost: i128) -> Time {
        self.time_until(|when| self.used(when) + cost <= self.limit)
    }

    fn until_full(&self) -> Time {
        self.time_until(|when| self.used(when) == 0)
    }

    /// Entries without room are dropped, the oldest first.
    fn spend(&mut self, cost: i128) {
        if cost == 0 {
            return;
        }
        if self.ages.is_empty() {
            self.written = self.now;
        }
        let counted = self.counted(self.now);
        for age in &mut self.ages {
            *age += counted;
        }
        self.written = self.written.max(self.now);
        let charged = usize::try_from(cost).expect("a cost that fits").min(self.room);
        self.ages.extend(std::iter::repeat_n(0, charged));
        let beyond = self.ages.len().saturating_sub(self.room);
        self.ages.drain(..beyond);
    }

    /// Refunds the oldest entries first: the others must not leave earlier than their own age.
    fn give_back(&mut self, cost: i128) {
        let returned = usize::try_from(cost).expect("a cost that fits").min(self.ages.len());
        self.ages.drain(..returned);
    }

    fn owes_nothing(&self) -> bool {
        self.ages.is_empty()
    }

    fn forget(&mut self) {
        self.ages.clear();
        (self.written, self.high) = (0, None);
    }
}
