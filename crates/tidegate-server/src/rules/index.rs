//! # Not asking every rule
//!
//! With ten thousand rules, a request should not be held against ten thousand conditions. Most rules name an exact value
//! somewhere, `path: /login`; such a rule can only match a request that sends just that, and is found by it. The
//! rest, those without exact values, are asked always.
//!
//! A rule with several exact values is found by the rarest: of `{service: api, user: u17}` in ten thousand rules for
//! the same service, by the user.

use std::collections::HashMap;

use super::condition::{Condition, Descriptor, Values};

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
        let items: Vec<_> = items.into_iter().collect();
        let mut wanted = HashMap::<_, u64>::new();
        for pair in items.iter().flat_map(|(_, conditions)| exact(conditions)).flat_map(pairs) {
            *wanted.entry(pair).or_default() += 1;
        }
        let mut index = Index::default();
        for (number, conditions) in items {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            index.add(number, conditions, |pair| wanted.get(&pair).copied().unwrap_or_default());
        }
        index
    }

    /// Adds an item, with the next number.
    pub(crate) fn add_next(&mut self, conditions: &[Condition]) {
        self.add(self.items, conditions, |_| 1);
    }

    /// Adds an item, by the condition whose values are wanted by the fewest items.
    fn add<'a>(&mut self, number: u32, conditions: &'a [Condition], wanted: impl Fn(Pair<'a>) -> u64) {
        self.items = number.saturating_add(1);
        let Some(rarest) = exact(conditions).min_by_key(|exact| pairs(*exact).map(&wanted).sum::<u64>())
        else {
            return self.rest.push(number);
        };
        let by_value = self.exact.entry(rarest.0.name.clone()).or_default();
        for (_, value) in pairs(rarest) {
            by_value.entry(value.into()).or_default().push(number);
        }
    }

    /// The numbers of all items that may match, in order and each once; those that are not named here do not match.
    pub(crate) fn candidates(&self, descriptors: &[Descriptor<'_>], numbers: &mut Vec<u32>) {
        numbers.clear();
        self.more_candidates(descriptors, numbers);
    }

    /// The same, together with those that `numbers` has already.
    pub(crate) fn more_candidates(&self, descriptors: &[Descriptor<'_>], numbers: &mut Vec<u32>) {
        let before = numbers.len();
        numbers.extend_from_slice(&self.rest);
        for (name, value) in descriptors.iter().filter(|_| !self.exact.is_empty()) {
            if let Some(found) = self.exact.get(*name).and_then(|by_value| by_value.get(*value)) {
                numbers.extend_from_slice(found);
            }
        }
        let is_in_order = before == 0 && numbers.len() == self.rest.len();
        if !is_in_order && numbers.len() > before {
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

/// The name and the value of a descriptor.
type Pair<'a> = (&'a str, &'a str);

/// The conditions that name exact values, with those.
fn exact(conditions: &[Condition]) -> impl Iterator<Item = (&Condition, &Values)> {
    conditions.iter().filter_map(|condition| Some((condition, condition.values()?)))
}

fn pairs<'a>((condition, values): (&'a Condition, &'a Values)) -> impl Iterator<Item = Pair<'a>> {
    values.iter().map(|value| (&*condition.name, value))
}
