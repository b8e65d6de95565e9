//! # What is asked
//!
//! What each descriptor wants, and what is wrong with it. A descriptor says how much it takes; if it does not, the
//! request does; and if that does not either, it is 1.

use super::brought::Brought;
use super::generated::messages::{RateLimitDescriptor, RateLimitRequest};
use super::status::{Code, Status};
use crate::engine::LONGEST_VALUE;
use crate::rules::Descriptor;

/// What one descriptor wants.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    /// To pass the rules, and to be charged so much.
    Charge(u32),
    /// To see whether it would.
    Look,
    /// To give back so much.
    Refund(u32),
    /// The limit that it brings along, in the place of the rules.
    Own(Brought),
}

/// So many descriptors are decided on together; whoever sends more has something else in mind.
const MOST_DESCRIPTORS: usize = 256;
/// So many entries may a descriptor have.
const MOST_ENTRIES: usize = 128;

/// What each descriptor wants, in their order. The first two sentences are those of envoyproxy/ratelimit.
pub(super) fn wanted(asked: &RateLimitRequest) -> Result<Vec<Wanted>, Status> {
    if asked.domain.is_empty() {
        return Err(Status::new(Code::Unknown, "rate limit domain must not be empty"));
    }
    if asked.descriptors.is_empty() {
        return Err(Status::new(Code::Unknown, "rate limit descriptor list must not be empty"));
    }
    if asked.descriptors.len() > MOST_DESCRIPTORS {
        let many = asked.descriptors.len();
        let sentence = format!("the request has {many} descriptors; send at most {MOST_DESCRIPTORS} at once");
        return Err(Status::new(Code::InvalidArgument, sentence));
    }
    let all = asked.descriptors.iter().enumerate();
    all.map(|(place, descriptor)| {
        let what = wanted_by(asked, descriptor);
        what.map_err(|wrong| Status::new(Code::InvalidArgument, format!("descriptors[{place}]{wrong}")))
    })
    .collect()
}

fn wanted_by(asked: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Result<Wanted, String> {
    let entries = &descriptor.entries;
    if entries.is_empty() {
        return Err(" has no entries; send at least one, with a key".to_owned());
    }
    if entries.len() > MOST_ENTRIES {
        return Err(format!(" has {} entries; send at most {MOST_ENTRIES}", entries.len()));
    }
    if let Some(place) = entries.iter().position(|entry| entry.key.is_empty()) {
        return Err(format!(".entries[{place}].key is empty; name what the value is about"));
    }
    let is_long = |text: &str| text.len() > LONGEST_VALUE;
    if let Some(place) = entries.iter().position(|entry| is_long(&entry.key) || is_long(&entry.value)) {
        return Err(format!(
            ".entries[{place}] has a text of more than {LONGEST_VALUE} bytes; send a shorter one"
        ));
    }
    let cost = cost(asked, descriptor)?;
    if let Some(limit) = &descriptor.limit {
        return Brought::new(&asked.domain, descriptor, limit, cost).map(Wanted::Own);
    }
    Ok(match cost {
        cost if descriptor.is_negative_hits => Wanted::Refund(cost),
        0 => Wanted::Look,
        cost => Wanted::Charge(cost),
    })
}

fn cost(asked: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Result<u32, String> {
    match &descriptor.hits_addend {
        Some(own) => u32::try_from(own.value)
            .map_err(|_| format!(".hits_addend is {}; use at most {}", own.value, u32::MAX)),
        None => Ok(asked.hits_addend.max(1)),
    }
}

/// What it says of the request.
pub(super) fn pairs(descriptor: &RateLimitDescriptor) -> Vec<Descriptor<'_>> {
    descriptor.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str())).collect()
}
