//! The tower layers in front of a service, with limits in a real Redis.

mod gates;
mod support;

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use gates::{FIRST, eventually, long_deadline};
use http::{Request, Response};
use support::{Kind, Server};
use tidegate::Quota;
use tidegate::gate::Part;
use tidegate::http::{Fields, KeyPart, Limits, by};
use tidegate::tower::{ConcurrencyLayer, RateLimitLayer};
use tidegate_redis::RedisGate;
use tower_layer::Layer;
use tower_service::Service;

#[derive(Clone)]
struct Handler;

impl Service<Request<()>> for Handler {
    type Response = Response<Vec<u8>>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Vec<u8>>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(Vec::new())))
    }
}

async fn send<S>(service: &mut S, user: &str) -> S::Response
where
    S: Service<Request<()>, Error = Infallible>,
{
    let Ok(()) = poll_fn(|cx| service.poll_ready(cx)).await;
    let Ok(response) = service.call(request(user)).await;
    response
}

fn request(user: &str) -> Request<()> {
    Request::get("/").header("x-user", user).body(()).expect("a request")
}

#[tokio::test(flavor = "multi_thread")]
async fn two_services_share_one_limit_all_or_nothing() {
    let server = Server::start(Kind::Redis, &[]);
    let make = || {
        let gate = long_deadline(
            RedisGate::builder(server.url())
                .rule("global", Quota::per_hour(4))
                .rule("user", Quota::per_hour(2)),
        );
        let limits = Limits::builder(gate)
            .rule("global", by::global())
            .rule("user", by::header("x-user").or_refuse())
            .fields(Fields::Draft11)
            .build()
            .expect("limits");
        RateLimitLayer::new(limits).layer(Handler)
    };
    let (mut one, mut two) = (make(), make());
    let first = send(&mut one, "alice").await;
    assert_eq!(first.headers()["ratelimit-policy"], "\"global\";q=4, \"user\";q=2");
    assert_eq!(first.headers()["ratelimit"], "\"global\";r=3;t=900, \"user\";r=1;t=1800");
    assert_eq!(send(&mut two, "alice").await.status(), 200);
    for service in [&mut one, &mut two] {
        let refused = send(service, "alice").await;
        assert_eq!(
            (refused.status().as_u16(), refused.headers()["retry-after"].len()),
            (429, 4),
            "1800 s or a little less"
        );
    }
    for expected in [200, 200, 429] {
        assert_eq!(send(&mut two, "bob").await.status(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_client_has_gone_is_counted() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(RedisGate::builder(server.url()).rule("default", Quota::per_hour(10)));
    assert!(gate.ready(Duration::from_secs(60)).await, "the server replies");
    let mut service =
        RateLimitLayer::new(Limits::single(gate.clone(), by::global()).expect("limits")).layer(Handler);
    for _ in 0..3 {
        drop(service.call(request("alice")));
    }
    eventually("three requests are counted", async || {
        let left = gate.request().parts(&[Part::of(FIRST).cost(0)]).peek().await.ok()?;
        (left.remaining() == 10 - 3).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_are_held_until_the_response_is_dropped() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(RedisGate::builder(server.url()).concurrency(
        "concurrency",
        1,
        Duration::from_secs(60),
    ));
    let limits = Limits::builder(gate.clone()).rule("concurrency", by::global()).build().expect("limits");
    let mut service = ConcurrencyLayer::new(limits).layer(Handler);
    let first = send(&mut service, "alice").await;
    assert_eq!((first.status().as_u16(), send(&mut service, "bob").await.status().as_u16()), (200, 503));
    drop(first);
    let waiting =
        Limits::builder(gate).rule("concurrency", by::global()).wait_at_most(Duration::from_secs(60));
    let mut long_deadline = ConcurrencyLayer::new(waiting.build().expect("limits")).layer(Handler);
    assert_eq!(send(&mut long_deadline, "bob").await.status(), 200, "the permit is being released");
}
