//! Eight threads in parallel: every decision stays exact.
//!
//! The decisions of eight threads on one limiter, on one key and on hundreds of keys are replayed through
//! the oracle; see [`replay`] for what that proves. On the real clock threads are overtaken between reading
//! the clock and deciding. On a manual clock, which only the threads advance, they all decide at the same
//! few instants. That is harder: every decision is then at the edge of another.
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
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use linearizability::{Record, Tally, replay};
use oracle::{Answer, Bucket, CellCounts, Log, Oldest, Oracle, Policy, Time, Window};
use random::Random;
use tidegate::algorithm::{Algorithm, FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
use tidegate::clock::{Clock, ClockKind};
use tidegate::{Decision, KeyedLimiter, Limiter, ManualClock, OnFull, Quota, Source, SteadyClock};

const THREADS: usize = 8;
const KEYS: u64 = 256;
/// Costs are from 1 to this.
const MAX_COST: u64 = 3;
/// The burst of every limit.
const LIMIT: u64 = 20;

fn decisions() -> usize {
    let setting = std::env::var("TIDEGATE_DECISIONS").ok();
    setting.map_or(4_000, |number| number.parse().expect("TIDEGATE_DECISIONS is a number"))
}

/// The period of one token per `slowed` microseconds: 1 for a single key, [`KEYS`] for one of many.
///
/// The refill is slower by the number of keys, so both cases have as many decisions of each outcome.
fn period(limit: u64, slowed: u64) -> Duration {
    Duration::from_micros(limit * slowed)
}

// --- checking

/// The operation by which limiters are checked.
trait CheckCall {
    fn limiter<A: Algorithm, C: Clock>(limiter: &Limiter<A, C>, cost: u32) -> Checked;
    fn key<A: Algorithm, C: Clock>(limiter: &KeyedLimiter<u64, A, C>, key: u64, cost: u32) -> Checked;
}

/// The decision, and the decision that identifies the state it was made in.
type Checked = (Decision, Decision);

/// Uses `check`, the common call.
struct Check;

impl CheckCall for Check {
    fn limiter<A: Algorithm, C: Clock>(limiter: &Limiter<A, C>, cost: u32) -> Checked {
        let decision = limiter.request().cost(cost).check();
        (decision, decision)
    }

    fn key<A: Algorithm, C: Clock>(limiter: &KeyedLimiter<u64, A, C>, key: u64, cost: u32) -> Checked {
        let decision = limiter.request(&key).cost(cost).check();
        (decision, decision)
    }
}

/// A policy's decision is the one of the binding rule; only the first rule's decision identifies the state.
struct CheckEach;

impl CheckCall for CheckEach {
    fn limiter<A: Algorithm, C: Clock>(limiter: &Limiter<A, C>, cost: u32) -> Checked {
        let detailed = limiter.request().cost(cost).check_each();
        (detailed.decision, detailed.rules[0])
    }

    fn key<A: Algorithm, C: Clock>(limiter: &KeyedLimiter<u64, A, C>, key: u64, cost: u32) -> Checked {
        let detailed = limiter.request(&key).cost(cost).check_each();
        (detailed.decision, detailed.rules[0])
    }
}

/// Advances the clock between decisions.
trait Pass: Clock + Clone + Send + Sync {
    fn pass(&self, random: &mut Random);
}

impl Pass for SteadyClock {
    fn pass(&self, _: &mut Random) {}
}

impl Pass for ManualClock {
    /// Adds half a token per decision on average, and often none for a while.
    fn pass(&self, random: &mut Random) {
        if random.one_in(16) {
            self.advance(Duration::from_micros(random.below(16)));
        }
    }
}

/// Runs the checks of all threads in parallel, and returns their decisions by key.
fn run_threads<C: Pass>(
    clock: &C,
    pick: impl Fn(&mut Random, usize) -> u64 + Sync,
    ask: impl Fn(u64, u32) -> Checked + Sync,
) -> HashMap<u64, Vec<Record>> {
    let start = Barrier::new(THREADS);
    let one_thread = |thread: usize| {
        let mut random = Random::seeded(thread as u64);
        start.wait();
        let record = |number| {
            clock.pass(&mut random);
            let (key, cost) = (pick(&mut random, number), cost(&mut random));
            let (decision, ordering) = ask(key, cost);
            (key, Record { thread, number, cost, decision, ordering })
        };
        (0..decisions()).map(record).collect::<Vec<_>>()
    };
    let mut records: HashMap<u64, Vec<Record>> = HashMap::new();
    std::thread::scope(|scope| {
        let one_thread = &one_thread;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || one_thread(thread))).collect();
        for (key, record) in
            threads.into_iter().flat_map(|thread| thread.join().expect("a thread that returns"))
        {
            records.entry(key).or_default().push(record);
        }
    });
    records
}

fn cost(random: &mut Random) -> u32 {
    u32::try_from(random.between(1, MAX_COST)).expect("a small cost")
}

/// Replays the decisions of every key.
#[track_caller]
fn verify<O: Oracle + Clone>(oracle: &O, records: HashMap<u64, Vec<Record>>) {
    let mut all = Tally::default();
    for records in records.into_values() {
        assert!(records.iter().all(|record| !no_room(&record.decision)), "there was room for every key");
        let tally = replay(oracle.clone(), records);
        all = Tally { passed: all.passed + tally.passed, denied: all.denied + tally.denied };
    }
    assert!(all.passed > 100 && all.denied > 100, "the run is too one-sided to mean something: {all:?}");
}

fn no_room(decision: &Decision) -> bool {
    decision.source == Source::Closed
}

// --- runs

fn one_limiter<W: CheckCall, C: Pass>(clock: C, (algorithm, oracle): (impl Shareable, impl Oracle + Clone)) {
    let limiter = Limiter::builder_with(algorithm).clock(clock.clone()).build();
    verify(&oracle, run_threads(&clock, |_, _| 0, |_, cost| W::limiter(&limiter, cost)));
}

fn one_key<W: CheckCall, C: Pass>(clock: C, (algorithm, oracle): (impl Shareable, impl Oracle + Clone)) {
    let limiter = KeyedLimiter::<u64, _>::builder_with(algorithm).max_keys(1).clock(clock.clone()).build();
    verify(&oracle, run_threads(&clock, |_, _| 0, |key, cost| W::key(&limiter, key, cost)));
}

fn many_keys<W: CheckCall, C: Pass>(clock: C, (algorithm, oracle): (impl Shareable, impl Oracle + Clone)) {
    let limiter = KeyedLimiter::<u64, _>::builder_with(algorithm).max_keys(400).clock(clock.clone()).build();
    let records =
        run_threads(&clock, |random, _| random.below(KEYS), |key, cost| W::key(&limiter, key, cost));
    verify(&oracle, records);
}

/// With each decision a new key arrives, takes the whole burst and never returns. Thousands of new keys are
/// in the table at any time: the table divides, and idle keys are evicted. The other keys are checked in
/// groups, one group after another, so that they are evicted too, and come back.
///
/// Now and then a thread with an old clock reading finds the table full. That decision is about room, not
/// about the key, and must change nothing: the other decisions are replayed without it.
fn many_keys_among_new_keys<W: CheckCall>((algorithm, oracle): (impl Shareable, impl Oracle + Clone)) {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64, _>::builder_with(algorithm).max_keys(20_000).on_full(OnFull::Refuse);
    let limiter = limiter.clock(clock.clone()).build();
    let new_keys = AtomicU64::new(KEYS);
    let before = limiter.stats();
    let group_length = decisions().div_ceil(16);
    let pick =
        |random: &mut Random, number: usize| (number / group_length % 8) as u64 * 32 + random.below(32);
    let mut records = run_threads(&clock, pick, |key, cost| {
        let new_key = new_keys.fetch_add(1, Ordering::Relaxed);
        let first = limiter.request(&new_key).cost(u32::try_from(LIMIT).expect("a small limit")).check();
        assert!(first.is_allowed() || no_room(&first), "a new key has used nothing: {first:?}");
        W::key(&limiter, key, cost)
    });
    let after = limiter.stats();
    assert!(
        after.bytes > before.bytes && after.evicted > 0,
        "the table divided and evicted: {before:?} {after:?}"
    );
    records.values_mut().for_each(|of_key| of_key.retain(|record| !no_room(&record.decision)));
    verify(&oracle, records);
}

/// Keys that do not fit, few enough that hardly ever two of them share all their cells: their decisions are
/// exact, too. The key in the table is charged again and again, so that it is never evicted.
fn keys_without_room<W: CheckCall, C: Pass>(
    clock: C,
    (algorithm, oracle): (impl Shareable, impl Oracle + Clone),
) {
    let limiter = KeyedLimiter::<u64, _>::builder_with(algorithm).max_keys(1).clock(clock.clone()).build();
    let records = run_threads(
        &clock,
        |random, _| random.below(4),
        |key, cost| {
            let _ = limiter.request(&KEYS).cost(u32::MAX).force();
            W::key(&limiter, key, cost)
        },
    );
    let stats = limiter.stats();
    assert!(stats.sketch.decided > 1_000 && stats.sketch.refused > 100, "{stats:?}");
    verify(&oracle, records);
}

trait Shareable: Algorithm + Clone + Send + Sync {}

impl<A: Algorithm + Clone + Send + Sync> Shareable for A {}

/// Every run, with a limit that is slower by the given factor.
fn every_run<W: CheckCall, A: Shareable, O: Oracle + Clone>(slowed: impl Fn(u64) -> (A, O)) {
    one_limiter::<W, _>(SteadyClock::new(), slowed(1));
    one_limiter::<W, _>(ManualClock::new(), slowed(1));
    one_key::<W, _>(SteadyClock::new(), slowed(1));
    one_key::<W, _>(ManualClock::new(), slowed(1));
    many_keys::<W, _>(SteadyClock::new(), slowed(KEYS));
    many_keys::<W, _>(ManualClock::new(), slowed(KEYS));
    many_keys_among_new_keys::<W>(slowed(KEYS));
}

// --- limits

/// A bucket of `limit` per `micros` microseconds, whose interval is p/q with this q.
fn bucket(limit: u64, micros: u64, q: u64) -> (TokenBucket, Bucket) {
    let quota = Quota::per(limit, Duration::from_micros(micros)).burst(LIMIT);
    assert_eq!(quota.q(), q);
    (TokenBucket::new(quota), Bucket::new(quota, ClockKind::Monotonic))
}

#[test]
fn bucket_of_whole_microseconds_is_exact() {
    every_run::<Check, _, _>(|slowed| bucket(1, slowed, 1));
}

#[test]
fn bucket_of_thirds_of_microseconds_is_exact() {
    every_run::<Check, _, _>(|slowed| bucket(3, 4 * slowed, 3));
}

/// The interval has too many parts for one word: the state takes two words and a guard.
#[test]
fn bucket_of_millionths_of_microseconds_is_exact() {
    every_run::<Check, _, _>(|slowed| bucket(999_983, 1_000_000 * slowed, 999_983));
}

#[test]
fn aligned_fixed_window_is_exact() {
    every_run::<Check, _, _>(|slowed| {
        let quota = Quota::per(LIMIT, period(LIMIT, slowed));
        (FixedWindow::new(quota), Window::aligned(quota, Duration::ZERO))
    });
}

#[test]
fn keys_without_room_get_exact_decisions() {
    fn both_clocks<A: Shareable, O: Oracle + Clone>(limit: impl Fn() -> (A, O)) {
        keys_without_room::<Check, _>(SteadyClock::new(), limit());
        keys_without_room::<Check, _>(ManualClock::new(), limit());
    }
    both_clocks(|| bucket(1, 4, 1));
    both_clocks(|| bucket(3, 16, 3));
    both_clocks(|| bucket(999_983, 4_000_000, 999_983));
    both_clocks(|| {
        let quota = Quota::per(LIMIT, period(LIMIT, 4));
        (FixedWindow::new(quota), Window::aligned(quota, Duration::ZERO))
    });
}

#[test]
fn fixed_window_from_first_hit_is_exact() {
    every_run::<Check, _, _>(|slowed| {
        let quota = Quota::per(LIMIT, period(LIMIT, slowed));
        (FixedWindow::new(quota).from_first_hit(), Window::from_first_hit(quota))
    });
}

#[test]
fn sliding_log_is_exact() {
    every_run::<Check, _, _>(|slowed| {
        let quota = Quota::per(LIMIT, period(LIMIT, slowed));
        (SlidingLog::new(quota), Log::new(quota, LIMIT))
    });
}

#[test]
fn sliding_window_is_exact() {
    every_run::<Check, _, _>(|slowed| {
        let quota = Quota::per(LIMIT, period(LIMIT, slowed));
        (SlidingWindow::new(quota, 5), CellCounts::new(quota, 5, Oldest::InFull))
    });
}

/// Nine tokens per ten microseconds, and no more than the limit in each window. Whenever the window is full
/// the bucket is not full, since it refills less than what a full window takes; so the bucket identifies
/// every state.
#[test]
fn tuple_of_two_algorithms_is_exact() {
    every_run::<CheckEach, _, _>(|slowed| {
        let (bucket, of_bucket) = bucket(9, 10 * slowed, 9);
        let quota = Quota::per(LIMIT, period(LIMIT, slowed));
        let of_window = Window::aligned(quota, Duration::ZERO);
        ((bucket, FixedWindow::new(quota)), Both(of_bucket, of_window))
    });
}

/// The oracle's policy of two rules, as a cloneable type.
#[derive(Clone)]
struct Both(Bucket, Window);

impl Both {
    fn policy(&self) -> Policy {
        Policy(vec![Box::new(self.0.clone()), Box::new(self.1.clone())])
    }
}

impl Oracle for Both {
    fn peek(&self, now: Time, cost: i128) -> Answer {
        self.policy().peek(now, cost)
    }

    fn force(&mut self, now: Time, cost: i128) -> Answer {
        let answer = self.policy().force(now, cost);
        self.0.force(now, cost);
        self.1.force(now, cost);
        answer
    }

    fn refund(&mut self, now: Time, cost: i128) {
        self.0.refund(now, cost);
        self.1.refund(now, cost);
    }

    fn repair(&mut self, now: Time) {
        self.0.repair(now);
        self.1.repair(now);
    }

    fn reset(&mut self) {
        self.0.reset();
        self.1.reset();
    }
}
