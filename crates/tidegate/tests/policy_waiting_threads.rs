//! Threads that wait for a policy and threads that do not, at overlapping keys: never too many, nobody forgotten.
//!
//! Time is moved by a thread of its own until all others are done. Who were forgotten would wait until the last instant
//! and be told so.

#[allow(dead_code, unused_imports, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/oracle/mod.rs"]
mod oracle;
#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;
mod replay;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oracle::Bucket;
use random::Random;
use replay::{Told, replay};
use tidegate::{
    Clock, ClockKind, ManualClock, Micros, NotAdmitted, Part, Policy, Quota, Rule, RuleId, WaitRefused,
};

const THREADS: usize = 6;
const DECISIONS: usize = 1_500;
const USERS: u64 = 4;
const EVERYBODY: RuleId = RuleId(0);
const USER: RuleId = RuleId(1);
const AT_WORK: RuleId = RuleId(2);
/// Further than any of these runs gets, unless somebody is forgotten.
const THE_END: Micros = Micros::new(1 << 50);
const MOST_STEPS: usize = 20_000_000;

/// Four at once, and one in 2 µs for everybody, in 5 µs for each user.
const QUOTAS: [Quota; 2] =
    [Quota::per(1, Duration::from_micros(2)).burst(4), Quota::per(1, Duration::from_micros(5)).burst(4)];

fn policy(clock: &ManualClock) -> Policy<Rule, ManualClock> {
    let rules =
        Policy::builder().rule("everybody", QUOTAS[0]).rule("user", QUOTAS[1]).concurrency("at work", 2);
    rules.build().expect("a valid policy").with_clock(clock.clone())
}

/// Runs `work` on all threads at once, and moves the clock until they are done.
fn all<T: Send>(clock: &ManualClock, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let done = AtomicUsize::new(0);
    let one_thread = |thread| {
        let told = work(thread);
        done.fetch_add(1, Ordering::SeqCst);
        told
    };
    std::thread::scope(|scope| {
        let one_thread = &one_thread;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || one_thread(thread))).collect();
        for _ in 0..MOST_STEPS {
            if done.load(Ordering::SeqCst) == THREADS {
                break;
            }
            clock.advance(Duration::from_micros(1));
            std::thread::yield_now();
        }
        clock.advance_to(THE_END);
        threads.into_iter().map(|thread| thread.join().expect("a thread that returns")).collect()
    })
}

fn user(random: &mut Random) -> String {
    format!("user {}", random.below(USERS))
}

fn cost(random: &mut Random) -> u32 {
    u32::try_from(random.between(1, 4)).expect("a small cost")
}

type Pile = (RuleId, String);

/// Each waits for one state, whose word is then its own, or checks several; what passed is replayed, state by state.
#[test]
fn those_who_wait_and_those_who_check_are_exact_together() {
    let clock = ManualClock::new();
    let policy = policy(&clock);
    let told = all(&clock, |thread| {
        let (mut random, mut told) = (Random::seeded(thread as u64), Vec::new());
        for number in 0..DECISIONS {
            let (name, cost) = (user(&mut random), cost(&mut random));
            let parts = [Part::of(EVERYBODY).cost(cost), Part::of(USER).key(&name).cost(cost)];
            let piles = [(EVERYBODY, String::new()), (USER, name.clone())];
            let charged: Vec<_> = if random.one_in(2) {
                let admission = policy.check_each(&parts).expect("a valid request");
                let rules = admission.rules.iter().copied().filter(|_| admission.is_allowed());
                piles.into_iter().zip(rules).collect()
            } else {
                let one = usize::from(random.one_in(2));
                let admission = policy.acquire_blocking_until(&parts[one..=one], THE_END);
                let decision = admission.expect("nobody is forgotten").decision;
                vec![(piles[one].clone(), decision)]
            };
            let told_of = |decision: tidegate::Decision| {
                let decision = decision.of_rule(RuleId(0));
                Told { thread, number, cost, decision, ordering: decision }
            };
            told.extend(charged.into_iter().map(|(pile, decision)| (pile, told_of(decision))));
        }
        told
    });
    let mut piles: HashMap<Pile, Vec<Told>> = HashMap::new();
    for (pile, told) in told.into_iter().flatten() {
        piles.entry(pile).or_default().push(told);
    }
    assert_eq!(piles.len() as u64, 1 + USERS);
    for ((rule, _), told) in piles {
        let oracle = Bucket::new(QUOTAS[usize::from(rule.0)], ClockKind::Monotonic);
        assert!(replay(oracle, told).passed > 100, "it proves something");
    }
    assert_eq!(policy.waiting(), 0);
}

/// Everybody waits for everything at once: a rate for all, one of each user, and a permit. Some give up.
#[test]
fn never_too_many_and_nobody_forgotten_among_those_who_wait_for_everything() {
    let clock = ManualClock::new();
    let policy = policy(&clock);
    let (at_work, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let told = all(&clock, |thread| {
        let (mut random, mut charged) = (Random::seeded(100 + thread as u64), Vec::new());
        for _ in 0..DECISIONS {
            let (name, cost) = (user(&mut random), cost(&mut random));
            let permits = u32::from(random.one_in(2)) + 1;
            let mut request = vec![Part::of(USER).key(&name).cost(cost), Part::of(AT_WORK).cost(permits)];
            request.insert(usize::from(random.one_in(2)), Part::of(EVERYBODY).cost(cost));
            let patient = !random.one_in(3);
            let deadline = if patient { THE_END } else { clock.now().plus(random.below(30)) };
            match policy.acquire_blocking_until(&request, deadline) {
                Ok(admission) => {
                    let now = at_work.fetch_add(permits as usize, Ordering::SeqCst) + permits as usize;
                    most.fetch_max(now, Ordering::SeqCst);
                    charged.push((name, cost));
                    at_work.fetch_sub(permits as usize, Ordering::SeqCst);
                    drop(admission);
                }
                Err(NotAdmitted::Refused { why, .. }) => {
                    assert!(!patient, "nobody is forgotten: {why}");
                    assert!(
                        matches!(why, WaitRefused::TooLong { .. } | WaitRefused::TimedOut { .. }),
                        "{why}"
                    );
                }
                Err(other) => panic!("{other}"),
            }
        }
        (charged, clock.now().get())
    });
    let elapsed = told.iter().map(|(_, until)| *until).max().expect("there are threads");
    let mut used: HashMap<String, u64> = HashMap::new();
    let mut everybody = 0;
    for (name, cost) in told.into_iter().flat_map(|(charged, _)| charged) {
        *used.entry(name).or_default() += u64::from(cost);
        everybody += u64::from(cost);
    }
    assert!(everybody <= 4 + elapsed / 2, "{everybody} in {elapsed} µs");
    assert!(used.values().all(|used| *used <= 4 + elapsed / 5), "{used:?} in {elapsed} µs");
    assert!(most.into_inner() <= 2, "too many at work");
    assert_eq!(policy.waiting(), 0);
    let free = policy.peek(&[Part::of(AT_WORK).cost(0)]).expect("a valid request").remaining();
    assert_eq!(free, 2, "all permits are back");
    assert!(policy.check(&[Part::of(EVERYBODY).cost(4)]).expect("a valid request").is_allowed());
}
