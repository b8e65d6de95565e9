//! # What counts of a rule

use super::listed;
use crate::config::Reading;
use crate::config::decode::{OneOrMany, Text};
use crate::config::file::{Match, MissingWord, Quota, RuleTable, WhenLostWord};
use crate::config::show::Origin;
use crate::config::source::Span;
use crate::rules::{Condition, KeyPart, Rule};

impl Reading<'_> {
    pub(super) fn show_rule(&mut self, table: &RuleTable, domain: Option<&Text>, rule: &Rule) {
        let path = format!("rules.{}", rule.name);
        if let Some(domain) = domain {
            self.show_text(format!("{path}.domain"), &domain.value, domain);
        }
        if let Some(wanted) = &table.r#match {
            self.show_at(format!("{path}.match"), listed(&rule.conditions), wanted.span);
        }
        if let Some(key) = &table.key {
            let names: Vec<_> = rule.key.iter().map(KeyPart::name).collect();
            self.show_at(format!("{path}.key"), names.join(", "), key.span);
            let word = table.missing.map_or(MissingWord::Shared, |word| word.value).word();
            self.show_choice(format!("{path}.missing"), word, table.missing.map(|word| word.span));
        }
        self.show_quotas(&path, &table.quota);
        if let Some(cost) = &table.cost {
            self.show_at(format!("{path}.cost"), rule.cost.to_string(), cost.span);
        }
        for (one, meant) in table.overrides.iter().flatten().zip(&rule.overrides) {
            self.show_quotas(&format!("{path}.overrides[{}]", meant.label), &one.value.quota);
        }
        for (name, lists, meant) in [("allow", &table.allow, &rule.allow), ("deny", &table.deny, &rule.deny)]
        {
            self.show_lists(&format!("{path}.{name}"), lists.as_ref(), meant);
        }
        let shadow = table.shadow.map(|shadow| shadow.span);
        self.show_choice(format!("{path}.shadow"), if rule.shadow { "true" } else { "false" }, shadow);
        let said = table.when_lost.or(self.when_lost);
        let word = said.map_or(WhenLostWord::Local, |word| word.value).word();
        self.show_choice(format!("{path}.when_lost"), word, said.map(|word| word.span));
    }

    fn show_quotas(&mut self, path: &str, quotas: &OneOrMany<Quota>) {
        for Quota(text) in &quotas.0 {
            self.show_text(format!("{path}.quota"), text.value.trim(), text);
        }
    }

    pub(in crate::config) fn show_choice(&mut self, path: String, word: &str, span: Option<Span>) {
        let origin = span.map_or(Origin::Default, |span| self.origin(span, &[]));
        self.show(path, word, origin);
    }

    pub(super) fn show_lists(
        &mut self,
        path: &str,
        lists: Option<&OneOrMany<Match>>,
        meant: &[Vec<Condition>],
    ) {
        for (list, meant) in lists.iter().flat_map(|lists| &lists.0).zip(meant) {
            self.show_at(path, listed(meant), list.span);
        }
    }
}
