//! # Decisions without Redis
//!
//! Only the operator knows which is worse in an outage: to admit too many requests, or none. So each rule has a setting
//! for it, and every decision made without Redis is labelled.
//!
//! Redis may be back in a moment, whatever a local share says about its next token. So the waits in such decisions are
//! capped, and jittered so that clients do not all come back at the same time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::local::EmptyAt;
use tidegate::builder::PolicyBuilder;
use tidegate::clock::Clock;
use tidegate::gate::Part;
use tidegate::{Admission, Policy, SteadyClock};
use tidegate_core::{Decision, Outcome, Rule, RuleId, Source, Wait};

/// What a rule does with requests while Redis is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnOutage {
    /// The request passes, uncounted.
    Open,
    /// The request is refused.
    Closed,
    /// The request passes if this node's share of the limit allows it.
    ///
    /// The share is limit ÷ nodes per period, and starts empty at the beginning of the outage. All nodes together admit
    /// what refills from then on at the rate of the limit. Requests admitted this way are not charged when Redis is
    /// back. A share of less than one is closed; a concurrency rule has no share and refuses.
    #[default]
    Local,
}

/// What one rule does during an outage.
#[derive(Clone, Debug)]
pub(crate) struct OutageRule {
    pub(crate) on_outage: OnOutage,
    pub(crate) limit: u64,
    pub(crate) share: Share,
}

/// This node's share of a rule.
#[derive(Clone, Debug)]
pub(crate) enum Share {
    Rate(Box<Rule>),
    /// No share: the limit is too small to be divided, or it is a concurrency rule.
    ///
    /// Only Redis knows which permits are held.
    None,
}

/// Decides requests without Redis.
#[derive(Debug)]
pub(crate) struct Outage {
    rules: Box<[OutageRule]>,
    clock: SteadyClock,
    /// Present from the first failure until the next success.
    shares: RwLock<Option<Arc<OutageShares>>>,
    has_shares: AtomicBool,
    /// The longest wait reported to clients, without jitter, in microseconds.
    max_wait: u64,
    /// The source of the jitter.
    jitter: AtomicU64,
}

/// The shares of one outage.
#[derive(Debug)]
struct OutageShares {
    /// `None` if no rule has a share.
    policy: Option<Policy<EmptyAt>>,
    /// The id in that policy of each rule that has a share.
    policy_ids: Box<[Option<RuleId>]>,
}

impl Outage {
    pub(crate) fn new(rules: Box<[OutageRule]>, clock: SteadyClock, max_wait: Duration) -> Self {
        Outage {
            rules,
            clock,
            shares: RwLock::new(None),
            has_shares: AtomicBool::new(false),
            max_wait: u64::try_from(max_wait.as_micros()).unwrap_or(u64::MAX),
            jitter: AtomicU64::new(clock.now().get()),
        }
    }

    /// Ends the outage, if there is one, because Redis has replied. The next failure starts a new one.
    #[inline]
    pub(crate) fn redis_replied(&self) {
        if self.has_shares.load(Ordering::Relaxed) {
            self.end();
        }
    }

    #[cold]
    fn end(&self) {
        let mut shares = self.shares.write().unwrap_or_else(PoisonError::into_inner);
        self.has_shares.store(false, Ordering::Relaxed);
        *shares = None;
    }

    fn current_shares(&self) -> Arc<OutageShares> {
        if let Some(shares) = &*self.shares.read().unwrap_or_else(PoisonError::into_inner) {
            return shares.clone();
        }
        let mut shares = self.shares.write().unwrap_or_else(PoisonError::into_inner);
        self.has_shares.store(true, Ordering::Relaxed);
        shares.get_or_insert_with(|| Arc::new(OutageShares::new(&self.rules, self.clock))).clone()
    }

    /// Decides a valid request by the `on_outage` settings of its rules.
    pub(crate) fn check(&self, request: &[Part<'_>]) -> Admission {
        let closed = request.iter().filter_map(|part| self.closed(part));
        if let Some(refusal) = closed.reduce(Decision::and) {
            return Admission::without_permits(refusal);
        }
        let open = request.iter().filter_map(|part| self.open(part)).reduce(Decision::and);
        match (open, self.local(request)) {
            (Some(open), Some(local)) => Admission { decision: open.and(local.decision), ..local },
            (Some(open), None) => Admission::without_permits(open),
            (None, Some(local)) => local,
            (None, None) => unreachable!("a request has a part, and each is open, closed or local"),
        }
    }

    fn rule(&self, part: &Part<'_>) -> &OutageRule {
        &self.rules[usize::from(part.rule.0)]
    }

    fn closed(&self, part: &Part<'_>) -> Option<Decision> {
        let rule = self.rule(part);
        let has_no_share = matches!(rule.share, Share::None) && rule.on_outage == OnOutage::Local;
        let closed = rule.on_outage == OnOutage::Closed || has_no_share;
        let wait = || self.capped(Wait::micros(u64::MAX));
        closed.then(|| Decision::closed(self.clock.now(), wait(), rule.limit).of_rule(part.rule))
    }

    fn open(&self, part: &Part<'_>) -> Option<Decision> {
        let rule = self.rule(part);
        (rule.on_outage == OnOutage::Open).then(|| {
            let at = self.clock.now();
            let allowed = Decision::counted(Outcome::Allowed, at, rule.limit, rule.limit, Wait::micros(0));
            with_source(allowed.of_rule(part.rule), Source::Open)
        })
    }

    fn local(&self, request: &[Part<'_>]) -> Option<Admission> {
        if request.iter().all(|part| self.rule(part).on_outage != OnOutage::Local) {
            return None;
        }
        let shares = self.current_shares();
        let policy = shares.policy.as_ref()?;
        let parts: Vec<Part<'_>> = request.iter().filter_map(|part| shares.policy_part(part)).collect();
        let decision = policy.request().parts(&parts).check().expect("a subset of a valid request is valid");
        let decision = self.with_capped_waits(decision.of_rule(shares.gate_rule(decision.rule)), request);
        Some(Admission::without_permits(with_source(decision, Source::Local)))
    }

    /// Caps the waits in a decision of a share, so that clients come back soon after the outage.
    ///
    /// A cost that exceeds only the share, but not the limit, gets a retry instead of `Never`.
    fn with_capped_waits(&self, decision: Decision, request: &[Part<'_>]) -> Decision {
        let limit = self.rules[usize::from(decision.rule.0)].limit;
        let fits = |part: &Part<'_>| part.rule == decision.rule && u64::from(part.cost) <= limit;
        let outcome = match decision.outcome {
            Outcome::RetryAfter(wait) => Outcome::RetryAfter(self.capped(wait)),
            Outcome::Never if request.iter().any(fits) => {
                Outcome::RetryAfter(self.capped(Wait::micros(u64::MAX)))
            }
            outcome => outcome,
        };
        let reset = self.capped(decision.reset_after());
        let (at, limit, remaining) = (decision.at(), decision.limit(), decision.remaining());
        Decision::counted(outcome, at, limit, remaining, reset).of_rule(decision.rule)
    }

    /// Returns the wait; if it exceeds the maximum, the maximum plus up to a quarter of it.
    fn capped(&self, wait: Wait) -> Wait {
        if wait.as_micros() <= self.max_wait {
            return wait;
        }
        let random = self.jitter.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed) >> 32;
        let jitter = (u128::from(self.max_wait / 4) * u128::from(random)) >> 32;
        Wait::micros(self.max_wait.saturating_add(u64::try_from(jitter).unwrap_or(0)))
    }
}

fn with_source(mut decision: Decision, source: Source) -> Decision {
    decision.source = source;
    decision
}

impl OutageShares {
    fn new(rules: &[OutageRule], clock: SteadyClock) -> Self {
        let outage = clock.now();
        let mut builder = PolicyBuilder::<EmptyAt>::new();
        let mut policy_ids = Vec::with_capacity(rules.len());
        let mut next = 0;
        for (index, rule) in rules.iter().enumerate() {
            let name = index.to_string();
            let is_local = rule.on_outage == OnOutage::Local;
            builder = match &rule.share {
                Share::Rate(share) if is_local => builder.rule(name, EmptyAt::new(**share, outage)),
                _ => {
                    policy_ids.push(None);
                    continue;
                }
            };
            policy_ids.push(Some(RuleId(next)));
            next += 1;
        }
        OutageShares { policy: builder.build().ok(), policy_ids: policy_ids.into() }
    }

    /// Returns the part with the rule id of the policy, if its rule has a share.
    fn policy_part<'a>(&self, part: &Part<'a>) -> Option<Part<'a>> {
        let id = self.policy_ids[usize::from(part.rule.0)]?;
        Some(Part::of(id).key(part.key).cost(part.cost))
    }

    /// Returns the rule of the gate that has this id in the policy.
    fn gate_rule(&self, id: RuleId) -> RuleId {
        let index = self.policy_ids.iter().position(|other| *other == Some(id)).unwrap_or(0);
        RuleId(u16::try_from(index).unwrap_or(u16::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_WAIT: Duration = Duration::from_secs(1);

    fn rate(on_outage: OnOutage) -> OutageRule {
        let rule: Rule = "10/s burst 3".parse().expect("a rule");
        OutageRule { on_outage, limit: 3, share: Share::Rate(Box::new(rule)) }
    }

    fn outage(rules: impl IntoIterator<Item = OutageRule>) -> Outage {
        Outage::new(rules.into_iter().collect(), SteadyClock::new(), MAX_WAIT)
    }

    fn part(rule: u16) -> Part<'static> {
        Part::of(RuleId(rule)).key("alice")
    }

    #[test]
    fn each_rule_follows_its_on_outage_and_the_decision_names_its_source() {
        let outage = outage([rate(OnOutage::Open), rate(OnOutage::Closed), rate(OnOutage::Local)]);
        let decide = |request: &[Part<'_>]| {
            let decision = outage.check(request).decision;
            (decision.is_allowed(), decision.source, decision.rule.0)
        };
        assert_eq!(decide(&[part(0)]), (true, Source::Open, 0));
        assert_eq!(decide(&[part(1)]), (false, Source::Closed, 1));
        assert_eq!(decide(&[part(2)]), (false, Source::Local, 2), "a local share starts empty");
        assert_eq!(decide(&[part(0), part(1)]), (false, Source::Closed, 1));
        assert_eq!(decide(&[part(0), part(2)]), (false, Source::Local, 2));
        assert_capped(outage.check(&[part(1)]).decision.retry_after());
    }

    fn assert_capped(wait: Option<Wait>) {
        let wait = wait.expect("a wait").duration();
        assert!(wait >= MAX_WAIT && wait < MAX_WAIT * 5 / 4, "{wait:?}");
    }

    #[test]
    fn waits_are_capped_and_jittered() {
        let rule: Rule = "fixed_window 10000/day".parse().expect("a rule");
        let share = Share::Rate(Box::new(rule.share(2).expect("a share")));
        let outage = outage([OutageRule { on_outage: OnOutage::Local, limit: 10_000, share }]);
        let decisions: Vec<Decision> = (0..50).map(|_| outage.check(&[part(0)]).decision).collect();
        for decision in &decisions {
            assert_eq!((decision.is_allowed(), decision.source), (false, Source::Local));
            assert_capped(decision.retry_after());
            assert_capped(Some(decision.reset_after()));
        }
        let first = decisions[0].retry_after();
        assert!(decisions.iter().any(|decision| decision.retry_after() != first), "all the same");
    }

    #[test]
    fn a_cost_beyond_the_share_may_retry_and_one_beyond_the_limit_never_passes() {
        let outage = outage([OutageRule { limit: 10, ..rate(OnOutage::Local) }]);
        let outcome = |cost: u32| outage.check(&[part(0).cost(cost)]).decision.outcome;
        assert!(matches!(outcome(4), Outcome::RetryAfter(_)));
        assert_eq!(outcome(11), Outcome::Never);
    }

    #[test]
    fn a_rule_without_a_share_is_closed() {
        let nothing = OutageRule { on_outage: OnOutage::Local, limit: 1, share: Share::None };
        let decision = outage([nothing]).check(&[part(0)]).decision;
        assert_eq!((decision.is_allowed(), decision.source), (false, Source::Closed));
    }
}
