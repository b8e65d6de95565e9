//! # An algorithm is a step
//!
//! Everything that limits is written as a pure step over a few words: no clock, no lock, no I/O. `now` is an
//! argument, so a test is a table of instants and nothing ever sleeps; and because a step cannot tell where
//! its words live, the same step decides for one state in this process and for a million.
//!
//! An algorithm says how it judges ([`peek`](Algorithm::peek)) and how it charges
//! ([`force`](Algorithm::force)). Everything else follows from the two:
//!
//! ```text
//!                        ┌── allowed ──► force: charge ──► Decision
//!   decide ──► peek ─────┤
//!                        └── refused ──► repair: touch nothing an honest history could have produced
//! ```

use crate::{ClockKind, Decision, Micros, RuleId, Words, WordsMut};

/// A way of limiting, as a pure step: no clock, no lock, no I/O.
///
/// Most callers want a limiter, which adds the clock and the memory; this is what a limiter runs. It runs the verbs while
/// it holds the state, so they must not panic.
pub trait Algorithm {
    /// How many words the state of one key takes. All zero is a key never seen.
    fn words(&self) -> usize;

    /// The same algorithm for states that are only ever decided on by such a clock. As made, an algorithm suits any.
    #[must_use]
    fn for_clock(self, clock: ClockKind) -> Self
    where
        Self: Sized,
    {
        let _ = clock;
        self
    }

    /// Judges whether `cost` may pass at `now`, as if it were charged; changes nothing.
    ///
    /// A cost of 0 always passes: it asks what is left.
    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision;

    /// Charges `cost` whether or not it fits. What does not fit is debt, and nothing passes until it is paid.
    ///
    /// For costs that are known only afterwards, such as the bytes of a response.
    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision;

    /// Gives back what a recent charge took, never above the limit.
    ///
    /// A refund never leaves a key worse off than it was. It changes nothing if nothing is owed, and a key that has been given
    /// back all it owed is as if never seen, wherever the clock goes from there.
    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32);

    /// Pulls a state back that no honest history could have produced, because the clock stepped back; and writes down
    /// that the clock has come again, if the state remembers where it stepped back from.
    /// Leaves every other state as it is.
    fn repair<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros);

    /// The first instant at which `state` is no different from a key never seen.
    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros;

    /// The latest instant that `state` proves to have been reached when it was last written.
    fn last_seen<S: Words + ?Sized>(&self, state: &S) -> Micros;

    /// Takes over a state written under `old`, an earlier setting of the same limit, into cleared words.
    ///
    /// What was used stays used: a larger limit adds only the difference, a smaller one may leave debt.
    fn migrate_from<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized;

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

    /// A short cut past [`decide`](Algorithm::decide), only where [`words`](Algorithm::words) is 1: the next value of the
    /// state and the decision, or `None` to go the long way, as always where the word has seen a later instant than `now`.
    ///
    /// Whoever decides a million times a second tries this first. It has the same answers.
    #[inline(always)]
    fn decide_word(&self, word: u64, now: Micros, cost: u32) -> Option<(u64, Decision)> {
        let _ = (word, now, cost);
        None
    }

    /// Takes as much of `most` as there is, which may be nothing. The decision is that on the part taken.
    #[inline]
    fn take<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, most: u32) -> Taken {
        let there = self.peek(state, now, 0).remaining();
        let amount = u32::try_from(there).unwrap_or(u32::MAX).min(most);
        Taken { amount, decision: self.decide(state, now, amount) }
    }

    /// Forgets everything: the key is as if never seen.
    #[inline]
    fn reset<S: WordsMut + ?Sized>(&self, state: &mut S) {
        for index in 0..self.words() {
            state.set(index, 0);
        }
    }

    /// Whether of any two states the larger, compared word by word from the first, has used at least as much, now and
    /// at every later instant, provided that both were [settled](Algorithm::repair) where the clock may step back. There it
    /// holds until the clock comes again to where it stepped back from.
    /// The first word then leaves its topmost bit clear.
    ///
    /// Then a state can stand for several keys: the largest of theirs refuses whatever one of them would refuse.
    #[inline]
    fn is_ordered(&self) -> bool {
        false
    }

    /// How many rules decide here: 1, unless this is a policy.
    #[inline]
    fn rules(&self) -> u16 {
        1
    }

    /// Shows each rule's own decision on `cost` to `visit`, numbered from `first`.
    ///
    /// A rule that refuses says so; a rule that would let the cost pass is shown as it was found, not as if it had
    /// been charged.
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

/// How much of a larger wish was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// How much was taken, and is charged.
    pub amount: u32,
    /// The decision on that amount.
    pub decision: Decision,
}
