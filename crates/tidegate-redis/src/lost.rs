//! # When Redis does not answer
//!
//! A limit that cannot be asked is still a limit somebody chose, and only they know what is worse: to let too many pass, or to
//! let nobody pass. So each rule says what is to be done, and every decision that was made without Redis says so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::local::EmptyAt;
use tidegate::{Admission, Clock, Part, Policy, PolicyBuilder, SteadyClock};
use tidegate_core::{Decision, Outcome, Rule, RuleId, Source, Wait};

/// What becomes of a request while Redis does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenLost {
    /// It passes, uncounted.
    Open,
    /// It is refused.
    Closed,
    /// It passes if this node's share of the limit allows it: the limit divided by the number of nodes, used up at the
    /// instant the connection was lost. All nodes together let pass what comes in from then on, and no burst. What was let
    /// pass is not charged when Redis is there again. A rule that counts who is at work has no share, and refuses.
    #[default]
    Local,
}

/// What one rule does on its own.
#[derive(Clone, Debug)]
pub(crate) struct Alone {
    pub(crate) when_lost: WhenLost,
    pub(crate) limit: u64,
    pub(crate) share: Share,
}

/// A node's share of a rule.
#[derive(Clone, Debug)]
pub(crate) enum Share {
    Rate(Box<Rule>),
    /// Too little to be shared, or no rate: who is at work only Redis knows.
    Nothing,
}

/// Decides without Redis.
#[derive(Debug)]
pub(crate) struct Lost {
    rules: Box<[Alone]>,
    clock: SteadyClock,
    /// Since the first failure, until the next success.
    spell: RwLock<Option<Arc<Spell>>>,
    is_spell: AtomicBool,
}

/// The shares from one loss of the connection until it is there again.
#[derive(Debug)]
struct Spell {
    /// `None` where no rule has a share.
    policy: Option<Policy<EmptyAt>>,
    /// The number in that policy of each rule that has one.
    numbers: Box<[Option<RuleId>]>,
}

/// How soon to ask again a rule that is closed.
const ASK_AGAIN: Wait = Wait::micros(1_000_000);

impl Lost {
    pub(crate) fn new(rules: Box<[Alone]>, clock: SteadyClock) -> Self {
        Lost { rules, clock, spell: RwLock::new(None), is_spell: AtomicBool::new(false) }
    }

    /// Redis has answered: the next loss is another one.
    #[inline]
    pub(crate) fn is_over(&self) {
        if self.is_spell.load(Ordering::Relaxed) {
            self.end();
        }
    }

    #[cold]
    fn end(&self) {
        let mut spell = self.spell.write().unwrap_or_else(PoisonError::into_inner);
        self.is_spell.store(false, Ordering::Relaxed);
        *spell = None;
    }

    fn spell(&self) -> Arc<Spell> {
        if let Some(spell) = &*self.spell.read().unwrap_or_else(PoisonError::into_inner) {
            return spell.clone();
        }
        let mut spell = self.spell.write().unwrap_or_else(PoisonError::into_inner);
        self.is_spell.store(true, Ordering::Relaxed);
        spell.get_or_insert_with(|| Arc::new(Spell::begin(&self.rules, self.clock))).clone()
    }

    /// Decides on a valid request by what its rules say.
    pub(crate) fn check(&self, request: &[Part<'_>]) -> Admission {
        let closed = request.iter().filter_map(|part| self.closed(part));
        if let Some(refusal) = closed.reduce(Decision::and) {
            return Admission::bare(refusal);
        }
        let open = request.iter().filter_map(|part| self.open(part)).reduce(Decision::and);
        match (open, self.local(request)) {
            (Some(open), Some(local)) => Admission { decision: open.and(local.decision), ..local },
            (Some(open), None) => Admission::bare(open),
            (None, Some(local)) => local,
            (None, None) => unreachable!("a request has a part, and each is open, closed or local"),
        }
    }

    fn alone(&self, part: &Part<'_>) -> &Alone {
        &self.rules[usize::from(part.rule.0)]
    }

    fn closed(&self, part: &Part<'_>) -> Option<Decision> {
        let alone = self.alone(part);
        let nothing = matches!(alone.share, Share::Nothing) && alone.when_lost == WhenLost::Local;
        let closed = alone.when_lost == WhenLost::Closed || nothing;
        closed.then(|| Decision::closed(self.clock.now(), ASK_AGAIN, alone.limit).of_rule(part.rule))
    }

    fn open(&self, part: &Part<'_>) -> Option<Decision> {
        let alone = self.alone(part);
        (alone.when_lost == WhenLost::Open).then(|| {
            let at = self.clock.now();
            let allowed = Decision::counted(Outcome::Allowed, at, alone.limit, alone.limit, Wait::micros(0));
            labelled(allowed.of_rule(part.rule), Source::Open)
        })
    }

    fn local(&self, request: &[Part<'_>]) -> Option<Admission> {
        if request.iter().all(|part| self.alone(part).when_lost != WhenLost::Local) {
            return None;
        }
        let spell = self.spell();
        let policy = spell.policy.as_ref()?;
        let parts: Vec<Part<'_>> = request.iter().filter_map(|part| spell.part(part)).collect();
        let admission = policy.check(&parts).expect("what was valid of all rules is valid of some");
        let rule = spell.rule(admission.decision.rule);
        let decision = labelled(admission.decision.of_rule(rule), Source::Local);
        Some(Admission { decision, ..admission })
    }
}

fn labelled(mut decision: Decision, source: Source) -> Decision {
    decision.source = source;
    decision
}

impl Spell {
    fn begin(rules: &[Alone], clock: SteadyClock) -> Self {
        let lost = clock.now();
        let mut builder = PolicyBuilder::<EmptyAt>::new();
        let mut numbers = Vec::with_capacity(rules.len());
        let mut next = 0;
        for (index, alone) in rules.iter().enumerate() {
            let name = index.to_string();
            let local = alone.when_lost == WhenLost::Local;
            builder = match &alone.share {
                Share::Rate(rule) if local => builder.rule(name, EmptyAt::new(**rule, lost)),
                _ => {
                    numbers.push(None);
                    continue;
                }
            };
            numbers.push(Some(RuleId(next)));
            next += 1;
        }
        Spell { policy: builder.build().ok(), numbers: numbers.into() }
    }

    /// The part as the policy knows it, if its rule has a share.
    fn part<'a>(&self, part: &Part<'a>) -> Option<Part<'a>> {
        let number = self.numbers[usize::from(part.rule.0)]?;
        Some(Part::of(number).key(part.key).cost(part.cost))
    }

    /// The gate's number of a rule of the policy.
    fn rule(&self, number: RuleId) -> RuleId {
        let index = self.numbers.iter().position(|other| *other == Some(number)).unwrap_or(0);
        RuleId(u16::try_from(index).unwrap_or(u16::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(when_lost: WhenLost) -> Alone {
        let rule: Rule = "10/s burst 3".parse().expect("a rule");
        Alone { when_lost, limit: 3, share: Share::Rate(Box::new(rule)) }
    }

    fn lost(rules: impl IntoIterator<Item = Alone>) -> Lost {
        Lost::new(rules.into_iter().collect(), SteadyClock::new())
    }

    fn part(rule: u16) -> Part<'static> {
        Part::of(RuleId(rule)).key("alice")
    }

    #[test]
    fn each_rule_does_as_it_says_and_the_decision_tells() {
        let lost = lost([rate(WhenLost::Open), rate(WhenLost::Closed), rate(WhenLost::Local)]);
        let told = |request: &[Part<'_>]| {
            let decision = lost.check(request).decision;
            (decision.is_allowed(), decision.source, decision.rule.0)
        };
        assert_eq!(told(&[part(0)]), (true, Source::Open, 0));
        assert_eq!(told(&[part(1)]), (false, Source::Closed, 1));
        assert_eq!(told(&[part(2)]), (false, Source::Local, 2), "it starts empty");
        assert_eq!(told(&[part(0), part(1)]), (false, Source::Closed, 1));
        assert_eq!(told(&[part(0), part(2)]), (false, Source::Local, 2));
        assert_eq!(lost.check(&[part(1)]).decision.outcome, Outcome::RetryAfter(ASK_AGAIN));
    }

    #[test]
    fn who_has_no_share_is_refused() {
        let nothing = Alone { when_lost: WhenLost::Local, limit: 1, share: Share::Nothing };
        let decision = lost([nothing]).check(&[part(0)]).decision;
        assert_eq!((decision.is_allowed(), decision.source), (false, Source::Closed));
    }
}
