//! Laws of clocks: time that runs backwards gives nothing away, and locks nobody out for long.

mod random;
#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod wander;

use random::Random;
use tidegate_core::{Algorithm, Micros, Quota, Rule, SlidingLog, SlidingWindow, TokenBucket};
use wander::{RULES, Verbs, assert_bound, draw_cost, fresh, micros, rule, rules, steady_rules, wander};

#[test]
fn a_step_back_mints_nothing() {
    for rule in rules() {
        wander(&rule, Verbs::All, |it| {
            let back = it.now.minus(it.random.below(100_000_000));
            let (before, after) = (rule.peek(it.state, it.now, 0), rule.peek(it.state, back, 0));
            assert!(after.remaining() <= before.remaining(), "{rule:?} from {} to {back}", it.now);
        });
    }
}

#[test]
fn a_step_back_locks_nobody_out_for_longer_than_an_empty_limit_takes_to_fill() {
    for (text, longest) in RULES {
        let rule = rule(text);
        wander(&rule, Verbs::WithoutDebt, |mut it| {
            let cost = draw_cost(&rule, &mut it);
            let back = Micros::new(it.random.below(it.now.get()));
            let mut state = it.state.to_vec();
            let decision = rule.decide(&mut state[..], back, cost);
            assert!(micros(decision.reset_after()) <= longest, "{text} at {back}: {decision:?}");
            let wait = decision.retry_after().unwrap_or_default();
            assert!(micros(wait) <= longest, "{text} at {back}: {decision:?}");
            // And what was said stays true of the state that was left behind.
            if !decision.is_allowed() {
                assert_eq!(rule.peek(&state[..], back, cost), decision, "{text} at {back}");
            }
        });
    }
}

#[test]
fn the_longest_lock_out_is_as_long_as_the_table_says() {
    for (text, longest) in RULES {
        let rule = rule(text);
        let mut state = fresh(&rule);
        let all = u32::try_from(rule.peek(&state[..], Micros::ZERO, 0).limit()).unwrap();
        // All of it at the very beginning of a window, a step and a cell. A step at 300 ms leaves 300 ms.
        let decision = rule.decide(&mut state[..], Micros::ZERO, all);
        let offset = if text.contains("offset 300ms") { 700_000 } else { 0 };
        let offset = if text.contains("offset 10s") { 50_000_000 } else { offset };
        assert_eq!(micros(decision.reset_after()) + offset, longest, "{text}");
    }
}

/// What passes when the clock keeps stepping back, by the time that really went by.
fn passed_on_a_bad_clock<A: Algorithm>(limit: &A, period: u64, seed: u64) -> Vec<(u64, u64)> {
    let (mut random, mut state) = (Random::seeded(seed), fresh(limit));
    let (mut clock, mut real, mut passed) = (1_000_000_000_000, 0, Vec::new());
    for _ in 0..1_200 {
        let wish = if random.one_in(2) { 1 } else { u32::MAX };
        let amount = limit.take(&mut state[..], Micros::new(clock), wish).amount;
        passed.push((real, u64::from(amount)));
        let forward = if random.one_in(3) { 0 } else { random.below(period / 2) };
        clock += forward;
        real += forward;
        if random.one_in(5) {
            clock -= random.below(period * 3);
        }
    }
    passed
}

#[test]
fn a_clock_that_keeps_stepping_back_still_admits_no_more_than_real_time_allows() {
    let quota = Quota::per_second(7).burst(4);
    let bucket_bound = |stretch: u64| 4 + stretch * 7 / 1_000_000;
    let window_bound = |stretch: u64| if stretch < 1_000_000 { 7 } else { u64::MAX };
    for seed in 0..20 {
        let bucket = TokenBucket::new(quota);
        assert_bound(&bucket, &passed_on_a_bad_clock(&bucket, 1_000_000, seed), bucket_bound);
        let log = SlidingLog::new(quota);
        assert_bound(&log, &passed_on_a_bad_clock(&log, 1_000_000, seed), window_bound);
        for cells in [1, 5, 7] {
            let window = SlidingWindow::new(quota, cells);
            assert_bound(&window, &passed_on_a_bad_clock(&window, 1_000_000, seed), window_bound);
        }
    }
}

// === Refunds ===

/// Whether the clock goes on from there, or steps back and comes again. A bucket that would owe more than it holds is forgiven
/// the step; with a refund it may owe less than that, and then it waits for the clock, as after a smaller charge.
#[test]
fn a_refund_never_leaves_a_key_worse_off_wherever_the_clock_goes() {
    for rule in rules() {
        wander(&rule, Verbs::All, |mut it| {
            let cost = draw_cost(&rule, &mut it);
            let mut now = it.now;
            let [mut with, mut without] = [it.state.to_vec(), it.state.to_vec()];
            if it.random.one_in(2) {
                now = now.minus(it.random.below(2_000_000));
                rule.settle(&mut with[..], now);
                rule.settle(&mut without[..], now);
            }
            rule.refund(&mut with[..], now, cost);
            for at in [now, now.plus(it.random.below(90_000_000)), now.minus(it.random.below(90_000_000))] {
                let mut settled = without.clone();
                rule.settle(&mut settled[..], at);
                if settled != without && matches!(rule, Rule::TokenBucket(_) | Rule::LeakyQueue(_)) {
                    continue;
                }
                let [with, without] = [&with, &without].map(|state| rule.peek(&state[..], at, 0));
                assert!(with.remaining() >= without.remaining(), "{rule:?}: {cost} at {now}, seen at {at}");
            }
        });
    }
}

#[test]
fn a_refund_to_a_key_that_owes_nothing_changes_nothing() {
    for rule in rules() {
        let mut never_used = fresh(&rule);
        rule.refund(&mut never_used[..], Micros::new(1_000_000_000), 5);
        assert_eq!(never_used, fresh(&rule), "{rule:?}");
        wander(&rule, Verbs::All, |it| {
            let at_rest = rule.idle_at(it.state).max(it.now);
            let mut state = it.state.to_vec();
            rule.refund(&mut state[..], at_rest, 5);
            assert_eq!(state, it.state, "{rule:?} at {at_rest}");
        });
    }
}

#[test]
fn a_key_that_has_everything_back_is_as_if_never_seen() {
    for rule in rules() {
        wander(&rule, Verbs::All, |it| {
            let mut state = it.state.to_vec();
            if rule.idle_at(&state[..]) > it.now {
                rule.refund(&mut state[..], it.now, u32::MAX);
                assert_eq!(rule.idle_at(&state[..]), Micros::ZERO, "{rule:?} at {}", it.now);
                let back = it.now.minus(it.random.below(90_000_000));
                let left = rule.peek(&state[..], back, 0);
                assert_eq!(left.remaining(), left.limit(), "{rule:?} from {} to {back}", it.now);
            }
        });
    }
}

/// Nine at once, seven a second. Had the refund written down that the key owed nothing *at 1000 s*, a second before it would owe
/// seven.
#[test]
fn what_was_taken_and_given_back_is_not_missed_after_a_step_back() {
    let at = |seconds: u64| Micros::new(seconds * 1_000_000);
    let bucket = rule("7/s burst 9");
    let mut state = fresh(&bucket);
    assert!(bucket.decide(&mut state[..], at(1_000), 4).is_allowed());
    bucket.refund(&mut state[..], at(1_000), 4);
    assert_eq!(bucket.peek(&state[..], at(999), 3).remaining(), 6);
    assert!(bucket.decide(&mut state[..], at(999), 3).is_allowed());
}

#[test]
fn what_a_state_has_seen_is_past_and_who_decides_no_earlier_pulls_nothing_back() {
    for rule in steady_rules() {
        wander(&rule, Verbs::All, |it| {
            let seen = rule.seen(it.state);
            assert!(seen <= it.now, "{rule:?} has seen {seen}, after {}", it.now);
            let late_reader = seen.max(it.now.minus(it.random.below(3_000_000)));
            let mut settled = it.state.to_vec();
            rule.settle(&mut settled[..], late_reader);
            assert_eq!(settled, it.state, "{rule:?} is pulled back at {late_reader}, having seen {seen}");
        });
    }
}

/// Three at once, of which two are used at 200 ms. At 100 ms nothing is left; before, there would be less than nothing, and
/// so it is as it was when they were used.
#[test]
fn a_step_back_is_forgiven_only_if_there_would_be_less_than_nothing() {
    let bucket = TokenBucket::new(Quota::per_second(10).burst(3));
    let mut state = [0; 3];
    assert!(bucket.decide(&mut state, Micros::new(200_000), 2).is_allowed());
    let left = |now| bucket.peek(&state, Micros::new(now), 0).remaining();
    assert_eq!([200_000, 199_999, 100_000, 99_999].map(left), [1, 0, 0, 1]);
}
