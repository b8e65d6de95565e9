//! # Grants for clients
//!
//! A service in front of Redis passes grants to its own clients, which spend them in their programs. The service stores
//! nothing about them: the bucket in Redis records what is granted, and the client has the id for the return of the
//! rest, through any instance of the service.
//!
//! Redis stores no record of a grant from a window; returning it undoes a charge that still counts. Returning it twice
//! therefore refunds twice: the caller has to remember, by the [`Receipt`], what was returned already.

use std::time::Duration;

use tidegate::Decision;
use tidegate::clock::Micros;
use tidegate::gate::Part;

use super::refill::grant_from_reply;
use super::{CannotLease, Lease};
use crate::error::Error;
use crate::gate::RedisGate;
use crate::lease::LeaseTerms;
use crate::wire::{CostExtra, Operation, RuleArgs};

/// Tokens granted to a client, which spends them on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Granted {
    /// The number of tokens, which may be 0.
    pub amount: u32,
    /// If nothing was granted: how long to wait before the next request.
    pub wait: Duration,
    /// How long the tokens may be spent, counted from when the request was *sent*.
    ///
    /// Measure it with a clock that does not stop while the machine is suspended. It is already a little less than the
    /// lifetime in Redis, because clocks differ in pace.
    pub ttl: Duration,
    /// Identifies the grant for its return.
    pub receipt: Receipt,
    /// The state of the rule after the grant.
    pub decision: Decision,
}

/// Identifies a grant for its return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Receipt {
    /// For a bucket: the id of the grant. A second return has no effect.
    Bucket([u8; 16]),
    /// For a window: when it ends, on the clock of Redis. Must be returned at most once.
    Window(Micros),
}

impl RedisGate {
    /// Grants a client up to the cost of the part, to be spent without further requests.
    ///
    /// The rule must be a token bucket or a fixed window. `id` must be globally unique; a random id will do. It does
    /// not matter whether the rule is [leased](crate::Builder::lease) here.
    ///
    /// Without a reply, do not repeat the request with the same id: tokens that may have been granted expire.
    ///
    /// # Errors
    ///
    /// [`Error`] if the rule does not exist or [cannot be leased](Error::cannot_lease), or Redis did not decide.
    pub async fn grant(&self, part: Part<'_>, id: [u8; 16], lease: Lease) -> Result<Granted, Error> {
        let terms = self.lease_terms_for(&part, lease)?;
        let shared = &self.shared;
        let reply = if terms.is_window {
            let rule = self.rule_args(&part, CostExtra::None);
            shared.call_rules(Operation::Take, &[rule], None, shared.deadline).await
        } else {
            let rule =
                self.rule_args(&part, CostExtra::Lease { stock: terms.stock, ttl: terms.ttl, reserve: 0 });
            shared.call_rules(Operation::Lease, &[rule], Some(&id), shared.deadline).await
        };
        reply.map(|reply| {
            let grant = grant_from_reply(&reply, &terms, terms.ttl, id);
            let ttl = grant.ttl - grant.ttl / 64;
            Granted {
                amount: grant.amount,
                wait: Duration::from_micros(if grant.amount == 0 { grant.wait } else { 0 }),
                ttl: Duration::from_micros(if grant.amount == 0 { 0 } else { ttl }),
                receipt: if terms.is_window { Receipt::Window(grant.ends) } else { Receipt::Bucket(id) },
                decision: reply.decisions[0].of_rule(part.rule),
            }
        })
    }

    /// Takes back the unspent tokens of a grant, and returns the state of the rule after that.
    ///
    /// The cost of the part is the number of tokens. They must not be spent any more. Expired tokens are not
    /// refunded. A second return of a bucket's grant has no effect; a window's grant must be returned at most once.
    ///
    /// # Errors
    ///
    /// As [`grant`](RedisGate::grant).
    pub async fn return_grant(&self, part: Part<'_>, receipt: Receipt) -> Result<Decision, Error> {
        let terms = self.lease_terms_for(&part, Lease::new())?;
        let shared = &self.shared;
        let within = shared.deadline;
        let reply = match (receipt, terms.is_window) {
            (Receipt::Bucket(id), false) => {
                shared
                    .call_rules(
                        Operation::Return,
                        &[self.rule_args(&part, CostExtra::None)],
                        Some(&id),
                        within,
                    )
                    .await
            }
            (Receipt::Window(ends), true) => {
                shared
                    .call_rules(
                        Operation::Rollback,
                        &[self.rule_args(&part, CostExtra::ChargeEnds(ends))],
                        None,
                        within,
                    )
                    .await
            }
            _ => {
                let message =
                    "the receipt is for a rule of another kind; use the rule that the grant is from";
                return Err(CannotLease(message.into()).into());
            }
        };
        reply.map(|reply| reply.decisions[0].of_rule(part.rule))
    }

    fn lease_terms_for(&self, part: &Part<'_>, lease: Lease) -> Result<LeaseTerms, Error> {
        self.shared.validate(&[*part])?;
        let spec = self.shared.spec(part);
        lease.validate(&spec.name, spec.encoded.letter())?;
        Ok(lease.any_terms(spec.encoded.letter(), spec.encoded.limit(), self.shared.nodes))
    }

    fn rule_args(&self, part: &Part<'_>, extra: CostExtra) -> RuleArgs<'_> {
        let spec = self.shared.spec(part);
        let key = self.shared.keys.name(&spec.name, part.key.bytes());
        RuleArgs { key, cost: part.cost, extra, rule: &spec.encoded }
    }
}
