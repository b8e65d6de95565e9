//! # Which requests are meant

use ipnet::IpNet;

use super::Placed;
use crate::config::Reading;
use crate::config::decode::{OneOrMany, Text};
use crate::config::fault::Fault;
use crate::config::file::{ConditionTable, ConditionText, Match};
use crate::config::source::At;
use crate::rules::{Condition, Index, Networks, Test, Values, all_implied, canonical};

impl Reading<'_> {
    pub(super) fn lists(&mut self, lists: Option<&OneOrMany<Match>>) -> Vec<Placed<Vec<Condition>>> {
        let lists = lists.map_or(&[][..], |lists| &lists.0);
        lists.iter().map(|list| (self.conditions(list), list.span)).collect()
    }

    pub(super) fn conditions(&mut self, wanted: &Match) -> Vec<Condition> {
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

    pub(super) fn network(&mut self, text: &Text) -> Option<IpNet> {
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

    /// Whoever is denied cannot be allowed.
    pub(super) fn check_lists(&mut self, allow: &[Placed<Vec<Condition>>], deny: &[Placed<Vec<Condition>>]) {
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
}

/// The first list of an index that surely holds wherever `narrow` does. What an index knows by an exact value can be wider
/// only than what has one of those values.
pub(super) fn wider_than<'a>(
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
