//! A request as a call: built, handed to the router, and the response looked at.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use bench_harness::case::Case;
use bench_harness::goal::Goal;
use bench_harness::report::Section;
use bench_harness::rounds::measure;
use bench_harness::turns::Turns;
use tower_service::Service;

use crate::apps::{ALL, GOVERNOR, TIDEGATE, added};

const ONE: &str = "one address";
const MANY: &str = "10,000 addresses";
const ADDED_ONE: &str = "added, one address";
const ADDED_MANY: &str = "added, 10,000 addresses";

pub(crate) fn section(turns: &Turns) -> Section {
    let title = "Within the process";
    let cases: Vec<Case> = [(ONE, 1), (MANY, 10_000)]
        .into_iter()
        .flat_map(|(what, addresses)| ALL.map(|(who, app)| case(what, who, app(), addresses)))
        .collect();
    let mut measured = measure(title, &cases, turns);
    measured.extend(added(&measured, &[(ONE, ADDED_ONE), (MANY, ADDED_MANY)]));
    Section {
        title,
        unit: "ns",
        text: "Nanoseconds for each request.",
        measured,
        goals: vec![
            Goal::same(ADDED_ONE, TIDEGATE, GOVERNOR, 0.6, 0.5),
            Goal::same(ADDED_MANY, TIDEGATE, GOVERNOR, 0.6, 0.5),
        ],
    }
}

fn case(what: &'static str, who: &'static str, app: Router, addresses: u32) -> Case {
    let app = Mutex::new((app, 0));
    Case::new(what, who, move |n| {
        let (app, next) = &mut *app.lock().expect("nobody panics with it");
        let mut passed = 0;
        for _ in 0..n {
            *next = (*next + 1) % addresses;
            passed += u64::from(serve(app, *next));
        }
        passed
    })
}

fn serve(app: &mut Router, address: u32) -> bool {
    let address = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | address));
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(SocketAddr::new(address, 4711)));
    let mut answer = pin!(app.call(request));
    match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(response)) => response.status() == 200,
        Poll::Pending => false,
    }
}
