//! # The script as a subject
//!
//! The script is not a part of this program: the caller provides a server, and a clock that the vectors
//! set. This module has the common part: how the script is called, how its numbers are decoded, and what it
//! cannot know.
//!
//! Other subjects learn of a rule change at its instant. The script learns of it with the next request, and
//! knows of the past only what is stored in the key: a new rate counts from the last write, and cells are
//! recounted at the next request. So at the instant of a change the script is called with operations that
//! change nothing but are written: a charge and a refund of one unit under the old rule, and a cost above
//! the remaining quota under the new one.
//!
//! Even so the script does not know which fraction of a token, or of a step, had refilled at the old rate:
//! it counts whole ones, and the time since. [`LEFT_OUT`] lists the cases that only test this.

use tidegate::algorithm::Algorithm;
use tidegate::clock::Micros;
use tidegate::gate::RuleId;
use tidegate::{Decision, Outcome, Rule, Wait};

use super::format::Case;
use super::report::Played;
use super::run::{Difference, run_on};
use super::subject::{Answer, Subject};

/// Cases that the script lacks the information for.
pub(crate) const LEFT_OUT: [&str; 3] = [
    "other steps: what was used comes back at theirs",
    "fractions survive a change",
    "what does not come out even in a change is rounded against the key",
];

/// The script, on a server, with a clock that can be set.
pub(crate) trait Script {
    /// Calls the script at an instant, with an operation of `WIRE.md`. Each part of the request has the name
    /// of a state, its rule and a cost. Returns the numbers of the reply; none after an error.
    fn ask(&mut self, at: Micros, verb: &str, parts: &[(String, Rule, u32)]) -> Vec<u64>;
}

/// Runs a case with a new key, if the script supports the case.
pub(crate) fn play(case: &Case, script: &mut dyn Script, key: u64) -> Played {
    match reason_to_skip(case) {
        Some(because) => Played { differences: Vec::new(), steps: 0, because },
        None => Played::whole(case, differences(case, script, key)),
    }
}

/// The differences of a case, whether or not the script supports it.
pub(crate) fn differences(case: &Case, script: &mut dyn Script, key: u64) -> Vec<Difference> {
    let mut subject = Scripted { script, rules: case.rules.clone(), key };
    let named = |difference| Difference { subject: "script".to_owned(), ..difference };
    run_on(case, &case.steps, &mut subject).into_iter().map(named).collect()
}

fn reason_to_skip(case: &Case) -> Option<&'static str> {
    if case.pacing.is_some() {
        return Some("a pacer holds promises in its process, and the script has none");
    }
    let is_left_out = LEFT_OUT.contains(&case.name.as_str());
    is_left_out.then_some("the script does not know how much of a token had come back when a rule changed")
}

struct Scripted<'s> {
    script: &'s mut dyn Script,
    rules: Vec<Rule>,
    key: u64,
}

impl Scripted<'_> {
    fn ask(&mut self, at: Micros, verb: &str, cost: u32) -> Answer {
        let parts: Vec<_> =
            self.rules.iter().enumerate().map(|(index, rule)| (self.name(index), *rule, cost)).collect();
        let numbers = self.script.ask(at, verb, &parts);
        let each: Vec<_> =
            self.rules.iter().enumerate().map(|(index, rule)| decision(&numbers, index, rule)).collect();
        let binding = numbers.get(1).and_then(|binding| usize::try_from(*binding).ok()?.checked_sub(1));
        let decision = binding.and_then(|binding| each.get(binding).copied());
        let took = numbers.get(2 + 4 * self.rules.len()).and_then(|took| u32::try_from(*took).ok());
        Answer { decision: decision.unwrap_or(each[0]), took, each }
    }

    fn ask_one(&mut self, at: Micros, verb: &str, index: usize, rule: &Rule, cost: u32) -> Vec<u64> {
        self.script.ask(at, verb, &[(self.name(index), *rule, cost)])
    }

    fn name(&self, index: usize) -> String {
        format!("{}:{index}", self.key)
    }

    /// Makes the script write its state under the old rule.
    fn before_change(&mut self, at: Micros, index: usize, old: &Rule) {
        if matches!(old, Rule::TokenBucket(_) | Rule::LeakyQueue(_) | Rule::SteppedBucket(_)) {
            for verb in ["force", "refund"] {
                self.ask_one(at, verb, index, old, 1);
            }
        }
    }

    /// Makes the script write its state under the new rule.
    fn after_change(&mut self, at: Micros, index: usize, new: &Rule) {
        let Rule::SlidingWindow(_) = new else { return };
        let all = u32::try_from(limit(new)).unwrap_or(u32::MAX);
        if self.ask_one(at, "peek", index, new, all).get(2) == Some(&2) {
            self.ask_one(at, "check", index, new, all);
        }
    }
}

impl Subject for Scripted<'_> {
    fn check(&mut self, at: Micros, cost: u32) -> Answer {
        self.ask(at, "check", cost)
    }

    fn peek(&mut self, at: Micros, cost: u32) -> Answer {
        self.ask(at, "peek", cost)
    }

    fn force(&mut self, at: Micros, cost: u32) -> Answer {
        self.ask(at, "force", cost)
    }

    fn refund(&mut self, at: Micros, cost: u32) -> Answer {
        self.ask(at, "refund", cost)
    }

    fn reset(&mut self, at: Micros) -> Answer {
        self.ask(at, "reset", 0)
    }

    fn take(&mut self, at: Micros, most: u32) -> Answer {
        self.ask(at, "take", most)
    }

    fn change(&mut self, at: Micros, rules: &[Rule]) {
        let old = std::mem::replace(&mut self.rules, rules.to_vec());
        for (index, (old, new)) in old.iter().zip(rules).enumerate().filter(|(_, (old, new))| old != new) {
            self.before_change(at, index, old);
            self.after_change(at, index, new);
        }
    }
}

/// The script's decision for one rule; `Never` if the script returned nothing.
fn decision(numbers: &[u64], index: usize, rule: &Rule) -> Decision {
    let fields = numbers.get(2 + 4 * index..6 + 4 * index).unwrap_or(&[4, 0, 0, 0]);
    let wait = Wait::micros(fields[2]);
    let outcome = match fields[0] {
        0 => Outcome::Allowed,
        1 => Outcome::AllowedAfter(wait),
        2 => Outcome::RetryAfter(wait),
        3 => Outcome::Busy,
        _ => Outcome::Never,
    };
    let at = Micros::new(numbers.first().copied().unwrap_or_default());
    let decision = Decision::counted(outcome, at, limit(rule), fields[1], Wait::micros(fields[3]));
    decision.of_rule(RuleId(u16::try_from(index).unwrap_or(u16::MAX)))
}

/// The largest cost that a fresh state allows.
pub(crate) fn limit(rule: &Rule) -> u64 {
    rule.peek(vec![0; rule.words()].as_slice(), Micros::ZERO, 0).limit()
}
