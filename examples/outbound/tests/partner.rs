//! Calls a partner on a real socket that allows 30 requests per second, with and without a limit in the client.

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
    let limits = Limits::single(Limiter::new(quota), by::global()).unwrap();
    let app = Router::new().route("/", get(|| async { "welcome" })).layer(RateLimitLayer::new(limits));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

fn request(partner: SocketAddr) -> Request<Empty<Bytes>> {
    Request::get(format!("http://{partner}/")).body(Empty::new()).unwrap()
}

/// Makes calls at the same time, and returns how many of them the partner refuses.
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
async fn a_limited_client_is_never_refused() {
    let careless = partner(Quota::per_second(30)).await;
    let without = plain();
    let refused_without = refused(200, || {
        let call = without.request(request(careless));
        async { call.await.unwrap().status() }
    });
    assert!(refused_without.await > 0, "the partner refuses a client without a limit");

    let spared = partner(Quota::per_second(30)).await;
    let with = client(PARTNER).unwrap();
    let refused_with = refused(45, || {
        let call = with.clone().call(request(spared));
        async { call.await.unwrap().status() }
    });
    assert_eq!(refused_with.await, 0);
}

#[tokio::test]
async fn retry_after_of_the_partner_is_obeyed() {
    let strict = partner(Quota::every(Duration::from_secs(2))).await;
    let mut client = client(Quota::per_second(1_000)).unwrap();
    let mut call = async || client.call(request(strict)).await.unwrap().status();
    assert_eq!(call().await, StatusCode::OK);
    assert_eq!(
        call().await,
        StatusCode::TOO_MANY_REQUESTS,
        "the client learns of the limit by this response"
    );
    assert_eq!(call().await, StatusCode::OK, "the client has waited");
}
