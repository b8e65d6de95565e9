//! Threads that wait, reserve, change their minds and check, all at once, on a clock that the test moves on.
//!
//! Everything that was admitted, at the instant it was admitted for, is asked again of an oracle that shares no code
//! with the limiters. If it lets all of it pass, nobody was admitted too many.

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
use tidegate::{
    Algorithm, ClockKind, Decision, FixedWindow, KeyedLimiter, Limiter, ManualClock, Quota, SlidingLog,
    SlidingWindow, TokenBucket, WaitRefused,
};

const THREADS: usize = 6;
const ROUNDS: u64 = 400;
const LIMIT: u64 = 10;
const KEYS: u64 = 3;

fn quota() -> Quota {
    Quota::per(LIMIT, Duration::from_micros(100)).burst(LIMIT)
}

/// Something that was admitted: for which key, how much, and the word on it.
type Admitted = (u64, u32, Decision);

/// The same four things, of a limiter and of a key.
trait Subject: Sync {
    fn check(&self, key: u64, cost: u32) -> Decision;
    fn wait(&self, key: u64, cost: u32, within: Duration) -> Result<Decision, WaitRefused>;
    fn begin_and_drop(&self, key: u64, cost: u32) -> Option<Decision>;
    fn reserve(&self, key: u64, cost: u32, keeps: bool) -> Option<Decision>;
}

fn poll_once(wait: impl Future<Output = Result<Decision, WaitRefused>>) -> Option<Decision> {
    match pin!(wait).poll(&mut Context::from_waker(Waker::noop())) {
        std::task::Poll::Ready(answer) => answer.ok(),
        std::task::Poll::Pending => None,
    }
}

impl<A: Algorithm + Send + Sync> Subject for Limiter<A, ManualClock> {
    fn check(&self, _: u64, cost: u32) -> Decision {
        self.cost(cost).check()
    }

    fn wait(&self, _: u64, cost: u32, within: Duration) -> Result<Decision, WaitRefused> {
        self.cost(cost).acquire_blocking_timeout(within)
    }

    fn begin_and_drop(&self, _: u64, cost: u32) -> Option<Decision> {
        poll_once(self.cost(cost).acquire())
    }

    fn reserve(&self, _: u64, cost: u32, keeps: bool) -> Option<Decision> {
        let turn = self.cost(cost).reserve().ok()?;
        let decision = turn.decision();
        if !keeps && turn.wait().as_micros() > 0 {
            turn.cancel();
            return None; // perhaps too late, and then it counts though it was not admitted
        }
        turn.keep();
        Some(decision)
    }
}

impl<A: Algorithm + Send + Sync> Subject for KeyedLimiter<u64, A, ManualClock> {
    fn check(&self, key: u64, cost: u32) -> Decision {
        self.cost(cost).check(&key)
    }

    fn wait(&self, key: u64, cost: u32, within: Duration) -> Result<Decision, WaitRefused> {
        self.cost(cost).acquire_blocking_timeout(&key, within)
    }

    fn begin_and_drop(&self, key: u64, cost: u32) -> Option<Decision> {
        poll_once(self.cost(cost).acquire(&key))
    }

    fn reserve(&self, key: u64, cost: u32, keeps: bool) -> Option<Decision> {
        let turn = self.cost(cost).reserve(&key).ok()?;
        let decision = turn.decision();
        if !keeps && turn.wait().as_micros() > 0 {
            turn.cancel();
            return None;
        }
        turn.keep();
        Some(decision)
    }
}

/// A day of one thread.
fn day(subject: &dyn Subject, thread: usize) -> Vec<Admitted> {
    let mut random = Random::seeded(thread as u64);
    let mut admitted = Vec::new();
    for _ in 0..ROUNDS {
        let (key, cost) = (random.below(KEYS), u32::try_from(random.between(1, 4)).expect("small"));
        let decision = match random.below(5) {
            0 => subject.wait(key, cost, Duration::from_micros(random.below(300))).ok(),
            1 => subject.wait(key, cost, Duration::from_secs(1)).ok(),
            2 => subject.begin_and_drop(key, cost),
            3 => subject.reserve(key, cost, random.one_in(4)),
            _ => Some(subject.check(key, cost)).filter(Decision::is_allowed),
        };
        admitted.extend(decision.map(|decision| (key, cost, decision)));
    }
    admitted
}

/// All threads at once, while the clock moves on.
fn all_days(subject: &dyn Subject, clock: &ManualClock) -> Vec<Admitted> {
    let over = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let over = &over;
        let days: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let admitted = day(subject, thread);
                    over.fetch_add(1, Ordering::Relaxed);
                    admitted
                })
            })
            .collect();
        while over.load(Ordering::Relaxed) < THREADS {
            clock.advance(Duration::from_micros(3));
            std::thread::yield_now();
        }
        days.into_iter().flat_map(|day| day.join().expect("a day that ends")).collect()
    })
}

/// Asks the oracle about each, in the order of their instants.
fn assert_none_too_many<O: Oracle + Clone>(oracle: &O, mut admitted: Vec<Admitted>, keys: u64) {
    assert!(admitted.len() > 500, "a run that proves something: {}", admitted.len());
    admitted.sort_by_key(|(_, _, decision)| decision.at());
    for key in 0..keys {
        let mut oracle = oracle.clone();
        for (_, cost, decision) in admitted.iter().filter(|(of, ..)| keys == 1 || *of == key) {
            let answer = oracle.decide(decision.at().get().into(), i128::from(*cost));
            assert_eq!(answer.verdict, Verdict::Allowed, "too many: {cost} at {}", decision.at());
        }
    }
}

fn none_too_many<A: Algorithm + Clone + Send + Sync, O: Oracle + Clone>(algorithm: A, oracle: O) {
    let clock = ManualClock::new();
    let limiter = Limiter::with(algorithm.clone()).with_clock(clock.clone());
    assert_none_too_many(&oracle, all_days(&limiter, &clock), 1);
    let clock = ManualClock::new();
    let keyed = KeyedLimiter::<u64, A>::with(algorithm).max_keys(16).with_clock(clock.clone());
    assert_none_too_many(&oracle, all_days(&keyed, &clock), KEYS);
}

#[test]
fn none_too_many_pass_a_bucket() {
    none_too_many(TokenBucket::new(quota()), Bucket::new(quota(), ClockKind::Monotonic));
}

#[test]
fn none_too_many_pass_a_window() {
    none_too_many(FixedWindow::new(quota()), Window::aligned(quota(), Duration::ZERO));
}

#[test]
fn none_too_many_pass_a_log() {
    none_too_many(SlidingLog::new(quota()), Log::new(quota(), LIMIT));
}

#[test]
fn none_too_many_pass_a_sliding_window() {
    none_too_many(SlidingWindow::new(quota(), 5), CellCounts::new(quota(), 5, Oldest::InFull));
}
