//! Threads that wait for a policy and threads that check it, on overlapping keys: limits hold and no waiter
//! is lost.
//!
//! The main thread advances the clock until all others are done. A lost waiter would wait until the last
//! instant and fail with a timeout.

mod linearizability;
#[allow(dead_code, unused_imports, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/oracle/mod.rs"]
mod oracle;
#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use linearizability::{Record, replay};
use oracle::Bucket;
use random::Random;
use tidegate::clock::{Clock, ClockKind, Micros};
use tidegate::gate::{Part, RuleId};
use tidegate::{ManualClock, Policy, Quota, Rule};

const THREADS: usize = 6;
const DECISIONS: usize = 1_500;
const USERS: u64 = 4;
const GLOBAL: RuleId = RuleId(0);
const USER: RuleId = RuleId(1);
const CONCURRENCY: RuleId = RuleId(2);
/// Later than any of these runs gets, unless a waiter is lost.
const LAST_INSTANT: Micros = Micros::new(1 << 50);
const MAX_STEPS: usize = 20_000_000;

/// A burst of four each, and one per 2 µs globally, one per 5 µs for each user.
const QUOTAS: [Quota; 2] =
    [Quota::per(1, Duration::from_micros(2)).burst(4), Quota::per(1, Duration::from_micros(5)).burst(4)];

fn policy(clock: &ManualClock) -> Policy<Rule, ManualClock> {
    let rules =
        Policy::builder().rule("global", QUOTAS[0]).rule("user", QUOTAS[1]).concurrency("concurrency", 2);
    rules.clock(clock.clone()).build().expect("a valid policy")
}

/// Runs `work` on all threads in parallel, and advances the clock until they are done.
fn run_threads<T: Send>(clock: &ManualClock, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let done = AtomicUsize::new(0);
    let one_thread = |thread| {
        let results = work(thread);
        done.fetch_add(1, Ordering::SeqCst);
        results
    };
    std::thread::scope(|scope| {
        let one_thread = &one_thread;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || one_thread(thread))).collect();
        for _ in 0..MAX_STEPS {
            if done.load(Ordering::SeqCst) == THREADS {
                break;
            }
            clock.advance(Duration::from_micros(1));
            std::thread::yield_now();
        }
        clock.advance_to(LAST_INSTANT);
        threads.into_iter().map(|thread| thread.join().expect("a thread that returns")).collect()
    })
}

fn user(random: &mut Random) -> String {
    format!("user {}", random.below(USERS))
}

fn cost(random: &mut Random) -> u32 {
    u32::try_from(random.between(1, 4)).expect("a small cost")
}

type StateKey = (RuleId, String);

/// Each thread waits for one state, or checks several together; the allowed requests of each state are
/// replayed.
#[test]
fn waits_and_checks_on_shared_states_replay_exactly() {
    let clock = ManualClock::new();
    let policy = policy(&clock);
    let results = run_threads(&clock, |thread| {
        let (mut random, mut results) = (Random::seeded(thread as u64), Vec::new());
        for number in 0..DECISIONS {
            let (name, cost) = (user(&mut random), cost(&mut random));
            let parts = [Part::of(GLOBAL).cost(cost), Part::of(USER).key(&name).cost(cost)];
            let states = [(GLOBAL, String::new()), (USER, name.clone())];
            let charged: Vec<_> = if random.one_in(2) {
                let admission = policy.check_each_parts(&parts).expect("a valid request");
                let rules = admission.rules.iter().copied().filter(|_| admission.is_allowed());
                states.into_iter().zip(rules).collect()
            } else {
                let one = usize::from(random.one_in(2));
                let admission =
                    policy.request().parts(&parts[one..=one]).deadline(LAST_INSTANT).acquire_blocking();
                let decision = admission.expect("no waiter is lost").decision;
                vec![(states[one].clone(), decision)]
            };
            let record = |decision: tidegate::Decision| {
                let decision = decision.of_rule(RuleId(0));
                Record { thread, number, cost, decision, ordering: decision }
            };
            results.extend(charged.into_iter().map(|(state, decision)| (state, record(decision))));
        }
        results
    });
    let mut states: HashMap<StateKey, Vec<Record>> = HashMap::new();
    for (state, results) in results.into_iter().flatten() {
        states.entry(state).or_default().push(results);
    }
    assert_eq!(states.len() as u64, 1 + USERS);
    for ((rule, _), results) in states {
        let oracle = Bucket::new(QUOTAS[usize::from(rule.0)], ClockKind::Monotonic);
        assert!(
            replay(oracle, results).passed > 100,
            "enough requests passed for the replay to mean something"
        );
    }
    assert_eq!(policy.waiting(), 0);
}

/// Every request waits for a global rate, a user's rate and permits together. Some have a short deadline.
#[test]
fn waits_for_rates_and_permits_stay_within_limits_and_all_end() {
    let clock = ManualClock::new();
    let policy = policy(&clock);
    let (in_progress, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results = run_threads(&clock, |thread| {
        let (mut random, mut charged) = (Random::seeded(100 + thread as u64), Vec::new());
        for _ in 0..DECISIONS {
            let (name, cost) = (user(&mut random), cost(&mut random));
            let permits = u32::from(random.one_in(2)) + 1;
            let mut request = vec![Part::of(USER).key(&name).cost(cost), Part::of(CONCURRENCY).cost(permits)];
            request.insert(usize::from(random.one_in(2)), Part::of(GLOBAL).cost(cost));
            let patient = !random.one_in(3);
            let deadline = if patient { LAST_INSTANT } else { clock.now().plus(random.below(30)) };
            match policy.request().parts(&request).deadline(deadline).acquire_blocking() {
                Ok(admission) => {
                    let now = in_progress.fetch_add(permits as usize, Ordering::SeqCst) + permits as usize;
                    peak.fetch_max(now, Ordering::SeqCst);
                    charged.push((name, cost));
                    in_progress.fetch_sub(permits as usize, Ordering::SeqCst);
                    drop(admission);
                }
                Err(refused) => {
                    assert!(!patient, "no waiter is lost: {refused}");
                    assert!(refused.is_timeout(), "{refused}");
                }
            }
        }
        (charged, clock.now().get())
    });
    let elapsed = results.iter().map(|(_, until)| *until).max().expect("there are threads");
    let mut used: HashMap<String, u64> = HashMap::new();
    let mut total = 0;
    for (name, cost) in results.into_iter().flat_map(|(charged, _)| charged) {
        *used.entry(name).or_default() += u64::from(cost);
        total += u64::from(cost);
    }
    assert!(total <= 4 + elapsed / 2, "{total} in {elapsed} µs");
    assert!(used.values().all(|used| *used <= 4 + elapsed / 5), "{used:?} in {elapsed} µs");
    assert!(peak.into_inner() <= 2, "too many in progress");
    assert_eq!(policy.waiting(), 0);
    let free = policy.request().rule("concurrency").cost(0).peek().expect("a valid request").remaining();
    assert_eq!(free, 2, "all permits are back");
    assert!(policy.request().rule("global").cost(4).check().expect("a valid request").is_allowed());
}
