//! Sends requests to the services, and records every reply with its time bounds.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::check::{Nanos, SECOND};
use crate::client::{Client, Reply};
use crate::random::Random;
use crate::rules::{NODES, RULES};

/// A request and its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) node: usize,
    pub(crate) rule: usize,
    pub(crate) key: usize,
    pub(crate) cost: i64,
    pub(crate) sent: Nanos,
    pub(crate) received: Nanos,
    /// `None` if the reply was lost, or was an error.
    pub(crate) reply: Option<Reply>,
}

/// The records of all connections since the last collection.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) records: Vec<Record>,
    /// No later record was sent before this.
    pub(crate) watermark: Nanos,
    /// The messages of error replies.
    pub(crate) errors: Vec<String>,
}

/// The monotonic clock of the soak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Clock(Instant::now())
    }

    pub(crate) fn now(&self) -> Nanos {
        Nanos::try_from(self.0.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }
}

/// The demand for all rules, in percent of the usual demand.
#[derive(Clone, Debug)]
pub(crate) struct Demand(Arc<AtomicU32>);

impl Demand {
    pub(crate) const REST: u32 = 3;
    pub(crate) const USUAL: u32 = 100;
    pub(crate) const SURGE: u32 = 300;

    pub(crate) fn usual() -> Self {
        Demand(Arc::new(AtomicU32::new(Self::USUAL)))
    }

    pub(crate) fn set(&self, percent: u32) {
        self.0.store(percent, Ordering::Relaxed);
    }

    fn percent(&self) -> f64 {
        self.0.load(Ordering::Relaxed).into()
    }
}

/// All connections to all services.
#[derive(Debug)]
pub(crate) struct Load {
    clock: Clock,
    stop: Arc<AtomicBool>,
    logs: Vec<Arc<Mutex<Log>>>,
    threads: Vec<JoinHandle<()>>,
}

/// The records of one connection.
#[derive(Debug, Default)]
struct Log {
    records: Vec<Record>,
    errors: Vec<String>,
    /// When the oldest request without a record was sent.
    outstanding: Option<Nanos>,
}

/// The number of connections to each service.
const CONNECTIONS: usize = 6;
/// The number of requests that every second connection pipelines at most.
const PIPELINE: usize = 12;
/// The time for which the demand for a rule is constant.
const PHASE: Nanos = 3 * SECOND / 2;
/// Seconds after which a change of demand is noticed at the latest.
const STEP: f64 = 0.02;
const RECONNECT: Duration = Duration::from_millis(20);

impl Load {
    pub(crate) fn start(seed: u64, clock: Clock, ports: [u16; NODES], demand: &Demand) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut logs, mut threads) = (Vec::new(), Vec::new());
        for (node, port) in ports.into_iter().enumerate() {
            for number in 0..CONNECTIONS {
                let log = Arc::new(Mutex::new(Log::default()));
                let connection = Connection {
                    node,
                    port,
                    seed,
                    clock,
                    demand: demand.clone(),
                    log: log.clone(),
                    random: Random::new(seed, 1_000 + (node * CONNECTIONS + number) as u64),
                    pipeline: if number % 2 == 0 { 1 } else { PIPELINE },
                };
                let stop = stop.clone();
                logs.push(log);
                threads.push(thread::spawn(move || connection.run(&stop)));
            }
        }
        Load { clock, stop, logs, threads }
    }

    /// Takes the records since the last call.
    pub(crate) fn collect(&self) -> Collected {
        let mut collected = Collected { watermark: self.clock.now(), ..Collected::default() };
        for log in &self.logs {
            let mut log = lock(log);
            collected.records.append(&mut log.records);
            collected.errors.append(&mut log.errors);
            collected.watermark =
                log.outstanding.map_or(collected.watermark, |sent| sent.min(collected.watermark));
        }
        collected
    }

    /// Stops sending, and waits for the outstanding replies.
    pub(crate) fn stop(mut self) -> Collected {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            assert!(thread.join().is_ok(), "a connection panicked");
        }
        self.collect()
    }
}

struct Connection {
    node: usize,
    port: u16,
    seed: u64,
    clock: Clock,
    demand: Demand,
    log: Arc<Mutex<Log>>,
    random: Random,
    pipeline: usize,
}

/// A request to send.
struct Request {
    rule: usize,
    key: usize,
    cost: i64,
}

impl Connection {
    fn run(mut self, stop: &AtomicBool) {
        let demand: Vec<f64> = RULES.iter().map(|rule| rule.demand).collect();
        let in_all = demand.iter().sum::<f64>() / (NODES * CONNECTIONS) as f64;
        let mut client = None;
        while !stop.load(Ordering::Relaxed) {
            let Some(connected) = client.as_mut() else {
                client = Client::connect(self.port).ok();
                if client.is_none() {
                    thread::sleep(RECONNECT);
                }
                continue;
            };
            let size = 1 + self.random.below(self.pipeline);
            let requests: Vec<_> = (0..size).map(|_| self.request(&demand)).collect();
            if !self.ask(connected, &requests) {
                client = None;
            }
            let pause = size as f64 / in_all * 2.0 * self.random.fraction();
            self.rest(pause, stop);
        }
    }

    /// Rests as many seconds as usual; shorter or longer if demand is not usual, or changes meanwhile.
    fn rest(&self, mut seconds: f64, stop: &AtomicBool) {
        while seconds > 0.0 && !stop.load(Ordering::Relaxed) {
            let pace = self.demand.percent() / 100.0;
            let step = (seconds / pace).min(STEP);
            thread::sleep(Duration::from_secs_f64(step));
            seconds -= step * pace;
        }
    }

    fn request(&mut self, demand: &[f64]) -> Request {
        let phase = self.clock.now() / PHASE;
        let weights: Vec<f64> =
            demand.iter().enumerate().map(|(rule, demand)| demand * self.wave(phase, rule)).collect();
        let rule = self.random.weighted(&weights);
        let keys: Vec<f64> = (1..=RULES[rule].keys).map(|rank| 1.0 / rank as f64).collect();
        let cost = if self.random.one_in(3) { 1 + self.random.below(RULES[rule].max_cost) } else { 1 };
        Request { rule, key: self.random.weighted(&keys), cost: i64::try_from(cost).unwrap_or(1) }
    }

    /// The demand for a rule pauses now and then, so that its limit refills, and then surges.
    fn wave(&self, phase: Nanos, rule: usize) -> f64 {
        let stream = phase.unsigned_abs() * RULES.len() as u64 + rule as u64;
        [0.02, 0.3, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0][Random::new(self.seed, stream).below(8)]
    }

    /// Sends requests and records their replies. Returns whether the connection is still usable.
    fn ask(&mut self, client: &mut Client, requests: &[Request]) -> bool {
        for Request { rule, key, cost } in requests {
            client.add_check(RULES[*rule].name, &format!("key-{key}"), *cost);
        }
        let sent = {
            // Read under the lock: `collect` sees the request as outstanding, or has read the clock earlier.
            let mut log = lock(&self.log);
            let sent = self.clock.now();
            log.outstanding = Some(sent);
            sent
        };
        let mut works = client.send().is_ok();
        let mut records = Vec::with_capacity(requests.len());
        let mut errors = Vec::new();
        for Request { rule, key, cost } in requests {
            let answer = if works { client.receive() } else { Err(std::io::ErrorKind::NotConnected.into()) };
            let reply = match answer {
                Ok(Ok(reply)) => Some(reply),
                Ok(Err(error)) => {
                    errors.push(error);
                    None
                }
                Err(_) => {
                    works = false;
                    None
                }
            };
            let received = self.clock.now();
            records.push(Record {
                node: self.node,
                rule: *rule,
                key: *key,
                cost: *cost,
                sent,
                received,
                reply,
            });
        }
        let mut log = lock(&self.log);
        log.records.append(&mut records);
        log.errors.append(&mut errors);
        log.outstanding = None;
        works
    }
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}
