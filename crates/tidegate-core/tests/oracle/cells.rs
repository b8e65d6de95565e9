//! A sliding window as a table: the number of each cell, and what was counted in it.
//!
//! With `n` cells in a period, cell `c` is the stretch from c·period/n up to (c+1)·period/n, as real numbers. An
//! instant lies in the cell it lies in; no boundary is ever rounded to a microsecond here.

use std::collections::BTreeMap;

use super::{Model, Time, first_instant};
use tidegate_core::Quota;

/// What the oldest cell counts for, of which a part has left the window.
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
    counts: BTreeMap<i128, i128>,
    now: Time,
}

impl CellCounts {
    pub(crate) fn new(quota: Quota, cells: u32, oldest: Oldest) -> Self {
        CellCounts {
            limit: i128::from(quota.limit()),
            period: i128::try_from(quota.period().as_micros()).expect("a period that fits"),
            cells: i128::from(cells),
            oldest,
            counts: BTreeMap::new(),
            now: 0,
        }
    }

    fn cell_of(&self, when: Time) -> i128 {
        (when * self.cells).div_euclid(self.period)
    }

    /// How much of the window's reach into `cell` is left at `when`, in parts of which a whole cell has `period`.
    fn parts(&self, cell: i128, when: Time) -> i128 {
        let age = self.cell_of(when) - cell;
        if age < self.cells {
            return self.period;
        }
        if age > self.cells {
            return 0;
        }
        match self.oldest {
            Oldest::InFull => self.period,
            Oldest::NotAtAll => 0,
            // The window begins at `when − period`; the cell ends at (cell + 1)·period/n; n of such parts are a
            // microsecond.
            Oldest::InProportion => (cell + 1) * self.period - (when - self.period) * self.cells,
        }
    }

    /// What is used at `when`, in parts of which a unit has `period`.
    fn used(&self, when: Time) -> i128 {
        self.counts.iter().map(|(&cell, count)| count * self.parts(cell, when)).sum()
    }

    fn time_until(&self, passes: impl Fn(Time) -> bool) -> Time {
        // Everything is gone two periods after it came, however few cells there are.
        first_instant(self.now, self.now + 2 * self.period, passes) - self.now
    }
}

impl Model for CellCounts {
    fn capacity(&self) -> i128 {
        self.limit
    }

    fn forgive(&mut self, now: Time) {
        let current = self.cell_of(now);
        let future = self.counts.split_off(&(current + 1));
        let moved: i128 = future.values().sum();
        if moved > 0 {
            *self.counts.entry(current).or_default() += moved;
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

    /// What is too old to count is forgotten when something new is written down, not before: should the clock step
    /// back meanwhile, it counts again.
    fn spend(&mut self, cost: i128) {
        let current = self.cell_of(self.now);
        if cost > 0 {
            self.counts.retain(|&cell, _| cell >= current - self.cells);
            *self.counts.entry(current).or_default() += cost;
        }
    }

    /// Whole units, from the oldest cell that still counts for something.
    fn give_back(&mut self, cost: i128) {
        let mut owed = cost;
        let counting: Vec<i128> =
            self.counts.keys().copied().filter(|&cell| self.parts(cell, self.now) > 0).collect();
        for cell in counting {
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
    }
}
