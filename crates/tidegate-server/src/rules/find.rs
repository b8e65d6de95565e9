//! # The way of a request through the rules
//!
//! Nothing is allocated for a request, once its [`Scratch`] has grown to what requests need: keys are written one
//! after the other into one buffer, and hits say where in it theirs is.

use std::ops::Range;

use tidegate::gate::{Part, RuleId};

use super::compiled::{Compiled, Ready};
use super::condition::Descriptor;
use super::rule::{Cost, Missing};

/// So much room is kept for the next request.
const MOST_KEPT: usize = 4_096;

/// What a caller sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The domain; empty if the caller has none.
    pub domain: &'a str,
    /// What it says about the request.
    pub descriptors: &'a [Descriptor<'a>],
    /// What the request takes, if it says so.
    pub cost: Option<u32>,
}

/// What finding needs and leaves behind, so that the next request need not allocate. One for each thread.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) rules: Vec<u32>,
    pub(super) overrides: Vec<u32>,
    pub(super) keys: Vec<u8>,
    pub(super) hits: Vec<Hit>,
}

/// The rules that a request has to pass.
#[derive(Clone, Copy, Debug)]
pub struct Matched<'s> {
    hits: &'s [Hit],
    keys: &'s [u8],
    /// Whether the file as a whole says that it passes, or that it does not.
    pub listed: Option<Listed>,
}

/// What the lists of the whole file say of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// It passes, uncounted.
    Allowed,
    /// It is refused.
    Denied,
}

/// A rule that a request has to pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The rule, by its place in the file.
    pub rule: u32,
    /// The override that counts, by its place in the rule.
    pub by_override: Option<u32>,
    /// The numbers of the limits to be charged.
    pub limits: Range<u16>,
    /// What it takes of each.
    pub cost: u32,
    /// Whether the rule only watches.
    pub shadow: bool,
    /// Why the rule refuses without looking at any limit, if it does.
    pub refusal: Option<Refusal>,
    key: Range<u32>,
}

/// Why a rule refuses without looking at any limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request is on its list of those to be refused.
    Denied,
    /// A part of the key is missing.
    KeyMissing,
    /// The descriptor that should say what it takes says no number.
    CostMissing,
    /// An administrator has blocked the key.
    Blocked,
}

/// What a rule says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is not for it.
    Unmet {
        /// Which condition does not hold, by its place.
        condition: usize,
    },
    Exempt,
    KeySkipped,
    Refuses(Refusal),
    Applies {
        cost: u32,
        by_override: Option<u32>,
    },
}

impl Scratch {
    /// Forgets what was found, and keeps the room for it, unless that is more than requests ordinarily need.
    pub(crate) fn clear(&mut self) {
        self.hits.clear();
        self.keys.clear();
        self.hits.shrink_to(MOST_KEPT);
        self.keys.shrink_to(MOST_KEPT);
        self.rules.shrink_to(MOST_KEPT);
    }

    /// Makes all that was found from this place on cost nothing.
    pub(crate) fn cost_nothing_from(&mut self, start: usize) {
        self.hits.iter_mut().skip(start).for_each(|hit| hit.cost = 0);
    }

    /// What has been found since it was cleared.
    pub(crate) fn matched(&self) -> Matched<'_> {
        Matched { hits: &self.hits, keys: &self.keys, listed: None }
    }

    #[cfg(test)]
    pub(crate) fn capacities(&self) -> [usize; 4] {
        [self.rules.capacity(), self.overrides.capacity(), self.keys.capacity(), self.hits.capacity()]
    }
}

impl<'a> Call<'a> {
    /// These descriptors, without a domain and a cost.
    #[must_use]
    pub const fn of(descriptors: &'a [Descriptor<'a>]) -> Self {
        Call { domain: "", descriptors, cost: None }
    }

    /// The same, in this domain.
    #[must_use]
    pub const fn domain(self, domain: &'a str) -> Self {
        Call { domain, ..self }
    }

    /// The same, with this cost.
    #[must_use]
    pub const fn cost(self, cost: u32) -> Self {
        Call { cost: Some(cost), ..self }
    }
}

impl Compiled {
    /// The rules that a request has to pass, in the order of the file.
    pub fn find<'s>(&self, call: &Call<'_>, scratch: &'s mut Scratch) -> Matched<'s> {
        scratch.clear();
        let listed = self.find_more(call, scratch);
        Matched { listed, ..scratch.matched() }
    }

    /// The same, behind what was found before; and what the lists of the whole file say.
    pub(crate) fn find_more(&self, call: &Call<'_>, scratch: &mut Scratch) -> Option<Listed> {
        let Scratch { rules, overrides, keys, hits } = scratch;
        let listed = self.listed(call);
        if listed.is_none() {
            self.candidates(call.domain, call.descriptors, rules);
            for number in rules.iter() {
                let ready = &self.rules[*number as usize];
                hits.extend(ready.hit(*number, call, keys, overrides));
            }
        }
        listed
    }

    pub(crate) fn listed(&self, call: &Call<'_>) -> Option<Listed> {
        if self.deny.holds(call.descriptors) {
            return Some(Listed::Denied);
        }
        self.allow.holds(call.descriptors).then_some(Listed::Allowed)
    }
}

impl Ready {
    fn hit(&self, number: u32, call: &Call<'_>, keys: &mut Vec<u8>, overrides: &mut Vec<u32>) -> Option<Hit> {
        let start = keys.len();
        let verdict = self.judge(call, keys, overrides);
        self.hit_of(verdict, number, start, keys)
    }

    /// What a verdict means for a request whose key begins at `start`.
    pub(super) fn hit_of(
        &self,
        verdict: Verdict,
        number: u32,
        start: usize,
        keys: &mut Vec<u8>,
    ) -> Option<Hit> {
        let (cost, by_override, refusal) = match verdict {
            Verdict::Unmet { .. } | Verdict::Exempt | Verdict::KeySkipped => {
                keys.truncate(start);
                return None;
            }
            Verdict::Refuses(refusal) => {
                keys.truncate(start);
                (0, None, Some(refusal))
            }
            Verdict::Applies { cost, by_override } => (cost, by_override, None),
        };
        let limits = by_override.map_or(&self.limits, |place| &self.override_limits[place as usize]).clone();
        let key = small(start)..small(keys.len());
        Some(Hit { rule: number, by_override, limits, cost, shadow: self.rule.shadow, refusal, key })
    }

    /// What the rule says of a request in its domain; the key is added to `keys`.
    pub(crate) fn judge(&self, call: &Call<'_>, keys: &mut Vec<u8>, overrides: &mut Vec<u32>) -> Verdict {
        let descriptors = call.descriptors;
        let unmet = self.rule.conditions.iter().position(|condition| !condition.holds(descriptors));
        if let Some(condition) = unmet {
            return Verdict::Unmet { condition };
        }
        if self.deny.holds(descriptors) {
            return Verdict::Refuses(Refusal::Denied);
        }
        if self.allow.holds(descriptors) {
            return Verdict::Exempt;
        }
        let is_whole = self.write_key(descriptors, keys);
        match self.rule.missing {
            Missing::Skip if !is_whole => return Verdict::KeySkipped,
            Missing::Reject if !is_whole => return Verdict::Refuses(Refusal::KeyMissing),
            _ => {}
        }
        let Some(cost) = self.rule.cost.of(call) else { return Verdict::Refuses(Refusal::CostMissing) };
        let by_override = self.override_for(descriptors, overrides).map(small);
        Verdict::Applies { cost, by_override }
    }

    /// Adds the key to `keys`, all of it; `false` if a part is missing.
    fn write_key(&self, descriptors: &[Descriptor<'_>], keys: &mut Vec<u8>) -> bool {
        let mut is_whole = true;
        for part in &self.rule.key {
            is_whole &= part.write(descriptors, keys);
        }
        is_whole
    }
}

impl Cost {
    /// What a request takes; `None` if it should say so and does not.
    pub(super) fn of(&self, call: &Call<'_>) -> Option<u32> {
        match self {
            Cost::Asked => Some(call.cost.unwrap_or(1)),
            Cost::Fixed(cost) => Some(*cost),
            Cost::From { name, per, missing } => {
                let found = call.descriptors.iter().find(|(given, _)| **given == **name);
                found.and_then(|(_, value)| units(value, *per)).or(*missing)
            }
        }
    }
}

/// A number of decimal digits in units of so many, begun ones counted; what is too large stays too large.
fn units(value: &str, per: u32) -> Option<u32> {
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = value.parse::<u64>().unwrap_or(u64::MAX); // only digits: it can be too large, and nothing else
    Some(u32::try_from(number.div_ceil(u64::from(per.max(1)))).unwrap_or(u32::MAX))
}

pub(super) fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl<'s> Matched<'s> {
    /// The rules it has to pass, in the order of the file.
    #[must_use]
    pub fn hits(&self) -> &'s [Hit] {
        self.hits
    }

    /// Whose limit it is.
    #[must_use]
    pub fn key(&self, hit: &Hit) -> &'s [u8] {
        &self.keys[hit.key.start as usize..hit.key.end as usize]
    }

    /// The first rule that refuses the request without looking at any limit; rules that only watch do not count.
    #[must_use]
    pub fn refusal(&self) -> Option<(&'s Hit, Refusal)> {
        let enforced = self.hits.iter().filter(|hit| !hit.shadow);
        enforced.filter_map(|hit| Some((hit, hit.refusal?))).next()
    }

    /// What to ask a gate for: one part for each limit of the rules that are enforced.
    pub fn parts(&self) -> impl Iterator<Item = Part<'s>> + use<'s> {
        self.parts_of(|hit| !hit.shadow)
    }

    /// What to ask a gate for on behalf of the rules that only watch. Ask for each alone: they stand for themselves.
    pub fn shadow_parts(&self) -> impl Iterator<Item = Part<'s>> + use<'s> {
        self.parts_of(|hit| hit.shadow)
    }

    /// What to ask a gate for on behalf of one rule.
    pub fn parts_of_hit(&self, hit: &'s Hit) -> impl Iterator<Item = Part<'s>> + use<'s> {
        let key = self.key(hit);
        hit.limits.clone().map(move |limit| Part::of(RuleId(limit)).key(key).cost(hit.cost))
    }

    fn parts_of<F: Fn(&Hit) -> bool>(&self, wanted: F) -> impl Iterator<Item = Part<'s>> + use<'s, F> {
        let keys = self.keys;
        let hits = self.hits.iter().filter(move |hit| wanted(hit) && hit.refusal.is_none());
        hits.flat_map(move |hit| {
            let key = &keys[hit.key.start as usize..hit.key.end as usize];
            hit.limits.clone().map(move |limit| Part::of(RuleId(limit)).key(key).cost(hit.cost))
        })
    }
}
