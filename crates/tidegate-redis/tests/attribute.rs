//! A function limited by a gate in Redis: it shares its keys with direct checks of the gate, in a task and in
//! a thread.

#![cfg(feature = "macros")]

mod gates;
mod support;

use std::time::Duration;

use gates::one;
use support::{Kind, Server};
use tidegate::attribute::CallDenied;
use tidegate::{Quota, rate_limit};
use tidegate_redis::RedisGate;

#[rate_limit(limiter = gate, key = user)]
async fn send(gate: &RedisGate, user: &str) -> Result<usize, CallDenied> {
    let _ = gate;
    Ok(user.len())
}

#[rate_limit(limiter = gate, key = user, wait = "60s")]
async fn send_in_a_minute(gate: &RedisGate, user: &str) -> Result<usize, CallDenied> {
    send(gate, "another user").await?;
    Ok(user.len())
}

#[rate_limit(limiter = gate, key = user)]
fn send_from_a_thread(gate: &RedisGate, user: &str) -> Result<usize, CallDenied> {
    let _ = gate;
    Ok(user.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_share_a_limit_with_direct_checks_of_the_gate() {
    let server = Server::start(Kind::Redis, &[]);
    let built =
        RedisGate::builder(server.url()).rule("user", Quota::per_hour(3)).deadline(Duration::from_secs(20));
    let gate = built.build().expect("a gate");
    assert!(gate.ready(Duration::from_secs(20)).await, "{gate:?}");

    assert_eq!(send(&gate, "alice").await, Ok(5));
    assert!(gate.check_parts(&one("alice")).await.expect("a request").is_allowed());
    let thread = gate.clone();
    let passed = tokio::task::spawn_blocking(move || {
        [send_from_a_thread(&thread, "alice"), send_from_a_thread(&thread, "alice")].map(|sent| sent.is_ok())
    });
    assert_eq!(passed.await.expect("no panic"), [true, false]);
    let denied = send(&gate, "alice").await.unwrap_err();
    assert!(denied.retry_after().is_some_and(|wait| wait.as_secs_up() <= 1_200), "{denied}");
    let refused = send_in_a_minute(&gate, "alice").await.unwrap_err(); // without a wait of 20 minutes
    assert_eq!(refused.function(), "send_in_a_minute");
    assert_eq!(send_in_a_minute(&gate, "bob").await, Ok(3));
}
