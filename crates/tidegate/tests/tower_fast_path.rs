//! The fast path decides, responds to and forwards requests exactly as the slow path does.

mod served;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use served::send;
use tidegate::algorithm::TokenBucket;
use tidegate::http::{ClientAddress, Expose, Fields, Limits, by};
use tidegate::tower::RateLimitLayer;
use tidegate::{KeyedLimiter, ManualClock, Quota};
use tower_layer::Layer;
use tower_service::Service;

const QUOTA: Quota = Quota::per_second(3).burst(5);

/// Responds with the address that it finds in the request.
#[derive(Clone, Copy, Debug)]
struct EchoAddress;

impl Service<Request<()>> for EchoAddress {
    type Response = Response<Vec<u8>>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Vec<u8>>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let found = request.extensions().get::<SocketAddr>().map(ToString::to_string);
        ready(Ok(Response::new(found.unwrap_or_default().into_bytes())))
    }
}

/// The same limits, evaluated by this path.
#[derive(Clone, Copy, Debug)]
enum Path {
    Fast,
    /// Forced by a cost closure.
    Slow,
}

fn limits(path: Path, fields: Fields, expose: Expose, clock: &ManualClock) -> Limits {
    let limiter = KeyedLimiter::<str, TokenBucket>::builder(QUOTA).clock(clock.clone()).build();
    let client = ClientAddress::from_socket(|address: &SocketAddr| *address);
    let limits = Limits::builder(limiter)
        .rule("client", by::address(client))
        .expose(expose)
        .fields(fields)
        .readable_in_browsers();
    let limits = match path {
        Path::Fast => limits,
        Path::Slow => limits.cost(|_| 1),
    };
    limits.build().expect("valid")
}

fn from(address: &str) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(address.parse::<SocketAddr>().expect("valid"));
    request
}

/// Status, headers and body of each response, step by step.
async fn responses(limits: Limits, clock: &ManualClock) -> Vec<String> {
    let mut service = RateLimitLayer::new(limits).layer(EchoAddress);
    let mut all = Vec::new();
    for step in 0..40 {
        for address in ["192.0.2.1:1", "[::ffff:192.0.2.1]:2", "192.0.2.2:1", "[2001:db8::1]:1"] {
            let response = send(&mut service, from(address)).await;
            all.push(format!("{} {:?} {:?}", response.status(), response.headers(), response.body()));
        }
        clock.advance(Duration::from_millis(step * 17));
    }
    all
}

#[tokio::test]
async fn fast_path_and_slow_path_give_the_same_responses() {
    let all = [Fields::None, Fields::Draft11, Fields::DraftNext, Fields::Draft06, Fields::XRateLimit];
    for fields in all {
        for expose in [Expose::Quota, Expose::RetryAfterOnly, Expose::Hidden] {
            let [fast, slow] = [Path::Fast, Path::Slow].map(async |path| {
                let clock = ManualClock::new();
                responses(limits(path, fields, expose, &clock), &clock).await
            });
            let (fast, slow) = (fast.await, slow.await);
            assert_eq!(fast, slow, "{fields:?} {expose:?}");
            for status in ["200", "429"] {
                assert!(
                    fast.iter().any(|response| response.starts_with(status)),
                    "{fields:?} {expose:?}: no {status}"
                );
            }
            let passed = |response: &&String| response.starts_with("200");
            assert!(
                fast.iter().filter(passed).all(|response| !response.ends_with(" []")),
                "the address was lost"
            );
        }
    }
}
