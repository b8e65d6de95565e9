//! Decisions when Redis or the network fails: each rule follows its `on_outage`, and every decision names its
//! source.

mod gates;
mod support;

use std::time::Duration;

use gates::{enforced, eventually, long_deadline, one, ready, strict, together};
use support::{Kind, Mode, Proxy, Server, until};
use tidegate::{Quota, Source};
use tidegate_redis::{AdhocLimit, Decisions, Error, OnOutage, RedisGate};

/// Gates on the other side of a bad network, one for each `on_outage`.
struct FaultyNetwork {
    server: Server,
    proxy: Proxy,
    gates: [RedisGate; 3],
}

const KINDS: [(OnOutage, Source); 3] =
    [(OnOutage::Open, Source::Open), (OnOutage::Closed, Source::Closed), (OnOutage::Local, Source::Local)];

fn gate(url: &str, on_outage: OnOutage) -> RedisGate {
    ready(RedisGate::builder(url).rule("user", Quota::per_day(1_000)).on_outage(on_outage).nodes(2))
}

impl FaultyNetwork {
    fn start() -> Self {
        let server = Server::start(Kind::Redis, &[]);
        let proxy = Proxy::start(server.port());
        let gates = KINDS.map(|(on_outage, _)| gate(&proxy.url(), on_outage));
        FaultyNetwork { server, proxy, gates }
    }

    /// Checks the decisions while the network is in this mode, and that the gates recover from it.
    async fn decide(&self, mode: Mode) {
        self.proxy.set(mode.clone());
        for (gate, (on_outage, source)) in self.gates.iter().zip(KINDS) {
            for _ in 0..20 {
                let decision = gate.check_parts(&one("alice")).await.expect("a request").decision;
                assert_eq!(decision.source, source, "{mode:?}, {on_outage:?}: {:?}", gate.health());
                assert_eq!(decision.is_allowed(), on_outage == OnOutage::Open, "{mode:?}, {on_outage:?}");
            }
            until("the outage is noticed", || (gate.health().enforced == Some(false)).then_some(()));
            assert!(gate.health().last_error.is_some(), "{mode:?}");
        }
        self.proxy.set(Mode::Pass);
        for gate in &self.gates {
            assert!(strict(gate).await.is_allowed(), "recovered from {mode:?}");
        }
    }
}

fn error_reply(error: &str) -> Mode {
    Mode::Answer(format!("-{error}\r\n").into_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rule_follows_its_on_outage_whatever_the_network_does() {
    let network = FaultyNetwork::start();
    network.decide(Mode::Refuse).await;
    network.decide(Mode::Blackhole).await;
    network.decide(Mode::Slow(Duration::from_millis(200))).await;
    network.decide(Mode::HalfClose).await;
    network.decide(Mode::LoseReplies).await;
    assert!(network.server.cli(&["PING"]).contains("PONG"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rule_follows_its_on_outage_whatever_the_server_replies() {
    let network = FaultyNetwork::start();
    network.decide(error_reply("LOADING Redis is loading the dataset in memory")).await;
    network.decide(error_reply("OOM command not allowed when used memory > 'maxmemory'.")).await;
    network.decide(error_reply("READONLY You can't write against a read only replica.")).await;
    network.decide(error_reply("NOAUTH Authentication required.")).await;
    network.decide(Mode::Answer(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())).await;
    network.decide(Mode::Answer(vec![0xff; 64])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_reply_is_not_sent_again() {
    let server = Server::start(Kind::Redis, &[]);
    let proxy = Proxy::start(server.port());
    let gate = gate(&proxy.url(), OnOutage::Open);
    let limit = gate.request().parts(&one("alice")).peek().await.expect("a reply").limit();
    proxy.set(Mode::LoseReplies);
    for _ in 0..3 {
        assert_eq!(gate.check_parts(&one("alice")).await.expect("a request").decision.source, Source::Open);
    }
    proxy.set(Mode::Pass);
    let left = strict(&gate).await.remaining();
    assert!(
        (limit - 4..limit).contains(&left),
        "{left} of {limit}: each was charged at most once, and so was the last"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vanished_peer_is_dropped_and_connected_again() {
    let server = Server::start(Kind::Redis, &[]);
    let proxy = Proxy::start(server.port());
    let gate = gate(&proxy.url(), OnOutage::Open);
    let connections = proxy.connections();
    proxy.set(Mode::Blackhole); // without closing the connections
    until("the gate connects again", || (proxy.connections() > connections).then_some(()));
    proxy.set(Mode::Pass);
    assert!(strict(&gate).await.is_allowed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_concurrency_rule_is_closed_in_an_outage() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = ready(RedisGate::builder(server.url()).concurrency("work", 2, Duration::from_secs(60)));
    server.pause();
    let decision = gate.check_parts(&one("alice")).await.expect("a request").decision;
    assert_eq!((decision.is_allowed(), decision.source), (false, Source::Closed));
    server.resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_caused_by_the_caller_do_not_open_the_breaker() {
    let server = Server::start(Kind::Redis, &[]);
    let builder =
        RedisGate::builder(server.url()).rule("user", Quota::per_hour(2)).on_outage(OnOutage::Closed);
    let gate = long_deadline(builder.concurrency("work", 2, Duration::from_secs(60)));
    let wrong_type = gate.describe(one("foreign")[0]).expect("a rule");
    server.cli(&["HSET", &wrong_type, "a", "b"]);
    for _ in 0..20 {
        assert_eq!(
            gate.check_parts(&one("foreign")).await.expect("a request").decision.source,
            Source::Closed
        );
    }
    let work = tidegate::gate::Part::of(tidegate::gate::RuleId(1));
    gate.request().parts(&[work]).refund().await.expect("permits are left out");
    let error = gate.request().parts(&[work]).take().await.expect_err("there is no quota to take from");
    assert_eq!(error.invalid_request(), Some(&tidegate::InvalidRequest::Empty));
    assert!(!gate.health().breaker_open, "{:?}", gate.health());
    assert!(strict(&gate).await.is_allowed());
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_reclaim_their_permits_from_a_redis_that_lost_them() {
    let mut server = Server::start(Kind::Redis, &[]);
    let make =
        || long_deadline(RedisGate::builder(server.url()).concurrency("work", 1, Duration::from_secs(2)));
    let (gate, other) = (make(), make());
    let held = gate.check_parts(&one("alice")).await.expect("a request");
    assert!(held.is_allowed());
    server.kill();
    server.restart();
    enforced(&gate);
    enforced(&other);
    eventually("the holder has its permit again", async || {
        let left = other.request().parts(&[one("alice")[0].cost(0)]).peek().await;
        left.is_ok_and(|left| left.remaining() == 0).then_some(())
    })
    .await;
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_server_opens_the_breaker_until_it_resumes() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = gate(&server.url(), OnOutage::Open);
    let before = gate.health();
    server.pause();
    for _ in 0..200 {
        let decision = gate.check_parts(&one("alice")).await.expect("a request").decision;
        assert_eq!((decision.is_allowed(), decision.source), (true, Source::Open));
    }
    let health = gate.health();
    assert!(health.breaker_open && health.breaker_openings > before.breaker_openings, "{health:?}");
    assert_eq!(
        (health.last_error, health.decisions.open - before.decisions.open),
        (Some(Error::timeout()), 200)
    );
    server.resume();
    assert!(strict(&gate).await.is_allowed());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_restart_of_a_killed_server_admits_one_burst() {
    let mut server = Server::start(Kind::Redis, &[]);
    let builder =
        RedisGate::builder(server.url()).rule("user", Quota::per_hour(5)).on_outage(OnOutage::Closed);
    let gate = long_deadline(builder);
    for kills in 1..6 {
        assert_eq!(gates::passed(&gate, "alice", 20).await, 5, "after {kills} starts");
        server.kill();
        assert_eq!(gates::passed(&gate, "alice", 20).await, 0, "closed");
        server.restart();
        enforced(&gate);
    }
    let last = gate.health().last_error.map(|error| error.to_string()).unwrap_or_default();
    assert!(!last.contains("unexpected reply"), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_script_is_loaded_again_and_every_decision_stays_strict() {
    let server = Server::start(Kind::Redis, &[]);
    let builder =
        RedisGate::builder(server.url()).rule("user", Quota::per_hour(1_000)).on_outage(OnOutage::Closed);
    let gate = long_deadline(builder);
    for _ in 0..50 {
        server.cli(&["SCRIPT", "FLUSH"]);
        for admission in together(&gate, 8).await {
            assert_eq!(admission.decision.source, Source::Strict);
        }
    }
    assert_eq!(gate.health().decisions.strict, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_script_that_blocks_redis_is_an_outage() {
    let server = Server::start(Kind::Redis, &["--busy-reply-threshold", "100"]);
    let gate = gate(&server.url(), OnOutage::Open);
    let url = server.url();
    let wrong_type = std::thread::spawn(move || {
        let mut connection =
            redis::Client::open(url).and_then(|client| client.get_connection()).expect("a server");
        let endless = redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut connection);
        endless.expect_err("the script is killed");
    });
    until("Redis is blocked", || (gate.health().enforced == Some(false)).then_some(()));
    let decision = gate.check_parts(&one("alice")).await.expect("a request").decision;
    assert_eq!((decision.is_allowed(), decision.source), (true, Source::Open));
    until("the script is killed", || server.try_cli(&["SCRIPT", "KILL"]).ok());
    wrong_type.join().expect("the foreign script ended");
    enforced(&gate);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_reports_an_open_rule_that_does_not_limit() {
    let server = Server::start(Kind::Redis, &[]);
    server.cli(&["ACL", "SETUSER", "weak", "on", ">pw", "~*", "+@all", "-evalsha"]);
    let url = server.url().replace("redis://", "redis://weak:pw@");
    let builder = RedisGate::builder(url).rule("user", Quota::per_hour(1)).on_outage(OnOutage::Open);
    let gate = builder.canary(Duration::from_millis(50)).build().expect("a gate");
    until("the outage is noticed", || (gate.health().enforced == Some(false)).then_some(()));
    assert!(gate.check_parts(&one("alice")).await.expect("a request").is_allowed());
    let error = until("the reason is reported", || {
        gate.health().last_error.filter(|error| error.reason() == "error").map(|error| error.to_string())
    });
    assert!(error.contains("NOPERM") && error.contains("allow the user EVALSHA"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_reports_what_is_wrong_with_the_server() {
    let report = |server: &Server, url: String| {
        let builder = RedisGate::builder(url).rule("user", Quota::per_hour(1));
        let gate = builder.canary(Duration::from_millis(50)).build().expect("a gate");
        until(&format!("health reports on port {}", server.port()), || {
            let health = gate.health();
            let error = health.last_error.map(|error| error.to_string());
            health.warnings.first().cloned().or(error.filter(|error| !error.contains("not attempted yet")))
        })
    };
    let evicting = Server::start(Kind::Redis, &["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    assert!(report(&evicting, evicting.url()).contains("allkeys-lru"));
    let node = Server::start(Kind::Redis, &["--cluster-enabled", "yes"]);
    assert!(report(&node, node.url()).contains("one node of a cluster"));
    let locked = Server::start(Kind::Redis, &[]);
    locked.cli(&["CONFIG", "SET", "requirepass", "right"]);
    let wrong = report(&locked, locked.url().replace("redis://", "redis://:wrong@"));
    assert!(wrong.contains("check user and password"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_the_in_flight_limit_are_decided_without_redis() {
    let server = Server::start(Kind::Redis, &[]);
    let builder =
        RedisGate::builder(server.url()).rule("user", Quota::per_hour(1_000)).on_outage(OnOutage::Closed);
    let gate = long_deadline(builder.in_flight(4).failures(1_000_000));
    server.pause();
    let resume = async {
        until("requests beyond the limit are refused", || {
            (gate.health().decisions.closed == 60).then_some(())
        });
        server.resume();
    };
    let (all, ()) = tokio::join!(together(&gate, 64), resume);
    assert_eq!(all.iter().filter(|admission| admission.decision.source == Source::Strict).count(), 4);
}

/// Triggers each reason in turn. The sum is the number of decisions without Redis, including ad-hoc limits.
#[tokio::test(flavor = "multi_thread")]
async fn decisions_without_redis_are_counted_by_reason() {
    let server = Server::start(Kind::Redis, &[]);
    let proxy = Proxy::start(server.port());
    let builder = RedisGate::builder(proxy.url()).rule("user", Quota::per_day(1_000)).failures(3);
    let gate = ready(builder.deadline(Duration::from_millis(500)).in_flight(4));
    let before = gate.health().fallbacks;
    assert_eq!(before.total(), 0, "{before:?}");

    together(&gate, 64).await;
    let crowded = gate.health().fallbacks;
    assert!(crowded.too_many_in_flight > 0 && crowded.total() == crowded.too_many_in_flight, "{crowded:?}");

    proxy.set(Mode::Blackhole);
    eventually("the breaker is open", async || {
        let _ = gate.check_parts(&one("alice")).await;
        (gate.health().fallbacks.breaker_open > 0).then_some(())
    })
    .await;
    assert!(gate.health().fallbacks.deadline > 0, "{:?}", gate.health());

    let adhoc = gate.health().fallbacks.total();
    let limit = AdhocLimit { full: 1_000_000_000, charge: 1_000_000 };
    assert!(gate.charge(b"bob", limit).await.is_err() && gate.owed(b"bob").await.is_err());
    assert_eq!(gate.health().fallbacks.total(), adhoc + 1, "a peek is not a decision");

    proxy.set(Mode::Pass);
    let _ = strict(&gate).await;
    proxy.set(error_reply("LOADING Redis is loading the dataset in memory"));
    eventually("an error", async || {
        let _ = gate.check_parts(&one("alice")).await;
        (gate.health().fallbacks.error > 0).then_some(())
    })
    .await;
    proxy.set(Mode::Pass);
    let _ = strict(&gate).await;
    proxy.set(Mode::Refuse);
    eventually("no connection", async || {
        let _ = gate.check_parts(&one("alice")).await;
        (gate.health().fallbacks.not_connected > 0).then_some(())
    })
    .await;

    let health = gate.health();
    let Decisions { local, open, closed, .. } = health.decisions;
    assert_eq!(health.fallbacks.total(), local + open + closed + 1, "and the ad-hoc charge");
    let names: Vec<_> = health.fallbacks.by_reason().map(|(reason, _)| reason).collect();
    assert_eq!(names, ["deadline", "not_connected", "breaker_open", "too_many_in_flight", "error"]);
}
