//! # What can be asked of a state
//!
//! One primitive carries every verb: *apply this to the state of that key*. A verb says what it does to a state; who
//! shares the state, between threads or among a million others, need not know which verb it is.

use tidegate_core::{Algorithm, Decision, Micros, Outcome, RuleId, Source, Taken, Words, WordsMut};

/// Something to do to a state, with an answer.
pub(crate) trait Operation {
    type Answer: Answer;
    /// Whether an observer is shown the answer. Asking is not deciding.
    const OBSERVED: bool = true;

    fn apply<A: Algorithm, S: WordsMut + ?Sized>(
        &self,
        algorithm: &A,
        state: &mut S,
        now: Micros,
    ) -> Self::Answer;

    /// The next value of a state of one word, and the answer, if there is a short cut to them.
    #[inline(always)]
    fn fast_path<A: Algorithm>(&self, algorithm: &A, word: u64, now: Micros) -> Option<(u64, Self::Answer)> {
        let _ = (algorithm, word, now);
        None
    }

    /// The answer at `now`, when others have reserved ahead up to `floor` and nothing may pass before. `None` if the
    /// verb is not asking for leave: then it is carried out as of `floor`.
    fn held_back<A: Algorithm, S: Words + ?Sized>(
        &self,
        algorithm: &A,
        state: &S,
        floor: Micros,
        now: Micros,
    ) -> Option<Self::Answer> {
        let _ = (algorithm, state, floor, now);
        None
    }

    /// What it did to a state, to be done once more if what came before it is taken back. `None` if it did nothing.
    fn mutation(&self, answer: &Self::Answer) -> Option<Mutation> {
        let _ = answer;
        None
    }
}

/// What can be done to a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    Charge(u32),
    Refund(u32),
    Reset,
}

/// What a verb answers with.
pub(crate) trait Answer: Sized {
    /// The answer when there is no room for a new state, and `closed` is all there is to say.
    fn refused(closed: Decision) -> Self;

    /// The decision in it, if there is one.
    fn decision(&self) -> Option<Decision>;

    /// The same answer, saying that it was given from a state that keys share.
    fn sketched(self) -> Self;

    /// The same answer, taken apart and put together again.
    ///
    /// This lets the compiler keep the answers of the short cut in registers: without it they share their memory with the
    /// answers of the long way, and reading them back costs more than the decision.
    #[inline(always)]
    fn rebuilt(self) -> Self {
        self
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

#[derive(Clone, Copy, Debug)]
pub(crate) struct Check(pub(crate) u32);
/// As [`Check`], but charges only what may pass now, not what has a turn later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass(pub(crate) u32);
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckEach(pub(crate) u32);
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

impl Operation for Check {
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
    fn fast_path<A: Algorithm>(&self, algorithm: &A, word: u64, now: Micros) -> Option<(u64, Decision)> {
        algorithm.decide_word(word, now, self.0)
    }

    fn held_back<A: Algorithm, S: Words + ?Sized>(
        &self,
        algorithm: &A,
        state: &S,
        floor: Micros,
        now: Micros,
    ) -> Option<Decision> {
        Some(asked(algorithm, state, floor, now, self.0))
    }

    fn mutation(&self, decision: &Decision) -> Option<Mutation> {
        decision.is_allowed().then_some(Mutation::Charge(self.0))
    }
}

/// What is said at `now` to somebody who asks for `cost`, when nothing may pass before `floor`.
fn asked<A: Algorithm, S: Words + ?Sized>(
    algorithm: &A,
    state: &S,
    floor: Micros,
    now: Micros,
    cost: u32,
) -> Decision {
    let decision = algorithm.peek(state, floor, cost).held_back(now);
    // Nothing is there for everybody: a cost of 0 asks what is left.
    if cost == 0 { passed(decision) } else { decision }
}

/// The decision on what may go ahead now.
pub(crate) fn passed(mut decision: Decision) -> Decision {
    decision.outcome = Outcome::Allowed;
    decision
}

impl Operation for Pass {
    type Answer = Decision;
    const OBSERVED: bool = false;

    #[inline]
    fn apply<A: Algorithm, S: WordsMut + ?Sized>(
        &self,
        algorithm: &A,
        state: &mut S,
        now: Micros,
    ) -> Decision {
        let found = algorithm.peek(state, now, self.0);
        if found.outcome == Outcome::Allowed { algorithm.force(state, now, self.0) } else { found }
    }

    #[inline(always)]
    fn fast_path<A: Algorithm>(&self, algorithm: &A, word: u64, now: Micros) -> Option<(u64, Decision)> {
        let (next, decision) = algorithm.decide_word(word, now, self.0)?;
        Some((if decision.outcome == Outcome::Allowed { next } else { word }, decision))
    }

    fn held_back<A: Algorithm, S: Words + ?Sized>(
        &self,
        algorithm: &A,
        state: &S,
        floor: Micros,
        now: Micros,
    ) -> Option<Decision> {
        Some(asked(algorithm, state, floor, now, self.0))
    }

    fn mutation(&self, decision: &Decision) -> Option<Mutation> {
        (decision.outcome == Outcome::Allowed).then_some(Mutation::Charge(self.0))
    }
}

impl Operation for CheckEach {
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

    fn held_back<A: Algorithm, S: Words + ?Sized>(
        &self,
        algorithm: &A,
        state: &S,
        floor: Micros,
        now: Micros,
    ) -> Option<Detailed> {
        let decision = asked(algorithm, state, floor, now, self.0);
        let mut rules = Vec::with_capacity(algorithm.rules().into());
        algorithm.explain(state, floor, self.0, RuleId(0), &mut |rule| rules.push(rule.held_back(now)));
        Some(Detailed { decision, rules })
    }

    fn mutation(&self, detailed: &Detailed) -> Option<Mutation> {
        detailed.decision.is_allowed().then_some(Mutation::Charge(self.0))
    }
}

impl Operation for Peek {
    type Answer = Decision;
    const OBSERVED: bool = false;

    #[inline]
    fn apply<A: Algorithm, S: WordsMut + ?Sized>(
        &self,
        algorithm: &A,
        state: &mut S,
        now: Micros,
    ) -> Decision {
        algorithm.peek(state, now, self.0)
    }

    fn held_back<A: Algorithm, S: Words + ?Sized>(
        &self,
        algorithm: &A,
        state: &S,
        floor: Micros,
        now: Micros,
    ) -> Option<Decision> {
        Some(asked(algorithm, state, floor, now, self.0))
    }
}

impl Operation for Force {
    type Answer = Decision;

    fn apply<A: Algorithm, S: WordsMut + ?Sized>(
        &self,
        algorithm: &A,
        state: &mut S,
        now: Micros,
    ) -> Decision {
        algorithm.force(state, now, self.0)
    }

    fn mutation(&self, _: &Decision) -> Option<Mutation> {
        Some(Mutation::Charge(self.0))
    }
}

impl Operation for Take {
    type Answer = Taken;

    fn apply<A: Algorithm, S: WordsMut + ?Sized>(&self, algorithm: &A, state: &mut S, now: Micros) -> Taken {
        algorithm.take(state, now, self.0)
    }

    fn held_back<A: Algorithm, S: Words + ?Sized>(
        &self,
        algorithm: &A,
        state: &S,
        floor: Micros,
        now: Micros,
    ) -> Option<Taken> {
        Some(Taken { amount: 0, decision: asked(algorithm, state, floor, now, 0) })
    }

    fn mutation(&self, taken: &Taken) -> Option<Mutation> {
        Some(Mutation::Charge(taken.amount))
    }
}

impl Operation for Refund {
    type Answer = ();

    fn apply<A: Algorithm, S: WordsMut + ?Sized>(&self, algorithm: &A, state: &mut S, now: Micros) {
        algorithm.refund(state, now, self.0);
    }

    fn mutation(&self, (): &()) -> Option<Mutation> {
        Some(Mutation::Refund(self.0))
    }
}

impl Operation for Reset {
    type Answer = ();

    fn apply<A: Algorithm, S: WordsMut + ?Sized>(&self, algorithm: &A, state: &mut S, _: Micros) {
        algorithm.reset(state);
    }

    fn mutation(&self, (): &()) -> Option<Mutation> {
        Some(Mutation::Reset)
    }
}

impl Answer for Decision {
    fn refused(closed: Decision) -> Self {
        closed
    }

    fn sketched(mut self) -> Self {
        self.source = Source::Sketch;
        self
    }

    fn decision(&self) -> Option<Decision> {
        Some(*self)
    }

    #[inline(always)]
    fn rebuilt(self) -> Self {
        Decision::rebuilt(self)
    }
}

impl Answer for Detailed {
    fn refused(decision: Decision) -> Self {
        Detailed { decision, rules: Vec::new() }
    }

    fn sketched(self) -> Self {
        let rules = self.rules.into_iter().map(Answer::sketched).collect();
        Detailed { decision: self.decision.sketched(), rules }
    }

    fn decision(&self) -> Option<Decision> {
        Some(self.decision)
    }
}

impl Answer for Taken {
    fn refused(decision: Decision) -> Self {
        Taken { amount: 0, decision }
    }

    fn sketched(self) -> Self {
        Taken { decision: self.decision.sketched(), ..self }
    }

    fn decision(&self) -> Option<Decision> {
        Some(self.decision)
    }
}

impl Answer for () {
    fn refused(_: Decision) -> Self {}

    fn sketched(self) -> Self {}

    fn decision(&self) -> Option<Decision> {
        None
    }
}
