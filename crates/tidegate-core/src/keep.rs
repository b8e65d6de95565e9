//! # What a key keeps when its limit changes
//!
//! A limit is raised from 10 to 20 while a key has used 6. How much may the key still use? There are three answers, and
//! each is right for some reason to change a limit:
//!
//! ```text
//!   limit 10        │██████····│                6 used, 4 remain
//!
//!   limit 20  Used  │██████··············│      6 used, 14 remain: the new limit counts from the start
//!        Remaining  │████████████████····│     16 used,  4 remain: the change itself frees nothing
//!            Ratio  │████████████········│     12 used,  8 remain: as full as before
//! ```
//!
//! `Used` suits a customer that buys a larger plan and expects the difference now. `Remaining` suits a change that must
//! not admit a wave of requests, such as a new limit for all keys during an incident. `Ratio` suits a limit that is
//! scaled, such as the share of a node after the number of nodes has changed.
//!
//! # Keys that are idle
//!
//! An idle key, one that has used nothing or has recovered all of it, is the same as a key never seen: a store may
//! evict it at any time. So it stays never seen in every mode and has the whole new limit, even if that is more than
//! the old one. Any other rule would make the outcome of a change depend on evictions.
//!
//! # Debt
//!
//! A key in debt has nothing remaining, before and after the change, and keeps its debt: the amount that it owes beyond
//! the old limit is what it owes beyond the new one. In `Ratio` the debt is not scaled. If the algorithm changes too, the
//! debt is dropped, because one algorithm cannot tell how much another one owes; the key then has nothing remaining and
//! no debt. A [`SlidingLog`](crate::SlidingLog) keeps debt only as far as it has room.
//!
//! # Rounding
//!
//! The remaining quota after a change is exactly the value in the table of [`Keep`]. A part of a token is rounded
//! against the key, so it never becomes a whole one.
//!
//! # Sketches
//!
//! In a sketch one state stands for several keys and is the largest of their states. A key with less remaining never
//! has more than another key after the change, and the order of [ordered](Algorithm::is_ordered) states stays. So the
//! migrated state is still the largest, and a sketch is never more generous than the exact states.

use crate::algorithm::Algorithm;
use crate::{Micros, Words, WordsMut};

/// What a key keeps when its limit changes.
///
/// | mode | remaining after the change |
/// |---|---|
/// | [`Used`](Keep::Used) | new limit − used |
/// | [`Remaining`](Keep::Remaining) | the smaller of old remaining and new limit |
/// | [`Ratio`](Keep::Ratio) | ⌊old remaining × new limit ÷ old limit⌋ |
///
/// *Remaining* is the largest cost that would pass now, and *limit* the largest cost that an idle key passes:
/// [`Decision::remaining`](crate::Decision::remaining) and [`Decision::limit`](crate::Decision::limit). In every mode an
/// idle key stays a key never seen, which has the whole new limit, and a key in debt stays in debt. The rules of a
/// policy change one by one, each by its own remaining quota.
///
/// ```
/// use tidegate_core::{Algorithm, FixedWindow, Keep, Micros, Quota};
///
/// let (old, new) = (FixedWindow::new(Quota::per_hour(10)), FixedWindow::new(Quota::per_hour(20)));
/// let (mut before, now) = ([0; 1], Micros::ZERO);
/// assert_eq!(old.decide(&mut before, now, 6).remaining(), 4);
///
/// let remaining = |keep: Keep| {
///     let mut after = [0; 1]; // cleared words
///     keep.migrate(&new, &old, &before, &mut after, now);
///     new.peek(&after, now, 0).remaining()
/// };
/// assert_eq!(remaining(Keep::Used), 14);
/// assert_eq!(remaining(Keep::Remaining), 4);
/// assert_eq!(remaining(Keep::Ratio), 8);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Keep {
    /// Used quota stays used. A larger limit adds the difference, a smaller one may leave debt.
    ///
    /// This is [`Algorithm::migrate_from`].
    #[default]
    Used,
    /// The remaining quota stays the same, as far as the new limit allows. The change frees nothing.
    Remaining,
    /// The remaining quota stays the same share of the limit, rounded down.
    Ratio,
}

impl Keep {
    /// Converts a state written under `old` for `new`, into cleared words.
    ///
    /// `old` is an earlier setting of the same limit, `from` its state, and `state` has the words of `new`, all zero.
    pub fn migrate<A, F, S>(self, new: &A, old: &A, from: &F, state: &mut S, now: Micros)
    where
        A: Algorithm + ?Sized,
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        new.migrate_keeping(self, old, from, state, now);
    }

    /// The remaining quota under `new_limit`, for a key with `remaining` of `old_limit`.
    ///
    /// Not for `Used`, which depends on the usage.
    pub(crate) fn target(self, remaining: u64, old_limit: u64, new_limit: u64) -> u64 {
        match self {
            Keep::Used | Keep::Remaining => remaining.min(new_limit),
            Keep::Ratio => {
                let scaled = u128::from(remaining) * u128::from(new_limit) / u128::from(old_limit.max(1));
                u64::try_from(scaled).unwrap_or(u64::MAX).min(new_limit)
            }
        }
    }

    /// Migrates the state of one rule with nothing but the operations that every algorithm has.
    pub(crate) fn migrate_rule<A, F, S>(self, new: &A, old: &A, from: &F, state: &mut S, now: Micros)
    where
        A: Algorithm + ?Sized,
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        if self == Keep::Used {
            return new.migrate_from(old, from, state, now);
        }
        if old.idle_at(from) <= now {
            return; // cleared words are a key never seen
        }
        let before = old.peek(from, now, 0);
        // Starting from `Used` keeps the instants of logs, cells and windows, and the memory of a clock step.
        new.migrate_from(old, from, state, now);
        let limit = new.peek(state, now, 0).limit();
        let target = self.target(before.remaining(), before.limit(), limit);
        // Usage changes by a difference and not to a value: debt is part of the usage, and a decision does not show it.
        let (used, wanted) = (before.limit().saturating_sub(before.remaining()), limit - target);
        refund(new, state, now, used.saturating_sub(wanted));
        new.force_wide(state, now, wanted.saturating_sub(used));
        // A log forgets entries that are older than its new period or beyond its room.
        let found = new.peek(state, now, 0).remaining();
        new.force_wide(state, now, found.saturating_sub(target));
        if new.peek(state, now, 0).remaining() != target {
            // A refund to an interpolated cell frees less than it refunds.
            new.reset(state);
            new.force_wide(state, now, limit - target);
        }
    }
}

/// Refunds an amount that may exceed `u32::MAX`, until nothing more is used.
fn refund<A, S>(limit: &A, state: &mut S, now: Micros, mut amount: u64)
where
    A: Algorithm + ?Sized,
    S: WordsMut + ?Sized,
{
    while amount > 0 {
        let found = limit.peek(state, now, 0);
        if found.remaining() == found.limit() {
            return;
        }
        let part = u32::try_from(amount).unwrap_or(u32::MAX);
        limit.refund(state, now, part);
        amount -= u64::from(part);
    }
}
