//! No keys are left behind: every key has an expiry, and is gone when its time has passed. On Redis and on
//! Valkey.

mod gates;
mod support;

use std::time::Duration;

use gates::long_deadline;
use support::{Kind, Server, until};
use tidegate::gate::{Part, RuleId};
use tidegate::{Rule, Source};
use tidegate_redis::RedisGate;

/// One rule of each algorithm, none of which keeps state for longer than two seconds.
const RULES: [&str; 9] = [
    "10/s burst 3",
    "999983/s burst 3",
    "leaky_queue 10/s queue 5",
    "leaky_queue 10/s queue 5 nginx",
    "stepped_bucket 5/s",
    "fixed_window 5/s",
    "fixed_window 5/s from first hit",
    "sliding_log 5/s",
    "sliding_window 5/s cells 10 interpolated",
];

fn gate(server: &Server) -> RedisGate {
    let mut builder = RedisGate::builder(server.url());
    for (n, text) in RULES.iter().enumerate() {
        builder = builder.rule(format!("r{n}"), text.parse::<Rule>().expect("a rule"));
    }
    long_deadline(builder.concurrency("work", 3, Duration::from_millis(500)))
}

/// Uses every rule with many keys, singly and together, with all operations.
async fn use_all_operations(gate: &RedisGate) {
    for n in 0..60u32 {
        let key = format!("key {n} }}{{");
        let parts: Vec<Part<'_>> = (0..=RULES.len())
            .filter_map(|rule| u16::try_from(rule).ok())
            .map(|rule| Part::of(RuleId(rule)).key(&key).cost(n % 4))
            .collect();
        let admission = gate.check_parts(&parts).await.expect("a request");
        assert_eq!(admission.decision.source, Source::Strict, "{:?}", gate.health());
        for part in &parts[..RULES.len()] {
            let part = std::slice::from_ref(part);
            let _ = gate.check_parts(part).await.expect("a request");
            let _ = gate.request().parts(&[part[0].cost(2)]).take().await.expect("a reply");
            gate.request().parts(part).refund().await.expect("a reply");
        }
        if n % 7 == 0 {
            gate.request().parts(&parts).reset().await.expect("a reply");
        }
    }
}

async fn all_keys_expire(kind: Kind) {
    let server = Server::start(kind, &[]);
    let gate = gate(&server);
    use_all_operations(&gate).await;
    assert_eq!(server.keys_without_expiry(), Vec::<String>::new());
    drop(gate);
    until("everything is forgotten", || {
        let left = server.cli(&["KEYS", "tg1*"]);
        left.lines().all(|key| key.ends_with("canary")).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn all_keys_expire_on_redis() {
    all_keys_expire(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_keys_expire_on_the_oldest_redis() {
    all_keys_expire(Kind::OldRedis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_keys_expire_on_valkey() {
    all_keys_expire(Kind::Valkey).await;
}
