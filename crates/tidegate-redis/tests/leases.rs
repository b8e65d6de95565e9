//! Leases on a real server: decisions without a round trip, returned tokens, and limits that hold across
//! nodes.

mod gates;
mod leased;
mod support;

use std::time::Duration;

use gates::{FIRST, eventually};
use leased::{LONG, hourly, ready};
use support::{Cluster, Kind, Server, until};
use tidegate::gate::{Answer, Gate, Part, RuleId};
use tidegate::{Quota, Rule, Source};
use tidegate_redis::{Lease, Leased, RedisGate};

async fn passes(gate: &Leased, key: &str, cost: u32) -> bool {
    gate.check_parts(&[Part::of(FIRST).key(key).cost(cost)]).await.expect("a request").is_allowed()
}

async fn passed(gate: &Leased, key: &str, times: usize) -> usize {
    let mut passed = 0;
    for _ in 0..times {
        passed += usize::from(passes(gate, key, 1).await);
    }
    passed
}

async fn left(gate: &Leased, key: &str) -> u64 {
    let part = Part::of(FIRST).key(key).cost(0);
    gate.strict().request().parts(&[part]).peek().await.expect("a reply").remaining()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hot_key_needs_few_round_trips_and_exactly_the_limit_passes() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = hourly(&server, 1_000, LONG);
    assert_eq!(passed(&gate, "alice", 1_500).await, 1_000);
    let stats = gate.stats();
    assert_eq!((stats.spent, stats.refused), (1_000, 500), "{stats:?}");
    assert!(stats.commands < 20, "{stats:?}");
    let refused = gate.check_parts(&[Part::of(FIRST).key("alice")]).await.expect("a request").decision;
    assert_eq!((refused.is_allowed(), refused.source), (false, Source::Lease));
    assert!(refused.retry_after().is_some());
    assert_eq!(passed(&gate, "bob", 3).await, 3, "another key");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_with_granted_tokens_is_decided_without_waiting() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = hourly(&server, 1_000, LONG);
    passed(&gate, "alice", 100).await;
    let request = [Part::of(FIRST).key("alice")];
    let Answer::Ready(Ok(admission)) = gate.decide(&request) else { panic!("the decision waits") };
    assert_eq!((admission.is_allowed(), admission.decision.source), (true, Source::Lease));
    assert_eq!(admission.decision.limit(), 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_share_the_limit_and_idle_tokens_move_to_the_other_node() {
    let server = Server::start(Kind::Redis, &[]);
    let lease = Lease::new().ttl(Duration::from_millis(400));
    let (one, two) = (hourly(&server, 1_000, lease), hourly(&server, 1_000, lease));
    let (a, b) = tokio::join!(passed(&one, "alice", 300), passed(&two, "alice", 300));
    assert_eq!((a, b), (300, 300));
    until("idle tokens are returned", || {
        (one.stats().granted == 300 + one.stats().returned
            && two.stats().granted == 300 + two.stats().returned)
            .then_some(())
    });
    assert_eq!(left(&one, "alice").await, 400);
    assert_eq!(passed(&two, "alice", 500).await, 400, "the other node gets all of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_tokens_are_returned_on_drop_and_on_return_grants() {
    let server = Server::start(Kind::Redis, &[]);
    let (one, two) = (hourly(&server, 1_000, LONG), hourly(&server, 1_000, LONG));
    passed(&one, "alice", 123).await;
    assert!(left(&two, "alice").await < 877, "the first gate holds some");
    one.return_grants().await;
    assert_eq!(left(&two, "alice").await, 877);
    passed(&one, "alice", 77).await;
    drop(one);
    eventually("the tokens are returned", async || (left(&two, "alice").await == 800).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_still_on_its_way_is_returned_too() {
    let server = Server::start(Kind::Redis, &[]);
    let (one, two) = (hourly(&server, 1_000, LONG), hourly(&server, 1_000, LONG));
    server.pause();
    let first = [Part::of(FIRST).key("alice")];
    let asked = tokio::time::timeout(Duration::from_millis(20), one.check_parts(&first)).await;
    assert!(asked.is_err(), "the request no longer waits for its grant");
    let closing = tokio::spawn({
        let one = one.clone();
        async move { one.return_grants().await }
    });
    server.resume();
    closing.await.expect("no panic");
    let stats = one.stats();
    assert!(stats.granted > 0 && stats.returned == stats.granted, "{stats:?}");
    assert_eq!(left(&two, "alice").await, 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_requests_that_strict_rules_refuse_are_put_back() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = ready(
        RedisGate::builder(server.url())
            .rule("global", Quota::per_hour(1_000))
            .lease(LONG)
            .rule("user", Quota::per_hour(3)),
    );
    let request = [Part::of(RuleId(0)), Part::of(RuleId(1)).key("alice")];
    let mut sources = Vec::new();
    for _ in 0..50 {
        let decision = gate.check_parts(&request).await.expect("a request").decision;
        sources.push((decision.is_allowed(), decision.source));
    }
    assert_eq!(sources.iter().filter(|(passed, _)| *passed).count(), 3);
    assert_eq!(sources[10], (false, Source::Strict));
    assert_eq!(gate.stats().spent, 3);
    gate.return_grants().await;
    let global = [Part::of(RuleId(0)).cost(0)];
    let left = gate.strict().request().parts(&global).peek().await.expect("a reply").remaining();
    assert_eq!(left, 997, "refused requests have spent nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn small_limits_and_large_costs_are_strict() {
    let server = Server::start(Kind::Redis, &[]);
    let small = hourly(&server, 7, LONG);
    let source = async |gate: &Leased, key: &str, cost: u32| {
        gate.check_parts(&[Part::of(FIRST).key(key).cost(cost)]).await.expect("a request").decision.source
    };
    assert_eq!(source(&small, "alice", 1).await, Source::Strict, "four for each node and one more");
    let large = hourly(&server, 100, LONG);
    assert_eq!(source(&large, "bob", 1).await, Source::Lease);
    assert_eq!(source(&large, "bob", 51).await, Source::Strict, "more than a grant");
    assert_eq!(left(&large, "bob").await, 48, "a request for one token is granted one");
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_are_leased_too_and_unspent_tokens_return() {
    let server = Server::start(Kind::Redis, &[]);
    let rule: Rule = "fixed_window 500/day".parse().expect("a rule");
    let make = || ready(RedisGate::builder(server.url()).rule("user", rule).lease(LONG));
    let (one, two) = (make(), make());
    assert_eq!(passed(&one, "alice", 200).await, 200);
    one.return_grants().await;
    assert_eq!(left(&two, "alice").await, 300);
    assert_eq!(passed(&two, "alice", 400).await, 300);
    assert!(two.stats().commands < 20, "{:?}", two.stats());
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_leasing_the_shared_rule_keeps_few_round_trips() {
    let cluster = Cluster::start();
    let gate = ready(
        RedisGate::cluster(cluster.urls())
            .rule("global", Quota::per_hour(1_000))
            .lease(LONG)
            .rule("user", Quota::per_hour(5)),
    );
    let mut passed = 0;
    for user in 0..40 {
        let key = format!("user {user}");
        let request = [Part::of(RuleId(0)), Part::of(RuleId(1)).key(&key)];
        for _ in 0..6 {
            passed += usize::from(gate.check_parts(&request).await.expect("a request").is_allowed());
        }
    }
    assert_eq!(passed, 200);
    assert_eq!(gate.stats().spent, 200);
    assert!(gate.stats().commands < 20, "{:?}", gate.stats());
}

#[tokio::test(flavor = "multi_thread")]
async fn in_an_outage_granted_tokens_are_spent_before_on_outage_applies() {
    let mut server = Server::start(Kind::Redis, &[]);
    let gate = RedisGate::builder(server.url())
        .rule("user", Quota::per_hour(1_000))
        .on_outage(tidegate_redis::OnOutage::Closed)
        .lease(LONG)
        .canary(Duration::from_millis(50))
        .build()
        .expect("a gate");
    gates::enforced(&gate);
    let gate = gate.leased();
    passed(&gate, "alice", 50).await;
    until("no grant is on its way", || (gate.stats().granted >= 63).then_some(()));
    let granted = gate.stats().granted;
    server.kill();
    let mut sources = Vec::new();
    for _ in 0..granted {
        let decision = gate.check_parts(&[Part::of(FIRST).key("alice")]).await.expect("a request").decision;
        sources.push((decision.is_allowed(), decision.source));
    }
    let spent = sources.iter().filter(|it| **it == (true, Source::Lease)).count();
    assert_eq!(spent as u64, granted - 50, "all granted tokens, and no more");
    assert_eq!(sources.last(), Some(&(false, Source::Closed)));
}

#[tokio::test]
async fn build_rejects_rules_that_cannot_be_leased() {
    let builder = RedisGate::builder("redis://127.0.0.1:1/")
        .rule("log", "sliding_log 5/s".parse::<Rule>().expect("a rule"))
        .lease(Lease::new())
        .rule("short", Quota::per_second(100))
        .lease(Lease::new().ttl(Duration::from_millis(1)));
    let reasons = builder.build().expect_err("no gate").reasons;
    assert_eq!(
        reasons,
        [
            "rule \"log\": only token buckets and fixed windows can be leased; remove the lease",
            "rule \"short\": a lease of 1ms is out of range; use 20 ms to 1 h"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leased_decision_meets_the_deadline_when_redis_stops() {
    const DEADLINE: Duration = Duration::from_millis(400);
    let server = Server::start(Kind::Redis, &[]);
    let builder = RedisGate::builder(server.url()).deadline(DEADLINE).failures(1_000);
    let builder = builder.rule("user", Quota::per_hour(1_000)).lease(LONG);
    let gate = builder.canary(Duration::from_millis(50)).build().expect("a gate");
    gates::enforced(&gate);
    let gate = gate.leased();
    assert!(passes(&gate, "alice", 1).await);
    server.pause();
    for key in ["alice", "bob", "carol"] {
        let started = tokio::time::Instant::now();
        let decision =
            gate.check_parts(&[Part::of(FIRST).key(key).cost(50)]).await.expect("a request").decision;
        assert_eq!(decision.source, Source::Local, "{decision:?}");
        // One deadline, not one for each of several attempts; the rest is allowance for a busy machine.
        assert!(started.elapsed() < DEADLINE * 2, "{:?}", started.elapsed());
    }
    server.resume();
}
