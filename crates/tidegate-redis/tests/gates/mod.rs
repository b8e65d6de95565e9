//! Gates for tests, and helpers that wait for a condition.
#![allow(dead_code, reason = "no test binary uses all of it")]

use std::time::Duration;

use tidegate::gate::{Part, RuleId};
use tidegate::{Admission, Decision, Source};
use tidegate_redis::{Builder, RedisGate};

use crate::support::until;

/// The first rule.
pub(crate) const FIRST: RuleId = RuleId(0);

/// A gate that is known to enforce its limits.
pub(crate) fn ready(builder: Builder) -> RedisGate {
    let gate = builder.canary(Duration::from_millis(50)).build().expect("a gate");
    enforced(&gate);
    gate
}

/// A gate with a very long deadline: for tests on a busy machine that are not about deadlines.
pub(crate) fn long_deadline(builder: Builder) -> RedisGate {
    ready(builder.deadline(Duration::from_secs(20)))
}

/// Waits until limits are enforced.
pub(crate) fn enforced(gate: &RedisGate) {
    until(&format!("{gate:?} limits"), || {
        let health = gate.health();
        (health.enforced == Some(true) && !health.breaker_open).then_some(())
    });
}

/// Polls until there is a result, for a bounded time: the condition depends on another process or task.
pub(crate) async fn eventually<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..3_000 {
        if let Some(result) = poll().await {
            return result;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: not after many tries");
}

/// Redis's decision on a cost of 1 for this key. On a busy machine a reply may be late; then the check is
/// repeated.
pub(crate) async fn strict_for(gate: &RedisGate, key: &str) -> Decision {
    eventually(&format!("Redis decides on {key}, {gate:?}"), async || {
        let decision = gate.check_parts(&one(key)).await.expect("a request").decision;
        (decision.source == Source::Strict).then_some(decision)
    })
    .await
}

/// The same for one key, after limits are enforced.
pub(crate) async fn strict(gate: &RedisGate) -> Decision {
    enforced(gate);
    strict_for(gate, "alice").await
}

/// A request with a cost of 1 under the first rule.
pub(crate) fn one(key: &str) -> [Part<'_>; 1] {
    [Part::of(FIRST).key(key)]
}

/// How many of so many checks pass.
pub(crate) async fn passed(gate: &RedisGate, key: &str, checks: usize) -> usize {
    let mut passed = 0;
    for _ in 0..checks {
        passed += usize::from(gate.check_parts(&one(key)).await.expect("a request").is_allowed());
    }
    passed
}

/// The results of so many concurrent checks.
pub(crate) async fn together(gate: &RedisGate, checks: usize) -> Vec<Admission> {
    let check = |_| {
        let gate = gate.clone();
        tokio::spawn(async move { gate.check_parts(&one("alice")).await.expect("a request") })
    };
    let tasks: Vec<_> = (0..checks).map(check).collect();
    let mut done = Vec::with_capacity(checks);
    for task in tasks {
        done.push(task.await.expect("no panic"));
    }
    done
}
