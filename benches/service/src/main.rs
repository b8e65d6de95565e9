//! # The service suite: what a decision costs the server, at each of its doors, beside others
//!
//! ```text
//!   bench-service            the whole suite; the report goes to stdout, progress to stderr
//!   bench-service --quick    the same cases, in few and short rounds
//! ```
//!
//! `scripts/bench` says in the environment where the program is (`TIDEGATE_PROGRAM`) and where the peers are (`PEERS`).

mod ask;
mod call;
mod grpc;
mod http;
mod memory;
mod processors;
mod redis_benchmark;
mod resp;
mod server;
mod turns;

use std::env;
use std::process::ExitCode;

use bench_harness::machine;
use bench_harness::report::{page, version, warn_of_surprises};

/// How much to measure.
#[derive(Clone, Copy)]
struct Plan {
    rounds: usize,
    /// Requests of clients of Redis in each round of each case, one at a time and pipelined.
    resp: [u32; 2],
    http: u64,
    grpc: u64,
    /// Servers that are filled with keys, one after the other.
    fillings: usize,
}

const FULL: Plan = Plan { rounds: 7, resp: [200_000, 1_000_000], http: 150_000, grpc: 50_000, fillings: 3 };
const QUICK: Plan = Plan { rounds: 3, resp: [60_000, 300_000], http: 50_000, grpc: 15_000, fillings: 1 };

/// Keys that requests are about, unless it is keys that are measured.
const KEYS: u64 = 100_000;

/// Neighbours ask for keys that are far from each other.
fn key(request: u64) -> u64 {
    request * 7_919 % KEYS
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => run(FULL),
        ["--quick"] => run(QUICK),
        _ => {
            eprintln!("usage: bench-service [--quick]");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run(plan: Plan) {
    let machine = machine::description();
    let mut sections = resp::sections(plan);
    sections.push(http::section(plan));
    sections.push(grpc::section(plan));
    sections.push(memory::section(plan));
    print!("{}", page(&opening(&machine), &method(plan), &sections));
    warn_of_surprises(&sections);
}

fn opening(machine: &str) -> String {
    format!(
        "# Benchmarks: the service\n\n\
         Written by `scripts/bench service`; to be run again rather than edited.\n\n\
         Tidegate {}, the program as it is built by `cargo build --release`; redis-server and redis-benchmark as \
         installed; {}. Measured on: {machine}\n",
        version("tidegate"),
        env::var("PEERS_VERSIONS").unwrap_or_else(|_| "peers of unknown version".to_owned()),
    )
}

fn method(plan: Plan) -> String {
    let (Plan { rounds, resp: [one, pipelined], http, grpc, fillings }, keys) = (plan, KEYS);
    format!(
        "* Servers on this machine, on one processor; clients on another, with the Redis of those who have their counts \
         there. What is compared is work and not time: what all threads of the server were at work, by the system's own \
         account, for each request.\n\
         * Rounds take turns: every case once, then every case again; {rounds} rounds of {one} requests of clients of Redis \
         one at a time and {pipelined} pipelined, {http} by HTTP and {grpc} by gRPC, among {keys} keys. A figure is the median \
         of the rounds (the lowest – the highest). A ratio is ours ÷ peer within each round, and then the median of these. \
         Memory is that of {fillings} servers of each kind.\n\
         * The limit is 24 a day and 100,000 at once, for each key, by rule as by call: nobody is refused, every request \
         writes, and no key is forgotten meanwhile. All servers are as they are if they are told nothing else.\n"
    )
}
