//! One state, two threads: charges, refusals and changes of the quota.

use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::{Algorithm, ClockKind, Keep, Micros, Quota, TokenBucket};

use super::{INTERRUPTIONS, both, model};
use crate::operation::{Check, Peek};
use crate::state_cell::{DecisionTime, StateCell};

const START: DecisionTime = DecisionTime { now: Micros::ZERO, clock: ClockKind::Monotonic };

fn bucket(quota: Quota) -> TokenBucket {
    TokenBucket::new(quota).for_clock(ClockKind::Monotonic)
}

/// A burst of ten, slow enough that nothing is refilled. One word.
fn hourly() -> TokenBucket {
    bucket(Quota::per_hour(10))
}

/// The same tokens, each worth 24 times as much. One word.
fn daily() -> TokenBucket {
    bucket(Quota::per_day(10))
}

/// Two words, because of its many q-ths; a burst of 10.
fn wide() -> TokenBucket {
    let bucket = bucket(Quota::per_second(999_983).burst(10));
    assert_eq!(bucket.words(), 2);
    bucket
}

fn shared(algorithm: TokenBucket, used: u32) -> Arc<StateCell<TokenBucket>> {
    let shared = StateCell::new(algorithm, 8);
    assert!(shared.apply(&Check(used), START).is_allowed());
    Arc::new(shared)
}

/// Makes one check, as a limiter does.
fn passes(shared: &StateCell<TokenBucket>) -> bool {
    let fast_path = shared.apply_fast(&Check(1), START.now);
    fast_path.unwrap_or_else(|| shared.apply(&Check(1), START)).is_allowed()
}

fn left(shared: &StateCell<TokenBucket>) -> u64 {
    shared.apply(&Peek(0), START).remaining()
}

#[test]
fn last_token_goes_to_one_of_two_threads() {
    for algorithm in [hourly, wide] {
        model(INTERRUPTIONS, move || {
            let shared = shared(algorithm(), 9);
            let (one, other) = both(&shared, passes, passes);
            assert!(one != other, "exactly one passes");
            assert_eq!(left(&shared), 0);
        });
    }
}

#[test]
fn no_charge_is_lost_between_two_threads() {
    for algorithm in [hourly, wide] {
        model(INTERRUPTIONS, move || {
            let shared = shared(algorithm(), 6);
            let twice = |shared: &StateCell<TokenBucket>| passes(shared) && passes(shared);
            assert_eq!(both(&shared, twice, twice), (true, true));
            assert_eq!(left(&shared), 0);
        });
    }
}

/// A charge counts once, under whichever quota it is made, for every pair of layouts.
#[test]
fn charge_during_a_quota_change_counts_once() {
    for (from, to) in
        [(hourly, daily), (hourly, wide), (wide, hourly), (wide, wide)] as [(fn() -> _, fn() -> _); 4]
    {
        model(INTERRUPTIONS, move || {
            let shared = shared(from(), 3);
            let (passed, ()) = both(&shared, passes, move |shared| shared.change(Keep::Used, to(), || START));
            assert!(passed);
            assert_eq!(left(&shared), 6, "3 and 1 of 10 are used");
        });
    }
}

#[test]
fn charge_during_two_quota_changes_counts_once() {
    model(INTERRUPTIONS, || {
        let shared = shared(hourly(), 3);
        let (passed, ()) = both(&shared, passes, |shared| {
            shared.change(Keep::Used, daily(), || START);
            shared.change(Keep::Used, hourly(), || START);
        });
        assert!(passed);
        assert_eq!(
            left(&shared),
            6,
            "the charge is not applied to a word that has merely returned to its old value"
        );
    });
}

/// A change of the quota never lets a thread misread the word.
///
/// One token of a daily quota is worth more than the whole hourly one. A thread that judged the new word by the old
/// quota would refuse, and a thread that judged an old word by a new quota would admit too much.
#[test]
fn state_of_another_quota_denies_no_request() {
    model(INTERRUPTIONS, || {
        let shared = shared(hourly(), 1);
        let (passed, ()) = both(&shared, passes, |shared| shared.change(Keep::Used, daily(), || START));
        assert!(passed);
    });
}

#[test]
fn state_of_another_quota_allows_no_request() {
    for (from, to) in [(daily, hourly), (wide, hourly), (hourly, wide)] as [(fn() -> _, fn() -> _); 3] {
        model(INTERRUPTIONS, move || {
            let shared = shared(from(), 10);
            let (passed, ()) = both(&shared, passes, move |shared| shared.change(Keep::Used, to(), || START));
            assert!(!passed);
            assert_eq!(left(&shared), 0);
        });
    }
}

#[test]
fn concurrent_quota_changes_are_serialized() {
    model(INTERRUPTIONS, || {
        let shared = shared(hourly(), 3);
        both(
            &shared,
            |shared| shared.change(Keep::Used, daily(), || START),
            |shared| shared.change(Keep::Used, wide(), || START),
        );
        assert_eq!(left(&shared), 7);
        assert!(passes(&shared));
    });
}

/// One token per five microseconds, and a burst of three.
fn slow() -> TokenBucket {
    bucket(Quota::every(Duration::from_micros(5)).burst(3))
}

/// One token per microsecond, and a burst of twenty.
fn fast() -> TokenBucket {
    bucket(Quota::every(Duration::from_micros(1)).burst(20))
}

/// The clock advances, a request takes everything, and the rate is raised.
///
/// If the change were made as of an earlier instant, the charge that was just made would be refilled at the new rate.
#[test]
fn change_takes_effect_no_earlier_than_decisions_before_it() {
    let at = |now| DecisionTime { now: Micros::new(now), ..START };
    model(INTERRUPTIONS, move || {
        let both_of_us = Arc::new((shared(slow(), 3), AtomicU64::new(0)));
        let (passed, ()) = both(
            &both_of_us,
            move |(shared, clock)| {
                clock.store(15, Ordering::SeqCst);
                shared.apply(&Check(3), at(15)).is_allowed()
            },
            move |(shared, clock)| {
                shared.change(Keep::Used, fast(), || at(clock.fetch_add(0, Ordering::SeqCst)))
            },
        );
        assert!(passed, "at 15 the bucket is full again");
        let left = both_of_us.0.apply(&Peek(0), at(15)).remaining();
        assert_eq!(left, 17);
    });
}
