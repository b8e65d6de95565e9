//! # Requests over several slots of a cluster
//!
//! In a cluster one call can charge only keys in one slot: the rules of one key. A request over several keys is decided
//! key by key. Its charges are refunded when a later key refuses, or when the caller stops waiting for the decision. In
//! between, other requests may see less quota than there is, but never more: what has refilled in the meantime is not
//! refunded.
//!
//! The keys of a global and of a per-user limit are in different slots, or all users would be in one. So the
//! user's key is charged first and the global key last.
//!
//! A plain refund that comes late could admit too much: a bucket that was charged, has refilled and was
//! charged by another request would forget that other charge. So a refund names the instant at which its
//! charge has no effect any more, and the script refunds only what lies between now and that instant.
//! Reservations in memory are cancelled by the same rule.

use std::sync::Arc;

use tidegate::gate::Part;
use tidegate::{Admission, Permits};
use tokio::time::Instant;

use crate::error::Error;
use crate::gate::{Shared, time_left};
use crate::wire::{CostExtra, Operation, Reply, RuleArgs};
use tidegate_core::Micros;

/// The charges so far. They are rolled back on drop, unless they are kept.
struct Charges {
    shared: Arc<Shared>,
    charges: Vec<Charge>,
}

/// One charge: a cost under one rule, in one Redis key.
struct Charge {
    key: Vec<u8>,
    rule: usize,
    cost: u32,
    /// When the charge will have no effect any more.
    ends_at: Micros,
}

pub(crate) async fn check(
    shared: &Arc<Shared>,
    request: &[Part<'_>],
    deadline: Instant,
) -> Result<Admission, Error> {
    let mut charges = Charges { shared: shared.clone(), charges: Vec::with_capacity(request.len()) };
    let mut strictest = None;
    let mut permits = Permits::none();
    for group in by_key(request) {
        let (admission, reply) = shared.check_in_one_call(&group, time_left(deadline)).await?;
        if !admission.is_allowed() {
            return Ok(admission);
        }
        charges.add(&group, &reply);
        permits = permits.and(admission.permits);
        strictest = Some(match strictest {
            Some(other) => admission.decision.and(other),
            None => admission.decision,
        });
    }
    charges.keep();
    let decision = strictest.expect("a request has at least one part");
    Ok(Admission { permits, ..Admission::without_permits(decision) })
}

/// Groups the parts by key, in the order of the request.
///
/// The global key comes last, so that only requests that pass all other limits are charged to it.
fn by_key<'a>(request: &[Part<'a>]) -> Vec<Vec<Part<'a>>> {
    let mut groups: Vec<Vec<Part<'a>>> = Vec::new();
    for part in request {
        match groups.iter_mut().find(|group| group[0].key == part.key) {
            Some(group) => group.push(*part),
            None => groups.push(vec![*part]),
        }
    }
    groups.sort_by_key(|group| group[0].key.is_empty());
    groups
}

impl Charges {
    /// Adds the charges of a group. Permits are returned by dropping them.
    fn add(&mut self, group: &[Part<'_>], reply: &Reply) {
        for ((part, key), decision) in group.iter().zip(self.shared.key_names(group)).zip(&reply.decisions) {
            if !self.shared.spec(part).is_concurrency {
                let ends_at = decision.at().plus(decision.reset_after().as_micros());
                self.charges.push(Charge { key, rule: usize::from(part.rule.0), cost: part.cost, ends_at });
            }
        }
    }

    fn keep(mut self) {
        self.charges.clear();
    }
}

impl Drop for Charges {
    fn drop(&mut self) {
        let charges = std::mem::take(&mut self.charges);
        if !charges.is_empty() {
            self.shared.runtime.spawn(rollback(self.shared.clone(), charges));
        }
    }
}

/// Refunds the charges, even while the breaker is open or too many requests are in flight.
///
/// Too many requests in flight may be the very reason for the refund.
async fn rollback(shared: Arc<Shared>, charges: Vec<Charge>) {
    for Charge { key, rule, cost, ends_at } in charges {
        let rules = [RuleArgs {
            key,
            cost,
            extra: CostExtra::ChargeEnds(ends_at),
            rule: &shared.rules[rule].encoded,
        }];
        let _ = shared
            .call_despite_breaker(shared.connection_for_rules(&rules), Operation::Rollback, &rules, None)
            .await;
    }
}
