//! Eight threads whose requests overlap, and not one rule wrong.
//!
//! Each request asks several rules at once, for keys that others ask for too: everybody's, one of a few companies', one
//! or two users'. What each part was told is sorted by rule and key, and every such pile is replayed through that rule's
//! oracle on its own; see [`replay`] for what that proves. A request that is refused must leave no charge in any pile, and
//! one that passes must leave one in each: a charge too many or too few, anywhere, and the next verdict there differs.
//!
//! `TIDEGATE_DECISIONS` asks for more or fewer decisions per thread and run.

#[allow(dead_code, unused_imports, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/oracle/mod.rs"]
mod oracle;
#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;
mod replay;

use std::collections::HashMap;
use std::sync::Barrier;
use std::time::Duration;

use oracle::{Bucket, CellCounts, Log, Oldest, Window};
use random::Random;
use replay::{Tally, Told, replay};
use tidegate::{
    Admission, Clock, ClockKind, FixedWindow, ManualClock, Part, Policy, Quota, Rule, RuleId, SlidingLog,
    SlidingWindow, Source, SteadyClock, TokenBucket,
};

const THREADS: usize = 8;
const COMPANIES: u64 = 4;
const USERS: u64 = 64;
const DEAREST: u64 = 3;
/// As much as a quiet key may take at once, of every rule.
const LIMIT: u64 = 20;

fn decisions() -> usize {
    let asked = std::env::var("TIDEGATE_DECISIONS").ok();
    asked.map_or(4_000, |number| number.parse().expect("TIDEGATE_DECISIONS is a number"))
}

/// How long a limit takes that lets one pass in so many microseconds.
fn period(micros: u64) -> Duration {
    Duration::from_micros(LIMIT * micros)
}

// --- rules, and what is right for each

/// What one rule ought to say.
#[derive(Clone)]
enum Right {
    Bucket(Bucket),
    Window(Window),
    Log(Log),
    Cells(CellCounts),
}

impl Right {
    fn replay(&self, told: Vec<Told>) -> Tally {
        match self.clone() {
            Right::Bucket(oracle) => replay(oracle, told),
            Right::Window(oracle) => replay(oracle, told),
            Right::Log(oracle) => replay(oracle, told),
            Right::Cells(oracle) => replay(oracle, told),
        }
    }
}

type Limit = fn(u64) -> (Rule, Right);

/// One word.
fn bucket(micros: u64) -> (Rule, Right) {
    let quota = Quota::per(1, Duration::from_micros(micros)).burst(LIMIT);
    (quota.into(), Right::Bucket(Bucket::new(quota, ClockKind::Monotonic)))
}

/// Two words and a guard.
fn wide_bucket(micros: u64) -> (Rule, Right) {
    let quota = Quota::per(999_983, Duration::from_secs(micros)).burst(LIMIT);
    (TokenBucket::new(quota).into(), Right::Bucket(Bucket::new(quota, ClockKind::Monotonic)))
}

fn window(micros: u64) -> (Rule, Right) {
    let quota = Quota::per(LIMIT, period(micros));
    (FixedWindow::new(quota).into(), Right::Window(Window::aligned(quota, Duration::ZERO)))
}

fn log(micros: u64) -> (Rule, Right) {
    let quota = Quota::per(LIMIT, period(micros));
    (SlidingLog::new(quota).into(), Right::Log(Log::new(quota, LIMIT)))
}

fn cells(micros: u64) -> (Rule, Right) {
    let quota = Quota::per(LIMIT, period(micros));
    (SlidingWindow::new(quota, 5).into(), Right::Cells(CellCounts::new(quota, 5, Oldest::InFull)))
}

// --- asking

/// Something that passes the time between decisions.
trait Pass: Clock + Clone + Send + Sync {
    /// How many of each rule are refused at least. On the real clock that is up to the machine.
    const REFUSALS: usize;

    fn pass(&self, random: &mut Random);
}

impl Pass for SteadyClock {
    const REFUSALS: usize = 0;

    fn pass(&self, _: &mut Random) {}
}

impl Pass for ManualClock {
    const REFUSALS: usize = 20;

    fn pass(&self, random: &mut Random) {
        if random.one_in(16) {
            self.advance(Duration::from_micros(random.below(16)));
        }
    }
}

/// Some of everybody's, of a company's, and of one or two users', in any order.
fn request(random: &mut Random) -> Vec<(RuleId, String, u32)> {
    let mut parts = Vec::new();
    let mut add = |rule: u16, key: String, random: &mut Random| {
        let cost = u32::try_from(random.between(1, DEAREST)).expect("a small cost");
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

/// What each part was told, by rule and key.
type Piles = HashMap<(RuleId, String), Vec<Told>>;

/// Lets all threads ask at once.
fn all_ask<C: Pass>(policy: &Policy<Rule, C>, clock: &C) -> Piles {
    let start = Barrier::new(THREADS);
    let one_thread = |thread: usize| {
        let mut random = Random::seeded(thread as u64);
        let mut told = Vec::new();
        start.wait();
        for number in 0..decisions() {
            clock.pass(&mut random);
            let request = request(&mut random);
            let admission = policy.check_each(&parts(&request)).expect("a valid request");
            told.extend(what_each_was_told(request, &admission, thread, number));
        }
        told
    };
    let mut piles = Piles::new();
    std::thread::scope(|scope| {
        let one_thread = &one_thread;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || one_thread(thread))).collect();
        for (pile, told) in threads.into_iter().flat_map(|it| it.join().expect("a thread that returns")) {
            piles.entry(pile).or_default().push(told);
        }
    });
    piles
}

/// The charges of a request that passed; of one that was refused, the refusals.
fn what_each_was_told(
    request: Vec<(RuleId, String, u32)>,
    admission: &Admission,
    thread: usize,
    number: usize,
) -> Vec<((RuleId, String), Told)> {
    let strictest = admission.rules.iter().copied().reduce(tidegate::Decision::and);
    assert_eq!(strictest, Some(admission.decision), "the decision is that of the binding rule");
    let relevant = |decision: &tidegate::Decision| {
        assert_ne!(decision.source, Source::Closed, "there was room for every key");
        admission.is_allowed() || !decision.is_allowed()
    };
    let told = request.into_iter().zip(&admission.rules).filter(|(_, decision)| relevant(decision));
    told.map(|((rule, key, cost), decision)| {
        assert_eq!(decision.rule, rule);
        let decision = decision.of_rule(RuleId(0));
        ((rule, key), Told { thread, number, cost, decision, ordering: decision })
    })
    .collect()
}

/// `[everybody, company, user]`, each as much slower as it is asked less often.
fn run_on<C: Pass>(clock: &C, limits: [Limit; 3]) {
    let slowed = [1, COMPANIES, USERS];
    let rules: Vec<(Rule, Right)> = limits.iter().zip(slowed).map(|(limit, slowed)| limit(slowed)).collect();
    let policy = Policy::builder()
        .rule("everybody", rules[0].0)
        .rule("company", rules[1].0)
        .rule("user", rules[2].0)
        .max_keys(80)
        .build()
        .expect("a valid policy")
        .with_clock(clock.clone());
    let mut all = [Tally::default(); 3];
    for ((rule, _), told) in all_ask(&policy, clock) {
        let rule = usize::from(rule.0);
        let tally = rules[rule].1.replay(told);
        all[rule].passed += tally.passed;
        all[rule].refused += tally.refused;
    }
    assert!(
        all.iter().all(|it| it.passed > 100 && it.refused >= C::REFUSALS),
        "it proves something: {all:?}"
    );
}

fn run(limits: [Limit; 3]) {
    run_on(&ManualClock::new(), limits);
    run_on(&SteadyClock::new(), limits);
}

#[test]
fn buckets_are_exact_together() {
    run([bucket, bucket, bucket]);
}

#[test]
fn larger_states_are_exact_together() {
    run([wide_bucket, wide_bucket, wide_bucket]);
}

#[test]
fn any_mix_is_exact_together() {
    run([bucket, window, log]);
    run([log, cells, bucket]);
    run([cells, wide_bucket, window]);
}
