//! Eight processes share leased limits, while they are killed, replies are lost, and Redis pauses and
//! restarts. Every allowed request is charged to a bucket of the core at its instant, on the one clock that
//! all processes of a machine share.
//!
//! That clock and Redis's may drift apart by less than one token in the time that a test takes; so the bucket
//! holds one token more.

mod support;
mod workers;

use std::collections::HashMap;

use support::{Kind, Mode, Proxy, Server, until};
use tidegate::Quota;
use tidegate::algorithm::Algorithm;
use tidegate::clock::Micros;
use tidegate_core::Rule;
use workers::{Log, Worker};

const NODES: usize = 8;

/// A limit, its number of keys and the lifetime of its leases.
#[derive(Clone, Copy)]
struct Limit {
    rate: &'static str,
    burst: u32,
    keys: u64,
    /// Milliseconds of a lease.
    ttl: u64,
}

/// The instants of all allowed requests, by key.
fn passed(log: &Log) -> HashMap<String, Vec<u64>> {
    let mut passed: HashMap<String, Vec<u64>> = HashMap::new();
    for line in log.lines() {
        // A killed process may have left half a line.
        let Some((key, at)) = line.split_once(' ').filter(|(_, at)| at.len() >= 6) else { continue };
        passed.entry(key.to_owned()).or_default().push(at.parse().expect("an instant"));
    }
    passed.values_mut().for_each(|instants| instants.sort_unstable());
    passed
}

impl Limit {
    fn burst(self) -> usize {
        usize::try_from(self.burst).expect("a small number")
    }

    /// How many of the requests allowed at these instants exceed the limit.
    fn too_many(self, instants: &[u64]) -> usize {
        let quota = format!("{} burst {}", self.rate, self.burst + 1);
        let rule = Rule::from(quota.parse::<Quota>().expect("a quota"));
        let mut state = vec![0; rule.words()];
        let fits = |at: &&u64| rule.decide(state.as_mut_slice(), Micros::new(**at), 1).is_allowed();
        instants.len() - instants.iter().filter(fits).count()
    }

    fn start(self, url: &str, log: &Log) -> Worker {
        let [nodes, ttl, keys] = [NODES as u64, self.ttl, self.keys].map(|number| number.to_string());
        let rule = format!("{} burst {}", self.rate, self.burst);
        let mut worker = Worker::start(&["lease", url, &nodes, &ttl, &keys, &rule]);
        log.follow(&mut worker);
        worker
    }

    /// Runs the workers; each time another burst of requests has been allowed, calls `happens`.
    fn run(self, url: &str, rounds: usize, mut happens: impl FnMut(usize, &mut Vec<Worker>, &Log)) -> Log {
        let log = Log::default();
        let mut workers: Vec<Worker> = (0..NODES).map(|_| self.start(url, &log)).collect();
        for round in 0..rounds {
            let more = log.lines().len() + self.burst();
            until("some requests are allowed", || (log.lines().len() >= more).then_some(()));
            happens(round, &mut workers, &log);
        }
        workers.clear();
        log
    }
}

const HOT: Limit = Limit { rate: "400/s", burst: 100, keys: 1, ttl: 2_000 };
const MANY: Limit = Limit { rate: "60/s", burst: 60, keys: 12, ttl: 300 };
const SHORT: Limit = Limit { ttl: 100, ..HOT };
/// Nothing refills while a test runs.
const ONCE: Limit = Limit { rate: "1/d", burst: 400, keys: 1, ttl: 2_000 };

#[test]
fn no_more_than_the_limit_passes_when_processes_die_and_replies_are_lost() {
    for limit in [HOT, MANY, SHORT] {
        let server = Server::start(Kind::Redis, &[]);
        let proxy = Proxy::start(server.port());
        let log = limit.run(&proxy.url(), 12, |round, workers, log| match round % 4 {
            0 => workers[round % NODES] = limit.start(&proxy.url(), log), // kills the worker before it
            1 => for_a_while(|| proxy.set(Mode::LoseReplies), || proxy.set(Mode::Pass)),
            2 => for_a_while(|| server.pause(), || server.resume()),
            _ => {
                let sleeper = &workers[(round + 1) % NODES].0;
                for_a_while(|| sleeper.pause(), || sleeper.resume()); // with grants that expire meanwhile
            }
        });
        let passed = passed(&log);
        assert!(passed["0"].len() > 100, "{}", passed["0"].len());
        for (key, instants) in &passed {
            assert_eq!(limit.too_many(instants), 0, "key {key}, of {} allowed", instants.len());
        }
    }
}

/// Longer than some leases, and shorter than others.
fn for_a_while(begin: impl FnOnce(), end: impl FnOnce()) {
    begin();
    std::thread::sleep(std::time::Duration::from_millis(150));
    end();
}

#[test]
fn a_restarted_redis_gives_at_most_one_burst_more() {
    let mut server = Server::start(Kind::Redis, &[]);
    let url = server.url();
    let mut restarts = 0;
    let log = HOT.run(&url, 6, |round, _, _| {
        if round % 2 == 1 {
            server.kill();
            server.restart();
            restarts += 1;
        }
    });
    let too_many = HOT.too_many(&passed(&log)["0"]);
    assert!(too_many <= restarts * HOT.burst(), "{too_many} too many after {restarts} restarts");
}

/// The allowed requests, each with the instants before and after it.
fn bounds(log: &Log) -> Vec<(i64, i64)> {
    let lines = log.lines();
    let bounds = lines.iter().filter_map(|line| line.split_once(' '));
    // A killed process may have left half a line.
    let mut bounds: Vec<(i64, i64)> = bounds
        .filter_map(|(before, after)| Some((before.parse().ok()?, after.parse().ok()?)))
        .filter(|(before, after)| after >= before)
        .collect();
    bounds.sort_unstable();
    bounds
}

/// By how many requests a bucket was exceeded in the worst of all intervals. A request counts only if both of
/// its bounds lie in the interval, so every violation found here is certain.
fn exceeded_by(bounds: &[(i64, i64)], per_second: i64, burst: i64) -> i64 {
    let mut worst = 0;
    for (first, (from, _)) in bounds.iter().enumerate() {
        let mut ends: Vec<i64> = bounds[first..].iter().map(|(_, after)| *after).collect();
        ends.sort_unstable();
        for (passed, to) in (1..).zip(ends) {
            worst = worst.max(passed - burst - (to - from) * per_second / 1_000_000);
        }
    }
    worst
}

fn hammer(url: &str, log: &Log, rule: &str) -> Vec<Worker> {
    let start = |_| {
        let mut worker = Worker::start(&["hammer", url, "2", rule]);
        log.follow(&mut worker);
        worker
    };
    (0..2).map(start).collect()
}

#[test]
fn grants_and_local_shares_stay_within_the_limit_when_redis_dies_for_good() {
    let mut server = Server::start(Kind::Redis, &[]);
    let log = Log::default();
    let workers = hammer(&server.url(), &log, "500/s burst 1000");
    until("the burst is used", || (log.lines().len() >= 1_500).then_some(()));
    let before = log.lines().len();
    server.kill();
    until("local shares are spent", || (log.lines().len() >= before + 1_000).then_some(()));
    drop(workers);
    let bounds = bounds(&log);
    assert_eq!(exceeded_by(&bounds, 500, 1_001), 0, "{} passed", bounds.len());
}

#[test]
fn a_flush_while_leases_are_out_admits_at_most_one_burst_more() {
    let server = Server::start(Kind::Redis, &[]);
    let log = Log::default();
    let workers = hammer(&server.url(), &log, "500/s burst 300");
    let mut flushes = 0;
    for _ in 0..3 {
        let more = log.lines().len() + 400;
        until("some requests are allowed", || (log.lines().len() >= more).then_some(()));
        server.cli(&["FLUSHALL"]);
        flushes += 1;
    }
    let more = log.lines().len() + 600;
    until("some requests are allowed", || (log.lines().len() >= more).then_some(()));
    drop(workers);
    let exceeded = exceeded_by(&bounds(&log), 500, 301);
    assert!(exceeded <= flushes * 300, "{exceeded} too many after {flushes} flushes");
    assert!(exceeded > 0, "a flush gives a burst");
}

const KILLED: usize = 3;

#[test]
fn a_killed_process_loses_at_most_one_grant_and_the_rest_passes() {
    let server = Server::start(Kind::Redis, &[]);
    let (url, log) = (server.url(), Log::default());
    let mut workers: Vec<Worker> = (0..NODES).map(|_| ONCE.start(&url, &log)).collect();
    for (killed, worker) in workers.iter_mut().take(KILLED).enumerate() {
        until("some requests are allowed", || (log.lines().len() > (killed + 1) * 60).then_some(()));
        *worker = ONCE.start(&url, &log); // and the worker before it is killed
    }
    let largest = ONCE.burst() / NODES; // the largest grant while demand exceeds supply
    let least = ONCE.burst() - KILLED * largest;
    until("the rest is allowed", || (log.lines().len() >= least).then_some(()));
    workers.clear();
    let passed = passed(&log)["0"].len();
    assert!((least..=ONCE.burst()).contains(&passed), "{passed} passed; at least {least} of {}", ONCE.burst);
}
