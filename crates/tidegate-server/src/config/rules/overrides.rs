//! # Other limits for some
//!
//! The first override that fits counts, so one that is narrower than an earlier one never gets its turn. Whoever wrote
//! it thinks that it does.

use std::collections::HashMap;

use super::conditions::wider_than;
use super::{Placed, listed, without_places};
use crate::config::decode::{OneOrMany, Text};
use crate::config::fault::Fault;
use crate::config::file::{OverrideTable, RuleTable};
use crate::config::source::{At, Span};
use crate::config::{Reading, Store};
use crate::rules::{Condition, Cost, Index, KeyPart, Networks, Override, Test};

impl Reading<'_> {
    pub(super) fn overrides(
        &mut self,
        table: &RuleTable,
        key: &[KeyPart],
        conditions: &[Condition],
        cost: &Cost,
        store: &Store,
    ) -> Vec<Override> {
        let mut overrides: Vec<Placed<Override>> = Vec::new();
        let mut index = Index::default();
        for one in table.overrides.as_deref().unwrap_or_default() {
            if let Some(name) = &one.value.name {
                self.check_name(name);
            }
            let wanted = self.wanted(one, key);
            let limits = self.limits(&one.value.quota, store);
            self.check_cost(cost, table.cost.as_ref(), &limits);
            let span = one.value.place().unwrap_or(one.span);
            self.check_reach(&wanted, conditions, span, &overrides, &index);
            index.add_next(&wanted);
            let label = label(one.value.name.as_ref(), &wanted);
            let one = Override { label, conditions: wanted, limits: without_places(limits) };
            overrides.push((one, span));
        }
        self.check_labels(&overrides);
        without_places(overrides)
    }

    /// Whom an override is for.
    fn wanted(&mut self, one: &At<OverrideTable>, key: &[KeyPart]) -> Vec<Condition> {
        let mut conditions = match &one.value.r#match {
            Some(wanted) => self.conditions(wanted),
            None => Vec::new(),
        };
        match &one.value.key {
            Some(values) => conditions.extend(self.key_values(values, key)),
            None if one.value.r#match.is_none() => self.fault(
                Fault::error("missing-field", "an override has neither `match` nor `key`")
                    .at(one.span)
                    .label("expected whom it is for")
                    .help("add `match: {plan: gold}`, or `key:` and the values of the key"),
            ),
            None => {}
        }
        conditions
    }

    fn key_values(&mut self, values: &At<OneOrMany<Text>>, key: &[KeyPart]) -> Vec<Condition> {
        let texts = &values.value.0;
        if texts.len() != key.len() {
            let names: Vec<_> = key.iter().map(KeyPart::name).collect();
            let (label, help) = match names[..] {
                [] => (
                    "the rule has no `key`".to_owned(),
                    "add `key:` to the rule, or say whom it is for by `match`",
                ),
                _ => {
                    let names = names.join(", ");
                    (
                        format!("expected one value for each of: [{names}]"),
                        "write `*` for any value of a part",
                    )
                }
            };
            self.fault(
                Fault::error(
                    "key",
                    format!("{} for a key of {}", count(texts.len(), "value"), count(key.len(), "part")),
                )
                .at(values.span)
                .label(label)
                .help(help),
            );
        }
        let tests: Vec<_> = texts.iter().zip(key).map(|(text, part)| self.key_value(text, part)).collect();
        key.iter().zip(tests).map(|(part, test)| Condition::new(part.name(), test)).collect()
    }

    fn key_value(&mut self, text: &Text, part: &KeyPart) -> Test {
        match part {
            KeyPart::Network { .. } if text.value != "*" => Test::In(Networks::new(self.network(text))),
            _ => Test::text(&text.value),
        }
    }

    /// An override that an earlier one leaves nothing for, or that contradicts its rule, never gets its turn.
    fn check_reach(
        &mut self,
        wanted: &[Condition],
        rule: &[Condition],
        span: Span,
        earlier: &[Placed<Override>],
        index: &Index,
    ) {
        let narrow: Vec<_> = wanted.iter().chain(rule).cloned().collect();
        let wider = wider_than(&narrow, index, |number| &earlier[number].0.conditions);
        let wider = wider.map(|number| &earlier[number]);
        if let Some((_, first)) = wider {
            self.fault(
                Fault::error("unreachable", "this override never gets its turn")
                    .at(span)
                    .label("all that this fits")
                    .beside(*first, "is taken by this one")
                    .help("the first override that fits counts: put the narrower one first, or remove it"),
            );
        }
        let against = wanted.iter().find(|one| rule.iter().any(|other| contradicts(one, other)));
        if let Some(condition) = against {
            self.fault(
                Fault::warning("unreachable", "this override is for requests that its rule is not for")
                    .at(span)
                    .label(format!("`{condition}`, and the rule's own `match` says otherwise")),
            );
        }
    }

    fn check_labels(&mut self, overrides: &[Placed<Override>]) {
        let mut seen = HashMap::new();
        for (one, span) in overrides.iter().filter(|(one, _)| !one.label.is_empty()) {
            if let Some(first) = seen.insert(&one.label, *span) {
                self.fault(
                    Fault::error("name-twice", format!("two overrides are named `{}`", one.label))
                        .at(*span)
                        .label("again")
                        .beside(first, "first here")
                        .help("counts are kept by this name; rename one"),
                );
            }
        }
    }
}

/// Whether no single value can pass both, as far as that is plain to see.
fn contradicts(one: &Condition, other: &Condition) -> bool {
    let values = one.values().filter(|_| one.name == other.name && matches!(one.test, Test::OneOf(_)));
    values.is_some_and(|values| values.iter().all(|value| !other.holds(&[(&one.name, value)])))
}

/// What an override is called: as somebody named it, or by what it is for.
fn label(name: Option<&Text>, conditions: &[Condition]) -> String {
    match name {
        Some(name) => name.value.clone(),
        None => listed(conditions),
    }
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

impl OverrideTable {
    /// Where it says whom it is for.
    fn place(&self) -> Option<Span> {
        let wanted = self.r#match.as_ref().map(|wanted| wanted.span);
        wanted.or(self.key.as_ref().map(|key| key.span))
    }
}
