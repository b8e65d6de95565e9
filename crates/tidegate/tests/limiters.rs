//! The public behaviour of `Limiter` and `KeyedLimiter`, on a manual clock.

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
fn clones_share_the_limit() {
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
fn keys_are_independent() {
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
fn operations_that_charge_nothing_add_no_key() {
    let (limiter, _) = hourly(3);
    assert_eq!(limiter.peek(&1).remaining(), 2);
    assert_eq!(limiter.cost(0).check(&2).remaining(), 3);
    assert_eq!(limiter.cost(4).check(&3).outcome, Outcome::Never);
    limiter.cost(1).refund(&4);
    limiter.reset(&5);
    assert_eq!(limiter.stats().keys, 0);
}

/// The clock steps back after the refund; a key that the refund had stored would then be two of ten in debt.
#[test]
fn refund_to_an_unused_key_changes_nothing_in_either_limiter() {
    let clock = SettableClock::new();
    let one = Limiter::new(Quota::per_second(10)).with_clock(clock.clone());
    let many = KeyedLimiter::<u64>::new(Quota::per_second(10)).with_clock(clock.clone());
    clock.set(Micros::new(1_000_000_000));
    one.cost(5).refund();
    many.cost(5).refund(&1);
    clock.set(Micros::new(999_300_000));
    assert_eq!((one.cost(0).peek().remaining(), many.cost(0).peek(&1).remaining()), (10, 10));
}

/// Every algorithm, with refunds, while the clock steps back and forth.
#[test]
fn limiter_and_keyed_limiter_agree_while_the_clock_steps_back() {
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
fn every_operation_applies_to_its_key() {
    let (limiter, clock) = hourly(10);
    assert_eq!(limiter.cost(4).take(&1).amount, 4);
    assert_eq!(limiter.cost(9).take(&1).amount, 6);
    assert_eq!(limiter.cost(2).force(&1).remaining(), 0);
    assert_eq!(limiter.check(&1).retry_after(), Some(Wait::micros(3 * 360_000_000))); // two in debt, plus one
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
    assert!(!limiter.check(&3).is_allowed(), "a key in the table is decided by its own state");

    clock.advance(SECOND);
    assert!((10..20).all(|key| limiter.check(&key).is_allowed()));
    let stats = limiter.stats();
    assert_eq!((stats.keys, stats.evicted, stats.refused), (10, 10, 1));
}

#[test]
fn reset_key_makes_room_immediately() {
    let (limiter, _) = hourly(1);
    let limiter = limiter.on_full(OnFull::Refuse).max_keys(2);
    assert!(limiter.check(&1).is_allowed() && limiter.check(&2).is_allowed());
    assert!(!limiter.check(&3).is_allowed());
    limiter.reset(&1);
    assert!(limiter.check(&3).is_allowed());
}

#[test]
fn large_states_fill_up_to_max_keys() {
    let clock = ManualClock::new();
    let log = SlidingLog::new(Quota::per_hour(100));
    let limiter = KeyedLimiter::<u64, _>::with(log).max_keys(5_000).with_clock(clock);
    assert!((0..5_000).all(|key| limiter.check(&key).is_allowed()));
    assert_eq!(limiter.check(&5_000).source, Source::Closed);
}

#[test]
fn check_each_names_the_binding_rule() {
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
fn switching_per_call_quotas_yields_no_extra_burst() {
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
fn change_keeps_usage_also_when_states_change_size() {
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
fn sliding_window_keeps_its_counts_when_it_gets_more_cells() {
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
fn observer_sees_decisions_and_their_rule() {
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
fn clock_set_back_neither_adds_quota_nor_locks_out() {
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
fn string_key_is_found_by_its_borrowed_forms() {
    let limiter = KeyedLimiter::<String>::new(Quota::per_hour(2)).with_clock(ManualClock::new());
    assert!(limiter.check("alice").is_allowed());
    assert!(limiter.check(&String::from("alice")).is_allowed());
    assert!(!limiter.check("alice").is_allowed());
}

#[test]
fn per_call_rule_reads_the_state_written_by_another_rule() {
    let (limiter, clock) = hourly(60);
    let slower = || limiter.by(TokenBucket::new(Quota::per_hour(6)));
    assert_eq!(slower().cost(2).check(&7).remaining(), 4); // a new key: 20 minutes in debt
    assert_eq!(limiter.cost(0).peek(&7).remaining(), 40);
    assert_eq!(limiter.cost(10).check(&7).remaining(), 30); // 30 minutes
    assert_eq!(slower().cost(0).peek(&7).remaining(), 3);
    assert_eq!(slower().cost(4).check(&7).outcome, Outcome::RetryAfter(Wait::micros(600 * 1_000_000)));
    assert_eq!(slower().cost(0).peek(&7).remaining(), 3, "a denial charges nothing");
    clock.advance(600 * SECOND);
    assert_eq!(slower().cost(4).check(&7).remaining(), 0);
    slower().cost(6).refund(&7);
    assert_eq!(limiter.cost(0).peek(&7).remaining(), 60);
}

#[test]
fn per_call_rule_with_another_state_size_is_ignored() {
    let limiter = KeyedLimiter::<u64>::new(Quota::per_hour(2)); // one word on the steady clock
    let wide = || limiter.by(TokenBucket::new(Quota::per_second(999_983))); // two
    assert_eq!(wide().check(&7).limit(), 2);
    assert!(wide().check(&7).is_allowed());
    assert!(!wide().check(&7).is_allowed());
    assert!(!limiter.check(&7).is_allowed());
}
