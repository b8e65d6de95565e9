//! Threads that wait, reserve, cancel and check concurrently, on a manual clock.
//!
//! Every admitted request, at the instant it was admitted for, is replayed by an oracle that shares no code
//! with the limiters. If the oracle allows all of them, no request was admitted beyond the limit.

#[allow(dead_code, unused_imports, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/oracle/mod.rs"]
mod oracle;
#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use oracle::{Bucket, CellCounts, Log, Oldest, Oracle, Verdict, Window};
use random::Random;
use tidegate::algorithm::{Algorithm, FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
use tidegate::clock::ClockKind;
use tidegate::{AcquireError, Decision, KeyedLimiter, Limiter, ManualClock, Quota};

const THREADS: usize = 6;
const ROUNDS: u64 = 400;
const LIMIT: u64 = 10;
const KEYS: u64 = 3;

fn quota() -> Quota {
    Quota::per(LIMIT, Duration::from_micros(100)).burst(LIMIT)
}

/// An admitted request: its key, its cost, and its decision.
type Admitted = (u64, u32, Decision);

/// The same four operations, for a limiter and for a keyed limiter.
trait Subject: Sync {
    fn check(&self, key: u64, cost: u32) -> Decision;
    fn wait(&self, key: u64, cost: u32, within: Duration) -> Result<Decision, AcquireError>;
    fn poll_and_drop(&self, key: u64, cost: u32) -> Option<Decision>;
    fn reserve(&self, key: u64, cost: u32, keeps: bool) -> Option<Decision>;
}

fn poll_once(wait: impl Future<Output = Result<Decision, AcquireError>>) -> Option<Decision> {
    match pin!(wait).poll(&mut Context::from_waker(Waker::noop())) {
        std::task::Poll::Ready(answer) => answer.ok(),
        std::task::Poll::Pending => None,
    }
}

impl<A: Algorithm + Send + Sync> Subject for Limiter<A, ManualClock> {
    fn check(&self, _: u64, cost: u32) -> Decision {
        self.request().cost(cost).check()
    }

    fn wait(&self, _: u64, cost: u32, within: Duration) -> Result<Decision, AcquireError> {
        self.request().cost(cost).timeout(within).acquire_blocking()
    }

    fn poll_and_drop(&self, _: u64, cost: u32) -> Option<Decision> {
        poll_once(self.request().cost(cost).acquire())
    }

    fn reserve(&self, _: u64, cost: u32, keeps: bool) -> Option<Decision> {
        let reservation = self.request().cost(cost).reserve().ok()?;
        let decision = reservation.decision();
        if !keeps && reservation.wait().as_micros() > 0 {
            reservation.cancel();
            return None; // a late cancel still counts as used, although not admitted
        }
        reservation.keep();
        Some(decision)
    }
}

impl<A: Algorithm + Send + Sync> Subject for KeyedLimiter<u64, A, ManualClock> {
    fn check(&self, key: u64, cost: u32) -> Decision {
        self.request(&key).cost(cost).check()
    }

    fn wait(&self, key: u64, cost: u32, within: Duration) -> Result<Decision, AcquireError> {
        self.request(&key).cost(cost).timeout(within).acquire_blocking()
    }

    fn poll_and_drop(&self, key: u64, cost: u32) -> Option<Decision> {
        poll_once(self.request(&key).cost(cost).acquire())
    }

    fn reserve(&self, key: u64, cost: u32, keeps: bool) -> Option<Decision> {
        let reservation = self.request(&key).cost(cost).reserve().ok()?;
        let decision = reservation.decision();
        if !keeps && reservation.wait().as_micros() > 0 {
            reservation.cancel();
            return None;
        }
        reservation.keep();
        Some(decision)
    }
}

/// The operations of one thread.
fn run_thread(subject: &dyn Subject, thread: usize) -> Vec<Admitted> {
    let mut random = Random::seeded(thread as u64);
    let mut admitted = Vec::new();
    for _ in 0..ROUNDS {
        let (key, cost) = (random.below(KEYS), u32::try_from(random.between(1, 4)).expect("small"));
        let decision = match random.below(5) {
            0 => subject.wait(key, cost, Duration::from_micros(random.below(300))).ok(),
            1 => subject.wait(key, cost, Duration::from_secs(1)).ok(),
            2 => subject.poll_and_drop(key, cost),
            3 => subject.reserve(key, cost, random.one_in(4)),
            _ => Some(subject.check(key, cost)).filter(Decision::is_allowed),
        };
        admitted.extend(decision.map(|decision| (key, cost, decision)));
    }
    admitted
}

/// Runs all threads in parallel, while the clock advances.
fn run_threads(subject: &dyn Subject, clock: &ManualClock) -> Vec<Admitted> {
    let over = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let over = &over;
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let admitted = run_thread(subject, thread);
                    over.fetch_add(1, Ordering::Relaxed);
                    admitted
                })
            })
            .collect();
        while over.load(Ordering::Relaxed) < THREADS {
            clock.advance(Duration::from_micros(3));
            std::thread::yield_now();
        }
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Replays the admitted requests with the oracle, in the order of their instants.
fn assert_within_limit<O: Oracle + Clone>(oracle: &O, mut admitted: Vec<Admitted>, keys: u64) {
    assert!(admitted.len() > 500, "too few requests to mean something: {}", admitted.len());
    admitted.sort_by_key(|(_, _, decision)| decision.at());
    for key in 0..keys {
        let mut oracle = oracle.clone();
        for (_, cost, decision) in admitted.iter().filter(|(of, ..)| keys == 1 || *of == key) {
            let answer = oracle.decide(decision.at().get().into(), i128::from(*cost));
            assert_eq!(answer.verdict, Verdict::Allowed, "too many: {cost} at {}", decision.at());
        }
    }
}

fn assert_threads_stay_within_limit<A: Algorithm + Clone + Send + Sync, O: Oracle + Clone>(
    algorithm: A,
    oracle: O,
) {
    let clock = ManualClock::new();
    let limiter = Limiter::builder_with(algorithm.clone()).clock(clock.clone()).build();
    assert_within_limit(&oracle, run_threads(&limiter, &clock), 1);
    let clock = ManualClock::new();
    let keyed = KeyedLimiter::<u64, A>::builder_with(algorithm).max_keys(16).clock(clock.clone()).build();
    assert_within_limit(&oracle, run_threads(&keyed, &clock), KEYS);
}

#[test]
fn token_bucket_admits_no_more_than_its_limit() {
    assert_threads_stay_within_limit(TokenBucket::new(quota()), Bucket::new(quota(), ClockKind::Monotonic));
}

#[test]
fn fixed_window_admits_no_more_than_its_limit() {
    assert_threads_stay_within_limit(FixedWindow::new(quota()), Window::aligned(quota(), Duration::ZERO));
}

#[test]
fn sliding_log_admits_no_more_than_its_limit() {
    assert_threads_stay_within_limit(SlidingLog::new(quota()), Log::new(quota(), LIMIT));
}

#[test]
fn sliding_window_admits_no_more_than_its_limit() {
    assert_threads_stay_within_limit(
        SlidingWindow::new(quota(), 5),
        CellCounts::new(quota(), 5, Oldest::InFull),
    );
}
