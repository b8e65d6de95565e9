//! Other rules in the place of these, while everybody goes on asking.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{Asked, compiled};

fn alice() -> [(&'static str, &'static str); 1] {
    [("user", "alice")]
}

fn rule(name: &str, quota: &str) -> String {
    format!("  - {{name: {name}, key: user, missing: shared, quota: {quota}}}\n")
}

fn rules(rules: &[(&str, &str)]) -> String {
    let rules: String = rules.iter().map(|(name, quota)| rule(name, quota)).collect();
    format!("rules:\n{rules}")
}

#[test]
fn what_was_used_stays_used_by_identity() {
    let asked = Asked::new(&rules(&[("a", "10/h"), ("b", "10/h"), ("c", "10/h")]));
    assert!((0..4).all(|_| asked.passes(&alice())));
    let next = rules(&[("new", "10/h"), ("b", "20/h"), ("c", "fixed_window 10/h"), ("a", "10/h")]);
    let diff = asked.engine.replace(compiled(&next)).expect("valid rules");
    assert_eq!(diff.to_string(), "1 kept, 1 changed, 2 added, 1 removed");
    let left = ["a", "b", "c", "new"].map(|rule| asked.left(rule, "alice"));
    assert_eq!(left, [6, 16, 10, 10], "kept, changed, another algorithm, new");
    assert!((0..6).all(|_| asked.passes(&alice())) && !asked.passes(&alice()));
}

#[test]
fn who_has_the_old_rules_in_hand_charges_the_same_counts() {
    let asked = Asked::new(&rules(&[("a", "10/h")]));
    let old = asked.engine.in_force();
    asked.engine.replace(compiled(&rules(&[("other", "5/h"), ("a", "10/h")]))).expect("valid rules");
    let call = tidegate_server::rules::Call::of(&[("user", "alice")]);
    assert!(old.ask().call(&call).check().now().expect("in memory").expect("valid").is_allowed());
    assert_eq!([asked.left("a", "alice"), asked.left("other", "alice")], [9, 5]);
}

#[test]
fn places_that_are_held_stay_held_and_can_be_given_back() {
    let asked = Asked::new(&rules(&[("a", "1 at once lease 30s")]));
    let (id, _) = asked.acquire(&alice()).place.expect("a place");
    asked
        .engine
        .replace(compiled(&rules(&[("b", "9/h"), ("a", "1 at once lease 10s")])))
        .expect("valid rules");
    assert!(!asked.acquire(&alice()).decided.is_allowed());
    assert_eq!(asked.engine.renew(id).now(), Some(Some(Duration::from_secs(30))), "as it was promised");
    assert_eq!(asked.engine.release(id).now(), Some(true));
    assert_eq!(asked.acquire(&alice()).place.map(|(_, lease)| lease), Some(Duration::from_secs(10)));
}

#[test]
fn what_a_rule_has_watched_goes_on() {
    let watching = |more: &str| format!("rules:\n  - {{name: w, quota: 1/h, shadow: true}}\n{more}");
    let asked = Asked::new(&watching(""));
    assert!(asked.passes(&alice()) && asked.passes(&alice()));
    asked.engine.replace(compiled(&watching("  - {name: b, quota: 5/h}\n"))).expect("valid rules");
    assert!(asked.passes(&alice()));
    let force = asked.engine.in_force();
    assert_eq!(force.watched(0).map(|watched| (watched.passed(), watched.refused())), Some((1, 2)));
}

#[test]
fn from_no_rules_to_some_and_back() {
    let asked = Asked::new("rules: []");
    assert!(asked.passes(&alice()));
    asked.engine.replace(compiled(&rules(&[("a", "1/h")]))).expect("valid rules");
    assert!(asked.passes(&alice()) && !asked.passes(&alice()));
    asked.engine.replace(compiled("rules: []")).expect("no rules are rules");
    assert!(asked.passes(&alice()));
}

/// The clock stands still: whatever passes beyond the limit is a fresh burst.
#[test]
fn a_hundred_reloads_under_load_lose_nothing_and_give_nothing() {
    const LIMIT: u64 = 100_000;
    let files = [
        rules(&[("a", &format!("{LIMIT}/h")), ("b", "1_000_000/h")]),
        rules(&[("b", "2_000_000/h"), ("c", "9_000_000/h"), ("a", &format!("{LIMIT}/h"))]),
    ];
    let asked = Asked::new(&files[0]);
    let (asks, passed, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) || asks.load(Ordering::Relaxed) < 2 * LIMIT {
                    let call = tidegate_server::rules::Call::of(&[("user", "alice")]);
                    let answer =
                        asked.put(&call, |question| question.check()).expect("every request is answered");
                    passed.fetch_add(answer.is_allowed().into(), Ordering::Relaxed);
                    asks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for number in 1..=100 {
            asked.engine.replace(compiled(&files[number % 2])).expect("valid rules");
            let seen = asks.load(Ordering::Relaxed);
            while asks.load(Ordering::Relaxed) < seen + 500 {
                thread::yield_now(); // so that there are requests between any two reloads
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(passed.load(Ordering::Relaxed), LIMIT, "of {}", asks.load(Ordering::Relaxed));
    assert_eq!(asked.left("a", "alice"), 0);
    asked.engine.replace(compiled(&rules(&[("a", &format!("{}/h", LIMIT + 5))]))).expect("valid rules");
    assert!((0..5).all(|_| asked.passes(&alice())) && !asked.passes(&alice()), "and new limits are in force");
}
