//! Cancelled reservations and dropped waits: the waiters behind move up, and no trace is left.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod polling;

use polling::{MS, exhausted, ms, pending_wait, poll_once, retry, wait};
use tidegate::algorithm::{
    Algorithm, FixedWindow, LeakyQueue, SlidingLog, SlidingWindow, SteppedBucket, TokenBucket,
};
use tidegate::clock::Micros;
use tidegate::{Limiter, ManualClock, Outcome, Quota};

#[test]
fn reservations_cancelled_in_any_order_leave_no_trace() {
    for order in [[0, 1], [1, 0]] {
        let (limiter, clock) = exhausted();
        let (twin, its_clock) = exhausted();
        let mut reservations = [limiter.request().reserve().ok(), limiter.request().reserve().ok()];
        for index in order {
            reservations[index].take().expect("reserved").cancel();
        }
        for step in 0..4 {
            assert_eq!(limiter.check(), twin.check(), "step {step}");
            clock.advance(ms(70));
            its_clock.advance(ms(70));
        }
    }
}

#[test]
fn reservation_keeps_its_instant_when_an_earlier_one_is_cancelled() {
    let (limiter, clock) = exhausted();
    let (first, second) =
        (limiter.request().reserve().expect("reserved"), limiter.request().reserve().expect("reserved"));
    first.cancel();
    assert_eq!(second.ready_at(), Micros::new(200 * MS));
    assert_eq!(retry(limiter.check()), 300 * MS, "an interval after the second");
    clock.advance(ms(200));
    second.keep();
    assert_eq!(retry(limiter.check()), 100 * MS);
}

#[test]
fn reservation_cancelled_at_its_instant_counts_as_used() {
    let (limiter, clock) = exhausted();
    let reservation = limiter.request().reserve().expect("reserved");
    clock.advance(ms(100));
    reservation.cancel();
    assert_eq!(retry(limiter.check()), 100 * MS);
    clock.advance(ms(100));
    assert!(limiter.check().is_allowed());
}

#[test]
fn due_wait_dropped_before_its_poll_is_given_back() {
    let (limiter, clock) = exhausted();
    let mut one = pending_wait(&limiter, 1);
    let two = pending_wait(&limiter, 1);
    clock.advance(ms(200));
    assert!(poll_once(&mut one).expect("ready").is_ok());
    drop(two); // it is due, but was not polled
    assert!(limiter.check().is_allowed());
    assert_eq!(retry(limiter.check()), 100 * MS);
}

/// Asserts that both limiters give the same decisions for every cost.
fn assert_alike<A: Algorithm>(one: &Limiter<A, ManualClock>, other: &Limiter<A, ManualClock>, what: &str) {
    for cost in 0..=5 {
        assert_eq!(
            one.request().cost(cost).check_each(),
            other.request().cost(cost).check_each(),
            "{what}, cost {cost}"
        );
    }
}

/// Drops a wait at each stage of its life, with others before it and behind it, and compares with a limiter
/// that never had it.
fn assert_dropped_wait_leaves_no_trace<A: Algorithm + Clone>(algorithm: A, what: &str) {
    for stage in 0..3 {
        for instant in [0, 1, 130, 250, 1_000, 2_100] {
            let (clock, its_clock) = (ManualClock::new(), ManualClock::new());
            let limiter = Limiter::builder_with(algorithm.clone()).clock(clock.clone()).build();
            let twin = Limiter::builder_with(algorithm.clone()).clock(its_clock.clone()).build();
            let (mut kept, mut its) = (Vec::new(), Vec::new());
            for _ in 0..4 {
                assert_eq!(limiter.check().outcome, twin.check().outcome);
            }
            for (index, cost) in [1, 2, 1].into_iter().enumerate() {
                let mut dropped = wait(&limiter, 3);
                if index == stage {
                    assert!(poll_once(&mut dropped).is_none(), "no quota is left");
                }
                let (mut one, mut other) = (wait(&limiter, cost), wait(&twin, cost));
                assert!(poll_once(&mut one).is_none());
                if index == stage {
                    drop(dropped);
                }
                let _ = poll_once(&mut other);
                kept.push(one);
                its.push(other);
            }
            clock.advance(ms(instant));
            its_clock.advance(ms(instant));
            let answers: Vec<_> = kept.iter_mut().map(poll_once).collect();
            assert_eq!(answers, its.iter_mut().map(poll_once).collect::<Vec<_>>(), "{what} at {instant} ms");
            drop((kept, its));
            assert_alike(&limiter, &twin, what);
        }
    }
}

#[test]
fn dropped_wait_leaves_no_trace_in_any_algorithm() {
    let quota = Quota::per_second(4);
    assert_dropped_wait_leaves_no_trace(TokenBucket::new(quota), "token bucket");
    assert_dropped_wait_leaves_no_trace(SteppedBucket::new(quota), "stepped bucket");
    assert_dropped_wait_leaves_no_trace(FixedWindow::new(quota), "fixed window");
    assert_dropped_wait_leaves_no_trace(FixedWindow::new(quota).from_first_hit(), "from the first hit");
    assert_dropped_wait_leaves_no_trace(SlidingLog::new(quota), "sliding log");
    assert_dropped_wait_leaves_no_trace(SlidingWindow::new(quota, 4), "sliding window");
    let policy = (TokenBucket::new(quota), FixedWindow::new(Quota::per_minute(40)));
    assert_dropped_wait_leaves_no_trace(policy, "policy");
}

#[test]
fn leaky_queue_instant_is_not_given_out_twice() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder_with(LeakyQueue::new(Quota::per_second(10), 5)).clock(clock).build();
    assert!(limiter.check().is_allowed());
    let first = limiter.request().reserve().expect("reserved for 100 ms");
    assert_eq!(limiter.check().outcome, Outcome::AllowedAfter(tidegate::Wait::micros(200 * MS)));
    first.cancel(); // a later charge depends on it
    assert_eq!(limiter.check().outcome, Outcome::AllowedAfter(tidegate::Wait::micros(300 * MS)));

    let (fourth, fifth) = (
        limiter.request().reserve().expect("reserved for 400 ms"),
        limiter.request().reserve().expect("reserved for 500 ms"),
    );
    fourth.cancel();
    fifth.cancel(); // this releases the fourth as well
    assert_eq!(limiter.check().outcome, Outcome::AllowedAfter(tidegate::Wait::micros(400 * MS)));
}
