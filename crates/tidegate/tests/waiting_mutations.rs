//! Forced charges, refunds, resets and rule changes while waits and reservations are pending.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod polling;

use std::sync::Arc;

use polling::{MS, WaitFuture, WakeCount, exhausted, ms, pending_wait, poll_once, retry, wait};
use tidegate::algorithm::{SlidingLog, TokenBucket};
use tidegate::clock::Micros;
use tidegate::{Limiter, ManualClock, Quota};

#[test]
fn forced_charges_count_after_promised_instants() {
    let (limiter, clock) = exhausted();
    let mut one = pending_wait(&limiter, 1);
    let two = pending_wait(&limiter, 1);
    let _ = limiter.request().cost(3).force(); // as of 200 ms
    assert_eq!(retry(limiter.check()), 600 * MS);
    drop(two); // the debt stays where it was
    assert_eq!(retry(limiter.check()), 500 * MS);
    limiter.request().cost(3).refund();
    clock.advance(ms(100));
    assert!(poll_once(&mut one).expect("ready").is_ok(), "neither the charge nor the refund moved it");
}

#[test]
fn thousands_of_charges_and_refunds_do_not_move_a_wait() {
    let (limiter, clock) = exhausted();
    let mut one = pending_wait(&limiter, 1);
    for _ in 0..10_000 {
        let _ = limiter.request().cost(1).force();
        limiter.request().cost(1).refund();
    }
    assert_eq!(retry(limiter.check()), 200 * MS);
    clock.advance(ms(100));
    assert!(poll_once(&mut one).expect("ready").is_ok());
    clock.advance(ms(100));
    assert!(limiter.check().is_allowed());
}

/// One more entry in a full log leaves the same state words, and must still count.
#[test]
fn charge_forced_into_a_full_log_counts_after_an_earlier_wait_is_dropped() {
    let limiter =
        Limiter::builder_with(SlidingLog::new(Quota::per_second(4))).clock(ManualClock::new()).build();
    assert!(limiter.request().cost(4).check().is_allowed());
    let wait = pending_wait(&limiter, 4);
    let _ = limiter.request().cost(4).force(); // as of one second
    drop(wait);
    assert_eq!(retry(limiter.check()), 2_000 * MS);
}

#[test]
fn reset_lets_waiters_pass_and_keeps_reservations() {
    let (limiter, _clock) = exhausted();
    let mut one = pending_wait(&limiter, 1);
    let reservation = limiter.request().reserve().expect("reserved");
    limiter.request().reset();
    assert!(poll_once(&mut one).expect("ready after the reset").is_ok());
    assert_eq!(reservation.ready_at(), Micros::new(200 * MS));
    assert_eq!(retry(limiter.check()), 300 * MS);
}

/// A reservation is used at its instant, so it counts, also after a reset.
#[test]
fn reset_keeps_future_reservations() {
    for mutations in [0, 100] {
        let (limiter, clock) = exhausted();
        let reservation = limiter.request().reserve().expect("reserved"); // at 100 ms
        let kept = limiter.request().reserve().expect("reserved"); // at 200 ms
        kept.keep();
        for _ in 0..mutations {
            limiter.request().cost(0).refund(); // more mutations than are stored one by one
            let _ = limiter.request().cost(1).force();
            limiter.request().cost(1).refund();
        }
        clock.advance(ms(50));
        limiter.request().reset();
        assert_eq!(retry(limiter.check()), 250 * MS, "after both, with {mutations} mutations: at 300 ms");
        clock.advance(ms(250));
        assert!(limiter.check().is_allowed());
        drop(reservation);
    }
}

#[test]
fn change_reschedules_waiters_and_keeps_reservations() {
    let (limiter, clock) = exhausted();
    let mut one = pending_wait(&limiter, 1);
    let reservation = limiter.request().reserve().expect("reserved for 200 ms");
    let mut last: WaitFuture<'_> = Box::pin(limiter.request().timeout(ms(300)).acquire());
    assert!(poll_once(&mut last).is_none());
    limiter.change(TokenBucket::new(Quota::per_second(5).burst(1)));
    let refused = poll_once(&mut last).expect("it would be ready after 300 ms now");
    assert!(refused.expect_err("too late").is_timeout());
    clock.advance(ms(199));
    assert!(poll_once(&mut one).is_none(), "one used token takes 200 ms now");
    clock.advance(ms(1));
    assert!(poll_once(&mut one).expect("ready").is_ok());
    assert_eq!(reservation.ready_at(), Micros::new(200 * MS));
    reservation.keep();
    assert_eq!(retry(limiter.check()), 400 * MS, "two charges at 200 ms with a burst of one: one is debt");
}

#[test]
fn reservation_can_be_cancelled_after_a_change() {
    let (limiter, _clock) = exhausted();
    let reservation = limiter.request().reserve().expect("reserved");
    limiter.change(TokenBucket::new(Quota::per_second(20).burst(1)));
    reservation.cancel();
    assert_eq!(retry(limiter.check()), 50 * MS);
}

#[test]
fn forced_charges_of_cost_0_do_not_make_a_wait_final() {
    let (limiter, _clock) = exhausted();
    let one = pending_wait(&limiter, 1);
    for _ in 0..100 {
        let _ = limiter.request().cost(0).force();
    }
    drop(one);
    assert_eq!(retry(limiter.check()), 100 * MS, "the wait was given back");
}

/// With more mutations than are stored one by one, the waits before them are final: they count once, even
/// when dropped.
#[test]
fn waits_before_many_mutations_count_exactly_once() {
    let (limiter, _clock) = exhausted();
    let (one, two) = (pending_wait(&limiter, 1), pending_wait(&limiter, 1));
    for _ in 0..100 {
        let _ = limiter.request().cost(1).force();
        limiter.request().cost(1).refund();
    }
    assert_eq!(retry(limiter.check()), 300 * MS);
    drop(one);
    assert_eq!(retry(limiter.check()), 300 * MS);
    drop(two);
}

#[test]
fn reset_clears_due_kept_reservations_but_no_pending_wait() {
    let (limiter, clock) = exhausted();
    let mut one = pending_wait(&limiter, 1); // 100 ms
    limiter.request().reserve().expect("reserved").keep(); // 200 ms
    clock.advance(ms(150));
    limiter.request().reset();
    assert_eq!(retry(limiter.check()), 150 * MS, "both are still pending");
    clock.advance(ms(50));
    limiter.request().reset();
    assert!(limiter.check().is_allowed(), "the kept reservation is used and cleared");
    assert!(poll_once(&mut one).expect("ready").is_ok());
}

#[test]
fn reset_keeps_a_due_wait_that_was_not_polled() {
    let (limiter, clock) = exhausted();
    let mut one = pending_wait(&limiter, 1); // 100 ms
    clock.advance(ms(150));
    limiter.request().reset();
    assert_eq!(retry(limiter.check()), 50 * MS);
    assert!(poll_once(&mut one).expect("ready").is_ok());
}

#[test]
fn change_wakes_waiters_that_move_or_are_refused() {
    let (limiter, _clock) = exhausted();
    let (moved, refused) = (Arc::<WakeCount>::default(), Arc::<WakeCount>::default());
    let mut first = wait(&limiter, 1);
    let mut last: WaitFuture<'_> = Box::pin(limiter.request().timeout(ms(200)).acquire());
    moved.poll_pending(&mut first);
    refused.poll_pending(&mut last);
    limiter.change(TokenBucket::new(Quota::per_second(5).burst(1)));
    assert_eq!((moved.count(), refused.count()), (1, 1));
    assert!(poll_once(&mut last).expect("refused").expect_err("too late").is_timeout());
}

/// This holds before the refused waiter is polled, and through drops and a reset until then.
#[test]
fn waiter_refused_by_a_change_is_not_charged() {
    let (limiter, _clock) = exhausted();
    let (one, two) = (pending_wait(&limiter, 1), pending_wait(&limiter, 1));
    let mut last: WaitFuture<'_> = Box::pin(limiter.request().timeout(ms(300)).acquire());
    assert!(poll_once(&mut last).is_none());
    limiter.change(TokenBucket::new(Quota::per_second(5).burst(1)));
    assert_eq!(retry(limiter.check()), 600 * MS, "two waiters are in the queue");
    drop(two);
    assert_eq!(retry(limiter.check()), 400 * MS, "one waiter is in the queue");
    limiter.request().reset();
    assert_eq!(retry(limiter.check()), 200 * MS, "the remaining waiter is ready now");
    drop(one);
    assert!(poll_once(&mut last).expect("refused").expect_err("too late").is_timeout());
}

#[test]
fn waiter_refused_by_a_change_delays_no_other_request() {
    let limiter = Limiter::builder(Quota::per_second(10).burst(2)).clock(ManualClock::new()).build();
    assert!(limiter.request().cost(2).check().is_allowed());
    let _large = pending_wait(&limiter, 2); // 200 ms
    limiter.change(TokenBucket::new(Quota::per_second(20).burst(1)));
    assert_eq!(
        retry(limiter.check()),
        100 * MS,
        "two used of a burst of one: 50 ms of debt, and 50 ms for the request"
    );
}
