//! # Policies: several rules, one decision
//!
//! "Ten per second *and* a thousand per day" is two rules and one decision. Deciding them one after the other is
//! wrong: the first would charge for a request that the second refuses. A policy peeks at every rule first and charges
//! only if all allow the request.
//!
//! ```text
//!               ┌─ rule 0 ─ peek ─┐              ┌─ force ─┐
//!   decide ────►├─ rule 1 ─ peek ─┤─► all pass? ─┤─ force ─├─► the stricter decision
//!               └─ rule 2 ─ peek ─┘      │       └─ force ─┘
//!                                        └─ no ─► the strictest refusal; nothing is charged
//! ```
//!
//! A pair, a longer tuple or a slice of algorithms is a policy, and a policy is an algorithm: its
//! state is the states of its rules laid end to end. The rules are numbered from 0 in the order they are written.
//! [`Decision::rule`] is the binding rule, [`Algorithm::explain`] shows all of them.
//!
//! A rule that would allow a request continues to allow it as long as no quota is taken. So the longest wait among the
//! rules is the exact wait of the policy.

use crate::algorithm::Algorithm;
use crate::words::Part;
use crate::{ClockKind, Decision, Keep, Micros, RuleId, Words, WordsMut};
use alloc::boxed::Box;

/// Runs `$body` for each rule, with its index and the offset of its words in the state.
macro_rules! each {
    ($rules:expr, |$rule:ident, $index:ident, $from:ident| $body:expr) => {{
        let (mut $index, mut $from) = (0u16, 0usize);
        for $rule in $rules {
            $body;
            $index += $rule.rules();
            $from += $rule.words();
        }
        let _ = ($index, $from);
    }};
}

fn strictest(so_far: Option<Decision>, next: Decision, first: u16) -> Option<Decision> {
    let next = next.after(first);
    Some(so_far.map_or(next, |decision| decision.and(next)))
}

const NO_RULES: &str = "a policy has at least one rule";

impl<A: Algorithm> Algorithm for [A] {
    fn words(&self) -> usize {
        self.iter().map(Algorithm::words).sum()
    }

    fn rules(&self) -> u16 {
        self.iter().map(Algorithm::rules).sum()
    }

    /// # Panics
    /// If there are no rules.
    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        let mut decision = None;
        each!(self, |rule, first, from| {
            decision = strictest(decision, rule.peek(&Part { whole: state, from }, now, cost), first);
        });
        decision.expect(NO_RULES)
    }

    /// # Panics
    /// If there are no rules.
    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        let mut decision = None;
        each!(self, |rule, first, from| {
            decision =
                strictest(decision, rule.force(&mut Part { whole: &mut *state, from }, now, cost), first);
        });
        decision.expect(NO_RULES)
    }

    fn force_wide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u64) {
        each!(self, |rule, _first, from| rule.force_wide(&mut Part { whole: &mut *state, from }, now, cost));
    }

    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
        each!(self, |rule, _first, from| rule.refund(&mut Part { whole: &mut *state, from }, now, cost));
    }

    fn repair<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        each!(self, |rule, _first, from| rule.repair(&mut Part { whole: &mut *state, from }, now));
    }

    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        let mut latest = Micros::ZERO;
        each!(self, |rule, _first, from| latest = latest.max(rule.idle_at(&Part { whole: state, from })));
        latest
    }

    fn last_seen<S: Words + ?Sized>(&self, state: &S) -> Micros {
        let mut latest = Micros::ZERO;
        each!(self, |rule, _first, from| latest = latest.max(rule.last_seen(&Part { whole: state, from })));
        latest
    }

    /// Rules at the same index are the same limit; a rule without a predecessor starts empty.
    fn migrate_from<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        self.migrate_keeping(Keep::Used, old, from, state, now);
    }

    fn migrate_keeping<F, S>(&self, keep: Keep, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        let (mut old_from, mut new_from) = (0, 0);
        for (rule, old) in self.iter().zip(old) {
            let was = Part { whole: from, from: old_from };
            rule.migrate_keeping(keep, old, &was, &mut Part { whole: &mut *state, from: new_from }, now);
            old_from += old.words();
            new_from += rule.words();
        }
    }

    fn explain<S: Words + ?Sized>(
        &self,
        state: &S,
        now: Micros,
        cost: u32,
        first: RuleId,
        visit: &mut dyn FnMut(Decision),
    ) {
        each!(self, |rule, index, from| {
            rule.explain(&Part { whole: state, from }, now, cost, RuleId(first.0 + index), visit);
        });
    }
}

impl<A: Algorithm, B: Algorithm> Algorithm for (A, B) {
    #[inline]
    fn words(&self) -> usize {
        self.0.words() + self.1.words()
    }

    fn for_clock(self, clock: ClockKind) -> Self {
        (self.0.for_clock(clock), self.1.for_clock(clock))
    }

    #[inline]
    fn rules(&self) -> u16 {
        self.0.rules() + self.1.rules()
    }

    #[inline]
    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        let first = self.0.peek(state, now, cost);
        let second = self.1.peek(&Part { whole: state, from: self.0.words() }, now, cost);
        first.and(second.after(self.0.rules()))
    }

    #[inline]
    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        let first = self.0.force(state, now, cost);
        let second = self.1.force(&mut Part { whole: state, from: self.0.words() }, now, cost);
        first.and(second.after(self.0.rules()))
    }

    fn force_wide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u64) {
        self.0.force_wide(state, now, cost);
        self.1.force_wide(&mut Part { whole: state, from: self.0.words() }, now, cost);
    }

    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
        self.0.refund(state, now, cost);
        self.1.refund(&mut Part { whole: state, from: self.0.words() }, now, cost);
    }

    fn repair<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        self.0.repair(state, now);
        self.1.repair(&mut Part { whole: state, from: self.0.words() }, now);
    }

    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        let second = Part { whole: state, from: self.0.words() };
        self.0.idle_at(state).max(self.1.idle_at(&second))
    }

    fn last_seen<S: Words + ?Sized>(&self, state: &S) -> Micros {
        let second = Part { whole: state, from: self.0.words() };
        self.0.last_seen(state).max(self.1.last_seen(&second))
    }

    fn migrate_from<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        self.migrate_keeping(Keep::Used, old, from, state, now);
    }

    fn migrate_keeping<F, S>(&self, keep: Keep, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        self.0.migrate_keeping(keep, &old.0, from, state, now);
        let was = Part { whole: from, from: old.0.words() };
        self.1.migrate_keeping(keep, &old.1, &was, &mut Part { whole: state, from: self.0.words() }, now);
    }

    fn explain<S: Words + ?Sized>(
        &self,
        state: &S,
        now: Micros,
        cost: u32,
        first: RuleId,
        visit: &mut dyn FnMut(Decision),
    ) {
        self.0.explain(state, now, cost, first, visit);
        let second = Part { whole: state, from: self.0.words() };
        self.1.explain(&second, now, cost, RuleId(first.0 + self.0.rules()), visit);
    }
}

/// Implements `Algorithm` for a type by a view of it as another algorithm.
macro_rules! delegate {
    ([$($generics:tt)*] $this:ty, |$it:ident| $view:expr, |$own:ident, $clock:ident| $suited:expr) => {
        impl<$($generics)*> Algorithm for $this {
            #[inline]
            fn words(&self) -> usize {
                let $it = self;
                ($view).words()
            }

            fn for_clock(self, $clock: ClockKind) -> Self {
                let $own = self;
                $suited
            }

            #[inline]
            fn rules(&self) -> u16 {
                let $it = self;
                ($view).rules()
            }

            #[inline]
            fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
                let $it = self;
                ($view).peek(state, now, cost)
            }

            #[inline]
            fn decide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
                let $it = self;
                ($view).decide(state, now, cost)
            }

            #[inline]
            fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
                let $it = self;
                ($view).force(state, now, cost)
            }

            fn force_wide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u64) {
                let $it = self;
                ($view).force_wide(state, now, cost);
            }

            fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
                let $it = self;
                ($view).refund(state, now, cost);
            }

            #[inline]
            fn repair<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
                let $it = self;
                ($view).repair(state, now);
            }

            #[inline]
            fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
                let $it = self;
                ($view).idle_at(state)
            }

            #[inline]
            fn last_seen<S: Words + ?Sized>(&self, state: &S) -> Micros {
                let $it = self;
                ($view).last_seen(state)
            }

            #[inline(always)]
            fn decide_word(&self, word: u64, now: Micros, cost: u32) -> Option<(u64, Decision)> {
                let $it = self;
                ($view).decide_word(word, now, cost)
            }


            fn migrate_from<From, S>(&self, old: &Self, from: &From, state: &mut S, now: Micros)
            where
                From: Words + ?Sized,
                S: WordsMut + ?Sized,
            {
                let new = { let $it = self; $view };
                let old = { let $it = old; $view };
                new.migrate_from(&old, from, state, now);
            }

            fn migrate_keeping<From, S>(
                &self,
                keep: Keep,
                old: &Self,
                from: &From,
                state: &mut S,
                now: Micros,
            ) where
                From: Words + ?Sized,
                S: WordsMut + ?Sized,
            {
                let new = { let $it = self; $view };
                let old = { let $it = old; $view };
                new.migrate_keeping(keep, &old, from, state, now);
            }

            fn explain<S: Words + ?Sized>(
                &self,
                state: &S,
                now: Micros,
                cost: u32,
                first: RuleId,
                visit: &mut dyn FnMut(Decision),
            ) {
                let $it = self;
                ($view).explain(state, now, cost, first, visit);
            }
        }
    };
}

delegate!([A: Algorithm + ?Sized] &A, |it| *it, |it, _clock| it);
delegate!([A: Algorithm, const N: usize] [A; N], |it| it.as_slice(), |it, clock| it.map(|rule| rule.for_clock(clock)));
delegate!([A: Algorithm] Box<[A]>, |it| &**it, |it, clock| it.into_iter().map(|rule| rule.for_clock(clock)).collect());
delegate!(
    [A: Algorithm, B: Algorithm, C: Algorithm] (A, B, C),
    |it| (&it.0, (&it.1, &it.2)),
    |it, clock| (it.0.for_clock(clock), it.1.for_clock(clock), it.2.for_clock(clock))
);
delegate!(
    [A: Algorithm, B: Algorithm, C: Algorithm, D: Algorithm] (A, B, C, D),
    |it| (&it.0, (&it.1, (&it.2, &it.3))),
    |it, clock| (it.0.for_clock(clock), it.1.for_clock(clock), it.2.for_clock(clock), it.3.for_clock(clock))
);
