//! A partner on a real socket that lets 30 a second pass, and what it sees of us with and without limits.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use example_outbound::{PARTNER, client, plain};
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::body::Bytes;
use tidegate::http::{Limits, by};
use tidegate::tower::RateLimitLayer;
use tidegate::{Limiter, Quota};
use tokio::net::TcpListener;
use tower_service::Service;

async fn partner(quota: Quota) -> SocketAddr {
    let limits = Limits::on(Limiter::new(quota), by::global()).unwrap();
    let app = Router::new().route("/", get(|| async { "welcome" })).layer(RateLimitLayer::new(limits));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

fn request(partner: SocketAddr) -> Request<Empty<Bytes>> {
    Request::get(format!("http://{partner}/")).body(Empty::new()).unwrap()
}

/// How many of so many calls at once the partner refuses.
async fn refused<F>(calls: usize, call: impl Fn() -> F) -> usize
where
    F: Future<Output = StatusCode> + Send + 'static,
{
    let calls: Vec<_> = (0..calls).map(|_| tokio::spawn(call())).collect();
    let mut refused = 0;
    for call in calls {
        refused += usize::from(call.await.unwrap() == StatusCode::TOO_MANY_REQUESTS);
    }
    refused
}

#[tokio::test]
async fn a_partner_that_allows_30_a_second_has_nothing_to_refuse() {
    let careless = partner(Quota::per_second(30)).await;
    let without = plain();
    let refused_without = refused(200, || {
        let call = without.request(request(careless));
        async { call.await.unwrap().status() }
    });
    assert!(refused_without.await > 0, "or it would show nothing that none is refused below");

    let spared = partner(Quota::per_second(30)).await;
    let with = client(PARTNER).unwrap();
    let refused_with = refused(45, || {
        let call = with.clone().call(request(spared));
        async { call.await.unwrap().status() }
    });
    assert_eq!(refused_with.await, 0);
}

#[tokio::test]
async fn a_partner_that_asks_for_time_is_given_it() {
    let strict = partner(Quota::every(Duration::from_secs(2))).await;
    let mut client = client(Quota::per_second(1_000)).unwrap();
    let mut call = async || client.call(request(strict)).await.unwrap().status();
    assert_eq!(call().await, StatusCode::OK);
    assert_eq!(call().await, StatusCode::TOO_MANY_REQUESTS, "we know its limit only by being told");
    assert_eq!(call().await, StatusCode::OK, "it has been waited for");
}
