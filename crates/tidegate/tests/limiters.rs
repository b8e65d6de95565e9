//! The public behaviour of `Limiter` and `KeyedLimiter`, on a manual clock.

#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use random::Random;
use tidegate::algorithm::{FixedWindow, PerCallBucket, SlidingLog, SlidingWindow, TokenBucket};
use tidegate::clock::{Micros, SettableClock};
use tidegate::gate::RuleId;
use tidegate::stats::{Charge, Observer};
use tidegate::{Decision, KeyedLimiter, Limiter, ManualClock, OnFull, Outcome, Quota, Rule, Source, Wait};

const SECOND: Duration = Duration::from_secs(1);

fn hourly(limit: u64) -> (KeyedLimiter<u64, TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (KeyedLimiter::builder(Quota::per_hour(limit)).clock(clock.clone()).build(), clock)
}

#[test]
fn clones_share_the_limit() {
    let limiter = Limiter::builder(Quota::per_hour(2)).clock(ManualClock::new()).build();
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
        assert_eq!(limiter.request(&key).cost(2).check().remaining(), 1, "of key {key}");
    }
    for key in 0..10_000 {
        assert!(!limiter.request(&key).cost(2).check().is_allowed(), "key {key}");
        assert!(limiter.check(&key).is_allowed(), "key {key}");
    }
    assert_eq!(limiter.stats().keys, 10_000);
}

#[test]
fn operations_that_charge_nothing_add_no_key() {
    let (limiter, _) = hourly(3);
    assert_eq!(limiter.request(&1).peek().remaining(), 2);
    assert_eq!(limiter.request(&2).cost(0).check().remaining(), 3);
    assert_eq!(limiter.request(&3).cost(4).check().outcome, Outcome::Never);
    limiter.request(&4).cost(1).refund();
    limiter.request(&5).reset();
    assert_eq!(limiter.stats().keys, 0);
}

/// The clock steps back after the refund; a key that the refund had stored would then be two of ten in debt.
#[test]
fn refund_to_an_unused_key_changes_nothing_in_either_limiter() {
    let clock = SettableClock::new();
    let one = Limiter::builder(Quota::per_second(10)).clock(clock.clone()).build();
    let many = KeyedLimiter::<u64>::builder(Quota::per_second(10)).clock(clock.clone()).build();
    clock.set(Micros::new(1_000_000_000));
    one.request().cost(5).refund();
    many.request(&1).cost(5).refund();
    clock.set(Micros::new(999_300_000));
    assert_eq!(
        (one.request().cost(0).peek().remaining(), many.request(&1).cost(0).peek().remaining()),
        (10, 10)
    );
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
        let one = Limiter::builder_with(rule).clock(clock.clone()).build();
        let many = KeyedLimiter::<u64, _>::builder_with(rule).clock(clock.clone()).build();
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
            let (one, many) = (|| one.request().cost(cost), || many.request(&1).cost(cost));
            match random.below(6) {
                0 | 1 => {
                    one().refund();
                    many().refund();
                    assert_eq!(one().peek(), many().peek(), "{text}: step {step} at {now}");
                }
                2 => assert_eq!(one().force(), many().force(), "{text}: step {step} at {now}"),
                _ => assert_eq!(one().check(), many().check(), "{text}: step {step} at {now}"),
            }
        }
    }
}

#[test]
fn every_operation_applies_to_its_key() {
    let (limiter, clock) = hourly(10);
    assert_eq!(limiter.request(&1).cost(4).take().amount, 4);
    assert_eq!(limiter.request(&1).cost(9).take().amount, 6);
    assert_eq!(limiter.request(&1).cost(2).force().remaining(), 0);
    assert_eq!(limiter.check(&1).retry_after(), Some(Wait::micros(3 * 360_000_000))); // two in debt, plus one
    limiter.request(&1).cost(5).refund();
    assert_eq!(limiter.request(&1).cost(0).peek().remaining(), 3);
    clock.advance(Duration::from_secs(360));
    assert_eq!(limiter.request(&1).cost(0).peek().remaining(), 4);
    limiter.request(&1).reset();
    assert_eq!(limiter.check(&1).remaining(), 9);
}

#[test]
fn idle_keys_make_room_and_busy_ones_stay() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64>::builder(Quota::per_second(1)).max_keys(10).on_full(OnFull::Refuse);
    let limiter = limiter.clock(clock.clone()).build();
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
    let limiter = KeyedLimiter::<u64>::builder(Quota::per_hour(1)).clock(ManualClock::new());
    let limiter = limiter.on_full(OnFull::Refuse).max_keys(2).build();
    assert!(limiter.check(&1).is_allowed() && limiter.check(&2).is_allowed());
    assert!(!limiter.check(&3).is_allowed());
    limiter.request(&1).reset();
    assert!(limiter.check(&3).is_allowed());
}

#[test]
fn large_states_fill_up_to_max_keys() {
    let clock = ManualClock::new();
    let log = SlidingLog::new(Quota::per_hour(100));
    let limiter = KeyedLimiter::<u64, _>::builder_with(log).max_keys(5_000).clock(clock).build();
    assert!((0..5_000).all(|key| limiter.check(&key).is_allowed()));
    assert_eq!(limiter.check(&5_000).source, Source::Closed);
}

#[test]
fn check_each_names_the_binding_rule() {
    let clock = ManualClock::new();
    let rules = (TokenBucket::new(Quota::per_second(2)), FixedWindow::new(Quota::per_day(3)));
    let limiter = KeyedLimiter::<String, _>::builder_with(rules).clock(clock.clone()).build();
    assert!(limiter.request("a").cost(2).check().is_allowed());

    let hasty = limiter.request("a").cost(1).check_each();
    assert_eq!((hasty.decision.rule, hasty.decision.retry_after()), (RuleId(0), Some(Wait::micros(500_000))));
    assert_eq!(hasty.rules[1].remaining(), 1, "the other rule was charged nothing");

    clock.advance(SECOND);
    assert!(limiter.check("a").is_allowed());
    let spent = limiter.request("a").cost(1).check_each();
    assert_eq!((spent.decision.rule, spent.rules[0].remaining()), (RuleId(1), 1));
}

#[test]
fn switching_per_call_quotas_yields_no_extra_burst() {
    let (free, paid) = (Quota::per_hour(10), Quota::per_hour(100));
    let limiter =
        KeyedLimiter::<u64, _>::builder_with(PerCallBucket::new(free)).clock(ManualClock::new()).build();
    let mut passed = 0;
    for _ in 0..50 {
        passed += limiter.request(&1).quota(paid).cost(100).take().amount;
        passed += limiter.request(&1).quota(free).cost(100).take().amount;
    }
    assert_eq!(passed, 100);
    assert_eq!(limiter.request(&2).quota(paid).cost(1).check().remaining(), 99);
    limiter.request(&1).quota(free).cost(3).refund();
    assert_eq!(limiter.request(&1).quota(paid).cost(0).peek().remaining(), 3);
    assert_eq!(limiter.request(&1).quota(paid).cost(5).force().remaining(), 0);
}

#[test]
fn change_keeps_usage_also_when_states_change_size() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64>::builder(Quota::per_second(10)).clock(clock).build();
    for key in 0..3_000 {
        let _ = limiter.request(&key).cost(7).check();
    }
    // 999,983 has no common divisor with a million: its states take two words instead of one.
    for quota in [Quota::per_second(20), Quota::per_second(999_983), Quota::per_second(12)] {
        limiter.change(TokenBucket::new(quota));
        for key in 0..3_000 {
            assert_eq!(
                limiter.request(&key).cost(0).peek().remaining(),
                quota.limit() - 7,
                "{quota}, key {key}"
            );
        }
    }
    assert_eq!(limiter.stats().keys, 3_000);
}

#[test]
fn sliding_window_keeps_its_counts_when_it_gets_more_cells() {
    let day = Quota::per_day(10);
    let limiter =
        KeyedLimiter::<u64, _>::builder_with(SlidingWindow::new(day, 4)).clock(ManualClock::new()).build();
    assert!(limiter.request(&1).cost(6).check().is_allowed());
    limiter.change(SlidingWindow::new(day, 24));
    assert_eq!(limiter.check(&1).remaining(), 3);
}

#[derive(Default)]
struct Tally {
    allowed: AtomicU64,
    denied: [AtomicU64; 2],
}

impl Observer for Tally {
    fn allowed(&self, _: &Decision, _: &[Charge<'_>]) {
        self.allowed.fetch_add(1, Ordering::Relaxed);
    }

    fn denied(&self, decision: &Decision, _: &[Charge<'_>]) {
        self.denied[usize::from(decision.rule.0)].fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn observer_sees_decisions_and_their_rule() {
    let tally = Arc::new(Tally::default());
    let rules = (TokenBucket::new(Quota::per_second(2)), FixedWindow::new(Quota::per_day(3)));
    let clock = ManualClock::new();
    let limiter = Limiter::builder_with(rules).clock(clock.clone()).observer(tally.clone()).build();
    let _ = (limiter.check(), limiter.check(), limiter.check(), limiter.request().peek());
    clock.advance(SECOND);
    let _ = (limiter.check(), limiter.check());
    let [by_bucket, by_window] =
        [&tally.denied[0], &tally.denied[1]].map(|count| count.load(Ordering::Relaxed));
    assert_eq!((tally.allowed.load(Ordering::Relaxed), by_bucket, by_window), (3, 1, 1));
}

#[test]
fn clock_set_back_neither_adds_quota_nor_locks_out() {
    let clock = SettableClock::new();
    let limiter = KeyedLimiter::<u64>::builder(Quota::per_second(10)).clock(clock.clone()).build();
    clock.set(Micros::new(3_600_000_000));
    assert!(limiter.request(&1).cost(10).check().is_allowed());
    clock.set(Micros::new(0));
    assert_eq!(limiter.check(&1).retry_after(), Some(Wait::micros(100_000)));
    clock.set(Micros::new(100_000));
    assert!(limiter.check(&1).is_allowed());
    assert!(!limiter.check(&1).is_allowed());
}

#[test]
fn string_key_is_found_by_its_borrowed_forms() {
    let limiter = KeyedLimiter::<String>::builder(Quota::per_hour(2)).clock(ManualClock::new()).build();
    assert!(limiter.check("alice").is_allowed());
    assert!(limiter.check(&String::from("alice")).is_allowed());
    assert!(!limiter.check("alice").is_allowed());
}

#[test]
fn per_call_rule_reads_the_state_written_by_another_rule() {
    let (limiter, clock) = hourly(60);
    let slower =
        || limiter.request(&7).by(TokenBucket::new(Quota::per_hour(6))).expect("the same state size");
    assert_eq!(slower().cost(2).check().remaining(), 4); // a new key: 20 minutes in debt
    assert_eq!(limiter.request(&7).cost(0).peek().remaining(), 40);
    assert_eq!(limiter.request(&7).cost(10).check().remaining(), 30); // 30 minutes
    assert_eq!(slower().cost(0).peek().remaining(), 3);
    assert_eq!(slower().cost(4).check().outcome, Outcome::RetryAfter(Wait::micros(600 * 1_000_000)));
    assert_eq!(slower().cost(0).peek().remaining(), 3, "a denial charges nothing");
    clock.advance(600 * SECOND);
    assert_eq!(slower().cost(4).check().remaining(), 0);
    slower().cost(6).refund();
    assert_eq!(limiter.request(&7).cost(0).peek().remaining(), 60);
}

#[test]
fn per_call_rule_with_another_state_size_is_refused_and_charges_nothing() {
    let limiter = KeyedLimiter::<u64>::new(Quota::per_hour(2)); // one word on the steady clock
    let wide = || limiter.request(&7).by(TokenBucket::new(Quota::per_second(999_983))); // two
    let refused = wide().expect_err("another size");
    assert_eq!((refused.words, refused.expected), (2, 1));
    assert_eq!(
        refused.to_string(),
        "the algorithm needs states of 2 words, but the limiter stores 1; use parameters of the same size, or `change`"
    );
    assert!(wide().is_err());
    assert_eq!(limiter.request(&7).cost(0).peek().remaining(), 2);
    assert!(limiter.check(&7).is_allowed() && limiter.check(&7).is_allowed());
    assert!(!limiter.check(&7).is_allowed());
}
