//! Waiting for a keyed rate: each key has its own queue, also when the table has no room for the key.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod polling;

use std::time::Duration;

use polling::{MS, WaitFuture, assert_refused, ms, poll_once, retry};
use tidegate::algorithm::TokenBucket;
use tidegate::builder::KeyedLimiterBuilder;
use tidegate::{AcquireError, KeyedLimiter, ManualClock, OnFull, Quota, Source};

#[test]
fn per_call_quotas_wait_behind_promised_instants() {
    const FREE: Quota = Quota::per_second(10).burst(1);
    const PAID: Quota = Quota::per_second(20).burst(2);
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64, _>::builder_with(tidegate::algorithm::PerCallBucket::new(FREE))
        .clock(clock.clone())
        .build();
    assert!(limiter.check(&7).is_allowed());
    let mut wait: WaitFuture<'_> = Box::pin(limiter.acquire(&7));
    assert!(poll_once(&mut wait).is_none());
    assert_eq!(limiter.request(&7).quota(PAID).check().retry_after().expect("denied"), ms(100));
    // A charge by another quota cannot be replayed: the promised wait is final from here on.
    let _ = limiter.request(&7).quota(PAID).force();
    assert_eq!(retry(limiter.check(&7)), 200 * MS);
    drop(wait); // two tokens in debt, at twenty per second
    assert_eq!(retry(limiter.check(&7)), 200 * MS);
    clock.advance(ms(200));
    assert!(limiter.check(&7).is_allowed());
}

#[test]
fn change_to_another_state_layout_keeps_reservations_of_keys() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<str>::builder(Quota::per_second(10).burst(1)).clock(clock.clone()).build();
    assert!(limiter.check("a").is_allowed() && limiter.check("b").is_allowed());
    let reservation = limiter.request("a").reserve().expect("reserved");
    let wide = TokenBucket::new(Quota::per_second(999_983).burst(1));
    limiter.change(wide);
    assert!(!limiter.check("a").is_allowed());
    clock.advance(ms(99));
    assert!(limiter.check("b").is_allowed());
    assert_eq!(retry(limiter.check("a")), MS + 2, "the reservation first");
    clock.advance(ms(1));
    reservation.keep();
    clock.advance(Duration::from_micros(2));
    assert!(limiter.check("a").is_allowed());
}

#[test]
fn each_key_has_its_own_queue() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<str>::builder(Quota::per_second(10).burst(1))
        .max_waiting(1)
        .clock(clock.clone())
        .build();
    for key in ["alice", "bob"] {
        assert!(limiter.check(key).is_allowed());
    }
    let mut alice: WaitFuture<'_> = Box::pin(limiter.acquire("alice"));
    assert!(poll_once(&mut alice).is_none());
    let refused = limiter.request("alice").acquire_blocking().expect_err("one waiter is the limit");
    let message = "the queue is full: 1 requests are waiting; retry later";
    assert_refused(&refused, AcquireError::is_queue_full, message);
    let reservation = limiter.request("bob").reserve().expect("another queue");
    assert!(limiter.check("carol").is_allowed());
    assert_eq!(retry(limiter.check("carol")), 100 * MS);
    assert_eq!((retry(limiter.check("alice")), retry(limiter.check("bob"))), (200 * MS, 200 * MS));
    reservation.cancel();
    assert_eq!((retry(limiter.check("alice")), retry(limiter.check("bob"))), (200 * MS, 100 * MS));
    clock.advance(ms(100));
    assert!(poll_once(&mut alice).expect("ready").is_ok());
    assert!(limiter.check("bob").is_allowed());
}

fn room_for_one(clock: &ManualClock) -> KeyedLimiterBuilder<u64, TokenBucket, ManualClock> {
    KeyedLimiter::builder(Quota::per_second(10).burst(1)).max_keys(1).clock(clock.clone())
}

/// The key waits by the sketch cells that it shares. A cancelled reservation stays charged there, because a
/// cell does not record which key charged it.
#[test]
fn key_without_room_waits_by_the_sketch() {
    let clock = ManualClock::new();
    let limiter = room_for_one(&clock).build();
    let _ = limiter.request(&1).cost(100).force(); // the only entry is taken for long
    assert!(limiter.check(&2).is_allowed());
    let reservation = limiter.request(&2).reserve().expect("reserved");
    assert_eq!((reservation.wait().duration(), reservation.decision().source), (ms(100), Source::Sketch));
    assert_eq!(retry(limiter.check(&2)), 200 * MS);
    clock.advance(ms(100));
    reservation.keep();
    assert_eq!(retry(limiter.check(&2)), 100 * MS);
    limiter.request(&2).reserve().expect("reserved").cancel();
    assert_eq!(retry(limiter.check(&2)), 200 * MS, "the cancelled reservation stays charged");
    clock.advance(ms(200));
    assert!(limiter.check(&2).is_allowed());
}

#[test]
fn key_without_room_is_refused_while_the_other_key_is_not_idle() {
    let clock = ManualClock::new();
    let limiter = room_for_one(&clock).on_full(OnFull::Refuse).build();
    assert!(limiter.check(&1).is_allowed());
    let refused = limiter.request(&2).acquire_blocking().expect_err("no room");
    assert!(refused.is_closed(), "{refused:?}");
    let reservation = limiter.request(&1).reserve().expect("key 1 is in the table");
    clock.advance(ms(150));
    let refused = limiter.request(&2).acquire_blocking().expect_err("a key with a reservation is not idle");
    assert!(refused.is_closed(), "{refused:?}");
    reservation.keep();
    clock.advance(ms(50));
    assert!(limiter.request(&2).acquire_blocking().is_ok());
}

#[test]
fn key_with_a_cancelled_reservation_makes_room_when_idle() {
    let clock = ManualClock::new();
    let limiter = room_for_one(&clock).on_full(OnFull::Refuse).build();
    assert!(limiter.check(&1).is_allowed());
    let reservation = limiter.request(&1).reserve().expect("reserved");
    assert_eq!(retry(limiter.check(&2)), 200 * MS, "no room before the first key is idle");
    reservation.cancel();
    clock.advance(ms(100));
    assert!(limiter.check(&2).is_allowed());
}

#[test]
fn kept_reservation_delays_later_checks_only_until_its_instant() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64>::builder(Quota::per_second(10).burst(1)).clock(clock.clone()).build();
    for key in 0..100 {
        assert!(limiter.check(&key).is_allowed());
        limiter.request(&key).reserve().expect("reserved").keep();
    }
    clock.advance(ms(150));
    assert_eq!(retry(limiter.check(&7)), 50 * MS);
    clock.advance(Duration::from_secs(2));
    for key in 0..100 {
        assert!(limiter.check(&key).is_allowed());
    }
}
