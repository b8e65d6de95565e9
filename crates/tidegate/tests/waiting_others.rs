//! What others do meanwhile, to what is promised: they force, refund and reset, and change the setting.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod waits;

use std::sync::Arc;

use tidegate::{Limiter, ManualClock, Micros, Quota, SlidingLog, TokenBucket, WaitRefused};
use waits::{Calls, MS, Waits, begun, look, ms, retry, used_up, wait};

#[test]
fn forced_costs_stand_behind_what_is_promised() {
    let (limiter, clock) = used_up();
    let mut one = begun(&limiter, 1);
    let two = begun(&limiter, 1);
    let _ = limiter.cost(3).force(); // as of 200 ms
    assert_eq!(retry(limiter.check()), 600 * MS);
    drop(two); // the debt stays where it was
    assert_eq!(retry(limiter.check()), 500 * MS);
    limiter.cost(3).refund();
    clock.advance(ms(100));
    assert!(look(&mut one).expect("its turn").is_ok(), "neither moved it");
}

#[test]
fn however_many_act_meanwhile_promises_are_kept_and_memory_is_bounded() {
    let (limiter, clock) = used_up();
    let mut one = begun(&limiter, 1);
    for _ in 0..10_000 {
        let _ = limiter.cost(1).force();
        limiter.cost(1).refund();
    }
    assert_eq!(retry(limiter.check()), 200 * MS);
    clock.advance(ms(100));
    assert!(look(&mut one).expect("its turn").is_ok());
    clock.advance(ms(100));
    assert!(limiter.check().is_allowed());
}

/// One more entry in a full log leaves the very same words, and still it happened.
#[test]
fn what_is_forced_into_a_full_log_is_remembered_when_a_wait_before_it_is_dropped() {
    let limiter = Limiter::with(SlidingLog::new(Quota::per_second(4))).with_clock(ManualClock::new());
    assert!(limiter.cost(4).check().is_allowed());
    let wait = begun(&limiter, 4);
    let _ = limiter.cost(4).force(); // as of one second
    drop(wait);
    assert_eq!(retry(limiter.check()), 2_000 * MS);
}

#[test]
fn reset_lets_waiters_pass_and_keeps_what_was_promised() {
    let (limiter, _clock) = used_up();
    let mut one = begun(&limiter, 1);
    let turn = limiter.reserve().expect("promised");
    limiter.reset();
    assert!(look(&mut one).expect("nothing is used any more").is_ok());
    assert_eq!(turn.ready_at(), Micros::new(200 * MS));
    assert_eq!(retry(limiter.check()), 300 * MS);
}

/// A turn that was promised for good is used at its instant, so it counts, also after a reset.
#[test]
fn a_reset_forgets_no_promise() {
    for deeds in [0, 100] {
        let (limiter, clock) = used_up();
        let turn = limiter.reserve().expect("promised"); // at 100 ms
        let kept = limiter.reserve().expect("promised"); // at 200 ms
        kept.keep();
        for _ in 0..deeds {
            limiter.cost(0).refund(); // more than are remembered one by one
            let _ = limiter.cost(1).force();
            limiter.cost(1).refund();
        }
        clock.advance(ms(50));
        limiter.reset();
        assert_eq!(retry(limiter.check()), 250 * MS, "after both, with {deeds} deeds: at 300 ms");
        clock.advance(ms(250));
        assert!(limiter.check().is_allowed());
        drop(turn);
    }
}

#[test]
fn a_change_judges_waiters_anew_and_keeps_reservations() {
    let (limiter, clock) = used_up();
    let mut one = begun(&limiter, 1);
    let turn = limiter.reserve().expect("promised for 200 ms");
    let mut last: Waits<'_> = Box::pin(limiter.acquire_timeout(ms(300)));
    assert!(look(&mut last).is_none());
    limiter.change(TokenBucket::new(Quota::per_second(5).burst(1)));
    assert!(
        matches!(look(&mut last), Some(Err(WaitRefused::TooLong { .. }))),
        "it would be later than 300 ms now"
    );
    clock.advance(ms(199));
    assert!(look(&mut one).is_none(), "one used is worth 200 ms now");
    clock.advance(ms(1));
    assert!(look(&mut one).expect("its turn").is_ok());
    assert_eq!(turn.ready_at(), Micros::new(200 * MS));
    turn.keep();
    assert_eq!(retry(limiter.check()), 400 * MS, "two left at 200 ms by a limit of one: one is debt");
}

#[test]
fn after_a_change_a_reservation_can_still_be_given_back() {
    let (limiter, _clock) = used_up();
    let turn = limiter.reserve().expect("promised");
    limiter.change(TokenBucket::new(Quota::per_second(20).burst(1)));
    turn.cancel();
    assert_eq!(retry(limiter.check()), 50 * MS);
}

#[test]
fn who_does_nothing_meanwhile_is_not_remembered() {
    let (limiter, _clock) = used_up();
    let one = begun(&limiter, 1);
    for _ in 0..100 {
        let _ = limiter.cost(0).force();
    }
    drop(one);
    assert_eq!(retry(limiter.check()), 100 * MS, "it could still be given back");
}

/// More deeds than are remembered one by one: what was promised before them counts, once, whatever becomes of it.
#[test]
fn what_others_have_built_upon_counts_once() {
    let (limiter, _clock) = used_up();
    let (one, two) = (begun(&limiter, 1), begun(&limiter, 1));
    for _ in 0..100 {
        let _ = limiter.cost(1).force();
        limiter.cost(1).refund();
    }
    assert_eq!(retry(limiter.check()), 300 * MS);
    drop(one);
    assert_eq!(retry(limiter.check()), 300 * MS);
    drop(two);
}

#[test]
fn a_reset_forgets_what_was_kept_and_used_and_no_turn_that_is_waited_for() {
    let (limiter, clock) = used_up();
    let mut one = begun(&limiter, 1); // 100 ms
    limiter.reserve().expect("promised").keep(); // 200 ms
    clock.advance(ms(150));
    limiter.reset();
    assert_eq!(retry(limiter.check()), 150 * MS, "both are to come");
    clock.advance(ms(50));
    limiter.reset();
    assert!(limiter.check().is_allowed(), "the kept one is over");
    assert!(look(&mut one).expect("its turn").is_ok());
}

#[test]
fn a_reset_forgets_no_turn_that_has_come_and_is_still_waited_for() {
    let (limiter, clock) = used_up();
    let mut one = begun(&limiter, 1); // 100 ms
    clock.advance(ms(150));
    limiter.reset();
    assert_eq!(retry(limiter.check()), 50 * MS);
    assert!(look(&mut one).expect("its turn").is_ok());
}

#[test]
fn who_waits_is_woken_by_a_change_to_learn_what_became_of_it() {
    let (limiter, _clock) = used_up();
    let (moved, refused) = (Arc::<Calls>::default(), Arc::<Calls>::default());
    let mut first = wait(&limiter, 1);
    let mut last: Waits<'_> = Box::pin(limiter.acquire_timeout(ms(200)));
    moved.await_turn(&mut first);
    refused.await_turn(&mut last);
    limiter.change(TokenBucket::new(Quota::per_second(5).burst(1)));
    assert_eq!((moved.count(), refused.count()), (1, 1));
    assert!(matches!(look(&mut last), Some(Err(WaitRefused::TooLong { .. }))));
}

/// Whether it has looked yet or not, and whatever happens until it does.
#[test]
fn who_is_refused_by_a_change_takes_nothing() {
    let (limiter, _clock) = used_up();
    let (one, two) = (begun(&limiter, 1), begun(&limiter, 1));
    let mut last: Waits<'_> = Box::pin(limiter.acquire_timeout(ms(300)));
    assert!(look(&mut last).is_none());
    limiter.change(TokenBucket::new(Quota::per_second(5).burst(1)));
    assert_eq!(retry(limiter.check()), 600 * MS, "two are in line");
    drop(two);
    assert_eq!(retry(limiter.check()), 400 * MS, "one is");
    limiter.reset();
    assert_eq!(retry(limiter.check()), 200 * MS, "it may pass now");
    drop(one);
    assert!(matches!(look(&mut last), Some(Err(WaitRefused::TooLong { .. }))));
}

#[test]
fn who_is_refused_by_a_change_is_in_nobodys_way() {
    let limiter = Limiter::new(Quota::per_second(10).burst(2)).with_clock(ManualClock::new());
    assert!(limiter.cost(2).check().is_allowed());
    let _large = begun(&limiter, 2); // 200 ms
    limiter.change(TokenBucket::new(Quota::per_second(20).burst(1)));
    assert_eq!(
        retry(limiter.check()),
        100 * MS,
        "two used, of one at once: 50 ms of debt, and 50 ms for itself"
    );
}
