//! # Rules that are ready to be asked
//!
//! Made once when a file is read, asked by every request. Each limit has a number, by which a
//! [`Gate`](tidegate::gate::Gate) knows it: those of the first rule, those of its overrides, those of the second rule, and
//! so on.

use std::collections::HashMap;
use std::ops::Range;

use tidegate_redis::Lease;

use super::condition::{Condition, Descriptor};
use super::diff::Identity;
use super::index::Index;
use super::rule::{Limit, OnOutage, Rule, RuleSet};

/// Rules, ready to be asked.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub(crate) allow: List,
    pub(crate) deny: List,
    pub(crate) rules: Box<[Ready]>,
    /// By domain: its rules.
    domains: HashMap<Box<str>, Index>,
    /// The rules without a domain, which are for every call.
    everywhere: Index,
    limits: Box<[Numbered]>,
}

/// A limit with its number, its name, and the rule it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// What distinguishes it from all others, also from those of another file: its counts are kept as long as this
    /// stays.
    pub identity: Identity,
    /// What may pass.
    pub limit: Limit,
    /// The rule, by its place in the file.
    pub rule: usize,
    /// What it does while the store does not answer.
    pub when_lost: OnOutage,
    /// How it is leased, if it is.
    pub lease: Option<Lease>,
}

/// A rule, and what helps to ask it quickly.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    pub(crate) rule: Rule,
    pub(crate) allow: List,
    pub(crate) deny: List,
    pub(crate) limits: Range<u16>,
    overrides: Index,
    pub(crate) override_limits: Box<[Range<u16>]>,
}

/// Several lists of conditions, of which one has to hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    pub(crate) lists: Box<[Vec<Condition>]>,
    index: Index,
}

impl Compiled {
    /// Makes rules ready. At most 65,535 limits are numbered; a file with more is refused when it is read.
    #[must_use]
    pub fn new(set: RuleSet) -> Self {
        let mut limits = Vec::new();
        let rules: Box<[_]> = set
            .rules
            .into_iter()
            .enumerate()
            .map(|(number, rule)| Ready::new(number, rule, &mut limits))
            .collect();
        let mut domains = HashMap::<_, Vec<_>>::new();
        for (number, Ready { rule, .. }) in rules.iter().enumerate() {
            domains.entry(rule.domain.as_deref()).or_default().push((number, rule.conditions.as_slice()));
        }
        let everywhere = Index::of(domains.remove(&None).unwrap_or_default());
        let index = |(name, rules): (Option<&str>, Vec<_>)| Some((name?.into(), Index::of(rules)));
        let domains = domains.into_iter().filter_map(index).collect();
        Compiled {
            allow: List::new(set.allow),
            deny: List::new(set.deny),
            domains,
            everywhere,
            rules,
            limits: limits.into(),
        }
    }

    /// Every limit, in the order of their numbers.
    #[must_use]
    pub fn limits(&self) -> &[Numbered] {
        &self.limits
    }

    /// A rule, by its place in the file.
    #[must_use]
    pub fn rule(&self, number: usize) -> Option<&Rule> {
        self.rules.get(number).map(|ready| &ready.rule)
    }

    /// Its rules, in the order of the file.
    #[must_use]
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter().map(|ready| &ready.rule)
    }

    /// The rules that may match, by their places.
    pub(crate) fn candidates(&self, domain: &str, descriptors: &[Descriptor<'_>], numbers: &mut Vec<u32>) {
        self.everywhere.candidates(descriptors, numbers);
        if let Some(index) = self.domains.get(domain) {
            index.more_candidates(descriptors, numbers);
        }
    }
}

impl Ready {
    fn new(number: usize, rule: Rule, limits: &mut Vec<Numbered>) -> Self {
        let own = numbered(number, &rule, None, &rule.limits, limits);
        let of = rule.overrides.iter();
        let override_limits =
            of.map(|one| numbered(number, &rule, Some(&one.label), &one.limits, limits)).collect();
        let overrides = Index::of(rule.overrides.iter().map(|one| one.conditions.as_slice()).enumerate());
        let (allow, deny) = (List::new(rule.allow.clone()), List::new(rule.deny.clone()));
        Ready { allow, deny, limits: own, overrides, override_limits, rule }
    }

    /// The override that counts, by its place.
    pub(crate) fn override_for(
        &self,
        descriptors: &[Descriptor<'_>],
        numbers: &mut Vec<u32>,
    ) -> Option<usize> {
        if self.rule.overrides.is_empty() {
            return None;
        }
        self.overrides.candidates(descriptors, numbers);
        let fits = |number: &usize| {
            self.rule.overrides[*number].conditions.iter().all(|condition| condition.holds(descriptors))
        };
        numbers.iter().map(|number| *number as usize).find(fits)
    }
}

/// Numbers some limits, and says which numbers they have.
fn numbered(
    rule: usize,
    of: &Rule,
    label: Option<&str>,
    some: &[Limit],
    limits: &mut Vec<Numbered>,
) -> Range<u16> {
    let next = |limits: &[Numbered]| u16::try_from(limits.len()).unwrap_or(u16::MAX);
    let first = next(limits);
    for (place, limit) in some.iter().enumerate() {
        let identity = Identity::new(of, label, place, limit);
        let (when_lost, lease) = (of.when_lost, of.lease);
        limits.push(Numbered { identity, limit: *limit, rule, when_lost, lease });
    }
    first..next(limits)
}

impl List {
    fn new(lists: Vec<Vec<Condition>>) -> Self {
        let index = Index::of(lists.iter().map(Vec::as_slice).enumerate());
        List { lists: lists.into(), index }
    }

    /// Whether one of the lists holds.
    pub(crate) fn holds(&self, descriptors: &[Descriptor<'_>]) -> bool {
        !self.lists.is_empty()
            && self.index.any(descriptors, |number| {
                self.lists[number].iter().all(|condition| condition.holds(descriptors))
            })
    }
}
