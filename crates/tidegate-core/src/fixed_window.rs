//! # Fixed window
//!
//! Time is divided into windows, and each window counts what passes in it. No algorithm is simpler to explain or
//! cheaper to store, and clients can tell when the count restarts.
//!
//! ```text
//!   limit ┤          ████     ████
//!         │      ████    │████
//!         │  ████        │             aligned: the windows begin at multiples of the period
//!       0 ┼──────────────┼────────────► t
//!         0:59          1:00
//! ```
//!
//! The drawing also shows the weakness: the last moment of one window and the first of the next hold twice the
//! limit, within an instant. In any time span Δ at most limit·(⌈Δ/period⌉ + 1) pass, in any one period at most twice
//! the limit, and exactly the limit in each aligned window. For "never more than the limit in any period", use
//! [`SlidingWindow`](crate::SlidingWindow).
//!
//! Aligned windows restart for all keys together, and their clients return together. Windows *from the
//! first hit* spread that load: the window of each key opens with its first request.
//!
//! After a clock has stepped back, the stored window has not begun yet. Its count is moved to the current window, so
//! the step frees no quota and no key waits longer than one window. If the clock returns, the window is new: a clock
//! that steps back and returns n times admits at most n limits more. The word has no bits left to store the instant
//! that the clock stepped back from.

use core::time::Duration;

use crate::algorithm::Algorithm;
use crate::counter::{Counter, Grid};
use crate::decision::{Decision, Level, Outcome, Wait};
use crate::encoded_rule::EncodedRule;
use crate::invalid_quota::{InvalidQuota, Reason};
use crate::{Micros, Quota, Words, WordsMut};

/// A fixed window: at most `limit` in each window. The burst of the quota is ignored.
///
/// ```
/// use tidegate_core::{Algorithm, FixedWindow, Micros, Quota};
///
/// const HOURLY: FixedWindow = FixedWindow::new(Quota::per_hour(2));
/// let mut state = [0; 1];
/// let quarter_past = Micros::new(15 * 60_000_000);
/// assert!(HOURLY.decide(&mut state, quarter_past, 2).is_allowed());
/// let refused = HOURLY.decide(&mut state, quarter_past, 1);
/// assert_eq!(refused.retry_after().unwrap().duration().as_secs(), 45 * 60);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    limit: u64,
    anchor: Anchor,
    counter: Counter,
}

/// What determines the start of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anchor {
    Clock(Grid),
    FirstHit { period: u64 },
}

/// The window that a decision falls into, and its count.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// The stored identity of the window: its number, or its first instant.
    name: u64,
    ends: Micros,
    count: u64,
}

impl FixedWindow {
    /// Windows aligned to the clock: they begin at multiples of the period.
    ///
    /// # Panics
    /// If the period is not a whole number of microseconds, or the quota is unlimited; in a `const` that is a compile error.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        match Self::checked(quota) {
            Ok(window) => window,
            Err(reason) => panic!("{}", reason.sentence()),
        }
    }

    /// As [`FixedWindow::new`], for a quota that has not been validated.
    ///
    /// # Errors
    /// If the period is not a whole number of microseconds, or the quota is [unlimited](Quota::unlimited).
    pub fn try_new(quota: Quota) -> Result<Self, InvalidQuota> {
        Self::checked(quota).map_err(InvalidQuota::because)
    }

    /// The same windows, beginning at `offset` after each multiple of the period.
    ///
    /// # Panics
    /// If the windows begin with the [first hit](FixedWindow::from_first_hit), whatever the offset; in a `const` that is
    /// a compile error:
    ///
    /// ```compile_fail
    /// # use core::time::Duration;
    /// # use tidegate_core::{FixedWindow, Quota};
    /// const BOTH: FixedWindow =
    ///     FixedWindow::new(Quota::per_minute(5)).from_first_hit().offset(Duration::from_secs(10));
    /// ```
    #[must_use]
    pub const fn offset(self, offset: Duration) -> Self {
        match self.anchor {
            Anchor::Clock(grid) => FixedWindow { anchor: Anchor::Clock(grid.offset(offset)), ..self },
            Anchor::FirstHit { .. } => panic!("{}", Reason::OffsetFromFirstHit.sentence()),
        }
    }

    /// The same limit, but the window of each key begins with its first request.
    ///
    /// # Panics
    /// If the windows have an [offset](FixedWindow::offset) other than a multiple of the period; in a `const` that is a
    /// compile error.
    #[must_use]
    pub const fn from_first_hit(self) -> Self {
        if let Anchor::Clock(grid) = self.anchor
            && grid.get_offset() != 0
        {
            panic!("{}", Reason::OffsetFromFirstHit.sentence());
        }
        let period = self.period();
        FixedWindow { anchor: Anchor::FirstHit { period }, counter: Counter::instant(self.limit), ..self }
    }

    const fn checked(quota: Quota) -> Result<Self, Reason> {
        let limit = match quota.finite() {
            Ok(quota) => quota.limit(),
            Err(reason) => return Err(reason),
        };
        match Grid::of(quota.period()) {
            Ok(grid) => {
                let counter = Counter::aligned(grid.period(), limit);
                Ok(FixedWindow { limit, anchor: Anchor::Clock(grid), counter })
            }
            Err(reason) => Err(reason),
        }
    }

    const fn period(&self) -> u64 {
        match self.anchor {
            Anchor::Clock(grid) => grid.period(),
            Anchor::FirstHit { period } => period,
        }
    }

    pub(crate) fn encode(&self) -> EncodedRule {
        match self.anchor {
            Anchor::Clock(grid) => EncodedRule::new(b'w', [self.limit, grid.period(), grid.get_offset()]),
            Anchor::FirstHit { period } => EncodedRule::new(b'h', [self.limit, period]),
        }
    }

    #[inline]
    fn window<S: Words + ?Sized>(&self, state: &S, now: Micros) -> Window {
        let (written, count) = self.counter.read(state);
        match self.anchor {
            Anchor::Clock(grid) => {
                let name = grid.number(now);
                let count = if written >= name { count } else { 0 };
                Window { name, ends: grid.start(name + 1), count }
            }
            Anchor::FirstHit { period } => {
                let open = count > 0 && now.get() < written + period;
                // A window that opens after `now` was opened before the clock stepped back.
                let name = if open { written.min(now.get()) } else { now.get() };
                Window { name, ends: Micros::new(name).plus(period), count: if open { count } else { 0 } }
            }
        }
    }

    #[inline(always)]
    fn decision(&self, outcome: Outcome, now: Micros, window: Window, count: u64) -> Decision {
        let remaining = self.limit.saturating_sub(count);
        let reset = if count == 0 { 0 } else { window.ends.since(now) };
        Decision::new(outcome, now, Level::Counted { limit: self.limit, remaining, reset })
    }
}

impl Algorithm for FixedWindow {
    #[inline]
    fn words(&self) -> usize {
        self.counter.words()
    }

    #[inline]
    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        let window = self.window(state, now);
        let (count, cost) = (window.count, u64::from(cost));
        if cost > self.limit {
            self.decision(Outcome::Never, now, window, count)
        } else if count + cost <= self.limit || cost == 0 {
            self.decision(Outcome::Allowed, now, window, count + cost)
        } else {
            let wait = Wait::micros(window.ends.since(now));
            self.decision(Outcome::RetryAfter(wait), now, window, count)
        }
    }

    #[inline(always)]
    fn decide_word(&self, word: u64, now: Micros, cost: u32) -> Option<(u64, Decision)> {
        let Anchor::Clock(grid) = self.anchor else { return None };
        let number = grid.number(now);
        // A word of this window is the empty word plus the count. A word of an earlier window is less than the empty
        // word.
        let empty = self.counter.empty_word(number)?;
        let (count, cost) = (word.saturating_sub(empty), u64::from(cost));
        if cost == 0 || cost > self.limit || count > self.counter.largest() {
            return None;
        }
        let window = Window { name: number, ends: grid.start(number + 1), count };
        if count + cost <= self.limit {
            return Some((empty + count + cost, self.decision(Outcome::Allowed, now, window, count + cost)));
        }
        let wait = Outcome::RetryAfter(Wait::micros(window.ends.since(now)));
        Some((word, self.decision(wait, now, window, count)))
    }

    #[inline]
    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        let window = self.window(state, now);
        if cost > 0 {
            self.counter.write(state, window.name, window.count + u64::from(cost));
        }
        self.decision(Outcome::Allowed, now, window, window.count + u64::from(cost))
    }

    fn force_wide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u64) {
        if cost > 0 {
            let window = self.window(state, now);
            self.counter.write(state, window.name, window.count.saturating_add(cost));
        }
    }

    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
        if cost == 0 {
            return;
        }
        let window = self.window(state, now);
        if window.count > 0 {
            self.counter.write(state, window.name, window.count.saturating_sub(u64::from(cost)));
        }
    }

    #[inline]
    fn repair<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        match self.anchor {
            Anchor::Clock(grid) => self.counter.repair(state, grid.number(now)),
            Anchor::FirstHit { .. } => self.counter.repair(state, now.get()),
        }
    }

    #[inline]
    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        match (self.counter.read(state), self.anchor) {
            ((_, 0), _) => Micros::ZERO,
            ((number, _), Anchor::Clock(grid)) => grid.start(number + 1),
            ((opened, _), Anchor::FirstHit { period }) => Micros::new(opened).plus(period),
        }
    }

    #[inline]
    fn last_seen<S: Words + ?Sized>(&self, state: &S) -> Micros {
        let (written, _) = self.counter.read(state);
        match self.anchor {
            Anchor::Clock(grid) => grid.start(written),
            Anchor::FirstHit { .. } => Micros::new(written),
        }
    }

    /// Only for aligned windows: a later window, or more in the same window, has used more.
    ///
    /// Windows from the first hit end at different instants: one can be used up and end sooner than another that is
    /// hardly used.
    #[inline]
    fn is_ordered(&self) -> bool {
        matches!(self.anchor, Anchor::Clock(_))
    }

    fn migrate_from<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        let was = old.window(from, now);
        let name = match (self.anchor, old.anchor) {
            (Anchor::FirstHit { .. }, Anchor::FirstHit { .. }) => was.name,
            _ => self.window(state, now).name,
        };
        self.counter.write(state, name, was.count);
    }
}
