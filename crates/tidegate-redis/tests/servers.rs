//! Real servers that will not limit, each for a reason of its own: the report says which and what to do, decisions go
//! by what the rules say, nothing hangs; and as soon as the server is put right, limits are enforced.
//!
//! What a proxy can imitate is in `faults.rs`; here the servers themselves refuse, in their own words.

mod gates;
mod support;

use std::time::Duration;

use gates::{enforced, one, strict};
use support::{Cluster, Kind, Server, until};
use tidegate::{Part, Quota, RuleId, Source};
use tidegate_redis::{Builder, Health, RedisGate, WhenLost};

const ALL: [Kind; 3] = [Kind::Redis, Kind::OldRedis, Kind::Valkey];
const KEYS: usize = 20;

/// A gate that was not waited for.
fn built(builder: Builder) -> RedisGate {
    let builder = builder.rule("user", Quota::per_hour(1_000)).when_lost(WhenLost::Closed);
    builder.canary(Duration::from_millis(50)).build().expect("a gate needs no server")
}

fn gate(url: &str) -> RedisGate {
    built(RedisGate::builder(url))
}

/// The same address with a name and a password.
fn as_user(server: &Server, who: &str) -> String {
    server.url().replace("redis://", &format!("redis://{who}@"))
}

/// Waits until the trouble, as told, has all these parts.
#[track_caller]
fn says(gate: &RedisGate, parts: &[&str]) -> Health {
    until(&format!("{parts:?} is said, {:?}", gate.health()), || {
        let health = gate.health();
        let trouble = health.last_trouble.as_ref().map(ToString::to_string).unwrap_or_default();
        parts.iter().all(|part| trouble.contains(part)).then_some(health)
    })
}

/// Whoever asks is refused as the rule says, for every key, and the report knows that nothing is enforced.
async fn is_closed(gate: &RedisGate) {
    for key in (0..KEYS).map(|key| format!("key {key}")) {
        let decision = gate.check(&one(&key)).await.expect("a request").decision;
        assert_eq!((decision.is_allowed(), decision.source), (false, Source::Closed), "{:?}", gate.health());
    }
    until("it is known", || (gate.health().enforced == Some(false)).then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_memory_left() {
    for kind in ALL {
        let server = Server::start(kind, &["--maxmemory", "1mb", "--maxmemory-policy", "noeviction"]);
        let gate = gate(&server.url());
        says(&gate, &["Redis answered OOM", "when used memory > 'maxmemory'", "; give it more memory"]);
        is_closed(&gate).await;
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        assert!(strict(&gate).await.is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica() {
    for kind in ALL {
        let primary = Server::start(kind, &[]);
        let replica = Server::start(kind, &[]);
        replica.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
        let gate = gate(&replica.url());
        says(&gate, &["Redis answered READONLY", "; this is a replica; name the primary"]);
        is_closed(&gate).await;
        let warned = "this is a replica, which takes no writes; name the primary";
        until("it is warned of", || gate.health().warnings.iter().any(|it| it == warned).then_some(()));
        replica.cli(&["REPLICAOF", "NO", "ONE"]);
        assert!(strict(&gate).await.is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_may_run_no_scripts() {
    for kind in ALL {
        let server = Server::start(kind, &[]);
        server.cli(&["ACL", "SETUSER", "weak", "on", ">pw", "~*", "+@all", "-@scripting"]);
        let gate = gate(&as_user(&server, "weak:pw"));
        says(&gate, &["Redis answered NOPERM", "; allow the user EVALSHA, SCRIPT LOAD and the commands"]);
        is_closed(&gate).await;
        server.cli(&["ACL", "SETUSER", "weak", "+@scripting"]);
        assert!(strict(&gate).await.is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_may_not_run_what_the_script_runs_or_not_on_its_keys() {
    for kind in ALL {
        let server = Server::start(kind, &[]);
        for (limit, lift) in [("-set", "+set"), ("resetkeys", "~tg1*")] {
            server.cli(&["ACL", "SETUSER", "weak", "reset", "on", ">pw", "~*", "+@all", limit]);
            let gate = gate(&as_user(&server, "weak:pw"));
            says(
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
async fn the_least_a_user_must_be_allowed() {
    for kind in ALL {
        let server = Server::start(kind, &[]);
        let least = ["+evalsha", "+script|load", "+time", "+get", "+mget", "+set", "+del"];
        let user = ["ACL", "SETUSER", "least", "on", ">pw", "~tg1*"];
        server.cli(&[&user[..], &least].concat());
        let builder = RedisGate::builder(as_user(&server, "least:pw"));
        let gate = built(builder.at_once("work", 2, Duration::from_secs(60)));
        enforced(&gate);
        let [work, user] = [0, 1].map(RuleId);
        let both = [Part::of(work), Part::of(user).key("alice")];
        let held = gate.check(&both).await.expect("a request");
        assert_eq!((held.is_allowed(), held.decision.source), (true, Source::Strict));
        gate.refund(&both).await.expect("a request").expect("an answer");
        gate.reset(&both).await.expect("a request").expect("an answer");
        assert_eq!(gate.health().last_trouble, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_scripts() {
    for kind in ALL {
        for command in ["EVALSHA", "SCRIPT"] {
            let server = Server::start(kind, &["--rename-command", command, ""]);
            let gate = gate(&server.url());
            says(&gate, &["Redis answered ERR unknown command", command, "; it knows no scripts"]);
            is_closed(&gate).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_is_missing_or_wrong() {
    for kind in ALL {
        let server = Server::start(kind, &[]);
        // Who is in stays in.
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
            let health = says(gate, &["; check user and password in the address"]);
            assert_eq!(health.connections, (0, 2));
            assert!(!format!("{health:?}").contains("right"), "a report holds no password");
            is_closed(gate).await;
        }
        assert!(strict(&gate(&as_user(&server, ":right"))).await.is_allowed());
        require("");
        assert!(strict(&gates[0]).await.is_allowed(), "no password is wanted any more");
    }
}

/// A server that takes its time over each key that it reads from disk, until it is told not to.
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
async fn a_server_that_is_loading() {
    for kind in [Kind::Redis, Kind::Valkey] {
        // 6.2 cannot be made to answer while it reads so slowly
        let server = loading(kind);
        let gate = gate(&server.url());
        says(&gate, &["Redis answered LOADING", "; it is reading its data and will answer soon"]);
        is_closed(&gate).await;
        server.cli(&["CONFIG", "SET", "key-load-delay", "0"]);
        assert!(strict(&gate).await.is_allowed());
        assert_eq!(server.cli(&["EXISTS", "filler 20000"]), "1", "it was loading indeed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_right_or_wrong_later_is_seen_too() {
    let server = Server::start(Kind::Redis, &["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"]);
    let gate = gate(&server.url());
    assert!(strict(&gate).await.is_allowed());
    assert_eq!(gate.health().warnings, Vec::<String>::new());
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    until("it is warned of", || {
        gate.health().warnings.iter().any(|it| it.contains("allkeys-lru")).then_some(())
    });
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    until("nothing is said any more", || gate.health().warnings.is_empty().then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_when_memory_is_short() {
    for kind in ALL {
        for policy in ["allkeys-lru", "volatile-ttl"] {
            let server = Server::start(kind, &["--maxmemory", "100mb", "--maxmemory-policy", policy]);
            let gate = gate(&server.url());
            assert!(strict(&gate).await.is_allowed(), "it limits all the same");
            let warnings = gate.health().warnings;
            let [warning] = &warnings[..] else { panic!("one warning, and not {warnings:?}") };
            let (what, remedy) = (format!("maxmemory-policy is {policy}: "), "; set noeviction");
            assert!(warning.starts_with(&what) && warning.ends_with(remedy), "{warning}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_named_as_if_it_were_one() {
    let warned = "this is one node of a cluster; name the cluster by `cluster`, or keys of other nodes fail";
    let lone = Server::start(Kind::Redis, &["--cluster-enabled", "yes"]);
    let cluster = Cluster::start();
    for (server, code) in [(&lone, "CLUSTERDOWN"), (cluster.node(0), "MOVED")] {
        let gate = gate(&server.url());
        // Of a cluster some keys lie on the node that was named; others must be asked for.
        until("something is said", || gate.health().warnings.first().cloned());
        assert_eq!(gate.health().warnings, [warned]);
        for key in (0..KEYS).map(|key| format!("key {key}")) {
            let source = gate.check(&one(&key)).await.expect("a request").decision.source;
            assert!(source == Source::Closed || code == "MOVED" && source == Source::Strict, "{source:?}");
        }
        says(&gate, &[&format!("Redis answered {code}"), "; this is a cluster; name it by `cluster`"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_server_that_is_named_as_a_cluster() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = built(RedisGate::cluster([server.url()]));
    says(&gate, &["cluster support disabled", "; this is no cluster; name it by `builder`"]);
    is_closed(&gate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_there() {
    let mut server = Server::start(Kind::Redis, &[]);
    server.kill();
    let gate = gate(&server.url());
    says(&gate, &["no connection to Redis: "]);
    is_closed(&gate).await;
}
