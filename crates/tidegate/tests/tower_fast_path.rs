//! Requests that take a short way are ruled, answered and handed on as those that take the long one.

mod served;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use served::send;
use tidegate::http::{ClientAddress, Expose, Fields, Limits, by};
use tidegate::tower::RateLimitLayer;
use tidegate::{KeyedLimiter, ManualClock, Quota, TokenBucket};
use tower_layer::Layer;
use tower_service::Service;

const QUOTA: Quota = Quota::per_second(3).burst(5);

/// Answers with the address that it finds in the request.
#[derive(Clone, Copy, Debug)]
struct WhoAsks;

impl Service<Request<()>> for WhoAsks {
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

/// The same limits, of which requests have to go this far.
#[derive(Clone, Copy, Debug)]
enum Far {
    AsFarAsNeedBe,
    /// As a cost has to be asked for.
    AllTheWay,
}

fn limits(far: Far, fields: Fields, expose: Expose, clock: &ManualClock) -> Limits {
    let limiter = KeyedLimiter::<str, TokenBucket>::new(QUOTA).with_clock(clock.clone());
    let client = ClientAddress::from_socket(|address: &SocketAddr| *address);
    let limits = Limits::over(limiter)
        .rule("client", by::address(client))
        .expose(expose)
        .fields(fields)
        .readable_in_browsers();
    let limits = match far {
        Far::AsFarAsNeedBe => limits,
        Far::AllTheWay => limits.cost(|_| 1),
    };
    limits.build().expect("as the test wants it")
}

fn from(address: &str) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(address.parse::<SocketAddr>().expect("as the test wants it"));
    request
}

/// Status, headers and body of what comes back, step by step.
async fn told(limits: Limits, clock: &ManualClock) -> Vec<String> {
    let mut service = RateLimitLayer::new(limits).layer(WhoAsks);
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
async fn the_short_way_and_the_long_one_lead_to_the_same_answers() {
    let all = [Fields::None, Fields::Draft11, Fields::DraftNext, Fields::Draft06, Fields::XRateLimit];
    for fields in all {
        for expose in [Expose::Quota, Expose::RetryAfterOnly, Expose::Hidden] {
            let [short, long] = [Far::AsFarAsNeedBe, Far::AllTheWay].map(async |far| {
                let clock = ManualClock::new();
                told(limits(far, fields, expose, &clock), &clock).await
            });
            let (short, long) = (short.await, long.await);
            assert_eq!(short, long, "{fields:?} {expose:?}");
            for status in ["200", "429"] {
                assert!(
                    short.iter().any(|told| told.starts_with(status)),
                    "{fields:?} {expose:?}: no {status}"
                );
            }
            let passed = |told: &&String| told.starts_with("200");
            assert!(short.iter().filter(passed).all(|told| !told.ends_with(" []")), "the address was lost");
        }
    }
}
