//! # Keys that do not lie together
//!
//! In a cluster one call can charge only what lies in one slot: the rules of one key. A request for several keys is asked key by
//! key, and what was taken is given back when a later one refuses. Between the two somebody else may find less than there is. A
//! limit that has refilled meanwhile, or a window that has ended, takes back what it need not have: then somebody may find one
//! request more than there would have been.

use std::sync::Arc;

use tidegate::{Admission, Part, Permits};

use crate::gate::Shared;
use crate::trouble::Trouble;
use crate::wire::Verb;

pub(crate) async fn check(shared: &Arc<Shared>, request: &[Part<'_>]) -> Result<Admission, Trouble> {
    let mut taken: Vec<Part<'_>> = Vec::with_capacity(request.len());
    let mut strictest = None;
    let mut permits = Permits::none();
    for group in by_key(request) {
        let admission = match shared.check_together(&group).await {
            Ok(admission) => admission,
            Err(trouble) => {
                give_back(shared, taken).await;
                return Err(trouble);
            }
        };
        if !admission.is_allowed() {
            give_back(shared, taken).await;
            return Ok(admission);
        }
        permits = permits.and(admission.permits);
        strictest = Some(match strictest {
            Some(other) => admission.decision.and(other),
            None => admission.decision,
        });
        taken.extend(group);
    }
    let decision = strictest.expect("a request has a part");
    Ok(Admission { permits, ..Admission::bare(decision) })
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

/// Permits are given back by dropping them.
async fn give_back(shared: &Arc<Shared>, taken: Vec<Part<'_>>) {
    for part in taken.iter().filter(|part| !shared.shape(part).is_places) {
        let part = std::slice::from_ref(part);
        let _ = shared.ask(Verb::Refund, &shared.lines(part), None).await;
    }
}
