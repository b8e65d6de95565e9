//! # The other operations: peek, refund, reset, check each
//!
//! Leased tokens are in two places, in this process and in Redis. Each operation first uses the local tokens, and then Redis:
//!
//! | operation | here | in Redis |
//! |---|---|---|
//! | peek | whether a grant has enough | parts without a grant, or with too few tokens in it |
//! | refund | puts tokens back into their grant | tokens that Redis already counts as spent |
//! | reset | returns the grants of the key, and forgets its account | then resets the key |
//!
//! Grants of other nodes are not affected.

use tidegate::clock::{Clock, Micros};
use tidegate::gate::Part;
use tidegate::{Admission, Decision, InvalidRequest, Outcome, Wait};
use tokio::time::Instant;

use super::account::Account;
use super::{Leased, SpentParts};
use crate::error::Error;
use crate::gate::{RedisGate, time_left};
use crate::request::Requests;
use crate::wire::Operation;

impl Leased {
    /// As [`check_parts`](Leased::check_parts), with the decision of each part in [`Admission::rules`].
    ///
    /// If the request is refused, parts that would have allowed it are reported as if nothing had been charged. The
    /// list is empty if the decisions are unknown, as for
    /// [`RedisGate::check_each_parts`](crate::RedisGate::check_each_parts).
    ///
    /// # Errors
    ///
    /// As [`check_parts`](Leased::check_parts).
    pub async fn check_each_parts(&self, request: &[Part<'_>]) -> Result<Admission, InvalidRequest> {
        self.strict().shared.validate(request)?;
        Ok(self.check_each_valid(request).await)
    }

    async fn check_each_slow(&self, request: &[Part<'_>]) -> Admission {
        let shared = &self.strict().shared;
        let deadline = shared.new_deadline();
        let mut spent = SpentParts { leased: self, parts: Vec::new(), now: self.refill.clock.now() };
        let mut decisions = Vec::with_capacity(request.len());
        for part in request {
            let decision = self.spend(part, deadline).await;
            if decision.is_some_and(|decision| decision.is_allowed()) {
                spent.parts.push(*part);
            }
            decisions.push(decision);
        }
        let strict: Vec<Part<'_>> = request
            .iter()
            .zip(&decisions)
            .filter(|(_, decision)| decision.is_none())
            .map(|(part, _)| *part)
            .collect();
        let leased = decisions.iter().copied().flatten().reduce(Decision::and);
        let Some(leased) = leased else { return shared.check_each(request, deadline).await };
        if !leased.is_allowed() {
            self.count(&leased);
            let others = self.peek_each(&strict, deadline).await;
            return refusal(leased, request, &decisions, others.as_deref());
        }
        if strict.is_empty() {
            spent.keep();
            self.count(&leased);
            return Admission {
                rules: decisions.into_iter().flatten().collect(),
                ..Admission::without_permits(leased)
            };
        }
        let admission = shared.check_each(&strict, deadline).await;
        let others = (!admission.rules.is_empty()).then_some(&admission.rules[..]);
        if !admission.is_allowed() {
            return refusal(admission.decision, request, &decisions, others);
        }
        spent.keep();
        self.count(&leased);
        let rules = others.map_or_else(Vec::new, |others| merged(&decisions, others));
        Admission { decision: leased.and(admission.decision), permits: admission.permits, rules }
    }

    /// Returns what Redis would decide for each part, without charging; `None` without a reply.
    async fn peek_each(&self, parts: &[Part<'_>], deadline: Instant) -> Option<Vec<Decision>> {
        if parts.is_empty() {
            return Some(Vec::new());
        }
        let shared = &self.strict().shared;
        let reply = shared
            .call_rules(Operation::Peek, &shared.rule_args(parts), None, time_left(deadline))
            .await
            .ok()?;
        Some(reply.decisions.iter().zip(parts).map(|(decision, part)| decision.of_rule(part.rule)).collect())
    }

    /// Returns what would be left of this node's grants; `None` if they do not suffice.
    fn peek_grants(&self, part: &Part<'_>) -> Option<Decision> {
        let now = self.refill.clock.now();
        let (left, full_in) =
            self.with_account(part, |account| (account.peek(part.cost, now), account.full_in(now)))?;
        let left = left.filter(|_| part.cost > 0)?;
        Some(self.decision(part, Outcome::Allowed, now, left, Wait::micros(full_in)))
    }

    /// Puts tokens back into the grants of this node, and returns how many do not fit.
    fn put_back(&self, part: &Part<'_>, now: Micros) -> u32 {
        let rest = self.with_account(part, |account| {
            let rest = account.put_back(part.cost, now);
            account.allow_retry();
            rest
        });
        rest.unwrap_or(part.cost)
    }

    fn with_account<T>(&self, part: &Part<'_>, f: impl FnOnce(&mut Account) -> T) -> Option<T> {
        self.refill.accounts.with_existing(self.account_id(part), f)
    }
}

impl Requests for Leased {
    fn gate(&self) -> &RedisGate {
        self.strict()
    }

    async fn check_valid(&self, parts: &[Part<'_>]) -> Admission {
        self.check_valid_by(parts, self.strict().shared.new_deadline()).await
    }

    async fn check_each_valid(&self, parts: &[Part<'_>]) -> Admission {
        self.check_each_slow(parts).await
    }

    async fn peek_valid(&self, parts: &[Part<'_>]) -> Result<Decision, Error> {
        let (mut strict, mut strictest) = (Vec::new(), None::<Decision>);
        for part in parts {
            match self.peek_grants(part) {
                Some(decision) => strictest = Some(strictest.map_or(decision, |other| other.and(decision))),
                None => strict.push(*part),
            }
        }
        match (strictest, strict.is_empty()) {
            (Some(leased), true) => Ok(leased),
            (Some(leased), false) => Ok(leased.and(self.strict().peek_valid(&strict).await?)),
            (None, _) => self.strict().peek_valid(parts).await,
        }
    }

    async fn refund_valid(&self, parts: &[Part<'_>]) -> Result<(), Error> {
        let now = self.refill.clock.now();
        let rest = parts.iter().map(|part| part.cost(self.put_back(part, now)));
        let rest: Vec<Part<'_>> = rest.filter(|part| part.cost > 0).collect();
        if rest.is_empty() { Ok(()) } else { self.strict().refund_valid(&rest).await }
    }

    /// The grants of this node are returned first. Other nodes may still spend their grants.
    async fn reset_valid(&self, parts: &[Part<'_>]) -> Result<(), Error> {
        for part in parts {
            let swept = self.refill.accounts.close_one(self.account_id(part), self.refill.clock.now());
            self.refill.return_swept(swept).await;
        }
        self.strict().reset_valid(parts).await
    }
}

/// Builds a refusal with the decision of each part.
///
/// Parts that allowed the request are reported as if nothing had been charged.
fn refusal(
    decision: Decision,
    request: &[Part<'_>],
    decisions: &[Option<Decision>],
    others: Option<&[Decision]>,
) -> Admission {
    let restored = |(decision, part): (&Option<Decision>, &Part<'_>)| {
        decision.map(|decision| before_charge(decision, part.cost))
    };
    let decisions: Vec<Option<Decision>> = decisions.iter().zip(request).map(restored).collect();
    let rules = others.map_or_else(Vec::new, |others| merged(&decisions, others));
    Admission { rules, ..Admission::without_permits(decision) }
}

/// Returns the decision as if nothing had been spent.
fn before_charge(decision: Decision, cost: u32) -> Decision {
    if !decision.is_allowed() {
        return decision;
    }
    let remaining = decision.remaining().saturating_add(cost.into());
    let mut restored = Decision::counted(
        decision.outcome,
        decision.at(),
        decision.limit(),
        remaining,
        decision.reset_after(),
    );
    restored.source = decision.source;
    restored.of_rule(decision.rule)
}

/// Fills the gaps in the local decisions with the decisions of Redis.
fn merged(decisions: &[Option<Decision>], others: &[Decision]) -> Vec<Decision> {
    let mut others = others.iter().copied();
    decisions.iter().filter_map(|decision| decision.or_else(|| others.next())).collect()
}
