//! A call of Envoy's, with the counts in Redis, beside envoyproxy/ratelimit.

use bench_harness::goal::Goal;
use bench_harness::report::Section;
use bench_harness::rounds::Measured;

use crate::call::{AT_ONCE, CONNECTIONS, call};
use crate::server::{Door, Server};
use crate::turns::{Case, Round, measure, missing};
use crate::{Plan, key};

const OURS: &str = "**tidegate**, ShouldRateLimit";
const PEER: &str = "envoyproxy/ratelimit, ShouldRateLimit";
const SERVICE: &str = "the service";
const REDIS: &str = "Redis behind it";

pub(crate) fn section(plan: Plan) -> Section {
    let calls = plan.grpc / (CONNECTIONS * AT_ONCE) * (CONNECTIONS * AT_ONCE);
    let redis = Server::redis_beside();
    let (tidegate, peer) = (Server::tidegate_on(&redis, Door::Grpc), Server::ratelimit(&redis));
    // In the first moment Redis may not be reached yet, and limits do what they say for that.
    let _ = call(&tidegate, key, 6_400);
    let mut behind = [Vec::new(), Vec::new()];
    let [behind_ours, behind_peer] = &mut behind;
    let ours = Case::new(SERVICE, OURS, || round(&tidegate, &redis, calls, behind_ours));
    let mut measured = match &peer {
        Ok(peer) => {
            let theirs = Case::new(SERVICE, PEER, || round(peer, &redis, calls, behind_peer));
            measure("grpc", vec![theirs, ours], plan.rounds)
        }
        Err(why) => {
            let mut measured = measure("grpc", vec![ours], plan.rounds);
            measured.push(missing(SERVICE, PEER, why));
            measured
        }
    };
    let of_redis = [OURS, PEER].into_iter().zip(behind);
    measured.extend(of_redis.map(|(who, rounds)| Measured { what: REDIS, who, rounds, surprise: None }));
    Section {
        title: "A call of Envoy's",
        unit: "µs of a processor",
        text: "Four connections with 16 calls at once on each; one descriptor, one limit, and both services with their \
               counts in the same redis-server. Beside the work of the service there is that of Redis: one script for us, \
               `INCRBY` and `EXPIRE` for the other.",
        measured,
        goals: vec![Goal::same(SERVICE, OURS, PEER, 0.5, 0.3)],
    }
}

fn round(server: &Server, redis: &Server, calls: u64, behind: &mut Vec<f64>) -> Round {
    let (before, redis_before) = (server.work(), redis.work());
    let allowed = call(server, key, calls);
    let (work, redis_work) = (server.work() - before, redis.work() - redis_before);
    behind.push(redis_work as f64 / 1e3 / calls as f64);
    Round { figure: work as f64 / 1e3 / calls as f64, allowed: allowed as f64 / calls as f64 }
}
