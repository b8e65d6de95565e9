//! # Running a case
//!
//! A case is run against a subject line by line, and each answer is compared with what the file expects.
//! The whole case is run even after a difference: the rows that follow often show what kind of mistake it
//! is.
//!
//! The expected outcome applies to every request of a row; remaining, reset and rule are compared after the
//! last one. A subject that panics counts as a difference, and its case ends there.

use std::fmt::{self, Debug};
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use tidegate::clock::Micros;
use tidegate::{Decision, Outcome, Rule};

use super::format::{Act, Case, Step};
use super::row::{self, Expected, Row, Values, Verb, Within};
use super::subject::{Answer, Kind, Subject};

/// A result that differs from what the file expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) line: usize,
    pub(crate) case: String,
    /// The subject's name; filled in when equal differences of several subjects are merged.
    pub(crate) subject: String,
    pub(crate) row: String,
    pub(crate) column: String,
    pub(crate) got: String,
    pub(crate) want: String,
}

/// Runs a case against a fresh subject of a kind.
pub(crate) fn run(case: &Case, kind: &Kind) -> Vec<Difference> {
    run_on(case, &case.steps, (kind.make)(&case.rules).as_mut())
}

/// Runs the given first steps of a case on a fresh subject.
pub(crate) fn run_on(case: &Case, steps: &[Step], subject: &mut dyn Subject) -> Vec<Difference> {
    let mut run = Run { case, rules: case.rules.clone(), differences: Vec::new() };
    for step in steps {
        let result = panic::catch_unwind(AssertUnwindSafe(|| run.step(subject, step)));
        if result.is_err() {
            run.differs(step, "answer", "a panic", "an answer");
            break;
        }
    }
    run.differences
}

struct Run<'a> {
    case: &'a Case,
    rules: Vec<Rule>,
    differences: Vec<Difference>,
}

impl Run<'_> {
    fn step(&mut self, subject: &mut dyn Subject, step: &Step) {
        match &step.act {
            Act::Ask(row) => self.ask(subject, step, row),
            Act::Change { position, rule } => {
                self.rules[*position] = *rule;
                subject.change(step.at, &self.rules);
            }
            Act::Pace(_) | Act::SetRate { .. } => {} // pacers are run elsewhere
        }
    }

    fn ask(&mut self, subject: &mut dyn Subject, step: &Step, row: &Row) {
        let (mut passed, mut wrong) = (0, None);
        for index in 0..row.times {
            let answer = apply(subject, row, row::instant_of(step.at, row.every, index));
            passed += u32::from(answer.decision.is_allowed());
            if wrong.is_none() && !fits(row.want.outcome, &answer) {
                wrong = Some((index, answer_text(&answer)));
            }
            if index + 1 == row.times {
                self.compare(step, row, &answer);
            }
        }
        self.outcomes(step, row, passed, wrong);
    }

    /// Compares the outcomes of all requests of a row, and reports the first difference.
    fn outcomes(&mut self, step: &Step, row: &Row, passed: u32, wrong: Option<(u32, String)>) {
        match (row.want.outcome, wrong) {
            (Some(Expected::Pass { fewest, most }), _) if !(fewest..=most).contains(&passed) => {
                let want = if fewest == most { fewest.to_string() } else { format!("{fewest}..{most}") };
                self.differs(step, "passed", passed, want);
            }
            (Some(expected), Some((_, got))) if row.times == 1 => {
                self.differs(step, "outcome", got, expected);
            }
            (Some(expected), Some((index, got))) => {
                let column = format!("outcome of request {} of {}", index + 1, row.times);
                self.differs(step, column, got, expected);
            }
            _ => {}
        }
    }

    /// Compares all columns except the outcome.
    fn compare(&mut self, step: &Step, row: &Row, answer: &Answer) {
        let want = &row.want;
        self.values(step, "remaining", answer, want.remaining.as_ref(), Decision::remaining, u64::eq);
        self.values(step, "reset", answer, want.reset.as_ref(), Decision::reset_after, |got, want| {
            want.holds(got.duration())
        });
        self.values(step, "limit", answer, want.limit.as_ref(), Decision::limit, u64::eq);
        let got = usize::from(answer.decision.rule.0);
        if let Some(want) = want.rule.filter(|&want| want != got) {
            self.differs(step, "rule", self.rule_name(got), self.rule_name(want));
        }
    }

    fn values<G: Debug, W: Debug>(
        &mut self,
        step: &Step,
        column: &str,
        answer: &Answer,
        want: Option<&Values<W>>,
        of: impl Fn(&Decision) -> G,
        holds: impl Fn(&G, &W) -> bool,
    ) {
        match want {
            None => {}
            Some(Values::Lone(want)) => {
                let got = of(&answer.decision);
                if !holds(&got, want) {
                    self.differs(step, column, format_args!("{got:?}"), format_args!("{want:?}"));
                }
            }
            Some(Values::Each(wants)) => {
                for (position, (decision, want)) in answer.each.iter().zip(wants).enumerate() {
                    let got = of(decision);
                    if let Some(want) = want.as_ref().filter(|want| !holds(&got, want)) {
                        let column = format!("{column} of rule {}", self.rule_name(position));
                        self.differs(step, column, format_args!("{got:?}"), format_args!("{want:?}"));
                    }
                }
            }
        }
    }

    fn rule_name(&self, position: usize) -> String {
        match self.case.names.get(position) {
            Some(Some(name)) => name.clone(),
            _ => (position + 1).to_string(),
        }
    }

    fn differs(
        &mut self,
        step: &Step,
        column: impl fmt::Display,
        got: impl fmt::Display,
        want: impl fmt::Display,
    ) {
        self.differences.push(difference(self.case, step, column, got, want));
    }
}

/// The difference in one column of a step.
pub(crate) fn difference(
    case: &Case,
    step: &Step,
    column: impl fmt::Display,
    got: impl fmt::Display,
    want: impl fmt::Display,
) -> Difference {
    Difference {
        line: step.line,
        case: case.name.clone(),
        subject: String::new(),
        row: step.text.clone(),
        column: column.to_string(),
        got: got.to_string(),
        want: want.to_string(),
    }
}

fn apply(subject: &mut dyn Subject, row: &Row, at: Micros) -> Answer {
    match row.verb {
        Verb::Check => subject.check(at, row.cost),
        Verb::Peek => subject.peek(at, row.cost),
        Verb::Force => subject.force(at, row.cost),
        Verb::Refund => subject.refund(at, row.cost),
        Verb::Reset => subject.reset(at),
        Verb::Take => subject.take(at, row.cost),
    }
}

fn fits(want: Option<Expected>, answer: &Answer) -> bool {
    match want {
        None => true,
        Some(Expected::Took(amount)) => answer.took == Some(amount),
        Some(want) => outcome_fits(want, answer.decision.outcome),
    }
}

pub(crate) fn outcome_fits(want: Expected, got: Outcome) -> bool {
    match (want, got) {
        (Expected::Pass { .. }, _) => true, // counted over the whole row
        (Expected::Allow, outcome) => outcome == Outcome::Allowed,
        (Expected::After(wait), Outcome::Allowed) => wait.holds(Duration::ZERO),
        (Expected::After(wait), Outcome::AllowedAfter(got)) => wait.holds(got.duration()),
        (Expected::Retry(wait), Outcome::RetryAfter(got)) => wait.holds(got.duration()),
        (Expected::Refuse, outcome) => matches!(outcome, Outcome::RetryAfter(_)),
        (Expected::Never, outcome) => outcome == Outcome::Never,
        _ => false,
    }
}

/// The outcome in the words of a vector file.
fn answer_text(answer: &Answer) -> String {
    if let Some(amount) = answer.took {
        return format!("took {amount}");
    }
    outcome_text(answer.decision.outcome)
}

pub(crate) fn outcome_text(outcome: Outcome) -> String {
    match outcome {
        Outcome::Allowed => "allow".to_owned(),
        Outcome::AllowedAfter(wait) => format!("after {wait}"),
        Outcome::RetryAfter(wait) => format!("retry {wait}"),
        Outcome::Busy => "busy".to_owned(),
        Outcome::Never => "never".to_owned(),
    }
}

impl Within {
    fn holds(self, got: Duration) -> bool {
        (Duration::from_micros(self.least)..=Duration::from_micros(self.most)).contains(&got)
    }
}

impl Debug for Within {
    /// Formats a length of time; an interval by its ends.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_micros(self.least))?;
        if self.most > self.least {
            write!(f, "..{:?}", Duration::from_micros(self.most))?;
        }
        Ok(())
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Allow => f.write_str("allow"),
            Expected::After(wait) => write!(f, "after {wait:?}"),
            Expected::Retry(wait) => write!(f, "retry {wait:?}"),
            Expected::Refuse => f.write_str("refuse"),
            Expected::Never => f.write_str("never"),
            Expected::Took(amount) => write!(f, "took {amount}"),
            Expected::Pass { fewest, most } => write!(f, "pass {fewest}..{most}"),
        }
    }
}
