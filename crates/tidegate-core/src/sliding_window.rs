//! # Sliding window by cells
//!
//! A [`FixedWindow`](crate::FixedWindow) forgets everything at once, a [`SlidingLog`](crate::SlidingLog)
//! remembers everything. Between the two: cut the period into `n` cells and keep a count for each. The window
//! slides on cell by cell; the finer the cells, the closer to the log.
//!
//! ```text
//!        ├────────── one period back from now ──────────┤
//!   │  3    │   0   │   2   │   0   │   1   │   0   │  4
//!   └───┬───┴───────┴───────┴───────┴───────┴───────┴───┼──► t
//!       └ partly gone: how much of it counts?          now
//! ```
//!
//! Everything hangs on the oldest cell, of which a part lies outside the window. What was in that part is not
//! known. Three answers:
//!
//! * [`Cells::Strict`], the default: it counts in full. Then no period of any position ever holds more than
//!   the limit. What passed leaves up to one cell late, and under greedy demand n/(n+1) of the limit is used.
//! * [`Cells::Interpolated`]: it counts in proportion to what is left of it, as if its requests had been
//!   spread evenly. With one cell this is the well-known counter of two windows. Closer to the truth on ordinary
//!   traffic, but it can be cheated to nearly twice the limit.
//! * [`Cells::Plain`]: it does not count. This is what most descriptions mean; it admits up to one cell's
//!   worth too much.
//!
//! Five per second in cells of 0.2 s, and five requests at 0.9 s: *plain* lets five more pass at 1.8 s,
//! *strict* at 2.0 s, when the cell has left whole; *interpolated* lets them back in one by one between.
//!
//! The counts lie in a ring of n + 1 halves of words behind the number of the newest cell. A clock that stepped back
//! finds cells in the future; what they hold is counted in the current cell. If the clock comes again that has left: n times
//! back and forth admit at most n limits more.

use crate::algorithm::Algorithm;
use crate::count::whole_micros;
use crate::decision::{Decision, Level, Outcome, Wait};
use crate::divisor::Divisor;
use crate::invalid::{InvalidQuota, Reason};
use crate::setting::Setting;
use crate::{Micros, Quota, Words, WordsMut};

/// At most `limit` in a period that slides on cell by cell. The burst of the quota plays no part.
///
/// ```
/// use tidegate_core::{Algorithm, Micros, Quota, SlidingWindow};
///
/// let window = SlidingWindow::new(Quota::per_second(5), 5);
/// let mut state = [0; 4];
/// let at = |millis: u64| Micros::new(millis * 1_000);
/// assert!(window.decide(&mut state, at(900), 5).is_allowed());
/// let refused = window.decide(&mut state, at(1_100), 5);
/// assert_eq!(refused.retry_after().unwrap().duration().as_millis(), 900); // at 2.0 s the cell of 0.8 s has left
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    limit: u64,
    period: Divisor,
    cells: Divisor,
    /// As many as are remembered: one more than the cells of a window.
    ring: Divisor,
    oldest: Cells,
}

/// How the oldest cell counts, of which a part has left the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cells {
    /// In full: never more than the limit in any period.
    #[default]
    Strict,
    /// In proportion to what is left of it: closest on ordinary traffic, less than twice the limit.
    Interpolated,
    /// Not at all: the current cell and the n − 1 before it count.
    Plain,
}

impl SlidingWindow {
    /// The largest number of cells.
    pub const MOST_CELLS: u32 = 1_000;

    /// At most `quota.limit()` in any `quota.period()`, remembered in `cells` cells, [strictly](Cells::Strict).
    ///
    /// Most callers want about ten.
    ///
    /// # Panics
    /// As [`SlidingWindow::try_new`] refuses; in a `const` that is a compile error.
    #[must_use]
    pub const fn new(quota: Quota, cells: u32) -> Self {
        match Self::checked(quota, cells) {
            Ok(window) => window,
            Err(reason) => panic!("{}", reason.sentence()),
        }
    }

    /// As [`SlidingWindow::new`], for values that are not known to be right.
    ///
    /// # Errors
    /// If there are no cells or more than [`SlidingWindow::MOST_CELLS`], a cell would be shorter than a microsecond,
    /// the period is not a whole number of them, or the limit does not fit 32 bits.
    pub fn try_new(quota: Quota, cells: u32) -> Result<Self, InvalidQuota> {
        Self::checked(quota, cells).map_err(InvalidQuota::because)
    }

    /// The same window with another answer to what the oldest cell counts for.
    #[must_use]
    pub const fn oldest(self, oldest: Cells) -> Self {
        SlidingWindow { oldest, ..self }
    }

    const fn checked(quota: Quota, cells: u32) -> Result<Self, Reason> {
        let (limit, most) = (quota.limit(), u32::MAX as u64);
        if cells == 0 || cells > Self::MOST_CELLS {
            return Err(Reason::CellCount { cells, most: Self::MOST_CELLS });
        }
        if limit > most {
            return Err(Reason::LimitTooLarge { limit, most });
        }
        match whole_micros(quota.period()) {
            Ok(period) if period < cells as u64 => {
                Err(Reason::CellTooShort { cells, period: quota.period() })
            }
            Ok(period) => {
                let (period, ring) = (Divisor::new(period), Divisor::new(cells as u64 + 1));
                Ok(SlidingWindow {
                    limit,
                    period,
                    cells: Divisor::new(cells as u64),
                    ring,
                    oldest: Cells::Strict,
                })
            }
            Err(reason) => Err(reason),
        }
    }

    #[inline(always)]
    const fn period(&self) -> u64 {
        self.period.get()
    }

    #[inline(always)]
    const fn cells(&self) -> u64 {
        self.cells.get()
    }

    pub(crate) fn setting(&self) -> Setting {
        let oldest = match self.oldest {
            Cells::Strict => 0,
            Cells::Interpolated => 1,
            Cells::Plain => 2,
        };
        Setting::new(b'c', [self.limit, self.period(), self.cells(), oldest])
    }

    /// The number of the cell that `now` lies in.
    #[inline]
    fn cell(&self, now: Micros) -> u64 {
        self.period.quotient(now.get() * self.cells()) // below 2⁵³ · 1000, which fits
    }

    /// The first instant of a cell. Where the period does not divide evenly, cells differ by a microsecond.
    #[inline]
    fn start(&self, cell: u64) -> u64 {
        self.cells.quotient_up(cell.saturating_mul(self.period()))
    }

    /// The count of `cell`, given that `newest` is the newest cell written. Unwritten cells hold nothing.
    #[inline]
    fn count<S: Words + ?Sized>(&self, state: &S, newest: u64, cell: u64) -> u64 {
        if !self.in_ring(newest, cell) {
            return 0;
        }
        let (word, shift) = self.place(cell);
        state.get(word) >> shift & HALF
    }

    /// Whether the ring holds `cell` when `newest` is the newest.
    #[inline]
    fn in_ring(&self, newest: u64, cell: u64) -> bool {
        cell <= newest && newest - cell <= self.cells()
    }

    #[inline]
    fn set_count<S: WordsMut + ?Sized>(&self, state: &mut S, cell: u64, count: u64) {
        let (word, shift) = self.place(cell);
        let others = state.get(word) & !(HALF << shift);
        state.set(word, others | count.min(HALF) << shift);
    }

    /// The word that holds the count of `cell`, and where in it.
    #[inline]
    fn place(&self, cell: u64) -> (usize, u32) {
        let place = self.ring.remainder(cell);
        (1 + (place / 2) as usize, (place % 2) as u32 * 32)
    }

    /// What counts at `now`, which lies in cell `current`.
    #[inline]
    fn usage<S: Words + ?Sized>(&self, state: &S, now: Micros, current: u64) -> Usage {
        // The ring holds the cells up to the newest; those after the current one, which a clock that has
        // stepped back leaves behind, count as current. So everything counts, except what is too old.
        let (newest, total) = (state.get(0), self.total(state));
        let (gone, oldest) = if newest == current {
            self.gone_of_one(state, current)
        } else {
            self.gone(state, newest, current)
        };
        Usage { full: total - gone, oldest, left: self.left(now, current) }
    }

    /// What no longer counts in full, and how much of that is in the oldest cell: nearly always the ring ends with the current cell,
    /// and one cell of it has begun to leave.
    #[inline]
    fn gone_of_one<S: Words + ?Sized>(&self, state: &S, current: u64) -> (u64, u64) {
        let oldest = match current.checked_sub(self.cells()) {
            Some(cell) => self.count(state, current, cell),
            None => 0,
        };
        (oldest, oldest)
    }

    /// The same, for a ring that ended earlier or ends later.
    fn gone<S: Words + ?Sized>(&self, state: &S, newest: u64, current: u64) -> (u64, u64) {
        let (mut gone, mut oldest) = (0, 0);
        let too_old = newest.saturating_sub(self.cells())..=newest;
        for cell in too_old.take_while(|cell| cell + self.cells() <= current) {
            oldest = self.count(state, newest, cell);
            gone += oldest;
        }
        (gone, if newest + self.cells() < current { 0 } else { oldest })
    }

    /// Everything in the ring.
    #[inline]
    fn total<S: Words + ?Sized>(&self, state: &S) -> u64 {
        (1..self.words()).map(|word| (state.get(word) >> 32) + (state.get(word) & HALF)).sum()
    }

    /// How many of the `period` parts of the oldest cell are left at `now`, which lies in cell `current`.
    #[inline]
    fn left(&self, now: Micros, current: u64) -> u64 {
        match self.oldest {
            Cells::Strict => self.period(),
            Cells::Plain => 0,
            // One cell is `period` parts of 1/cells µs; the oldest leaves as the current one fills.
            // Past the end of the time line cells go on and instants do not; there nothing of it is filled.
            Cells::Interpolated => {
                let filled = (now.get() * self.cells()).saturating_sub(current.saturating_mul(self.period()));
                self.period() - filled
            }
        }
    }

    /// The first instant from `now` on at which at most `most` is used, if nobody takes.
    fn when_at_most<S: Words + ?Sized>(&self, state: &S, now: Micros, most: u64) -> u64 {
        let (newest, at_now) = (state.get(0), self.cell(now));
        let (mut usage, mut current, mut at) = (self.usage(state, now, at_now), at_now, now);
        loop {
            if let Some(instant) = self.within_cell(usage, current, at, most) {
                return instant;
            }
            // On to the next cell: one that counted in full becomes the oldest.
            current += 1;
            at = Micros::new(self.start(current));
            let oldest = match (current - self.cells().min(current)).cmp(&at_now) {
                core::cmp::Ordering::Less => self.count(state, newest, current.saturating_sub(self.cells())),
                // Whatever is left lies in the cell of `now`, or counts as if it did.
                core::cmp::Ordering::Equal => usage.full,
                core::cmp::Ordering::Greater => 0,
            };
            let oldest = if current < self.cells() { 0 } else { oldest };
            usage = Usage { full: usage.full - oldest, oldest, left: self.left(at, current) };
        }
    }

    /// The first instant from `at` on, still in cell `current`, at which at most `most` is used.
    fn within_cell(&self, usage: Usage, current: u64, at: Micros, most: u64) -> Option<u64> {
        let spare = most.checked_sub(usage.full)?;
        if usage.fits(spare, self.period()) {
            return Some(at.get());
        }
        if self.oldest != Cells::Interpolated {
            return None;
        }
        // oldest · left ≤ spare · period, so `left` must have fallen to this:
        let left = u128::from(spare) * u128::from(self.period()) / u128::from(usage.oldest);
        let filled = u128::from(self.period()) - left + u128::from(current) * u128::from(self.period());
        let instant = u64::try_from(filled.div_ceil(u128::from(self.cells()))).ok()?;
        (instant < self.start(current + 1)).then_some(instant)
    }

    #[inline]
    fn admits(&self, usage: Usage, cost: u64) -> bool {
        let spare = self.limit.checked_sub(usage.full + cost);
        spare.is_some_and(|spare| usage.fits(spare, self.period()))
    }

    /// The decision on a cost that passes, once it is charged to the current cell.
    #[inline]
    fn allowed(&self, usage: Usage, now: Micros, current: u64, cost: u64) -> Decision {
        let (limit, remaining) = (self.limit, usage.plus(cost).remaining(self.limit, self.period()));
        let reset = self.start(current + self.cells_until_gone()).saturating_sub(now.get());
        Decision::new(Outcome::Allowed, now, Level::Counted { limit, remaining, reset })
    }

    /// A decision that charges nothing.
    fn unchanged<S: Words + ?Sized>(
        &self,
        outcome: Outcome,
        state: &S,
        now: Micros,
        usage: Usage,
    ) -> Decision {
        let (limit, remaining) = (self.limit, usage.remaining(self.limit, self.period()));
        let reset = self.when_at_most(state, now, 0) - now.get();
        Decision::new(outcome, now, Level::Counted { limit, remaining, reset })
    }

    fn refused<S: Words + ?Sized>(&self, state: &S, now: Micros, usage: Usage, cost: u64) -> Decision {
        let Some(most) = self.limit.checked_sub(cost) else {
            return self.unchanged(Outcome::Never, state, now, usage);
        };
        let wait = self.when_at_most(state, now, most) - now.get();
        self.unchanged(Outcome::RetryAfter(Wait::micros(wait)), state, now, usage)
    }

    #[inline]
    fn charge<S: WordsMut + ?Sized>(&self, state: &mut S, current: u64, cost: u64) {
        if state.get(0) != current {
            self.settle_in(state, current);
            self.advance(state, current);
        }
        let (word, shift) = self.place(current);
        let found = state.get(word);
        let count = (found >> shift & HALF) + cost;
        state.set(word, found & !(HALF << shift) | count.min(HALF) << shift);
    }

    /// Moves what a clock that has stepped back left behind in later cells into the current one.
    fn settle_in<S: WordsMut + ?Sized>(&self, state: &mut S, current: u64) {
        let newest = state.get(0);
        if newest <= current {
            return;
        }
        let mut moved = self.count(state, newest, current);
        for cell in (current + 1).max(newest.saturating_sub(self.cells()))..=newest {
            moved += self.count(state, newest, cell);
            self.set_count(state, cell, 0);
        }
        state.set(0, current);
        self.set_count(state, current, moved);
    }

    /// Makes `cell` the newest one, clearing what it takes the place of.
    fn advance<S: WordsMut + ?Sized>(&self, state: &mut S, cell: u64) {
        let newest = state.get(0);
        if cell > newest {
            for passed in (newest + 1).max(cell.saturating_sub(self.cells()))..=cell {
                self.set_count(state, passed, 0);
            }
            state.set(0, cell);
        }
    }

    /// After how many cells one no longer counts at all.
    #[inline]
    fn cells_until_gone(&self) -> u64 {
        self.cells() + u64::from(self.oldest != Cells::Plain)
    }

    fn same_cells(&self, old: &Self) -> bool {
        (self.period(), self.cells()) == (old.period(), old.cells())
    }
}

/// How much counts at an instant.
#[derive(Clone, Copy, Debug)]
struct Usage {
    /// What counts in full.
    full: u64,
    /// What the oldest cell holds, and how many parts of it are left.
    oldest: u64,
    left: u64,
}

const HALF: u64 = 0xFFFF_FFFF;

impl Usage {
    /// Whether the oldest cell counts for at most `spare`, each of its units having `whole` parts.
    #[inline]
    fn fits(self, spare: u64, whole: u64) -> bool {
        u128::from(self.oldest) * u128::from(self.left) <= u128::from(spare) * u128::from(whole)
    }

    #[inline]
    fn remaining(self, limit: u64, whole: u64) -> u64 {
        limit.saturating_sub(self.full).saturating_sub(self.weighed(whole))
    }

    /// What the oldest cell counts for, rounded up.
    #[inline]
    fn weighed(self, whole: u64) -> u64 {
        if self.left == whole || self.oldest == 0 {
            return self.oldest; // strict; the long division is for interpolation alone
        }
        let parts = u128::from(self.oldest) * u128::from(self.left);
        u64::try_from(parts.div_ceil(u128::from(whole))).unwrap_or(u64::MAX)
    }

    #[inline]
    fn plus(self, cost: u64) -> Self {
        Usage { full: self.full + cost, ..self }
    }
}

impl Algorithm for SlidingWindow {
    #[expect(clippy::cast_possible_truncation, reason = "there are at most MOST_CELLS")]
    fn words(&self) -> usize {
        1 + (self.cells() as usize + 1).div_ceil(2)
    }

    #[inline]
    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        let (current, cost) = (self.cell(now), u64::from(cost));
        let usage = self.usage(state, now, current);
        if cost == 0 {
            self.unchanged(Outcome::Allowed, state, now, usage)
        } else if self.admits(usage, cost) {
            self.allowed(usage, now, current, cost)
        } else {
            self.refused(state, now, usage, cost)
        }
    }

    #[inline]
    fn decide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        let (current, units) = (self.cell(now), u64::from(cost));
        let usage = self.usage(state, now, current);
        if cost == 0 {
            return self.unchanged(Outcome::Allowed, state, now, usage);
        }
        if self.admits(usage, units) {
            self.charge(state, current, units);
            return self.allowed(usage, now, current, units);
        }
        self.settle(state, now);
        self.refused(state, now, usage, units)
    }

    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        if cost > 0 {
            self.charge(state, self.cell(now), u64::from(cost));
        }
        self.peek(state, now, 0)
    }

    /// Takes back from the oldest cells first, as a log does.
    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
        if cost == 0 {
            return;
        }
        self.settle(state, now);
        let (newest, current, mut due) = (state.get(0), self.cell(now), u64::from(cost));
        let first = (current + 1).saturating_sub(self.cells_until_gone());
        let mut counted = 0;
        for cell in first..=newest {
            let count = self.count(state, newest, cell);
            let back = count.min(due);
            if back > 0 {
                self.set_count(state, cell, count - back);
                due -= back;
            }
            counted += count;
        }
        if counted > 0 && counted <= u64::from(cost) {
            self.reset(state); // cells that have left would count again if the clock stepped back
        }
    }

    fn settle<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        self.settle_in(state, self.cell(now));
    }

    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        let newest = state.get(0);
        let first = newest.saturating_sub(self.cells());
        match (first..=newest).rev().find(|&cell| self.count(state, newest, cell) > 0) {
            Some(cell) => Micros::new(self.start(cell + self.cells_until_gone())),
            None => Micros::ZERO,
        }
    }

    fn seen<S: Words + ?Sized>(&self, state: &S) -> Micros {
        Micros::new(self.start(state.get(0)))
    }

    fn adopt<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        let newest = from.get(0);
        // Nothing lies before the ring, and after a step back of the clock all of the ring may lie far ahead.
        let first = old.cell(now).max(newest).saturating_sub(old.cells());
        for cell in first..=newest {
            let count = old.count(from, newest, cell);
            // Where the cells are the same each count stays in its own; else all of them count as made now.
            let into = if self.same_cells(old) { cell } else { self.cell(now) };
            self.advance(state, into);
            let sum = self.count(state, into, into) + count;
            self.set_count(state, into, sum);
        }
    }
}
