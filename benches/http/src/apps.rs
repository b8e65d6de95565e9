//! The same handler, bare and with each layer; and what is added, worked out from what was measured.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use bench_harness::rounds::Measured;
use tidegate::http::{ClientAddress, Limits, by};
use tidegate::tower::RateLimitLayer;
use tidegate::{KeyedLimiter, Quota};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;
use tower_layer::layer_fn;
use tower_service::Service;

pub(crate) const BARE: &str = "bare";
pub(crate) const NOTHING: &str = "a layer that does nothing";
pub(crate) const TIDEGATE: &str = "**tidegate**";
pub(crate) const GOVERNOR: &str = "tower_governor";

/// Who is measured, and how each is made.
pub(crate) const ALL: [(&str, fn() -> Router); 4] =
    [(BARE, bare), (NOTHING, nothing), (GOVERNOR, governor), (TIDEGATE, tidegate)];

fn bare() -> Router {
    Router::new().route("/", get(|| async { "ok" }))
}

/// What axum takes for any layer at all: a clone of the service, and a box for its future.
fn nothing() -> Router {
    bare().layer(layer_fn(Nothing))
}

/// Hands everything on.
#[derive(Clone)]
struct Nothing<S>(S);

impl<S, R> Service<R> for Nothing<S>
where
    S: Service<R>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.0.call(request)
    }
}

/// So many at once that nobody is ever refused, at a pace at which who has asked is not forgotten at once.
const BURST: u32 = 1_000_000_000;

fn tidegate() -> Router {
    let client = ClientAddress::from_socket(|ConnectInfo(address): &ConnectInfo<SocketAddr>| *address);
    let limiter = KeyedLimiter::<str>::new(Quota::per_second(1).burst(BURST.into()));
    let limits = Limits::on(limiter, by::address(client)).expect("limits that can be built");
    bare().layer(RateLimitLayer::new(limits))
}

fn governor() -> Router {
    let config = GovernorConfigBuilder::default()
        .key_extractor(PeerIpKeyExtractor)
        .per_second(1)
        .burst_size(BURST)
        .finish()
        .expect("a configuration that can be built");
    bare().layer(GovernorLayer::new(Arc::new(config)))
}

/// What each layer adds to the bare handler, round by round, as a case of its own. At least a nanosecond: in a disturbed
/// round a layer can look as if it took less than nothing.
pub(crate) fn added(measured: &[Measured], names: &[(&'static str, &'static str)]) -> Vec<Measured> {
    let rounds = |what: &str, who: &str| {
        let found = measured.iter().find(|one| one.what == what && one.who == who);
        found.map_or(&[][..], |one| &one.rounds)
    };
    let mut added = Vec::new();
    for (what, name) in names {
        for who in [NOTHING, GOVERNOR, TIDEGATE] {
            let with = rounds(what, who).iter().zip(rounds(what, BARE));
            let rounds = with.map(|(with, bare)| (with - bare).max(1.0)).collect();
            added.push(Measured { what: name, who, rounds, surprise: None });
        }
    }
    added
}
