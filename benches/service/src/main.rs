//! # The service suite: what a decision costs the server, beside a counter in Redis
//!
//! ```text
//!   bench-service            the whole suite; the report goes to stdout, progress to stderr
//!   bench-service --quick    the same cases, in few and short rounds
//! ```

mod load;
mod server;

use std::env;
use std::process::ExitCode;

use bench_harness::goal::Goal;
use bench_harness::machine;
use bench_harness::report::{Section, page, version, warn_of_surprises};
use bench_harness::rounds::Measured;

use load::Load;
use server::Server;

/// How much to measure.
#[derive(Clone, Copy)]
struct Plan {
    rounds: usize,
    /// Requests in each round of each case, one at a time and pipelined.
    requests: [u32; 2],
}

const FULL: Plan = Plan { rounds: 7, requests: [300_000, 1_500_000] };
const QUICK: Plan = Plan { rounds: 3, requests: [100_000, 500_000] };

const THROTTLE: &str = "**tidegate**, CL.THROTTLE";
const CHECK: &str = "**tidegate**, TG.CHECK";
const INCR: &str = "redis-server, INCR";
const ONE: &str = "one at a time";
const PIPELINED: &str = "16 pipelined";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => run(FULL),
        ["--quick"] => run(QUICK),
        [server::SERVE, port] => server::serve(port),
        _ => {
            eprintln!("usage: bench-service [--quick]");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run(plan: Plan) {
    let machine = machine::description();
    let (tidegate, redis) = (Server::tidegate(), Server::redis());
    let cases = [
        (INCR, &redis, &["INCR", "key:__rand_int__"][..]),
        (THROTTLE, &tidegate, &["CL.THROTTLE", "key:__rand_int__", "99999", "30", "60", "1"]),
        (CHECK, &tidegate, &["TG.CHECK", "user", "key:__rand_int__"]),
    ];
    let loads = [ONE, PIPELINED].into_iter().zip([1, 16]).zip(plan.requests);
    let loads: Vec<_> =
        loads.map(|((what, pipelined), requests)| (what, Load { pipelined, requests })).collect();
    let mut measured = Vec::new();
    for (what, _) in &loads {
        measured.extend(cases.iter().map(|(who, ..)| Measured {
            what,
            who,
            rounds: Vec::new(),
            surprise: None,
        }));
    }
    for round in 1..=plan.rounds {
        eprintln!("round {round} of {}", plan.rounds);
        let turns = loads
            .iter()
            .flat_map(|(_, load)| cases.iter().map(move |(_, server, words)| (load, server, words)));
        for ((load, server, words), measured) in turns.zip(&mut measured) {
            measured.rounds.push(load.micros(server, words));
        }
    }
    let sections = [section(measured)];
    print!("{}", page(&opening(&machine), &method(plan), &sections));
    warn_of_surprises(&sections);
}

fn section(measured: Vec<Measured>) -> Section {
    Section {
        title: "A request",
        unit: "µs of the server's processors",
        text: "Microseconds that all threads of the server were at work, by the system's own account, for each request of \
               `redis-benchmark -c 50` among 100,000 keys; reading, answering and writing, and what the system does for it.",
        measured,
        goals: vec![
            Goal::same(ONE, THROTTLE, INCR, 1.0, 0.9),
            Goal::same(PIPELINED, THROTTLE, INCR, 0.9, 0.7),
            Goal::same(ONE, CHECK, INCR, 1.1, 1.0),
            Goal::same(PIPELINED, CHECK, INCR, 1.0, 0.8),
        ],
    }
}

fn opening(machine: &str) -> String {
    format!(
        "# Benchmarks: the service\n\n\
         Written by `scripts/bench service`; to be run again rather than edited.\n\n\
         Tidegate {}, redis-server and redis-benchmark as installed. Measured on: {machine}\n",
        version("tidegate-server"),
    )
}

fn method(plan: Plan) -> String {
    let [one, pipelined] = plan.requests;
    format!(
        "* Both servers on this machine, with nothing on disk, asked in turns by `redis-benchmark` with 50 connections.\n\
         * Rounds take turns: every case once, then every case again; {} rounds of {one} requests one at a time and {pipelined} \
         pipelined. A figure is the median of the rounds (the lowest – the highest). A ratio is ours ÷ peer within each round, and \
         then the median of these.\n\
         * Tidegate has half as many threads as there are processors, Redis has one that answers. What is compared is work \
         and not time.\n\
         * The limit is 30 a minute and 100,000 at once, for each key, by rule as by call: nobody is refused, every request writes.\n",
        plan.rounds
    )
}
