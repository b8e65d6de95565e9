//! Reloading a rule set: usage carries over, in the old policy and in the new one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tidegate::builder::PolicyBuilder;
use tidegate::{InvalidPolicy, ManualClock, Policy, Quota, Rule};

type Rules = Policy<Rule, ManualClock>;

fn policy(rules: PolicyBuilder) -> (Rules, ManualClock) {
    let clock = ManualClock::new();
    (rules.clock(clock.clone()).build().expect("a valid policy"), clock)
}

fn left(policy: &Rules, name: &str, key: &str) -> u64 {
    policy.request().rule_for(name, key).cost(0).peek().expect("a valid request").remaining()
}

/// A permit is released immediately.
fn passes(policy: &Rules, name: &str, key: &str, cost: u32) -> bool {
    match policy.request().rule_for(name, key).cost(cost).try_acquire() {
        Ok(_) => true,
        Err(refused) => {
            assert_eq!(refused.invalid_request(), None, "a valid request");
            false
        }
    }
}

#[test]
fn rules_with_the_same_name_share_their_states_across_a_reload() {
    let (old, clock) =
        policy(Policy::builder().rule("a", Quota::per_hour(10)).rule("b", Quota::per_hour(10)));
    assert!(passes(&old, "a", "k", 4) && passes(&old, "b", "k", 7));
    let rules = Policy::builder().rule("b", Quota::per_hour(10)).rule("new", Quota::per_hour(10));
    let new = old.reload(rules.rule("a", Quota::per_hour(10))).expect("a valid policy");
    assert_eq!([left(&new, "a", "k"), left(&new, "b", "k"), left(&new, "new", "k")], [6, 3, 10]);

    assert!(passes(&old, "a", "k", 1) && passes(&new, "a", "k", 1), "both policies stay usable");
    assert_eq!([left(&old, "a", "k"), left(&new, "a", "k")], [4, 4]);
    clock.advance(Duration::from_secs(3_600));
    assert_eq!([left(&old, "a", "k"), left(&new, "b", "k")], [10, 10], "on the same clock");
}

#[test]
fn changed_quota_keeps_what_was_used() {
    let (old, _) = policy(Policy::builder().rule("a", Quota::per_hour(10)));
    assert!(passes(&old, "a", "k", 8));
    let more = old.reload(Policy::builder().rule("a", Quota::per_hour(100))).expect("a valid policy");
    assert_eq!(
        [left(&more, "a", "k"), left(&old, "a", "k")],
        [92, 92],
        "the old policy uses the new quota, too"
    );
    let window: Rule = "fixed_window 20/h".parse().expect("a rule");
    let more = more.reload(Policy::builder().rule("a", window)).expect("a valid policy");
    assert_eq!(left(&more, "a", "k"), 12, "8 used of 20, by another algorithm");
    let fewer = more.reload(Policy::builder().rule("a", Quota::per_hour(6))).expect("a valid policy");
    assert!(!passes(&fewer, "a", "k", 1), "8 used of 6");
}

#[test]
fn rule_removed_and_added_again_starts_empty() {
    let (old, _) = policy(Policy::builder().rule("a", Quota::per_hour(10)).rule("b", Quota::per_hour(10)));
    assert!(passes(&old, "b", "k", 10));
    let without = old.reload(Policy::builder().rule("a", Quota::per_hour(10))).expect("a valid policy");
    let again = Policy::builder().rule("a", Quota::per_hour(10)).rule("b", Quota::per_hour(10));
    let again = without.reload(again).expect("a valid policy");
    assert_eq!(left(&again, "b", "k"), 10);
}

#[test]
fn held_permits_stay_held_across_a_reload() {
    let (old, _) = policy(Policy::builder().concurrency("a", 2));
    let held = old.request().rule_for("a", "k").cost(2).try_acquire().expect("two of two are free");
    let new = old.reload(Policy::builder().concurrency("a", 3)).expect("a valid policy");
    let third = new.request().rule_for("a", "k").try_acquire();
    assert!(third.is_ok() && !passes(&new, "a", "k", 1));
    drop(held);
    assert!(passes(&new, "a", "k", 2), "released to the new policy");
    let rate = new.reload(Policy::builder().rule("a", Quota::per_hour(1))).expect("a valid policy");
    assert!(passes(&rate, "a", "k", 1), "a rule of another kind starts empty");
}

#[test]
fn invalid_rules_change_nothing() {
    let (old, _) = policy(Policy::builder().rule("a", Quota::per_hour(10)));
    assert_eq!(old.reload(Policy::builder()).err(), Some(InvalidPolicy::NoRules));
    let twice = Policy::builder().rule("a", Quota::per_hour(99)).rule("a", Quota::per_hour(99));
    assert_eq!(old.reload(twice).err(), Some(InvalidPolicy::SameName { name: "a".into() }));
    assert_eq!(left(&old, "a", "k"), 10);
}

/// Threads check the current policy as fast as they can, while it is replaced a hundred times.
#[test]
fn concurrent_reloads_neither_lose_charges_nor_add_quota() {
    const LIMIT: u64 = 200_000;
    let rules = |number: u32| {
        let builder = Policy::builder().rule(format!("other {number}"), Quota::per_hour(1));
        builder.rule("a", Quota::per_hour(LIMIT))
    };
    let (first, _) = policy(rules(0));
    let (current, passed, done) = (std::sync::RwLock::new(first), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let policy = current.read().expect("no thread panics").clone();
                    let check = || policy.request().rule_for("a", "k").check();
                    let taken = (0..100).filter(|_| check().is_ok_and(|it| it.is_allowed()));
                    passed.fetch_add(taken.count() as u64, Ordering::Relaxed);
                }
            });
        }
        for number in 1..=100 {
            let next = current.read().expect("no thread panics").reload(rules(number));
            *current.write().expect("no thread panics") = next.expect("a valid policy");
            thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
    });
    let left = left(&current.read().expect("no thread panics"), "a", "k");
    assert_eq!(passed.load(Ordering::Relaxed) + left, LIMIT);
}
