//! # Keys that do not lie together
//!
//! In a cluster one call can charge only what lies in one slot: the rules of one key. A request for several keys is asked key by
//! key, and what was taken is given back when a later one refuses, or when nobody waits for the answer any more. Between the two
//! somebody else may find less than there is, but never more: what has refilled meanwhile is not given back.

use std::sync::Arc;

use tidegate::{Admission, Part, Permits};
use tokio::time::Instant;

use crate::error::Error;
use crate::gate::{Shared, left};
use crate::wire::{Line, Reply, Terms, Verb};
use tidegate_core::Micros;

/// What was charged so far. Unless it is kept it is given back.
struct Taken {
    shared: Arc<Shared>,
    charges: Vec<Charge>,
}

/// So much of one rule, in one string.
struct Charge {
    name: Vec<u8>,
    rule: usize,
    cost: u32,
    /// When it will be as if it had not been made.
    til: Micros,
}

pub(crate) async fn check(
    shared: &Arc<Shared>,
    request: &[Part<'_>],
    until: Instant,
) -> Result<Admission, Error> {
    let mut taken = Taken { shared: shared.clone(), charges: Vec::with_capacity(request.len()) };
    let mut strictest = None;
    let mut permits = Permits::none();
    for group in by_key(request) {
        let (admission, reply) = shared.check_together(&group, left(until)).await?;
        if !admission.is_allowed() {
            return Ok(admission);
        }
        taken.add(&group, &reply);
        permits = permits.and(admission.permits);
        strictest = Some(match strictest {
            Some(other) => admission.decision.and(other),
            None => admission.decision,
        });
    }
    taken.keep();
    let decision = strictest.expect("a request has a part");
    Ok(Admission { permits, ..Admission::without_permits(decision) })
}

/// The parts of each key, in the order of the keys. What is everybody's comes last, so that it is charged for those who pass.
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

impl Taken {
    /// Permits are given back by dropping them.
    fn add(&mut self, group: &[Part<'_>], reply: &Reply) {
        for ((part, name), told) in group.iter().zip(self.shared.names(group)).zip(&reply.decisions) {
            if !self.shared.spec(part).is_places {
                let til = told.at().plus(told.reset_after().as_micros());
                self.charges.push(Charge { name, rule: usize::from(part.rule.0), cost: part.cost, til });
            }
        }
    }

    fn keep(mut self) {
        self.charges.clear();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let charges = std::mem::take(&mut self.charges);
        if !charges.is_empty() {
            self.shared.runtime.spawn(give_back(self.shared.clone(), charges));
        }
    }
}

/// Whatever has come of it before: that too much is under way may be the very reason.
async fn give_back(shared: Arc<Shared>, charges: Vec<Charge>) {
    for Charge { name, rule, cost, til } in charges {
        let line = [Line { key: name, cost, terms: Terms::Til(til), rule: &shared.rules[rule].described }];
        let _ = shared.send_in_time(shared.link_of(&line), Verb::GiveBack, &line, None).await;
    }
}
