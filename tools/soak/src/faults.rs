//! Injects faults, some of them at the same time, with pauses for recovery.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::check::{DataLoss, Nanos};
use crate::load::{Clock, Demand};
use crate::random::Random;
use crate::rules::{NODES, RULES};
use crate::stage::Stage;
use crate::support::Mode;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Redis is killed, and started again with its data.
    KillRedis,
    /// Redis is killed, and started again empty.
    EmptyRedis,
    /// Redis is stopped with its connections open.
    PauseRedis,
    /// All data is deleted.
    Flush,
    /// All scripts are deleted.
    FlushScripts,
    /// All keys of one rule are deleted, as when memory is short.
    Evict {
        rule: usize,
    },
    /// Replies of Redis are late.
    SlowReplies {
        delay: Duration,
    },
    /// Connections to Redis are reset, and refused for a while.
    CutConnections,
    /// Requests arrive at Redis, and replies do not come back.
    LostReplies,
    /// A service is killed, and started again.
    KillService {
        node: usize,
    },
    PauseService {
        node: usize,
    },
    ReloadService {
        node: usize,
    },
    ReloadAll,
}

/// A fault and its interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) fault: Fault,
    pub(crate) from: Nanos,
    /// The instant by which it had certainly begun; `Nanos::MAX` until then. Data is lost between `from` and this.
    pub(crate) begun: Nanos,
    /// `Nanos::MAX` until it is over.
    pub(crate) to: Nanos,
}

/// All faults so far, in the order in which they began.
#[derive(Debug)]
pub(crate) struct FaultLog {
    clock: Clock,
    entries: Mutex<Vec<Entry>>,
}

impl Fault {
    pub(crate) fn is_redis(self) -> bool {
        self.node().is_none() && self != Fault::ReloadAll
    }

    /// The only service that is affected, if it is one.
    pub(crate) fn node(self) -> Option<usize> {
        match self {
            Fault::KillService { node } | Fault::PauseService { node } | Fault::ReloadService { node } => {
                Some(node)
            }
            _ => None,
        }
    }

    pub(crate) fn is_reload_of(self, node: usize) -> bool {
        self == Fault::ReloadAll || self == Fault::ReloadService { node }
    }

    /// Whether Redis loses the states of this rule.
    pub(crate) fn loses(self, rule: usize) -> bool {
        matches!(self, Fault::EmptyRedis | Fault::Flush) || self == Fault::Evict { rule }
    }

    /// The name in the summary.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Fault::KillRedis => "Redis killed, restarted with data",
            Fault::EmptyRedis => "Redis killed, restarted empty",
            Fault::PauseRedis => "Redis stopped",
            Fault::Flush => "FLUSHALL",
            Fault::FlushScripts => "SCRIPT FLUSH",
            Fault::Evict { .. } => "keys of a rule evicted",
            Fault::SlowReplies { .. } => "slow replies",
            Fault::CutConnections => "connections cut",
            Fault::LostReplies => "replies lost",
            Fault::KillService { .. } => "service killed",
            Fault::PauseService { .. } => "service stopped",
            Fault::ReloadService { .. } => "service reloaded",
            Fault::ReloadAll => "all services reloaded",
        }
    }

    fn choose_redis(random: &mut Random) -> Self {
        match random.below(12) {
            0 => Fault::KillRedis,
            1 | 2 => Fault::EmptyRedis,
            3 => Fault::PauseRedis,
            4 => Fault::Flush,
            5 | 6 => Fault::FlushScripts,
            7 | 8 => Fault::Evict { rule: random.below(RULES.len()) },
            9 => Fault::SlowReplies {
                delay: random.between(Duration::from_millis(2)..Duration::from_millis(80)),
            },
            10 => Fault::CutConnections,
            _ => Fault::LostReplies,
        }
    }

    fn choose_data_loss(random: &mut Random) -> Self {
        match random.below(4) {
            0 | 1 => Fault::Flush,
            2 => Fault::EmptyRedis,
            _ => Fault::Evict { rule: random.below(RULES.len()) },
        }
    }

    fn choose_service(random: &mut Random) -> Self {
        let node = random.below(NODES);
        match random.below(5) {
            0 | 1 => Fault::KillService { node },
            2 | 3 => Fault::PauseService { node },
            _ if random.one_in(3) => Fault::ReloadAll,
            _ => Fault::ReloadService { node },
        }
    }

    fn begin(self, stage: &mut Stage) -> io::Result<()> {
        match self {
            Fault::KillRedis => stage.redis.kill(),
            Fault::EmptyRedis => {
                stage.redis.kill();
                stage.remove_data()?;
            }
            Fault::PauseRedis => stage.redis.pause(),
            Fault::Flush => drop(stage.redis.cli(&["FLUSHALL"])),
            Fault::FlushScripts => drop(stage.redis.cli(&["SCRIPT", "FLUSH"])),
            Fault::Evict { rule } => stage.evict(RULES[rule].name),
            Fault::SlowReplies { delay } => stage.proxy.set(Mode::Slow(delay)),
            Fault::CutConnections => stage.proxy.set(Mode::Refuse),
            Fault::LostReplies => stage.proxy.set(Mode::LoseReplies),
            Fault::KillService { node } => stage.nodes[node].kill(),
            Fault::PauseService { node } => stage.nodes[node].pause(),
            Fault::ReloadService { node } => stage.nodes[node].reload()?,
            Fault::ReloadAll => stage.nodes.iter_mut().try_for_each(|node| node.reload())?,
        }
        Ok(())
    }

    fn end(self, stage: &mut Stage) -> io::Result<()> {
        match self {
            Fault::KillRedis | Fault::EmptyRedis => stage.redis.restart(),
            Fault::PauseRedis => stage.redis.resume(),
            Fault::SlowReplies { .. } | Fault::CutConnections | Fault::LostReplies => {
                stage.proxy.set(Mode::Pass)
            }
            Fault::KillService { node } => stage.nodes[node].restart()?,
            Fault::PauseService { node } => stage.nodes[node].resume(),
            Fault::Flush
            | Fault::FlushScripts
            | Fault::Evict { .. }
            | Fault::ReloadService { .. }
            | Fault::ReloadAll => (),
        }
        Ok(())
    }

    /// Whether the fault has no duration.
    fn is_instant(self) -> bool {
        matches!(
            self,
            Fault::Flush
                | Fault::FlushScripts
                | Fault::Evict { .. }
                | Fault::ReloadService { .. }
                | Fault::ReloadAll
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Evict { rule } => write!(f, "keys of rule \"{}\" evicted", RULES[*rule].name),
            Fault::SlowReplies { delay } => write!(f, "replies slower by {} ms", delay.as_millis()),
            Fault::KillService { node } => write!(f, "service {node} killed"),
            Fault::PauseService { node } => write!(f, "service {node} stopped"),
            Fault::ReloadService { node } => write!(f, "service {node} reloaded"),
            other => f.write_str(other.kind()),
        }
    }
}

impl FaultLog {
    pub(crate) fn new(clock: Clock) -> Self {
        FaultLog { clock, entries: Mutex::new(Vec::new()) }
    }

    /// Records that a fault is about to begin.
    fn begin(&self, fault: Fault) -> usize {
        let mut entries = self.lock();
        entries.push(Entry { fault, from: self.clock.now(), begun: Nanos::MAX, to: Nanos::MAX });
        entries.len() - 1
    }

    fn has_begun(&self, number: usize) {
        let mut entries = self.lock();
        entries[number].begun = self.clock.now();
    }

    fn end(&self, number: usize) {
        let mut entries = self.lock();
        entries[number].to = self.clock.now();
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the times at which Redis lost the keys of a rule.
///
/// Tokens that were leased before a loss may still be spent after it, until their lease is over.
pub(crate) fn losses_of(rule: usize, entries: &[Entry]) -> Vec<DataLoss> {
    let tail = RULES[rule].longest_grant();
    let losses = entries.iter().filter(|entry| entry.fault.loses(rule));
    losses.map(|entry| DataLoss { from: entry.from, to: entry.begun.saturating_add(tail) }).collect()
}

const FAULT: Range<Duration> = Duration::from_millis(50)..Duration::from_secs(3);
const PAUSE: Range<Duration> = Duration::from_millis(500)..Duration::from_secs(4);
/// Before a surge, so that limits refill.
const REST: Range<Duration> = Duration::from_secs(1)..Duration::from_secs(6);
/// From the surge to the fault, and from the fault to the end of the surge.
const SURGE: Range<Duration> = Duration::from_millis(200)..Duration::from_millis(2_500);

/// Injects faults until `is_over`.
///
/// Half of the faults meet a surge that follows a rest, and half of these lose data. The interval from the surge to the
/// fault's end then holds the whole burst and what the fault adds to it, so that little of an over-admission can hide
/// in unused supply.
///
/// # Errors
///
/// If a fault cannot be injected or undone, or if a service exited without being killed.
pub(crate) fn inject(
    seed: u64,
    stage: &mut Stage,
    log: &FaultLog,
    demand: &Demand,
    is_over: impl Fn() -> bool,
) -> io::Result<()> {
    let mut random = Random::new(seed, 1);
    loop {
        wait(random.between(PAUSE), &is_over);
        let is_surge = random.one_in(2);
        if is_surge {
            demand.set(Demand::REST);
            wait(random.between(REST), &is_over);
            demand.set(Demand::SURGE);
            wait(random.between(SURGE), &is_over);
        }
        if is_over() {
            demand.set(Demand::USUAL);
            return Ok(());
        }
        check_services(stage)?;
        let faults: Vec<Fault> = match random.below(6) {
            0..=2 if is_surge => vec![Fault::choose_data_loss(&mut random)],
            0..=2 => vec![Fault::choose_redis(&mut random)],
            3 | 4 => vec![Fault::choose_service(&mut random)],
            _ => vec![Fault::choose_redis(&mut random), Fault::choose_service(&mut random)],
        };
        run(&faults, &mut random, stage, log)?;
        if is_surge {
            wait(random.between(SURGE), &is_over);
            demand.set(Demand::USUAL);
        }
    }
}

/// Begins one fault after the other, and ends them in the opposite order.
fn run(faults: &[Fault], random: &mut Random, stage: &mut Stage, log: &FaultLog) -> io::Result<()> {
    let Some((fault, others)) = faults.split_first() else { return Ok(()) };
    let number = log.begin(*fault);
    fault.begin(stage)?;
    log.has_begun(number);
    if fault.is_instant() {
        log.end(number);
        return run(others, random, stage, log);
    }
    thread::sleep(random.between(FAULT));
    run(others, random, stage, log)?;
    fault.end(stage)?;
    log.end(number);
    Ok(())
}

fn check_services(stage: &mut Stage) -> io::Result<()> {
    match stage.nodes.iter_mut().position(|node| !node.is_alive()) {
        Some(node) => {
            let log = stage.nodes[node].log();
            Err(io::Error::other(format!("service {node} exited unexpectedly; the end of its log:\n{log}")))
        }
        None => Ok(()),
    }
}

/// Sleeps in short steps, so that the end of the run is noticed soon.
fn wait(pause: Duration, is_over: impl Fn() -> bool) {
    let step = Duration::from_millis(100);
    let mut left = pause;
    while !left.is_zero() && !is_over() {
        thread::sleep(left.min(step));
        left = left.saturating_sub(step);
    }
}
