//! Eight threads at once, and not one verdict wrong.
//!
//! Whatever eight threads are told while they decide on one limiter, on one key and on hundreds of keys is replayed through
//! the oracle; see [`replay`] for what that proves. On the real clock threads are overtaken between reading
//! it and deciding. On one that only moves when they move it they all decide at the same few instants, which is
//! harder: every verdict is then at the edge of another.
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
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oracle::{Answer, Bucket, CellCounts, Log, Oldest, Oracle, Policy, Time, Window};
use random::Random;
use replay::{Tally, Told, replay};
use tidegate::{
    Algorithm, Clock, ClockKind, Decision, FixedWindow, KeyedLimiter, Limiter, ManualClock, OnFull, Quota,
    SlidingLog, SlidingWindow, Source, SteadyClock, TokenBucket,
};

const THREADS: usize = 8;
const KEYS: u64 = 256;
/// Costs are from 1 to this.
const DEAREST: u64 = 3;
/// As much as a quiet key may take at once, in every run.
const LIMIT: u64 = 20;

fn decisions() -> usize {
    let asked = std::env::var("TIDEGATE_DECISIONS").ok();
    asked.map_or(4_000, |number| number.parse().expect("TIDEGATE_DECISIONS is a number"))
}

/// One token in so many microseconds, for a key that has a thread's whole attention, and for one of [`KEYS`].
///
/// With as many keys as one token takes longer, there are as many verdicts of each kind in both.
fn period(limit: u64, slowed: u64) -> Duration {
    Duration::from_micros(limit * slowed)
}

// --- asking

/// How limiters are asked.
trait Way {
    fn limiter<A: Algorithm, C: Clock>(limiter: &Limiter<A, C>, cost: u32) -> Asked;
    fn key<A: Algorithm, C: Clock>(limiter: &KeyedLimiter<u64, A, C>, key: u64, cost: u32) -> Asked;
}

/// The verdict, and the one that tells which state gave it.
type Asked = (Decision, Decision);

/// As nearly everybody does.
struct Check;

impl Way for Check {
    fn limiter<A: Algorithm, C: Clock>(limiter: &Limiter<A, C>, cost: u32) -> Asked {
        let decision = limiter.cost(cost).check();
        (decision, decision)
    }

    fn key<A: Algorithm, C: Clock>(limiter: &KeyedLimiter<u64, A, C>, key: u64, cost: u32) -> Asked {
        let decision = limiter.cost(cost).check(&key);
        (decision, decision)
    }
}

/// A policy's decision is that of the binding rule; which state it was made in only the first rule tells.
struct CheckEach;

impl Way for CheckEach {
    fn limiter<A: Algorithm, C: Clock>(limiter: &Limiter<A, C>, cost: u32) -> Asked {
        let detailed = limiter.cost(cost).check_each();
        (detailed.decision, detailed.rules[0])
    }

    fn key<A: Algorithm, C: Clock>(limiter: &KeyedLimiter<u64, A, C>, key: u64, cost: u32) -> Asked {
        let detailed = limiter.cost(cost).check_each(&key);
        (detailed.decision, detailed.rules[0])
    }
}

/// Something that passes the time between decisions.
trait Pass: Clock + Clone + Send + Sync {
    fn pass(&self, random: &mut Random);
}

impl Pass for SteadyClock {
    fn pass(&self, _: &mut Random) {}
}

impl Pass for ManualClock {
    /// Half a token per decision on average, and often none for a while.
    fn pass(&self, random: &mut Random) {
        if random.one_in(16) {
            self.advance(Duration::from_micros(random.below(16)));
        }
    }
}

/// Lets all threads ask at once, and returns what they were told, by key.
fn all_ask<C: Pass>(
    clock: &C,
    pick: impl Fn(&mut Random, usize) -> u64 + Sync,
    ask: impl Fn(u64, u32) -> Asked + Sync,
) -> HashMap<u64, Vec<Told>> {
    let start = Barrier::new(THREADS);
    let one_thread = |thread: usize| {
        let mut random = Random::seeded(thread as u64);
        start.wait();
        let verdict = |number| {
            clock.pass(&mut random);
            let (key, cost) = (pick(&mut random, number), cost(&mut random));
            let (decision, ordering) = ask(key, cost);
            (key, Told { thread, number, cost, decision, ordering })
        };
        (0..decisions()).map(verdict).collect::<Vec<_>>()
    };
    let mut told: HashMap<u64, Vec<Told>> = HashMap::new();
    std::thread::scope(|scope| {
        let one_thread = &one_thread;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || one_thread(thread))).collect();
        for (key, verdict) in
            threads.into_iter().flat_map(|thread| thread.join().expect("a thread that returns"))
        {
            told.entry(key).or_default().push(verdict);
        }
    });
    told
}

fn cost(random: &mut Random) -> u32 {
    u32::try_from(random.between(1, DEAREST)).expect("a small cost")
}

/// Replays every key.
#[track_caller]
fn verify<O: Oracle + Clone>(oracle: &O, told: HashMap<u64, Vec<Told>>) {
    let mut all = Tally::default();
    for told in told.into_values() {
        assert!(told.iter().all(|told| !no_room(&told.decision)), "there was room for every key");
        let tally = replay(oracle.clone(), told);
        all = Tally { passed: all.passed + tally.passed, refused: all.refused + tally.refused };
    }
    assert!(all.passed > 100 && all.refused > 100, "a run that proves something: {all:?}");
}

fn no_room(decision: &Decision) -> bool {
    decision.source == Source::Closed
}

// --- runs

fn one_limiter<W: Way, C: Pass>(clock: C, (algorithm, oracle): (impl Shareable, impl Oracle + Clone)) {
    let limiter = Limiter::with(algorithm).with_clock(clock.clone());
    verify(&oracle, all_ask(&clock, |_, _| 0, |_, cost| W::limiter(&limiter, cost)));
}

fn one_key<W: Way, C: Pass>(clock: C, (algorithm, oracle): (impl Shareable, impl Oracle + Clone)) {
    let limiter = KeyedLimiter::<u64, _>::with(algorithm).max_keys(1).with_clock(clock.clone());
    verify(&oracle, all_ask(&clock, |_, _| 0, |key, cost| W::key(&limiter, key, cost)));
}

fn many_keys<W: Way, C: Pass>(clock: C, (algorithm, oracle): (impl Shareable, impl Oracle + Clone)) {
    let limiter = KeyedLimiter::<u64, _>::with(algorithm).max_keys(400).with_clock(clock.clone());
    let told = all_ask(&clock, |random, _| random.below(KEYS), |key, cost| W::key(&limiter, key, cost));
    verify(&oracle, told);
}

/// With each decision comes a key that was never here before, takes all it can and is not seen again. Thousands of them
/// are here at any time: the table divides, and who is idle is let go. The other keys are asked in turns, so that they are let
/// go too, and come back.
///
/// Now and then a thread whose reading of the clock is old finds the table full. That verdict is about room, not about
/// the key, and must change nothing: the others are replayed without it.
fn many_keys_among_newcomers<W: Way>((algorithm, oracle): (impl Shareable, impl Oracle + Clone)) {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64, _>::with(algorithm).max_keys(20_000).on_full(OnFull::Refuse);
    let limiter = limiter.with_clock(clock.clone());
    let newcomers = AtomicU64::new(KEYS);
    let before = limiter.stats();
    let turn = decisions().div_ceil(16);
    let pick = |random: &mut Random, number: usize| (number / turn % 8) as u64 * 32 + random.below(32);
    let mut told = all_ask(&clock, pick, |key, cost| {
        let newcomer = newcomers.fetch_add(1, Ordering::Relaxed);
        let welcome = limiter.cost(u32::try_from(LIMIT).expect("a small limit")).check(&newcomer);
        assert!(welcome.is_allowed() || no_room(&welcome), "a newcomer has used nothing: {welcome:?}");
        W::key(&limiter, key, cost)
    });
    let after = limiter.stats();
    assert!(after.bytes > before.bytes && after.evicted > 0, "it divided and let go: {before:?} {after:?}");
    told.values_mut().for_each(|told| told.retain(|told| !no_room(&told.decision)));
    verify(&oracle, told);
}

/// Keys for whom there is no room, few enough that hardly ever two of them share all their cells: what they are told
/// is exact too. Who has the slot takes it again and again, so that it stays.
fn keys_without_room<W: Way, C: Pass>(clock: C, (algorithm, oracle): (impl Shareable, impl Oracle + Clone)) {
    let limiter = KeyedLimiter::<u64, _>::with(algorithm).max_keys(1).with_clock(clock.clone());
    let told = all_ask(
        &clock,
        |random, _| random.below(4),
        |key, cost| {
            let _ = limiter.cost(u32::MAX).force(&KEYS);
            W::key(&limiter, key, cost)
        },
    );
    let stats = limiter.stats();
    assert!(stats.sketch.decided > 1_000 && stats.sketch.refused > 100, "{stats:?}");
    verify(&oracle, told);
}

trait Shareable: Algorithm + Clone + Send + Sync {}

impl<A: Algorithm + Clone + Send + Sync> Shareable for A {}

/// Every run, of a limit that is so many times slower.
fn every_run<W: Way, A: Shareable, O: Oracle + Clone>(slowed: impl Fn(u64) -> (A, O)) {
    one_limiter::<W, _>(SteadyClock::new(), slowed(1));
    one_limiter::<W, _>(ManualClock::new(), slowed(1));
    one_key::<W, _>(SteadyClock::new(), slowed(1));
    one_key::<W, _>(ManualClock::new(), slowed(1));
    many_keys::<W, _>(SteadyClock::new(), slowed(KEYS));
    many_keys::<W, _>(ManualClock::new(), slowed(KEYS));
    many_keys_among_newcomers::<W>(slowed(KEYS));
}

// --- limits

/// A bucket of `limit` in so many microseconds, and an interval of p/q with this q.
fn bucket(limit: u64, micros: u64, q: u64) -> (TokenBucket, Bucket) {
    let quota = Quota::per(limit, Duration::from_micros(micros)).burst(LIMIT);
    assert_eq!(quota.q(), q);
    (TokenBucket::new(quota), Bucket::new(quota, ClockKind::Monotonic))
}

#[test]
fn a_bucket_of_whole_microseconds_is_exact() {
    every_run::<Check, _, _>(|slowed| bucket(1, slowed, 1));
}

#[test]
fn a_bucket_of_thirds_of_microseconds_is_exact() {
    every_run::<Check, _, _>(|slowed| bucket(3, 4 * slowed, 3));
}

/// Too many parts for one word: two words and a guard.
#[test]
fn a_bucket_of_millionths_of_microseconds_is_exact() {
    every_run::<Check, _, _>(|slowed| bucket(999_983, 1_000_000 * slowed, 999_983));
}

#[test]
fn a_window_by_the_clock_is_exact() {
    every_run::<Check, _, _>(|slowed| {
        let quota = Quota::per(LIMIT, period(LIMIT, slowed));
        (FixedWindow::new(quota), Window::aligned(quota, Duration::ZERO))
    });
}

#[test]
fn keys_without_room_are_told_what_they_would_be_told_with_it() {
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
fn a_window_from_the_first_hit_is_exact() {
    every_run::<Check, _, _>(|slowed| {
        let quota = Quota::per(LIMIT, period(LIMIT, slowed));
        (FixedWindow::new(quota).from_first_hit(), Window::from_first_hit(quota))
    });
}

#[test]
fn a_log_is_exact() {
    every_run::<Check, _, _>(|slowed| {
        let quota = Quota::per(LIMIT, period(LIMIT, slowed));
        (SlidingLog::new(quota), Log::new(quota, LIMIT))
    });
}

#[test]
fn a_sliding_window_is_exact() {
    every_run::<Check, _, _>(|slowed| {
        let quota = Quota::per(LIMIT, period(LIMIT, slowed));
        (SlidingWindow::new(quota, 5), CellCounts::new(quota, 5, Oldest::InFull))
    });
}

/// Nine tokens in ten microseconds, and no more than the limit in each window. Whenever the window is full the bucket
/// owes something, since it gives back less than what a full window takes; so the bucket tells all states apart.
#[test]
fn a_policy_is_exact() {
    every_run::<CheckEach, _, _>(|slowed| {
        let (bucket, of_bucket) = bucket(9, 10 * slowed, 9);
        let quota = Quota::per(LIMIT, period(LIMIT, slowed));
        let of_window = Window::aligned(quota, Duration::ZERO);
        ((bucket, FixedWindow::new(quota)), Both(of_bucket, of_window))
    });
}

/// The oracle's policy of two rules, as something that can be copied.
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
