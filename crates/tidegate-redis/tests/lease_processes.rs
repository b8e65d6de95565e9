//! Eight processes that share leased limits, while they are killed, replies are lost, and Redis stops and starts anew. Everybody
//! who passed is charged to a bucket of the core at that instant, on the one clock that all processes of a machine share.
//!
//! Redis's clock and that one may differ in pace, by less than one token in the time that a test takes; so the bucket holds one
//! more.

mod support;
mod workers;

use std::collections::HashMap;

use support::{Kind, Mode, Proxy, Server, until};
use tidegate::{Algorithm, Micros, Quota};
use tidegate_core::Rule;
use workers::{Log, Worker};

const NODES: usize = 8;

/// A limit, and for whom.
#[derive(Clone, Copy)]
struct Limit {
    rate: &'static str,
    burst: u32,
    keys: u64,
    /// Milliseconds of a lease.
    ttl: u64,
}

/// Everybody who passed, by key.
fn passed(log: &Log) -> HashMap<String, Vec<u64>> {
    let mut passed: HashMap<String, Vec<u64>> = HashMap::new();
    for line in log.lines() {
        // Who was killed may have left half a line.
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

    /// How many of those who passed at these instants were too many.
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
        log.hear(&mut worker);
        worker
    }

    /// Lets them run; each time so many more have passed, something happens.
    fn run(self, url: &str, rounds: usize, mut happens: impl FnMut(usize, &mut Vec<Worker>, &Log)) -> Log {
        let log = Log::default();
        let mut workers: Vec<Worker> = (0..NODES).map(|_| self.start(url, &log)).collect();
        for round in 0..rounds {
            let more = log.lines().len() + self.burst();
            until("some pass", || (log.lines().len() >= more).then_some(()));
            happens(round, &mut workers, &log);
        }
        workers.clear();
        log
    }
}

const HOT: Limit = Limit { rate: "400/s", burst: 100, keys: 1, ttl: 2_000 };
const MANY: Limit = Limit { rate: "60/s", burst: 60, keys: 12, ttl: 300 };
const SHORT: Limit = Limit { ttl: 100, ..HOT };
/// Nothing comes in again while a test looks.
const ONCE: Limit = Limit { rate: "1/d", burst: 400, keys: 1, ttl: 2_000 };

#[test]
fn whoever_is_killed_and_whatever_is_lost_never_do_too_many_pass() {
    for limit in [HOT, MANY, SHORT] {
        let server = Server::start(Kind::Redis, &[]);
        let proxy = Proxy::start(server.port());
        let log = limit.run(&proxy.url(), 12, |round, workers, log| match round % 4 {
            0 => workers[round % NODES] = limit.start(&proxy.url(), log), // and who was there is killed
            1 => for_a_while(|| proxy.set(Mode::LoseReplies), || proxy.set(Mode::Pass)),
            2 => for_a_while(|| server.pause(), || server.resume()),
            _ => {
                let sleeper = &workers[(round + 1) % NODES].0;
                for_a_while(|| sleeper.pause(), || sleeper.resume()); // with lots that end meanwhile
            }
        });
        let passed = passed(&log);
        assert!(passed["0"].len() > 100, "{}", passed["0"].len());
        for (key, instants) in &passed {
            assert_eq!(limit.too_many(instants), 0, "key {key}, of {} who passed", instants.len());
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
fn a_redis_that_starts_anew_gives_at_most_one_burst_more() {
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

/// Requests that passed, each with the instants before and after it.
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

/// By how many requests a bucket was exceeded in the worst of all intervals. Only requests that lie in an interval with both
/// bounds count, so whatever is found here is certain.
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
        log.hear(&mut worker);
        worker
    };
    (0..2).map(start).collect()
}

#[test]
fn redis_is_killed_for_good_and_grants_and_local_shares_stay_within_the_limit() {
    let mut server = Server::start(Kind::Redis, &[]);
    let log = Log::default();
    let workers = hammer(&server.url(), &log, "500/s burst 1000");
    until("the burst is used", || (log.lines().len() >= 1_500).then_some(()));
    let before = log.lines().len();
    server.kill();
    until("shares are spent", || (log.lines().len() >= before + 1_000).then_some(()));
    drop(workers);
    let bounds = bounds(&log);
    assert_eq!(exceeded_by(&bounds, 500, 1_001), 0, "{} passed", bounds.len());
}

#[test]
fn redis_forgets_while_leases_are_out_and_at_most_one_burst_more_passes() {
    let server = Server::start(Kind::Redis, &[]);
    let log = Log::default();
    let workers = hammer(&server.url(), &log, "500/s burst 300");
    let mut flushes = 0;
    for _ in 0..3 {
        let more = log.lines().len() + 400;
        until("some pass", || (log.lines().len() >= more).then_some(()));
        server.cli(&["FLUSHALL"]);
        flushes += 1;
    }
    let more = log.lines().len() + 600;
    until("some pass", || (log.lines().len() >= more).then_some(()));
    drop(workers);
    let exceeded = exceeded_by(&bounds(&log), 500, 301);
    assert!(exceeded <= flushes * 300, "{exceeded} too many after {flushes} times");
    assert!(exceeded > 0, "a flush gives a burst");
}

const KILLED: usize = 3;

#[test]
fn who_is_killed_takes_one_lot_along_and_all_else_passes() {
    let server = Server::start(Kind::Redis, &[]);
    let (url, log) = (server.url(), Log::default());
    let mut workers: Vec<Worker> = (0..NODES).map(|_| ONCE.start(&url, &log)).collect();
    for (killed, worker) in workers.iter_mut().take(KILLED).enumerate() {
        until("some pass", || (log.lines().len() > (killed + 1) * 60).then_some(()));
        *worker = ONCE.start(&url, &log); // and who was there is killed
    }
    let largest = ONCE.burst() / NODES; // where more is wanted than there is
    let least = ONCE.burst() - KILLED * largest;
    until("all others pass", || (log.lines().len() >= least).then_some(()));
    workers.clear();
    let passed = passed(&log)["0"].len();
    assert!((least..=ONCE.burst()).contains(&passed), "{passed} passed; at least {least} of {}", ONCE.burst);
}
