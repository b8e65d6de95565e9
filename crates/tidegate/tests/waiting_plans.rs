//! Waiting with a per-call quota: a reservation is kept, and rescheduled, by the quota it was made with.
//!
//! Until the next charge, used tokens refill at the rate of the quota that used them: every request
//! behind a slow one waits.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod polling;

use polling::{MS, WaitFuture, assert_refused, ms, poll_once, retry};
use tidegate::algorithm::PerCallBucket;
use tidegate::clock::Micros;
use tidegate::{AcquireError, KeyedLimiter, ManualClock, Quota};

/// The default quota. No call here uses it.
const DEFAULT: Quota = Quota::per_hour(1);
const SLOW: Quota = Quota::per_second(1);
const FAST: Quota = Quota::per_second(100).burst(1);

type Limiter = KeyedLimiter<u64, PerCallBucket, ManualClock>;

/// A limiter with one request charged by the fast quota.
fn one_used() -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::builder_with(PerCallBucket::new(DEFAULT)).clock(clock.clone()).build();
    assert!(limiter.request(&7).quota(FAST).check().is_allowed());
    (limiter, clock)
}

fn pending_wait<'a>(limiter: &'a Limiter, quota: Quota) -> WaitFuture<'a> {
    let mut wait: WaitFuture<'a> = Box::pin(async move { limiter.request(&7).quota(quota).acquire().await });
    assert!(poll_once(&mut wait).is_none(), "no quota is left");
    wait
}

fn passed_at(wait: &mut WaitFuture<'_>) -> Option<u64> {
    poll_once(wait).map(|answer| answer.expect("admitted").at().get())
}

#[test]
fn each_reservation_waits_by_its_own_quota() {
    let (limiter, clock) = one_used();
    let reservations =
        [FAST, SLOW, FAST].map(|quota| limiter.request(&7).quota(quota).reserve().expect("reserved"));
    let waits = reservations.each_ref().map(|reservation| reservation.wait().as_micros());
    assert_eq!(waits, [10 * MS, 20 * MS, 1_020 * MS]);
    assert_eq!(retry(limiter.request(&7).quota(FAST).check()), 1_030 * MS);
    assert!(limiter.request(&8).quota(SLOW).check().is_allowed(), "another key has its own queue");
    clock.advance(ms(1_030));
    assert!(limiter.request(&7).quota(FAST).check().is_allowed());
    drop(reservations);
}

#[test]
fn waiters_move_up_by_their_own_quota() {
    let (limiter, clock) = one_used();
    let (first, mut second, mut third) =
        (pending_wait(&limiter, FAST), pending_wait(&limiter, SLOW), pending_wait(&limiter, FAST));
    drop(first);
    clock.advance(ms(9));
    assert!(poll_once(&mut second).is_none());
    clock.advance(ms(1));
    assert_eq!(passed_at(&mut second), Some(10 * MS));
    clock.advance(ms(999));
    assert!(poll_once(&mut third).is_none());
    clock.advance(ms(1));
    assert_eq!(passed_at(&mut third), Some(1_010 * MS));
}

/// A reservation past its instant is counted by its own quota, also when a waiter behind it is
/// dropped.
#[test]
fn passed_reservations_count_by_their_own_quota() {
    let (limiter, clock) = one_used();
    let reservations =
        [FAST, SLOW].map(|quota| limiter.request(&7).quota(quota).reserve().expect("reserved"));
    let leaves = pending_wait(&limiter, FAST);
    clock.advance(ms(1_010));
    reservations.into_iter().for_each(|reservation| assert!(reservation.keep().is_allowed()));
    assert_eq!(retry(limiter.request(&7).quota(FAST).check()), 20 * MS, "after the waiter");
    drop(leaves);
    assert_eq!(retry(limiter.request(&7).quota(FAST).check()), 10 * MS);
}

#[test]
fn changing_the_default_quota_moves_no_wait_with_a_per_call_quota() {
    let (limiter, clock) = one_used();
    let (mut slow, mut fast) = (pending_wait(&limiter, SLOW), pending_wait(&limiter, FAST));
    limiter.change(PerCallBucket::new(Quota::per_day(1)));
    clock.advance(ms(10));
    assert_eq!(passed_at(&mut slow), Some(10 * MS));
    clock.advance(ms(999));
    assert!(poll_once(&mut fast).is_none());
    clock.advance(ms(1));
    assert_eq!(passed_at(&mut fast), Some(1_010 * MS));
}

#[test]
fn timeout_shorter_than_the_per_call_wait_is_refused_immediately() {
    let (limiter, clock) = one_used();
    let short = || limiter.request(&7).quota(FAST).timeout(ms(9));
    let too_long = short().acquire_blocking().expect_err("a millisecond is missing");
    let message = "the wait would be 10ms, longer than the timeout of 9ms; retry after 10ms";
    assert_refused(&too_long, AcquireError::is_timeout, message);
    assert_eq!(short().reserve().expect_err("nor here"), too_long);
    let never = limiter.request(&7).quota(SLOW).cost(2).acquire_blocking().expect_err("never");
    let message = "cost 2 exceeds the limit of 1: it can never be allowed; use 1 or less";
    assert_refused(&never, AcquireError::is_never, message);
    let mut fast: WaitFuture<'_> =
        Box::pin(async { limiter.request(&7).quota(FAST).deadline(Micros::new(10 * MS)).acquire().await });
    assert!(poll_once(&mut fast).is_none(), "in time, to the microsecond");
    clock.advance(ms(10));
    assert_eq!(passed_at(&mut fast), Some(10 * MS));
    clock.advance(ms(10));
    let now = Micros::new(20 * MS);
    assert!(limiter.request(&7).quota(FAST).deadline(now).acquire_blocking().is_ok(), "no wait is needed");
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn tasks_wait_by_their_per_call_quota() {
    let limiter = KeyedLimiter::<u64, _>::builder_with(PerCallBucket::new(DEFAULT))
        .clock(tidegate::TokioClock::new())
        .build();
    let mut at = Vec::new();
    for quota in [FAST, FAST, SLOW, FAST] {
        at.push(limiter.request(&7).quota(quota).acquire().await.expect("ready").at().get() / MS);
    }
    let limit = ms(10);
    assert!(limiter.request(&7).quota(FAST).timeout(limit).acquire().await.is_ok());
    assert_eq!(at, [0, 10, 20, 1_020]);
}
