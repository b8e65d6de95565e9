//! The layer in front of those we call: it waits, and it obeys.

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

/// Answers what it was told to, and keeps when it was called.
#[derive(Clone)]
struct Partner {
    began: Instant,
    answers: Arc<Mutex<VecDeque<Response<()>>>>,
    calls: Arc<Mutex<Vec<u128>>>,
}

impl Partner {
    fn new(answers: impl IntoIterator<Item = Response<()>>) -> Self {
        let answers = Arc::new(Mutex::new(answers.into_iter().collect()));
        Partner { began: Instant::now(), answers, calls: Arc::default() }
    }

    /// When it was called, in milliseconds.
    fn calls(&self) -> Vec<u128> {
        self.calls.lock().expect("as the test wants it").clone()
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
        self.calls.lock().expect("as the test wants it").push(self.began.elapsed().as_millis());
        ready(Ok(self.answers.lock().expect("as the test wants it").pop_front().unwrap_or_default()))
    }
}

fn answer(status: u16, name: &str, value: &str) -> Response<()> {
    Response::builder().status(status).header(name, value).body(()).expect("as the test wants it")
}

/// Ten a second, one after the other, for at most a second.
fn tenth(partner: &Partner) -> Outbound<Partner> {
    let clock = TokioClock::new();
    let limits = Limits::over(Limiter::new(Quota::per_second(10).burst(1)).with_clock(clock))
        .rule("partner", by::global())
        .wait_at_most(Duration::from_secs(1))
        .timer(clock)
        .build()
        .expect("as the test wants it");
    OutboundLayer::new(limits).longest_hold(Duration::from_secs(30)).layer(partner.clone())
}

fn to(host: &str) -> Request<()> {
    Request::get(format!("http://{host}/")).body(()).expect("as the test wants it")
}

async fn call(service: &mut Outbound<Partner>, host: &str) -> Result<StatusCode, OutboundError<Infallible>> {
    std::future::poll_fn(|cx| service.poll_ready(cx)).await?;
    service.call(to(host)).await.map(|response| response.status())
}

#[tokio::test(start_paused = true)]
async fn calls_wait_their_turn_and_fail_if_that_takes_too_long() {
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
async fn whoever_asks_for_time_is_given_it_by_all() {
    let partner = Partner::new([answer(429, "retry-after", "7"), answer(200, "ratelimit", "\"x\";r=0;t=2")]);
    let mut service = tenth(&partner);
    assert_eq!(call(&mut service, "a").await.unwrap(), 429, "the caller sees the refusal as it came");
    let mut clone = service.clone();
    assert_eq!(call(&mut clone, "A:80").await.unwrap(), 200); // not before 7 s
    assert_eq!(call(&mut service, "a").await.unwrap(), 200); // not before 9 s
    assert_eq!(call(&mut service, "a").await.unwrap(), 200);
    assert_eq!(partner.calls(), [0, 7_000, 9_000, 9_100]);
}

#[tokio::test(start_paused = true)]
async fn who_waits_its_turn_meanwhile_gives_that_time_too_and_keeps_the_pace_after_it() {
    let partner = Partner::new([answer(429, "retry-after", "7")]);
    let service = tenth(&partner);
    let calls: Vec<_> = (0..4).map(|_| service.clone().call(to("a"))).collect(); // all stand in line
    let tasks: Vec<_> = calls.into_iter().map(tokio::spawn).collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(partner.calls(), [0, 7_000, 7_100, 7_200]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_leaves_its_turn_to_the_next() {
    let partner = Partner::new([]);
    let mut service = tenth(&partner);
    assert_eq!(call(&mut service, "a").await.unwrap(), 200);
    let given_up = service.call(to("a"));
    drop(given_up);
    assert_eq!(call(&mut service, "a").await.unwrap(), 200);
    assert_eq!(partner.calls(), [0, 100]);
}

#[tokio::test(start_paused = true)]
async fn a_date_is_waited_for_by_the_clock_of_who_has_set_it() {
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
async fn other_hosts_are_called_meanwhile() {
    let partner = Partner::new([answer(503, "retry-after", "7")]);
    let mut service = tenth(&partner);
    assert_eq!(call(&mut service, "a").await.unwrap(), 503);
    assert_eq!(call(&mut service, "b").await.unwrap(), 200);
    assert_eq!(partner.calls(), [0, 100]);
}

#[tokio::test(start_paused = true)]
async fn more_time_than_there_is_fails_at_once() {
    let partner = Partner::new([answer(429, "retry-after", "31")]);
    let mut service = tenth(&partner);
    assert_eq!(call(&mut service, "a").await.unwrap(), 429);
    let failed = call(&mut service, "a").await.unwrap_err();
    assert_eq!(failed.to_string(), "not called: the other side has asked us to wait 31s, which is too long");
    assert_eq!(partner.calls(), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_permit_for_a_call_is_held_as_long_as_its_response() {
    let slots = ConcurrencyLimiter::new(1);
    let limits = Limits::on(slots.clone(), by::global()).unwrap();
    let mut service = OutboundLayer::new(limits).layer(Partner::new([]));
    let response = service.call(to("a")).await.unwrap();
    assert_eq!(slots.stats().in_use, 1);
    assert!(matches!(service.call(to("a")).await, Err(OutboundError::Refused(_))));
    drop(response);
    assert_eq!(slots.stats().in_use, 0);
}
