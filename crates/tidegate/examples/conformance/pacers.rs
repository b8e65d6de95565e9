//! # Pacers under test
//!
//! The bare algorithm, and the pacer that threads share, on a clock that advances by each wait, as a
//! sleeping caller sees it. To test another one, implement [`Paced`] and add a line to [`PACERS`].

use std::panic::{self, AssertUnwindSafe};

use tidegate::algorithm::Pacing;
use tidegate::clock::{Clock, Micros};
use tidegate::{ManualClock, Outcome, Pacer, Quota, Wait};

use super::format::{Act, Case, Step};
use super::pace::{Begins, PaceRow, PaceVerb};
use super::row::Expected;
use super::run::{Difference, difference, outcome_fits, outcome_text};

/// A new pacer at instant zero. Each operation happens at an instant, and none is earlier than the one
/// before.
pub(crate) trait Paced {
    /// Charges, if the wait is at most `within`. The error is how long the wait would be; if it is at most
    /// `within`, no wait is long enough.
    fn charge(&mut self, at: Micros, cost: u64, within: Wait) -> Result<Wait, Wait>;
    fn peek(&mut self, at: Micros) -> Result<Wait, Wait>;
    fn set_rate(&mut self, at: Micros, quota: Quota);
}

/// How a pacer is created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacerKind {
    pub(crate) name: &'static str,
    /// Whether the pacer can run the case.
    pub(crate) runs: fn(&Case) -> bool,
    pub(crate) make: fn(Pacing) -> Box<dyn Paced>,
}

/// All pacers that are tested.
pub(crate) const PACERS: &[PacerKind] = &[
    PacerKind { name: "pacing", runs: |_| true, make: |pacing| Box::new(Core { pacing, state: [0; 3] }) },
    PacerKind { name: "pacer", runs: has_small_costs, make: Memory::boxed },
];

/// The cost of a request to a pacer has 32 bits; the bare algorithm takes 64.
fn has_small_costs(case: &Case) -> bool {
    case.steps.iter().all(|step| match &step.act {
        Act::Pace(row) => u32::try_from(row.cost).is_ok(),
        _ => true,
    })
}

/// Runs a case about a pacer against a fresh one.
pub(crate) fn run(case: &Case, pacing: Pacing, kind: &PacerKind) -> Vec<Difference> {
    let mut run = Run { case, pacer: (kind.make)(pacing), now: Micros::ZERO, differences: Vec::new() };
    for step in &case.steps {
        if panic::catch_unwind(AssertUnwindSafe(|| run.step(step))).is_err() {
            run.differences.push(difference(case, step, "answer", "a panic", "an answer"));
            break;
        }
    }
    run.differences
}

struct Run<'a> {
    case: &'a Case,
    pacer: Box<dyn Paced>,
    /// The instant at which the wait of the last row ends.
    now: Micros,
    differences: Vec<Difference>,
}

impl Run<'_> {
    fn step(&mut self, step: &Step) {
        match &step.act {
            Act::Pace(row) => self.row(step, row),
            Act::SetRate { begins, quota } => {
                self.begin(*begins);
                self.pacer.set_rate(self.now, *quota);
            }
            Act::Ask(_) | Act::Change { .. } => {} // rules are run elsewhere
        }
    }

    fn begin(&mut self, begins: Begins) {
        self.now = match begins {
            Begins::At(instant) => self.now.max(instant),
            Begins::After(span) => self.now.plus(span),
        };
    }

    fn row(&mut self, step: &Step, row: &PaceRow) {
        self.begin(row.begins);
        let (mut passed, mut wrong) = (0, None);
        for index in 0..row.times {
            self.now = self.now.plus(if index == 0 { 0 } else { row.every });
            let outcome = self.ask(row);
            passed += u32::from(matches!(outcome, Outcome::Allowed | Outcome::AllowedAfter(_)));
            if wrong.is_none() && row.want.is_some_and(|want| !outcome_fits(want, outcome)) {
                wrong = Some((index, outcome));
            }
        }
        self.compare(step, row, passed, wrong);
    }

    /// Performs one request, and waits if the row is an `acquire`.
    fn ask(&mut self, row: &PaceRow) -> Outcome {
        let (within, waits) = match row.verb {
            PaceVerb::Acquire { within } => (Wait::micros(within.unwrap_or(u64::MAX)), true),
            PaceVerb::Reserve | PaceVerb::Peek => (Wait::micros(u64::MAX), false),
        };
        let answer = match row.verb {
            PaceVerb::Peek => self.pacer.peek(self.now),
            _ => self.pacer.charge(self.now, row.cost, within),
        };
        if let (Ok(wait), true) = (answer, waits) {
            self.now = self.now.plus(wait.as_micros());
        }
        outcome(answer, within)
    }

    fn compare(&mut self, step: &Step, row: &PaceRow, passed: u32, wrong: Option<(u32, Outcome)>) {
        let differs = match (row.want, wrong) {
            (Some(Expected::Pass { fewest, most }), _) if !(fewest..=most).contains(&passed) => {
                let want = if fewest == most { fewest.to_string() } else { format!("{fewest}..{most}") };
                difference(self.case, step, "passed", passed, want)
            }
            (Some(want), Some((index, outcome))) => {
                let column = if row.times == 1 {
                    "outcome".to_owned()
                } else {
                    format!("outcome of request {} of {}", index + 1, row.times)
                };
                difference(self.case, step, column, outcome_text(outcome), want)
            }
            _ => return,
        };
        self.differences.push(differs);
    }
}

/// Converts the answer to an outcome. A refusal ends when the rest of the wait is no longer than `within`.
fn outcome(answer: Result<Wait, Wait>, within: Wait) -> Outcome {
    match answer {
        Ok(wait) if wait == Wait::micros(0) => Outcome::Allowed,
        Ok(wait) => Outcome::AllowedAfter(wait),
        Err(wait) if wait <= within => Outcome::Never, // no wait is long enough
        Err(wait) => Outcome::RetryAfter(Wait::micros(wait.as_micros() - within.as_micros())),
    }
}

/// The bare algorithm and its state words.
struct Core {
    pacing: Pacing,
    state: [u64; 3],
}

impl Paced for Core {
    fn charge(&mut self, at: Micros, cost: u64, within: Wait) -> Result<Wait, Wait> {
        self.pacing.try_within(&mut self.state, at, cost, within).map(|reserved| reserved.wait())
    }

    fn peek(&mut self, at: Micros) -> Result<Wait, Wait> {
        self.pacing.peek(&self.state, at)
    }

    fn set_rate(&mut self, _: Micros, quota: Quota) {
        // A rate that a warm-up cannot represent exactly is refused, and the old rate stays.
        if let Ok(next) = self.pacing.with_quota(quota) {
            let from = self.state;
            next.migrate_from(&self.pacing, &from, &mut self.state);
            self.pacing = next;
        }
    }
}

/// The pacer that threads share.
struct Memory {
    pacer: Pacer<ManualClock>,
    clock: ManualClock,
}

impl Memory {
    fn boxed(pacing: Pacing) -> Box<dyn Paced> {
        let clock = ManualClock::new();
        Box::new(Memory { pacer: Pacer::builder_with(pacing).clock(clock.clone()).build(), clock })
    }

    fn move_to(&self, at: Micros) {
        self.clock.advance_to(at);
        debug_assert_eq!(self.clock.now(), at, "rows never step back");
    }
}

impl Paced for Memory {
    fn charge(&mut self, at: Micros, cost: u64, within: Wait) -> Result<Wait, Wait> {
        self.move_to(at);
        let cost = u32::try_from(cost).expect("cases with larger costs are not run");
        match self.pacer.request().cost(cost).timeout(within.duration()).reserve() {
            Ok(reservation) => {
                let wait = reservation.wait();
                reservation.keep();
                Ok(wait)
            }
            Err(refused) => Err(refused.retry_after().unwrap_or_default()),
        }
    }

    fn peek(&mut self, at: Micros) -> Result<Wait, Wait> {
        self.move_to(at);
        match self.pacer.request().peek().outcome {
            Outcome::RetryAfter(wait) => Ok(wait),
            Outcome::Never => Err(Wait::default()),
            _ => Ok(Wait::default()),
        }
    }

    fn set_rate(&mut self, at: Micros, quota: Quota) {
        self.move_to(at);
        let _ = self.pacer.set_rate(quota); // refused as above
    }
}
