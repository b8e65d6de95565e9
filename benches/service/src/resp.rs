//! Clients of Redis, beside a counter in Redis.

use bench_harness::goal::Goal;
use bench_harness::report::Section;

use crate::Plan;
use crate::processors::SERVER;
use crate::redis_benchmark::Load;
use crate::server::{Door, Server};
use crate::turns::{Case, Round, measure};

const THROTTLE: &str = "**tidegate**, CL.THROTTLE";
const CHECK: &str = "**tidegate**, TG.CHECK";
const INCR: &str = "redis-server, INCR";
const ONE: &str = "one at a time";
const PIPELINED: &str = "16 pipelined";

pub(crate) fn sections(plan: Plan) -> Vec<Section> {
    let (tidegate, redis) = (Server::tidegate(Door::Resp), Server::redis(SERVER));
    let asked = [
        (INCR, &redis, &["INCR", "key:__rand_int__"][..]),
        (THROTTLE, &tidegate, &["CL.THROTTLE", "key:__rand_int__", "99999", "24", "86400", "1"]),
        (CHECK, &tidegate, &["TG.CHECK", "user", "key:__rand_int__"]),
    ];
    let [one, pipelined] = plan.resp;
    let loads = [
        (ONE, Load { pipelined: 1, requests: one }),
        (PIPELINED, Load { pipelined: 16, requests: pipelined }),
    ];
    let cases = loads.into_iter().flat_map(|(what, load)| {
        asked.map(|(who, server, words)| {
            // redis-benchmark looks at no answer; that nobody is refused is in the limit, and in the other sections.
            Case::new(what, who, move || Round { figure: load.micros(server, words), allowed: 1.0 })
        })
    });
    vec![Section {
        title: "A request of a client of Redis",
        unit: "µs of the server's processor",
        text: "Asked by `redis-benchmark -c 50`: reading, answering and writing, and what the system does for it.",
        measured: measure("resp", cases.collect(), plan.rounds),
        goals: vec![
            Goal::same(ONE, THROTTLE, INCR, 1.05, 0.9),
            Goal::same(PIPELINED, THROTTLE, INCR, 0.9, 0.7),
            Goal::same(ONE, CHECK, INCR, 1.1, 1.0),
            Goal::same(PIPELINED, CHECK, INCR, 1.0, 0.8),
        ],
    }]
}
