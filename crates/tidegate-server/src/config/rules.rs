//! # What the rules of a file mean
//!
//! Texts become limits, conditions and keys. What can be seen to be a mistake is one: a rule that lets nothing pass,
//! an override that never gets its turn, somebody who is allowed and denied.

mod amounts;
mod conditions;
mod keys;
mod leases;
mod outage;
mod overrides;
mod shown;

use std::collections::HashMap;

use super::decode::Text;
use super::fault::Fault;
use super::file::{File, RuleTable, WhenLostWord};
use super::source::{At, Span};
use super::{Reading, Store};
use crate::rules::{Condition, OnOutage, Rule, RuleSet};

/// The longest name of a rule, in bytes. It is part of each key in Redis.
const LONGEST_NAME: usize = 64;
/// How many limits can be numbered, overrides counted.
const MOST_LIMITS: usize = u16::MAX as usize;
/// So many parts has a key, and so many quotas a rule, at the most.
const MOST_PARTS: usize = 32;

/// A limit, and where it was written.
type Placed<T> = (T, Span);

impl Reading<'_> {
    pub(super) fn rules(&mut self, file: &File, store: &Store) -> RuleSet {
        let allow = self.lists(file.allow.as_ref());
        let deny = self.lists(file.deny.as_ref());
        self.check_lists(&allow, &deny);
        let tables = file.rules.as_ref().map_or(&[][..], |rules| &rules.value);
        if tables.is_empty() && self.faults.is_usable() {
            self.no_rules(file);
        }
        self.check_names(tables);
        let domain = file.domain.as_ref();
        let rules: Vec<_> = tables.iter().map(|table| self.rule(&table.value, domain, store)).collect();
        self.check_count(&rules);
        let (allow, deny) = (without_places(allow), without_places(deny));
        self.show_lists("allow", file.allow.as_ref(), &allow);
        self.show_lists("deny", file.deny.as_ref(), &deny);
        RuleSet { allow, deny, rules }
    }

    fn no_rules(&mut self, file: &File) {
        let fault = Fault::warning("no-rules", "there are no rules, so nothing is limited")
            .help("add one: `rules: [{name: everybody, quota: 100/s}]`");
        self.fault(match &file.rules {
            Some(rules) => fault.at(rules.span).label("expected a rule"),
            None => fault,
        });
    }

    fn check_names(&mut self, tables: &[At<RuleTable>]) {
        let mut seen: HashMap<&str, Span> = HashMap::new();
        for name in tables.iter().filter_map(|table| table.value.name.0.as_ref()) {
            match seen.get(name.value.as_str()) {
                Some(first) => self.fault(
                    Fault::error("name-twice", format!("two rules are named `{}`", name.value))
                        .at(name.span)
                        .label("again")
                        .beside(*first, "first here")
                        .help("rename one: counts are kept and answers given by this name"),
                ),
                None => _ = seen.insert(&name.value, name.span),
            }
        }
    }

    fn check_count(&mut self, rules: &[Rule]) {
        let limits = |rule: &Rule| {
            rule.limits.len() + rule.overrides.iter().map(|one| one.limits.len()).sum::<usize>()
        };
        let count: usize = rules.iter().map(limits).sum();
        if count > MOST_LIMITS {
            let message = format!("{count} quotas in all, and at most {MOST_LIMITS} can be numbered");
            self.fault(Fault::error("too-many", message).help("run several services, each for some domains"));
        }
    }

    fn rule(&mut self, table: &RuleTable, domain: Option<&Text>, store: &Store) -> Rule {
        if let Some(name) = &table.name.0 {
            self.check_name(name);
        }
        let domain = table.domain.as_ref().or(domain);
        if let Some(empty) = domain.filter(|domain| domain.value.is_empty()) {
            self.fault(
                Fault::error("name", "a domain cannot be empty").at(empty.span).label("expected a name"),
            );
        }
        let conditions = table.r#match.as_ref().map_or(Vec::new(), |wanted| self.conditions(wanted));
        let key = self.key(table.key.as_ref());
        let missing = self.missing(table, &key, &conditions);
        let limits = self.limits(&table.quota, store);
        let cost = self.cost(table.cost.as_ref());
        self.check_cost(&cost, table.cost.as_ref(), &limits);
        let overrides = self.overrides(table, &key, &conditions, &cost, store);
        let lease = self.lease(table, store);
        let (allow, deny) = (self.lists(table.allow.as_ref()), self.lists(table.deny.as_ref()));
        self.check_lists(&allow, &deny);
        let rule = Rule {
            name: table.name.0.as_ref().map(|name| name.value.clone()).unwrap_or_default(),
            domain: domain.map(|domain| domain.value.clone()),
            conditions,
            key,
            missing,
            limits: without_places(limits),
            cost,
            overrides,
            allow: without_places(allow),
            deny: without_places(deny),
            shadow: table.shadow.is_some_and(|shadow| shadow.value),
            when_lost: table
                .when_lost
                .or(self.when_lost)
                .map_or(OnOutage::default(), |word| word.value.into()),
            lease,
        };
        self.show_rule(table, domain, &rule);
        self.show_lease(table, &rule, store);
        self.outage(table, &rule, store);
        rule
    }

    fn check_name(&mut self, name: &Text) {
        let is_good = |c: char| c.is_ascii_alphanumeric() || " _.:-".contains(c);
        let text = name.value.as_str();
        let what = match text {
            "" => "a rule's name cannot be empty".to_owned(),
            _ if text.len() > LONGEST_NAME => {
                format!("a name of {} bytes is too long; at most {LONGEST_NAME}", text.len())
            }
            _ if text.trim() != text => "a name cannot begin or end with a space".to_owned(),
            _ => match text.chars().position(|c| !is_good(c)) {
                Some(at) => return self.fault(bad_character(self.inside(name, Some(at)), text, at)),
                None => return,
            },
        };
        self.fault(Fault::error("name", what).at(name.span).label("expected a short name, as in `per user`"));
    }
}

/// Conditions in a row.
fn listed(conditions: &[Condition]) -> String {
    conditions.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn without_places<T>(placed: Vec<Placed<T>>) -> Vec<T> {
    placed.into_iter().map(|(one, _)| one).collect()
}

fn too_many(number: usize, what: &str, span: Span) -> Fault {
    Fault::error("too-many", format!("{number} {what}"))
        .at(span)
        .label(format!("expected at most {MOST_PARTS}"))
}

fn bad_character(span: Span, text: &str, at: usize) -> Fault {
    let bad = text.chars().nth(at).unwrap_or(' ');
    Fault::error("name", format!("{bad:?} cannot be in a rule's name"))
        .at(span)
        .label("expected letters, digits, spaces and `_.:-`")
}

impl From<WhenLostWord> for OnOutage {
    fn from(word: WhenLostWord) -> Self {
        match word {
            WhenLostWord::Open => OnOutage::Open,
            WhenLostWord::Closed => OnOutage::Closed,
            WhenLostWord::Local => OnOutage::Local,
        }
    }
}
