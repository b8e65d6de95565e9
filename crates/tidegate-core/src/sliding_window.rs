//! # Sliding window of cells
//!
//! A [`FixedWindow`](crate::FixedWindow) forgets its whole count at one instant, a
//! [`SlidingLog`](crate::SlidingLog) remembers every unit. This window lies between the two: the period is divided
//! into `n` cells with a count each. The window slides cell by cell; the finer the cells, the closer to the log.
//!
//! ```text
//!        ├────────── one period back from now ──────────┤
//!   │  3    │   0   │   2   │   0   │   1   │   0   │  4
//!   └───┬───┴───────┴───────┴───────┴───────┴───────┴───┼──► t
//!       └ partly outside: how much of it counts?       now
//! ```
//!
//! The algorithm depends on the oldest cell, of which a part lies outside the window. How much of its count belongs to
//! that part is not known. There are three answers:
//!
//! * [`Cells::Strict`], the default: it counts in full. Then no period of any position ever holds more than
//!   the limit. Requests leave the window up to one cell late, and under greedy demand n/(n+1) of the limit is used.
//! * [`Cells::Interpolated`]: it counts in proportion to the part that is left, as if its requests had been
//!   spread evenly. With one cell this is the well-known *sliding window counter*, which weighs two fixed windows. It is
//!   closer to the truth on ordinary traffic, but a crafted pattern can get nearly twice the limit.
//! * [`Cells::Plain`]: it does not count. This is what most descriptions mean; it admits up to one cell's
//!   worth too much.
//!
//! Example: five per second in cells of 0.2 s, and five requests at 0.9 s. *Plain* lets five more pass at 1.8 s,
//! *strict* at 2.0 s, when the whole cell has left; *interpolated* lets them pass one by one in between.
//!
//! Strict is the default because it is the only one of the three that keeps what the name promises, at most
//! the limit in any period. Its price is known. A limit that is kept by default and can be loosened by one
//! word is safer than the reverse.
//!
//! The counts are stored in a ring of n + 1 half words, after the number of the newest cell.
//!
//! # Clocks that step back
//!
//! After a step back the clock is before the newest cell. If that cell is fewer than n cells ahead, the key waits:
//! until the clock reaches it again, every decision is made as of the start of the newest cell. A longer step is
//! *far*. Then all counts move back with the clock, by whole cells, and the key remembers the cell that the clock
//! stepped back from (`high`). When the clock reaches that cell again, the counts move forward, unchanged since the last
//! charge: the time between that charge and the return does not count. So a clock that steps back and
//! returns frees no quota, however often. ([`SlidingLog`](crate::SlidingLog) has the drawing.)
//!
//! The distance to the remembered cell is stored in the bits that the number of the newest cell leaves free in its
//! word: 11 bits for cells of a microsecond, and one more each time that the length of a cell doubles.

use crate::algorithm::Algorithm;
use crate::clock_shift::Shift;
use crate::counter::whole_micros;
use crate::decision::{Decision, Level, Outcome, Wait};
use crate::divisor::Divisor;
use crate::encoded_rule::EncodedRule;
use crate::invalid_quota::{InvalidQuota, Reason};
use crate::{Micros, Quota, Words, WordsMut};

/// At most `limit` in a period that slides cell by cell. Ignores the burst of the quota.
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
    /// The number of cells stored: one more than the cells of a window.
    ring: Divisor,
    /// The number of bits of a cell number.
    ///
    /// The bits above store how far ahead the cell is that the clock stepped back from.
    number_bits: u32,
    oldest: Cells,
}

/// How the oldest cell counts while it is partly outside the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cells {
    /// In full: never more than the limit in any period.
    #[default]
    Strict,
    /// In proportion to the part left: closest on ordinary traffic, below twice the limit.
    Interpolated,
    /// Not at all: the current cell and the n − 1 before it count.
    Plain,
}

impl SlidingWindow {
    /// The largest number of cells.
    pub const MAX_CELLS: u32 = 1_000;

    /// At most `quota.limit()` in any `quota.period()`, counted in `cells` cells.
    ///
    /// The oldest cell is [strict](Cells::Strict) unless changed by [`oldest`](SlidingWindow::oldest).
    /// About ten cells suit most callers.
    ///
    /// # Panics
    /// In the cases in which [`SlidingWindow::try_new`] fails; in a `const` that is a compile error.
    #[must_use]
    pub const fn new(quota: Quota, cells: u32) -> Self {
        match Self::checked(quota, cells) {
            Ok(window) => window,
            Err(reason) => panic!("{}", reason.sentence()),
        }
    }

    /// As [`SlidingWindow::new`], for values that have not been validated.
    ///
    /// # Errors
    /// If `cells` is 0 or more than [`SlidingWindow::MAX_CELLS`], a cell would be shorter than a microsecond,
    /// the period is not a whole number of microseconds, or the limit does not fit 32 bits, as that of an
    /// [unlimited](Quota::unlimited) quota.
    pub fn try_new(quota: Quota, cells: u32) -> Result<Self, InvalidQuota> {
        Self::checked(quota, cells).map_err(InvalidQuota::because)
    }

    /// The same window with another rule for the oldest cell.
    #[must_use]
    pub const fn oldest(self, oldest: Cells) -> Self {
        SlidingWindow { oldest, ..self }
    }

    const fn checked(quota: Quota, cells: u32) -> Result<Self, Reason> {
        if let Err(reason) = quota.finite() {
            return Err(reason);
        }
        let (limit, max) = (quota.limit(), u32::MAX as u64);
        if cells == 0 || cells > Self::MAX_CELLS {
            return Err(Reason::CellCount { cells, max: Self::MAX_CELLS });
        }
        if limit > max {
            return Err(Reason::LimitTooLarge { limit, max });
        }
        match whole_micros(quota.period()) {
            Ok(period) if period < cells as u64 => {
                Err(Reason::CellTooShort { cells, period: quota.period() })
            }
            Ok(period) => {
                let cells = cells as u64;
                let last = Micros::MAX.get() * cells / period; // below 2⁵³ · 1000, which fits
                Ok(SlidingWindow {
                    limit,
                    period: Divisor::new(period),
                    cells: Divisor::new(cells),
                    ring: Divisor::new(cells + 1),
                    number_bits: u64::BITS - last.leading_zeros(),
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

    pub(crate) fn encode(&self) -> EncodedRule {
        let oldest = match self.oldest {
            Cells::Strict => 0,
            Cells::Interpolated => 1,
            Cells::Plain => 2,
        };
        EncodedRule::new(b'c', [self.limit, self.period(), self.cells(), oldest])
    }

    /// The number of the cell that contains `now`.
    #[inline]
    fn cell(&self, now: Micros) -> u64 {
        self.period.quotient(now.get() * self.cells()) // below 2⁵³ · 1000, which fits
    }

    /// The first instant of a cell.
    ///
    /// If the period is not a multiple of the cells, the lengths of cells differ by a microsecond.
    #[inline]
    fn start(&self, cell: u64) -> u64 {
        self.cells.quotient_up(cell.saturating_mul(self.period()))
    }

    /// The count of `cell`, if `newest` is the newest cell written. Unwritten cells count 0.
    #[inline]
    fn count<S: Words + ?Sized>(&self, state: &S, newest: u64, cell: u64) -> u64 {
        if !self.in_ring(newest, cell) {
            return 0;
        }
        let (word, shift) = self.word_of(cell);
        state.get(word) >> shift & HALF
    }

    /// Whether the ring holds `cell` when `newest` is the newest.
    #[inline]
    fn in_ring(&self, newest: u64, cell: u64) -> bool {
        cell <= newest && newest - cell <= self.cells()
    }

    #[inline]
    fn set_count<S: WordsMut + ?Sized>(&self, state: &mut S, cell: u64, count: u64) {
        set_half(state, self.word_of(cell), count.min(HALF));
    }

    /// The word that holds the count of `cell`, and the shift within it.
    #[inline]
    fn word_of(&self, cell: u64) -> (usize, u32) {
        half(self.ring.remainder(cell))
    }

    /// The newest cell, and how far ahead of it the cell is that the clock stepped back from.
    ///
    /// The distance is 0 if the clock did not step back.
    #[inline]
    fn newest<S: Words + ?Sized>(&self, state: &S) -> (u64, u64) {
        let word = state.get(0);
        (word & ((1 << self.number_bits) - 1), word >> self.number_bits)
    }

    fn set_newest<S: WordsMut + ?Sized>(&self, state: &mut S, newest: u64, high: u64) {
        state.set(0, newest | high.saturating_sub(newest) << self.number_bits);
    }

    /// The largest distance to a remembered cell that can be stored.
    const fn furthest_ahead(&self) -> u64 {
        u64::MAX >> self.number_bits
    }

    /// The state, seen at `now`.
    fn view<S: Words + ?Sized>(&self, state: &S, now: Micros) -> View {
        self.view_in(state, now, self.cell(now))
    }

    /// The state, seen at `now` in cell `cell`.
    #[inline]
    fn view_in<S: Words + ?Sized>(&self, state: &S, now: Micros, cell: u64) -> View {
        let (newest, ahead) = self.newest(state);
        if newest <= cell && ahead == 0 {
            let shift = Shift::None;
            return View { newest, ring_cell: cell, cell, at: now, now, shift, high: 0 };
        }
        self.view_after_a_step_back(now, cell, newest, ahead)
    }

    #[cold]
    fn view_after_a_step_back(&self, now: Micros, cell: u64, newest: u64, ahead: u64) -> View {
        let high = if ahead > 0 { newest + ahead } else { 0 };
        // An interpolated oldest cell must not count for less only because `now` is later in its cell. So the counts
        // move to the next cell, and the key waits for it. And no cell moves to before the beginning of the time line.
        let back_to = (cell + u64::from(self.oldest == Cells::Interpolated)).max(self.cells());
        if high > 0 && cell >= high {
            let shift = Shift::Ahead(ahead);
            View { newest, ring_cell: cell - ahead, cell, at: now, now, shift, high: 0 }
        } else if newest >= back_to + self.cells() {
            let shift = Shift::Back(newest - back_to);
            let high = high.max(newest).min(back_to + self.furthest_ahead());
            let at = self.not_before(now, cell, back_to);
            View { newest, ring_cell: newest, cell: back_to, at, now, shift, high }
        } else {
            let at = self.not_before(now, cell, newest);
            let cell = cell.max(newest);
            View { newest, ring_cell: cell, cell, at, now, shift: Shift::None, high }
        }
    }

    /// `now`, which is in cell `cell`, or the start of `earliest` if that cell is later.
    fn not_before(&self, now: Micros, cell: u64, earliest: u64) -> Micros {
        if cell < earliest { Micros::new(self.start(earliest)) } else { now }
    }

    /// The usage that counts in a view.
    #[inline]
    fn usage<S: Words + ?Sized>(&self, state: &S, view: View) -> Usage {
        // The ring holds the cells up to the newest, and none is later than the current cell. So every count is
        // included, except the counts of cells that are too old.
        let (gone, oldest) = if view.newest == view.ring_cell {
            self.leaving_now(state, view.newest)
        } else {
            self.gone(state, view.newest, view.ring_cell)
        };
        Usage { full: self.total(state) - gone, oldest, left: self.left(view.at, view.cell) }
    }

    /// The usage that is not part of `Usage::full`, and how much of it is in the oldest cell.
    ///
    /// Fast path for a ring that ends with the current cell: only the oldest cell has begun to leave, so both are its
    /// count.
    #[inline]
    fn leaving_now<S: Words + ?Sized>(&self, state: &S, current: u64) -> (u64, u64) {
        let oldest = match current.checked_sub(self.cells()) {
            Some(cell) => self.count(state, current, cell),
            None => 0,
        };
        (oldest, oldest)
    }

    /// As `leaving_now`, for a ring that ends before the current cell.
    fn gone<S: Words + ?Sized>(&self, state: &S, newest: u64, current: u64) -> (u64, u64) {
        let (mut gone, mut oldest) = (0, 0);
        let too_old = newest.saturating_sub(self.cells())..=newest;
        for cell in too_old.take_while(|cell| cell + self.cells() <= current) {
            oldest = self.count(state, newest, cell);
            gone += oldest;
        }
        (gone, if newest + self.cells() < current { 0 } else { oldest })
    }

    /// The sum of all counts in the ring.
    #[inline]
    fn total<S: Words + ?Sized>(&self, state: &S) -> u64 {
        (1..self.words()).map(|word| (state.get(word) >> 32) + (state.get(word) & HALF)).sum()
    }

    /// How many of the oldest cell's `period` parts are left at `now`, in cell `current`.
    #[inline]
    fn left(&self, now: Micros, current: u64) -> u64 {
        match self.oldest {
            Cells::Strict => self.period(),
            Cells::Plain => 0,
            // One cell is `period` parts of 1/cells µs. The oldest leaves as the current one fills.
            // Past the end of the time line cells continue and instants do not; there the filled part is 0.
            Cells::Interpolated => {
                let filled = (now.get() * self.cells()).saturating_sub(current.saturating_mul(self.period()));
                self.period() - filled
            }
        }
    }

    /// How long until usage is at most `max_usage`, if the clock runs on and nothing is charged.
    fn until_at_most<S: Words + ?Sized>(&self, state: &S, view: View, max_usage: u64) -> u64 {
        let View { mut ring_cell, mut cell, mut at, mut high, .. } = view;
        let mut usage = self.usage(state, view);
        if max_usage.checked_sub(usage.full).is_some_and(|spare| usage.fits(spare, self.period())) {
            return 0;
        }
        loop {
            if let Some(instant) = self.within_cell(usage, cell, at, max_usage) {
                return instant.saturating_sub(view.now.get());
            }
            cell += 1;
            at = Micros::new(self.start(cell));
            if cell == high {
                // The clock has returned: the counts are as they were in the newest cell.
                (ring_cell, high) = (view.newest, 0);
                usage = self.usage(state, View { ring_cell, cell, at, ..view });
            } else {
                // A cell that counted in full becomes the oldest.
                ring_cell += 1;
                let oldest = match ring_cell.checked_sub(self.cells()) {
                    Some(leaving) => self.count(state, view.newest, leaving),
                    None => 0,
                };
                usage = Usage { full: usage.full - oldest, oldest, left: self.left(at, cell) };
            }
        }
    }

    /// The first instant in cell `current`, from `at` on, with a usage of at most `max_usage`.
    fn within_cell(&self, usage: Usage, current: u64, at: Micros, max_usage: u64) -> Option<u64> {
        let spare = max_usage.checked_sub(usage.full)?;
        if usage.fits(spare, self.period()) {
            return Some(at.get());
        }
        if self.oldest != Cells::Interpolated {
            return None;
        }
        // oldest · left ≤ spare · period, so `left` must have fallen to this value:
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

    /// The decision on a cost that passes, after its charge to the current cell.
    #[inline]
    fn allowed(&self, usage: Usage, view: View, cost: u64) -> Decision {
        let (limit, remaining) = (self.limit, usage.plus(cost).remaining(self.limit, self.period()));
        let mut gone = view.cell + self.cells_until_gone();
        if view.high > 0 && gone >= view.high {
            gone += view.high - view.cell; // the cells up to the remembered cell will not count
        }
        let reset = self.start(gone).saturating_sub(view.now.get());
        Decision::new(Outcome::Allowed, view.now, Level::Counted { limit, remaining, reset })
    }

    /// A decision without a charge.
    fn unchanged<S: Words + ?Sized>(
        &self,
        outcome: Outcome,
        state: &S,
        view: View,
        usage: Usage,
    ) -> Decision {
        let (limit, remaining) = (self.limit, usage.remaining(self.limit, self.period()));
        let reset = self.until_at_most(state, view, 0);
        Decision::new(outcome, view.now, Level::Counted { limit, remaining, reset })
    }

    fn refused<S: Words + ?Sized>(&self, state: &S, view: View, usage: Usage, cost: u64) -> Decision {
        let Some(max_usage) = self.limit.checked_sub(cost) else {
            return self.unchanged(Outcome::Never, state, view, usage);
        };
        let wait = self.until_at_most(state, view, max_usage);
        self.unchanged(Outcome::RetryAfter(Wait::micros(wait)), state, view, usage)
    }

    /// The decision on a cost in a given view.
    #[inline(always)]
    fn peek_in<S: Words + ?Sized>(&self, state: &S, view: View, cost: u64) -> Decision {
        let usage = self.usage(state, view);
        if cost == 0 {
            self.unchanged(Outcome::Allowed, state, view, usage)
        } else if self.admits(usage, cost) {
            self.allowed(usage, view, cost)
        } else {
            self.refused(state, view, usage, cost)
        }
    }

    #[inline(always)]
    fn decide_in<S: WordsMut + ?Sized>(&self, state: &mut S, view: View, cost: u64) -> Decision {
        let usage = self.usage(state, view);
        if cost == 0 {
            return self.unchanged(Outcome::Allowed, state, view, usage);
        }
        if self.admits(usage, cost) {
            self.charge(state, view, cost);
            return self.allowed(usage, view, cost);
        }
        let refused = self.refused(state, view, usage, cost);
        self.commit(state, view);
        refused
    }

    #[inline(never)]
    fn peek_in_other_cell<S: Words + ?Sized>(
        &self,
        state: &S,
        now: Micros,
        cell: u64,
        cost: u64,
    ) -> Decision {
        self.peek_in(state, self.view_in(state, now, cell), cost)
    }

    #[inline(never)]
    fn decide_in_other_cell<S>(&self, state: &mut S, now: Micros, cell: u64, cost: u64) -> Decision
    where
        S: WordsMut + ?Sized,
    {
        self.decide_in(state, self.view_in(state, now, cell), cost)
    }

    #[inline(always)]
    fn charge<S: WordsMut + ?Sized>(&self, state: &mut S, view: View, cost: u64) {
        if state.get(0) != view.cell {
            self.commit(state, view);
            self.advance(state, view.cell, view.high);
        }
        let (word, shift) = self.word_of(view.cell);
        let found = state.get(word);
        let count = (found >> shift & HALF) + cost;
        state.set(word, found & !(HALF << shift) | count.min(HALF) << shift);
    }

    /// Writes the effect of a far step back, or of the return from one, to the state.
    fn commit<S: WordsMut + ?Sized>(&self, state: &mut S, view: View) {
        let size = self.ring.get();
        match view.shift {
            Shift::None => return,
            Shift::Back(by) => self.rotate(state, size - self.ring.remainder(by)),
            Shift::Ahead(by) => self.rotate(state, self.ring.remainder(by)),
        }
        self.set_newest(state, view.shift.apply(view.newest), view.high);
    }

    /// Moves each count `by` positions ahead in the ring, at most once around.
    fn rotate<S: WordsMut + ?Sized>(&self, state: &mut S, by: u64) {
        let size = self.ring.get();
        reverse(state, 0, size);
        reverse(state, 0, by);
        reverse(state, by, size);
    }

    /// Makes `cell` the newest cell, and clears the counts that it replaces.
    ///
    /// The clock stepped back from cell `high`, if that is later.
    fn advance<S: WordsMut + ?Sized>(&self, state: &mut S, cell: u64, high: u64) {
        let (newest, _) = self.newest(state);
        if cell > newest {
            for passed in (newest + 1).max(cell.saturating_sub(self.cells()))..=cell {
                self.set_count(state, passed, 0);
            }
            self.set_newest(state, cell, high);
        }
    }

    /// The number of cells after which a cell no longer counts at all.
    #[inline]
    fn cells_until_gone(&self) -> u64 {
        self.cells() + u64::from(self.oldest != Cells::Plain)
    }

    fn same_cells(&self, old: &Self) -> bool {
        (self.period(), self.cells()) == (old.period(), old.cells())
    }
}

/// A state, seen at an instant.
#[derive(Clone, Copy, Debug)]
struct View {
    /// The newest cell of the ring.
    newest: u64,
    /// The current cell in the numbering of the ring, never before the newest.
    ring_cell: u64,
    /// The current cell by the clock, or the newest cell after a small step back.
    cell: u64,
    /// The instant to decide at, in that cell.
    at: Micros,
    now: Micros,
    /// How a far step back, or the return from one, moves the cells of the ring.
    shift: Shift,
    /// The cell that the clock stepped back from, if not yet reached again; otherwise 0.
    high: u64,
}

impl View {
    /// The view in the newest cell, if the clock has not stepped back.
    #[inline(always)]
    const fn in_newest(cell: u64, now: Micros) -> Self {
        View { newest: cell, ring_cell: cell, cell, at: now, now, shift: Shift::None, high: 0 }
    }
}

/// The usage at an instant.
#[derive(Clone, Copy, Debug)]
struct Usage {
    /// The usage that counts in full.
    full: u64,
    /// The count of the oldest cell.
    oldest: u64,
    /// How many of the oldest cell's `period` parts count: all if strict, none if plain.
    left: u64,
}

const HALF: u64 = 0xFFFF_FFFF;

/// The word that holds the half at a position of the ring, and the shift within it.
#[inline]
const fn half(position: u64) -> (usize, u32) {
    (1 + (position / 2) as usize, (position % 2) as u32 * 32)
}

#[inline]
fn set_half<S: WordsMut + ?Sized>(state: &mut S, (word, shift): (usize, u32), count: u64) {
    let others = state.get(word) & !(HALF << shift);
    state.set(word, others | count << shift);
}

/// Reverses the halves of a ring from position `from` up to but not including `end`.
fn reverse<S: WordsMut + ?Sized>(state: &mut S, from: u64, end: u64) {
    for step in 0..end.saturating_sub(from) / 2 {
        let (front, back) = (half(from + step), half(end - 1 - step));
        let [one, other] = [front, back].map(|(word, shift)| state.get(word) >> shift & HALF);
        set_half(state, front, other);
        set_half(state, back, one);
    }
}

impl Usage {
    /// Whether the oldest cell counts for at most `spare`, if a cell has `whole` parts.
    #[inline]
    fn fits(self, spare: u64, whole: u64) -> bool {
        u128::from(self.oldest) * u128::from(self.left) <= u128::from(spare) * u128::from(whole)
    }

    #[inline]
    fn remaining(self, limit: u64, whole: u64) -> u64 {
        limit.saturating_sub(self.full).saturating_sub(self.weighed(whole))
    }

    /// The amount that the oldest cell counts for, rounded up.
    #[inline]
    fn weighed(self, whole: u64) -> u64 {
        if self.left == whole || self.oldest == 0 {
            return self.oldest; // strict; only interpolation needs the long division
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
    #[expect(clippy::cast_possible_truncation, reason = "the number of cells is at most MAX_CELLS")]
    fn words(&self) -> usize {
        1 + (self.cells() as usize + 1).div_ceil(2)
    }

    #[inline]
    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        // Nearly always the newest cell is the current one. A remembered cell makes the word larger than any cell
        // number.
        let (cell, cost) = (self.cell(now), u64::from(cost));
        if state.get(0) == cell {
            return self.peek_in(state, View::in_newest(cell, now), cost);
        }
        self.peek_in_other_cell(state, now, cell, cost)
    }

    #[inline]
    fn decide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        let (cell, cost) = (self.cell(now), u64::from(cost));
        if state.get(0) == cell {
            return self.decide_in(state, View::in_newest(cell, now), cost);
        }
        self.decide_in_other_cell(state, now, cell, cost)
    }

    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        if cost > 0 {
            let view = self.view(state, now);
            self.charge(state, view, u64::from(cost));
        }
        self.peek(state, now, 0)
    }

    /// Charges at most `u32::MAX`. A count never exceeds `u32::MAX`.
    fn force_wide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u64) {
        let _ = self.force(state, now, u32::try_from(cost).unwrap_or(u32::MAX));
    }

    /// Refunds from the oldest cells first, as a log does.
    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
        let view = self.view(state, now);
        let (newest, mut due) = (view.newest, u64::from(cost));
        let first = (view.ring_cell + 1).saturating_sub(self.cells_until_gone());
        let counted: u64 = (first..=newest).map(|cell| self.count(state, newest, cell)).sum();
        if due == 0 || counted == 0 {
            return;
        }
        if counted <= due {
            return self.reset(state); // cells that have left would count again if the clock stepped back
        }
        for cell in first..=newest {
            let count = self.count(state, newest, cell);
            let back = count.min(due);
            if back > 0 {
                self.set_count(state, cell, count - back);
                due -= back;
            }
        }
        self.commit(state, view);
    }

    fn repair<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        self.commit(state, self.view(state, now));
    }

    /// The instant at which all counts have left.
    ///
    /// While the window remembers a cell that the clock stepped back from, this is computed from that cell, because
    /// counts that have left return when the clock reaches it.
    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        let (newest, ahead) = self.newest(state);
        let first = newest.saturating_sub(self.cells());
        match (first..=newest).rev().find(|&cell| self.count(state, newest, cell) > 0) {
            Some(cell) => Micros::new(self.start(cell + self.cells_until_gone() + ahead)),
            None => Micros::ZERO,
        }
    }

    /// The start of the newest cell.
    ///
    /// Not of the cell that the clock stepped back from: the clock has yet to reach that again.
    fn last_seen<S: Words + ?Sized>(&self, state: &S) -> Micros {
        Micros::new(self.start(self.newest(state).0))
    }

    fn migrate_from<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        if self.same_cells(old) {
            return (0..self.words()).for_each(|word| state.set(word, from.get(word)));
        }
        // All counts of the ring are charged to the current cell, also the oldest: a cell that counts in part is charged
        // in full, because the new cells cannot tell which part has left. A plain window no longer counts that cell, but
        // a stored state does not say how its oldest cell counts, and the script in Redis decides in the same way.
        let view = old.view(from, now);
        let first = view.ring_cell.saturating_sub(old.cells());
        let counted: u64 = (first..=view.newest).map(|cell| old.count(from, view.newest, cell)).sum();
        if counted > 0 {
            let cell = self.cell(now);
            let high = if view.high > 0 { self.cell(Micros::new(old.start(view.high))) } else { 0 };
            self.set_newest(state, cell, high.min(cell + self.furthest_ahead()));
            self.set_count(state, cell, counted);
        }
    }
}
