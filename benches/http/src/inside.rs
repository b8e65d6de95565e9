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

/// Whose requests they are, and what they are told.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) what: &'static str,
    /// The name of what is added to it.
    added: &'static str,
    pub(crate) addresses: u32,
    pub(crate) told: Told,
}

pub(crate) const LOADS: [Load; 5] = [
    Load { what: "one address", added: "added, one address", addresses: 1, told: Told::Nothing },
    Load {
        what: "10,000 addresses",
        added: "added, 10,000 addresses",
        addresses: 10_000,
        told: Told::Nothing,
    },
    Load {
        what: "a million addresses",
        added: "added, a million addresses",
        addresses: 1_000_000,
        told: Told::Nothing,
    },
    Load {
        what: "10,000, two fields",
        added: "added, 10,000, two fields",
        addresses: 10_000,
        told: Told::Two,
    },
    Load {
        what: "10,000, X-RateLimit",
        added: "added, 10,000, X-RateLimit",
        addresses: 10_000,
        told: Told::Three,
    },
];

pub(crate) fn around(turns: &Turns) -> Section {
    section("Within the process, around the router", Place::Around, turns)
}

pub(crate) fn on_routes(turns: &Turns) -> Section {
    section("Within the process, on the routes", Place::OnRoutes, turns)
}

fn section(title: &'static str, place: Place, turns: &Turns) -> Section {
    let mut cases = Cases::default();
    for Load { what, addresses, told, .. } in &LOADS {
        (cases.what, cases.addresses) = (what, *addresses);
        each(place, *told, &mut cases);
    }
    let mut measured = measure(title, &cases.all, turns);
    measured.extend(added(&measured, LOADS.iter().map(|load| (load.what, load.added))));
    let goals = LOADS.iter().map(|load| Goal::same(load.added, TIDEGATE, GOVERNOR, 0.6, 0.5)).collect();
    Section { title, unit: "ns", text: "Nanoseconds for each request.", measured, goals }
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
        serve(&app, addresses.into(), addresses, &mut 0); // so that nobody is new
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

/// What a server hands over: a request in one piece, with the address it came from.
#[inline(never)]
fn request_from(address: u32) -> Request {
    let address = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | address));
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(SocketAddr::new(address, 4711)));
    request
}

#[inline(never)]
fn ask(app: &impl App, address: u32) -> bool {
    let mut app = app.clone();
    let mut context = Context::from_waker(Waker::noop());
    if app.poll_ready(&mut context).is_pending() {
        return false;
    }
    match pin!(app.call(request_from(address))).poll(&mut context) {
        Poll::Ready(Ok(response)) => response.status() == 200,
        Poll::Pending => false,
    }
}
