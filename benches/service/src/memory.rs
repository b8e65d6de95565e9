//! A million keys, beside throttlecrab-server.

use bench_harness::goal::Goal;
use bench_harness::report::Section;

use crate::Plan;
use crate::ask::Asking;
use crate::http::{CHECK, OURS, PEER, THROTTLE};
use crate::server::{Door, Server};
use crate::turns::{Case, Round, measure, missing};

const WHAT: &str = "a million keys";
const MANY: u64 = 1_000_000;

pub(crate) fn section(plan: Plan) -> Section {
    let ours = Case::new(WHAT, OURS, || fill(&Server::tidegate(Door::Http), CHECK));
    let theirs =
        || Case::new(WHAT, PEER, || fill(&Server::throttlecrab().expect("it was just there"), THROTTLE));
    let measured = match Server::throttlecrab() {
        Ok(_) => measure("memory", vec![theirs(), ours], plan.fillings),
        Err(why) => {
            let mut measured = measure("memory", vec![ours], plan.fillings);
            measured.push(missing(WHAT, PEER, &why));
            measured
        }
    };
    Section {
        title: "Memory",
        unit: "bytes for each key",
        text: "What a server occupies more, by the system's own account, after a million different keys have asked once \
               than after one has asked often.",
        measured,
        goals: vec![Goal::same(WHAT, OURS, PEER, 0.5, 0.3)],
    }
}

/// A server that has answered, but knows next to nobody, is compared to one that knows a million.
fn fill(server: &Server, asking: Asking) -> Round {
    let _ = asking.ask(server, |_| 0, 1_000);
    let empty = server.resident();
    let allowed = asking.ask(server, |request| request + 1, MANY);
    let full = server.resident();
    Round { figure: (full - empty) / MANY as f64, allowed: allowed as f64 / MANY as f64 }
}
