//! Rules are cheap: an unused rule takes almost no memory, a rule that was checked once takes little, and
//! `Stats::bytes` equals what was allocated.
//!
//! Allocations are counted per thread, so the tests of this file do not disturb each other.

#![cfg(target_pointer_width = "64")]

use allocation_counter::measure;
use tidegate::algorithm::{Algorithm, FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
use tidegate::gate::{Part, RuleId};
use tidegate::{KeyedLimiter, ManualClock, OnFull, Policy, Quota, Rule};

const RULES: u16 = 1_000;

/// Returns the result of `make`, and the bytes that it allocated and did not free.
fn held<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let mut made = None;
    let measured = measure(|| made = Some(make()));
    (made.expect("make ran"), usize::try_from(measured.bytes_current).expect("more than before"))
}

fn name(number: u16) -> String {
    format!("rule {number}")
}

fn policy(rule: impl Fn(u16) -> Rule) -> Policy<Rule, ManualClock> {
    let rules = (0..RULES).fold(Policy::builder(), |rules, n| rules.rule(name(n), rule(n)));
    rules.clock(ManualClock::new()).build().expect("every rule has a name of its own")
}

fn bucket(_: u16) -> Rule {
    Quota::per_second(100).into()
}

fn log(_: u16) -> Rule {
    SlidingLog::new(Quota::per_hour(1_000)).into()
}

fn check_each(policy: &Policy<Rule, ManualClock>) {
    for n in 0..RULES {
        let part = Part::of(RuleId(n)).key("10.0.0.1");
        assert!(policy.request().parts(&[part]).check().expect("the rule is there").is_allowed());
    }
}

fn reported_bytes(policy: &Policy<Rule, ManualClock>) -> usize {
    (0..RULES).map(|n| policy.stats(&name(n)).expect("a rate").bytes).sum()
}

#[test]
fn unused_rule_takes_less_than_4_kb() {
    for rule in [bucket, log] {
        let (policy, bytes) = held(|| policy(rule));
        let each = bytes / usize::from(RULES);
        println!("{each} bytes for an unused rule");
        assert!(each < 4_000, "{each} bytes for an unused rule");
        let reported = reported_bytes(&policy) / usize::from(RULES);
        assert!(
            reported <= each && each - reported < 200,
            "{reported} bytes reported of {each}: only names and little else may be missing"
        );
    }
}

#[test]
fn rule_that_was_checked_once_takes_less_than_6_kb() {
    let policy = policy(bucket);
    let (before, ((), more)) = (reported_bytes(&policy), held(|| check_each(&policy)));
    let each = reported_bytes(&policy) / usize::from(RULES);
    println!("{each} bytes for a rule that was checked once");
    assert!(each < 6_000, "{each} bytes for a rule that was checked once");
    assert_eq!(reported_bytes(&policy) - before, more, "the reported bytes are the allocated ones");
}

/// Each rule is built once: not on one clock first and then on another.
#[test]
fn building_a_policy_builds_each_rule_once() {
    let measured = measure(|| drop(policy(bucket)));
    let (_, held) = held(|| policy(bucket));
    let held = u64::try_from(held).expect("no more than memory");
    assert!(measured.bytes_total < 2 * held, "{} bytes allocated for {held}", measured.bytes_total);
}

#[track_caller]
fn assert_bytes_while_growing<A: Algorithm + Clone>(
    algorithm: A,
    max_keys: usize,
    on_full: OnFull,
    keys: u64,
) {
    let make = || {
        let limiter = KeyedLimiter::<u64, A>::builder_with(algorithm).max_keys(max_keys).on_full(on_full);
        limiter.clock(ManualClock::new()).build()
    };
    let (limiter, first) = held(make);
    let fixed = first - limiter.stats().bytes;
    assert!(fixed < 200, "{fixed} bytes are not reported");
    let mut allocated = first;
    for key in 0..keys {
        let ((), more) = held(|| _ = limiter.check(&key));
        allocated += more;
        if more > 0 || key + 1 == keys {
            assert_eq!(limiter.stats().bytes + fixed, allocated, "with {key} keys");
        }
    }
}

#[test]
fn reported_bytes_are_the_allocated_bytes() {
    let quota = Quota::per_hour(10);
    assert_bytes_while_growing(TokenBucket::new(quota), 1 << 22, OnFull::Sketch, 30_000);
    assert_bytes_while_growing(TokenBucket::new(quota), 1_000, OnFull::Sketch, 2_000);
    assert_bytes_while_growing(TokenBucket::new(quota), 1_000, OnFull::Refuse, 2_000);
    assert_bytes_while_growing(FixedWindow::new(quota), 10_000, OnFull::Sketch, 12_000);
    assert_bytes_while_growing(SlidingWindow::new(quota, 10), 10_000, OnFull::Sketch, 12_000);
    assert_bytes_while_growing(SlidingLog::new(quota), 10_000, OnFull::Sketch, 3_000);
}

#[test]
fn reported_bytes_include_the_table_of_an_earlier_rule() {
    let (limiter, first) =
        held(|| KeyedLimiter::<u64, Rule>::builder_with(bucket(0)).clock(ManualClock::new()).build());
    let fixed = first - limiter.stats().bytes;
    let ((), grown) = held(|| (0..2_000).for_each(|key| _ = limiter.check(&key)));
    let ((), changed) = held(|| limiter.change(log(0)));
    let reported = limiter.stats().bytes + fixed;
    let allocated = first + grown + changed;
    assert!(
        reported <= allocated && allocated - reported < 1_000,
        "{reported} bytes reported of {allocated}; only the rule itself may be missing"
    );
}

/// A table is never much larger than its keys need, for any number of keys.
#[test]
fn table_grows_with_its_keys() {
    let limiter = KeyedLimiter::<u64>::builder(Quota::per_hour(10)).clock(ManualClock::new()).build();
    let fixed = limiter.stats().bytes;
    for (keys, most) in
        [(1, 2_000), (50, 2_000), (200, 7_000), (800, 25_000), (1_500, 70_000), (10_000, 700_000)]
    {
        (0..keys).for_each(|key| _ = limiter.check(&key));
        let bytes = limiter.stats().bytes - fixed;
        println!("{keys} keys: {bytes} bytes");
        assert!(bytes <= most, "{bytes} bytes for {keys} keys");
    }
}
