//! The same handler, bare and with each layer; and what is added, worked out from what was measured.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::response::Response;
use axum::routing::get;
use bench_harness::rounds::Measured;
use tidegate::http::{ClientAddress, Fields, Limits, by};
use tidegate::tower::RateLimitLayer;
use tidegate::{KeyedLimiter, Quota};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;
use tower_layer::Layer;
use tower_service::Service;

pub(crate) const BARE: &str = "bare";
pub(crate) const NOTHING: &str = "a layer that does nothing";
pub(crate) const TIDEGATE: &str = "**tidegate**";
pub(crate) const GOVERNOR: &str = "tower_governor";

/// Where a layer is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Around the whole router: a request is limited before it is routed.
    Around,
    /// By `Router::layer`, which puts it on every route, in a box.
    OnRoutes,
}

/// Whether clients are told, with each response, what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Nothing,
    /// In two fields: `RateLimit` and `RateLimit-Policy` by ours, `X-RateLimit-Limit` and `-Remaining` by theirs.
    Two,
    /// In `X-RateLimit-Limit` and `-Remaining`, and by ours `-Reset`, too.
    Three,
}

/// Something that can be served.
pub(crate) trait App:
    Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + Sync + 'static
{
}

impl<S> App for S where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// Whoever wants to see all apps.
pub(crate) trait Visit {
    fn app(&mut self, who: &'static str, app: impl App);
}

/// Shows the bare handler, and with each layer.
pub(crate) fn each(place: Place, told: Told, visit: &mut impl Visit) {
    visit.app(BARE, bare());
    put(NOTHING, DoNothing, place, visit);
    let mut governor = GovernorConfigBuilder::default().key_extractor(PeerIpKeyExtractor);
    governor.per_second(10).burst_size(BURST);
    match told {
        Told::Nothing => put(GOVERNOR, GovernorLayer::new(governor.finish().expect(BUILT)), place, visit),
        Told::Two | Told::Three => {
            put(GOVERNOR, GovernorLayer::new(governor.use_headers().finish().expect(BUILT)), place, visit);
        }
    }
    put(TIDEGATE, RateLimitLayer::new(limits(told)), place, visit);
}

/// Shows the handler with this layer in this place.
fn put<L>(who: &'static str, layer: L, place: Place, visit: &mut impl Visit)
where
    L: Layer<Router, Service: App>
        + Layer<axum::routing::Route, Service: App>
        + Clone
        + Send
        + Sync
        + 'static,
{
    match place {
        Place::Around => visit.app(who, layer.layer(bare())),
        Place::OnRoutes => visit.app(who, bare().layer(layer)),
    }
}

fn bare() -> Router {
    Router::new().route("/", get(|| async { "ok" }))
}

/// Hands everything on: what any layer takes.
#[derive(Clone)]
struct Nothing<S>(S);

#[derive(Clone, Copy)]
struct DoNothing;

impl<S> Layer<S> for DoNothing {
    type Service = Nothing<S>;

    fn layer(&self, inner: S) -> Nothing<S> {
        Nothing(inner)
    }
}

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
const BURST: u32 = 100_000_000;
const BUILT: &str = "limits that can be built";

fn limits(told: Told) -> Limits {
    let client = ClientAddress::from_socket(|ConnectInfo(address): &ConnectInfo<SocketAddr>| *address);
    let quota = Quota::every(Duration::from_secs(10)).burst(BURST.into());
    let limiter = KeyedLimiter::<str>::new(quota);
    let fields = match told {
        Told::Nothing => Fields::None,
        Told::Two => Fields::Draft11,
        Told::Three => Fields::XRateLimit,
    };
    let limits =
        Limits::builder(limiter).rule("default", by::address(client)).quota(quota).fields(fields).build();
    limits.expect(BUILT)
}

/// So many groups of rounds give a figure each for what is added.
pub(crate) const GROUPS: usize = 15;

/// What each layer adds to the bare handler under these loads, as cases of their own with the names beside them.
///
/// It is a small difference of large figures, and what disturbs a round only ever adds to it. So rounds are grouped, the
/// quarter of a group's rounds that was fastest counts, and each group gives a difference. At least a nanosecond: a layer
/// cannot take less than nothing.
pub(crate) fn added(
    measured: &[Measured],
    loads: impl Iterator<Item = (&'static str, &'static str)>,
) -> Vec<Measured> {
    let quiet = |what: &str, who: &str| {
        let found = measured.iter().find(|one| one.what == what && one.who == who);
        found.map_or(Vec::new(), |one| groups(&one.rounds))
    };
    let mut added = Vec::new();
    for (what, name) in loads {
        for who in [NOTHING, GOVERNOR, TIDEGATE] {
            let both = quiet(what, who).into_iter().zip(quiet(what, BARE));
            let rounds = both.map(|(with, bare)| (with - bare).max(1.0)).collect();
            added.push(Measured { what: name, who, rounds, surprise: None });
        }
    }
    added
}

/// Of each group, the mean of the fastest quarter of its rounds.
fn groups(rounds: &[f64]) -> Vec<f64> {
    let quiet = |group: &[f64]| {
        let mut group = group.to_vec();
        group.sort_by(f64::total_cmp);
        group.truncate(group.len().div_ceil(4));
        group.iter().sum::<f64>() / group.len() as f64
    };
    rounds.chunks(rounds.len().div_ceil(GROUPS)).map(quiet).collect()
}
