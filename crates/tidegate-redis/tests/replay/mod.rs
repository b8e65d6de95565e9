//! What Redis was asked and what it said, put in order and asked again of somebody who is never in a hurry.
//!
//! Redis decides on one request at a time and says when, to the microsecond; a script takes longer than one. So
//! however many processes asked, their requests have one order, and in that order the oracle of the core, which shares
//! no code with the script, must give every answer: who passes, which rule was the strictest, what remains, how long
//! to wait, and when all is there again. If it does, nobody passed too many and nobody was refused who could have
//! passed.
//!
//! Where some requests were charged and never answered, only half of that can be asked: see [`Replay::never_too_many`].
#![allow(dead_code, reason = "no test binary uses all of it")]

#[allow(dead_code, unused_imports, reason = "written for the core's tests, which use all of it")]
#[path = "../../../tidegate-core/tests/oracle/mod.rs"]
mod oracle;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use oracle::{Answer, Bucket, CellCounts, Log, Oldest, Oracle, Steps, Time, Verdict, Window};
use tidegate::{Algorithm, ClockKind, Decision, Micros, Outcome, Quota, Rule};

use crate::told::{Asked, Told};

/// A rule as a gate is given it, and what is right for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Right {
    pub(crate) text: &'static str,
    oracle: fn() -> Box<dyn Oracle>,
}

/// How many passed, and how many did not, by the rule that was the strictest.
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

pub(crate) const BUCKETS: &[Right] = &[
    Right { text: "61/s burst 20", oracle: || Box::new(Bucket::new(Quota::per_second(61).burst(20), CLOCK)) },
    Right { text: "37/s burst 7", oracle: || Box::new(Bucket::new(Quota::per_second(37).burst(7), CLOCK)) },
];

pub(crate) const EACH: &[Right] = &[
    Right { text: "37/s burst 7", oracle: || Box::new(Bucket::new(Quota::per_second(37).burst(7), CLOCK)) },
    Right {
        text: "leaky_queue 35/s queue 9 delay 2",
        oracle: || Box::new(Bucket::queue(Quota::per_second(35), 9, 2, ANY_WAIT, CLOCK)),
    },
    Right {
        text: "leaky_queue 35/s queue 9 delay 2 nginx",
        oracle: || Core::boxed("leaky_queue 35/s queue 9 delay 2 nginx"),
    },
    Right {
        text: "stepped_bucket 9 per 270ms burst 20",
        oracle: || Box::new(Steps::new(every(9, 270).burst(20), Duration::ZERO)),
    },
    Right {
        text: "fixed_window 20 per 540ms",
        oracle: || Box::new(Window::aligned(every(20, 540), Duration::ZERO)),
    },
    Right {
        text: "fixed_window 20 per 540ms from first hit",
        oracle: || Box::new(Window::from_first_hit(every(20, 540))),
    },
    Right { text: "sliding_log 20 per 540ms", oracle: || Box::new(Log::new(every(20, 540), 0)) },
    Right {
        text: "sliding_window 20 per 540ms cells 6",
        oracle: || Box::new(CellCounts::new(every(20, 540), 6, Oldest::InFull)),
    },
    Right {
        text: "sliding_window 20 per 541ms cells 7 interpolated",
        oracle: || Box::new(CellCounts::new(every(20, 541), 7, Oldest::InProportion)),
    },
    Right {
        text: "sliding_window 20 per 540ms cells 3 plain",
        oracle: || Box::new(CellCounts::new(every(20, 540), 3, Oldest::NotAtAll)),
    },
];

/// nginx's arithmetic has no oracle but itself, in the core.
struct Core {
    rule: Rule,
    words: Vec<u64>,
}

/// What was told, as an answer of the oracle's.
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

/// In the order in which Redis decided. No two at the same instant: then nobody could tell their order.
pub(crate) fn sorted(mut told: Vec<Told>) -> Vec<Told> {
    told.sort_by_key(Told::at);
    let same = told.windows(2).find(|pair| pair[0].at() == pair[1].at());
    assert!(same.is_none(), "two at one instant, though a script takes longer than a microsecond: {same:?}");
    told
}

/// The same rules, here.
pub(crate) struct Replay {
    rules: &'static [Right],
    states: HashMap<(u16, String), Box<dyn Oracle>>,
}

impl Replay {
    pub(crate) fn of(rules: &'static [Right]) -> Self {
        Replay { rules, states: HashMap::new() }
    }

    /// Every answer must be the oracle's, and nothing else was charged. Tells how often each rule was the strictest.
    pub(crate) fn exactly(mut self, told: &[Told]) -> Vec<Tally> {
        let mut tallies = vec![Tally::default(); self.rules.len()];
        for told in told {
            let right = self.decide(told);
            assert_eq!(right, answered(&told.decision), "the oracle's answer, and what was told: {told:?}");
            let tally = &mut tallies[usize::from(right.rule)];
            *(if told.decision.is_allowed() { &mut tally.passed } else { &mut tally.refused }) += 1;
        }
        tallies
    }

    /// Whoever passed could pass by what is known to have been charged. More may have been: by requests whose answer
    /// was lost.
    pub(crate) fn never_too_many(mut self, told: &[Told]) {
        for told in told.iter().filter(|told| told.decision.is_allowed()) {
            let right = self.decide(told);
            assert!(passes(&right), "too many: {told:?}; the oracle says {right:?}");
        }
    }

    /// All parts are asked, and charged only if all agree.
    fn decide(&mut self, told: &Told) -> Answer {
        let at = Time::from(told.at().get());
        let answers: Vec<Answer> =
            told.parts.iter().map(|part| self.state(part).peek(at, part.cost.into())).collect();
        let all = answers.iter().all(passes);
        for part in &told.parts {
            let state = self.state(part);
            if all {
                state.force(at, part.cost.into());
            } else {
                state.repair(at);
            }
        }
        strictest(&told.parts, answers)
    }

    fn state(&mut self, part: &Asked) -> &mut dyn Oracle {
        let fresh = self.rules[usize::from(part.rule)].oracle;
        self.states.entry((part.rule, part.key.clone())).or_insert_with(fresh).as_mut()
    }
}

fn passes(answer: &Answer) -> bool {
    answer.verdict < Verdict::RetryAfter(0)
}

/// By its own number, and not by its place in the request.
fn strictest(parts: &[Asked], answers: Vec<Answer>) -> Answer {
    let numbered = parts.iter().zip(answers).map(|(part, answer)| Answer { rule: part.rule, ..answer });
    let by_place = numbered
        .enumerate()
        .max_by_key(|(place, it)| (it.verdict, Reverse(it.remaining), it.reset_after, Reverse(*place)));
    by_place.expect("a request has parts").1
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
