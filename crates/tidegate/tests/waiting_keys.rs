//! Waiting for a rate of one's own: each key has its line, also where there is no room for it.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod waits;

use std::time::Duration;

use tidegate::{KeyedLimiter, ManualClock, OnFull, Quota, Source, TokenBucket, WaitRefused};
use waits::{MS, Waits, look, ms, retry};

#[test]
fn plans_wait_behind_what_is_promised() {
    const FREE: Quota = Quota::per_second(10).burst(1);
    const PAID: Quota = Quota::per_second(20).burst(2);
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64, _>::with(tidegate::PerCallBucket::new(FREE)).with_clock(clock.clone());
    assert!(limiter.check(&7).is_allowed());
    let mut wait: Waits<'_> = Box::pin(limiter.acquire(&7));
    assert!(look(&mut wait).is_none());
    assert_eq!(limiter.quota(PAID).check(&7).retry_after().expect("held back"), ms(100));
    let _ = limiter.quota(PAID).force(&7); // cannot be done again by another plan: what was promised counts from here on
    assert_eq!(retry(limiter.check(&7)), 200 * MS);
    drop(wait); // two are owed, at twenty a second
    assert_eq!(retry(limiter.check(&7)), 200 * MS);
    clock.advance(ms(200));
    assert!(limiter.check(&7).is_allowed());
}

#[test]
fn a_change_to_another_layout_keeps_promises_of_keys() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<str>::new(Quota::per_second(10).burst(1)).with_clock(clock.clone());
    assert!(limiter.check("a").is_allowed() && limiter.check("b").is_allowed());
    let turn = limiter.reserve("a").expect("promised");
    let wide = TokenBucket::new(Quota::per_second(999_983).burst(1));
    limiter.change(wide);
    assert!(!limiter.check("a").is_allowed());
    clock.advance(ms(99));
    assert!(limiter.check("b").is_allowed());
    assert_eq!(retry(limiter.check("a")), MS + 2, "the reservation first");
    clock.advance(ms(1));
    turn.keep();
    clock.advance(Duration::from_micros(2));
    assert!(limiter.check("a").is_allowed());
}

#[test]
fn each_key_has_a_line_of_its_own() {
    let clock = ManualClock::new();
    let limiter =
        KeyedLimiter::<str>::new(Quota::per_second(10).burst(1)).max_waiting(1).with_clock(clock.clone());
    for key in ["alice", "bob"] {
        assert!(limiter.check(key).is_allowed());
    }
    let mut alice: Waits<'_> = Box::pin(limiter.acquire("alice"));
    assert!(look(&mut alice).is_none());
    let refused = limiter.acquire_blocking("alice").expect_err("one may wait");
    assert_eq!(refused, WaitRefused::LineFull { max_waiting: 1 });
    let turn = limiter.reserve("bob").expect("another line");
    assert!(limiter.check("carol").is_allowed());
    assert_eq!(retry(limiter.check("carol")), 100 * MS);
    assert_eq!((retry(limiter.check("alice")), retry(limiter.check("bob"))), (200 * MS, 200 * MS));
    turn.cancel();
    assert_eq!((retry(limiter.check("alice")), retry(limiter.check("bob"))), (200 * MS, 100 * MS));
    clock.advance(ms(100));
    assert!(look(&mut alice).expect("its turn").is_ok());
    assert!(limiter.check("bob").is_allowed());
}

fn room_for_one(clock: &ManualClock) -> KeyedLimiter<u64, TokenBucket, ManualClock> {
    KeyedLimiter::new(Quota::per_second(10).burst(1)).max_keys(1).with_clock(clock.clone())
}

/// It waits by the cells that it shares. What is given back there stays used: nobody can tell whose it was.
#[test]
fn a_key_without_room_waits_by_the_sketch() {
    let clock = ManualClock::new();
    let limiter = room_for_one(&clock);
    let _ = limiter.cost(100).force(&1); // the room is taken for long
    assert!(limiter.check(&2).is_allowed());
    let turn = limiter.reserve(&2).expect("promised");
    assert_eq!((turn.wait().duration(), turn.decision().source), (ms(100), Source::Sketch));
    assert_eq!(retry(limiter.check(&2)), 200 * MS);
    clock.advance(ms(100));
    turn.keep();
    assert_eq!(retry(limiter.check(&2)), 100 * MS);
    limiter.reserve(&2).expect("promised").cancel();
    assert_eq!(retry(limiter.check(&2)), 200 * MS, "as if it had been used");
    clock.advance(ms(200));
    assert!(limiter.check(&2).is_allowed());
}

#[test]
fn there_is_no_line_for_a_key_without_room() {
    let clock = ManualClock::new();
    let limiter = room_for_one(&clock).on_full(OnFull::Refuse);
    assert!(limiter.check(&1).is_allowed());
    let refused = limiter.acquire_blocking(&2).expect_err("no room");
    assert!(matches!(refused, WaitRefused::TooManyKeys { .. }), "{refused:?}");
    let turn = limiter.reserve(&1).expect("has a place");
    clock.advance(ms(150));
    assert!(
        matches!(limiter.acquire_blocking(&2), Err(WaitRefused::TooManyKeys { .. })),
        "what was kept is not idle"
    );
    turn.keep();
    clock.advance(ms(50));
    assert!(limiter.acquire_blocking(&2).is_ok());
}

#[test]
fn a_key_whose_reservation_is_given_back_makes_room_when_it_is_idle() {
    let clock = ManualClock::new();
    let limiter = room_for_one(&clock).on_full(OnFull::Refuse);
    assert!(limiter.check(&1).is_allowed());
    let turn = limiter.reserve(&1).expect("promised");
    assert_eq!(retry(limiter.check(&2)), 200 * MS, "no room before the first key is idle");
    turn.cancel();
    clock.advance(ms(100));
    assert!(limiter.check(&2).is_allowed());
}

#[test]
fn a_kept_reservation_holds_up_others_only_until_its_instant() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64>::new(Quota::per_second(10).burst(1)).with_clock(clock.clone());
    for key in 0..100 {
        assert!(limiter.check(&key).is_allowed());
        limiter.reserve(&key).expect("promised").keep();
    }
    clock.advance(ms(150));
    assert_eq!(retry(limiter.check(&7)), 50 * MS);
    clock.advance(Duration::from_secs(2));
    for key in 0..100 {
        assert!(limiter.check(&key).is_allowed());
    }
}
