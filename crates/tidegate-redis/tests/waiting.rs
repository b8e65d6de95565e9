//! Waiting for a limit in Redis: in order, with few round trips, and never for a request that cannot be
//! allowed.

mod gates;
mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gates::one;
use support::{Kind, Server};
use tidegate::Quota;
use tidegate_redis::{Builder, RedisGate};

/// A gate that runs its canary once: every further script call is made by a waiter.
async fn quiet(builder: Builder) -> RedisGate {
    let gate =
        builder.canary(Duration::from_secs(3_600)).deadline(Duration::from_secs(20)).build().expect("a gate");
    assert!(gate.ready(Duration::from_secs(20)).await, "{gate:?}");
    gate
}

/// The number of calls of the script.
fn script_calls(server: &Server) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).expect("it was called");
    let calls = line.split(['=', ',']).nth(1).expect("calls=");
    calls.parse().expect("a number")
}

#[tokio::test]
async fn waiters_are_served_in_order_and_only_the_first_polls() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = quiet(RedisGate::builder(server.url()).rule("user", Quota::per_second(50).burst(1))).await;
    let (before, passed) = (script_calls(&server), Arc::new(Mutex::new(Vec::new())));
    let wait = |n: usize| {
        let (gate, passed) = (gate.clone(), passed.clone());
        tokio::spawn(async move {
            assert!(
                gate.request().rule_for("user", "alice").acquire().await.expect("no timeout").is_allowed()
            );
            passed.lock().expect("no panic").push(n);
        })
    };
    let tasks: Vec<_> = (0..20).map(wait).collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(*passed.lock().expect("no panic"), (0..20).collect::<Vec<_>>());
    // Each calls when it arrives, when it is first in the queue, and when its wait is over. All of them each
    // time would be 210.
    assert!(script_calls(&server) - before <= 60, "{} calls", script_calls(&server) - before);
}

#[tokio::test]
async fn a_request_that_cannot_pass_in_time_is_refused_with_one_call() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = quiet(RedisGate::builder(server.url()).rule("user", Quota::per_hour(1))).await;
    let limiter = gate.limiter("user").expect("a rate limit");
    assert!(limiter.acquire("alice").await.expect("a token").is_allowed());
    let before = script_calls(&server);
    let refused = limiter.request("alice").timeout(Duration::from_secs(60)).acquire().await;
    let refused = refused.expect_err("an hour is longer");
    assert!(refused.is_timeout() && refused.retry_after().is_some(), "{refused:?}");
    let past = Instant::now();
    let refused = limiter.request("alice").deadline(past).acquire().await.expect_err("an hour is longer");
    assert!(refused.is_timeout() && refused.retry_after().is_some(), "{refused:?}");
    let bob = limiter.request("bob").deadline(past).acquire().await;
    assert!(bob.expect("there is nothing to wait for").is_allowed());
    let never = limiter.request("carol").cost(2).acquire().await.expect_err("a cost above the limit");
    assert!(never.is_never(), "{never:?}");
    assert_eq!(script_calls(&server) - before, 4);
}

#[tokio::test]
async fn a_waiter_for_its_own_limit_does_not_block_other_keys() {
    let server = Server::start(Kind::Redis, &[]);
    let builder = RedisGate::builder(server.url()).rule("global", Quota::per_second(1_000_000));
    let gate = quiet(builder.rule("user", Quota::per_hour(1))).await;
    let alice = gate.request().rule("global").rule_for("user", "alice").check().await;
    assert!(alice.expect("a valid request").is_allowed());
    let (waiting, before) = (gate.clone(), script_calls(&server));
    let alice =
        tokio::spawn(
            async move { waiting.request().rule("global").rule_for("user", "alice").acquire().await },
        );
    gates::eventually("alice is refused", async || (script_calls(&server) > before).then_some(())).await;
    let bob = gate.request().rule("global").rule_for("user", "bob").acquire().await;
    assert!(bob.expect("a token").is_allowed());
    assert!(!alice.is_finished());
    alice.abort();
}

#[tokio::test]
async fn a_waiter_that_gives_up_lets_the_next_one_poll() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = quiet(RedisGate::builder(server.url()).rule("user", Quota::per_hour(1))).await;
    assert!(gate.check_parts(&one("alice")).await.expect("a request").is_allowed());
    let wait = || {
        let gate = gate.clone();
        tokio::spawn(async move { gate.request().parts(&one("alice")).acquire().await.is_ok() })
    };
    let before = script_calls(&server);
    let first = wait();
    gates::eventually("the first is refused", async || (script_calls(&server) > before).then_some(())).await;
    let second = wait();
    gate.request().parts(&one("alice")).reset().await.expect("a reply");
    first.abort(); // it would sleep for an hour
    assert!(second.await.expect("no panic"));
}

#[tokio::test]
async fn a_waiter_that_times_out_in_the_queue_overtakes_no_other() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = quiet(RedisGate::builder(server.url()).rule("user", Quota::per_hour(1))).await;
    assert!(gate.check_parts(&one("alice")).await.expect("a request").is_allowed());
    let (waiting, before) = (gate.clone(), script_calls(&server));
    let first = tokio::spawn(async move { waiting.request().parts(&one("alice")).acquire().await });
    gates::eventually("the first is refused", async || (script_calls(&server) > before).then_some(())).await;
    tokio::task::yield_now().await;
    gate.request().parts(&one("alice")).reset().await.expect("a reply"); // unseen by the first
    let late = gate.request().parts(&one("alice")).timeout(Duration::from_millis(50)).acquire().await;
    let late = late.expect_err("the first waiter is still in the queue");
    assert!(late.is_timeout() && late.retry_after().is_some(), "{late:?}");
    first.abort();
    assert!(gate.check_parts(&one("alice")).await.expect("a request").is_allowed(), "nothing was charged");
}

#[tokio::test]
async fn a_waiter_gets_the_permit_when_it_is_released() {
    let server = Server::start(Kind::Redis, &[]);
    let gate =
        quiet(RedisGate::builder(server.url()).concurrency("concurrency", 1, Duration::from_secs(60))).await;
    let held = gate.request().rule_for("concurrency", "alice").acquire().await.expect("a free permit");
    assert!(held.is_allowed());
    let waiting = gate.clone();
    let second = tokio::spawn(async move {
        waiting.request().rule_for("concurrency", "alice").acquire().await.is_ok_and(|it| it.is_allowed())
    });
    let refused = gate.request().rule_for("concurrency", "alice").try_acquire().await;
    assert!(refused.expect_err("the permit is held").is_busy());
    drop(held);
    assert!(second.await.expect("no panic"));
}
