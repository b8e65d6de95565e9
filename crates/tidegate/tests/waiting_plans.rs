//! Waiting by a plan: the quota comes with the call, and a promise is kept, and made again, by the quota it was made by.
//!
//! What is used comes back at the pace of the plan that used it, until the next charge: behind a slow one everybody waits.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod waits;

use tidegate::{KeyedLimiter, ManualClock, Micros, PerCallBucket, Quota, WaitRefused};
use waits::{MS, Waits, look, ms, retry};

/// The plan of who has none. Nobody here waits by it.
const NONE: Quota = Quota::per_hour(1);
const SLOW: Quota = Quota::per_second(1);
const FAST: Quota = Quota::per_second(100).burst(1);

type Limiter = KeyedLimiter<u64, PerCallBucket, ManualClock>;

/// One was used by the fast plan.
fn used() -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::with(PerCallBucket::new(NONE)).with_clock(clock.clone());
    assert!(limiter.quota(FAST).check(&7).is_allowed());
    (limiter, clock)
}

fn begun<'a>(limiter: &'a Limiter, quota: Quota) -> Waits<'a> {
    let mut wait: Waits<'a> = Box::pin(async move { limiter.quota(quota).acquire(&7).await });
    assert!(look(&mut wait).is_none(), "there is nothing left for it");
    wait
}

fn passed_at(wait: &mut Waits<'_>) -> Option<u64> {
    look(wait).map(|answer| answer.expect("it waited for its turn").at().get())
}

#[test]
fn each_waits_by_its_own_plan() {
    let (limiter, clock) = used();
    let turns = [FAST, SLOW, FAST].map(|quota| limiter.quota(quota).reserve(&7).expect("promised"));
    let waits = turns.each_ref().map(|turn| turn.wait().as_micros());
    assert_eq!(waits, [10 * MS, 20 * MS, 1_020 * MS]);
    assert_eq!(retry(limiter.quota(FAST).check(&7)), 1_030 * MS);
    assert!(limiter.quota(SLOW).check(&8).is_allowed(), "another key, another line");
    clock.advance(ms(1_030));
    assert!(limiter.quota(FAST).check(&7).is_allowed());
    drop(turns);
}

#[test]
fn who_moves_up_does_so_by_its_own_plan() {
    let (limiter, clock) = used();
    let (first, mut second, mut third) =
        (begun(&limiter, FAST), begun(&limiter, SLOW), begun(&limiter, FAST));
    drop(first);
    clock.advance(ms(9));
    assert!(look(&mut second).is_none());
    clock.advance(ms(1));
    assert_eq!(passed_at(&mut second), Some(10 * MS));
    clock.advance(ms(999));
    assert!(look(&mut third).is_none());
    clock.advance(ms(1));
    assert_eq!(passed_at(&mut third), Some(1_010 * MS));
}

/// What has had its instant is counted by its plan, too, when somebody behind leaves.
#[test]
fn what_was_used_up_meanwhile_counts_by_its_plan() {
    let (limiter, clock) = used();
    let turns = [FAST, SLOW].map(|quota| limiter.quota(quota).reserve(&7).expect("promised"));
    let leaves = begun(&limiter, FAST);
    clock.advance(ms(1_010));
    turns.into_iter().for_each(tidegate::KeyedReservation::keep);
    assert_eq!(retry(limiter.quota(FAST).check(&7)), 20 * MS, "after the one who waits");
    drop(leaves);
    assert_eq!(retry(limiter.quota(FAST).check(&7)), 10 * MS);
}

#[test]
fn another_setting_for_those_without_a_plan_changes_no_promise_by_one() {
    let (limiter, clock) = used();
    let (mut slow, mut fast) = (begun(&limiter, SLOW), begun(&limiter, FAST));
    limiter.change(PerCallBucket::new(Quota::per_day(1)));
    clock.advance(ms(10));
    assert_eq!(passed_at(&mut slow), Some(10 * MS));
    clock.advance(ms(999));
    assert!(look(&mut fast).is_none());
    clock.advance(ms(1));
    assert_eq!(passed_at(&mut fast), Some(1_010 * MS));
}

#[test]
fn what_cannot_suffice_is_refused_at_once_by_the_plan() {
    let (limiter, clock) = used();
    let (short, fast) = (ms(9), limiter.quota(FAST));
    let too_long = fast.acquire_blocking_timeout(&7, short).expect_err("a millisecond is missing");
    assert_eq!(too_long.to_string(), "the wait would be 10ms, and may be 9ms; wait longer, or try later");
    assert_eq!(fast.reserve_within(&7, short).expect_err("nor here"), too_long);
    let never = limiter.quota(SLOW).cost(2).acquire_blocking(&7);
    assert_eq!(never, Err(WaitRefused::Never { cost: 2, limit: 1 }));
    let mut fast: Waits<'_> =
        Box::pin(async { limiter.quota(FAST).acquire_until(&7, Micros::new(10 * MS)).await });
    assert!(look(&mut fast).is_none(), "it is in time, to the microsecond");
    clock.advance(ms(10));
    assert_eq!(passed_at(&mut fast), Some(10 * MS));
    clock.advance(ms(10));
    let now = Micros::new(20 * MS);
    assert!(limiter.quota(FAST).acquire_blocking_until(&7, now).is_ok(), "there is nothing to wait for");
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn tasks_wait_by_their_plan() {
    let limiter =
        KeyedLimiter::<u64, _>::with(PerCallBucket::new(NONE)).with_clock(tidegate::TokioClock::new());
    let mut at = Vec::new();
    for quota in [FAST, FAST, SLOW, FAST] {
        at.push(limiter.quota(quota).acquire(&7).await.expect("its turn").at().get() / MS);
    }
    let limit = ms(10);
    assert!(limiter.quota(FAST).acquire_timeout(&7, limit).await.is_ok());
    assert_eq!(at, [0, 10, 20, 1_020]);
}
