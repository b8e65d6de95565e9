//! Real servers that cannot limit, each for a reason of its own: health reports the reason and the remedy,
//! decisions follow `on_outage`, nothing hangs; and as soon as the server is fixed, limits are enforced.
//!
//! Faults that a proxy can imitate are in `faults.rs`; here the servers themselves refuse, with their own
//! messages.

mod gates;
mod support;

use std::time::Duration;

use gates::{enforced, one, strict};
use support::{Cluster, Kind, Server, until};
use tidegate::gate::{Part, RuleId};
use tidegate::{Quota, Source};
use tidegate_redis::{Builder, Health, OnOutage, RedisGate};

const ALL: [Kind; 3] = [Kind::Redis, Kind::OldRedis, Kind::Valkey];
const KEYS: usize = 20;

/// A gate that may not have connected yet.
fn built(builder: Builder) -> RedisGate {
    let builder = builder.rule("user", Quota::per_hour(1_000)).on_outage(OnOutage::Closed);
    builder.canary(Duration::from_millis(50)).build().expect("a gate needs no server")
}

fn gate(url: &str) -> RedisGate {
    built(RedisGate::builder(url))
}

/// The same URL with a user and a password.
fn as_user(server: &Server, user_info: &str) -> String {
    server.url().replace("redis://", &format!("redis://{user_info}@"))
}

/// Waits until the last error in the health report contains all these parts.
#[track_caller]
fn reports(gate: &RedisGate, parts: &[&str]) -> Health {
    until(&format!("{parts:?} is reported, {:?}", gate.health()), || {
        let health = gate.health();
        let error = health.last_error.as_ref().map(ToString::to_string).unwrap_or_default();
        parts.iter().all(|part| error.contains(part)).then_some(health)
    })
}

/// Every request is refused as `on_outage` says, for every key, and health reports that limits are not
/// enforced.
async fn is_closed(gate: &RedisGate) {
    for key in (0..KEYS).map(|key| format!("key {key}")) {
        let decision = gate.check_parts(&one(&key)).await.expect("a request").decision;
        assert_eq!((decision.is_allowed(), decision.source), (false, Source::Closed), "{:?}", gate.health());
    }
    until("the outage is noticed", || (gate.health().enforced == Some(false)).then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_memory_is_reported_and_recovers() {
    for kind in ALL {
        let server = Server::start(kind, &["--maxmemory", "1mb", "--maxmemory-policy", "noeviction"]);
        let gate = gate(&server.url());
        reports(
            &gate,
            &["Redis replied OOM", "when used memory > 'maxmemory'", "; give the server more memory"],
        );
        is_closed(&gate).await;
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        assert!(strict(&gate).await.is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_reported_and_limits_once_promoted() {
    for kind in ALL {
        let primary = Server::start(kind, &[]);
        let replica = Server::start(kind, &[]);
        replica.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
        let gate = gate(&replica.url());
        reports(&gate, &["Redis replied READONLY", "; this is a replica; use the address of the primary"]);
        is_closed(&gate).await;
        let warned = "this is a replica, which refuses writes; use the address of the primary";
        until("health warns of it", || gate.health().warnings.iter().any(|it| it == warned).then_some(()));
        replica.cli(&["REPLICAOF", "NO", "ONE"]);
        assert!(strict(&gate).await.is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_scripting_permission_is_reported_and_recovers() {
    for kind in ALL {
        let server = Server::start(kind, &[]);
        server.cli(&["ACL", "SETUSER", "weak", "on", ">pw", "~*", "+@all", "-@scripting"]);
        let gate = gate(&as_user(&server, "weak:pw"));
        reports(&gate, &["Redis replied NOPERM", "; allow the user EVALSHA, SCRIPT LOAD and the commands"]);
        is_closed(&gate).await;
        server.cli(&["ACL", "SETUSER", "weak", "+@scripting"]);
        assert!(strict(&gate).await.is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_a_command_or_key_pattern_is_reported_and_recovers() {
    for kind in ALL {
        let server = Server::start(kind, &[]);
        for (limit, lift) in [("-set", "+set"), ("resetkeys", "~tg1*")] {
            server.cli(&["ACL", "SETUSER", "weak", "reset", "on", ">pw", "~*", "+@all", limit]);
            let gate = gate(&as_user(&server, "weak:pw"));
            reports(
                &gate,
                &["; allow the user EVALSHA, SCRIPT LOAD and the commands of the script on keys tg1*"],
            );
            is_closed(&gate).await;
            server.cli(&["ACL", "SETUSER", "weak", lift]);
            assert!(strict(&gate).await.is_allowed());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_permissions_of_a_user_are_enough() {
    for kind in ALL {
        let server = Server::start(kind, &[]);
        let least = ["+evalsha", "+script|load", "+time", "+get", "+mget", "+set", "+del"];
        let user = ["ACL", "SETUSER", "least", "on", ">pw", "~tg1*"];
        server.cli(&[&user[..], &least].concat());
        let builder = RedisGate::builder(as_user(&server, "least:pw"));
        let gate = built(builder.concurrency("work", 2, Duration::from_secs(60)));
        enforced(&gate);
        let [work, user] = [0, 1].map(RuleId);
        let both = [Part::of(work), Part::of(user).key("alice")];
        let held = gate.check_parts(&both).await.expect("a request");
        assert_eq!((held.is_allowed(), held.decision.source), (true, Source::Strict));
        gate.request().parts(&both).refund().await.expect("a reply");
        gate.request().parts(&both).reset().await.expect("a reply");
        assert_eq!(gate.health().last_error, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_scripts_is_reported() {
    for kind in ALL {
        for command in ["EVALSHA", "SCRIPT"] {
            let server = Server::start(kind, &["--rename-command", command, ""]);
            let gate = gate(&server.url());
            reports(
                &gate,
                &["Redis replied ERR unknown command", command, "; this server does not support scripts"],
            );
            is_closed(&gate).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_wrong_password_is_reported_and_kept_secret() {
    for kind in ALL {
        let server = Server::start(kind, &[]);
        // An authenticated connection stays authenticated.
        let client = redis::Client::open(server.url()).expect("an address");
        let mut inside = client.get_connection().expect("a server");
        let mut require = |password: &str| {
            let mut command = redis::cmd("CONFIG");
            command.arg("SET").arg("requirepass").arg(password);
            command.exec(&mut inside).expect("it is set");
        };
        require("right");
        let wrong = [server.url(), as_user(&server, ":wrong"), as_user(&server, "nobody:right")];
        let gates = wrong.map(|url| gate(&url));
        for gate in &gates {
            let health = reports(gate, &["; check user and password in the address"]);
            assert_eq!(health.connections, (0, 2));
            assert!(!format!("{health:?}").contains("right"), "a report contains no password");
            is_closed(gate).await;
        }
        assert!(strict(&gate(&as_user(&server, ":right"))).await.is_allowed());
        require("");
        assert!(strict(&gates[0]).await.is_allowed(), "no password is required any more");
    }
}

/// A server that delays each key that it loads from disk, until the delay is set to 0.
fn loading(kind: Kind) -> Server {
    let slow = ["--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024"];
    let mut server = Server::start(kind, &slow);
    let fill = "for i = 1, 20000 do redis.call('SET', 'filler ' .. i, string.rep('x', 200)) end";
    server.cli(&["EVAL", fill, "0"]);
    server.cli(&["SAVE"]);
    server.restart();
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loading_server_is_reported_and_recovers() {
    for kind in [Kind::Redis, Kind::Valkey] {
        // 6.2 cannot be made to reply while it loads so slowly
        let server = loading(kind);
        let gate = gate(&server.url());
        reports(&gate, &["Redis replied LOADING", "; the server is loading its data and will reply soon"]);
        is_closed(&gate).await;
        server.cli(&["CONFIG", "SET", "key-load-delay", "0"]);
        assert!(strict(&gate).await.is_allowed());
        assert_eq!(server.cli(&["EXISTS", "filler 20000"]), "1", "the server was really loading");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn warnings_appear_and_disappear_with_the_settings_of_the_server() {
    let server = Server::start(Kind::Redis, &["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"]);
    let gate = gate(&server.url());
    assert!(strict(&gate).await.is_allowed());
    assert_eq!(gate.health().warnings, Vec::<String>::new());
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    until("health warns of it", || {
        gate.health().warnings.iter().any(|it| it.contains("allkeys-lru")).then_some(())
    });
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    until("the warning is gone", || gate.health().warnings.is_empty().then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_evicts_keys_is_warned_of() {
    for kind in ALL {
        for policy in ["allkeys-lru", "volatile-ttl"] {
            let server = Server::start(kind, &["--maxmemory", "100mb", "--maxmemory-policy", policy]);
            let gate = gate(&server.url());
            assert!(strict(&gate).await.is_allowed(), "it still limits");
            let warnings = gate.health().warnings;
            let [warning] = &warnings[..] else { panic!("one warning, and not {warnings:?}") };
            let (what, remedy) = (format!("maxmemory-policy is {policy}: "), "; set noeviction");
            assert!(warning.starts_with(&what) && warning.ends_with(remedy), "{warning}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_configured_as_a_single_server_is_reported() {
    let warned = "this is one node of a cluster, and keys of other nodes fail; build the gate with `RedisGate::cluster`";
    let lone = Server::start(Kind::Redis, &["--cluster-enabled", "yes"]);
    let cluster = Cluster::start();
    for (server, code) in [(&lone, "CLUSTERDOWN"), (cluster.node(0), "MOVED")] {
        let gate = gate(&server.url());
        // In a cluster some keys are on the named node; the check must also use others.
        until("health warns of it", || gate.health().warnings.first().cloned());
        assert_eq!(gate.health().warnings, [warned]);
        for key in (0..KEYS).map(|key| format!("key {key}")) {
            let source = gate.check_parts(&one(&key)).await.expect("a request").decision.source;
            assert!(source == Source::Closed || code == "MOVED" && source == Source::Strict, "{source:?}");
        }
        reports(
            &gate,
            &[
                &format!("Redis replied {code}"),
                "; this is a cluster; build the gate with `RedisGate::cluster`",
            ],
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_server_configured_as_a_cluster_is_reported() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = built(RedisGate::cluster([server.url()]));
    reports(
        &gate,
        &["cluster support disabled", "; this is not a cluster; build the gate with `RedisGate::builder`"],
    );
    is_closed(&gate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_is_reported() {
    let mut server = Server::start(Kind::Redis, &[]);
    server.kill();
    let gate = gate(&server.url());
    reports(&gate, &["no connection to Redis: "]);
    is_closed(&gate).await;
}
