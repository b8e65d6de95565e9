//! The decisions of several threads about one key, sorted and replayed by a sequential oracle.
//!
//! Threads decide concurrently, so the order in which their decisions are collected means nothing, and
//! neither does the order of their clock readings: the thread that reads the clock first may charge last.
//! But every charge leaves a different state, and the decision identifies it. The instant at which the full
//! quota is available again grows with each charge to a bucket, and with each new window, cell or entry of
//! the other algorithms; while it stays the same, the used amount grows. So the charges sort by these two,
//! and a denial was made by one of the states whose full quota is available again at the instant that the
//! denial reports.
//!
//! In that order the oracle must give every answer to the unit and the microsecond. If it does, no request
//! was allowed beyond the limit, none was denied that could have been allowed, no charge was lost and none
//! was made twice. Each thread's own decisions must appear in the order of its calls. Whether two threads
//! were served in order of arrival is not checked.

use std::collections::{BTreeMap, HashMap};

use crate::oracle::{Answer, Oracle, Time, Verdict};
use tidegate::{Decision, Outcome};

/// A decision, and the thread that received it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) thread: usize,
    /// The index of the decision within the thread.
    pub(crate) number: usize,
    pub(crate) cost: u32,
    pub(crate) decision: Decision,
    /// For a policy, the decision of the rule that tells its states apart; otherwise the decision itself.
    pub(crate) ordering: Decision,
}

impl Record {
    /// The instant at which the full quota is available again.
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

/// The numbers of allowed and denied requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) denied: usize,
}

/// Replays all decisions about one key with `oracle`, which has to be unused.
pub(crate) fn replay<O: Oracle + Clone>(oracle: O, records: Vec<Record>) -> Tally {
    let (passed, denied): (Vec<Record>, Vec<Record>) =
        records.into_iter().partition(|record| record.decision.is_allowed());
    let tally = Tally { passed: passed.len(), denied: denied.len() };
    let mut replay = Replay { oracle, charges: 0, progress: HashMap::new() };
    let mut denied = generations(denied);
    for (full_at, charges) in generations(passed) {
        replay.generation(charges, denied.remove(&full_at).unwrap_or_default());
    }
    assert!(denied.is_empty(), "denied by states that no charge left: {denied:?}");
    replay.assert_in_order();
    tally
}

/// Groups decisions by the instant at which the full quota is available again.
fn generations(records: Vec<Record>) -> BTreeMap<Time, Vec<Record>> {
    let mut generations: BTreeMap<Time, Vec<Record>> = BTreeMap::new();
    for record in records {
        generations.entry(record.full_at()).or_default().push(record);
    }
    generations
}

struct Replay<O> {
    oracle: O,
    /// The number of replayed charges.
    charges: usize,
    /// For each thread, the index of each decision and the number of charges before it.
    progress: HashMap<usize, Vec<(usize, usize)>>,
}

impl<O: Oracle + Clone> Replay<O> {
    /// Replays the charges with the same instant of a full quota, and the denials in between.
    fn generation(&mut self, mut charges: Vec<Record>, denied: Vec<Record>) {
        charges.sort_by_key(Record::used);
        let states: Vec<(usize, O)> = charges.iter().map(|record| self.charge(record)).collect();
        for record in denied {
            // The last state lasts longest, so most denials come from it.
            let answers = |state: &O| state.peek(record.at(), record.cost.into());
            let mut latest_first = states.iter().rev();
            let Some((charges, _)) = latest_first.find(|(_, state)| answers(state) == record.as_answer())
            else {
                let last = states.last().map(|(_, state)| answers(state));
                panic!("no state explains {record:?}; the last one answers {last:?}");
            };
            self.note(&record, *charges);
        }
    }

    /// Replays a charge, and returns the state after it.
    fn charge(&mut self, record: &Record) -> (usize, O) {
        let answer = self.oracle.decide(record.at(), record.cost.into());
        assert_eq!(answer, record.as_answer(), "the oracle's answer and the recorded one differ: {record:?}");
        self.charges += 1;
        self.note(record, self.charges);
        (self.charges, self.oracle.clone())
    }

    fn note(&mut self, record: &Record, charges: usize) {
        self.progress.entry(record.thread).or_default().push((record.number, charges));
    }

    /// Asserts that each thread observed the states in the order of their charges.
    fn assert_in_order(self) {
        for mut decisions in self.progress.into_values() {
            decisions.sort_unstable();
            assert!(
                decisions.is_sorted_by_key(|(_, charges)| *charges),
                "a later decision observed an earlier state"
            );
        }
    }
}
