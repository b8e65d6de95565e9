//! The outbound layer: it waits for its own limits, and for the retry-after of the called service.

mod served;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tidegate::http::{Limits, by};
use tidegate::tower::{Outbound, OutboundError, OutboundLayer};
use tidegate::{ConcurrencyLimiter, Limiter, Quota, TokioClock};
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

/// Responds with the given responses, and records when it was called.
#[derive(Clone)]
struct Partner {
    began: Instant,
    responses: Arc<Mutex<VecDeque<Response<()>>>>,
    calls: Arc<Mutex<Vec<u128>>>,
}

impl Partner {
    fn new(responses: impl IntoIterator<Item = Response<()>>) -> Self {
        let responses = Arc::new(Mutex::new(responses.into_iter().collect()));
        Partner { began: Instant::now(), responses, calls: Arc::default() }
    }

    /// The instants of the calls, in milliseconds.
    fn calls(&self) -> Vec<u128> {
        self.calls.lock().expect("valid").clone()
    }
}

impl Service<Request<()>> for Partner {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.calls.lock().expect("valid").push(self.began.elapsed().as_millis());
        ready(Ok(self.responses.lock().expect("valid").pop_front().unwrap_or_default()))
    }
}

fn response(status: u16, name: &str, value: &str) -> Response<()> {
    Response::builder().status(status).header(name, value).body(()).expect("valid")
}

/// Ten per second with a burst of one, and waits of at most one second.
fn tenth(partner: &Partner) -> Outbound<Partner> {
    let clock = TokioClock::new();
    let limits = Limits::builder(Limiter::builder(Quota::per_second(10).burst(1)).clock(clock).build())
        .rule("partner", by::global())
        .wait_at_most(Duration::from_secs(1))
        .timer(clock)
        .build()
        .expect("valid");
    OutboundLayer::new(limits).max_backoff(Duration::from_secs(30)).layer(partner.clone())
}

fn to(host: &str) -> Request<()> {
    Request::get(format!("http://{host}/")).body(()).expect("valid")
}

async fn call(service: &mut Outbound<Partner>, host: &str) -> Result<StatusCode, OutboundError<Infallible>> {
    std::future::poll_fn(|cx| service.poll_ready(cx)).await?;
    service.call(to(host)).await.map(|response| response.status())
}

#[tokio::test(start_paused = true)]
async fn calls_wait_in_order_and_fail_if_the_wait_is_too_long() {
    let partner = Partner::new([]);
    let service = tenth(&partner);
    let tasks: Vec<_> = (0..13)
        .map(|_| {
            let mut service = service.clone();
            tokio::spawn(async move { call(&mut service, "a").await })
        })
        .collect();
    let mut failed = Vec::new();
    for task in tasks {
        failed.extend(task.await.unwrap().err());
    }
    assert_eq!(partner.calls(), (0..=10).map(|n| n * 100).collect::<Vec<u128>>());
    assert_eq!(failed.len(), 2);
    assert!(
        failed[0].to_string().starts_with("not called: rule \"partner\": limit of 1 reached"),
        "{}",
        failed[0]
    );
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_a_host_delays_all_clones() {
    let partner =
        Partner::new([response(429, "retry-after", "7"), response(200, "ratelimit", "\"x\";r=0;t=2")]);
    let mut service = tenth(&partner);
    assert_eq!(call(&mut service, "a").await.unwrap(), 429, "the caller sees the 429 unchanged");
    let mut clone = service.clone();
    assert_eq!(call(&mut clone, "A:80").await.unwrap(), 200); // not before 7 s
    assert_eq!(call(&mut service, "a").await.unwrap(), 200); // not before 9 s
    assert_eq!(call(&mut service, "a").await.unwrap(), 200);
    assert_eq!(partner.calls(), [0, 7_000, 9_000, 9_100]);
}

#[tokio::test(start_paused = true)]
async fn queued_calls_obey_retry_after_and_keep_the_rate_afterwards() {
    let partner = Partner::new([response(429, "retry-after", "7")]);
    let service = tenth(&partner);
    let calls: Vec<_> = (0..4).map(|_| service.clone().call(to("a"))).collect(); // all queued
    let tasks: Vec<_> = calls.into_iter().map(tokio::spawn).collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(partner.calls(), [0, 7_000, 7_100, 7_200]);
}

#[tokio::test(start_paused = true)]
async fn dropped_call_leaves_its_instant_to_the_next() {
    let partner = Partner::new([]);
    let mut service = tenth(&partner);
    assert_eq!(call(&mut service, "a").await.unwrap(), 200);
    let dropped = service.call(to("a"));
    drop(dropped);
    assert_eq!(call(&mut service, "a").await.unwrap(), 200);
    assert_eq!(partner.calls(), [0, 100]);
}

#[tokio::test(start_paused = true)]
async fn retry_after_date_is_relative_to_the_date_of_the_response() {
    let until = Response::builder()
        .status(503)
        .header("date", "Sun, 06 Nov 1994 08:49:37 GMT")
        .header("retry-after", "Sunday, 06-Nov-94 08:49:40 GMT")
        .body(())
        .unwrap();
    let partner = Partner::new([until]);
    let mut service = tenth(&partner);
    assert_eq!(call(&mut service, "a").await.unwrap(), 503);
    assert_eq!(call(&mut service, "a").await.unwrap(), 200);
    assert_eq!(partner.calls(), [0, 3_000]);
}

#[tokio::test(start_paused = true)]
async fn other_hosts_are_not_delayed() {
    let partner = Partner::new([response(503, "retry-after", "7")]);
    let mut service = tenth(&partner);
    assert_eq!(call(&mut service, "a").await.unwrap(), 503);
    assert_eq!(call(&mut service, "b").await.unwrap(), 200);
    assert_eq!(partner.calls(), [0, 100]);
}

#[tokio::test(start_paused = true)]
async fn retry_after_beyond_the_maximum_backoff_fails_immediately() {
    let partner = Partner::new([response(429, "retry-after", "31")]);
    let mut service = tenth(&partner);
    assert_eq!(call(&mut service, "a").await.unwrap(), 429);
    let failed = call(&mut service, "a").await.unwrap_err();
    assert_eq!(
        failed.to_string(),
        "not called: the host has requested a wait of 31s, which exceeds the maximum backoff"
    );
    assert_eq!(partner.calls(), [0]);
}

#[tokio::test(start_paused = true)]
async fn permit_of_a_call_is_held_as_long_as_its_response() {
    let limiter = ConcurrencyLimiter::new(1);
    let limits = Limits::single(limiter.clone(), by::global()).unwrap();
    let mut service = OutboundLayer::new(limits).layer(Partner::new([]));
    let response = service.call(to("a")).await.unwrap();
    assert_eq!(limiter.stats().in_use, 1);
    assert!(matches!(service.call(to("a")).await, Err(OutboundError::Refused(_))));
    drop(response);
    assert_eq!(limiter.stats().in_use, 0);
}
