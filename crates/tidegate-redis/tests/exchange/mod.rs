//! A request and its decision by Redis: workers print them, loads collect them and replays read them.
#![allow(dead_code, reason = "no program uses all of it")]

use tidegate::clock::Micros;
use tidegate::gate::{Part, RuleId};
use tidegate::{Decision, Outcome, Wait};

/// One part of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PartSpec {
    pub(crate) rule: u16,
    pub(crate) key: String,
    pub(crate) cost: u32,
}

/// A request, and its decision by Redis.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) parts: Vec<PartSpec>,
    pub(crate) decision: Decision,
}

impl PartSpec {
    pub(crate) fn of(rule: u16, key: impl Into<String>, cost: u32) -> Self {
        PartSpec { rule, key: key.into(), cost }
    }

    pub(crate) fn part(&self) -> Part<'_> {
        Part::of(RuleId(self.rule)).key(&self.key).cost(self.cost)
    }
}

impl Exchange {
    pub(crate) fn at(&self) -> Micros {
        self.decision.at()
    }

    /// Formats it as a line: `at outcome wait rule limit remaining reset`, and `rule/key/cost` of each part.
    pub(crate) fn line(&self) -> String {
        let Exchange { parts, decision } = self;
        let (outcome, wait) = match decision.outcome {
            Outcome::Allowed => (0, 0),
            Outcome::AllowedAfter(wait) => (1, wait.as_micros()),
            Outcome::RetryAfter(wait) => (2, wait.as_micros()),
            Outcome::Busy => (3, 0),
            Outcome::Never => (4, 0),
        };
        let (at, rule) = (decision.at().get(), decision.rule.0);
        let (limit, remaining, reset) =
            (decision.limit(), decision.remaining(), decision.reset_after().as_micros());
        let parts: String = parts.iter().map(|it| format!(" {}/{}/{}", it.rule, it.key, it.cost)).collect();
        format!("{at} {outcome} {wait} {rule} {limit} {remaining} {reset}{parts}")
    }

    /// Parses such a line.
    pub(crate) fn read(line: &str) -> Self {
        let mut words = line.split(' ');
        let numbers: Vec<u64> = words.by_ref().take(7).map(number).collect();
        let [at, outcome, wait, rule, limit, remaining, reset] = numbers[..] else { panic!("{line:?}") };
        let outcome = match outcome {
            0 => Outcome::Allowed,
            1 => Outcome::AllowedAfter(Wait::micros(wait)),
            2 => Outcome::RetryAfter(Wait::micros(wait)),
            3 => Outcome::Busy,
            4 => Outcome::Never,
            other => panic!("outcome {other} means nothing"),
        };
        let decision = Decision::counted(outcome, Micros::new(at), limit, remaining, Wait::micros(reset));
        let rule = RuleId(u16::try_from(rule).expect("rules have small numbers"));
        Exchange { parts: words.map(part).collect(), decision: decision.of_rule(rule) }
    }
}

fn number<N: TryFrom<u64>>(word: &str) -> N {
    let number = word.parse::<u64>().ok().and_then(|number| N::try_from(number).ok());
    number.unwrap_or_else(|| panic!("{word:?} is no such number"))
}

fn part(word: &str) -> PartSpec {
    match word.split('/').collect::<Vec<_>>()[..] {
        [rule, key, cost] => PartSpec::of(number(rule), key, number(cost)),
        _ => panic!("{word:?} is no part of a request"),
    }
}
