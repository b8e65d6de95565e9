//! # A rule that is asked by its name
//!
//! Some callers do not describe a request, they name the rule and the key: `TG.CHECK user alice`. It is the same
//! rule, the same key and the same count as of a call that says `user=alice`. So the key's parts are what the caller
//! would have sent, and whatever the rule says about them counts: networks of addresses, overrides by key, who is
//! allowed and who is denied. Only its conditions do not: whoever names a rule means it.
//!
//! Keys may be any bytes here. What is no text is a key all the same, and no condition holds for it.

use super::compiled::{Compiled, Ready};
use super::condition::Descriptor;
use super::find::{Call, Listed, Refusal, Scratch, Verdict, small};
use super::rule::{Cost, Missing};

impl Compiled {
    /// Finds a rule by its place in the file, for a key of these parts, behind what was found before. `None` of the
    /// cost is what the rule says, or 1. Tells what the lists of the whole file say of the key. Parts beyond those of
    /// the rule's key are not looked at; those that are not given are missing.
    pub(crate) fn find_named<'k>(
        &self,
        number: u32,
        key: impl Iterator<Item = &'k [u8]>,
        cost: Option<u32>,
        scratch: &mut Scratch,
    ) -> Option<Listed> {
        let ready = self.rules.get(number as usize)?;
        let Scratch { overrides, keys, hits, .. } = scratch;
        let start = keys.len();
        let verdict = if ready.looks_at_values() || self.has_lists() {
            let given: Vec<_> = ready.rule.key.iter().zip(key).collect();
            let texts = given.iter().filter_map(|(part, value)| Some((part.name(), text(value)?)));
            let descriptors: Vec<Descriptor<'_>> = texts.collect();
            if let Some(listed) = self.listed(&Call::of(&descriptors)) {
                return Some(listed);
            }
            let values = given.iter().map(|(_, value)| *value);
            ready.judge_values(values, &descriptors, cost, (keys, overrides))
        } else {
            ready.judge_bytes(key, cost, keys)
        };
        hits.extend(ready.hit_of(verdict, number, start, keys));
        None
    }

    fn has_lists(&self) -> bool {
        !(self.allow.lists.is_empty() && self.deny.lists.is_empty())
    }
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

impl Ready {
    /// Whether anything depends on what the key is.
    fn looks_at_values(&self) -> bool {
        let (rule, are_plain) = (&self.rule, self.rule.key.iter().all(|part| part.is_plain()));
        !(are_plain && rule.overrides.is_empty() && rule.allow.is_empty() && rule.deny.is_empty())
    }

    fn judge_bytes<'k>(
        &self,
        mut key: impl Iterator<Item = &'k [u8]>,
        cost: Option<u32>,
        keys: &mut Vec<u8>,
    ) -> Verdict {
        let mut is_whole = true;
        for part in &self.rule.key {
            is_whole &= part.write_value(key.next(), keys);
        }
        self.charged(is_whole, cost)
    }

    fn judge_values<'k>(
        &self,
        key: impl Iterator<Item = &'k [u8]>,
        descriptors: &[Descriptor<'_>],
        cost: Option<u32>,
        (keys, overrides): (&mut Vec<u8>, &mut Vec<u32>),
    ) -> Verdict {
        if self.deny.holds(descriptors) {
            return Verdict::Refuses(Refusal::Denied);
        }
        if self.allow.holds(descriptors) {
            return Verdict::Exempt;
        }
        let verdict = self.judge_bytes(key, cost, keys);
        match verdict {
            Verdict::Applies { cost, .. } => {
                let by_override = self.override_for(descriptors, overrides).map(small);
                Verdict::Applies { cost, by_override }
            }
            other => other,
        }
    }

    fn charged(&self, is_whole: bool, asked: Option<u32>) -> Verdict {
        match self.rule.missing {
            Missing::Skip if !is_whole => return Verdict::KeySkipped,
            Missing::Reject if !is_whole => return Verdict::Refuses(Refusal::KeyMissing),
            _ => {}
        }
        let call = Call { cost: asked, ..Call::of(&[]) };
        let cost = match (&self.rule.cost, asked) {
            (Cost::From { .. }, Some(asked)) => Some(asked), // there is no descriptor to take it from
            (cost, _) => cost.of(&call),
        };
        cost.map_or(Verdict::Refuses(Refusal::CostMissing), |cost| Verdict::Applies {
            cost,
            by_override: None,
        })
    }
}
