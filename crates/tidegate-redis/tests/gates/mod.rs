//! Gates as tests make them, and what tests wait for.
#![allow(dead_code, reason = "no test binary uses all of it")]

use std::time::Duration;

use tidegate::{Admission, Decision, Part, RuleId, Source};
use tidegate_redis::{Builder, RedisGate};

use crate::support::until;

/// The first rule.
pub(crate) const FIRST: RuleId = RuleId(0);

/// A gate that has been seen to limit.
pub(crate) fn ready(builder: Builder) -> RedisGate {
    let gate = builder.canary(Duration::from_millis(50)).build().expect("a gate");
    enforced(&gate);
    gate
}

/// One that has all the time in the world: for tests on a busy machine that are not about deadlines.
pub(crate) fn patient(builder: Builder) -> RedisGate {
    ready(builder.deadline(Duration::from_secs(20)))
}

/// Waits until limits are enforced.
pub(crate) fn enforced(gate: &RedisGate) {
    until(&format!("{gate:?} limits"), || {
        let health = gate.health();
        (health.enforced == Some(true) && !health.not_asked).then_some(())
    });
}

/// Asks until there is an answer, but not for ever: what is waited for is done by another process or task.
pub(crate) async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..3_000 {
        if let Some(answer) = ask().await {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: not after many tries");
}

/// What Redis decides on a unit for this key: on a busy machine its answer may come too late, and is asked for again.
pub(crate) async fn strict_for(gate: &RedisGate, key: &str) -> Decision {
    eventually(&format!("Redis decides on {key}, {gate:?}"), async || {
        let decision = gate.check(&one(key)).await.expect("a request").decision;
        (decision.source == Source::Strict).then_some(decision)
    })
    .await
}

/// The same, from when limits are enforced on.
pub(crate) async fn strict(gate: &RedisGate) -> Decision {
    enforced(gate);
    strict_for(gate, "alice").await
}

/// A unit of the first rule.
pub(crate) fn one(key: &str) -> [Part<'_>; 1] {
    [Part::of(FIRST).key(key)]
}

/// How many of so many checks pass.
pub(crate) async fn passed(gate: &RedisGate, key: &str, asked: usize) -> usize {
    let mut passed = 0;
    for _ in 0..asked {
        passed += usize::from(gate.check(&one(key)).await.expect("a request").is_allowed());
    }
    passed
}

/// What comes of so many checks at once.
pub(crate) async fn together(gate: &RedisGate, asked: usize) -> Vec<Admission> {
    let check = |_| {
        let gate = gate.clone();
        tokio::spawn(async move { gate.check(&one("alice")).await.expect("a request") })
    };
    let tasks: Vec<_> = (0..asked).map(check).collect();
    let mut done = Vec::with_capacity(asked);
    for task in tasks {
        done.push(task.await.expect("no panic"));
    }
    done
}
