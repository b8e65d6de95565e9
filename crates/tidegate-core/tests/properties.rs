//! Properties of every limit, whatever its algorithm, checked along random walks.
//!
//! The oracle proves the numbers of each algorithm. A property needs no numbers: a refusal changes nothing, a
//! reported wait is exact to the microsecond, a charge can be refunded. More properties are in files of their own:
//! clocks that step back (`properties_clock_steps.rs`), limits that change (`properties_migration.rs`), the order of
//! states and decisions (`properties_ordering.rs`), and extreme values (`properties_extremes.rs`).

mod random;
#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod random_walk;

use std::any::TypeId;
use std::fmt::Debug;

use random::Random;
use random_walk::{
    Operations, Step, act, draw_cost, fresh, micros, pause, policies, random_walk, rule, rules, shown,
    steady_rules,
};
use tidegate_core::{
    Algorithm, Cells, Decision, Gcra, LeakyMeter, Micros, Outcome, Quota, Rule, SlidingWindow, TokenBucket,
};

// === Denial changes nothing ===

fn refusals_change_nothing<A: Algorithm + ?Sized + Debug>(limit: &A) {
    let mut refusals = 0;
    random_walk(limit, Operations::All, |mut it| {
        let cost = draw_cost(limit, &mut it);
        let mut after = it.state.to_vec();
        if !limit.decide(&mut after[..], it.now, cost).is_allowed() {
            refusals += 1;
            assert_eq!(after, it.state, "{limit:?} refused {cost} at {}", it.now);
        }
    });
    assert!(refusals > 100, "{limit:?} refused only {refusals} times");
}

#[test]
fn denial_changes_nothing() {
    rules().for_each(|rule| refusals_change_nothing(&rule));
    policies().for_each(|policy| refusals_change_nothing(policy.as_slice()));
}

fn cost_zero_changes_nothing<A: Algorithm + ?Sized + Debug>(limit: &A) {
    random_walk(limit, Operations::All, |it| {
        // Whatever the clock says, forward or back.
        let now = it.now.plus(it.random.below(5_000_000)).minus(it.random.below(10_000_000));
        let mut after = it.state.to_vec();
        let peeked = limit.peek(it.state, now, 0);
        assert_eq!(peeked.outcome, Outcome::Allowed);
        assert_eq!(limit.decide(&mut after[..], now, 0), peeked, "{limit:?}");
        assert_eq!(limit.force(&mut after[..], now, 0), peeked, "{limit:?}");
        limit.refund(&mut after[..], now, 0);
        assert_eq!(limit.take(&mut after[..], now, 0).decision, peeked, "{limit:?}");
        assert_eq!(after, it.state, "{limit:?} at {now}");
    });
}

#[test]
fn a_cost_of_zero_always_passes_and_changes_nothing() {
    rules().for_each(|rule| cost_zero_changes_nothing(&rule));
    policies().for_each(|policy| cost_zero_changes_nothing(policy.as_slice()));
}

// === An idle state equals a fresh state ===

/// The decisions of a limit on the same requests from `start` on.
fn future<A: Algorithm + ?Sized>(limit: &A, state: &[u64], start: Micros, seed: u64) -> Vec<Decision> {
    let (mut state, mut random, mut now) = (state.to_vec(), Random::seeded(seed), start);
    (0..12)
        .map(|_| {
            let decision = act(limit, Operations::All, &mut state, now, &mut random);
            now = now.plus(pause(limit, &state, now, &mut random));
            decision
        })
        .collect()
}

fn idle_is_fresh<A: Algorithm + ?Sized + Debug>(limit: &A) {
    let mut waited = 0;
    random_walk(limit, Operations::All, |it| {
        let idle = limit.idle_at(it.state);
        let (then, seed) = (idle.max(it.now), it.random.next());
        let fresh = fresh(limit);
        assert_eq!(
            future(limit, it.state, then, seed),
            future(limit, &fresh, then, seed),
            "{limit:?} is idle at {idle}"
        );
        if idle > it.now {
            waited += 1;
            let before = idle.minus(1);
            let (old, new) = (shown(limit, it.state, before, 0), shown(limit, &fresh, before, 0));
            assert_ne!(old, new, "{limit:?} was idle before {idle}");
        }
    });
    assert!(waited > 100, "{limit:?} was in use only {waited} times");
}

#[test]
fn a_state_is_fresh_from_the_instant_it_is_idle_and_not_before() {
    rules().for_each(|rule| idle_is_fresh(&rule));
    policies().for_each(|policy| idle_is_fresh(policy.as_slice()));
}

// === A reported wait is exact ===

fn waits_are_exact<A: Algorithm + ?Sized + Debug>(limit: &A) {
    let mut waits = 0;
    random_walk(limit, Operations::All, |mut it| {
        let cost = draw_cost(limit, &mut it);
        let Some(wait) = limit.peek(it.state, it.now, cost).retry_after() else { return };
        waits += 1;
        let then = it.now.plus(micros(wait));
        let about = format!("{limit:?} reported that {cost} passes at {then}");
        assert!(limit.peek(it.state, then, cost).is_allowed(), "{about}");
        assert!(!limit.peek(it.state, then.minus(1), cost).is_allowed(), "{about}, but it passes earlier");
    });
    assert!(waits > 100, "{limit:?} refused only {waits} times");
}

#[test]
fn a_reported_wait_is_exact() {
    rules().for_each(|rule| waits_are_exact(&rule));
    policies().for_each(|policy| waits_are_exact(policy.as_slice()));
}

fn resets_are_exact(limit: &Rule) {
    random_walk(limit, Operations::All, |it| {
        let found = limit.peek(it.state, it.now, 0);
        let full_at = it.now.plus(micros(found.reset_after()));
        assert_eq!(limit.peek(it.state, full_at, 0).remaining(), found.limit(), "{limit:?} at {full_at}");
        if full_at > it.now {
            let before = limit.peek(it.state, full_at.minus(1), 0);
            assert!(before.remaining() < found.limit(), "{limit:?} was full before {full_at}");
        }
    });
}

#[test]
fn the_limit_is_full_at_the_reset_and_not_before() {
    rules().for_each(|rule| resets_are_exact(&rule));
}

// === n charges of 1 equal one charge of n ===

fn many_are_one<A: Algorithm + ?Sized + Debug>(limit: &A) {
    let mut compared = 0;
    random_walk(limit, Operations::All, |it| {
        let cost = u32::try_from(it.random.between(2, 6)).expect("a cost");
        let (mut at_once, mut one_by_one) = (it.state.to_vec(), it.state.to_vec());
        if limit.decide(&mut at_once[..], it.now, cost).is_allowed() {
            compared += 1;
            let all = (0..cost).all(|_| limit.decide(&mut one_by_one[..], it.now, 1).is_allowed());
            assert!(all, "{limit:?} at {}", it.now);
            assert_eq!(at_once, one_by_one, "{limit:?} passed {cost} at {}", it.now);
        } else {
            let _ = limit.force(&mut at_once[..], it.now, cost);
            for _ in 0..cost {
                let _ = limit.force(&mut one_by_one[..], it.now, 1);
            }
            // A unit without room in a log moves the head of its ring. Nothing else differs.
            let seed = it.random.next();
            let (one, other) =
                (future(limit, &at_once, it.now, seed), future(limit, &one_by_one, it.now, seed));
            assert_eq!(one, other, "{limit:?} was forced to {cost} at {}", it.now);
        }
    });
    let at_most_one_passes = limit.peek(&fresh(limit)[..], Micros::ZERO, 2).outcome == Outcome::Never;
    assert!(compared > 20 || at_most_one_passes, "{limit:?} passed only {compared} times");
}

#[test]
fn many_small_charges_equal_one_large_charge() {
    rules().for_each(|rule| many_are_one(&rule));
    policies().for_each(|policy| many_are_one(policy.as_slice()));
}

// === The fast path ===

fn fast_path_equals_slow_path(limit: &Rule, it: &mut Step<'_>) -> bool {
    let cost = if it.random.one_in(3) { 1 } else { draw_cost(limit, it) };
    let now = it.now.plus(it.random.below(3)).minus(it.random.below(4) * it.random.below(500_000));
    let Some((next, decision)) = limit.decide_word(it.state[0], now, cost) else { return false };
    let about = format!("{limit:?} at {now}, a cost of {cost}, {:?}", it.state);
    assert!(limit.last_seen(it.state) <= now, "{about}");
    let mut state = it.state.to_vec();
    assert_eq!(decision, limit.decide(&mut state[..], now, cost), "{about}");
    assert_eq!([next], state[..], "{about}");
    if decision.outcome == Outcome::Allowed {
        assert_eq!(limit.peek(&state[..], now, 0), decision, "the decision of a charged word: {about}");
    }
    true
}

#[test]
fn the_fast_path_for_one_word_decides_as_the_slow_path() {
    let mut taken = 0;
    for rule in steady_rules().filter(|rule| rule.words() == 1) {
        random_walk(&rule, Operations::All, |mut it| {
            for _ in 0..5 {
                taken += u32::from(fast_path_equals_slow_path(&rule, &mut it));
            }
        });
    }
    assert!(taken > 10_000, "the fast path was taken only {taken} times");
}

// === Taking and refunding ===

fn take_is_the_most_that_passes<A: Algorithm + ?Sized + Debug>(limit: &A) {
    random_walk(limit, Operations::All, |mut it| {
        let most = draw_cost(limit, &mut it);
        let mut state = it.state.to_vec();
        let taken = limit.take(&mut state[..], it.now, most);
        let about = format!("{limit:?} took {} of {most} at {}", taken.amount, it.now);
        assert!(taken.amount <= most, "{about}");
        assert!(limit.peek(it.state, it.now, taken.amount).is_allowed(), "{about}");
        if taken.amount < most {
            assert!(!limit.peek(it.state, it.now, taken.amount + 1).is_allowed(), "{about}");
        }
        let mut charged = it.state.to_vec();
        assert_eq!(limit.decide(&mut charged[..], it.now, taken.amount), taken.decision, "{about}");
        assert_eq!(charged, state, "{about}");
    });
}

#[test]
fn take_takes_the_most_that_would_pass() {
    rules().for_each(|rule| take_is_the_most_that_passes(&rule));
    policies().for_each(|policy| take_is_the_most_that_passes(policy.as_slice()));
}

#[test]
fn a_refund_never_raises_remaining_above_the_limit() {
    for rule in rules() {
        random_walk(&rule, Operations::All, |it| {
            let mut state = it.state.to_vec();
            let before = rule.peek(it.state, it.now, 0);
            rule.refund(&mut state[..], it.now, u32::MAX);
            let after = rule.peek(&state[..], it.now, 0);
            assert!(after.remaining() >= before.remaining(), "{rule:?}");
            let all = u32::try_from(after.limit()).expect("a limit");
            let taken = rule.take(&mut state[..], it.now, u32::MAX).amount;
            assert_eq!(u64::from(taken), after.remaining(), "{rule:?}");
            assert!(taken <= all, "{rule:?} took {taken}");
            assert!(!rule.decide(&mut state[..], it.now, 1).is_allowed(), "{rule:?}");
        });
    }
}

#[test]
fn a_charge_can_be_refunded_at_its_own_instant() {
    for rule in rules() {
        random_walk(&rule, Operations::WithoutDebt, |mut it| {
            let cost = draw_cost(&rule, &mut it);
            let mut state = it.state.to_vec();
            let before = rule.peek(it.state, it.now, 0).remaining();
            if rule.decide(&mut state[..], it.now, cost).is_allowed() {
                rule.refund(&mut state[..], it.now, cost);
                let after = rule.peek(&state[..], it.now, 0).remaining();
                // An oldest cell counts only in part, and a refund to it frees only that part.
                let is_exact = !format!("{rule:?}").contains("Interpolated");
                assert!(after == before || (!is_exact && after < before), "{rule:?}: {before}, then {after}");
            }
        });
    }
}

// === One algorithm, three names ===

#[test]
fn the_three_names_of_the_bucket_are_one_type() {
    assert_eq!(TypeId::of::<TokenBucket>(), TypeId::of::<Gcra>());
    assert_eq!(TypeId::of::<TokenBucket>(), TypeId::of::<LeakyMeter>());
    assert_eq!(rule("gcra 10/s burst 3"), rule("token_bucket 10/s burst 3"));
    assert_eq!(rule("leaky_meter 10/s burst 3"), rule("token_bucket 10/s burst 3"));
    assert_eq!(rule("10/s burst 3"), rule("token_bucket 10/s burst 3"));
}

#[test]
fn cells_are_strict_by_default() {
    let quota = Quota::per_second(5);
    assert_eq!(SlidingWindow::new(quota, 5), SlidingWindow::new(quota, 5).oldest(Cells::Strict));
    assert_eq!(rule("sliding_window 5/s cells 5"), rule("sliding_window 5/s cells 5 strict"));
}
