//! Tasks that send requests to one gate all the time, whatever happens to Redis, and record the decisions.
//!
//! The test divides time into phases. A decision belongs to a phase if its request was sent and decided in
//! it; decisions in flight when one phase ended and another began belong to neither.
#![allow(dead_code, reason = "no test binary uses all of it")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::Source;
use tidegate::gate::Part;
use tidegate_redis::RedisGate;
use tokio::task::JoinHandle;

use crate::exchange::{Exchange, PartSpec};
use crate::gates::eventually;

/// The pause between two requests of a task, so that a task with fast replies leaves the machine to others.
const PAUSE: Duration = Duration::from_millis(1);

/// A request with its decision, and the phase it belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) phase: Option<usize>,
    pub(crate) exchange: Exchange,
}

/// The decisions of all tasks.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) entries: Vec<Entry>,
    /// The reasons why Redis did not decide, each once.
    pub(crate) errors: BTreeSet<String>,
}

/// The tasks, until they are stopped.
#[derive(Debug)]
pub(crate) struct Load {
    state: Arc<State>,
    tasks: Vec<JoinHandle<Record>>,
}

#[derive(Debug)]
struct State {
    gate: RedisGate,
    /// Each task cycles through so many keys.
    keys: usize,
    phase: AtomicUsize,
    /// The number of decisions since the phase began.
    made: AtomicUsize,
    stopped: AtomicBool,
}

impl Load {
    /// Starts in phase 0.
    pub(crate) fn start(gate: &RedisGate, tasks: usize, keys: usize) -> Self {
        let state = Arc::new(State {
            gate: gate.clone(),
            keys,
            phase: AtomicUsize::new(0),
            made: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
        });
        let tasks = (0..tasks).map(|task| tokio::spawn(state.clone().send_requests(task))).collect();
        Load { state, tasks }
    }

    pub(crate) fn enter(&self, phase: usize) {
        self.state.phase.store(phase, Ordering::SeqCst);
        self.state.made.store(0, Ordering::SeqCst);
    }

    /// Waits until so many decisions were made in this phase.
    pub(crate) async fn decisions(&self, many: usize) {
        let made = async || (self.state.made.load(Ordering::SeqCst) >= many).then_some(());
        eventually(&format!("{many} decisions are made, {:?}", self.state.gate), made).await;
    }

    /// Stops the tasks and returns their record. No task has panicked.
    pub(crate) async fn stop(self) -> Record {
        self.state.stopped.store(true, Ordering::SeqCst);
        let mut all = Record::default();
        for task in self.tasks {
            let record = task.await.expect("no panic");
            all.entries.extend(record.entries);
            all.errors.extend(record.errors);
        }
        all
    }
}

impl State {
    async fn send_requests(self: Arc<Self>, task: usize) -> Record {
        let mut record = Record::default();
        let mut number = task;
        while !self.stopped.load(Ordering::SeqCst) {
            let before = self.phase.load(Ordering::SeqCst);
            let exchange = self.check(number % self.keys).await;
            let phase = Some(before).filter(|phase| *phase == self.phase.load(Ordering::SeqCst));
            if exchange.decision.source != Source::Strict {
                record.errors.extend(self.gate.health().last_error.map(|error| error.to_string()));
            }
            record.entries.push(Entry { phase, exchange });
            self.made.fetch_add(1, Ordering::SeqCst);
            number += 1;
            tokio::time::sleep(PAUSE).await;
        }
        record
    }

    async fn check(&self, key: usize) -> Exchange {
        let parts = vec![PartSpec::of(0, format!("k{key}"), 1)];
        let request: Vec<Part<'_>> = parts.iter().map(PartSpec::part).collect();
        let decision = self.gate.check_parts(&request).await.expect("a request").decision;
        Exchange { parts, decision }
    }
}

impl Record {
    pub(crate) fn in_phase(&self, phase: usize) -> impl Iterator<Item = &Exchange> {
        self.entries.iter().filter(move |entry| entry.phase == Some(phase)).map(|entry| &entry.exchange)
    }

    /// The decisions made by Redis, in any phase.
    pub(crate) fn strict(&self) -> impl Iterator<Item = &Exchange> {
        self.entries
            .iter()
            .map(|entry| &entry.exchange)
            .filter(|exchange| exchange.decision.source == Source::Strict)
    }

    pub(crate) fn made_by(&self, source: Source) -> u64 {
        self.entries.iter().filter(|entry| entry.exchange.decision.source == source).count() as u64
    }
}
