//! A sliding window as a table: how many cells before the newest one a cell is, and what was counted in it.
//!
//! With `n` cells in a period, cell `c` is the stretch from c·period/n up to (c+1)·period/n, as real numbers.
//! An instant lies in the cell it lies in; no boundary is ever rounded to a microsecond here.

use std::collections::BTreeMap;

use super::{Model, Time, ceil_div, first_of_two};
use tidegate_core::{Micros, Quota};

/// What the oldest cell counts for, part of which has left the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Oldest {
    InFull,
    InProportion,
    NotAtAll,
}

#[derive(Clone, Debug)]
pub(crate) struct CellCounts {
    limit: i128,
    period: Time,
    cells: i128,
    oldest: Oldest,
    /// The counts, by how many cells before `newest` they were counted.
    counts: BTreeMap<i128, i128>,
    newest: i128,
    /// The latest cell before a far step back, until the clock has caught up with it.
    high: Option<i128>,
    /// The furthest ahead of the newest cell that `high` can be remembered.
    furthest: i128,
    now: Time,
}

impl CellCounts {
    pub(crate) fn new(quota: Quota, cells: u32, oldest: Oldest) -> Self {
        let it = CellCounts {
            limit: i128::from(quota.limit()),
            period: i128::try_from(quota.period().as_micros()).expect("a period that fits"),
            cells: i128::from(cells),
            oldest,
            counts: BTreeMap::new(),
            newest: 0,
            high: None,
            furthest: 0,
            now: 0,
        };
        // The number of a cell and the distance ahead share 64 bits.
        let numbers = it.cell_of(i128::from(Micros::MAX.get())) + 1;
        let mut furthest: i128 = 1 << 64;
        while furthest * numbers > 1 << 64 {
            furthest /= 2;
        }
        CellCounts { furthest: furthest - 1, ..it }
    }

    fn cell_of(&self, when: Time) -> i128 {
        (when * self.cells).div_euclid(self.period)
    }

    /// The first microsecond of a cell.
    fn start(&self, cell: i128) -> Time {
        ceil_div(cell * self.period, self.cells)
    }

    /// How many cells count from the newest one until `when`: none before it, and none up to `high`.
    fn counted(&self, when: Time) -> i128 {
        match self.high {
            Some(high) if self.cell_of(when) >= high => self.cell_of(when) - high,
            _ => (self.cell_of(when) - self.newest).max(0),
        }
    }

    /// How much of a cell is still in the window at `when`, in parts of which a whole cell has `period`. The
    /// cell is so many before the newest one.
    fn parts(&self, before: i128, when: Time) -> i128 {
        let age = before + self.counted(when);
        if age < self.cells {
            return self.period;
        }
        if age > self.cells {
            return 0;
        }
        match self.oldest {
            Oldest::InFull => self.period,
            Oldest::NotAtAll => 0,
            // As much of it is left as is left of the current cell; n parts are a microsecond. While the
            // clock is a little behind, the current cell has just begun.
            Oldest::InProportion => {
                let when = when.max(self.start(self.newest));
                (self.cell_of(when) + 1) * self.period - when * self.cells
            }
        }
    }

    /// What is used at `when`, in parts of which a unit has `period`.
    fn used(&self, when: Time) -> i128 {
        self.counts.iter().map(|(&before, count)| count * self.parts(before, when)).sum()
    }

    /// How long until that holds. Below `high` counts leave the window, and at `high` they are back.
    fn time_until(&self, passes: impl Fn(Time) -> bool) -> Time {
        let high = self.high.map(|high| self.start(high));
        // Every count has left two periods after it was made, however few cells there are.
        let latest = self.now.max(self.start(self.newest)).max(high.unwrap_or(0)) + 2 * self.period + 1;
        first_of_two(self.now, high, latest, passes) - self.now
    }
}

impl Model for CellCounts {
    fn capacity(&self) -> i128 {
        self.limit
    }

    /// Once the clock has caught up, the newest cell is `high`. After a far step back it is the current one,
    /// but no earlier than a period after time began. In proportion it is the next one, at the start of which
    /// all of the oldest cell counts. A small step back changes nothing.
    fn forgive(&mut self, now: Time) {
        let current = self.cell_of(now);
        let next = i128::from(self.oldest == Oldest::InProportion);
        let back_to = (current + next).max(self.cells);
        if let Some(high) = self.high.filter(|&high| current >= high) {
            (self.newest, self.high) = (high, None);
        } else if !self.counts.is_empty() && self.newest - back_to >= self.cells {
            let high = self.high.unwrap_or(0).max(self.newest);
            self.high = Some(high.min(back_to + self.furthest));
            self.newest = back_to;
        }
    }

    fn advance(&mut self, now: Time) {
        self.now = now;
    }

    fn left(&self) -> i128 {
        (self.limit * self.period - self.used(self.now)).max(0) / self.period
    }

    fn wait(&self, cost: i128) -> Time {
        self.time_until(|when| self.used(when) + cost * self.period <= self.limit * self.period)
    }

    fn until_full(&self) -> Time {
        self.time_until(|when| self.used(when) == 0)
    }

    /// Counts that are too old are dropped when something new is written, not before: should the clock step
    /// back meanwhile, they count again.
    fn spend(&mut self, cost: i128) {
        if cost == 0 {
            return;
        }
        let (current, counted) = (self.cell_of(self.now), self.counted(self.now));
        let aged = self.counts.iter().map(|(before, count)| (before + counted, *count));
        self.counts = aged.filter(|(before, _)| *before <= self.cells).collect();
        self.newest = if self.counts.is_empty() { current } else { self.newest.max(current) };
        *self.counts.entry(0).or_default() += cost;
    }

    /// Refunds whole units, from the oldest cell that still counts for something.
    fn give_back(&mut self, cost: i128) {
        let mut owed = cost;
        let counting: Vec<i128> =
            self.counts.keys().copied().filter(|&before| self.parts(before, self.now) > 0).collect();
        for cell in counting.into_iter().rev() {
            let count = self.counts.get_mut(&cell).expect("a cell just listed");
            let returned = owed.min(*count);
            *count -= returned;
            owed -= returned;
        }
        self.counts.retain(|_, count| *count > 0);
    }

    fn owes_nothing(&self) -> bool {
        self.used(self.now) == 0
    }

    fn forget(&mut self) {
        self.counts.clear();
        (self.newest, self.high) = (0, None);
    }
}
