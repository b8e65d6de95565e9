//! The other operations on leased rules, and grants for clients, on a real server.

mod gates;
mod leased;
mod support;

use std::time::Duration;

use gates::FIRST;
use leased::{LONG, hourly, ready};
use support::{Kind, Server, until};
use tidegate::gate::{Part, RuleId};
use tidegate::{Quota, Rule, Source};
use tidegate_redis::{Lease, Leased, Receipt, RedisGate};

const SECOND: RuleId = RuleId(1);

fn alice(cost: u32) -> [Part<'static>; 1] {
    [Part::of(FIRST).key("alice").cost(cost)]
}

async fn passed(gate: &Leased, times: usize) -> usize {
    let mut passed = 0;
    for _ in 0..times {
        passed += usize::from(gate.check_parts(&alice(1)).await.expect("a request").is_allowed());
    }
    passed
}

/// What Redis would still grant.
async fn left(gate: &Leased) -> u64 {
    gate.strict().request().parts(&alice(0)).peek().await.expect("a reply").remaining()
}

/// A gate with six tokens spent and some here: 1, 2 and 4 were granted, and then the next grant was
/// requested.
async fn with_some_here(server: &Server) -> Leased {
    let gate = hourly(server, 1_000, LONG);
    assert_eq!(passed(&gate, 6).await, 6);
    until("the next grant has arrived", || (gate.stats().granted == 15).then_some(()));
    gate
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peek_sees_local_tokens_and_takes_none() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = with_some_here(&server).await;
    let commands = gate.strict().health().commands;
    let seen = gate.request().parts(&alice(2)).peek().await.expect("a reply");
    assert_eq!((seen.is_allowed(), seen.remaining(), seen.source), (true, 7, Source::Lease));
    let again = gate.request().parts(&alice(2)).peek().await.expect("a reply");
    assert_eq!(again.remaining(), 7);
    let more = gate.request().parts(&alice(10)).peek().await.expect("a reply");
    assert_eq!((more.remaining(), more.source), (975, Source::Strict), "{commands}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_goes_to_the_grant_or_to_redis_if_already_reported_spent() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = with_some_here(&server).await;
    // With the last request for a grant, Redis learned that one token is left of the grant before.
    assert_eq!(left(&gate).await, 1_000 - 15);
    gate.request().parts(&alice(2)).refund().await.expect("done");
    assert_eq!(left(&gate).await, 1_000 - 15 + 2, "all spent tokens were reported to Redis");
    assert_eq!(passed(&gate, 3).await, 3);
    gate.request().parts(&alice(3)).refund().await.expect("done");
    let seen = gate.request().parts(&alice(1)).peek().await.expect("a reply");
    assert_eq!(seen.remaining(), 8, "the three are here again");
    assert_eq!(left(&gate).await, 1_000 - 15 + 2, "and not in Redis");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_returns_local_tokens_and_clears_a_cached_refusal() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = hourly(&server, 20, LONG);
    assert_eq!(passed(&gate, 30).await, 20);
    gate.request().parts(&alice(1)).reset().await.expect("done");
    assert_eq!(passed(&gate, 30).await, 20, "the cached refusal is cleared");
    gate.request().parts(&alice(1)).reset().await.expect("done");
    assert_eq!(passed(&gate, 3).await, 3);
    gate.request().parts(&alice(1)).reset().await.expect("done");
    assert_eq!(left(&gate).await, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_each_reports_each_part_and_a_refusal_spends_nothing() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = ready(
        RedisGate::builder(server.url())
            .rule("all", Quota::per_hour(100))
            .lease(LONG)
            .rule("user", Quota::per_hour(2)),
    );
    let request = [Part::of(FIRST), Part::of(SECOND).key("bob")];
    let decisions = async || {
        let admission = gate.request().parts(&request).check_each().await.expect("a request");
        let reported: Vec<_> =
            admission.rules.iter().map(|rule| (rule.rule, rule.is_allowed(), rule.remaining())).collect();
        (admission.decision.is_allowed(), reported)
    };
    assert_eq!(decisions().await, (true, vec![(FIRST, true, 0), (SECOND, true, 1)]));
    assert!(decisions().await.0);
    let spent = gate.stats().spent;
    let refused = decisions().await;
    let found = (FIRST, true, 1); // of a grant of two, one of which was spent before
    assert_eq!(refused, (false, vec![found, (SECOND, false, 0)]), "as if nothing had been spent");
    assert_eq!(gate.stats().spent, spent);
    let alone = gate.request().parts(&[Part::of(FIRST)]).check_each().await.expect("a request");
    assert_eq!((alone.rules.len(), alone.rules[0].source), (1, Source::Lease));
    while gate.check_parts(&[Part::of(FIRST)]).await.expect("a request").is_allowed() {}
    let refused = gate
        .request()
        .parts(&[Part::of(FIRST), Part::of(SECOND).key("carol")])
        .check_each()
        .await
        .expect("a request");
    let reported: Vec<_> = refused.rules.iter().map(|rule| (rule.is_allowed(), rule.source)).collect();
    assert_eq!(reported, [(false, Source::Lease), (true, Source::Strict)]);
    let untouched = gate.strict().request().parts(&[Part::of(SECOND).key("carol").cost(0)]).peek().await;
    assert_eq!(untouched.expect("a reply").remaining(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_granted_token_is_counted_as_spent_returned_or_expired() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = hourly(&server, 1_000, Lease::new().ttl(Duration::from_millis(20)));
    for _ in 0..3 {
        assert_eq!(passed(&gate, 40).await, 40);
    }
    gate.return_grants().await;
    until("every token is accounted for", || {
        let stats = gate.stats();
        (stats.granted == stats.spent + stats.returned + stats.expired).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_gate_continues_the_counters() {
    let server = Server::start(Kind::Redis, &[]);
    let one = with_some_here(&server).await;
    let builder = RedisGate::builder(server.url()).rule("user", Quota::per_hour(1_000)).lease(LONG);
    let two = ready(builder.continue_counters_of(one.strict()));
    assert_eq!((two.stats().spent, two.stats().granted), (6, 15));
    assert!(two.strict().health().commands > 4);
    drop(one);
    until("unspent tokens are returned", || (two.stats().returned == 9).then_some(()));
    assert_eq!(left(&two).await, 1_000 - 6);
}

// === grants for clients ===

fn strict(server: &Server, rule: &str) -> RedisGate {
    let rule: Rule = rule.parse().expect("a rule");
    gates::long_deadline(RedisGate::builder(server.url()).rule("user", rule))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_grant_is_charged_when_granted_and_taken_back_once() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = strict(&server, "10/h");
    let lease = Lease::new().ttl(Duration::from_secs(64));
    let grant = gate.grant(alice(7)[0], [1; 16], lease).await.expect("a reply");
    assert_eq!((grant.amount, grant.wait), (7, Duration::ZERO));
    assert_eq!((grant.ttl, grant.receipt), (Duration::from_secs(63), Receipt::Bucket([1; 16])));
    assert_eq!(grant.decision.remaining(), 3);
    let more = gate.grant(alice(9)[0], [2; 16], lease).await.expect("a reply");
    assert_eq!(more.amount, 2, "no more than may be unspent");
    let none = gate.grant(alice(1)[0], [3; 16], lease).await.expect("a reply");
    assert_eq!((none.amount, none.ttl), (0, Duration::ZERO));
    assert!(none.wait > Duration::ZERO && none.wait <= Duration::from_secs(8), "{:?}", none.wait);
    for _ in 0..2 {
        let back = gate.return_grant(alice(4)[0], Receipt::Bucket([1; 16])).await.expect("done");
        assert_eq!(back.remaining(), 5, "once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_grant_of_a_window_ends_with_the_window() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = strict(&server, "fixed_window 10/day");
    let lease = Lease::new().ttl(Duration::from_secs(3_600));
    let grant = gate.grant(alice(7)[0], [1; 16], lease).await.expect("a reply");
    assert_eq!((grant.amount, grant.decision.remaining()), (7, 3));
    let (ttl, whole) = (grant.ttl, Duration::from_micros(grant.decision.reset_after().as_micros()));
    assert!(ttl < whole && ttl < Duration::from_secs(3_600), "{ttl:?} {whole:?}");
    let back = gate.return_grant(alice(5)[0], grant.receipt).await.expect("done");
    assert_eq!(back.remaining(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_cannot_be_granted_is_an_error() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = strict(&server, "sliding_log 5/s");
    let cannot = gate.grant(alice(1)[0], [1; 16], Lease::new()).await.expect_err("no bucket");
    assert_eq!(
        cannot.to_string(),
        "rule \"user\": only token buckets and fixed windows can be leased; remove the lease"
    );
    let gate = strict(&server, "5/s");
    let cannot = gate.return_grant(alice(1)[0], Receipt::Window(tidegate::clock::Micros::ZERO)).await;
    assert!(cannot.expect_err("another kind").to_string().contains("use the rule that the grant is from"));
    let unknown = gate.grant(Part::of(RuleId(9)), [1; 16], Lease::new()).await.expect_err("no rule");
    assert!(unknown.to_string().contains('9'), "{unknown}");
}
