//! A log as a list: one entry for each unit, the oldest first.

use super::{Model, Time, first_instant};
use tidegate_core::Quota;

#[derive(Clone, Debug)]
pub(crate) struct Log {
    limit: i128,
    period: Time,
    room: usize,
    entries: Vec<Time>,
    now: Time,
}

impl Log {
    pub(crate) fn new(quota: Quota, room: u64) -> Self {
        Log {
            limit: i128::from(quota.limit()),
            period: i128::try_from(quota.period().as_micros()).expect("a period that fits"),
            room: usize::try_from(room.max(quota.limit())).expect("a room that fits"),
            entries: Vec::new(),
            now: 0,
        }
    }

    /// How many entries count at `when`. One that is exactly a period old has left.
    fn used(&self, when: Time) -> i128 {
        self.entries.iter().filter(|&&entry| when - entry < self.period).count() as i128
    }
}

impl Model for Log {
    fn capacity(&self) -> i128 {
        self.limit
    }

    fn forgive(&mut self, now: Time) {
        for entry in &mut self.entries {
            *entry = now.min(*entry);
        }
    }

    fn advance(&mut self, now: Time) {
        self.now = now;
        self.entries.retain(|&entry| now - entry < self.period);
    }

    fn left(&self) -> i128 {
        (self.limit - self.used(self.now)).max(0)
    }

    fn wait(&self, cost: i128) -> Time {
        let passes = |when| self.used(when) + cost <= self.limit;
        first_instant(self.now, self.now + self.period, passes) - self.now
    }

    fn until_full(&self) -> Time {
        self.entries.last().map_or(0, |newest| newest + self.period - self.now)
    }

    /// What there is no room for is forgotten, the oldest first.
    fn spend(&mut self, cost: i128) {
        let written = usize::try_from(cost).expect("a cost that fits").min(self.room);
        self.entries.extend(std::iter::repeat_n(self.now, written));
        let beyond = self.entries.len().saturating_sub(self.room);
        self.entries.drain(..beyond);
    }

    /// The oldest first: the others must not leave earlier than what they stand for.
    fn give_back(&mut self, cost: i128) {
        let returned = usize::try_from(cost).expect("a cost that fits").min(self.entries.len());
        self.entries.drain(..returned);
    }

    fn owes_nothing(&self) -> bool {
        self.entries.is_empty()
    }

    fn forget(&mut self) {
        self.entries.clear();
    }
}
