//! Permits and queue positions: held until the body has ended, and released when the request is dropped.

mod served;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Ready;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::combinators::WithTrailers;
use http_body_util::{BodyExt, Full};
use served::{Counting, poll, request, send};
use tidegate::http::{Limits, by};
use tidegate::tower::{Concurrency, ConcurrencyLayer, RateLimitLayer};
use tidegate::{ConcurrencyLimiter, Limiter, Policy, Quota, TokioClock};
use tower_layer::Layer;
use tower_service::Service;

/// Frames that the test pushes, and the end of the stream.
type Frames = Arc<Mutex<VecDeque<Option<Result<&'static str, ()>>>>>;

/// A body of such frames.
#[derive(Default)]
struct SlowBody(Frames);

impl From<Vec<u8>> for SlowBody {
    fn from(_: Vec<u8>) -> Self {
        let refused = SlowBody::default();
        refused.0.lock().expect("valid").push_back(None);
        refused
    }
}

impl Body for SlowBody {
    type Data = VecDeque<u8>;
    type Error = ();

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<VecDeque<u8>>, ()>>> {
        match self.0.lock().expect("valid").pop_front() {
            None => Poll::Pending,
            Some(None) => Poll::Ready(None),
            Some(Some(frame)) => Poll::Ready(Some(frame.map(|text| Frame::data(text.bytes().collect())))),
        }
    }
}

/// Responds with a body of frames that the test provides.
#[derive(Clone, Default)]
struct SlowService(Frames);

impl Service<Request<()>> for SlowService {
    type Response = Response<SlowBody>;
    type Error = Infallible;
    type Future = Ready<Result<Response<SlowBody>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        std::future::ready(Ok(Response::new(SlowBody(self.0.clone()))))
    }
}

fn one_concurrent() -> (ConcurrencyLimiter, SlowService, Concurrency<SlowService, SlowBody>) {
    let (limiter, slow_service) = (ConcurrencyLimiter::new(1), SlowService::default());
    let limits = Limits::single(limiter.clone(), by::global()).expect("valid");
    let service = ConcurrencyLayer::new(limits).layer(slow_service.clone());
    (limiter, slow_service, service)
}

#[tokio::test]
async fn permit_is_held_until_the_body_has_ended() {
    let (limiter, slow_service, mut service) = one_concurrent();
    let mut body = send(&mut service, request()).await.into_body();
    let refused = send(&mut service, request()).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE, "the head was sent, the body was not");
    assert_eq!(refused.headers()["retry-after"], "1");

    slow_service.0.lock().unwrap().push_back(Some(Ok("half")));
    assert!(body.frame().await.is_some());
    assert_eq!(limiter.stats().in_use, 1);
    slow_service.0.lock().unwrap().push_back(None);
    assert!(body.frame().await.is_none());
    assert_eq!(
        (limiter.stats().in_use, limiter.stats().endings.succeeded),
        (0, 1),
        "ended, not just dropped"
    );
    assert_eq!(send(&mut service, request()).await.status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_40_of_64_concurrent_requests_hold_a_permit() {
    let service = ConcurrencyLayer::with_limit(40).layer(SlowService::default());
    let barrier = Arc::new(tokio::sync::Barrier::new(64));
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (mut service, barrier) = (service.clone(), barrier.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                send(&mut service, request()).await // its body is not read yet
            })
        })
        .collect();
    let mut responses = Vec::new();
    for task in tasks {
        responses.push(task.await.unwrap());
    }
    let with = |status| responses.iter().filter(|response| response.status() == status).count();
    assert_eq!((with(StatusCode::OK), with(StatusCode::SERVICE_UNAVAILABLE)), (40, 24));
    drop(responses);
    assert_eq!(send(&mut service.clone(), request()).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn failed_or_dropped_body_releases_its_permit() {
    let (limiter, slow_service, mut service) = one_concurrent();
    let body = send(&mut service, request()).await.into_body();
    assert_eq!(limiter.stats().in_use, 1);
    drop(body);
    assert_eq!(limiter.stats().in_use, 0);

    let mut body = send(&mut service, request()).await.into_body();
    slow_service.0.lock().unwrap().push_back(Some(Err(())));
    assert!(body.frame().await.unwrap().is_err());
    assert_eq!((limiter.stats().in_use, limiter.stats().endings.succeeded), (0, 0));
}

/// Responds with this status and body.
struct Respond<B>(StatusCode, fn() -> B);

impl<B> Clone for Respond<B> {
    fn clone(&self) -> Self {
        Respond(self.0, self.1)
    }
}

impl<B> Service<Request<()>> for Respond<B> {
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Ready<Result<Response<B>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let mut response = Response::new((self.1)());
        *response.status_mut() = self.0;
        std::future::ready(Ok(response))
    }
}

type Whole = Full<VecDeque<u8>>;

fn whole(text: &str) -> Whole {
    Whole::new(text.bytes().collect())
}

/// Sends a body as servers do: after `is_end_stream` they do not poll for the end.
async fn send_whole<B: Body + Unpin>(mut body: B) {
    while !body.is_end_stream() {
        assert!(matches!(body.frame().await, Some(Ok(_))), "is_end_stream announced another frame");
    }
}

#[tokio::test]
async fn sent_body_counts_as_ended_even_if_its_end_was_not_polled() {
    let limiter = ConcurrencyLimiter::new(1);
    let limits = || Limits::single(limiter.clone(), by::global()).unwrap();
    let endings = || {
        let stats = limiter.stats();
        (stats.in_use, stats.endings.succeeded, stats.endings.overloaded)
    };
    let mut served = ConcurrencyLayer::new(limits()).layer(Respond(StatusCode::OK, || whole("a b")));
    send_whole(send(&mut served, request()).await.into_body()).await;
    assert_eq!(endings(), (0, 1, 0));
    let mut empty = ConcurrencyLayer::new(limits()).layer(Respond(StatusCode::NO_CONTENT, Whole::default));
    send_whole(send(&mut empty, request()).await.into_body()).await;
    assert_eq!(endings(), (0, 2, 0));
    let unavailable = Respond(StatusCode::SERVICE_UNAVAILABLE, || whole("busy"));
    let mut busy = ConcurrencyLayer::new(limits()).layer(unavailable.clone());
    send_whole(send(&mut busy, request()).await.into_body()).await;
    assert_eq!(endings(), (0, 2, 1));
    drop(send(&mut served, request()).await); // never polled
    assert_eq!(endings(), (0, 2, 1));

    let mut rate_limited = RateLimitLayer::new(limits()).layer(Respond(StatusCode::OK, || whole("a b")));
    drop(send(&mut rate_limited, request()).await);
    assert_eq!(endings(), (0, 3, 1), "RateLimitLayer holds permits only until the head");
    drop(send(&mut RateLimitLayer::new(limits()).layer(unavailable), request()).await);
    assert_eq!(endings(), (0, 3, 2));
}

#[tokio::test]
async fn permit_is_held_until_the_trailers_are_sent() {
    type Trailing = WithTrailers<Whole, Ready<Option<Result<HeaderMap, Infallible>>>>;
    fn with_trailers(bytes: Vec<u8>) -> Trailing {
        let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from(0))]);
        Whole::from(bytes).with_trailers(std::future::ready(Some(Ok(trailers))))
    }
    let limiter = ConcurrencyLimiter::new(1);
    let limits = Limits::single(limiter.clone(), by::global()).unwrap();
    let layer = ConcurrencyLayer::with_body(limits, with_trailers);
    let mut service = layer.layer(Respond(StatusCode::OK, || with_trailers(b"a".to_vec())));
    let mut body = send(&mut service, request()).await.into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    assert_eq!(limiter.stats().in_use, 1);
    assert!(body.frame().await.unwrap().unwrap().is_trailers());
    assert!(body.frame().await.is_none());
    assert_eq!((limiter.stats().in_use, limiter.stats().endings.succeeded), (0, 1));
}

/// Never responds.
#[derive(Clone)]
struct Never;

impl Service<Request<()>> for Never {
    type Response = Response<Vec<u8>>;
    type Error = Infallible;
    type Future = std::future::Pending<Result<Response<Vec<u8>>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        std::future::pending()
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_or_timed_out_request_releases_its_permit() {
    let limiter = ConcurrencyLimiter::new(1);
    let limits = Limits::single(limiter.clone(), by::global()).unwrap();
    let mut service = ConcurrencyLayer::new(limits).layer(Never);
    let answer = service.call(request());
    assert_eq!(limiter.stats().in_use, 1);
    drop(answer);
    assert_eq!(limiter.stats().in_use, 0);
    assert!(tokio::time::timeout(Duration::from_secs(1), service.call(request())).await.is_err());
    assert_eq!(limiter.stats().in_use, 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_waiter_leaves_its_queue_position_to_the_next() {
    let limiter = ConcurrencyLimiter::builder(1).clock(TokioClock::new()).build();
    let limits = Limits::builder(limiter.clone())
        .rule("concurrency", by::global())
        .wait_at_most(Duration::from_secs(60))
        .max_waiting(2)
        .build()
        .unwrap();
    let mut service = ConcurrencyLayer::new(limits.clone()).layer(Counting::default());
    let held = limiter.try_acquire().unwrap();
    let mut first = Box::pin(service.call(request()));
    let mut second = pin!(service.call(request()));
    assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
    assert_eq!(limits.waiting(), 2);
    let third = send(&mut service, request()).await;
    assert_eq!(third.status(), StatusCode::SERVICE_UNAVAILABLE, "at most two may wait");

    drop(first); // the client disconnected
    assert_eq!((limits.waiting(), limiter.stats().waiting), (1, 1));
    drop(held);
    assert_eq!(second.await.unwrap().status(), StatusCode::OK);
    assert_eq!((limits.waiting(), limiter.stats().waiting, limiter.stats().in_use), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn wait_for_a_permit_that_times_out_is_answered_503() {
    let limiter = ConcurrencyLimiter::builder(1).clock(TokioClock::new()).build();
    let limits = Limits::builder(limiter.clone())
        .rule("concurrency", by::global())
        .wait_at_most(Duration::from_secs(5))
        .build()
        .unwrap();
    let mut service = ConcurrencyLayer::new(limits).layer(Counting::default());
    let _held = limiter.try_acquire().unwrap();
    let began = tokio::time::Instant::now();
    assert_eq!(send(&mut service, request()).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(began.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn dropped_wait_for_a_rate_is_not_charged() {
    let limiter = Limiter::builder(Quota::per_second(1).burst(1)).clock(TokioClock::new()).build();
    let limits = Limits::builder(limiter)
        .rule("rate", by::global())
        .wait_at_most(Duration::from_secs(1))
        .build()
        .unwrap();
    let mut service = RateLimitLayer::new(limits).layer(Counting::default());
    assert_eq!(send(&mut service, request()).await.status(), StatusCode::OK);
    let gone = service.call(request());
    drop(gone);
    assert_eq!(
        send(&mut service, request()).await.status(),
        StatusCode::OK,
        "the dropped wait was given back, and the next instant is one second away"
    );
}

#[tokio::test]
async fn policy_with_a_rate_and_concurrency_is_all_or_nothing() {
    let policy =
        Policy::builder().rule("rate", Quota::per_hour(2)).concurrency("concurrency", 1).build().unwrap();
    let limits = Limits::builder(policy.clone())
        .rule("rate", by::global())
        .rule("concurrency", by::global())
        .build()
        .unwrap();
    let slow_service = SlowService::default();
    let mut service = ConcurrencyLayer::new(limits).layer(slow_service.clone());
    let body = send(&mut service, request()).await.into_body();
    for _ in 0..3 {
        assert_eq!(send(&mut service, request()).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    drop(body);
    let second = send(&mut service, request()).await;
    assert_eq!(second.status(), StatusCode::OK, "a request without a permit is not charged by the rate");
    drop(second);
    assert_eq!(send(&mut service, request()).await.status(), StatusCode::TOO_MANY_REQUESTS);
}
