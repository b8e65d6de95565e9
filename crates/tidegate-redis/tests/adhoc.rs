//! Ad-hoc limits of a gate: on one server and in a cluster, beside rules, through the loss of the scripts and
//! of the server. The replies of the script are tested in `tests/script/adhoc.rs`.

mod gates;
mod support;

use std::time::Duration;

use gates::{eventually, long_deadline, one, ready};
use support::{Cluster, Kind, Server};
use tidegate::{Outcome, Quota, Source};
use tidegate_redis::{AdhocLimit, RedisGate};

const SECOND: u64 = 1_000_000_000;
/// A burst of three, refilled by one per hour.
const THREE: AdhocLimit = AdhocLimit { full: 3 * 3_600 * SECOND, charge: 3_600 * SECOND.cast_signed() };

/// How many of so many calls pass.
async fn passed(gate: &RedisGate, key: &[u8], calls: usize) -> usize {
    let mut passed = 0;
    for _ in 0..calls {
        let decision = gate.charge(key, THREE).await.unwrap_or_else(|error| panic!("{error}, {gate:?}"));
        passed += usize::from(decision.outcome == Outcome::Allowed);
    }
    passed
}

#[tokio::test(flavor = "multi_thread")]
async fn gates_without_rules_share_the_debt_of_keys() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = |tenant: &str| long_deadline(RedisGate::builder(server.url()).tenant(tenant).without_rules());
    let (one, other, other_tenant) = (gate("a"), gate("a"), gate("b"));
    assert_eq!((passed(&one, b"k", 2).await, passed(&other, b"k", 5).await), (2, 1));
    assert_eq!(passed(&other, b"}{\r\n\xff", 5).await, 3, "another key");
    assert_eq!(passed(&other_tenant, b"k", 5).await, 3, "another tenant");
    let forgotten = one.forget(b"k").await.expect("a reply").nanos;
    assert!(forgotten > 2 * 3_600 * SECOND && forgotten <= 3 * 3_600 * SECOND, "{forgotten}");
    assert_eq!(one.forget(b"k").await.expect("a reply").nanos, 0);
    assert_eq!(passed(&other, b"k", 5).await, 3);
    assert_eq!(server.keys_without_expiry(), Vec::<String>::new());
}

/// Both are stored in one slot, under different keys.
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_and_an_adhoc_limit_on_one_key_are_independent() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(RedisGate::builder(server.url()).rule("user", Quota::per_day(1)));
    assert_eq!(passed(&gate, b"alice", 5).await, 3);
    assert!(gate.check_parts(&one("alice")).await.expect("a request").is_allowed());
    let decision = gate.check_parts(&one("alice")).await.expect("a request").decision;
    assert_eq!((decision.is_allowed(), decision.source), (false, Source::Strict));
    assert_eq!(passed(&gate, b"alice", 1).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_found_on_every_node_of_a_cluster() {
    let cluster = Cluster::start();
    let [one, other] = [(); 2].map(|()| long_deadline(RedisGate::cluster(cluster.urls()).without_rules()));
    for n in 0..60u32 {
        let key = [&b"{a}"[..], &n.to_be_bytes()].concat();
        assert_eq!((passed(&one, &key, 2).await, passed(&other, &key, 3).await), (2, 1), "{n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flushed_scripts_are_loaded_again() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(RedisGate::builder(server.url()).without_rules());
    for _ in 0..3 {
        server.cli(&["SCRIPT", "FLUSH"]);
        let _ = gate.forget(b"k").await.expect("a reply");
        assert_eq!(passed(&gate, b"k", 4).await, 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_an_error_and_the_gate_recovers() {
    let mut server = Server::start(Kind::Redis, &[]);
    let gate = ready(RedisGate::builder(server.url()).deadline(Duration::from_secs(20)).without_rules());
    assert_eq!(passed(&gate, b"k", 1).await, 1);
    server.kill();
    eventually("the breaker is open", async || {
        let error = gate.charge(b"k", THREE).await.err()?;
        (error.is_unavailable() && error.reason() == "breaker_open").then_some(())
    })
    .await;
    server.restart();
    let _ = eventually("it decides again", async || gate.charge(b"k", THREE).await.ok()).await;
}
