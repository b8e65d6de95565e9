//! Requests by the names of rules: the calls of a limiter in memory, and the mistakes that they report.

mod gates;
mod leased;
mod support;

use std::time::{Duration, Instant};

use gates::{long_deadline, passed};
use leased::LONG;
use support::{Kind, Server};
use tidegate::gate::{Part, RuleId};
use tidegate::{AcquireError, Decision, InvalidRequest, KeyedLimiter, ManualClock, Outcome, Quota, Source};
use tidegate_redis::{Builder, OnOutage, RedisGate};

const HOUR: Duration = Duration::from_secs(3_600);
/// The largest cost.
const ALL: u32 = u32::MAX;

fn quota() -> Quota {
    Quota::per_hour(5)
}

/// A gate with one rate limit.
fn single(server: &Server, quota: Quota) -> RedisGate {
    long_deadline(RedisGate::builder(server.url()).rule("user", quota))
}

/// Two rate limits and a concurrency limit.
fn three_rules(server: &Server) -> Builder {
    RedisGate::builder(server.url()).rule("global", Quota::per_hour(100)).rule("user", quota()).concurrency(
        "uploads",
        1,
        Duration::from_secs(60),
    )
}

/// What both limiters must agree on. The wait differs by the time that the calls take.
#[derive(Debug, PartialEq, Eq)]
enum Observed {
    Decision { outcome: &'static str, limit: u64, remaining: u64 },
    Error { is_timeout: bool, is_never: bool, has_retry_after: bool },
}

impl From<Decision> for Observed {
    fn from(decision: Decision) -> Self {
        let outcome = match decision.outcome {
            Outcome::Allowed => "allowed",
            Outcome::RetryAfter(_) => "retry after",
            Outcome::Never => "never",
            Outcome::AllowedAfter(_) | Outcome::Busy => "unexpected",
        };
        Observed::Decision { outcome, limit: decision.limit(), remaining: decision.remaining() }
    }
}

impl From<Result<Decision, AcquireError>> for Observed {
    fn from(result: Result<Decision, AcquireError>) -> Self {
        match result {
            Ok(decision) => decision.into(),
            Err(error) => Observed::Error {
                is_timeout: error.is_timeout(),
                is_never: error.is_never(),
                has_retry_after: error.retry_after().is_some(),
            },
        }
    }
}

/// The same program for each limiter. The only difference is the `await` after `check`.
macro_rules! program {
    ($limiter:expr $(, $await:tt)?) => {{
        let limiter = $limiter;
        let observed: Vec<Observed> = vec![
            limiter.check("alice")$(.$await)?.into(),
            limiter.request("alice").cost(2).check()$(.$await)?.into(),
            limiter.request("alice").cost(3).check()$(.$await)?.into(),
            limiter.acquire("alice").await.into(),
            limiter.request("alice").cost(0).check()$(.$await)?.into(),
            limiter.request("alice").cost(1).timeout(HOUR).acquire().await.into(),
            limiter.request("alice").timeout(Duration::from_secs(1)).acquire().await.into(),
            limiter.request("alice").timeout(Duration::ZERO).acquire().await.into(),
            limiter.check("alice")$(.$await)?.into(),
            limiter.request("alice").cost(6).check()$(.$await)?.into(),
            limiter.request("alice").cost(6).acquire().await.into(),
            limiter.request("bob").cost(5).check()$(.$await)?.into(),
            limiter.check("bob")$(.$await)?.into(),
        ];
        observed
    }};
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_program_gives_the_same_decisions_in_memory_and_in_redis() {
    let server = Server::start(Kind::Redis, &[]);
    let in_memory = program!(KeyedLimiter::<str>::builder(quota()).clock(ManualClock::new()).build());
    let in_redis = program!(single(&server, quota()).limiter("user").expect("a rate limit"), await);
    assert_eq!(in_redis, in_memory);
    assert_eq!(in_memory[0], Observed::Decision { outcome: "allowed", limit: 5, remaining: 4 });
    assert_eq!(in_memory[10], Observed::Error { is_timeout: false, is_never: true, has_retry_after: false });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_rule_is_reported_with_the_names_of_the_known_rules() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(three_rules(&server));
    let message = r#"there is no rule "typo"; the rules are "global", "user", "uploads""#;
    let error = gate.limiter("typo").expect_err("a typo");
    assert!(matches!(error.invalid_request(), Some(InvalidRequest::NoSuchRule { .. })), "{error:?}");
    assert_eq!(error.to_string(), message);
    let error = gate.request().rule("global").rule_for("typo", "alice").check().await.expect_err("a typo");
    assert_eq!(error.to_string(), message);
    let error = gate.request().rule("typo").try_acquire().await.expect_err("a typo");
    assert_eq!(error.to_string(), message);
    let error = gate.request().check().await.expect_err("no rule at all");
    assert_eq!(error.invalid_request(), Some(&InvalidRequest::Empty));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_of_a_concurrency_limit_is_an_error_that_says_try_acquire() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(three_rules(&server));
    let error = gate.limiter("uploads").expect_err("a concurrency limit");
    assert_eq!(error.invalid_request(), Some(&InvalidRequest::NeedsPermit { rule: "uploads".into() }));
    assert!(error.to_string().contains("use `try_acquire`"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_with_a_concurrency_limit_is_an_error_and_charges_nothing() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(three_rules(&server));
    let request = || gate.request().rule_for("user", "alice").rule("uploads");
    let needs_permit = InvalidRequest::NeedsPermit { rule: "uploads".into() };
    let error = request().check().await.expect_err("a concurrency limit");
    assert_eq!(error.invalid_request(), Some(&needs_permit));
    let error = request().check_each().await.expect_err("a concurrency limit");
    assert_eq!(error.invalid_request(), Some(&needs_permit));
    let left = gate.request().rule_for("user", "alice").cost(0).peek().await.expect("a reply");
    assert_eq!(left.remaining(), 5);

    let held = request().try_acquire().await.expect("a free permit");
    assert_eq!(held.permits.len(), 1);
    let busy = request().try_acquire().await.expect_err("the permit is held");
    assert_eq!((busy.is_busy(), busy.rule()), (true, Some("uploads")));
    let left = gate.request().rule_for("user", "alice").cost(0).peek().await.expect("a reply");
    assert_eq!(left.remaining(), 4, "only the first was charged");
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_that_are_given_twice_are_an_error_and_charge_nothing() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(three_rules(&server));
    let (global, user) = ([Part::of(RuleId(0))], [Part::of(RuleId(1)).key("alice")]);
    let error = gate.request().parts(&global).parts(&user).check().await.expect_err("parts twice");
    assert_eq!(error.invalid_request(), Some(&InvalidRequest::PartsTwice));
    let error =
        gate.request().rule_for("user", "alice").parts(&user).check().await.expect_err("the same key");
    assert_eq!(error.invalid_request(), Some(&InvalidRequest::SameKeyTwice { rule: RuleId(1) }));
    for rule in [global, user] {
        let left = gate.request().parts(&[rule[0].cost(0)]).peek().await.expect("a reply");
        assert_eq!(left.remaining(), left.limit());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cost_of_a_request_applies_only_to_the_rules_that_it_names() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(three_rules(&server));
    let parts = [Part::of(RuleId(0)).cost(7)];
    let checked = gate.request().cost(3).parts(&parts).rule_for("user", "alice").check_each().await;
    let mut checked = checked.expect("a valid request");
    checked.rules.sort_by_key(|decision| decision.rule);
    let remaining: Vec<_> = checked.rules.iter().map(|it| (it.rule, it.remaining())).collect();
    assert_eq!(remaining, [(RuleId(0), 100 - 7), (RuleId(1), 5 - 3)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_that_cannot_suffice_is_refused_at_once_with_the_rule_and_the_wait() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(three_rules(&server));
    assert_eq!(
        gate.limiter("user").expect("a rate limit").request("alice").cost(5).check().await.remaining(),
        0
    );
    let started = Instant::now();
    let request = gate.request().rule("global").rule_for("user", "alice");
    let error =
        request.timeout(Duration::from_secs(60)).acquire().await.expect_err("twelve minutes are longer");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert!(error.is_timeout() && !error.is_never() && !error.is_busy(), "{error:?}");
    assert_eq!((error.rule(), error.rule_id()), (Some("user"), RuleId(1)));
    let wait = error.retry_after().expect("it is known").as_secs_up();
    assert!((600..=720).contains(&wait), "{wait} s");
    let message = error.to_string();
    assert!(message.starts_with("rule \"user\": the wait would be "), "{message}");
    assert!(message.contains("longer than the timeout of "), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_does_not_become_free_in_time_is_a_timeout() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(three_rules(&server));
    let held = gate.request().rule("uploads").acquire().await.expect("a free permit");
    let (started, timeout) = (Instant::now(), Duration::from_millis(100));
    let error = gate.request().rule("uploads").timeout(timeout).acquire().await.expect_err("it is held");
    assert!(error.is_timeout() && !error.is_busy(), "{error:?}");
    assert_eq!((error.rule(), error.retry_after()), (Some("uploads"), None));
    assert!(started.elapsed() >= timeout / 2, "it waits");
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cost_above_the_limit_is_never_allowed() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(three_rules(&server));
    let request = || gate.request().rule("global").rule_for("user", "alice").cost(6);
    let errors = [
        request().acquire().await.expect_err("six of five"),
        request().timeout(HOUR).acquire().await.expect_err("six of five"),
        request().try_acquire().await.expect_err("six of five"),
        gate.limiter("user")
            .expect("a rate limit")
            .request("alice")
            .cost(6)
            .acquire()
            .await
            .expect_err("the same"),
    ];
    for error in errors {
        assert!(error.is_never() && !error.is_timeout(), "{error:?}");
        assert_eq!((error.rule(), error.retry_after()), (Some("user"), None));
        let message = "rule \"user\": cost 6 exceeds the limit of 5: it can never be allowed; use 5 or less";
        assert_eq!(error.to_string(), message);
    }
}

/// The waiter would sleep for an hour. The second waiter is behind it in the queue, and polls only when it is first.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_acquire_future_leaves_the_queue() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = single(&server, Quota::per_hour(1));
    let limiter = gate.limiter("user").expect("a rate limit");
    assert!(limiter.check("alice").await.is_allowed());
    let first = tokio::time::timeout(Duration::from_millis(200), limiter.acquire("alice"));
    assert!(first.await.is_err(), "it waits until it is dropped");
    limiter.request("alice").reset().await.expect("a reply");
    let next = tokio::time::timeout(Duration::from_secs(20), limiter.acquire("alice")).await;
    assert!(next.expect("no waiter is in front of it").expect("a token").is_allowed());
    assert!(!limiter.check("alice").await.is_allowed(), "the dropped future charged nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leased_gate_has_the_same_limiters_and_requests() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = leased::ready(three_rules(&server).rule("leased", Quota::per_hour(1_000)).lease(LONG));
    let limiter = gate.limiter("leased").expect("a rate limit");
    for _ in 0..50 {
        let decision = limiter.check("alice").await;
        assert_eq!((decision.is_allowed(), decision.source), (true, Source::Lease));
    }
    limiter.request("alice").cost(2).refund().await.expect("a reply");
    assert!(limiter.request("alice").cost(3).peek().await.expect("a reply").is_allowed());
    limiter.request("alice").reset().await.expect("a reply");
    let strict = gate.limiter("user").expect("a rate limit").request("alice").cost(2).check().await;
    assert_eq!((strict.remaining(), strict.source), (3, Source::Strict));
    let both = gate.request().rule_for("leased", "bob").rule_for("user", "bob").check().await;
    assert_eq!(both.expect("a valid request").remaining(), 0, "of a grant of one token");

    let error = gate.limiter("typo").expect_err("a typo");
    assert!(error.to_string().ends_with(r#""global", "user", "uploads", "leased""#), "{error}");
    let error = gate.limiter("uploads").expect_err("a concurrency limit");
    assert!(error.to_string().contains("use `try_acquire`"), "{error}");
    let held = gate.request().rule_for("leased", "bob").rule("uploads").try_acquire().await;
    assert_eq!(held.expect("a free permit").permits.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_error_type_reports_an_invalid_request_and_an_outage() {
    let mut server = Server::start(Kind::Redis, &[]);
    let builder = three_rules(&server).rule("closed", quota()).on_outage(OnOutage::Closed);
    let gate = gates::ready(builder.deadline(Duration::from_millis(500)));
    let invalid = gate.request().rule("typo").peek().await.expect_err("a typo");
    assert!(invalid.invalid_request().is_some() && !invalid.is_timeout() && !invalid.is_unavailable());
    server.kill();
    let outage = gate.request().rule_for("user", "alice").peek().await.expect_err("the server is stopped");
    assert!(outage.invalid_request().is_none(), "{outage:?}");
    assert!(outage.is_unavailable() || outage.is_timeout(), "{outage:?}");
    let limiter = gate.limiter("user").expect("a name needs no server");
    let outage = limiter.request("alice").refund().await.expect_err("the server is stopped");
    assert!(outage.is_unavailable() || outage.is_timeout(), "{outage:?}");

    // A decision is made all the same, and the error of a closed rule says why.
    assert_eq!(limiter.check("alice").await.source, Source::Local);
    let closed = gate.request().rule_for("closed", "alice").try_acquire().await.expect_err("closed");
    assert!(closed.is_closed() && !closed.is_timeout(), "{closed:?}");
    assert_eq!(closed.rule(), Some("closed"));
    assert!(closed.to_string().contains("the store is unavailable"), "{closed}");
}

/// The limits are 2⁵² per microsecond, with a burst of 2⁵²: the largest numbers that the script has to count.
#[tokio::test(flavor = "multi_thread")]
async fn an_unlimited_rule_allows_the_largest_costs_exactly() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = single(&server, Quota::unlimited());
    let limiter = gate.limiter("user").expect("a rate limit");
    for _ in 0..100 {
        let decision = limiter.request("alice").cost(ALL).check().await;
        assert_eq!((decision.is_allowed(), decision.source), (true, Source::Strict));
        assert_eq!((decision.limit(), decision.remaining()), (1 << 52, (1 << 52) - u64::from(ALL)));
        assert_eq!(decision.reset_after().as_micros(), 1);
    }
    let taken = limiter.request("alice").cost(ALL).take().await.expect("a reply");
    assert_eq!((taken.amount, taken.decision.remaining()), (ALL, (1 << 52) - u64::from(ALL)));
    limiter.request("alice").cost(ALL).refund().await.expect("a reply");
    assert_eq!(limiter.request("alice").cost(0).check().await.remaining(), 1 << 52);
    assert!(limiter.request("alice").cost(ALL).acquire().await.expect("a token").is_allowed());
    assert_eq!(passed(&gate, "alice", 50).await, 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leased_unlimited_rule_never_refuses_on_any_node() {
    let server = Server::start(Kind::Redis, &[]);
    let node = || {
        let builder = RedisGate::builder(server.url()).rule("user", Quota::unlimited()).lease(LONG);
        leased::ready(builder.nodes(2))
    };
    let nodes = [node(), node()];
    for round in 0..200_u32 {
        for gate in &nodes {
            for cost in [1, 1 << 20, 1 << 28, ALL] {
                let decision =
                    gate.limiter("user").expect("a rate limit").request("alice").cost(cost).check().await;
                assert!(decision.is_allowed(), "round {round}, cost {cost}: {decision:?}");
            }
        }
    }
    assert!(nodes.iter().all(|gate| gate.stats().spent > 0), "some decisions are made locally");
    for gate in &nodes {
        gate.return_grants().await;
    }
    let left = nodes[0].strict().request().rule_for("user", "alice").cost(0).peek().await.expect("a reply");
    assert_eq!(left.remaining(), 1 << 52);
    let hourly = leased::hourly(&server, 10, LONG);
    assert!(
        hourly.limiter("user").expect("a rate limit").request("carol").cost(10).check().await.is_allowed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unlimited_rule_stays_unlimited_in_an_outage() {
    let mut server = Server::start(Kind::Redis, &[]);
    let builder = RedisGate::builder(server.url()).rule("user", Quota::unlimited()).nodes(3);
    let gate = gates::ready(builder.deadline(Duration::from_millis(500)));
    server.kill();
    let limiter = gate.limiter("user").expect("a rate limit");
    let _ = limiter.check("alice").await; // the shares start empty, for a microsecond
    tokio::time::sleep(Duration::from_millis(1)).await;
    for _ in 0..100 {
        let decision = limiter.request("alice").cost(ALL).check().await;
        assert_eq!((decision.is_allowed(), decision.source), (true, Source::Local), "{decision:?}");
    }
}
