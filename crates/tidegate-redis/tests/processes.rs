//! Several processes on one Redis: rates are exact, and permits of killed processes come back.

mod exchange;
mod gates;
mod replay;
mod support;
mod workers;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::BufRead;
use std::time::Duration;

use exchange::Exchange;
use gates::long_deadline;
use replay::{BUCKETS, EACH, OracleRule, Replay, Tally, sorted};
use support::{Kind, Server, until};
use tidegate::gate::{Part, RuleId};
use tidegate_redis::RedisGate;
use workers::{Log, Worker};

const PROCESSES: usize = 4;
const TASKS: usize = 8;
/// The same as in the worker.
const PERMITS: usize = 3;
const LEASE: Duration = Duration::from_millis(400);
/// The permits of `come-and-go`.
const COME_AND_GO_PERMITS: usize = 8;

// --- rates

/// The requests that all tasks of all processes send.
struct Race {
    kind: Kind,
    rules: &'static [OracleRule],
    checks: usize,
    keys: usize,
    parts: usize,
}

impl Race {
    /// Every decision is the oracle's; returns the counts by rule.
    fn run(&self) -> Vec<Tally> {
        let server = Server::start(self.kind, &[]);
        let url = server.url();
        let numbers = [TASKS, self.checks, self.keys, self.parts].map(|number| number.to_string());
        let mut args = vec!["check", &url];
        args.extend(numbers.iter().map(String::as_str));
        args.extend(self.rules.iter().map(|rule| rule.text));
        let workers: Vec<Worker> = (0..PROCESSES).map(|_| Worker::start(&args)).collect();
        let lines = workers.into_iter().flat_map(Worker::run_to_end);
        let exchanges = sorted(lines.map(|line| Exchange::read(&line)).collect());
        assert_eq!(exchanges.len(), PROCESSES * TASKS * self.checks);
        Replay::of(self.rules).exactly(&exchanges)
    }
}

/// Requests passed and were refused: by each rule, or at least by some where a slow machine uses many keys.
#[track_caller]
fn both_happened(rules: &[OracleRule], tallies: &[Tally], least_refused: usize) {
    for (rule, tally) in rules.iter().zip(tallies) {
        assert!(tally.passed >= 5 && tally.refused >= least_refused, "{}: {tally:?}", rule.text);
    }
    assert!(tallies.iter().map(|tally| tally.refused).sum::<usize>() >= 50, "{tallies:?}");
}

#[test]
fn four_processes_on_one_key_get_exactly_the_oracles_decisions() {
    let race = Race { kind: Kind::Redis, rules: EACH, checks: 400, keys: 1, parts: 1 };
    both_happened(EACH, &race.run(), 5);
}

#[test]
fn overlapping_policies_of_every_algorithm_get_the_oracles_decisions() {
    let race = Race { kind: Kind::Redis, rules: EACH, checks: 400, keys: 3, parts: 3 };
    both_happened(EACH, &race.run(), 0);
}

#[test]
fn overlapping_buckets_get_the_oracles_decisions() {
    let race = Race { kind: Kind::Redis, rules: BUCKETS, checks: 300, keys: 3, parts: 2 };
    both_happened(BUCKETS, &race.run(), 5);
}

#[test]
fn processes_on_the_oldest_redis_get_the_oracles_decisions() {
    let race = Race { kind: Kind::OldRedis, rules: EACH, checks: 200, keys: 2, parts: 2 };
    both_happened(EACH, &race.run(), 0);
}

#[test]
fn processes_on_valkey_get_the_oracles_decisions() {
    let race = Race { kind: Kind::Valkey, rules: EACH, checks: 200, keys: 2, parts: 2 };
    both_happened(EACH, &race.run(), 0);
}

// --- permits

/// A process that holds a permit.
struct Holder(Worker);

impl Holder {
    /// Starts a holder; `None` if it was refused a permit.
    fn start(url: &str) -> Option<Self> {
        let mut holder = Holder(Worker::start(&["hold", url]));
        let mut line = String::new();
        holder.0.output().read_line(&mut line).expect("it prints a line");
        match line.trim() {
            "held" => Some(holder),
            "busy" => None,
            other => panic!("a holder prints {other:?}"),
        }
    }
}

/// All permits are free again in the end, and the key that held them is gone.
fn assert_all_permits_return(server: &Server, permits: usize) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let limit = u32::try_from(permits).expect("a few");
    let gate = long_deadline(RedisGate::builder(server.url()).concurrency("work", limit, LEASE));
    let left = || {
        let peeked = runtime.block_on(gate.request().parts(&[Part::of(RuleId(0)).cost(0)]).peek());
        peeked.expect("a reply").remaining()
    };
    until("all permits are free", || (left() == u64::from(limit)).then_some(()));
    until("nothing is left behind", || server.cli(&["KEYS", "tg1*work"]).trim().is_empty().then_some(()));
}

#[test]
fn permits_of_a_killed_process_return_when_its_lease_expires() {
    let server = Server::start(Kind::Redis, &[]);
    let url = server.url();
    let mut holders: Vec<Holder> =
        (0..PERMITS).map(|_| Holder::start(&url).expect("a free permit")).collect();
    for round in 0..6 {
        assert!(Holder::start(&url).is_none(), "round {round}: all permits are held");
        holders.remove(round % PERMITS); // killed
        let next = until("the lease of the killed holder has expired", || Holder::start(&url));
        holders.push(next);
    }
    assert_eq!(holders.len(), PERMITS);
    assert!(Holder::start(&url).is_none());
    holders.clear();
    assert_all_permits_return(&server, PERMITS);
}

/// The interval, by Redis's clock, in which each permit is known to have been held.
fn holds(lines: &[String]) -> Vec<(u64, u64)> {
    let mut holds: HashMap<&str, (u64, u64)> = HashMap::new();
    for line in lines {
        // A killed process may have left half a line.
        let [word, name, at] = line.split(' ').collect::<Vec<_>>()[..] else { continue };
        let at = at.parse().expect("an instant");
        if word == "held" {
            let hold = holds.entry(name).or_insert((at, at));
            *hold = (hold.0.min(at), hold.1.max(at));
        }
    }
    holds.into_values().collect()
}

/// The maximum number of permits held at one instant.
fn most_concurrent(holds: &[(u64, u64)]) -> usize {
    let at = |instant: u64| holds.iter().filter(|(from, to)| (*from..=*to).contains(&instant)).count();
    holds.iter().map(|(from, _)| at(*from)).max().unwrap_or(0)
}

#[test]
fn killing_holders_at_random_never_admits_more_than_the_permits() {
    let server = Server::start(Kind::Redis, &[]);
    let (url, log, random) = (server.url(), Log::default(), RandomState::new());
    let start = || {
        let mut worker = Worker::start(&["come-and-go", &url, "6"]);
        log.follow(&mut worker);
        worker
    };
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| start()).collect();
    for round in 0..16 {
        let more = holds(&log.lines()).len() + if round == 0 { 40 } else { 6 };
        until("permits are taken and released", || (holds(&log.lines()).len() >= more).then_some(()));
        let victim = usize::try_from(random.hash_one(round) % PROCESSES as u64).expect("a small number");
        workers[victim] = start(); // kills the worker before it
    }
    workers.clear();
    let lines = log.lines();
    let holds = holds(&lines);
    let refused = lines.iter().filter(|line| line.starts_with("busy")).count();
    assert!(refused > 50, "{refused} refused, {} holds: both must happen", holds.len());
    let most = most_concurrent(&holds);
    println!("{} holds, {refused} refused, {most} concurrent", holds.len());
    assert!(
        most <= COME_AND_GO_PERMITS && most > COME_AND_GO_PERMITS / 2,
        "{most} concurrent of {COME_AND_GO_PERMITS}"
    );
    assert_all_permits_return(&server, COME_AND_GO_PERMITS);
}
