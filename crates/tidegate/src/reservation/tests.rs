//! Tests of the slow-path flag and of late arrivals.
//!
//! Decisions take the slow path only while there are reservations: the flag is set no longer than that. A thread that
//! takes it late is decided after faster ones.

use std::task::Waker;

use super::{
    AcquireRequest, Joined, Progress, ReservationTicket, StateStore, apply, cancel, join, keep, poll,
};
use crate::error::RefusalKind;
use crate::keyed::{Keyed, Settings};
use crate::operation::{Check, Force, Peek};
use crate::state_cell::{DecisionTime, SOLE_KEY, StateCell};
use crate::table::OnFull;
use tidegate_core::{Algorithm, ClockKind, Micros, Quota, TokenBucket, Wait};

const SECOND: u64 = 1_000_000;

fn at(seconds: u64) -> DecisionTime {
    DecisionTime { now: Micros::new(seconds * SECOND), clock: ClockKind::Monotonic }
}

/// Creates a limiter of one per second with this burst and this queue length.
fn one_a_second(burst: u64, max_waiting: usize) -> StateCell<TokenBucket> {
    let quota = Quota::per_second(1).burst(burst);
    StateCell::new(TokenBucket::new(quota).for_clock(ClockKind::Monotonic), max_waiting)
}

/// Creates a limiter of one per second, of which `used` are used.
fn used(burst: u64, used: u32) -> StateCell<TokenBucket> {
    let shared = one_a_second(burst, 8);
    assert!(shared.apply(&Check(used), at(0)).is_allowed());
    shared
}

fn wish_for_one() -> AcquireRequest {
    AcquireRequest { cost: 1, deadline: Micros::MAX }
}

/// Joins the queue at second 0, with a waker or without.
fn joined(shared: &StateCell<TokenBucket>, waker: Option<Waker>) -> Joined {
    join(shared, None, SOLE_KEY, wish_for_one(), waker, || at(0)).expect("there is room in the queue")
}

fn promised(shared: &StateCell<TokenBucket>, waker: Option<Waker>) -> ReservationTicket {
    match joined(shared, waker) {
        Joined::Later(ticket) => ticket,
        Joined::Now(_) => panic!("no quota is left for it"),
    }
}

#[test]
fn join_with_quota_left_passes_and_sets_no_slow_path_flag() {
    let shared = used(2, 1);
    let Joined::Now(decision) = joined(&shared, Some(Waker::noop().clone())) else { panic!("one is left") };
    assert_eq!((decision.at(), decision.remaining()), (Micros::ZERO, 0));
    assert!(!shared.is_slow_path());
}

#[test]
fn cancel_clears_the_slow_path_flag() {
    let shared = used(1, 1);
    let ticket = promised(&shared, None);
    assert!(shared.is_slow_path());
    cancel(&shared, SOLE_KEY, ticket, || at(0));
    assert!(!shared.is_slow_path());
}

#[test]
fn finished_wait_clears_the_slow_path_flag() {
    let shared = used(1, 1);
    let ticket = promised(&shared, Some(Waker::noop().clone()));
    let found = poll(&shared, SOLE_KEY, ticket, Waker::noop(), || at(1));
    assert!(matches!(found, Progress::Done(Ok(_))), "{found:?}");
    assert!(!shared.is_slow_path());
}

#[test]
fn later_decision_clears_the_slow_path_flag_of_a_kept_reservation() {
    let shared = used(1, 1);
    keep(&shared, SOLE_KEY, promised(&shared, None));
    assert!(shared.is_slow_path());
    assert_eq!(shared.apply(&Peek(1), at(2)).remaining(), 0, "as of then, one would be charged");
    assert!(!shared.is_slow_path());
}

#[test]
fn long_queue_clears_the_slow_path_flag_when_all_have_passed() {
    let shared = one_a_second(1, 66);
    assert!(shared.apply(&Check(1), at(0)).is_allowed());
    let mut tickets: Vec<ReservationTicket> =
        (0..66).map(|_| promised(&shared, Some(Waker::noop().clone()))).collect();
    cancel(&shared, SOLE_KEY, tickets.pop().expect("the last"), || at(0));
    for ticket in tickets {
        let found = poll(&shared, SOLE_KEY, ticket, Waker::noop(), || at(65));
        assert!(matches!(found, Progress::Done(Ok(_))), "{found:?}");
    }
    assert!(!shared.is_slow_path());
}

/// A thread that read the clock early is decided after what a faster thread did.
fn assert_late_check_is_decided_after(per_call: Option<&TokenBucket>) {
    let shared = used(3, 3);
    let _waits = promised(&shared, Some(Waker::noop().clone())); // 1 s
    let forced = apply(&shared, per_call, SOLE_KEY, &Force(1), at(5)).expect("there is a reservation");
    assert!(forced.is_allowed());
    let slow = shared.apply(&Check(1), at(3)).retry_after().expect("not before 5 s");
    assert_eq!(slow.as_micros(), 2 * SECOND);
}

#[test]
fn late_check_is_decided_after_the_charge_of_a_faster_thread() {
    assert_late_check_is_decided_after(None);
}

#[test]
fn late_check_is_decided_after_the_charge_by_another_quota() {
    let per_call = TokenBucket::new(Quota::per_second(1).burst(3)).for_clock(ClockKind::Monotonic);
    assert_late_check_is_decided_after(Some(&per_call));
}

// --- keys

const KEY: u64 = 7 << 16;
const ANOTHER: u64 = 8 << 16;

/// Creates one per second for each of a few keys; the first key has used its quota.
fn keyed(max_keys: usize) -> Keyed<TokenBucket> {
    let algorithm = TokenBucket::new(Quota::per_second(1).burst(1)).for_clock(ClockKind::Monotonic);
    let settings = Settings { max_keys, on_full: OnFull::Refuse, ..Settings::default() };
    let keyed = Keyed::new(algorithm, settings);
    assert!(keyed.apply_under_lock(None, KEY, &Check(1), at(0)).is_allowed());
    keyed
}

/// The first attempt found room, but another key took the last slot before the join.
#[test]
fn join_without_a_slot_reports_when_one_may_be_free() {
    let refused = join(&keyed(1), None, ANOTHER, wish_for_one(), None, || at(0)).expect_err("no slot");
    assert_eq!(refused, RefusalKind::TooManyKeys { retry_after: Wait::micros(SECOND) });
}

/// No caller reports the end of a kept reservation. A decision on any key removes it.
#[test]
fn past_reservations_are_removed_by_decisions_on_other_keys() {
    let keyed = keyed(64);
    for _ in 0..2 {
        let Ok(Joined::Later(ticket)) = join(&keyed, None, KEY, wish_for_one(), None, || at(0)) else {
            panic!("no quota is left")
        };
        keep(&keyed, KEY, ticket);
    }
    assert!(apply(&keyed, None, ANOTHER, &Peek(1), at(1)).is_some(), "the second is to come");
    assert!(apply(&keyed, None, ANOTHER, &Peek(1), at(2)).is_none(), "there is no reservation any more");
}
