//! A request as a call: built, handed to a clone of the service as servers do, and the response looked at.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use bench_harness::case::Case;
use bench_harness::goal::Goal;
use bench_harness::report::Section;
use bench_harness::rounds::measure;
use bench_harness::turns::Turns;

use crate::apps::{App, GOVERNOR, Place, TIDEGATE, Told, Visit, added, each};

const ONE: &str = "one address";
const MANY: &str = "10,000 addresses";
const FIELDS: &str = "10,000 addresses, fields";
const ADDED_ONE: &str = "added, one address";
const ADDED_MANY: &str = "added, 10,000 addresses";
const ADDED_FIELDS: &str = "added, 10,000 addresses, fields";

pub(crate) const LOADS: [(&str, u32, Told); 3] =
    [(ONE, 1, Told::Nothing), (MANY, 10_000, Told::Nothing), (FIELDS, 10_000, Told::Fields)];

pub(crate) fn around(turns: &Turns) -> Section {
    section("Within the process, around the router", Place::Around, turns)
}

pub(crate) fn on_routes(turns: &Turns) -> Section {
    section("Within the process, on the routes", Place::OnRoutes, turns)
}

fn section(title: &'static str, place: Place, turns: &Turns) -> Section {
    let mut cases = Cases::default();
    for (what, addresses, told) in LOADS {
        (cases.what, cases.addresses) = (what, addresses);
        each(place, told, &mut cases);
    }
    let mut measured = measure(title, &cases.all, turns);
    measured.extend(added(&measured, &[(ONE, ADDED_ONE), (MANY, ADDED_MANY), (FIELDS, ADDED_FIELDS)]));
    Section {
        title,
        unit: "ns",
        text: "Nanoseconds for each request.",
        measured,
        goals: [ADDED_ONE, ADDED_MANY, ADDED_FIELDS].map(goal).into(),
    }
}

fn goal(what: &'static str) -> Goal {
    Goal::same(what, TIDEGATE, GOVERNOR, 0.6, 0.5)
}

#[derive(Default)]
struct Cases {
    what: &'static str,
    addresses: u32,
    all: Vec<Case>,
}

impl Visit for Cases {
    fn app(&mut self, who: &'static str, app: impl App) {
        let (next, addresses) = (Mutex::new(0), self.addresses);
        self.all.push(Case::new(self.what, who, move |n| {
            let next = &mut *next.lock().expect("nobody panics with it");
            serve(&app, n, addresses, next)
        }));
    }
}

/// How many of `n` requests pass, from so many addresses in turn.
pub(crate) fn serve(app: &impl App, n: u64, addresses: u32, next: &mut u32) -> u64 {
    let mut passed = 0;
    for _ in 0..n {
        *next = (*next + 1) % addresses;
        passed += u64::from(ask(app, *next));
    }
    passed
}

#[inline(never)]
fn ask(app: &impl App, address: u32) -> bool {
    let address = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | address));
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(SocketAddr::new(address, 4711)));
    let mut app = app.clone();
    let mut context = Context::from_waker(Waker::noop());
    if app.poll_ready(&mut context).is_pending() {
        return false;
    }
    match pin!(app.call(request)).poll(&mut context) {
        Poll::Ready(Ok(response)) => response.status() == 200,
        Poll::Pending => false,
    }
}
