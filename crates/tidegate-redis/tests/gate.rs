//! The gate on a real server: its operations, its health report, and its startup.

mod gates;
mod support;

use std::time::{Duration, Instant};

use gates::{FIRST, enforced, eventually, long_deadline, one, passed};
use support::{Kind, Server, until};
use tidegate::gate::{Gate, Part, RuleId};
use tidegate::{Admission, InvalidRequest, Quota, Rule, Source};
use tidegate_redis::{OnOutage, RedisGate};

fn hourly(limit: u64) -> Quota {
    Quota::per_hour(limit)
}

#[tokio::test(flavor = "multi_thread")]
async fn gates_with_the_same_names_share_limits_and_others_do_not() {
    let server = Server::start(Kind::Redis, &[]);
    let make = |tenant: &str, name: &str| {
        long_deadline(RedisGate::builder(server.url()).tenant(tenant).rule(name, hourly(3)))
    };
    let (one, two) = (make("", "user"), make("", "user"));
    assert_eq!(passed(&one, "alice", 2).await, 2);
    assert_eq!(passed(&two, "alice", 5).await, 1, "they share the limit");
    assert_eq!(passed(&two, "bob", 5).await, 3, "another key");
    assert_eq!(passed(&make("acme", "user"), "alice", 5).await, 3, "another tenant");
    assert_eq!(passed(&make("", "ip"), "alice", 5).await, 3, "another rule");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_rules_are_charged_or_none_and_the_binding_rule_is_named() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(
        RedisGate::builder(server.url())
            .rule("global", hourly(10))
            .rule("user", "sliding_log 2/h".parse::<Rule>().expect("a rule")),
    );
    let check = async || {
        gate.request().rule("global").rule_for("user", "alice").check().await.expect("a valid request")
    };
    for left in [1, 0] {
        let decision = check().await;
        assert_eq!(
            (decision.is_allowed(), decision.remaining(), decision.source),
            (true, left, Source::Strict)
        );
        assert_eq!(gate.name(decision.rule), Some("user"));
    }
    let refused = check().await;
    assert_eq!((refused.is_allowed(), gate.name(refused.rule)), (false, Some("user")));
    let left = gate.request().rule("global").cost(0).peek().await.expect("a reply");
    assert_eq!(left.remaining(), 8, "the refused request charged nothing");
}

/// Many concurrent requests on one connection, every third of which is dropped before its reply: the others
/// get their own replies, recognized by the remaining quota, which differs for each.
#[tokio::test(flavor = "multi_thread")]
async fn replies_match_their_requests_when_other_requests_are_dropped() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(RedisGate::builder(server.url()).connections(1).rule("user", hourly(1_000_000)));
    assert!(gate.ready(Duration::from_secs(10)).await);
    let send = |n: u32| {
        let gate = gate.clone();
        async move {
            let (limiter, key) = (gate.limiter("user").expect("a rate limit"), n.to_be_bytes());
            let check = limiter.request(&key).cost(n).check();
            if n.is_multiple_of(3) {
                let _ = tokio::time::timeout(Duration::ZERO, check).await; // sent, or not even that
                return None;
            }
            Some((n, check.await))
        }
    };
    for round in 0..20 {
        let tasks: Vec<_> = (1..=200).map(|n| tokio::spawn(send(round * 200 + n))).collect();
        for task in tasks {
            if let Some((n, decision)) = task.await.expect("no panic") {
                assert_eq!(
                    (decision.remaining(), decision.source),
                    (u64::from(1_000_000 - n), Source::Strict)
                );
            }
        }
    }
}

/// The last clone closes the connections, so a program that builds gates repeatedly does not accumulate them.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_gate_leaves_no_connection_open() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(RedisGate::builder(server.url()).connections(3).rule("user", hourly(5)));
    assert!(gate.ready(Duration::from_secs(10)).await);
    let clients = || {
        server
            .cli(&["CLIENT", "LIST", "TYPE", "normal"])
            .lines()
            .filter(|line| !line.trim().is_empty())
            .count()
    };
    assert_eq!(clients(), 4, "three of the gate, and the one that runs CLIENT LIST");
    drop(gate);
    until("the connections are closed", || (clients() == 1).then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn check_each_reports_the_decision_of_each_rule() {
    let server = Server::start(Kind::Redis, &[]);
    let gate =
        long_deadline(RedisGate::builder(server.url()).rule("global", hourly(10)).rule("user", hourly(2)));
    let [global, user] = ["global", "user"].map(|name| gate.id(name).expect("a rule"));
    let decisions = async || {
        let checked = gate.request().rule("global").rule_for("user", "alice").check_each().await;
        let checked = checked.expect("a valid request");
        let each = checked.rules.iter().map(|it| (it.rule, it.is_allowed(), it.remaining()));
        (checked.decision.is_allowed(), each.collect::<Vec<_>>())
    };
    assert_eq!(decisions().await, (true, vec![(global, true, 9), (user, true, 1)]));
    assert_eq!(decisions().await, (true, vec![(global, true, 8), (user, true, 0)]));
    assert_eq!(decisions().await, (false, vec![(global, true, 8), (user, false, 0)]), "and charges neither");
}

#[tokio::test(flavor = "multi_thread")]
async fn take_refund_reset_and_peek_work_on_one_key() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(RedisGate::builder(server.url()).rule("user", hourly(5)));
    let limiter = gate.limiter("user").expect("a rate limit");
    let taken = limiter.request("alice").cost(3).take().await.expect("a reply");
    assert_eq!((taken.amount, taken.decision.remaining()), (3, 2));
    let taken = limiter.request("alice").cost(30).take().await.expect("a reply");
    assert_eq!(taken.amount, 2);
    limiter.request("alice").cost(2).refund().await.expect("a reply");
    assert_eq!(passed(&gate, "alice", 5).await, 2);
    limiter.request("alice").reset().await.expect("a reply");
    assert_eq!(passed(&gate, "alice", 9).await, 5);
    assert!(!limiter.request("alice").peek().await.expect("a reply").is_allowed());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_works_through_the_trait() {
    let server = Server::start(Kind::Redis, &[]);
    let gate: Box<dyn Gate> =
        Box::new(long_deadline(RedisGate::builder(server.url()).rule("user", hourly(1))));
    assert!(gate.decide(&one("alice")).wait().await.expect("a request").is_allowed());
    assert!(!gate.decide(&one("alice")).wait().await.expect("a request").is_allowed());
    let unknown = gate.decide(&[Part::of(RuleId(7))]).wait().await;
    assert!(matches!(unknown, Err(InvalidRequest::UnknownRule { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_passes_once_allowed_and_is_refused_early_if_it_cannot_in_time() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(RedisGate::builder(server.url()).rule("user", Quota::per_second(20).burst(1)));
    assert_eq!(passed(&gate, "alice", 1).await, 1);
    let limiter = gate.limiter("user").expect("a rate limit");
    let waited = limiter.request("alice").timeout(Duration::from_secs(20)).acquire().await;
    assert!(waited.expect("a token in time").is_allowed());
    let slow = long_deadline(RedisGate::builder(server.url()).rule("slow", hourly(1)));
    assert_eq!(passed(&slow, "alice", 1).await, 1);
    let limiter = slow.limiter("slow").expect("a rate limit");
    let started = Instant::now();
    let refused = limiter.request("alice").timeout(Duration::from_secs(20)).acquire().await;
    assert!(refused.expect_err("an hour exceeds the timeout").is_timeout());
    assert!(started.elapsed() < Duration::from_secs(20), "the gate does not wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_are_counted_across_gates_and_released() {
    let server = Server::start(Kind::Redis, &[]);
    let make =
        || long_deadline(RedisGate::builder(server.url()).concurrency("work", 2, Duration::from_secs(60)));
    let (one_gate, other) = (make(), make());
    let check = async |gate: &RedisGate| gate.check_parts(&one("alice")).await.expect("a request");
    let (first, second) = (check(&one_gate).await, check(&other).await);
    assert!(first.is_allowed() && second.is_allowed());
    assert!(!check(&other).await.is_allowed());
    assert_eq!(first.permits.len(), 1);
    drop(first);
    let _third = eventually("the permit is released", async || {
        Some(check(&other).await).filter(Admission::is_allowed)
    })
    .await;
    assert!(!check(&one_gate).await.is_allowed());
}

#[tokio::test(flavor = "multi_thread")]
async fn gates_with_different_limits_count_the_same_permits() {
    let server = Server::start(Kind::Redis, &[]);
    let make = |limit| {
        long_deadline(RedisGate::builder(server.url()).concurrency("work", limit, Duration::from_secs(60)))
    };
    let (before, fewer, more) = (make(3), make(2), make(4));
    let check = async |gate: &RedisGate| gate.check_parts(&one("alice")).await.expect("a request");
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(check(&before).await);
    }
    assert!(held.iter().all(Admission::is_allowed), "all three permits are granted");
    assert!(!check(&fewer).await.is_allowed());
    held.push(check(&more).await);
    assert!(held[3].is_allowed() && !check(&more).await.is_allowed());
    held.truncate(2); // two of four are released
    let left = async || {
        let peeked = more.request().rule_for("work", "alice").cost(0).peek().await;
        peeked.expect("a reply").remaining()
    };
    eventually("two are free", async || (left().await == 2).then_some(())).await;
    assert!(!check(&fewer).await.is_allowed(), "two are held, which is the whole smaller limit");
    held.clear();
    eventually("all are free", async || (left().await == 4).then_some(())).await;
    assert!(check(&fewer).await.is_allowed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_is_renewed_while_it_is_held() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(RedisGate::builder(server.url()).concurrency("work", 1, Duration::from_secs(4)));
    let held = gate.request().rule_for("work", "alice").try_acquire().await.expect("a free permit");
    assert!(held.is_allowed());
    let name = gate.describe(one("alice")[0]).expect("a rule");
    let expires = || {
        server.cli(&["PEXPIRETIME", &name]).parse::<u64>().expect("an instant, and not -2: the key exists")
    };
    let mut last = expires();
    for _ in 0..3 {
        last = until("the permit is renewed", || Some(expires()).filter(|later| *later > last));
        let second = gate.request().rule_for("work", "alice").try_acquire().await;
        assert!(second.expect_err("the permit is held").is_busy());
    }
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_starts_without_redis_and_recovers() {
    let mut server = Server::start(Kind::Redis, &[]);
    let url = server.url();
    server.kill();
    let builder = RedisGate::builder(url).rule("user", hourly(2)).on_outage(OnOutage::Open);
    let gate = builder
        .deadline(Duration::from_secs(20))
        .canary(Duration::from_millis(50))
        .build()
        .expect("a gate needs no server");
    let decision = gate.check_parts(&one("alice")).await.expect("a request").decision;
    assert_eq!((decision.is_allowed(), decision.source), (true, Source::Open));
    until("the outage is noticed", || (gate.health().enforced == Some(false)).then_some(()));
    assert_eq!(gate.health().connections, (0, 2));
    server.restart();
    enforced(&gate);
    assert_eq!(passed(&gate, "alice", 9).await, 2);
    assert_eq!(gate.health().connections, (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn describe_names_the_redis_key_which_expires_in_time() {
    let server = Server::start(Kind::Redis, &[]);
    let gate =
        long_deadline(RedisGate::builder(server.url()).rule("user", Quota::per_second(1_000).burst(1)));
    let name = gate.describe(Part::of(FIRST).key("alice")).expect("a rule");
    assert_eq!(name, "tg1{bqmI7nN6aND7HXu3YEDoBA}user");
    assert_eq!(passed(&gate, "alice", 1).await, 1);
    until("the key has expired", || (server.cli(&["EXISTS", &name]) == "0").then_some(()));
    assert_eq!(gate.describe(Part::of(RuleId(7))), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_quota_keeps_what_was_used() {
    let server = Server::start(Kind::Redis, &[]);
    let make = |rule: &str| {
        let rule: Rule = rule.parse().expect("a rule");
        long_deadline(RedisGate::builder(server.url()).rule("user", rule))
    };
    assert_eq!(passed(&make("10/h"), "alice", 8).await, 8);
    assert_eq!(passed(&make("12/h"), "alice", 20).await, 4, "the larger limit less what was used");
    for other in [
        "fixed_window 12/h",
        "sliding_log 12/h",
        "sliding_window 12/h cells 6",
        "stepped_bucket 12/h",
        "12/d",
    ] {
        assert_eq!(passed(&make(other), "alice", 20).await, 0, "{other}: all of it is used");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn build_reports_all_errors_together() {
    let wrong = RedisGate::builder("http://example.org:6379")
        .rule("a", hourly(1))
        .rule("a", hourly(2))
        .concurrency("", 0, Duration::from_secs(1))
        .deadline(Duration::ZERO)
        .build()
        .expect_err("nearly everything is wrong");
    let sentences = wrong.to_string();
    for part in ["http://example.org", "two rules are named \"a\"", "use 1 to 128 bytes", "deadline of 0"] {
        assert!(sentences.contains(part), "{part:?} in {sentences:?}");
    }
    let secret = RedisGate::builder("redis://me:secret@:badport/").rule("a", hourly(1)).build();
    assert!(!secret.expect_err("no port").to_string().contains("secret"));
    assert!(
        RedisGate::builder("redis://localhost")
            .build()
            .expect_err("no rules")
            .to_string()
            .contains("add a rule")
    );
}

#[test]
fn build_outside_a_runtime_is_an_error() {
    let error = RedisGate::builder("redis://localhost").rule("a", hourly(1)).build().expect_err("no runtime");
    assert!(error.to_string().contains("tokio runtime"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_waits_for_the_first_reply_so_that_the_first_decision_is_strict() {
    let server = Server::start(Kind::Redis, &[]);
    for round in 0..20 {
        let builder = RedisGate::builder(server.url()).rule("user", hourly(1_000));
        let builder = builder.deadline(Duration::from_secs(20)).connect_timeout(Duration::from_secs(60));
        let gate = builder.connect().await.expect("a healthy server");
        let decision = gate.limiter("user").expect("a rate limit").check("alice").await;
        assert_eq!((decision.source, decision.is_allowed()), (Source::Strict, true), "round {round}");
        assert_eq!(gate.health().fallbacks.total(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_fails_after_its_timeout_and_says_why() {
    let builder = RedisGate::builder("redis://127.0.0.1:1/").rule("user", hourly(3));
    let (started, timeout) = (Instant::now(), Duration::from_millis(200));
    let error = builder.clone().connect_timeout(timeout).connect().await.expect_err("nothing listens there");
    assert!(started.elapsed() >= timeout && error.is_unavailable() && !error.is_invalid());
    let message = error.to_string();
    assert!(message.starts_with("no reply from the store within 200ms: "), "{message}");
    assert!(message.contains("refused") && message.contains("that its address is right"), "{message}");
    let error = builder.nodes(0).connect().await.expect_err("invalid");
    assert!(error.is_invalid() && error.to_string().contains("0 nodes"), "{error}");
}
