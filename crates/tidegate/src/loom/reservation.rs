//! One state, two threads: one makes a reservation, the other decides.
//!
//! Nine of ten are used and nothing is refilled within the hour. The two must be ordered, in any order: the decision is
//! made before the reservation, which then waits longer, or after it, and then the decision is held back.

use loom::sync::Arc;
use std::task::Waker;
use tidegate_core::{Algorithm, ClockKind, Decision, FixedWindow, Keep, Micros, Quota, TokenBucket};

use super::{INTERRUPTIONS, both, model};
use crate::operation::{Check, Force, Peek};
use crate::reservation::{AcquireRequest, Joined, Progress, ReservationTicket, cancel, join, keep, poll};
use crate::state_cell::{DecisionTime, SOLE_KEY, StateCell};

const START: DecisionTime = DecisionTime { now: Micros::ZERO, clock: ClockKind::Monotonic };
/// The refill time of one token, at ten per hour.
const TOKEN: u64 = 360_000_000;

fn bucket(quota: Quota) -> TokenBucket {
    TokenBucket::new(quota).for_clock(ClockKind::Monotonic)
}

/// A limiter with a state of one word.
fn narrow() -> TokenBucket {
    bucket(Quota::per_hour(10))
}

/// The same limiter with a state of two words, because of a second rule that never binds.
type Both = (TokenBucket, TokenBucket);

fn nine_used<A: Algorithm>(algorithm: A) -> Arc<StateCell<A>> {
    let shared = StateCell::new(algorithm, 8);
    assert!(shared.apply(&Check(9), START).is_allowed());
    Arc::new(shared)
}

fn check<A: Algorithm>(shared: &StateCell<A>) -> Decision {
    shared.apply_fast(&Check(1), START.now).unwrap_or_else(|| shared.apply(&Check(1), START))
}

fn reserve<A: Algorithm>(shared: &StateCell<A>, cost: u32) -> ReservationTicket {
    let acquire_request = AcquireRequest { cost, deadline: Micros::MAX };
    match join(shared, None, SOLE_KEY, acquire_request, None, || START).expect("the request is scheduled") {
        Joined::Later(ticket) => ticket,
        Joined::Now(_) => panic!("too little quota is left for it"),
    }
}

fn give_back<A: Algorithm>(shared: &StateCell<A>, ticket: ReservationTicket) {
    cancel(shared, SOLE_KEY, ticket, || START);
}

fn retry<A: Algorithm>(shared: &StateCell<A>) -> u64 {
    shared.apply(&Peek(1), START).retry_after().expect("nothing is left").as_micros()
}

fn reserve_meets_check<A: Algorithm + 'static>(algorithm: fn() -> A) {
    model(INTERRUPTIONS, move || {
        let shared = nine_used(algorithm());
        let (ticket, checked) = both(&shared, |shared| reserve(shared, 2), check);
        let tokens = 1 + u64::from(checked.is_allowed());
        assert_eq!(
            ticket.ready().get(),
            tokens * TOKEN,
            "it waits for what the other took, or holds it back"
        );
        assert_eq!(retry(&shared), (tokens + 1) * TOKEN);
        if !checked.is_allowed() {
            assert_eq!(checked.retry_after().map(|wait| wait.as_micros()), Some(2 * TOKEN));
        }
    });
}

#[test]
fn check_is_decided_before_a_reservation_or_denied() {
    reserve_meets_check(narrow);
    reserve_meets_check::<Both>(|| (narrow(), bucket(Quota::per_hour(20))));
}

/// The reserved window has room. A decision that missed the slow-path flag would find it.
#[test]
fn check_does_not_pass_in_a_reserved_future_window() {
    model(INTERRUPTIONS, || {
        let shared = nine_used(FixedWindow::new(Quota::per_hour(10)));
        let (ticket, checked) = both(&shared, |shared| reserve(shared, 2), check);
        assert_eq!(ticket.ready().get(), 10 * TOKEN, "the next hour");
        assert!(!checked.is_allowed() || checked.at() == START.now, "{checked:?}");
        assert_eq!(retry(&shared), 10 * TOKEN);
    });
}

#[test]
fn cancelled_reservation_leaves_the_remaining_quota_unchanged() {
    model(INTERRUPTIONS, || {
        let shared = nine_used(narrow());
        let there_and_back = |shared: &StateCell<_>| give_back(shared, reserve(shared, 2));
        let ((), checked) = both(&shared, there_and_back, check);
        let left = shared.apply(&Peek(0), START).remaining();
        assert_eq!(left, 1 - u64::from(checked.is_allowed()));
        assert!(!crate::reservation::StateStore::is_slow_path(&*shared), "there is no reservation any more");
    });
}

#[test]
fn charge_forced_during_a_cancelled_reservation_is_not_lost() {
    model(INTERRUPTIONS, || {
        let shared = nine_used(narrow());
        let there_and_back = |shared: &StateCell<_>| give_back(shared, reserve(shared, 2));
        both(&shared, there_and_back, |shared| shared.apply(&Force(1), START).is_allowed());
        // Forced before or after, it is one of ten. Forced in between, it is charged at the reserved instant.
        let retry = retry(&shared);
        assert!(retry == TOKEN || retry == 2 * TOKEN, "{retry}");
    });
}

#[test]
fn concurrent_reservations_get_distinct_instants() {
    model(INTERRUPTIONS, || {
        let shared = nine_used(narrow());
        let (one, other) = both(&shared, |shared| reserve(shared, 2), |shared| reserve(shared, 2));
        let mut instants = [one.ready().get(), other.ready().get()];
        instants.sort_unstable();
        assert_eq!(instants, [TOKEN, 3 * TOKEN]);
    });
}

/// One schedule ends and clears the slow-path flag, while another begins.
#[test]
fn slow_path_flag_stays_while_a_reservation_is_pending() {
    model(INTERRUPTIONS, || {
        let shared = nine_used(narrow());
        let first = reserve(&shared, 2);
        both(
            &shared,
            move |shared| give_back(shared, first),
            |shared| keep(shared, SOLE_KEY, reserve(shared, 2)),
        );
        assert!(crate::reservation::StateStore::is_slow_path(&*shared));
        assert!(!check(&shared).is_allowed());
    });
}

#[test]
fn quota_change_keeps_a_concurrent_reservation() {
    model(2, || {
        let shared = nine_used(narrow());
        let twice = || bucket(Quota::per_hour(20).burst(10));
        let (ticket, ()) = both(
            &shared,
            |shared| reserve(shared, 2),
            move |shared| shared.change(Keep::Used, twice(), || START),
        );
        let ready = ticket.ready().get();
        assert!(ready == TOKEN || ready == TOKEN / 2, "by the old quota or by the new: {ready}");
        assert!(!check(&shared).is_allowed(), "the quota is reserved");
    });
}

/// A waiter that moves up notices it: it is woken, or it polls after the other has left.
#[test]
fn waiter_moves_up_when_the_one_ahead_leaves() {
    model(INTERRUPTIONS, || {
        let shared = nine_used(narrow());
        let first = reserve(&shared, 2);
        let acquire_request = AcquireRequest { cost: 1, deadline: Micros::MAX };
        let (_, ticket) = both(
            &shared,
            move |shared| give_back(shared, first),
            move |shared| {
                join(shared, None, SOLE_KEY, acquire_request, Some(Waker::noop().clone()), || START)
                    .expect("the request is scheduled")
            },
        );
        if let Joined::Later(ticket) = ticket {
            let poll = poll(&*shared, SOLE_KEY, ticket, Waker::noop(), || START);
            assert!(matches!(poll, Progress::Done(Ok(_))), "one was left all the time: {poll:?}");
        }
        assert_eq!(retry(&shared), TOKEN);
    });
}
