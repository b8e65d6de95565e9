//! # Grants for clients
//!
//! A service in front of Redis passes grants to its own clients, which spend them in their programs. The service stores
//! nothing about them: the bucket in Redis records what is granted, and the client has the id for the return of the
//! rest, through any instance of the service.
//!
//! Redis stores no record of a grant from a window; returning it undoes a charge that still counts. Returning it twice
//! therefore refunds twice: the caller has to remember, by the [`Receipt`], what was returned already.

use std::time::Duration;

use tidegate::{InvalidRequest, Micros, Part};
use tidegate_core::Decision;

use super::refill::granted;
use super::{CannotLease, Lease};
use crate::error::Error;
use crate::gate::RedisGate;
use crate::lease::LeaseTerms;
use crate::wire::{Line, Terms, Verb};

/// Tokens granted to a client, which spends them on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Granted {
    /// The number of tokens, which may be 0.
    pub amount: u32,
    /// If nothing was granted: when to ask again.
    pub wait: Duration,
    /// How long the tokens may be spent, counted from when the request was *sent*.
    ///
    /// Measure it with a clock that does not stop while the machine is suspended. It is already a little less than the
    /// lifetime in Redis, because clocks differ in pace.
    pub lasts: Duration,
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
    /// Grants up to the cost of the part, to be spent without further requests.
    ///
    /// The rule must be a token bucket or a fixed window. `id` must be globally unique; a random id will do. It does
    /// not matter whether the rule is [leased](crate::Builder::lease) here.
    ///
    /// Without a reply, do not repeat the request with the same id: tokens that may have been granted expire.
    ///
    /// # Errors
    ///
    /// [`CannotLease`] if there is no such rule or it is of another kind; the inner error says why Redis did not
    /// decide.
    pub async fn grant(
        &self,
        part: Part<'_>,
        id: [u8; 16],
        lease: Lease,
    ) -> Result<Result<Granted, Error>, CannotLease> {
        let terms = self.deal_of(&part, lease)?;
        let shared = &self.shared;
        let answer = if terms.is_window {
            let line = self.line_of(&part, Terms::Plain);
            shared.ask(Verb::Take, &[line], None, shared.deadline).await
        } else {
            let line = self.line_of(&part, Terms::Lease { stock: terms.stock, ttl: terms.ttl, ahead: 0 });
            shared.ask(Verb::Lease, &[line], Some(&id), shared.deadline).await
        };
        Ok(answer.map(|reply| {
            let grant = granted(&reply, &terms, terms.ttl, id);
            let lasts = grant.lasts - grant.lasts / 64;
            Granted {
                amount: grant.amount,
                wait: Duration::from_micros(if grant.amount == 0 { grant.wait } else { 0 }),
                lasts: Duration::from_micros(if grant.amount == 0 { 0 } else { lasts }),
                receipt: if terms.is_window { Receipt::Window(grant.ends) } else { Receipt::Bucket(id) },
                decision: reply.decisions[0].of_rule(part.rule),
            }
        }))
    }

    /// Takes back the unspent tokens of a grant, and returns the state of the rule after that.
    ///
    /// The cost of the part is the number of tokens. They must not be spent any more. Expired tokens are not
    /// refunded. A second return of a bucket's grant has no effect; a window's grant must be returned at most once.
    ///
    /// # Errors
    ///
    /// As [`grant`](RedisGate::grant).
    pub async fn take_back(
        &self,
        part: Part<'_>,
        receipt: Receipt,
    ) -> Result<Result<Decision, Error>, CannotLease> {
        let terms = self.deal_of(&part, Lease::on())?;
        let shared = &self.shared;
        let within = shared.deadline;
        let answer = match (receipt, terms.is_window) {
            (Receipt::Bucket(id), false) => {
                shared.ask(Verb::Return, &[self.line_of(&part, Terms::Plain)], Some(&id), within).await
            }
            (Receipt::Window(ends), true) => {
                shared.ask(Verb::GiveBack, &[self.line_of(&part, Terms::Til(ends))], None, within).await
            }
            _ => return Err(CannotLease("a grant of another rule; name the rule that it is of".into())),
        };
        Ok(answer.map(|reply| reply.decisions[0].of_rule(part.rule)))
    }

    fn deal_of(&self, part: &Part<'_>, lease: Lease) -> Result<LeaseTerms, CannotLease> {
        self.shared.validate(&[*part])?;
        let spec = self.shared.spec(part);
        lease.validate(&spec.name, spec.described.letter())?;
        Ok(lease.any_terms(spec.described.letter(), spec.described.limit(), self.shared.nodes))
    }

    fn line_of(&self, part: &Part<'_>, terms: Terms) -> Line<'_> {
        let spec = self.shared.spec(part);
        let key = self.shared.keys.name(&spec.name, part.key.bytes());
        Line { key, cost: part.cost, terms, rule: &spec.described }
    }
}

impl From<InvalidRequest> for CannotLease {
    fn from(invalid: InvalidRequest) -> Self {
        CannotLease(invalid.to_string())
    }
}
