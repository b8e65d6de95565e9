//! What a program sees of the limiters: days in their lives, on a clock that the test moves.

#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use random::Random;
use tidegate::{
    Decision, FixedWindow, KeyedLimiter, Limiter, ManualClock, Micros, Observer, OnFull, Outcome,
    PerCallBucket, Quota, Rule, RuleId, SettableClock, SlidingLog, SlidingWindow, Source, TokenBucket, Wait,
};

const SECOND: Duration = Duration::from_secs(1);

fn hourly(limit: u64) -> (KeyedLimiter<u64, TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (KeyedLimiter::new(Quota::per_hour(limit)).with_clock(clock.clone()), clock)
}

#[test]
fn a_clone_is_another_handle_on_the_same_limit() {
    let limiter = Limiter::new(Quota::per_hour(2)).with_clock(ManualClock::new());
    let clone = limiter.clone();
    assert!(limiter.check().is_allowed());
    assert!(clone.check().is_allowed());
    assert!(!limiter.check().is_allowed());

    let (keyed, _) = hourly(1);
    assert!(keyed.clone().check(&7).is_allowed());
    assert!(!keyed.check(&7).is_allowed());
}

#[test]
fn keys_do_not_touch_each_other() {
    let (limiter, _) = hourly(3);
    for key in 0..10_000 {
        assert_eq!(limiter.cost(2).check(&key).remaining(), 1, "of key {key}");
    }
    for key in 0..10_000 {
        assert!(!limiter.cost(2).check(&key).is_allowed(), "key {key}");
        assert!(limiter.check(&key).is_allowed(), "key {key}");
    }
    assert_eq!(limiter.stats().keys, 10_000);
}

#[test]
fn asking_leaves_no_trace_of_a_key() {
    let (limiter, _) = hourly(3);
    assert_eq!(limiter.peek(&1).remaining(), 2);
    assert_eq!(limiter.cost(0).check(&2).remaining(), 3);
    assert_eq!(limiter.cost(4).check(&3).outcome, Outcome::Never);
    limiter.cost(1).refund(&4);
    limiter.reset(&5);
    assert_eq!(limiter.stats().keys, 0);
}

/// A step back of 200 ms, after which a key that had been written down would owe two of ten.
#[test]
fn a_refund_to_a_key_never_used_changes_nothing_in_either_limiter() {
    let clock = SettableClock::new();
    let one = Limiter::new(Quota::per_second(10)).with_clock(clock.clone());
    let many = KeyedLimiter::<u64>::new(Quota::per_second(10)).with_clock(clock.clone());
    clock.set(Micros::new(1_000_000_000));
    one.cost(5).refund();
    many.cost(5).refund(&1);
    clock.set(Micros::new(999_300_000));
    assert_eq!((one.cost(0).peek().remaining(), many.cost(0).peek(&1).remaining()), (10, 10));
}

/// Every algorithm, with refunds, while the clock steps back and comes again.
#[test]
fn one_state_and_one_of_many_keys_answer_alike_whatever_the_clock_does() {
    let rules = [
        "7/s burst 9",
        "3/s burst 1",
        "leaky_queue 10/s queue 4 delay 1",
        "leaky_queue 10/s queue 4 nginx",
        "stepped_bucket 3/s burst 7",
        "fixed_window 5/s",
        "fixed_window 5/s from first hit",
        "sliding_log 5/s",
        "sliding_window 5/s cells 5",
        "sliding_window 5/s cells 4 interpolated",
        "sliding_window 5/s cells 4 plain",
    ];
    for text in rules {
        let (clock, mut random) = (SettableClock::new(), Random::seeded(1));
        let rule: Rule = text.parse().expect("a rule");
        let one = Limiter::with(rule).with_clock(clock.clone());
        let many = KeyedLimiter::<u64, _>::with(rule).with_clock(clock.clone());
        let mut now = 1_000_000_000_000_u64;
        for step in 0..20_000 {
            now = match random.below(8) {
                0 => now - random.below(100_000),
                1 => now - random.below(3_000_000),
                2 => now + random.below(3_000_000),
                _ => now + random.below(200_000),
            };
            clock.set(Micros::new(now));
            let cost = u32::try_from(random.below(7)).expect("a small cost");
            let (one, many) = (one.cost(cost), many.cost(cost));
            match random.below(6) {
                0 | 1 => {
                    one.refund();
                    many.refund(&1);
                    assert_eq!(one.peek(), many.peek(&1), "{text}: step {step} at {now}");
                }
                2 => assert_eq!(one.force(), many.force(&1), "{text}: step {step} at {now}"),
                _ => assert_eq!(one.check(), many.check(&1), "{text}: step {step} at {now}"),
            }
        }
    }
}

#[test]
fn every_verb_reaches_its_key() {
    let (limiter, clock) = hourly(10);
    assert_eq!(limiter.cost(4).take(&1).amount, 4);
    assert_eq!(limiter.cost(9).take(&1).amount, 6);
    assert_eq!(limiter.cost(2).force(&1).remaining(), 0);
    assert_eq!(limiter.check(&1).retry_after(), Some(Wait::micros(3 * 360_000_000))); // two in debt, and one more
    limiter.cost(5).refund(&1);
    assert_eq!(limiter.cost(0).peek(&1).remaining(), 3);
    clock.advance(Duration::from_secs(360));
    assert_eq!(limiter.cost(0).peek(&1).remaining(), 4);
    limiter.reset(&1);
    assert_eq!(limiter.check(&1).remaining(), 9);
}

#[test]
fn idle_keys_make_room_and_busy_ones_stay() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64>::new(Quota::per_second(1)).max_keys(10).on_full(OnFull::Refuse);
    let limiter = limiter.with_clock(clock.clone());
    assert!((0..10).all(|key| limiter.check(&key).is_allowed()));

    let refused = limiter.check(&10);
    assert_eq!((refused.source, refused.retry_after()), (Source::Closed, Some(Wait::micros(1_000_000))));
    assert!(!limiter.check(&3).is_allowed(), "who is here is told the truth");

    clock.advance(SECOND);
    assert!((10..20).all(|key| limiter.check(&key).is_allowed()));
    let stats = limiter.stats();
    assert_eq!((stats.keys, stats.evicted, stats.refused), (10, 10, 1));
}

#[test]
fn a_reset_key_makes_room_at_once() {
    let (limiter, _) = hourly(1);
    let limiter = limiter.on_full(OnFull::Refuse).max_keys(2);
    assert!(limiter.check(&1).is_allowed() && limiter.check(&2).is_allowed());
    assert!(!limiter.check(&3).is_allowed());
    limiter.reset(&1);
    assert!(limiter.check(&3).is_allowed());
}

#[test]
fn large_states_reach_the_cap_too() {
    let clock = ManualClock::new();
    let log = SlidingLog::new(Quota::per_hour(100));
    let limiter = KeyedLimiter::<u64, _>::with(log).max_keys(5_000).with_clock(clock);
    assert!((0..5_000).all(|key| limiter.check(&key).is_allowed()));
    assert_eq!(limiter.check(&5_000).source, Source::Closed);
}

#[test]
fn a_policy_names_the_rule_that_was_binding() {
    let clock = ManualClock::new();
    let rules = (TokenBucket::new(Quota::per_second(2)), FixedWindow::new(Quota::per_day(3)));
    let limiter = KeyedLimiter::<String, _>::with(rules).with_clock(clock.clone());
    assert!(limiter.cost(2).check("a").is_allowed());

    let hasty = limiter.cost(1).check_each("a");
    assert_eq!((hasty.decision.rule, hasty.decision.retry_after()), (RuleId(0), Some(Wait::micros(500_000))));
    assert_eq!(hasty.rules[1].remaining(), 1, "the other rule was charged nothing");

    clock.advance(SECOND);
    assert!(limiter.check("a").is_allowed());
    let spent = limiter.cost(1).check_each("a");
    assert_eq!((spent.decision.rule, spent.rules[0].remaining()), (RuleId(1), 1));
}

#[test]
fn changing_plans_back_and_forth_yields_no_burst() {
    let (free, paid) = (Quota::per_hour(10), Quota::per_hour(100));
    let limiter = KeyedLimiter::<u64, _>::with(PerCallBucket::new(free)).with_clock(ManualClock::new());
    let mut passed = 0;
    for _ in 0..50 {
        passed += limiter.quota(paid).cost(100).take(&1).amount;
        passed += limiter.quota(free).cost(100).take(&1).amount;
    }
    assert_eq!(passed, 100);
    assert_eq!(limiter.quota(paid).cost(1).check(&2).remaining(), 99);
    limiter.quota(free).cost(3).refund(&1);
    assert_eq!(limiter.quota(paid).cost(0).peek(&1).remaining(), 3);
    assert_eq!(limiter.quota(paid).cost(5).force(&1).remaining(), 0);
}

#[test]
fn a_change_keeps_what_was_used_also_where_states_get_another_size() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64>::new(Quota::per_second(10)).with_clock(clock);
    for key in 0..3_000 {
        let _ = limiter.cost(7).check(&key);
    }
    // 999,983 has no common divisor with a million: its states take two words instead of one.
    for quota in [Quota::per_second(20), Quota::per_second(999_983), Quota::per_second(12)] {
        limiter.change(TokenBucket::new(quota));
        for key in 0..3_000 {
            assert_eq!(limiter.cost(0).peek(&key).remaining(), quota.limit() - 7, "{quota}, key {key}");
        }
    }
    assert_eq!(limiter.stats().keys, 3_000);
}

#[test]
fn a_window_keeps_its_counts_when_it_gets_more_cells() {
    let day = Quota::per_day(10);
    let limiter = KeyedLimiter::<u64, _>::with(SlidingWindow::new(day, 4)).with_clock(ManualClock::new());
    assert!(limiter.cost(6).check(&1).is_allowed());
    limiter.change(SlidingWindow::new(day, 24));
    assert_eq!(limiter.check(&1).remaining(), 3);
}

#[derive(Default)]
struct Tally {
    allowed: AtomicU64,
    denied: [AtomicU64; 2],
}

impl Observer for Tally {
    fn allowed(&self, _: &Decision) {
        self.allowed.fetch_add(1, Ordering::Relaxed);
    }

    fn denied(&self, decision: &Decision) {
        self.denied[usize::from(decision.rule.0)].fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn an_observer_sees_what_was_decided_and_by_which_rule() {
    let tally = Arc::new(Tally::default());
    let rules = (TokenBucket::new(Quota::per_second(2)), FixedWindow::new(Quota::per_day(3)));
    let clock = ManualClock::new();
    let limiter = Limiter::with(rules).with_clock(clock.clone()).with_observer(tally.clone());
    let _ = (limiter.check(), limiter.check(), limiter.check(), limiter.peek());
    clock.advance(SECOND);
    let _ = (limiter.check(), limiter.check());
    let [by_bucket, by_window] =
        [&tally.denied[0], &tally.denied[1]].map(|count| count.load(Ordering::Relaxed));
    assert_eq!((tally.allowed.load(Ordering::Relaxed), by_bucket, by_window), (3, 1, 1));
}

#[test]
fn a_clock_that_is_set_back_neither_mints_nor_locks_out() {
    let clock = SettableClock::new();
    let limiter = KeyedLimiter::<u64>::new(Quota::per_second(10)).with_clock(clock.clone());
    clock.set(tidegate::Micros::new(3_600_000_000));
    assert!(limiter.cost(10).check(&1).is_allowed());
    clock.set(tidegate::Micros::new(0));
    assert_eq!(limiter.check(&1).retry_after(), Some(Wait::micros(100_000)));
    clock.set(tidegate::Micros::new(100_000));
    assert!(limiter.check(&1).is_allowed());
    assert!(!limiter.check(&1).is_allowed());
}

#[test]
fn a_text_key_is_found_by_any_of_its_borrowed_forms() {
    let limiter = KeyedLimiter::<String>::new(Quota::per_hour(2)).with_clock(ManualClock::new());
    assert!(limiter.check("alice").is_allowed());
    assert!(limiter.check(&String::from("alice")).is_allowed());
    assert!(!limiter.check("alice").is_allowed());
}

#[test]
fn a_setting_that_comes_with_the_call_reads_the_state_as_it_was_written() {
    let (limiter, clock) = hourly(60);
    let slower = || limiter.by(TokenBucket::new(Quota::per_hour(6)));
    assert_eq!(slower().cost(2).check(&7).remaining(), 4); // a key never seen: owes for 20 minutes
    assert_eq!(limiter.cost(0).peek(&7).remaining(), 40);
    assert_eq!(limiter.cost(10).check(&7).remaining(), 30); // 30 minutes
    assert_eq!(slower().cost(0).peek(&7).remaining(), 3);
    assert_eq!(slower().cost(4).check(&7).outcome, Outcome::RetryAfter(Wait::micros(600 * 1_000_000)));
    assert_eq!(slower().cost(0).peek(&7).remaining(), 3, "a refusal charges nothing");
    clock.advance(600 * SECOND);
    assert_eq!(slower().cost(4).check(&7).remaining(), 0);
    slower().cost(6).refund(&7);
    assert_eq!(limiter.cost(0).peek(&7).remaining(), 60);
}

#[test]
fn a_setting_whose_states_are_of_another_size_is_not_asked() {
    let limiter = KeyedLimiter::<u64>::new(Quota::per_hour(2)); // one word on the steady clock
    let wide = || limiter.by(TokenBucket::new(Quota::per_second(999_983))); // two
    assert_eq!(wide().check(&7).limit(), 2);
    assert!(wide().check(&7).is_allowed());
    assert!(!wide().check(&7).is_allowed());
    assert!(!limiter.check(&7).is_allowed());
}
