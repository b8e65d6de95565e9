//! Tasks that ask one gate all the time, whatever happens to Redis, and write down what they are told.
//!
//! What happens is divided into phases by whoever makes it happen. A decision belongs to a phase if it was asked for
//! and made in it; those that were under way when one phase ended and another began belong to neither.
#![allow(dead_code, reason = "no test binary uses all of it")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::{Part, Source};
use tidegate_redis::RedisGate;
use tokio::task::JoinHandle;

use crate::gates::eventually;
use crate::told::{Asked, Told};

/// Between two askings of a task, so that one that is answered at once leaves the machine to others.
const PAUSE: Duration = Duration::from_millis(1);

/// What a task was told, and in which phase.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) phase: Option<usize>,
    pub(crate) told: Told,
}

/// What all tasks were told.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) heard: Vec<Heard>,
    /// Why Redis did not decide, each reason once.
    pub(crate) troubles: BTreeSet<String>,
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
    /// Each task asks for one of so many keys after the other.
    keys: usize,
    phase: AtomicUsize,
    /// How many decisions were made since the phase began.
    made: AtomicUsize,
    stopped: AtomicBool,
}

impl Load {
    /// In phase 0.
    pub(crate) fn start(gate: &RedisGate, tasks: usize, keys: usize) -> Self {
        let state = Arc::new(State {
            gate: gate.clone(),
            keys,
            phase: AtomicUsize::new(0),
            made: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
        });
        let tasks = (0..tasks).map(|task| tokio::spawn(state.clone().ask(task))).collect();
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

    /// Stops, and tells what was heard. No task has panicked.
    pub(crate) async fn stop(self) -> Record {
        self.state.stopped.store(true, Ordering::SeqCst);
        let mut all = Record::default();
        for task in self.tasks {
            let record = task.await.expect("no panic");
            all.heard.extend(record.heard);
            all.troubles.extend(record.troubles);
        }
        all
    }
}

impl State {
    async fn ask(self: Arc<Self>, task: usize) -> Record {
        let mut record = Record::default();
        let mut turn = task;
        while !self.stopped.load(Ordering::SeqCst) {
            let before = self.phase.load(Ordering::SeqCst);
            let told = self.told(turn % self.keys).await;
            let phase = Some(before).filter(|phase| *phase == self.phase.load(Ordering::SeqCst));
            if told.decision.source != Source::Strict {
                record.troubles.extend(self.gate.health().last_trouble.map(|trouble| trouble.to_string()));
            }
            record.heard.push(Heard { phase, told });
            self.made.fetch_add(1, Ordering::SeqCst);
            turn += 1;
            tokio::time::sleep(PAUSE).await;
        }
        record
    }

    async fn told(&self, key: usize) -> Told {
        let parts = vec![Asked::of(0, format!("k{key}"), 1)];
        let request: Vec<Part<'_>> = parts.iter().map(Asked::part).collect();
        let decision = self.gate.check(&request).await.expect("a request").decision;
        Told { parts, decision }
    }
}

impl Record {
    pub(crate) fn in_phase(&self, phase: usize) -> impl Iterator<Item = &Told> {
        self.heard.iter().filter(move |heard| heard.phase == Some(phase)).map(|heard| &heard.told)
    }

    /// What Redis decided, in whichever phase.
    pub(crate) fn strict(&self) -> impl Iterator<Item = &Told> {
        self.heard.iter().map(|heard| &heard.told).filter(|told| told.decision.source == Source::Strict)
    }

    pub(crate) fn made_by(&self, source: Source) -> u64 {
        self.heard.iter().filter(|heard| heard.told.decision.source == source).count() as u64
    }
}
