//! # The `Algorithm` trait
//!
//! Every limiting algorithm is a pure step over a few words of state: no clock, no lock, no I/O. `now` is an
//! argument, so a test is a table of instants and nothing sleeps. A step does not know where its words are stored,
//! so the same step serves one state in this process and a store of a million keys.
//!
//! An algorithm defines how to decide a request ([`peek`](Algorithm::peek)) and how to charge it
//! ([`force`](Algorithm::force)). The other operations build on these two:
//!
//! ```text
//!                        ┌── allowed ──► force: charge ──► Decision
//!   decide ──► peek ─────┤
//!                        └── refused ──► repair: change only a state that no valid history could have produced
//! ```

use crate::{ClockKind, Decision, Keep, Micros, RuleId, Words, WordsMut};

/// A limiting algorithm as a pure step: no clock, no lock, no I/O.
///
/// Most callers want a limiter, which adds the clock and the memory and runs an algorithm. A limiter calls these
/// methods while it has the state locked, so they must not panic.
pub trait Algorithm {
    /// The number of words in the state of one key. All zero is a key never seen.
    fn words(&self) -> usize;

    /// Returns the algorithm for states that are only ever used with this kind of clock.
    ///
    /// Without this call an algorithm works with every clock.
    #[must_use]
    fn for_clock(self, clock: ClockKind) -> Self
    where
        Self: Sized,
    {
        let _ = clock;
        self
    }

    /// Judges whether `cost` may pass at `now`, without changing the state.
    ///
    /// The numbers in the decision are as if the cost had been charged. A cost of 0 is always allowed; it queries the
    /// remaining quota.
    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision;

    /// Charges `cost` whether or not it fits.
    ///
    /// The part that does not fit is debt: nothing passes until it is paid. For costs that are known only afterwards,
    /// such as the bytes of a response.
    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision;

    /// Charges a cost that may exceed `u32::MAX`, whether or not it fits.
    ///
    /// As [`force`](Algorithm::force), in one step where the algorithm can, and otherwise in several.
    fn force_wide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u64) {
        let mut left = cost;
        while left > 0 {
            let part = u32::try_from(left).unwrap_or(u32::MAX);
            let _ = self.force(state, now, part);
            left -= u64::from(part);
        }
    }

    /// Refunds a recent charge, never above the limit.
    ///
    /// A refund never leaves a key worse off than before. It changes nothing if the key owes nothing. A key whose whole
    /// debt has been refunded is as if never seen, wherever the clock goes from there.
    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32);

    /// Repairs a state that is impossible at `now` because the clock stepped back.
    ///
    /// Only a state that no valid history could have produced is pulled back. If the state remembers the instant that
    /// the clock stepped back from, and that instant has been reached again, this records it. Every other state stays
    /// as it is.
    fn repair<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros);

    /// The first instant at which `state` is equivalent to a key never seen.
    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros;

    /// The latest instant that the clock is known to have reached when `state` was written.
    fn last_seen<S: Words + ?Sized>(&self, state: &S) -> Micros;

    /// Converts a state written under `old` into cleared words.
    ///
    /// `old` is an earlier setting of the same limit.
    /// Quota already used stays used: a larger limit adds only the difference, a smaller one may leave debt.
    fn migrate_from<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized;

    /// Converts a state written under `old` into cleared words, and keeps what `keep` says.
    ///
    /// [`Keep::migrate`] calls this. [`Keep::Used`] is [`migrate_from`](Algorithm::migrate_from). A type that consists of
    /// several rules overrides this method to migrate each rule by its own remaining quota.
    fn migrate_keeping<F, S>(&self, keep: Keep, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        keep.migrate_rule(self, old, from, state, now);
    }

    /// Decides whether `cost` may pass at `now`, and charges `state` if it may.
    #[inline]
    fn decide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        let found = self.peek(state, now, cost);
        if found.is_allowed() {
            return self.force(state, now, cost);
        }
        self.repair(state, now);
        found
    }

    /// Fast path of [`decide`](Algorithm::decide) for states of one word.
    ///
    /// Returns the next value of the state and the decision, or `None` if the caller has to use `decide`. It is used
    /// only where [`words`](Algorithm::words) is 1, and always returns `None` if the word has seen a later instant than
    /// `now`.
    ///
    /// Limiters try this first. It gives the same decisions as `decide`.
    #[inline(always)]
    fn decide_word(&self, word: u64, now: Micros, cost: u32) -> Option<(u64, Decision)> {
        let _ = (word, now, cost);
        None
    }

    /// Takes as much of `max` as is available, possibly 0, and decides on that.
    #[inline]
    fn take<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, max: u32) -> Taken {
        let there = self.peek(state, now, 0).remaining();
        let amount = u32::try_from(there).unwrap_or(u32::MAX).min(max);
        Taken { amount, decision: self.decide(state, now, amount) }
    }

    /// Clears the state: the key is as if never seen.
    #[inline]
    fn reset<S: WordsMut + ?Sized>(&self, state: &mut S) {
        for index in 0..self.words() {
            state.set(index, 0);
        }
    }

    /// Whether a larger state has always used at least as much as a smaller one.
    ///
    /// States are compared word by word from the first. The larger of any two has used at least as much, now and at
    /// every later instant. Where the clock may step back, this requires that both were [repaired](Algorithm::repair),
    /// and holds until the clock reaches again the instant it stepped back from. The topmost bit of the first word is
    /// clear.
    ///
    /// Then one state can stand for several keys: the largest of their states refuses every request that one of them
    /// would refuse.
    #[inline]
    fn is_ordered(&self) -> bool {
        false
    }

    /// The number of rules decided together: 1, unless this is a policy.
    #[inline]
    fn rules(&self) -> u16 {
        1
    }

    /// Passes the decision of each rule on `cost` to `visit`, numbered from `first`.
    ///
    /// A rule that refuses reports the refusal. A rule that would allow the cost reports its state as found, not as if
    /// the cost had been charged.
    fn explain<S: Words + ?Sized>(
        &self,
        state: &S,
        now: Micros,
        cost: u32,
        first: RuleId,
        visit: &mut dyn FnMut(Decision),
    ) {
        let judged = self.peek(state, now, cost);
        let shown = if judged.is_allowed() { self.peek(state, now, 0) } else { judged };
        visit(shown.of_rule(first));
    }
}

/// The part of a requested amount that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The amount that was taken and charged.
    pub amount: u32,
    /// The decision on that amount.
    pub decision: Decision,
}
