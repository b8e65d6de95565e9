//! # Answers from memory
//!
//! Ready at once. All that is enforced is one request to one [`Policy`]; each rule that only watches is another.

use tidegate::clock::Clock;
use tidegate::gate::Part;
use tidegate::{Decision, InvalidRequest, Policy, Rule as Rate};

use super::in_force::InForce;
use super::places::Room;
use super::question::{Found, Question, merge, within_bounds};
use super::verdict::{Acquired, Decided, Explanation, Fault, Verdict};
use crate::rules::{Hit, Matched};

pub(super) type Memory<C> = Policy<Rate, C>;

impl<C: Clock + Send + Sync + 'static> Question<'_, C> {
    pub(super) fn check_now(&self, policy: &Memory<C>) -> Result<Decided, Fault> {
        self.no_places()?;
        let verdict =
            self.verdict(self.matched().parts(), |parts| Ok(policy.check_parts(parts)?.decision))?;
        let would_refuse = if verdict.is_allowed() { self.watch(policy, self.watching()) } else { None };
        let decided = Decided { verdict, would_refuse };
        self.force.count(&decided, self.matched().parts());
        Ok(decided)
    }

    /// The same of one limit, where nothing else is to be looked at.
    #[inline]
    pub(super) fn check_one(&self, policy: &Memory<C>, part: Part<'_>) -> Result<Decided, Fault> {
        let decided = Decided::by(Verdict::Limited(policy.check_parts(&[part])?.decision));
        self.force.count(&decided, std::iter::once(part));
        Ok(decided)
    }

    pub(super) fn peek_now(&self, policy: &Memory<C>) -> Result<Decided, Fault> {
        self.free_overdue();
        let verdict =
            self.verdict(self.matched().parts(), |parts| Ok(policy.request().parts(parts).peek()?))?;
        let refuses = |hit: &&Hit| {
            let parts: Vec<Part<'_>> = self.matched().parts_of_hit(hit).collect();
            hit.refusal.is_some()
                || policy.request().parts(&parts).peek().is_ok_and(|decision| !decision.is_allowed())
        };
        let would_refuse = self.watching().find(refuses).map(|hit| hit.rule);
        Ok(Decided { verdict, would_refuse: would_refuse.filter(|_| verdict.is_allowed()) })
    }

    pub(super) fn change_now(
        &self,
        policy: &Memory<C>,
        change: impl Fn(&Memory<C>, &[Part<'_>]) -> Result<(), InvalidRequest>,
    ) -> Result<Decided, Fault> {
        self.together(self.rates()?, |parts| Ok(change(policy, parts)?))?;
        let left = self.matched().parts().filter(|part| !self.is_place(part)).map(|part| part.cost(0));
        Ok(Decided::by(self.verdict(left, |parts| Ok(policy.request().parts(parts).peek()?))?))
    }

    pub(super) fn acquire_now(&self, policy: &Memory<C>) -> Result<Acquired, Fault> {
        let mut may_be_more = self.free_overdue();
        loop {
            let acquired = self.room().and_then(|room| self.acquire_in(room, policy));
            let is_full = match &acquired {
                Ok(acquired) => !acquired.decided.verdict.is_allowed(),
                Err(fault) => matches!(fault, Fault::TooManyHeld { .. }),
            };
            if !(is_full && may_be_more) {
                return acquired
                    .inspect(|acquired| self.force.count(&acquired.decided, self.matched().parts()));
            }
            // Nobody is refused for want of a permit whose lease is over.
            while self.free_overdue() {}
            may_be_more = false;
        }
    }

    fn acquire_in(&self, room: Option<Room>, policy: &Memory<C>) -> Result<Acquired, Fault> {
        let mut permits = tidegate::Permits::none();
        let verdict = self.verdict(self.matched().parts(), |parts| {
            let admission = policy.check_parts(parts)?;
            permits = admission.permits;
            Ok(admission.decision)
        })?;
        if !verdict.is_allowed() {
            return Ok(Acquired { decided: Decided::by(verdict), place: None });
        }
        let mut would_refuse = None;
        for hit in self.watching() {
            let parts: Vec<Part<'_>> = self.matched().parts_of_hit(hit).collect();
            let admission = policy.check_parts(&parts).ok().filter(|_| hit.refusal.is_none());
            let passes = admission.as_ref().is_some_and(tidegate::Admission::is_allowed);
            self.force.saw(hit.rule, passes);
            would_refuse = would_refuse.or((!passes).then_some(hit.rule));
            permits = match admission {
                Some(admission) => permits.and(admission.permits),
                None => permits,
            };
        }
        let lease = self.lease().filter(|_| !permits.is_empty());
        let place = lease.zip(room).map(|(lease, room)| {
            (self.force.places.hold(permits, room, lease, self.force.clock.now()), lease)
        });
        Ok(Acquired { decided: Decided { verdict, would_refuse }, place })
    }

    pub(super) fn check_each_now(&self, policy: &Memory<C>) -> Result<Vec<Decided>, Fault> {
        self.no_places()?;
        if self.calls().iter().any(|found| self.settled_of(found).is_some_and(|it| !it.is_allowed())) {
            return self.calls().iter().map(|found| self.as_found(policy, found)).collect();
        }
        let mut parts: Vec<Part<'_>> = self.matched().parts().collect();
        merge(&mut parts);
        within_bounds(parts.len())?;
        if parts.is_empty() {
            return Ok(self.each(|found| self.told(policy, found, None, true)));
        }
        let admission = policy.check_each_parts(&parts)?;
        let passes = admission.is_allowed();
        Ok(self.each(|found| {
            let decision = strictest(self.parts_of(found), &parts, &admission.rules);
            self.told(policy, found, decision, passes)
        }))
    }

    /// A call beside one that was refused whatever the limits say: nothing is charged.
    fn as_found(&self, policy: &Memory<C>, found: &Found) -> Result<Decided, Fault> {
        if let Some(verdict) = self.settled_of(found) {
            return Ok(self.counted(Decided::by(verdict), found));
        }
        Ok(Decided::by(
            self.verdict(self.parts_of(found), |parts| Ok(policy.request().parts(parts).peek()?))?,
        ))
    }

    fn told(&self, policy: &Memory<C>, found: &Found, decision: Option<Decision>, passes: bool) -> Decided {
        let limited = decision.map_or(Verdict::Unlimited, Verdict::Limited);
        let verdict = self.settled_of(found).unwrap_or(limited);
        let watching = self.hits(found).iter().filter(|hit| hit.shadow && passes);
        self.counted(Decided { verdict, would_refuse: self.watch(policy, watching) }, found)
    }

    fn counted(&self, decided: Decided, found: &Found) -> Decided {
        self.force.count(&decided, self.parts_of(found));
        decided
    }

    /// The parts of one call that are enforced.
    pub(super) fn parts_of<'s>(&'s self, found: &Found) -> impl Iterator<Item = Part<'s>> + use<'s, C> {
        let matched = self.matched();
        let hits = matched.hits()[found.hits.clone()].iter();
        hits.filter(|hit| !hit.shadow && hit.refusal.is_none()).flat_map(move |hit| matched.parts_of_hit(hit))
    }

    fn verdict<'s>(
        &self,
        parts: impl Iterator<Item = Part<'s>>,
        put: impl FnOnce(&[Part<'s>]) -> Result<Decision, Fault>,
    ) -> Result<Verdict, Fault> {
        Ok(self.together(parts, put)?.map_or(Verdict::Unlimited, Verdict::Limited))
    }

    /// Lets rules that only watch count, each for itself, and tells the first that would have refused.
    fn watch<'s>(&self, policy: &Memory<C>, watching: impl Iterator<Item = &'s Hit>) -> Option<u32>
    where
        Self: 's,
    {
        let mut would_refuse = None;
        for hit in watching.filter(|hit| !self.has_places(hit)) {
            let parts: Vec<Part<'_>> = self.matched().parts_of_hit(hit).collect();
            let passes = hit.refusal.is_none()
                && policy.check_parts(&parts).is_ok_and(|admission| admission.is_allowed());
            self.force.saw(hit.rule, passes);
            would_refuse = would_refuse.or((!passes).then_some(hit.rule));
        }
        would_refuse
    }
}

/// The strictest of the decisions on these parts, among those on all.
pub(super) fn strictest<'a>(
    mut some: impl Iterator<Item = Part<'a>>,
    all: &[Part<'_>],
    decisions: &[Decision],
) -> Option<Decision> {
    let first = some.next()?;
    let decision = |part: Part<'_>| {
        let place = all.iter().position(|other| other.rule == part.rule && other.key == part.key);
        place.and_then(|place| decisions.get(place).copied())
    };
    some.filter_map(decision).chain(decision(first)).reduce(Decision::and)
}

pub(super) fn with_what_is_left<C: Clock + Send + Sync + 'static>(
    force: &InForce<C>,
    mut explanation: Explanation,
    matched: &Matched<'_>,
    policy: &Memory<C>,
) -> Explanation {
    for hit in matched.hits().iter().filter(|hit| hit.refusal.is_none()) {
        let left = matched
            .parts_of_hit(hit)
            .map(|part| (force.limit_name(part.rule), policy.request().parts(&[part.cost(0)]).peek().ok()));
        explanation.rules[hit.rule as usize].limits = left.collect();
    }
    explanation
}
