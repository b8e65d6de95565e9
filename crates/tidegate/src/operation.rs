//! # Operations on a state
//!
//! One primitive executes every operation: *apply this to the state of that key*. An operation defines what it does to
//! a state. The code that shares the state, between threads or in a table of a million states, need not know which
//! operation it is.

use tidegate_core::{Algorithm, Decision, Micros, Outcome, RuleId, Source, Taken, Words, WordsMut};

/// Something to do to a state, with an answer.
pub(crate) trait Operation {
    type Answer: OperationResult;
    /// Whether an observer is shown the answer. A query is not a decision, and is not shown.
    const OBSERVED: bool = true;

    fn apply<A: Algorithm, S: WordsMut + ?Sized>(
        &self,
        algorithm: &A,
        state: &mut S,
        now: Micros,
    ) -> Self::Answer;

    /// Returns the next word and the answer for a state of one word, if there is a fast path.
    #[inline(always)]
    fn fast_path<A: Algorithm>(&self, algorithm: &A, word: u64, now: Micros) -> Option<(u64, Self::Answer)> {
        let _ = (algorithm, word, now);
        None
    }

    /// Returns the answer at `now` while nothing may pass before `horizon`, the horizon.
    ///
    /// Returns `None` if the operation asks for no quota: then it is executed as of `horizon`.
    fn held_back<A: Algorithm, S: Words + ?Sized>(
        &self,
        algorithm: &A,
        state: &S,
        horizon: Micros,
        now: Micros,
    ) -> Option<Self::Answer> {
        let _ = (algorithm, state, horizon, now);
        None
    }

    /// Returns the cost that an observer is told: what was charged, or would have been.
    fn charged(&self, answer: &Self::Answer) -> u32 {
        let _ = answer;
        0
    }

    /// Returns what the operation did to a state, or `None` if it did nothing.
    ///
    /// It is replayed if an earlier reservation is cancelled.
    fn mutation(&self, answer: &Self::Answer) -> Option<Mutation> {
        let _ = answer;
        None
    }
}

/// A change of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    Charge(u32),
    Refund(u32),
    Reset,
}

/// The result of an operation.
pub(crate) trait OperationResult: Sized {
    /// Returns the answer when there is no room for a new state, with the decision `closed`.
    fn refused(closed: Decision) -> Self;

    /// Returns the decision in the answer, if there is one.
    fn decision(&self) -> Option<Decision>;

    /// Marks the answer as given from a state that several keys share.
    fn sketched(self) -> Self;

    /// Returns the same answer, taken apart and built again.
    ///
    /// This lets the compiler keep the answers of the fast path in registers. Without it they share their memory with
    /// the answers of the slow path, and reading them back costs more than the decision.
    #[inline(always)]
    fn rebuilt(self) -> Self {
        self
    }
}

/// The decision of a policy, and the decision of each of its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detailed {
    /// The decision of the binding rule.
    pub decision: Decision,
    /// The decision of every rule, in order.
    ///
    /// If the request is refused, the rules that would have allowed it are shown with the state in which they were
    /// found.
    pub rules: Vec<Decision>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Check(pub(crate) u32);
/// Like [`Check`], but charges only a request that may pass now.
///
/// A request that would have to wait is not charged.
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

    fn charged(&self, _: &Decision) -> u32 {
        self.0
    }

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
        horizon: Micros,
        now: Micros,
    ) -> Option<Decision> {
        Some(asked(algorithm, state, horizon, now, self.0))
    }

    fn mutation(&self, decision: &Decision) -> Option<Mutation> {
        decision.is_allowed().then_some(Mutation::Charge(self.0))
    }
}

/// Returns the decision at `now` on `cost` when nothing may pass before `horizon`.
fn asked<A: Algorithm, S: Words + ?Sized>(
    algorithm: &A,
    state: &S,
    horizon: Micros,
    now: Micros,
    cost: u32,
) -> Decision {
    let decision = algorithm.peek(state, horizon, cost).held_back(now);
    // A cost of 0 is always allowed; it queries the remaining quota.
    if cost == 0 { passed(decision) } else { decision }
}

/// Returns the decision as allowed.
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
        horizon: Micros,
        now: Micros,
    ) -> Option<Decision> {
        Some(asked(algorithm, state, horizon, now, self.0))
    }

    fn mutation(&self, decision: &Decision) -> Option<Mutation> {
        (decision.outcome == Outcome::Allowed).then_some(Mutation::Charge(self.0))
    }
}

impl Operation for CheckEach {
    type Answer = Detailed;

    fn charged(&self, _: &Detailed) -> u32 {
        self.0
    }

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
        horizon: Micros,
        now: Micros,
    ) -> Option<Detailed> {
        let decision = asked(algorithm, state, horizon, now, self.0);
        let mut rules = Vec::with_capacity(algorithm.rules().into());
        algorithm.explain(state, horizon, self.0, RuleId(0), &mut |rule| rules.push(rule.held_back(now)));
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
        horizon: Micros,
        now: Micros,
    ) -> Option<Decision> {
        Some(asked(algorithm, state, horizon, now, self.0))
    }
}

impl Operation for Force {
    type Answer = Decision;

    fn charged(&self, _: &Decision) -> u32 {
        self.0
    }

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

    fn charged(&self, taken: &Taken) -> u32 {
        taken.amount
    }

    fn apply<A: Algorithm, S: WordsMut + ?Sized>(&self, algorithm: &A, state: &mut S, now: Micros) -> Taken {
        algorithm.take(state, now, self.0)
    }

    fn held_back<A: Algorithm, S: Words + ?Sized>(
        &self,
        algorithm: &A,
        state: &S,
        horizon: Micros,
        now: Micros,
    ) -> Option<Taken> {
        Some(Taken { amount: 0, decision: asked(algorithm, state, horizon, now, 0) })
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

impl OperationResult for Decision {
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

impl OperationResult for Detailed {
    fn refused(decision: Decision) -> Self {
        Detailed { decision, rules: Vec::new() }
    }

    fn sketched(self) -> Self {
        let rules = self.rules.into_iter().map(OperationResult::sketched).collect();
        Detailed { decision: self.decision.sketched(), rules }
    }

    fn decision(&self) -> Option<Decision> {
        Some(self.decision)
    }
}

impl OperationResult for Taken {
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

impl OperationResult for () {
    fn refused(_: Decision) -> Self {}

    fn sketched(self) -> Self {}

    fn decision(&self) -> Option<Decision> {
        None
    }
}
