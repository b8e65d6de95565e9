//! # Lots for somebody else
//!
//! A service that stands before Redis grants lots to its own clients, which spend them in their programs. It keeps nothing of
//! them: the bucket knows what is out, and the client has the id by which the rest comes back, through whichever service.
//!
//! Of a window nobody keeps a note; what is given back of it is a charge that still counts. Who gives the same back twice gives
//! back twice: it is up to the caller to remember, by the [`Receipt`], what came back already.

use std::time::Duration;

use tidegate::{InvalidRequest, Micros, Part};
use tidegate_core::Decision;

use super::refill::granted;
use super::{CannotLease, Lease};
use crate::error::Error;
use crate::gate::RedisGate;
use crate::lease::LeaseTerms;
use crate::wire::{Line, Terms, Verb};

/// What was granted to somebody who spends it on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Granted {
    /// How many, perhaps 0.
    pub amount: u32,
    /// If nothing was granted: when to ask again.
    pub wait: Duration,
    /// Nothing may be spent later than so long after the question was *sent*, by a clock that does not stop while the machine
    /// sleeps. Already a little less than Redis reckons, for clocks differ in pace.
    pub lasts: Duration,
    /// By what it is given back.
    pub receipt: Receipt,
    /// How the rule stands after it.
    pub decision: Decision,
}

/// By what a grant is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Receipt {
    /// Of a bucket: the id that it was granted under. Given back twice, it comes back once.
    Bucket([u8; 16]),
    /// Of a window: when it ends, by the clock of Redis. To be given back once.
    Window(Micros),
}

impl RedisGate {
    /// Grants up to as much as the part costs, to be spent without asking: of a token bucket or a fixed window. `id` is that of
    /// no other grant in the world; random ones will do. Whether the rule is [leased](crate::Builder::lease) here does not
    /// matter.
    ///
    /// Who hears no answer does not ask under the same id again: what may have been granted ends by its time.
    ///
    /// # Errors
    ///
    /// [`CannotLease`] if there is no such rule, or it is none of the two; inside, why Redis did not decide.
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

    /// Takes back what is unspent of a grant, as much as the part costs, and tells how the rule stands after it. Nothing of it
    /// may be spent any more. What is over, or came back before, comes back no more.
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
