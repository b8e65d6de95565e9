//! Quotas change while eight threads check them: no request gains by a change.
//!
//! Across changes the decisions do not follow any one limit, so they cannot be replayed. But the current
//! limit is never more generous than the most generous one: in any interval between two decisions no more
//! may pass than a limit with the largest burst and the highest rate would allow. The limits need states of
//! different sizes, so that some changes convert states in place and others migrate them all. A thread that
//! hangs would hang the test.

#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::collections::HashMap;
use std::sync::Barrier;
use std::time::Duration;

use random::Random;
use tidegate::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tidegate::clock::Clock;
use tidegate::{Decision, KeyedLimiter, Limiter, ManualClock, Quota, SteadyClock};

const THREADS: usize = 8;
const CHANGES: usize = 100;
/// The number of decisions of each thread per change.
const PER_CHANGE: usize = 50;
const KEYS: u64 = 64;

/// The allowed requests of a key: instant and cost.
type Passed = HashMap<u64, Vec<(u64, u64)>>;

/// In any interval at most `burst`, and `limit` per period, may pass.
#[derive(Clone, Copy)]
struct Bound {
    burst: i128,
    limit: i128,
    period: i128,
}

impl Bound {
    /// Checks `burst` + `limit` · Δ / period for all intervals in one pass: the tightest interval that ends
    /// here follows from the best start found so far.
    #[track_caller]
    fn verify(self, mut passed: Vec<(u64, u64)>) {
        passed.sort_unstable();
        let (mut sum, mut best) = (0, i128::MAX);
        for (at, cost) in passed {
            let refilled = i128::from(at) * self.limit;
            best = best.min(sum * self.period - refilled);
            sum += i128::from(cost);
            let beyond = sum * self.period - refilled - best;
            assert!(
                beyond <= self.burst * self.period,
                "{beyond} parts of {} passed up to {at}",
                self.period
            );
        }
    }
}

/// Runs the checks of all threads in parallel, and returns the allowed requests. One thread changes the
/// limit meanwhile.
fn run_threads<A>(
    clock: &impl Pass,
    check: impl Fn(u64, u32) -> Decision + Sync,
    change: impl Fn(A) + Sync,
    settings: &[A],
) -> Passed
where
    A: Algorithm + Clone + Sync,
{
    let start = Barrier::new(THREADS);
    let one_thread = |thread: usize| {
        let (mut random, mut passed) = (Random::seeded(thread as u64), Vec::new());
        let mut changes = settings.iter().cycle().take(CHANGES);
        start.wait();
        for number in 0..CHANGES * PER_CHANGE {
            clock.pass(&mut random);
            let (key, cost) = (random.below(KEYS), random.between(1, 3));
            let decision = check(key, u32::try_from(cost).expect("a small cost"));
            if decision.is_allowed() {
                passed.push((key, (decision.at().get(), cost)));
            }
            if thread == 0 && number % PER_CHANGE == 0 {
                changes.next().cloned().into_iter().for_each(&change);
            }
        }
        passed
    };
    let mut all = Passed::new();
    std::thread::scope(|scope| {
        let one_thread = &one_thread;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || one_thread(thread))).collect();
        for (key, passed) in
            threads.into_iter().flat_map(|thread| thread.join().expect("a thread that returns"))
        {
            all.entry(key).or_default().push(passed);
        }
    });
    all
}

/// Advances the clock between decisions.
trait Pass: Clock + Clone + Send + Sync {
    fn pass(&self, random: &mut Random);
}

impl Pass for SteadyClock {
    fn pass(&self, _: &mut Random) {}
}

impl Pass for ManualClock {
    fn pass(&self, random: &mut Random) {
        if random.one_in(16) {
            self.advance(Duration::from_micros(random.below(16)));
        }
    }
}

#[track_caller]
fn verify(bound: Bound, passed: Passed) {
    assert!(
        passed.values().map(Vec::len).sum::<usize>() > 100,
        "enough requests passed for the bound to mean something"
    );
    passed.into_values().for_each(|passed| bound.verify(passed));
}

fn change_a_limiter<A, C>(clock: C, settings: &[A], bound: Bound)
where
    A: Algorithm + Clone + Send + Sync,
    C: Pass,
{
    let limiter = Limiter::builder_with(settings[0].clone()).clock(clock.clone()).build();
    let all = run_threads(
        &clock,
        |_, cost| limiter.request().cost(cost).check(),
        |next| limiter.change(next),
        settings,
    );
    // One limit for all keys: they count as one key.
    let passed = all.into_values().flatten().collect();
    verify(bound, Passed::from([(0, passed)]));
}

fn change_a_keyed_limiter<A, C>(clock: C, settings: &[A], bound: Bound)
where
    A: Algorithm + Clone + Send + Sync,
    C: Pass,
{
    let limiter =
        KeyedLimiter::<u64, A>::builder_with(settings[0].clone()).max_keys(100).clock(clock.clone()).build();
    let check = |key: u64, cost| limiter.request(&key).cost(cost).check();
    verify(bound, run_threads(&clock, check, |next| limiter.change(next), settings));
}

/// Thirds, wholes and 1999ths of microseconds: one word, the same word decoded differently, and two words.
fn buckets(slowed: u64) -> ([TokenBucket; 4], Bound) {
    let per = |limit, micros| Quota::per(limit, Duration::from_micros(micros * slowed));
    let settings =
        [per(3, 4).burst(15), per(1, 1).burst(20), per(1_999, 4_000).burst(18), per(1, 5).burst(3)];
    assert_eq!(settings.map(|quota| quota.q()), [3, 1, 1_999, 1]);
    let bound = Bound { burst: 20, limit: 1, period: i128::from(slowed) };
    (settings.map(TokenBucket::new), bound)
}

#[test]
fn changing_bucket_never_allows_more_than_its_most_generous_quota() {
    let (settings, bound) = buckets(1);
    change_a_limiter(ManualClock::new(), &settings, bound);
    change_a_limiter(SteadyClock::new(), &settings, bound);
}

#[test]
fn changing_keyed_buckets_never_allow_more_than_the_most_generous_quota() {
    let (settings, bound) = buckets(KEYS);
    change_a_keyed_limiter(ManualClock::new(), &settings, bound);
    change_a_keyed_limiter(SteadyClock::new(), &settings, bound);
}

/// The same period in more and fewer cells: every change migrates the states to another table, and every
/// state has a guard.
#[test]
fn changing_sliding_windows_never_exceed_the_largest_limit_in_a_period() {
    for (slowed, keyed) in [(1, false), (KEYS, true)] {
        let quota = |limit| Quota::per(limit, Duration::from_micros(20 * slowed));
        let settings = [
            SlidingWindow::new(quota(20), 5),
            SlidingWindow::new(quota(7), 10),
            SlidingWindow::new(quota(20), 20),
        ];
        // In any period at most the limit; in longer intervals at most the limit for each period begun.
        let bound = Bound { burst: 20, limit: 20, period: i128::from(20 * slowed) };
        if keyed {
            change_a_keyed_limiter(ManualClock::new(), &settings, bound);
            change_a_keyed_limiter(SteadyClock::new(), &settings, bound);
        } else {
            change_a_limiter(ManualClock::new(), &settings, bound);
            change_a_limiter(SteadyClock::new(), &settings, bound);
        }
    }
}

#[test]
fn changing_fixed_windows_never_exceed_the_largest_limit_in_a_window() {
    let settings = [20, 7].map(|limit| FixedWindow::new(Quota::per(limit, Duration::from_micros(64))));
    let clock = ManualClock::new();
    let limiter = Limiter::builder_with(settings[0]).clock(clock.clone()).build();
    let all = run_threads(
        &clock,
        |_, cost| limiter.request().cost(cost).check(),
        |next| limiter.change(next),
        &settings,
    );
    let mut windows: HashMap<u64, u64> = HashMap::new();
    for (at, cost) in all.into_values().flatten() {
        *windows.entry(at / 64).or_default() += cost;
    }
    assert!(windows.len() > 10, "enough requests passed for the bound to mean something");
    assert!(windows.values().all(|sum| *sum <= 20), "{windows:?}");
}
