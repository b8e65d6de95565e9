//! Sorts the requests and replies of Redis, and replays them on an oracle.
//!
//! Redis decides one request at a time and reports the instant of each decision in microseconds; a script
//! takes longer than one. So however many processes sent them, the requests have one order, and in that order
//! the oracle of the core, which shares no code with the script, must give every answer: which requests pass,
//! which rule is the strictest, what remains, how long to wait, and when the quota is full again. If it does,
//! no request passed in excess of the limit and none was refused that could have passed.
//!
//! Where some requests were charged but their replies were lost, only half of that can be checked: see
//! [`Replay::never_too_many`].
#![allow(dead_code, reason = "no test binary uses all of it")]

#[allow(dead_code, unused_imports, reason = "written for the core's tests, which use all of it")]
#[path = "../../../tidegate-core/tests/oracle/mod.rs"]
mod oracle;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use oracle::{Answer, Bucket, CellCounts, Log, Oldest, Oracle, Steps, Time, Verdict, Window};
use tidegate::algorithm::Algorithm;
use tidegate::clock::{ClockKind, Micros};
use tidegate::{Decision, Outcome, Quota, Rule};

use crate::exchange::{Exchange, PartSpec};

/// A rule as text for a gate, and the oracle for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OracleRule {
    pub(crate) text: &'static str,
    oracle: fn() -> Box<dyn Oracle>,
}

/// How many requests passed and how many did not, by the rule that was the strictest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) refused: usize,
}

const fn every(limit: u64, millis: u64) -> Quota {
    Quota::per(limit, Duration::from_millis(millis))
}

const CLOCK: ClockKind = ClockKind::MayStepBack;
const ANY_WAIT: Time = 1 << 53;

pub(crate) const BUCKETS: &[OracleRule] = &[
    OracleRule {
        text: "61/s burst 20",
        oracle: || Box::new(Bucket::new(Quota::per_second(61).burst(20), CLOCK)),
    },
    OracleRule {
        text: "37/s burst 7",
        oracle: || Box::new(Bucket::new(Quota::per_second(37).burst(7), CLOCK)),
    },
];

pub(crate) const EACH: &[OracleRule] = &[
    OracleRule {
        text: "37/s burst 7",
        oracle: || Box::new(Bucket::new(Quota::per_second(37).burst(7), CLOCK)),
    },
    OracleRule {
        text: "leaky_queue 35/s queue 9 delay 2",
        oracle: || Box::new(Bucket::queue(Quota::per_second(35), 9, 2, ANY_WAIT, CLOCK)),
    },
    OracleRule {
        text: "leaky_queue 35/s queue 9 delay 2 nginx",
        oracle: || Core::boxed("leaky_queue 35/s queue 9 delay 2 nginx"),
    },
    OracleRule {
        text: "stepped_bucket 9 per 270ms burst 20",
        oracle: || Box::new(Steps::new(every(9, 270).burst(20), Duration::ZERO)),
    },
    OracleRule {
        text: "fixed_window 20 per 540ms",
        oracle: || Box::new(Window::aligned(every(20, 540), Duration::ZERO)),
    },
    OracleRule {
        text: "fixed_window 20 per 540ms from first hit",
        oracle: || Box::new(Window::from_first_hit(every(20, 540))),
    },
    OracleRule { text: "sliding_log 20 per 540ms", oracle: || Box::new(Log::new(every(20, 540), 0)) },
    OracleRule {
        text: "sliding_window 20 per 540ms cells 6",
        oracle: || Box::new(CellCounts::new(every(20, 540), 6, Oldest::InFull)),
    },
    OracleRule {
        text: "sliding_window 20 per 541ms cells 7 interpolated",
        oracle: || Box::new(CellCounts::new(every(20, 541), 7, Oldest::InProportion)),
    },
    OracleRule {
        text: "sliding_window 20 per 540ms cells 3 plain",
        oracle: || Box::new(CellCounts::new(every(20, 540), 3, Oldest::NotAtAll)),
    },
];

/// nginx's arithmetic has no oracle but the implementation in the core.
struct Core {
    rule: Rule,
    words: Vec<u64>,
}

/// Converts a decision into an answer of the oracle.
fn answered(decision: &Decision) -> Answer {
    let verdict = match decision.outcome {
        Outcome::Allowed => Verdict::Allowed,
        Outcome::AllowedAfter(wait) => Verdict::AllowedAfter(wait.as_micros().into()),
        Outcome::RetryAfter(wait) => Verdict::RetryAfter(wait.as_micros().into()),
        Outcome::Never => Verdict::Never,
        Outcome::Busy => panic!("a rate is never busy: {decision:?}"),
    };
    Answer {
        verdict,
        limit: decision.limit().into(),
        remaining: decision.remaining().into(),
        reset_after: decision.reset_after().as_micros().into(),
        rule: decision.rule.0,
    }
}

/// Sorts into the order in which Redis decided. No two have the same instant: their order would be unknown.
pub(crate) fn sorted(mut exchanges: Vec<Exchange>) -> Vec<Exchange> {
    exchanges.sort_by_key(Exchange::at);
    let same = exchanges.windows(2).find(|pair| pair[0].at() == pair[1].at());
    assert!(same.is_none(), "two at one instant, though a script takes longer than a microsecond: {same:?}");
    exchanges
}

/// The oracles of the same rules, by rule and key.
pub(crate) struct Replay {
    rules: &'static [OracleRule],
    states: HashMap<(u16, String), Box<dyn Oracle>>,
}

impl Replay {
    pub(crate) fn of(rules: &'static [OracleRule]) -> Self {
        Replay { rules, states: HashMap::new() }
    }

    /// Every answer must be the oracle's, and nothing else was charged. Returns how often each rule was the
    /// strictest.
    pub(crate) fn exactly(mut self, exchanges: &[Exchange]) -> Vec<Tally> {
        let mut tallies = vec![Tally::default(); self.rules.len()];
        for exchange in exchanges {
            let right = self.decide(exchange);
            assert_eq!(
                right,
                answered(&exchange.decision),
                "the oracle's answer, and that of Redis: {exchange:?}"
            );
            let tally = &mut tallies[usize::from(right.rule)];
            *(if exchange.decision.is_allowed() { &mut tally.passed } else { &mut tally.refused }) += 1;
        }
        tallies
    }

    /// Every request that passed is allowed by what is known to have been charged. More may have been
    /// charged, by requests without a reply.
    pub(crate) fn never_too_many(mut self, exchanges: &[Exchange]) {
        for exchange in exchanges.iter().filter(|exchange| exchange.decision.is_allowed()) {
            let right = self.decide(exchange);
            assert!(passes(&right), "too many: {exchange:?}; the oracle says {right:?}");
        }
    }

    /// Peeks at all parts, and charges them only if all allow the request.
    fn decide(&mut self, exchange: &Exchange) -> Answer {
        let at = Time::from(exchange.at().get());
        let answers: Vec<Answer> =
            exchange.parts.iter().map(|part| self.state(part).peek(at, part.cost.into())).collect();
        let all = answers.iter().all(passes);
        for part in &exchange.parts {
            let state = self.state(part);
            if all {
                state.force(at, part.cost.into());
            } else {
                state.repair(at);
            }
        }
        strictest(&exchange.parts, answers)
    }

    fn state(&mut self, part: &PartSpec) -> &mut dyn Oracle {
        let fresh = self.rules[usize::from(part.rule)].oracle;
        self.states.entry((part.rule, part.key.clone())).or_insert_with(fresh).as_mut()
    }
}

fn passes(answer: &Answer) -> bool {
    answer.verdict < Verdict::RetryAfter(0)
}

/// The strictest answer, with its rule's own number instead of its position in the request.
fn strictest(parts: &[PartSpec], answers: Vec<Answer>) -> Answer {
    let numbered = parts.iter().zip(answers).map(|(part, answer)| Answer { rule: part.rule, ..answer });
    let by_position = numbered
        .enumerate()
        .max_by_key(|(position, it)| (it.verdict, Reverse(it.remaining), it.reset_after, Reverse(*position)));
    by_position.expect("a request has parts").1
}

impl Core {
    fn boxed(text: &str) -> Box<dyn Oracle> {
        let rule: Rule = text.parse().expect("a rule");
        Box::new(Core { rule, words: vec![0; rule.words()] })
    }
}

fn moment(at: Time, cost: i128) -> (Micros, u32) {
    (Micros::new(u64::try_from(at).expect("after 1970")), u32::try_from(cost).expect("a cost"))
}

impl Oracle for Core {
    fn peek(&self, now: Time, cost: i128) -> Answer {
        let (now, cost) = moment(now, cost);
        answered(&self.rule.peek(self.words.as_slice(), now, cost))
    }

    fn force(&mut self, now: Time, cost: i128) -> Answer {
        let (now, cost) = moment(now, cost);
        answered(&self.rule.force(self.words.as_mut_slice(), now, cost))
    }

    fn refund(&mut self, now: Time, cost: i128) {
        let (now, cost) = moment(now, cost);
        self.rule.refund(self.words.as_mut_slice(), now, cost);
    }

    fn repair(&mut self, now: Time) {
        self.rule.repair(self.words.as_mut_slice(), moment(now, 0).0);
    }

    fn reset(&mut self) {
        self.words.fill(0);
    }
}
