//! # The other verbs: peek, refund, reset, check each
//!
//! Leased tokens are in two places, in this process and in Redis. Each verb first uses the local tokens, and asks Redis
//! for the rest:
//!
//! | verb | here | in Redis |
//! |---|---|---|
//! | peek | whether a grant has enough | parts without a grant, or with too few tokens in it |
//! | refund | puts tokens back into their grant | tokens that Redis already counts as spent |
//! | reset | returns the grants of the key, and forgets its account | then resets the key |
//!
//! Grants of other nodes are not affected.

use tidegate::{Admission, Clock, InvalidRequest, Micros, Part};
use tidegate_core::{Decision, Outcome, Wait};
use tokio::time::Instant;

use super::account::Account;
use super::{Held, Leased};
use crate::error::Error;
use crate::gate::left;
use crate::wire::Verb;

impl Leased {
    /// As [`check`](Leased::check), with the decision of each part in [`Admission::rules`].
    ///
    /// If the request is refused, parts that would have allowed it are reported as if nothing had been charged. The
    /// list is empty if the decisions are unknown, as for [`RedisGate::check_each`](crate::RedisGate::check_each).
    ///
    /// # Errors
    ///
    /// As [`check`](Leased::check).
    pub async fn check_each(&self, request: &[Part<'_>]) -> Result<Admission, InvalidRequest> {
        let shared = &self.strict().shared;
        shared.validate(request)?;
        let until = shared.until();
        let mut held = Held { leased: self, parts: Vec::new(), now: self.refill.clock.now() };
        let mut said = Vec::with_capacity(request.len());
        for part in request {
            let decision = self.spend(part, until).await;
            if decision.is_some_and(|decision| decision.is_allowed()) {
                held.parts.push(*part);
            }
            said.push(decision);
        }
        let strict: Vec<Part<'_>> =
            request.iter().zip(&said).filter(|(_, said)| said.is_none()).map(|(part, _)| *part).collect();
        let leased = said.iter().copied().flatten().reduce(Decision::and);
        let Some(leased) = leased else { return Ok(shared.check_each(request, until).await) };
        if !leased.is_allowed() {
            self.count(&leased);
            let others = self.seen_each(&strict, until).await;
            return Ok(told(leased, request, &said, others.as_deref()));
        }
        if strict.is_empty() {
            held.keep();
            self.count(&leased);
            return Ok(Admission {
                rules: said.into_iter().flatten().collect(),
                ..Admission::without_permits(leased)
            });
        }
        let admission = shared.check_each(&strict, until).await;
        let others = (!admission.rules.is_empty()).then_some(&admission.rules[..]);
        if !admission.is_allowed() {
            return Ok(told(admission.decision, request, &said, others));
        }
        held.keep();
        self.count(&leased);
        let rules = others.map_or_else(Vec::new, |others| merged(&said, others));
        Ok(Admission { decision: leased.and(admission.decision), permits: admission.permits, rules })
    }

    /// Returns what Redis would decide for each part, without charging; `None` without a reply.
    async fn seen_each(&self, parts: &[Part<'_>], until: Instant) -> Option<Vec<Decision>> {
        if parts.is_empty() {
            return Some(Vec::new());
        }
        let shared = &self.strict().shared;
        let reply = shared.ask(Verb::Peek, &shared.queues(parts), None, left(until)).await.ok()?;
        Some(reply.decisions.iter().zip(parts).map(|(said, part)| said.of_rule(part.rule)).collect())
    }

    /// Decides as [`check`](Leased::check) would, but charges nothing.
    ///
    /// # Errors
    ///
    /// As [`check`](Leased::check); the inner error says why Redis did not decide.
    pub async fn peek(&self, request: &[Part<'_>]) -> Result<Result<Decision, Error>, InvalidRequest> {
        self.strict().shared.validate(request)?;
        let (mut strict, mut strictest) = (Vec::new(), None::<Decision>);
        for part in request {
            match self.look(part) {
                Some(seen) => strictest = Some(strictest.map_or(seen, |other| other.and(seen))),
                None => strict.push(*part),
            }
        }
        Ok(match (strictest, strict.is_empty()) {
            (Some(leased), true) => Ok(leased),
            (Some(leased), false) => self.strict().peek(&strict).await?.map(|seen| leased.and(seen)),
            (None, _) => self.strict().peek(request).await?,
        })
    }

    /// Returns what would be left of this node's grants; `None` if they do not suffice.
    fn look(&self, part: &Part<'_>) -> Option<Decision> {
        let now = self.refill.clock.now();
        let (left, whole_in) =
            self.of(part, |account| (account.look(part.cost, now), account.whole_in(now)))?;
        let left = left.filter(|_| part.cost > 0)?;
        Some(self.decision(part, Outcome::Allowed, now, left, Wait::micros(whole_in)))
    }

    /// Refunds what a recent charge took from each part, never above the limit.
    ///
    /// Permits of concurrency rules are returned by dropping them.
    ///
    /// # Errors
    ///
    /// As [`check`](Leased::check); the inner error says why Redis did not do it.
    pub async fn refund(&self, request: &[Part<'_>]) -> Result<Result<(), Error>, InvalidRequest> {
        self.strict().shared.validate(request)?;
        let now = self.refill.clock.now();
        let rest = request.iter().map(|part| part.cost(self.put_back(part, now)));
        let rest: Vec<Part<'_>> = rest.filter(|part| part.cost > 0).collect();
        if rest.is_empty() { Ok(Ok(())) } else { self.strict().refund(&rest).await }
    }

    /// Puts tokens back into the grants of this node, and returns how many do not fit.
    fn put_back(&self, part: &Part<'_>, now: Micros) -> u32 {
        let rest = self.of(part, |account| {
            let rest = account.put_back(part.cost, now);
            account.ask_again();
            rest
        });
        rest.unwrap_or(part.cost)
    }

    /// Clears the recorded usage of each part's key under its rule, and every permit held on it.
    ///
    /// The grants of this node are returned first. Other nodes may still spend their grants.
    ///
    /// # Errors
    ///
    /// As [`refund`](Leased::refund).
    pub async fn reset(&self, request: &[Part<'_>]) -> Result<Result<(), Error>, InvalidRequest> {
        self.strict().shared.validate(request)?;
        for part in request {
            let swept = self.refill.accounts.close_one(self.name(part), self.refill.clock.now());
            self.refill.give_back(swept).await;
        }
        self.strict().reset(request).await
    }

    fn of<T>(&self, part: &Part<'_>, act: impl FnOnce(&mut Account) -> T) -> Option<T> {
        self.refill.accounts.with_open(self.name(part), act)
    }
}

/// Builds a refusal with the decision of each part.
///
/// Parts that allowed the request are reported as if nothing had been charged.
fn told(
    decision: Decision,
    request: &[Part<'_>],
    said: &[Option<Decision>],
    others: Option<&[Decision]>,
) -> Admission {
    let found = |(said, part): (&Option<Decision>, &Part<'_>)| said.map(|said| as_found(said, part.cost));
    let said: Vec<Option<Decision>> = said.iter().zip(request).map(found).collect();
    let rules = others.map_or_else(Vec::new, |others| merged(&said, others));
    Admission { rules, ..Admission::without_permits(decision) }
}

/// Returns the decision as if nothing had been spent.
fn as_found(said: Decision, cost: u32) -> Decision {
    if !said.is_allowed() {
        return said;
    }
    let remaining = said.remaining().saturating_add(cost.into());
    let mut found = Decision::counted(said.outcome, said.at(), said.limit(), remaining, said.reset_after());
    found.source = said.source;
    found.of_rule(said.rule)
}

/// Fills the gaps in the local decisions with the decisions of Redis.
fn merged(said: &[Option<Decision>], others: &[Decision]) -> Vec<Decision> {
    let mut others = others.iter().copied();
    said.iter().filter_map(|said| said.or_else(|| others.next())).collect()
}
