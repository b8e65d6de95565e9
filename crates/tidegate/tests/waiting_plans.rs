//! Waiting with a per-call quota: a reservation is kept, and rescheduled, by the quota it was made with.
//!
//! Until the next charge, used tokens refill at the rate of the quota that used them: every request
//! behind a slow one waits.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod waits;

use tidegate::{KeyedLimiter, ManualClock, Micros, PerCallBucket, Quota, WaitRefused};
use waits::{MS, WaitFuture, ms, poll_once, retry};

/// The default quota. No call here uses it.
const DEFAULT: Quota = Quota::per_hour(1);
const SLOW: Quota = Quota::per_second(1);
const FAST: Quota = Quota::per_second(100).burst(1);

type Limiter = KeyedLimiter<u64, PerCallBucket, ManualClock>;

/// A limiter with one request charged by the fast quota.
fn one_used() -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::with(PerCallBucket::new(DEFAULT)).with_clock(clock.clone());
    assert!(limiter.quota(FAST).check(&7).is_allowed());
    (limiter, clock)
}

fn pending_wait<'a>(limiter: &'a Limiter, quota: Quota) -> WaitFuture<'a> {
    let mut wait: WaitFuture<'a> = Box::pin(async move { limiter.quota(quota).acquire(&7).await });
    assert!(poll_once(&mut wait).is_none(), "no quota is left");
    wait
}

fn passed_at(wait: &mut WaitFuture<'_>) -> Option<u64> {
    poll_once(wait).map(|answer| answer.expect("admitted").at().get())
}

#[test]
fn each_reservation_waits_by_its_own_quota() {
    let (limiter, clock) = one_used();
    let reservations = [FAST, SLOW, FAST].map(|quota| limiter.quota(quota).reserve(&7).expect("reserved"));
    let waits = reservations.each_ref().map(|reservation| reservation.wait().as_micros());
    assert_eq!(waits, [10 * MS, 20 * MS, 1_020 * MS]);
    assert_eq!(retry(limiter.quota(FAST).check(&7)), 1_030 * MS);
    assert!(limiter.quota(SLOW).check(&8).is_allowed(), "another key has its own queue");
    clock.advance(ms(1_030));
    assert!(limiter.quota(FAST).check(&7).is_allowed());
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
    let reservations = [FAST, SLOW].map(|quota| limiter.quota(quota).reserve(&7).expect("reserved"));
    let leaves = pending_wait(&limiter, FAST);
    clock.advance(ms(1_010));
    reservations.into_iter().for_each(tidegate::KeyedReservation::keep);
    assert_eq!(retry(limiter.quota(FAST).check(&7)), 20 * MS, "after the waiter");
    drop(leaves);
    assert_eq!(retry(limiter.quota(FAST).check(&7)), 10 * MS);
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
    let (short, fast) = (ms(9), limiter.quota(FAST));
    let too_long = fast.acquire_blocking_timeout(&7, short).expect_err("a millisecond is missing");
    assert_eq!(too_long.to_string(), "the wait would be 10ms, and may be 9ms; wait longer, or try later");
    assert_eq!(fast.reserve_within(&7, short).expect_err("nor here"), too_long);
    let never = limiter.quota(SLOW).cost(2).acquire_blocking(&7);
    assert_eq!(never, Err(WaitRefused::Never { cost: 2, limit: 1 }));
    let mut fast: WaitFuture<'_> =
        Box::pin(async { limiter.quota(FAST).acquire_until(&7, Micros::new(10 * MS)).await });
    assert!(poll_once(&mut fast).is_none(), "in time, to the microsecond");
    clock.advance(ms(10));
    assert_eq!(passed_at(&mut fast), Some(10 * MS));
    clock.advance(ms(10));
    let now = Micros::new(20 * MS);
    assert!(limiter.quota(FAST).acquire_blocking_until(&7, now).is_ok(), "no wait is needed");
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn tasks_wait_by_their_per_call_quota() {
    let limiter =
        KeyedLimiter::<u64, _>::with(PerCallBucket::new(DEFAULT)).with_clock(tidegate::TokioClock::new());
    let mut at = Vec::new();
    for quota in [FAST, FAST, SLOW, FAST] {
        at.push(limiter.quota(quota).acquire(&7).await.expect("ready").at().get() / MS);
    }
    let limit = ms(10);
    assert!(limiter.quota(FAST).acquire_timeout(&7, limit).await.is_ok());
    assert_eq!(at, [0, 10, 20, 1_020]);
}
