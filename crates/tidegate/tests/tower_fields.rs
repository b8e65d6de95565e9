//! What the layer tells clients of several rules, of busy slots and of WebSockets.

mod served;

use std::time::Duration;

use http::{HeaderMap, Request, Response};
use served::{Counting, of, send};
use tidegate::http::{Evaluation, Expose, Fields, Head, KeyPart, LimitOutcome, Limits, LimitsBuilder, by};
use tidegate::tower::RateLimitLayer;
use tidegate::{ConcurrencyLimiter, ManualClock, Policy, Quota, Rule};
use tower_layer::Layer;

type Rules = Policy<Rule, ManualClock>;

const EVERYBODY: Quota = Quota::per_minute(100);
const USER: Quota = Quota::per_minute(2);

/// Everybody, each user, and something that is nobody's business.
fn limits(set: impl FnOnce(LimitsBuilder<Rules>) -> LimitsBuilder<Rules>) -> Limits {
    let policy = Policy::builder()
        .rule("everybody", EVERYBODY)
        .rule("user", USER)
        .rule("abuse", Quota::per_hour(50))
        .rule("tried out", Quota::per_hour(50))
        .build()
        .expect("as the test wants it")
        .with_clock(ManualClock::new());
    let limits = Limits::over(policy)
        .rule("everybody", by::global())
        .quota(EVERYBODY)
        .rule("user", by::header("x-user").or_skip())
        .quota(USER)
        .rule("abuse", by::global())
        .expose(Expose::RetryAfterOnly)
        .rule("tried out", by::global())
        .shadow();
    set(limits).build().expect("as the test wants it")
}

async fn told(limits: &Limits, request: Request<()>) -> Response<Vec<u8>> {
    send(&mut RateLimitLayer::new(limits.clone()).layer(Counting::default()), request).await
}

fn lists(headers: &HeaderMap) -> [&str; 2] {
    ["ratelimit-policy", "ratelimit"].map(|name| headers[name].to_str().expect("as the test wants it"))
}

const POLICY: &str = "\"everybody\";q=100;w=60, \"user\";q=2;w=60";

#[tokio::test]
async fn every_rule_that_is_shown_is_told_in_the_order_of_the_rules() {
    let limits = limits(|limits| limits.fields(Fields::Draft11));
    let first = told(&limits, of("alice")).await;
    assert_eq!(lists(first.headers()), [POLICY, "\"everybody\";r=99;t=1, \"user\";r=1;t=30"]);
    let nobody = told(&limits, Request::new(())).await; // and so has no rule of its own
    assert_eq!(lists(nobody.headers()), [POLICY, "\"everybody\";r=98;t=2"]);
}

#[tokio::test]
async fn a_refusal_tells_the_other_rules_as_they_were_found() {
    let limits = limits(|limits| limits.fields(Fields::Draft11));
    for _ in 0..2 {
        assert_eq!(told(&limits, of("alice")).await.status(), 200);
    }
    let refused = told(&limits, of("alice")).await;
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &"30".parse().unwrap()));
    assert_eq!(lists(refused.headers()), [POLICY, "\"everybody\";r=98;t=2, \"user\";r=0;t=30"]);
}

fn violated(response: &Response<Vec<u8>>) -> &str {
    let text = std::str::from_utf8(response.body()).expect("as the test wants it");
    text.split_once("\"violated-policies\":").expect("it tells them").1.trim_end_matches('}')
}

#[tokio::test]
async fn all_rules_that_refuse_are_told_and_the_longest_wait() {
    let policy = Policy::builder()
        .rule("hourly", Quota::per_hour(1))
        .rule("daily", Quota::per_day(1))
        .rule("abuse", Quota::per_hour(1))
        .rule("wide", Quota::per_hour(9))
        .concurrency("places", 1)
        .build()
        .expect("as the test wants it")
        .with_clock(ManualClock::new());
    let limits = Limits::over(policy)
        .rule("hourly", by::global())
        .rule("daily", by::header("x-user").or_skip())
        .rule("abuse", by::global())
        .expose(Expose::Hidden)
        .rule("wide", by::global())
        .rule("places", by::global())
        .fields(Fields::Draft11)
        .build()
        .expect("as the test wants it");
    let Evaluation::Now(LimitOutcome::Pass(_at_work)) = limits.evaluate(&Head::of(&of("alice"))) else {
        panic!("it is the first")
    };
    let busy = told(&limits, of("alice")).await;
    assert_eq!(
        (busy.status().as_u16(), busy.headers()["retry-after"].to_str().unwrap()),
        (503, "86400"),
        "a second would do for the places, and be in vain for the rest"
    );
    assert_eq!(violated(&busy), r#"["hourly","daily","places"]"#);
    drop(_at_work);
    let refused = told(&limits, of("alice")).await;
    assert_eq!((refused.status().as_u16(), violated(&refused)), (429, r#"["hourly","daily"]"#));
    assert_eq!(refused.headers()["retry-after"], "86400");
    let another = told(&limits, of("bob")).await;
    assert_eq!(violated(&another), r#"["hourly"]"#);
    assert_eq!(another.headers()["retry-after"], "3600");
}

#[tokio::test]
async fn where_there_is_room_for_one_rule_it_is_the_one_with_the_least_left() {
    let limits = limits(|limits| limits.fields(Fields::XRateLimit));
    let first = told(&limits, of("alice")).await;
    let three =
        ["limit", "remaining", "reset"].map(|name| first.headers()[format!("x-ratelimit-{name}")].clone());
    assert_eq!(three, ["2", "1", "30"]);
}

/// A limit of one at once, of which somebody has the place.
fn busy(set: impl FnOnce(LimitsBuilder<ConcurrencyLimiter>) -> LimitsBuilder<ConcurrencyLimiter>) -> Limits {
    let limiter = ConcurrencyLimiter::new(1);
    let permit = limiter.try_acquire().expect("nobody has it yet").into_owned();
    std::mem::forget(permit);
    set(Limits::over(limiter).rule("places", by::global())).build().expect("as the test wants it")
}

#[tokio::test]
async fn when_to_come_back_to_busy_slots_is_a_setting() {
    for (limits, seconds) in [
        (busy(|limits| limits), "1"),
        (busy(|limits| limits.retry_when_busy_after(Duration::from_millis(4_001))), "5"),
        (busy(|limits| limits.retry_when_busy_after(Duration::ZERO)), "1"),
    ] {
        let refused = told(&limits, Request::new(())).await;
        assert_eq!(
            (refused.status().as_u16(), refused.headers()["retry-after"].to_str().unwrap()),
            (503, seconds)
        );
    }
}

/// HD-13.
#[tokio::test]
async fn a_websocket_is_refused_before_the_upgrade_and_closed_after_it() {
    let upgrade = || {
        Request::get("/chat")
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("x-user", "alice")
            .body(())
            .expect("as the test wants it")
    };
    let limits = limits(|limits| limits);
    for _ in 0..2 {
        assert_eq!(told(&limits, upgrade()).await.status(), 200);
    }
    let before = told(&limits, upgrade()).await;
    assert_eq!(before.status(), 429);
    assert!(
        ["upgrade", "connection", "sec-websocket-accept"]
            .iter()
            .all(|name| !before.headers().contains_key(*name))
    );

    for (limits, code) in [(limits, 1008), (busy(|limits| limits), 1013)] {
        let message = upgrade();
        let Evaluation::Now(LimitOutcome::Refuse(refusal)) = limits.evaluate(&Head::of(&message)) else {
            panic!("it is used up")
        };
        assert_eq!(refusal.close_code(), code);
    }
}
