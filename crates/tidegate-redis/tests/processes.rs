//! Several processes on one Redis: never too many, never needlessly few, and places that come back from the dead.

mod gates;
mod support;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gates::patient;
use support::{Kind, Server, until};
use tidegate::{Algorithm, Micros, Part, Quota, RuleId, TokenBucket};
use tidegate_redis::RedisGate;

/// As in the worker.
const EVERYBODY: Quota = Quota::per_second(2_000).burst(50);
const USER: Quota = Quota::per_second(700).burst(7);
const PLACES: usize = 3;
const LEASE: Duration = Duration::from_millis(400);

/// The worker, which is built with the tests.
fn worker() -> PathBuf {
    let test = std::env::current_exe().expect("this is a program");
    let folder = test.ancestors().nth(2).expect("it lies in deps, beside examples");
    folder.join("examples").join("worker")
}

fn start(args: &[&str]) -> Child {
    let mut command = Command::new(worker());
    command.args(args).stdout(Stdio::piped());
    command.spawn().unwrap_or_else(|error| {
        panic!(
            "{} does not start ({error}); build it with `cargo test` or `cargo build --examples`",
            worker().display()
        )
    })
}

/// One decision, as a worker tells it.
#[derive(Debug)]
struct Told {
    at: Micros,
    user: String,
    allowed: bool,
}

impl Told {
    fn read(line: &str) -> Self {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_else(|| panic!("a worker says {line:?}"));
        let at = Micros::new(word().parse().expect("an instant"));
        Told { at, user: word().to_owned(), allowed: word() == "true" }
    }
}

/// The same two limits, here.
#[derive(Debug, Default)]
struct Replay {
    everybody: [u64; 3],
    users: HashMap<String, [u64; 3]>,
}

impl Replay {
    /// Whether both allow it, and both charged if so.
    fn decides(&mut self, told: &Told) -> bool {
        let (everybody, user) = (TokenBucket::new(EVERYBODY), TokenBucket::new(USER));
        let theirs = self.users.entry(told.user.clone()).or_default();
        let both = everybody.peek(&self.everybody, told.at, 1).is_allowed()
            && user.peek(theirs, told.at, 1).is_allowed();
        if both {
            let _ = everybody.decide(&mut self.everybody, told.at, 1);
            let _ = user.decide(theirs, told.at, 1);
        }
        both
    }
}

#[test]
fn four_processes_of_eight_tasks_are_never_too_many_and_never_needlessly_few() {
    let server = Server::start(Kind::Redis, &[]);
    let workers: Vec<Child> = (0..4).map(|_| start(&["check", &server.url(), "8", "400"])).collect();
    let mut all: Vec<Told> = Vec::new();
    for worker in workers {
        let output = worker.wait_with_output().expect("a worker ends");
        assert!(output.status.success(), "{output:?}");
        all.extend(String::from_utf8_lossy(&output.stdout).lines().map(Told::read));
    }
    assert_eq!(all.len(), 4 * 8 * 400);
    all.sort_by_key(|told| told.at);
    let same_instant = all.windows(2).filter(|pair| pair[0].at == pair[1].at).count();
    assert_eq!(same_instant, 0, "a script takes longer than a microsecond, so the order is known");
    let mut replay = Replay::default();
    for told in &all {
        assert_eq!(replay.decides(told), told.allowed, "{told:?}");
    }
    let passed = all.iter().filter(|told| told.allowed).count();
    assert!(passed > 100 && passed < all.len() - 100, "{passed} of {}: both must happen", all.len());
}

/// A process that holds a place, or was refused one.
struct Holder(Child);

impl Holder {
    /// Starts one, and tells whether it has a place.
    fn start(url: &str) -> Option<Self> {
        let mut holder = Holder(start(&["hold", url]));
        let mut line = String::new();
        let mut output = BufReader::new(holder.0.stdout.take().expect("it is piped"));
        output.read_line(&mut line).expect("it says something");
        match line.trim() {
            "held" => Some(holder),
            "busy" => None,
            other => panic!("a holder says {other:?}"),
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let builder = RedisGate::builder(&url).rule("a", EVERYBODY).rule("b", USER).at_once("work", 3, LEASE);
    let gate = patient(builder);
    let left = || {
        let peeked = runtime.block_on(gate.peek(&[Part::of(RuleId(2)).cost(0)]));
        peeked.expect("a request").expect("an answer").remaining()
    };
    until("all places are free", || (left() == 3).then_some(()));
    until("nothing is left behind", || server.cli(&["KEYS", "tg:*work"]).trim().is_empty().then_some(()));
}
