//! # What can be asked of a state
//!
//! One primitive carries every verb: *apply this to the state of that key*. A verb says what it does to a state; who
//! shares the state, between threads or among a million others, need not know which verb it is.

use tidegate_core::{Algorithm, Decision, Micros, RuleId, Taken, Wait, WordsMut};

/// Something to do to a state, with an answer.
pub(crate) trait Verb {
    type Answer;

    fn apply<A: Algorithm, S: WordsMut + ?Sized>(
        &self,
        algorithm: &A,
        state: &mut S,
        now: Micros,
    ) -> Self::Answer;

    /// The next value of a state of one word, and the answer, if there is a short cut to them.
    #[inline(always)]
    fn at_once<A: Algorithm>(&self, algorithm: &A, word: u64, now: Micros) -> Option<(u64, Self::Answer)> {
        let _ = (algorithm, word, now);
        None
    }

    /// The answer when there is no room for a new state, and none is to be expected before `room_after`.
    fn refuse<A: Algorithm>(&self, algorithm: &A, now: Micros, room_after: Wait) -> Self::Answer;

    /// The same answer, taken apart and put together again.
    ///
    /// This lets the compiler keep the answers of the short cut in registers: without it they share their memory with the
    /// answers of the long way, and reading them back costs more than the decision.
    #[inline(always)]
    fn rebuilt(answer: Self::Answer) -> Self::Answer {
        answer
    }

    /// The decision in an answer, for whoever observes decisions.
    fn decision(answer: &Self::Answer) -> Option<Decision>;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Check(pub(crate) u32);
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peek(pub(crate) u32);
#[derive(Clone, Copy, Debug)]
pub(crate) struct Force(pub(crate) u32);
#[derive(Clone, Copy, Debug)]
pub(crate) struct Take(pub(crate) u32);
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refund(pub(crate) u32);
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reset;
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckEach(pub(crate) u32);

fn closed<A: Algorithm>(algorithm: &A, now: Micros, room_after: Wait) -> Decision {
    Decision::closed(now, room_after, fresh(algorithm, now).limit())
}

/// What a key never seen is told.
fn fresh<A: Algorithm>(algorithm: &A, now: Micros) -> Decision {
    struct Nothing;
    impl tidegate_core::Words for Nothing {
        fn get(&self, _: usize) -> u64 {
            0
        }
    }
    algorithm.peek(&Nothing, now, 0)
}

impl Verb for Check {
    type Answer = Decision;

    #[inline]
    fn apply<A: Algorithm, S: WordsMut + ?Sized>(
        &self,
        algorithm: &A,
        state: &mut S,
        now: Micros,
    ) -> Decision {
        algorithm.decide(state, now, self.0)
    }

    #[inline(always)]
    fn rebuilt(answer: Decision) -> Decision {
        answer.rebuilt()
    }

    #[inline(always)]
    fn at_once<A: Algorithm>(&self, algorithm: &A, word: u64, now: Micros) -> Option<(u64, Decision)> {
        algorithm.decide_word(word, now, self.0)
    }

    fn refuse<A: Algorithm>(&self, algorithm: &A, now: Micros, room_after: Wait) -> Decision {
        closed(algorithm, now, room_after)
    }

    #[inline]
    fn decision(answer: &Decision) -> Option<Decision> {
        Some(*answer)
    }
}

impl Verb for Peek {
    type Answer = Decision;

    #[inline]
    fn apply<A: Algorithm, S: WordsMut + ?Sized>(
        &self,
        algorithm: &A,
        state: &mut S,
        now: Micros,
    ) -> Decision {
        algorithm.peek(state, now, self.0)
    }

    fn refuse<A: Algorithm>(&self, algorithm: &A, now: Micros, room_after: Wait) -> Decision {
        closed(algorithm, now, room_after)
    }

    fn decision(_: &Decision) -> Option<Decision> {
        None
    }
}

impl Verb for Force {
    type Answer = Decision;

    fn apply<A: Algorithm, S: WordsMut + ?Sized>(
        &self,
        algorithm: &A,
        state: &mut S,
        now: Micros,
    ) -> Decision {
        algorithm.force(state, now, self.0)
    }

    fn refuse<A: Algorithm>(&self, algorithm: &A, now: Micros, room_after: Wait) -> Decision {
        closed(algorithm, now, room_after)
    }

    fn decision(answer: &Decision) -> Option<Decision> {
        Some(*answer)
    }
}

impl Verb for Take {
    type Answer = Taken;

    fn apply<A: Algorithm, S: WordsMut + ?Sized>(&self, algorithm: &A, state: &mut S, now: Micros) -> Taken {
        algorithm.take(state, now, self.0)
    }

    fn refuse<A: Algorithm>(&self, algorithm: &A, now: Micros, room_after: Wait) -> Taken {
        Taken { amount: 0, decision: closed(algorithm, now, room_after) }
    }

    fn decision(answer: &Taken) -> Option<Decision> {
        Some(answer.decision)
    }
}

impl Verb for Refund {
    type Answer = ();

    fn apply<A: Algorithm, S: WordsMut + ?Sized>(&self, algorithm: &A, state: &mut S, now: Micros) {
        algorithm.refund(state, now, self.0);
    }

    fn refuse<A: Algorithm>(&self, _: &A, _: Micros, _: Wait) {}

    fn decision((): &()) -> Option<Decision> {
        None
    }
}

impl Verb for Reset {
    type Answer = ();

    fn apply<A: Algorithm, S: WordsMut + ?Sized>(&self, algorithm: &A, state: &mut S, _: Micros) {
        algorithm.reset(state);
    }

    fn refuse<A: Algorithm>(&self, _: &A, _: Micros, _: Wait) {}

    fn decision((): &()) -> Option<Decision> {
        None
    }
}

/// The decision of a policy, and what each of its rules had to say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a decision protects nothing until you act on it"]
pub struct Detailed {
    /// The decision: that of the binding rule.
    pub decision: Decision,
    /// Every rule's own, in order. Of a refused request, the rules that would have let it pass are shown as they were found.
    pub rules: Vec<Decision>,
}

impl Verb for CheckEach {
    type Answer = Detailed;

    fn apply<A: Algorithm, S: WordsMut + ?Sized>(
        &self,
        algorithm: &A,
        state: &mut S,
        now: Micros,
    ) -> Detailed {
        let decision = algorithm.decide(state, now, self.0);
        let asked = if decision.is_allowed() { 0 } else { self.0 };
        let mut rules = Vec::with_capacity(algorithm.rules().into());
        algorithm.explain(state, now, asked, RuleId(0), &mut |rule| rules.push(rule));
        Detailed { decision, rules }
    }

    fn refuse<A: Algorithm>(&self, algorithm: &A, now: Micros, room_after: Wait) -> Detailed {
        Detailed { decision: closed(algorithm, now, room_after), rules: Vec::new() }
    }

    fn decision(answer: &Detailed) -> Option<Decision> {
        Some(answer.decision)
    }
}
