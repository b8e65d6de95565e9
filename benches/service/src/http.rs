//! A request by HTTP, beside throttlecrab-server.

use bench_harness::goal::Goal;
use bench_harness::report::Section;

use crate::ask::Asking;
use crate::server::{Door, Server};
use crate::turns::{Case, Round, measure, missing};
use crate::{Plan, key};

pub(crate) const OURS: &str = "**tidegate**, POST /v1/check";
pub(crate) const PEER: &str = "throttlecrab-server, POST /throttle";
const WHAT: &str = "50 connections";

pub(crate) const CHECK: Asking =
    Asking { path: "/v1/check", body: ["{\"descriptors\":{\"user\":\"", "\"}}"] };
/// The same limit, which comes with the call there.
pub(crate) const THROTTLE: Asking = Asking {
    path: "/throttle",
    body: ["{\"key\":\"", "\",\"max_burst\":99999,\"count_per_period\":24,\"period\":86400,\"quantity\":1}"],
};

pub(crate) fn section(plan: Plan) -> Section {
    let (tidegate, peer) = (Server::tidegate(Door::Http), Server::throttlecrab());
    let ours = Case::new(WHAT, OURS, || round(&tidegate, CHECK, plan.http));
    let theirs = |peer| Case::new(WHAT, PEER, move || round(peer, THROTTLE, plan.http));
    let measured = match &peer {
        Ok(peer) => measure("http", vec![theirs(peer), ours], plan.rounds),
        Err(why) => {
            let mut measured = measure("http", vec![ours], plan.rounds);
            measured.push(missing(WHAT, PEER, why));
            measured
        }
    };
    Section {
        title: "A request by HTTP",
        unit: "µs of the server's processor",
        text: "Fifty connections that stay, each of which asks, reads the whole answer and asks again. JSON there and back.",
        measured,
        goals: vec![Goal::same(WHAT, OURS, PEER, 0.8, 0.6)],
    }
}

fn round(server: &Server, asking: Asking, requests: u64) -> Round {
    let before = server.work();
    let allowed = asking.ask(server, key, requests);
    let work = server.work() - before;
    Round { figure: work as f64 / 1e3 / requests as f64, allowed: allowed as f64 / requests as f64 }
}
