//! What several threads were told about one key, put in order and asked again of somebody who is never in a hurry.
//!
//! Threads decide at the same time, so the order in which their verdicts are collected means nothing, and neither does that of
//! their clocks: who read the clock first may well charge last. But every charge leaves another state, and the verdict
//! tells which. *When all will be there again* grows with each charge to a bucket, and with each new window, cell or entry
//! of the others; and while it stays, what is used grows. So the charges sort by these two, and a refusal was made by
//! one of the states that are there again just when it says.
//!
//! In that order the oracle must give every answer to the unit and the microsecond. If it does, nothing passed too many,
//! nothing was refused that could have passed, no charge was lost and none was made twice. Each thread's own verdicts must come in
//! the order it asked for them. Whether two threads were served in the order in which they came is not looked at.

use std::collections::{BTreeMap, HashMap};

use crate::oracle::{Answer, Oracle, Time, Verdict};
use tidegate::{Decision, Outcome};

/// A verdict, and who was given it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) thread: usize,
    /// The how manieth verdict of the thread.
    pub(crate) number: usize,
    pub(crate) cost: u32,
    pub(crate) decision: Decision,
    /// Of a policy, the word of the rule that tells its states apart; else the decision again.
    pub(crate) ordering: Decision,
}

impl Told {
    /// When all will be there again.
    fn full_at(&self) -> Time {
        i128::from(self.ordering.at().get()) + i128::from(self.ordering.reset_after().as_micros())
    }

    fn used(&self) -> u64 {
        self.ordering.limit() - self.ordering.remaining()
    }

    fn at(&self) -> Time {
        i128::from(self.decision.at().get())
    }

    fn as_answer(&self) -> Answer {
        let verdict = match self.decision.outcome {
            Outcome::RetryAfter(wait) => Verdict::RetryAfter(wait.as_micros().into()),
            Outcome::Never => Verdict::Never,
            Outcome::Busy => panic!("a rate is never busy: {self:?}"),
            Outcome::Allowed | Outcome::AllowedAfter(_) => Verdict::Allowed,
        };
        Answer {
            verdict,
            limit: self.decision.limit().into(),
            remaining: self.decision.remaining().into(),
            reset_after: self.decision.reset_after().as_micros().into(),
            rule: self.decision.rule.0,
        }
    }
}

/// How many passed, and how many did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) refused: usize,
}

/// Asks `oracle`, which has not been used, everything that one key was asked.
pub(crate) fn replay<O: Oracle + Clone>(oracle: O, told: Vec<Told>) -> Tally {
    let (passed, refused): (Vec<Told>, Vec<Told>) =
        told.into_iter().partition(|told| told.decision.is_allowed());
    let tally = Tally { passed: passed.len(), refused: refused.len() };
    let mut replay = Replay { oracle, charges: 0, progress: HashMap::new() };
    let mut refused = generations(refused);
    for (full_at, charges) in generations(passed) {
        replay.generation(charges, refused.remove(&full_at).unwrap_or_default());
    }
    assert!(refused.is_empty(), "refused by states that no charge left: {refused:?}");
    replay.assert_in_order();
    tally
}

/// Verdicts by when all will be there again.
fn generations(told: Vec<Told>) -> BTreeMap<Time, Vec<Told>> {
    let mut generations: BTreeMap<Time, Vec<Told>> = BTreeMap::new();
    for told in told {
        generations.entry(told.full_at()).or_default().push(told);
    }
    generations
}

struct Replay<O> {
    oracle: O,
    /// How many charges were replayed.
    charges: usize,
    /// Of each thread, its verdicts by number, and how many charges came before.
    progress: HashMap<usize, Vec<(usize, usize)>>,
}

impl<O: Oracle + Clone> Replay<O> {
    /// The charges after which all will be there again at the same instant, and the refusals in between.
    fn generation(&mut self, mut charges: Vec<Told>, refused: Vec<Told>) {
        charges.sort_by_key(Told::used);
        let states: Vec<(usize, O)> = charges.iter().map(|told| self.charge(told)).collect();
        for told in refused {
            // The last state lasted longest, so most were refused by it.
            let answers = |state: &O| state.peek(told.at(), told.cost.into());
            let mut latest_first = states.iter().rev();
            let Some((charges, _)) = latest_first.find(|(_, state)| answers(state) == told.as_answer())
            else {
                let last = states.last().map(|(_, state)| answers(state));
                panic!("no state explains {told:?}; the last would have said {last:?}");
            };
            self.note(&told, *charges);
        }
    }

    /// Replays a charge, and returns the state after it.
    fn charge(&mut self, told: &Told) -> (usize, O) {
        let answer = self.oracle.decide(told.at(), told.cost.into());
        assert_eq!(answer, told.as_answer(), "the oracle's answer, and what was told: {told:?}");
        self.charges += 1;
        self.note(told, self.charges);
        (self.charges, self.oracle.clone())
    }

    fn note(&mut self, told: &Told, charges: usize) {
        self.progress.entry(told.thread).or_default().push((told.number, charges));
    }

    /// Each thread must have been told of the states in the order in which they came.
    fn assert_in_order(self) {
        for mut verdicts in self.progress.into_values() {
            verdicts.sort_unstable();
            assert!(verdicts.is_sorted_by_key(|(_, charges)| *charges), "told of an earlier state later");
        }
    }
}
