//! Several processes on one Redis: never too many, never needlessly few, and places that come back from the dead.

mod gates;
mod replay;
mod support;
mod told;
mod workers;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::BufRead;
use std::time::Duration;

use gates::patient;
use replay::{BUCKETS, EACH, Replay, Right, Tally, sorted};
use support::{Kind, Server, until};
use tidegate::{Part, RuleId};
use tidegate_redis::RedisGate;
use told::Told;
use workers::{Log, Worker};

const PROCESSES: usize = 4;
const TASKS: usize = 8;
/// As in the worker.
const PLACES: usize = 3;
const LEASE: Duration = Duration::from_millis(400);
/// For those who come and go.
const ROOMS: usize = 8;

// --- rates

/// What all tasks of all processes ask for.
struct Race {
    kind: Kind,
    rules: &'static [Right],
    checks: usize,
    keys: usize,
    parts: usize,
}

impl Race {
    /// Every decision is the oracle's; tells what came of it, by rule.
    fn run(&self) -> Vec<Tally> {
        let server = Server::start(self.kind, &[]);
        let url = server.url();
        let numbers = [TASKS, self.checks, self.keys, self.parts].map(|number| number.to_string());
        let mut args = vec!["check", &url];
        args.extend(numbers.iter().map(String::as_str));
        args.extend(self.rules.iter().map(|rule| rule.text));
        let workers: Vec<Worker> = (0..PROCESSES).map(|_| Worker::start(&args)).collect();
        let lines = workers.into_iter().flat_map(Worker::ends);
        let told = sorted(lines.map(|line| Told::read(&line)).collect());
        assert_eq!(told.len(), PROCESSES * TASKS * self.checks);
        Replay::of(self.rules).exactly(&told)
    }
}

/// Everybody was let through, and refused: by each rule, or at least by some where a slow machine asks for many keys.
#[track_caller]
fn both_happened(rules: &[Right], tallies: &[Tally], least_refused: usize) {
    for (rule, tally) in rules.iter().zip(tallies) {
        assert!(tally.passed >= 5 && tally.refused >= least_refused, "{}: {tally:?}", rule.text);
    }
    assert!(tallies.iter().map(|tally| tally.refused).sum::<usize>() >= 50, "{tallies:?}");
}

#[test]
fn four_processes_on_one_key_are_never_too_many_and_never_needlessly_few() {
    let race = Race { kind: Kind::Redis, rules: EACH, checks: 400, keys: 1, parts: 1 };
    both_happened(EACH, &race.run(), 5);
}

#[test]
fn nor_are_they_with_overlapping_policies_of_every_algorithm() {
    let race = Race { kind: Kind::Redis, rules: EACH, checks: 400, keys: 3, parts: 3 };
    both_happened(EACH, &race.run(), 0);
}

#[test]
fn nor_with_overlapping_buckets_alone() {
    let race = Race { kind: Kind::Redis, rules: BUCKETS, checks: 300, keys: 3, parts: 2 };
    both_happened(BUCKETS, &race.run(), 5);
}

#[test]
fn nor_on_the_oldest_redis() {
    let race = Race { kind: Kind::OldRedis, rules: EACH, checks: 200, keys: 2, parts: 2 };
    both_happened(EACH, &race.run(), 0);
}

#[test]
fn nor_on_valkey() {
    let race = Race { kind: Kind::Valkey, rules: EACH, checks: 200, keys: 2, parts: 2 };
    both_happened(EACH, &race.run(), 0);
}

// --- places

/// A process that holds a place, or was refused one.
struct Holder(Worker);

impl Holder {
    /// Starts one, and tells whether it has a place.
    fn start(url: &str) -> Option<Self> {
        let mut holder = Holder(Worker::start(&["hold", url]));
        let mut line = String::new();
        holder.0.output().read_line(&mut line).expect("it says something");
        match line.trim() {
            "held" => Some(holder),
            "busy" => None,
            other => panic!("a holder says {other:?}"),
        }
    }
}

/// All places are free again in the end, and the string that held them is gone.
fn all_places_come_back(server: &Server, places: usize) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let limit = u32::try_from(places).expect("a few");
    let gate = patient(RedisGate::builder(server.url()).at_once("work", limit, LEASE));
    let left = || {
        let peeked = runtime.block_on(gate.peek(&[Part::of(RuleId(0)).cost(0)]));
        peeked.expect("a request").expect("an answer").remaining()
    };
    until("all places are free", || (left() == u64::from(limit)).then_some(()));
    until("nothing is left behind", || server.cli(&["KEYS", "tg1*work"]).trim().is_empty().then_some(()));
}

#[test]
fn who_is_killed_gives_its_place_back_after_the_lease_and_never_before() {
    let server = Server::start(Kind::Redis, &[]);
    let url = server.url();
    let mut holders: Vec<Holder> = (0..PLACES).map(|_| Holder::start(&url).expect("there is room")).collect();
    for round in 0..6 {
        assert!(Holder::start(&url).is_none(), "round {round}: all places are held");
        holders.remove(round % PLACES); // killed
        let next = until("the dead one's lease is over", || Holder::start(&url));
        holders.push(next);
    }
    assert_eq!(holders.len(), PLACES);
    assert!(Holder::start(&url).is_none());
    holders.clear();
    all_places_come_back(&server, PLACES);
}

/// For how long, by Redis's clock, each visitor is known to have held a place.
fn visits(lines: &[String]) -> Vec<(u64, u64)> {
    let mut visits: HashMap<&str, (u64, u64)> = HashMap::new();
    for line in lines {
        // Who was killed may have left half a line.
        let [word, name, at] = line.split(' ').collect::<Vec<_>>()[..] else { continue };
        let at = at.parse().expect("an instant");
        if word == "held" {
            let visit = visits.entry(name).or_insert((at, at));
            *visit = (visit.0.min(at), visit.1.max(at));
        }
    }
    visits.into_values().collect()
}

/// How many places were held at once, at most.
fn most_at_once(visits: &[(u64, u64)]) -> usize {
    let at = |instant: u64| visits.iter().filter(|(from, to)| (*from..=*to).contains(&instant)).count();
    visits.iter().map(|(from, _)| at(*from)).max().unwrap_or(0)
}

#[test]
fn however_many_holders_are_killed_at_random_no_place_is_held_twice() {
    let server = Server::start(Kind::Redis, &[]);
    let (url, log, chance) = (server.url(), Log::default(), RandomState::new());
    let start = || {
        let mut worker = Worker::start(&["come-and-go", &url, "6"]);
        log.hear(&mut worker);
        worker
    };
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| start()).collect();
    for round in 0..16 {
        let more = visits(&log.lines()).len() + if round == 0 { 40 } else { 6 };
        until("places are taken and given back", || (visits(&log.lines()).len() >= more).then_some(()));
        let victim = usize::try_from(chance.hash_one(round) % PROCESSES as u64).expect("a small number");
        workers[victim] = start(); // and who was there is killed
    }
    workers.clear();
    let lines = log.lines();
    let visits = visits(&lines);
    let refused = lines.iter().filter(|line| line.starts_with("busy")).count();
    assert!(refused > 50, "{refused} refused, {} visits: both must happen", visits.len());
    let most = most_at_once(&visits);
    println!("{} visits, {refused} refused, {most} at once", visits.len());
    assert!(most <= ROOMS && most > ROOMS / 2, "{most} at once of {ROOMS}");
    all_places_come_back(&server, ROOMS);
}
