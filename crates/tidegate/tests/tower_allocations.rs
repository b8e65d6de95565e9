//! An allowed request allocates nothing, as long as no headers are added to the response.

use std::future::poll_fn;
use std::net::SocketAddr;

use http::{Request, Response};
use tidegate::http::{ClientAddress, Fields, Forwarding, KeyPart, Limits, RuleKey, TrustedProxies, by};
use tidegate::tower::RateLimitLayer;
use tidegate::{KeyedLimiter, Policy, Quota};
use tower_layer::Layer;
use tower_service::Service;

/// Responds with an empty body, without allocating.
#[derive(Clone)]
struct Empty;

impl Service<Request<()>> for Empty {
    type Response = Response<Vec<u8>>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Response<Vec<u8>>, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        std::future::ready(Ok(Response::new(Vec::new())))
    }
}

fn client() -> ClientAddress {
    ClientAddress::from_socket(|address: &SocketAddr| *address)
}

fn request() -> Request<()> {
    let mut request = Request::get("/users/7?page=2")
        .header("x-user", "alice")
        .header("x-forwarded-for", "203.0.113.9, 10.0.0.2")
        .body(())
        .expect("valid");
    request.extensions_mut().insert("10.0.0.1:4711".parse::<SocketAddr>().expect("valid"));
    request
}

/// Counts the allocations of the hundredth request.
fn allocations(limits: Limits) -> u64 {
    let mut service = RateLimitLayer::new(limits).layer(Empty);
    let mut serve = |request| {
        let mut future = std::pin::pin!(async {
            poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
            service.call(request).await.unwrap().status()
        });
        let polled = future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        assert!(matches!(polled, std::task::Poll::Ready(status) if status == 200), "{polled:?}");
    };
    (0..99).for_each(|_| serve(request()));
    let hundredth = request();
    allocation_counter::measure(|| serve(hundredth)).count_total
}

fn keyed(key: impl RuleKey) -> Limits {
    Limits::single(KeyedLimiter::<str>::new(Quota::per_second(1_000)), key).expect("valid")
}

#[test]
fn allowed_request_allocates_nothing() {
    let proxies = TrustedProxies::new(["10.0.0.0/8"]).unwrap();
    let behind = client().behind(proxies, Forwarding::XForwardedFor);
    let keys = (by::method(), by::header("x-user"), by::query("page"), by::address(behind.clone()));
    assert_eq!(allocations(keyed(by::global())), 0);
    assert_eq!(allocations(keyed(by::address(client()))), 0);
    assert_eq!(allocations(keyed(by::address(behind.clone()))), 0);
    assert_eq!(allocations(keyed(by::header("x-user").secret().or_address(behind))), 0);
    assert_eq!(allocations(keyed(keys.or_refuse())), 0);
    assert_eq!(allocations(keyed(by::route(["/login", "/users/{id}"]).or_refuse())), 0);
    assert_eq!(allocations(keyed(by::param("/users/{id}", "id").or_refuse())), 0);

    let quota = Quota::per_second(1_000);
    let policy =
        Policy::builder().rule("global", quota).rule("user", quota).rule("trial", quota).build().unwrap();
    let limits = Limits::builder(policy)
        .rule("global", by::global())
        .rule("user", by::header("x-user").or_skip())
        .rule("trial", by::method())
        .shadow();
    assert_eq!(allocations(limits.build().unwrap()), 0);
}

#[test]
fn response_headers_allocate() {
    let limiter = KeyedLimiter::<str>::new(Quota::per_second(1_000));
    let limits = Limits::builder(limiter).rule("user", by::global()).fields(Fields::Draft11).build().unwrap();
    assert!(allocations(limits) > 0, "otherwise the count above measures nothing");
}
