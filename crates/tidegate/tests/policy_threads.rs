//! Eight threads with overlapping requests: every rule stays exact.
//!
//! Each request checks several rules together, for keys that other threads use too: the global key, one of
//! a few companies, one or two users. The decisions of all parts are grouped by rule and key, and every
//! group is replayed through that rule's oracle on its own; see [`replay`] for what that proves. A denied
//! request must leave no charge in any group, and an allowed one must leave one in each: after one charge
//! too many or too few the next decision there differs.
//!
//! `TIDEGATE_DECISIONS` sets the number of decisions per thread and run.

mod linearizability;
#[allow(dead_code, unused_imports, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/oracle/mod.rs"]
mod oracle;
#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::collections::HashMap;
use std::sync::Barrier;
use std::time::Duration;

use linearizability::{Record, Tally, replay};
use oracle::{Bucket, CellCounts, Log, Oldest, Window};
use random::Random;
use tidegate::algorithm::{FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
use tidegate::clock::{Clock, ClockKind};
use tidegate::gate::{Part, RuleId};
use tidegate::{Admission, ManualClock, Policy, Quota, Rule, Source, SteadyClock};

const THREADS: usize = 8;
const COMPANIES: u64 = 4;
const USERS: u64 = 64;
const MAX_COST: u64 = 3;
/// The burst of every rule.
const LIMIT: u64 = 20;

fn decisions() -> usize {
    let setting = std::env::var("TIDEGATE_DECISIONS").ok();
    setting.map_or(4_000, |number| number.parse().expect("TIDEGATE_DECISIONS is a number"))
}

/// The period of a limit with one request per `micros` microseconds.
fn period(micros: u64) -> Duration {
    Duration::from_micros(LIMIT * micros)
}

// --- rules and their oracles

/// The oracle of one rule.
#[derive(Clone)]
enum RuleOracle {
    Bucket(Bucket),
    Window(Window),
    Log(Log),
    Cells(CellCounts),
}

impl RuleOracle {
    fn replay(&self, records: Vec<Record>) -> Tally {
        match self.clone() {
            RuleOracle::Bucket(oracle) => replay(oracle, records),
            RuleOracle::Window(oracle) => replay(oracle, records),
            RuleOracle::Log(oracle) => replay(oracle, records),
            RuleOracle::Cells(oracle) => replay(oracle, records),
        }
    }
}

type Limit = fn(u64) -> (Rule, RuleOracle);

/// One word.
fn bucket(micros: u64) -> (Rule, RuleOracle) {
    let quota = Quota::per(1, Duration::from_micros(micros)).burst(LIMIT);
    (quota.into(), RuleOracle::Bucket(Bucket::new(quota, ClockKind::Monotonic)))
}

/// Two words and a guard.
fn wide_bucket(micros: u64) -> (Rule, RuleOracle) {
    let quota = Quota::per(999_983, Duration::from_secs(micros)).burst(LIMIT);
    (TokenBucket::new(quota).into(), RuleOracle::Bucket(Bucket::new(quota, ClockKind::Monotonic)))
}

fn window(micros: u64) -> (Rule, RuleOracle) {
    let quota = Quota::per(LIMIT, period(micros));
    (FixedWindow::new(quota).into(), RuleOracle::Window(Window::aligned(quota, Duration::ZERO)))
}

fn log(micros: u64) -> (Rule, RuleOracle) {
    let quota = Quota::per(LIMIT, period(micros));
    (SlidingLog::new(quota).into(), RuleOracle::Log(Log::new(quota, LIMIT)))
}

fn cells(micros: u64) -> (Rule, RuleOracle) {
    let quota = Quota::per(LIMIT, period(micros));
    (SlidingWindow::new(quota, 5).into(), RuleOracle::Cells(CellCounts::new(quota, 5, Oldest::InFull)))
}

// --- checking

/// Advances the clock between decisions.
trait Pass: Clock + Clone + Send + Sync {
    /// The least number of denials of each rule. On the real clock it depends on the machine.
    const MIN_DENIALS: usize;

    fn pass(&self, random: &mut Random);
}

impl Pass for SteadyClock {
    const MIN_DENIALS: usize = 0;

    fn pass(&self, _: &mut Random) {}
}

impl Pass for ManualClock {
    const MIN_DENIALS: usize = 20;

    fn pass(&self, random: &mut Random) {
        if random.one_in(16) {
            self.advance(Duration::from_micros(random.below(16)));
        }
    }
}

/// Parts for the global key, a company, and one or two users, in any order.
fn request(random: &mut Random) -> Vec<(RuleId, String, u32)> {
    let mut parts = Vec::new();
    let mut add = |rule: u16, key: String, random: &mut Random| {
        let cost = u32::try_from(random.between(1, MAX_COST)).expect("a small cost");
        let part = (RuleId(rule), key, cost);
        parts.insert(usize::try_from(random.below(parts.len() as u64 + 1)).expect("small"), part);
    };
    if !random.one_in(4) {
        add(0, String::new(), random);
    }
    if !random.one_in(4) {
        add(1, format!("company {}", random.below(COMPANIES)), random);
    }
    let user = random.below(USERS);
    add(2, format!("user {user}"), random);
    if random.one_in(4) {
        add(2, format!("user {}", (user + 1) % USERS), random);
    }
    parts
}

fn parts(request: &[(RuleId, String, u32)]) -> Vec<Part<'_>> {
    request.iter().map(|(rule, key, cost)| Part::of(*rule).key(key).cost(*cost)).collect()
}

/// The decisions of all parts, by rule and key.
type Groups = HashMap<(RuleId, String), Vec<Record>>;

/// Runs the checks of all threads in parallel.
fn run_threads<C: Pass>(policy: &Policy<Rule, C>, clock: &C) -> Groups {
    let start = Barrier::new(THREADS);
    let one_thread = |thread: usize| {
        let mut random = Random::seeded(thread as u64);
        let mut records = Vec::new();
        start.wait();
        for number in 0..decisions() {
            clock.pass(&mut random);
            let request = request(&mut random);
            let admission = policy.check_each_parts(&parts(&request)).expect("a valid request");
            records.extend(records_of(request, &admission, thread, number));
        }
        records
    };
    let mut groups = Groups::new();
    std::thread::scope(|scope| {
        let one_thread = &one_thread;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || one_thread(thread))).collect();
        for (group, record) in threads.into_iter().flat_map(|it| it.join().expect("a thread that returns")) {
            groups.entry(group).or_default().push(record);
        }
    });
    groups
}

/// The charges of an allowed request; the denials of a denied one.
fn records_of(
    request: Vec<(RuleId, String, u32)>,
    admission: &Admission,
    thread: usize,
    number: usize,
) -> Vec<((RuleId, String), Record)> {
    let strictest = admission.rules.iter().copied().reduce(tidegate::Decision::and);
    assert_eq!(strictest, Some(admission.decision), "the decision is the one of the binding rule");
    let relevant = |decision: &tidegate::Decision| {
        assert_ne!(decision.source, Source::Closed, "there was room for every key");
        admission.is_allowed() || !decision.is_allowed()
    };
    let relevant_parts = request.into_iter().zip(&admission.rules).filter(|(_, decision)| relevant(decision));
    relevant_parts
        .map(|((rule, key, cost), decision)| {
            assert_eq!(decision.rule, rule);
            let decision = decision.of_rule(RuleId(0));
            ((rule, key), Record { thread, number, cost, decision, ordering: decision })
        })
        .collect()
}

/// `[global, company, user]`, each as much slower as it is checked less often.
fn run_on<C: Pass>(clock: &C, limits: [Limit; 3]) {
    let slowed = [1, COMPANIES, USERS];
    let rules: Vec<(Rule, RuleOracle)> =
        limits.iter().zip(slowed).map(|(limit, slowed)| limit(slowed)).collect();
    let policy = Policy::builder()
        .rule("global", rules[0].0)
        .rule("company", rules[1].0)
        .rule("user", rules[2].0)
        .max_keys(80)
        .clock(clock.clone())
        .build()
        .expect("a valid policy");
    let mut all = [Tally::default(); 3];
    for ((rule, _), records) in run_threads(&policy, clock) {
        let rule = usize::from(rule.0);
        let tally = rules[rule].1.replay(records);
        all[rule].passed += tally.passed;
        all[rule].denied += tally.denied;
    }
    assert!(
        all.iter().all(|it| it.passed > 100 && it.denied >= C::MIN_DENIALS),
        "the run is too one-sided to mean something: {all:?}"
    );
}

fn run(limits: [Limit; 3]) {
    run_on(&ManualClock::new(), limits);
    run_on(&SteadyClock::new(), limits);
}

#[test]
fn policy_of_buckets_is_exact_under_concurrency() {
    run([bucket, bucket, bucket]);
}

#[test]
fn policy_of_wide_buckets_is_exact_under_concurrency() {
    run([wide_bucket, wide_bucket, wide_bucket]);
}

#[test]
fn policy_of_mixed_algorithms_is_exact_under_concurrency() {
    run([bucket, window, log]);
    run([log, cells, bucket]);
    run([cells, wide_bucket, window]);
}
