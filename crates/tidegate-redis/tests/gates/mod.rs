//! Gates as tests make them, and what tests wait for.
#![allow(dead_code, reason = "no test binary uses all of it")]

use std::time::Duration;

use tidegate::{Part, RuleId};
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

/// Waits until limits are enforced.
pub(crate) fn enforced(gate: &RedisGate) {
    until(&format!("{gate:?} limits"), || {
        let health = gate.health();
        (health.enforced == Some(true) && !health.not_asked).then_some(())
    });
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
