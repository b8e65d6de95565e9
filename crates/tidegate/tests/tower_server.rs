//! The server layer: which requests pass, how the others are answered, and the headers of both.

mod served;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode};
use served::{Counting, of, request, send};
use tidegate::gate::{Gate, Part};
use tidegate::http::{Expose, Fields, KeyPart, Limits, LimitsBuilder, Refusal, by};
use tidegate::tower::{RateLimit, RateLimitLayer};
use tidegate::{KeyedLimiter, Limiter, ManualClock, Policy, Quota, TokioClock};
use tower_layer::Layer;
use tower_service::Service;

type Served = RateLimit<Counting, Vec<u8>>;

fn in_front(limits: &Limits, service: &Counting) -> Served {
    RateLimitLayer::new(limits.clone()).layer(service.clone())
}

/// One per hour for each user.
fn one_an_hour() -> KeyedLimiter<str, tidegate::algorithm::TokenBucket, ManualClock> {
    KeyedLimiter::<str>::builder(Quota::per_hour(1)).clock(ManualClock::new()).build()
}

fn by_user() -> impl tidegate::http::RuleKey {
    by::header("x-user").or_refuse()
}

/// A global limit of one per hour, with these settings.
fn limits(
    set: impl FnOnce(
        LimitsBuilder<Limiter<tidegate::algorithm::TokenBucket, ManualClock>>,
    ) -> LimitsBuilder<Limiter<tidegate::algorithm::TokenBucket, ManualClock>>,
) -> Limits {
    let limiter = Limiter::builder(Quota::per_hour(1)).clock(ManualClock::new()).build();
    set(Limits::builder(limiter).rule("hourly", by::global())).build().expect("valid")
}

async fn refused(limits: &Limits, request: Request<()>) -> Response<Vec<u8>> {
    let mut service = in_front(limits, &Counting::default());
    let first = send(&mut service, Request::new(())).await;
    assert_eq!(first.body(), b"served");
    send(&mut service, request).await
}

fn text(response: &Response<Vec<u8>>) -> &str {
    std::str::from_utf8(response.body()).expect("valid")
}

#[tokio::test]
async fn clones_of_layer_and_service_share_the_limit() {
    let counting = Counting::default();
    let layer = RateLimitLayer::new(Limits::single(one_an_hour(), by_user()).unwrap());
    let mut first: Served = layer.layer(counting.clone());
    let (mut clone, mut of_a_clone): (Served, Served) =
        (first.clone(), layer.clone().layer(counting.clone()));
    assert_eq!(send(&mut first, of("alice")).await.status(), 200);
    for service in [&mut first, &mut clone, &mut of_a_clone] {
        assert_eq!(send(service, of("alice")).await.status(), 429);
    }
    assert_eq!(send(&mut clone, of("bob")).await.status(), 200);
    assert_eq!(counting.count(), 2, "a refused request does not reach the service");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_40_of_64_concurrent_requests_pass() {
    let counting = Counting::default();
    let limiter = Limiter::builder(Quota::per_hour(40)).clock(ManualClock::new()).build();
    let service = in_front(&Limits::single(limiter, by::global()).unwrap(), &counting);
    let barrier = Arc::new(tokio::sync::Barrier::new(64));
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (mut service, barrier) = (service.clone(), barrier.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                send(&mut service, request()).await.status()
            })
        })
        .collect();
    let mut passed = 0;
    for task in tasks {
        passed += usize::from(task.await.unwrap() == StatusCode::OK);
    }
    assert_eq!((passed, counting.count()), (40, 40));
}

#[tokio::test]
async fn poll_ready_charges_nothing_and_a_dropped_call_is_charged() {
    let counting = Counting::default();
    let limits =
        Limits::single(Limiter::builder(Quota::per_hour(2)).clock(ManualClock::new()).build(), by::global())
            .unwrap();
    let mut service = in_front(&limits, &counting);
    for _ in 0..10 {
        std::future::poll_fn(|cx| Service::<Request<()>>::poll_ready(&mut service, cx)).await.unwrap();
    }
    drop(service.call(request())); // the client reset the stream before the first poll
    assert_eq!(send(&mut service, request()).await.status(), 200);
    assert_eq!(send(&mut service, request()).await.status(), 429);
}

#[tokio::test]
async fn several_rules_are_all_or_nothing() {
    let policy = Policy::builder()
        .rule("global", Quota::per_hour(3))
        .rule("user", Quota::per_hour(1))
        .clock(ManualClock::new())
        .build()
        .unwrap();
    let limits =
        Limits::builder(policy.clone()).rule("global", by::global()).rule("user", by_user()).build().unwrap();
    let mut service = in_front(&limits, &Counting::default());
    assert_eq!(send(&mut service, of("alice")).await.status(), 200);
    for _ in 0..5 {
        let refused = send(&mut service, of("alice")).await;
        assert!(text(&refused).contains("\"violated-policies\":[\"user\"]"), "{}", text(&refused));
    }
    let global = Part::of(policy.rule("global").unwrap()).cost(0);
    assert_eq!(
        policy.request().parts(&[global]).peek().unwrap().remaining(),
        2,
        "refused requests are not charged"
    );
    assert_eq!((limits.stats()[0].refused, limits.stats()[1].refused), (0, 5));
}

#[tokio::test]
async fn costs_are_charged_and_skipped_requests_are_not() {
    let limiter = Limiter::builder(Quota::per_hour(6)).clock(ManualClock::new()).build();
    let limits = Limits::builder(limiter.clone())
        .rule("hourly", by::global())
        .cost(|head| if head.method == Method::POST { 5 } else { 1 })
        .skip_if(|head| head.uri.path() == "/health")
        .build()
        .unwrap();
    let mut service = in_front(&limits, &Counting::default());
    let post = || Request::post("/").body(()).unwrap();
    assert_eq!(send(&mut service, post()).await.status(), 200);
    assert_eq!(limiter.request().cost(0).peek().remaining(), 1);
    assert_eq!(send(&mut service, post()).await.status(), 429);
    assert_eq!(send(&mut service, request()).await.status(), 200);
    for _ in 0..3 {
        assert_eq!(send(&mut service, Request::get("/health").body(()).unwrap()).await.status(), 200);
    }
    assert_eq!(send(&mut service, request()).await.status(), 429);
}

#[tokio::test]
async fn refusal_names_the_rule_and_the_retry_after() {
    let response =
        refused(&limits(|limits| limits.quota(Quota::per_hour(1)).fields(Fields::Draft11)), request()).await;
    let headers = response.headers();
    assert_eq!(
        (response.status(), &headers["retry-after"]),
        (StatusCode::TOO_MANY_REQUESTS, &HeaderValue::from(3_600))
    );
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(headers["content-type"], "application/problem+json");
    assert_eq!(headers["ratelimit-policy"], "\"hourly\";q=1;w=3600");
    assert_eq!(headers["ratelimit"], "\"hourly\";r=0;t=3600"); // HD-05: never below 0
    assert_eq!(
        text(&response),
        "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
         \"title\":\"Request cannot be satisfied as assigned quota has been exceeded\",\
         \"status\":429,\"violated-policies\":[\"hourly\"]}"
    );
}

#[tokio::test]
async fn expose_setting_hides_headers_of_a_refusal() {
    let with = |expose| limits(|limits| limits.expose(expose).fields(Fields::Draft11));
    let later = refused(&with(Expose::RetryAfterOnly), request()).await;
    assert!(later.headers().contains_key("retry-after") && !later.headers().contains_key("ratelimit"));
    assert!(text(&later).contains("\"violated-policies\":[]"));
    let hidden = refused(&with(Expose::Hidden), request()).await;
    assert_eq!(hidden.status(), 429);
    assert!(
        !hidden.headers().contains_key("retry-after") && !hidden.headers().contains_key("ratelimit-policy")
    );
}

#[tokio::test]
async fn allowed_response_reports_the_remaining_quota() {
    let mut service = in_front(
        &limits(|limits| limits.fields(Fields::Draft11).readable_in_browsers()),
        &Counting::default(),
    );
    let response = send(&mut service, request()).await;
    assert_eq!(response.headers()["ratelimit-policy"], "\"hourly\";q=1");
    assert_eq!(response.headers()["ratelimit"], "\"hourly\";r=0;t=3600");
    assert_eq!(
        response.headers()["access-control-expose-headers"],
        "Retry-After, RateLimit, RateLimit-Policy"
    );
    let mut silent = in_front(&limits(|limits| limits), &Counting::default());
    assert!(send(&mut silent, request()).await.headers().is_empty());
}

#[tokio::test]
async fn redirect_does_not_report_an_exhausted_quota() {
    let limits = limits(|limits| limits.fields(Fields::Draft11)); // HD-11
    let redirect = RespondWith(|| Response::builder().status(302).body(Vec::new()).unwrap());
    let mut service = RateLimitLayer::new(limits).layer(redirect);
    assert!(send(&mut service, request()).await.headers().is_empty());
}

/// Responds with what this closure returns.
#[derive(Clone)]
struct RespondWith<F>(F);

impl<A, F: Fn() -> Response<Vec<u8>>> Service<Request<A>> for RespondWith<F> {
    type Response = Response<Vec<u8>>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Response<Vec<u8>>, std::convert::Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let mut response = (self.0)();
        if let Some(refusal) = request.extensions().get::<Refusal>() {
            response.headers_mut().insert("x-rule", HeaderValue::from_str(&refusal.rule).expect("valid"));
        }
        std::future::ready(Ok(response))
    }
}

#[tokio::test]
async fn rate_limit_headers_of_the_service_are_kept() {
    let behind = RespondWith(|| {
        Response::builder().header("ratelimit", "\"behind\";r=3;t=5").body(Vec::new()).unwrap()
    });
    let mut service = RateLimitLayer::new(limits(|limits| limits.fields(Fields::Draft11))).layer(behind);
    let response = send(&mut service, request()).await;
    let both: Vec<_> = response.headers().get_all("ratelimit").iter().collect();
    assert_eq!(both, ["\"behind\";r=3;t=5", "\"hourly\";r=0;t=3600"]); // HD-10
}

#[tokio::test]
async fn grpc_clients_get_a_grpc_status() {
    let grpc = || Request::post("/").header("content-type", "application/grpc+proto").body(()).unwrap();
    let response = refused(&limits(|limits| limits), grpc()).await; // HD-12
    assert_eq!((response.status(), response.body().len()), (StatusCode::OK, 0));
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("grpc-status"), "8");
    assert_eq!(header("grpc-retry-pushback-ms"), "3600000");
    assert_eq!(header("content-type"), "application/grpc");
    for (kind, answered) in [
        ("application/grpc", "application/grpc"),
        ("Application/GRPC; charset=utf-8", "application/grpc"),
        ("application/grpc-web+proto", "application/grpc-web"),
        ("application/grpc-web-text", "application/grpc-web-text"),
        ("application/grpcs", "application/problem+json"),
        ("application/json", "application/problem+json"),
    ] {
        let request = Request::post("/").header("content-type", kind).body(()).unwrap();
        let response = refused(&limits(|limits| limits), request).await;
        assert_eq!(response.headers()["content-type"], answered, "{kind}");
    }
    let never =
        refused(&limits(|limits| limits.cost(|head| if head.headers.is_empty() { 1 } else { 2 })), grpc())
            .await;
    assert_eq!(never.headers()["grpc-retry-pushback-ms"], "-1");
}

#[tokio::test]
async fn impossible_cost_is_refused_without_retry_after() {
    let limits = limits(|limits| limits.cost(|head| if head.method == Method::PUT { 2 } else { 1 }));
    let response = refused(&limits, Request::put("/").body(()).unwrap()).await;
    assert_eq!(response.status(), 429);
    assert!(!response.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn head_request_gets_no_body_and_a_browser_gets_a_page() {
    let limits = || limits(|limits| limits.page("<p>Later.</p>"));
    let head = refused(&limits(), Request::head("/").body(()).unwrap()).await;
    assert_eq!((head.status(), head.body().len()), (StatusCode::TOO_MANY_REQUESTS, 0));
    let browser = Request::get("/").header("accept", "text/html,*/*;q=0.8").body(()).unwrap();
    let page = refused(&limits(), browser).await;
    assert_eq!(
        (text(&page), &page.headers()["content-type"]),
        ("<p>Later.</p>", &HeaderValue::from_static("text/html; charset=utf-8"))
    );
    for (accept, is_page) in [
        ("application/json", false),
        ("*/*", false),
        ("application/json, text/html;q=0.5", false),
        ("text/html;q=0, */*", false),
        ("text/html; q=0.0", false),
        ("application/xhtml+xml, Text/HTML;level=1;q=0.9, application/json;q=0.8", true),
        ("image/png, text/html", true),
    ] {
        let answer = refused(&limits(), Request::get("/").header("accept", accept).body(()).unwrap()).await;
        let kind = if is_page { "text/html; charset=utf-8" } else { "application/problem+json" };
        assert_eq!(answer.headers()["content-type"], kind, "{accept:?}");
    }
}

#[tokio::test]
async fn answer_closure_replaces_the_whole_response() {
    let limits = limits(|limits| {
        limits.status(StatusCode::IM_A_TEAPOT).refusal_response(|head, refusal| {
            let text = format!("{} {} {}", head.method, refusal.rule, refusal.retry_after_seconds().unwrap());
            Response::builder().status(refusal.status).body(text.into_bytes()).unwrap()
        })
    });
    let response = refused(&limits, request()).await;
    assert_eq!((response.status(), text(&response)), (StatusCode::IM_A_TEAPOT, "GET hourly 3600"));
    assert!(response.headers().is_empty());
}

#[tokio::test]
async fn jitter_only_lengthens_retry_after() {
    let limits = limits(|limits| limits.jitter(20).fields(Fields::Draft11)); // HD-04
    for _ in 0..100 {
        let seconds: u64 = {
            let mut service = in_front(&limits, &Counting::default());
            let _ = send(&mut service, request()).await;
            let response = send(&mut service, request()).await;
            assert_eq!(response.headers()["ratelimit"], "\"hourly\";r=0;t=3600");
            response.headers()["retry-after"].to_str().unwrap().parse().unwrap()
        };
        assert!((3_600..=4_320).contains(&seconds), "{seconds}");
    }
}

#[tokio::test]
async fn shadow_rule_never_refuses_and_counts_its_outcomes() {
    let policy = Policy::builder()
        .rule("trial", Quota::per_hour(2))
        .rule("enforced", Quota::per_hour(5))
        .clock(ManualClock::new())
        .build()
        .unwrap();
    let limits = Limits::builder(policy)
        .rule("trial", by::global())
        .shadow()
        .rule("enforced", by::global())
        .fields(Fields::Draft11)
        .build()
        .unwrap();
    let mut service = in_front(&limits, &Counting::default());
    let mut statuses = Vec::new();
    for _ in 0..7 {
        let response = send(&mut service, request()).await;
        assert!(
            !format!("{:?}", response.headers()).contains("trial"),
            "a shadow rule is not reported to clients"
        );
        statuses.push(response.status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    let stats = limits.stats();
    assert_eq!((stats[0].would_allow, stats[0].would_refuse, stats[0].refused), (2, 3, 0));
    assert_eq!((stats[1].would_allow, stats[1].would_refuse, stats[1].refused), (0, 0, 2));

    let missing = Limits::builder(one_an_hour()).rule("user", by_user()).shadow().build().unwrap();
    let mut service = in_front(&missing, &Counting::default());
    assert_eq!(
        send(&mut service, request()).await.status(),
        200,
        "a missing key of a shadow rule does not refuse the request"
    );
    assert_eq!(missing.stats()[0].would_refuse, 1);
}

#[tokio::test(start_paused = true)]
async fn excess_requests_wait_up_to_the_configured_time() {
    let clock = TokioClock::new();
    let limiter = Limiter::builder(Quota::per_second(10).burst(1)).clock(clock).build();
    let limits = Limits::builder(limiter)
        .rule("second", by::global())
        .wait_at_most(Duration::from_millis(200))
        .build()
        .unwrap();
    let mut service = in_front(&limits, &Counting::default());
    let began = tokio::time::Instant::now();
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let mut service = service.clone();
            tokio::spawn(
                async move { (send(&mut service, request()).await.status().as_u16(), began.elapsed()) },
            )
        })
        .collect();
    let mut ends = Vec::new();
    for task in waiting {
        let (status, after) = task.await.unwrap();
        ends.push((status, after.as_millis()));
    }
    ends.sort_unstable();
    assert_eq!(
        ends,
        [(200, 0), (200, 100), (200, 200), (429, 0)],
        "the last would wait 300 ms: refused immediately"
    );
    assert_eq!(send(&mut service, request()).await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn pacing_rule_delays_requests() {
    let pacer = tidegate::Pacer::builder(Quota::per_second(10)).clock(TokioClock::new()).build();
    let limits = Limits::builder(pacer).rule("pace", by::global()).timer(TokioClock::new()).build().unwrap();
    let mut service = in_front(&limits, &Counting::default());
    let began = tokio::time::Instant::now();
    for _ in 0..3 {
        assert_eq!(send(&mut service, request()).await.status(), 200);
    }
    assert_eq!(began.elapsed().as_millis(), 200);
}

#[tokio::test(start_paused = true)]
async fn timed_out_wait_is_served_by_the_fallback() {
    let limiter = tidegate::ConcurrencyLimiter::builder(1).clock(TokioClock::new()).build();
    let limits = Limits::builder(limiter.clone())
        .rule("concurrency", by::global())
        .wait_at_most(Duration::from_secs(1))
        .build()
        .unwrap();
    let layer = RateLimitLayer::new(limits).fallback(RespondWith(|| Response::new(b"yesterday's".to_vec())));
    let _held = limiter.try_acquire().unwrap();
    let degraded = send(&mut layer.layer(Counting::default()), request()).await;
    assert_eq!(
        (text(&degraded), &degraded.headers()["x-rule"]),
        ("yesterday's", &"concurrency".parse().unwrap())
    );
}

#[tokio::test]
async fn refused_requests_are_served_by_the_fallback() {
    let limits = limits(|limits| limits.refusal_response(|_, _| panic!("the fallback responds instead")));
    let layer = RateLimitLayer::new(limits).fallback(RespondWith(|| Response::new(b"yesterday's".to_vec())));
    let counting = Counting::default();
    let mut service = layer.layer(counting.clone());
    assert_eq!(text(&send(&mut service, request()).await), "served");
    let degraded = send(&mut service, request()).await;
    assert_eq!(
        (degraded.status(), text(&degraded), &degraded.headers()["x-rule"]),
        (StatusCode::OK, "yesterday's", &HeaderValue::from_static("hourly"))
    );
    assert_eq!(counting.count(), 1);
}

/// A gate that answers asynchronously, as Redis does.
struct AsyncGate(Limiter<tidegate::algorithm::TokenBucket, ManualClock>, Arc<AtomicUsize>);

impl Gate for AsyncGate {
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> tidegate::gate::Answer<'a> {
        tidegate::gate::Answer::Pending(Box::pin(async move {
            self.1.fetch_add(1, Ordering::SeqCst); // the query is sent
            tokio::task::yield_now().await;
            self.0.decide(request).wait().await
        }))
    }
}

#[tokio::test]
async fn shadow_rule_never_refuses_with_an_asynchronous_gate() {
    let gate =
        AsyncGate(Limiter::builder(Quota::per_hour(1)).clock(ManualClock::new()).build(), Arc::default());
    let limits = Limits::builder(gate).rule("trial", by::global()).shadow().build().unwrap();
    let mut service = in_front(&limits, &Counting::default());
    for _ in 0..3 {
        assert_eq!(send(&mut service, request()).await.status(), 200);
    }
    let stats = &limits.stats()[0];
    assert_eq!((stats.would_allow, stats.would_refuse, stats.refused), (1, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn shadow_rule_is_neither_waited_for_nor_named_when_the_queue_is_full() {
    let policy = Policy::builder()
        .rule("trial", Quota::per_hour(1))
        .rule("enforced", Quota::per_second(1).burst(1))
        .clock(TokioClock::new())
        .build()
        .unwrap();
    let limits = Limits::builder(policy)
        .rule("trial", by::global())
        .shadow()
        .rule("enforced", by::global())
        .wait_at_most(Duration::from_secs(5))
        .max_waiting(1)
        .build()
        .unwrap();
    let mut service = in_front(&limits, &Counting::default());
    assert_eq!(send(&mut service, request()).await.status(), 200);
    let waiting = service.call(request());
    let third = send(&mut service, request()).await;
    assert_eq!(
        (third.status(), text(&third).contains("\"enforced\"")),
        (StatusCode::SERVICE_UNAVAILABLE, true)
    );
    assert_eq!(waiting.await.unwrap().status(), 200);
    let stats = limits.stats();
    assert_eq!((stats[0].would_allow, stats[0].would_refuse, stats[0].refused), (1, 1, 0));
    assert_eq!(stats[1].refused, 1);
}

#[tokio::test]
async fn asynchronous_gate_is_queried_during_the_call() {
    let queries = Arc::new(AtomicUsize::new(0));
    let gate =
        AsyncGate(Limiter::builder(Quota::per_hour(1)).clock(ManualClock::new()).build(), queries.clone());
    let mut service = in_front(&Limits::single(gate, by::global()).unwrap(), &Counting::default());
    drop(service.call(request()));
    assert_eq!(queries.load(Ordering::SeqCst), 1, "a dropped call was queried");
    assert_eq!(send(&mut service, request()).await.status(), 200);
    assert_eq!(send(&mut service, request()).await.status(), 429);
}
