//! # Not asking every rule
//!
//! With a thousand rules, a request should not be held against a thousand conditions. Most rules name an exact value
//! somewhere, `path: /login`; such a rule can only match a request that sends just that, and is found by it. The
//! rest, those without exact values, are asked always.

use std::collections::HashMap;

use super::condition::{Condition, Descriptor};

/// Finds the items whose conditions may hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// By name and value: items that need just that.
    exact: HashMap<Box<str>, HashMap<Box<str>, Vec<u32>>>,
    /// Items that are found no other way.
    rest: Vec<u32>,
    /// How many items there are.
    items: u32,
}

impl Index {
    /// An index of items, each with its number and its conditions; numbers rise.
    pub(crate) fn of<'a>(items: impl IntoIterator<Item = (usize, &'a [Condition])>) -> Self {
        let mut index = Index::default();
        for (number, conditions) in items {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            index.add(number, conditions);
        }
        index
    }

    /// Adds an item, with the next number.
    pub(crate) fn add_next(&mut self, conditions: &[Condition]) {
        self.add(self.items, conditions);
    }

    fn add(&mut self, number: u32, conditions: &[Condition]) {
        self.items = number.saturating_add(1);
        let exact = conditions.iter().filter_map(|condition| Some((condition, condition.values()?)));
        // The fewer values, the fewer requests find it in vain.
        let Some((condition, values)) = exact.min_by_key(|(_, values)| values.iter().count()) else {
            return self.rest.push(number);
        };
        let by_value = self.exact.entry(condition.name.clone()).or_default();
        for value in values.iter() {
            by_value.entry(value.into()).or_default().push(number);
        }
    }

    /// The numbers of all items that may match, in order and each once; those that are not named here do not match.
    pub(crate) fn candidates(&self, descriptors: &[Descriptor<'_>], numbers: &mut Vec<u32>) {
        numbers.clear();
        numbers.extend_from_slice(&self.rest);
        if self.exact.is_empty() {
            return;
        }
        for (name, value) in descriptors {
            if let Some(found) = self.exact.get(*name).and_then(|by_value| by_value.get(*value)) {
                numbers.extend_from_slice(found);
            }
        }
        if numbers.len() > self.rest.len() {
            numbers.sort_unstable();
            numbers.dedup();
        }
    }

    /// The same one by one, in no order and perhaps twice, for whoever wants only to know whether there is one.
    pub(crate) fn any(&self, descriptors: &[Descriptor<'_>], mut wanted: impl FnMut(usize) -> bool) -> bool {
        let mut wanted = |numbers: &[u32]| numbers.iter().any(|number| wanted(*number as usize));
        if wanted(&self.rest) {
            return true;
        }
        !self.exact.is_empty()
            && descriptors.iter().any(|(name, value)| {
                let found = self.exact.get(*name).and_then(|by_value| by_value.get(*value));
                found.is_some_and(|numbers| wanted(numbers))
            })
    }
}
