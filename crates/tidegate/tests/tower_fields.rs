//! Response headers of the layer for several rules, for concurrency limits and for WebSockets.

mod served;

use std::time::Duration;

use http::{HeaderMap, Request, Response};
use served::{Counting, of, send};
use tidegate::http::{Evaluation, Expose, Fields, Head, KeyPart, LimitOutcome, Limits, LimitsBuilder, by};
use tidegate::tower::RateLimitLayer;
use tidegate::{ConcurrencyLimiter, ManualClock, Policy, Quota, Rule};
use tower_layer::Layer;

type Rules = Policy<Rule, ManualClock>;

const GLOBAL: Quota = Quota::per_minute(100);
const USER: Quota = Quota::per_minute(2);

/// A global rule, a rule per user, a rule that only exposes retry-after, and a shadow rule.
fn limits(set: impl FnOnce(LimitsBuilder<Rules>) -> LimitsBuilder<Rules>) -> Limits {
    let policy = Policy::builder()
        .rule("global", GLOBAL)
        .rule("user", USER)
        .rule("abuse", Quota::per_hour(50))
        .rule("trial", Quota::per_hour(50))
        .clock(ManualClock::new())
        .build()
        .expect("valid");
    let limits = Limits::builder(policy)
        .rule("global", by::global())
        .quota(GLOBAL)
        .rule("user", by::header("x-user").or_skip())
        .quota(USER)
        .rule("abuse", by::global())
        .expose(Expose::RetryAfterOnly)
        .rule("trial", by::global())
        .shadow();
    set(limits).build().expect("valid")
}

async fn respond(limits: &Limits, request: Request<()>) -> Response<Vec<u8>> {
    send(&mut RateLimitLayer::new(limits.clone()).layer(Counting::default()), request).await
}

fn lists(headers: &HeaderMap) -> [&str; 2] {
    ["ratelimit-policy", "ratelimit"].map(|name| headers[name].to_str().expect("valid"))
}

const POLICY: &str = "\"global\";q=100;w=60, \"user\";q=2;w=60";

#[tokio::test]
async fn headers_list_every_exposed_rule_in_order() {
    let limits = limits(|limits| limits.fields(Fields::Draft11));
    let first = respond(&limits, of("alice")).await;
    assert_eq!(lists(first.headers()), [POLICY, "\"global\";r=99;t=1, \"user\";r=1;t=30"]);
    let anonymous = respond(&limits, Request::new(())).await; // no user, so no per-user rule
    assert_eq!(lists(anonymous.headers()), [POLICY, "\"global\";r=98;t=2"]);
}

#[tokio::test]
async fn refusal_reports_the_other_rules_uncharged() {
    let limits = limits(|limits| limits.fields(Fields::Draft11));
    for _ in 0..2 {
        assert_eq!(respond(&limits, of("alice")).await.status(), 200);
    }
    let refused = respond(&limits, of("alice")).await;
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &"30".parse().unwrap()));
    assert_eq!(lists(refused.headers()), [POLICY, "\"global\";r=98;t=2, \"user\";r=0;t=30"]);
}

fn violated(response: &Response<Vec<u8>>) -> &str {
    let text = std::str::from_utf8(response.body()).expect("valid");
    text.split_once("\"violated-policies\":").expect("the body lists them").1.trim_end_matches('}')
}

#[tokio::test]
async fn refusal_names_all_violated_rules_and_the_longest_retry_after() {
    let policy = Policy::builder()
        .rule("hourly", Quota::per_hour(1))
        .rule("daily", Quota::per_day(1))
        .rule("abuse", Quota::per_hour(1))
        .rule("wide", Quota::per_hour(9))
        .concurrency("permits", 1)
        .clock(ManualClock::new())
        .build()
        .expect("valid");
    let limits = Limits::builder(policy)
        .rule("hourly", by::global())
        .rule("daily", by::header("x-user").or_skip())
        .rule("abuse", by::global())
        .expose(Expose::Hidden)
        .rule("wide", by::global())
        .rule("permits", by::global())
        .fields(Fields::Draft11)
        .build()
        .expect("valid");
    let Evaluation::Now(LimitOutcome::Pass(_held)) = limits.evaluate(&Head::of(&of("alice"))) else {
        panic!("the first request passes")
    };
    let busy = respond(&limits, of("alice")).await;
    assert_eq!(
        (busy.status().as_u16(), busy.headers()["retry-after"].to_str().unwrap()),
        (503, "86400"),
        "one second would do for the permits, but not for the rates"
    );
    assert_eq!(violated(&busy), r#"["hourly","daily","permits"]"#);
    drop(_held);
    let refused = respond(&limits, of("alice")).await;
    assert_eq!((refused.status().as_u16(), violated(&refused)), (429, r#"["hourly","daily"]"#));
    assert_eq!(refused.headers()["retry-after"], "86400");
    let another = respond(&limits, of("bob")).await;
    assert_eq!(violated(&another), r#"["hourly"]"#);
    assert_eq!(another.headers()["retry-after"], "3600");
}

#[tokio::test]
async fn single_rule_headers_report_the_rule_with_the_least_remaining() {
    let limits = limits(|limits| limits.fields(Fields::XRateLimit));
    let first = respond(&limits, of("alice")).await;
    let three =
        ["limit", "remaining", "reset"].map(|name| first.headers()[format!("x-ratelimit-{name}")].clone());
    assert_eq!(three, ["2", "1", "30"]);
}

/// A concurrency limit of one, with its permit taken.
fn busy(set: impl FnOnce(LimitsBuilder<ConcurrencyLimiter>) -> LimitsBuilder<ConcurrencyLimiter>) -> Limits {
    let limiter = ConcurrencyLimiter::new(1);
    let permit = limiter.try_acquire().expect("the permit is free").into_owned();
    std::mem::forget(permit);
    set(Limits::builder(limiter).rule("permits", by::global())).build().expect("valid")
}

#[tokio::test]
async fn retry_after_of_a_busy_concurrency_limit_is_configurable() {
    for (limits, seconds) in [
        (busy(|limits| limits), "1"),
        (busy(|limits| limits.retry_when_busy_after(Duration::from_millis(4_001))), "5"),
        (busy(|limits| limits.retry_when_busy_after(Duration::ZERO)), "1"),
    ] {
        let refused = respond(&limits, Request::new(())).await;
        assert_eq!(
            (refused.status().as_u16(), refused.headers()["retry-after"].to_str().unwrap()),
            (503, seconds)
        );
    }
}

/// HD-13.
#[tokio::test]
async fn websocket_is_refused_before_the_upgrade_and_closed_after_it() {
    let upgrade = || {
        Request::get("/chat")
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("x-user", "alice")
            .body(())
            .expect("valid")
    };
    let limits = limits(|limits| limits);
    for _ in 0..2 {
        assert_eq!(respond(&limits, upgrade()).await.status(), 200);
    }
    let before = respond(&limits, upgrade()).await;
    assert_eq!(before.status(), 429);
    assert!(
        ["upgrade", "connection", "sec-websocket-accept"]
            .iter()
            .all(|name| !before.headers().contains_key(*name))
    );

    for (limits, code) in [(limits, 1008), (busy(|limits| limits), 1013)] {
        let message = upgrade();
        let Evaluation::Now(LimitOutcome::Refuse(refusal)) = limits.evaluate(&Head::of(&message)) else {
            panic!("the quota is used up")
        };
        assert_eq!(refusal.close_code(), code);
    }
}
