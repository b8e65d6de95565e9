//! # What the rules of a file mean
//!
//! Texts become limits, conditions and keys. What can be seen to be a mistake is one: a rule that lets nothing pass,
//! an override that never gets its turn, somebody who is allowed and denied.

use std::collections::HashMap;

use ipnet::IpNet;

use super::decode::{OneOrMany, Text};
use super::fault::Fault;
use super::file::{
    AddressTable, ConditionTable, ConditionText, CostTable, CostText, File, KeyText, Match, MissingWord,
    OverrideTable, Quota, RuleTable, WhenLostWord,
};
use super::limit::{self, has_room_for};
use super::show::Origin;
use super::source::{At, Span};
use super::{Reading, Store};
use crate::rules::{
    Condition, Cost, Index, KeyPart, Limit, Missing, Networks, Override, Rule, RuleSet, Test, Values,
    WhenLost, all_implied, canonical,
};

/// The longest name of a rule, in bytes. It is part of each key in Redis.
const LONGEST_NAME: usize = 64;
/// How many limits can be numbered, overrides counted.
const MOST_LIMITS: usize = u16::MAX as usize;
/// So many parts has a key, and so many quotas a rule, at the most.
const MOST_PARTS: usize = 32;
/// So much of a text is repeated in a sentence about it, in characters.
const LONGEST_SHOWN: usize = 60;
/// Half an IPv6 address: the other half is the subscriber's own.
const V6: u8 = 64;

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
        for name in tables.iter().map(|table| &table.value.name) {
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
        self.check_name(&table.name);
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
        let (allow, deny) = (self.lists(table.allow.as_ref()), self.lists(table.deny.as_ref()));
        self.check_lists(&allow, &deny);
        let rule = Rule {
            name: table.name.value.clone(),
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
            when_lost: table.when_lost.map_or(WhenLost::default(), |word| word.value.into()),
        };
        self.show_rule(table, domain, &rule);
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

    // === what it is for ===

    fn lists(&mut self, lists: Option<&OneOrMany<Match>>) -> Vec<Placed<Vec<Condition>>> {
        let lists = lists.map_or(&[][..], |lists| &lists.0);
        lists.iter().map(|list| (self.conditions(list), list.span)).collect()
    }

    fn conditions(&mut self, wanted: &Match) -> Vec<Condition> {
        let mut read = |(name, text): &(At<String>, ConditionText)| {
            if name.value.is_empty() {
                self.fault(
                    Fault::error("name", "a descriptor has a name").at(name.span).label("expected a name"),
                );
            }
            Condition::new(name.value.as_str(), self.test(text))
        };
        wanted.conditions.iter().map(&mut read).collect()
    }

    fn test(&mut self, text: &ConditionText) -> Test {
        match text {
            ConditionText::Text(text) => {
                self.warn_of_network(text);
                Test::text(&text.value)
            }
            ConditionText::List(texts) => Test::any_of(texts.iter().map(|text| self.test(text)).collect()),
            ConditionText::Table(table) => self.test_table(table),
        }
    }

    fn test_table(&mut self, table: &ConditionTable) -> Test {
        let ConditionTable { exact, prefix, cidr, not } = table;
        let mut tests = Vec::new();
        if let Some(OneOrMany(texts)) = exact {
            tests.push(Test::OneOf(Values::new(texts.iter().map(|text| text.value.as_str().into()))));
        }
        if let Some(OneOrMany(texts)) = prefix {
            tests.push(Test::any_of(
                texts.iter().map(|text| Test::Prefix(text.value.as_str().into())).collect(),
            ));
        }
        if let Some(OneOrMany(texts)) = cidr {
            tests.push(Test::In(Networks::new(texts.iter().filter_map(|text| self.network(text)))));
        }
        if let Some(text) = not {
            tests.push(Test::Not(Box::new(self.test(text))));
        }
        Test::all_of(tests)
    }

    fn network(&mut self, text: &Text) -> Option<IpNet> {
        let fault = |what: String, help: Option<String>| {
            Fault::error("network", what)
                .at(text.span)
                .label("expected a network, as in 10.0.0.0/8 or 2001:db8::/32")
                .maybe_help(help)
        };
        let given = text.value.as_str();
        let network = match given.parse::<std::net::IpAddr>() {
            Ok(address) => Ok(IpNet::from(address)),
            Err(_) => given.parse::<IpNet>(),
        };
        let Ok(network) = network else {
            self.fault(fault(format!("`{given}` is no network"), None));
            return None;
        };
        if network.trunc() != network {
            let (address, whole) = (network.addr(), canonical(network));
            let help = format!("write `{whole}` for the network, or `{address}` for the one address");
            self.fault(fault(format!("`{given}` is an address within a network"), Some(help)));
        }
        Some(network)
    }

    fn warn_of_network(&mut self, text: &Text) {
        if text.value.parse::<IpNet>().is_ok() {
            let given = &text.value;
            self.fault(
                Fault::warning(
                    "network-as-text",
                    format!("`{given}` is compared as a text, and no address is equal to it"),
                )
                .at(text.span)
                .label("looks like a network")
                .help(format!("write `{{cidr: {given}}}`")),
            );
        }
    }

    // === whose limit it is ===

    fn key(&mut self, key: Option<&At<OneOrMany<KeyText>>>) -> Vec<KeyPart> {
        let parts = key.map_or(&[][..], |key| &key.value.0);
        if let Some(key) = key.filter(|_| parts.len() > MOST_PARTS) {
            self.fault(too_many(parts.len(), "parts in a key", key.span));
            return Vec::new();
        }
        let mut seen: Vec<(&str, Span)> = Vec::new();
        for text in parts.iter().map(KeyText::text) {
            if let Some((_, first)) = seen.iter().find(|(name, _)| *name == text.value) {
                let message = format!("`{}` is twice in the key", text.value);
                self.fault(
                    Fault::error("twice", message).at(text.span).label("again").beside(*first, "first here"),
                );
            }
            if text.value.is_empty() {
                self.fault(
                    Fault::error("name", "a descriptor has a name").at(text.span).label("expected a name"),
                );
            }
            seen.push((&text.value, text.span));
        }
        parts.iter().map(|part| self.key_part(part)).collect()
    }

    fn key_part(&mut self, part: &KeyText) -> KeyPart {
        match part {
            KeyText::Name(name) => KeyPart::Value(name.value.as_str().into()),
            KeyText::Address(table) => {
                let AddressTable { address, v4, v6 } = &table.value;
                let (v4, v6) = (self.bits(v4.as_ref(), 32, 32), self.bits(v6.as_ref(), 128, V6));
                KeyPart::Network { name: address.value.as_str().into(), v4, v6 }
            }
        }
    }

    fn bits(&mut self, bits: Option<&At<u8>>, most: u8, otherwise: u8) -> u8 {
        let Some(At { value, span }) = bits else { return otherwise };
        if *value == 0 || *value > most {
            self.fault(
                Fault::error("value", format!("{value} bits of an address that has {most}"))
                    .at(*span)
                    .label(format!("expected 1 to {most}")),
            );
        }
        *value
    }

    fn missing(&mut self, table: &RuleTable, key: &[KeyPart], conditions: &[Condition]) -> Missing {
        let open = key.iter().find(|part| !is_ensured(part, conditions)).map(KeyPart::name);
        match (table.missing, open) {
            (Some(said), _) if key.is_empty() => self.fault(
                Fault::error("missing", "nothing can be missing from a rule without a key")
                    .at(said.span)
                    .label("expected `key` beside this"),
            ),
            (None, Some(name)) => self.fault(
                Fault::warning("missing-unsaid", format!("requests without `{name}` will share one key"))
                    .at(table.key.as_ref().map_or(table.name.span, |key| key.span))
                    .label(format!("`{name}` may be missing"))
                    .help(
                        "say `missing: shared` if that is right, `skip` not to limit them here, or `reject`",
                    ),
            ),
            _ => {}
        }
        table.missing.map_or(Missing::default(), |word| word.value.into())
    }

    // === how much ===

    fn limits(&mut self, quotas: &OneOrMany<Quota>, store: &Store) -> Vec<Placed<Limit>> {
        let mut limits: Vec<Placed<Limit>> = Vec::new();
        if let Some(Quota(beyond)) = quotas.0.get(MOST_PARTS) {
            self.fault(too_many(quotas.0.len(), "quotas in one rule", beyond.span));
            return limits;
        }
        for Quota(text) in &quotas.0 {
            let Some(limit) = self.limit(text) else { continue };
            if let Some((_, first)) = limits.iter().find(|(other, _)| *other == limit) {
                let message = format!("the quota `{}` is there twice", text.value);
                self.fault(
                    Fault::error("twice", message).at(text.span).label("again").beside(*first, "first here"),
                );
            }
            self.check_store(&limit, store, text.span);
            limits.push((limit, text.span));
        }
        limits
    }

    fn limit(&mut self, text: &Text) -> Option<Limit> {
        limit::parse(&text.value)
            .map_err(|wrong| {
                let span = self.inside(text, wrong.at);
                self.fault(
                    Fault::error("quota", format!("`{}` is no quota", one_line(&text.shown())))
                        .at(span)
                        .label(wrong.what)
                        .maybe_help(wrong.help),
                );
            })
            .ok()
    }

    /// What a Redis cannot do.
    fn check_store(&mut self, limit: &Limit, store: &Store, span: Span) {
        let Store::Redis(_) = store else { return };
        let what = match limit {
            Limit::AtOnce { lease, .. } if lease.as_millis() < 100 => {
                "a lease of less than 100ms cannot be renewed in time through Redis"
            }
            Limit::Rate(rate) => match (rate.setting().letter(), rate.setting().numbers()) {
                (b'c', [_, period, cells, _]) if period.saturating_mul(*cells) >= 1 << 53 => {
                    "so many cells in so long a window cannot be counted exactly in Redis; take fewer"
                }
                _ => return,
            },
            Limit::AtOnce { .. } => return,
        };
        self.fault(Fault::error("store", what).at(span).label("too much for this store"));
    }

    fn cost(&mut self, cost: Option<&At<CostText>>) -> Cost {
        let Some(At { value, span }) = cost else { return Cost::Asked };
        match value {
            CostText::Fixed(0) => {
                self.fault(zero(*span, "a cost of 0 takes nothing, so the rule would limit nothing"));
                Cost::Asked
            }
            CostText::Fixed(cost) => Cost::Fixed(*cost),
            CostText::From(table) => {
                let CostTable { from, per, missing } = &**table;
                if let Some(At { value: 0, span }) = per {
                    self.fault(zero(*span, "nothing can be counted in units of 0"));
                }
                let per = per.map_or(1, |per| per.value.max(1));
                let name = from.value.as_str().into();
                Cost::From { name, per, missing: missing.map(|missing| missing.value) }
            }
        }
    }

    fn check_cost(&mut self, cost: &Cost, text: Option<&At<CostText>>, limits: &[Placed<Limit>]) {
        let (Some(text), Cost::Fixed(cost) | Cost::From { missing: Some(cost), .. }) = (text, cost) else {
            return;
        };
        for (_, quota) in limits.iter().filter(|(limit, _)| !has_room_for(limit, *cost)) {
            self.fault(
                Fault::error("cost", format!("a request costs {cost}, and never so much is free at once"))
                    .at(*quota)
                    .label("too small for the cost")
                    .beside(text.span, "the cost")
                    .help("raise the burst, or lower the cost"),
            );
        }
    }

    // === other limits for some ===

    fn overrides(
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
            self.fault(
                Fault::error(
                    "key",
                    format!("{} for a key of {}", count(texts.len(), "value"), count(key.len(), "part")),
                )
                .at(values.span)
                .label(format!("expected one value for each of: [{}]", names.join(", ")))
                .help("write `*` for any value of a part"),
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

    /// Whoever is denied cannot be allowed.
    fn check_lists(&mut self, allow: &[Placed<Vec<Condition>>], deny: &[Placed<Vec<Condition>>]) {
        let index = Index::of(deny.iter().map(|(denied, _)| denied.as_slice()).enumerate());
        for (allowed, span) in allow {
            if let Some(number) = wider_than(allowed, &index, |number| &deny[number].0) {
                self.fault(
                    Fault::error("allow-and-deny", "the same is allowed and denied")
                        .at(*span)
                        .label("allowed here, to no effect")
                        .beside(deny[number].1, "and denied here, which is stronger"),
                );
            }
        }
    }

    fn show_rule(&mut self, table: &RuleTable, domain: Option<&Text>, rule: &Rule) {
        let path = format!("rules.{}", table.name.value);
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
        let word = table.when_lost.map_or(WhenLostWord::Local, |word| word.value).word();
        self.show_choice(format!("{path}.when_lost"), word, table.when_lost.map(|word| word.span));
    }

    fn show_quotas(&mut self, path: &str, quotas: &OneOrMany<Quota>) {
        for Quota(text) in &quotas.0 {
            self.show_text(format!("{path}.quota"), text.value.trim(), text);
        }
    }

    fn show_choice(&mut self, path: String, word: &str, span: Option<Span>) {
        let origin = span.map_or(Origin::Default, |span| self.origin(span, &[]));
        self.show(path, word, origin);
    }

    fn show_lists(&mut self, path: &str, lists: Option<&OneOrMany<Match>>, meant: &[Vec<Condition>]) {
        for (list, meant) in lists.iter().flat_map(|lists| &lists.0).zip(meant) {
            self.show_at(path, listed(meant), list.span);
        }
    }
}

/// Conditions in a row.
fn listed(conditions: &[Condition]) -> String {
    conditions.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The first list of an index that surely holds wherever `narrow` does. What an index knows by an exact value can be wider
/// only than what has one of those values.
fn wider_than<'a>(
    narrow: &[Condition],
    index: &Index,
    list: impl Fn(usize) -> &'a Vec<Condition>,
) -> Option<usize> {
    let exact = narrow.iter().filter_map(|one| Some((&*one.name, one.values()?.iter().next()?)));
    let (exact, mut numbers): (Vec<_>, _) = (exact.collect(), Vec::new());
    index.candidates(&exact, &mut numbers);
    let is_wider = |number: &usize| !list(*number).is_empty() && all_implied(narrow, list(*number));
    numbers.into_iter().map(|number| number as usize).filter(|_| !narrow.is_empty()).find(is_wider)
}

/// Whether requests that meet the conditions surely have this part of the key.
fn is_ensured(part: &KeyPart, conditions: &[Condition]) -> bool {
    conditions.iter().filter(|condition| *condition.name == *part.name()).any(|condition| match part {
        KeyPart::Value(_) => condition.needs_presence(),
        KeyPart::Network { .. } => matches!(condition.test, Test::In(_)),
    })
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

fn without_places<T>(placed: Vec<Placed<T>>) -> Vec<T> {
    placed.into_iter().map(|(one, _)| one).collect()
}

fn too_many(number: usize, what: &str, span: Span) -> Fault {
    Fault::error("too-many", format!("{number} {what}"))
        .at(span)
        .label(format!("expected at most {MOST_PARTS}"))
}

/// A text as part of a sentence: in one line, and not longer than a line.
fn one_line(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(LONGEST_SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

fn zero(span: Span, what: &str) -> Fault {
    Fault::error("zero", what).at(span).label("expected 1 or more")
}

fn bad_character(span: Span, text: &str, at: usize) -> Fault {
    let bad = text.chars().nth(at).unwrap_or(' ');
    Fault::error("name", format!("{bad:?} cannot be in a rule's name"))
        .at(span)
        .label("expected letters, digits, spaces and `_.:-`")
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

impl KeyText {
    fn text(&self) -> &Text {
        match self {
            KeyText::Name(text) => text,
            KeyText::Address(table) => &table.value.address,
        }
    }
}

impl OverrideTable {
    /// Where it says whom it is for.
    fn place(&self) -> Option<Span> {
        let wanted = self.r#match.as_ref().map(|wanted| wanted.span);
        wanted.or(self.key.as_ref().map(|key| key.span))
    }
}

impl From<MissingWord> for Missing {
    fn from(word: MissingWord) -> Self {
        match word {
            MissingWord::Shared => Missing::Shared,
            MissingWord::Skip => Missing::Skip,
            MissingWord::Reject => Missing::Reject,
        }
    }
}

impl From<WhenLostWord> for WhenLost {
    fn from(word: WhenLostWord) -> Self {
        match word {
            WhenLostWord::Open => WhenLost::Open,
            WhenLostWord::Closed => WhenLost::Closed,
            WhenLostWord::Local => WhenLost::Local,
        }
    }
}
