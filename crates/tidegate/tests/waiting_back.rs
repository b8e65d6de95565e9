//! What was promised and is given back: those behind it move up, and no trace of it is left.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod waits;

use tidegate::{
    Algorithm, FixedWindow, LeakyQueue, Limiter, ManualClock, Micros, Outcome, Quota, SlidingLog,
    SlidingWindow, SteppedBucket, TokenBucket,
};
use waits::{MS, begun, look, ms, retry, used_up, wait};

#[test]
fn cancelled_in_any_order_reservations_leave_no_trace() {
    for order in [[0, 1], [1, 0]] {
        let (limiter, clock) = used_up();
        let (twin, its_clock) = used_up();
        let mut turns = [limiter.reserve().ok(), limiter.reserve().ok()];
        for index in order {
            turns[index].take().expect("reserved").cancel();
        }
        for step in 0..4 {
            assert_eq!(limiter.check(), twin.check(), "step {step}");
            clock.advance(ms(70));
            its_clock.advance(ms(70));
        }
    }
}

#[test]
fn a_reservation_keeps_its_instant_when_one_before_it_is_cancelled() {
    let (limiter, clock) = used_up();
    let (first, second) = (limiter.reserve().expect("promised"), limiter.reserve().expect("promised"));
    first.cancel();
    assert_eq!(second.ready_at(), Micros::new(200 * MS));
    assert_eq!(retry(limiter.check()), 300 * MS, "an interval after the second");
    clock.advance(ms(200));
    second.keep();
    assert_eq!(retry(limiter.check()), 100 * MS);
}

#[test]
fn from_its_instant_on_a_reservation_counts_as_used() {
    let (limiter, clock) = used_up();
    let turn = limiter.reserve().expect("promised");
    clock.advance(ms(100));
    turn.cancel();
    assert_eq!(retry(limiter.check()), 100 * MS);
    clock.advance(ms(100));
    assert!(limiter.check().is_allowed());
}

#[test]
fn a_wait_that_was_dropped_after_its_instant_gives_back_what_nobody_used() {
    let (limiter, clock) = used_up();
    let mut one = begun(&limiter, 1);
    let two = begun(&limiter, 1);
    clock.advance(ms(200));
    assert!(look(&mut one).expect("its turn").is_ok());
    drop(two); // its turn has come, but it has not gone ahead
    assert!(limiter.check().is_allowed());
    assert_eq!(retry(limiter.check()), 100 * MS);
}

/// Asks both everything, and expects the same.
fn assert_alike<A: Algorithm>(one: &Limiter<A, ManualClock>, other: &Limiter<A, ManualClock>, what: &str) {
    for cost in 0..=5 {
        assert_eq!(one.cost(cost).check_each(), other.cost(cost).check_each(), "{what}, cost {cost}");
    }
}

/// Drops a wait at each stage of its life, with others before it and behind it, and compares with a limiter that never
/// knew of it.
fn a_dropped_wait_leaves_no_trace<A: Algorithm + Clone>(algorithm: A, what: &str) {
    for stage in 0..3 {
        for instant in [0, 1, 130, 250, 1_000, 2_100] {
            let (clock, its_clock) = (ManualClock::new(), ManualClock::new());
            let limiter = Limiter::with(algorithm.clone()).with_clock(clock.clone());
            let twin = Limiter::with(algorithm.clone()).with_clock(its_clock.clone());
            let (mut kept, mut its) = (Vec::new(), Vec::new());
            for _ in 0..4 {
                assert_eq!(limiter.check().outcome, twin.check().outcome);
            }
            for (index, cost) in [1, 2, 1].into_iter().enumerate() {
                let mut dropped = wait(&limiter, 3);
                if index == stage {
                    assert!(look(&mut dropped).is_none(), "nothing is left for it");
                }
                let (mut one, mut other) = (wait(&limiter, cost), wait(&twin, cost));
                assert!(look(&mut one).is_none());
                if index == stage {
                    drop(dropped);
                }
                let _ = look(&mut other);
                kept.push(one);
                its.push(other);
            }
            clock.advance(ms(instant));
            its_clock.advance(ms(instant));
            let told: Vec<_> = kept.iter_mut().map(look).collect();
            assert_eq!(told, its.iter_mut().map(look).collect::<Vec<_>>(), "{what} at {instant} ms");
            drop((kept, its));
            assert_alike(&limiter, &twin, what);
        }
    }
}

#[test]
fn a_dropped_wait_leaves_no_trace_in_any_algorithm() {
    let quota = Quota::per_second(4);
    a_dropped_wait_leaves_no_trace(TokenBucket::new(quota), "token bucket");
    a_dropped_wait_leaves_no_trace(SteppedBucket::new(quota), "stepped bucket");
    a_dropped_wait_leaves_no_trace(FixedWindow::new(quota), "fixed window");
    a_dropped_wait_leaves_no_trace(FixedWindow::new(quota).from_first_hit(), "from the first hit");
    a_dropped_wait_leaves_no_trace(SlidingLog::new(quota), "sliding log");
    a_dropped_wait_leaves_no_trace(SlidingWindow::new(quota, 4), "sliding window");
    let policy = (TokenBucket::new(quota), FixedWindow::new(Quota::per_minute(40)));
    a_dropped_wait_leaves_no_trace(policy, "policy");
}

#[test]
fn a_turn_in_a_queue_is_not_given_away_twice() {
    let clock = ManualClock::new();
    let limiter = Limiter::with(LeakyQueue::new(Quota::per_second(10), 5)).with_clock(clock);
    assert!(limiter.check().is_allowed());
    let first = limiter.reserve().expect("turn at 100 ms");
    assert_eq!(limiter.check().outcome, Outcome::AllowedAfter(tidegate::Wait::micros(200 * MS)));
    first.cancel(); // somebody has built upon it
    assert_eq!(limiter.check().outcome, Outcome::AllowedAfter(tidegate::Wait::micros(300 * MS)));

    let (fourth, fifth) = (limiter.reserve().expect("400 ms"), limiter.reserve().expect("500 ms"));
    fourth.cancel();
    fifth.cancel(); // and with it, the fourth
    assert_eq!(limiter.check().outcome, Outcome::AllowedAfter(tidegate::Wait::micros(400 * MS)));
}
