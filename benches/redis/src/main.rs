//! # The Redis suite: one script beside others, and what a decision takes when Redis does not answer
//!
//! ```text
//!   bench-redis            the whole suite; the report goes to stdout, progress to stderr
//!   bench-redis --quick    the same cases, in few and short rounds
//!   bench-redis --script   only the script, and --gate only how fast a gate is
//! ```

mod faults;
mod gate;
mod raw;
mod scripts;
#[path = "../../../crates/tidegate-redis/tests/support/mod.rs"]
mod support;

use std::env;
use std::process::ExitCode;

use bench_harness::machine;
use bench_harness::report::{Section, page, version, warn_of_surprises};

/// How much to measure.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    /// Requests in each round of each case.
    pub(crate) requests: usize,
}

/// Many short rounds rather than few long ones: what is compared is then measured within a fraction of a second.
const FULL: Plan = Plan { rounds: 31, requests: 3_200 };
const QUICK: Plan = Plan { rounds: 5, requests: 3_200 };

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => run(FULL, &[scripts::sections, gate::sections, faults::sections]),
        ["--quick"] => run(QUICK, &[scripts::sections, gate::sections, faults::sections]),
        ["--script"] => run(FULL, &[scripts::sections]),
        ["--gate"] => run(FULL, &[gate::sections]),
        _ => {
            eprintln!("usage: bench-redis [--quick | --script | --gate]");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run(plan: Plan, suites: &[fn(Plan) -> Vec<Section>]) {
    let machine = machine::description();
    let sections: Vec<Section> = suites.iter().flat_map(|suite| suite(plan)).collect();
    print!("{}", page(&opening(&machine), &method(plan), &sections));
    warn_of_surprises(&sections);
}

fn opening(machine: &str) -> String {
    format!(
        "# Benchmarks: Redis\n\n\
         Written by `scripts/bench redis`; to be run again rather than edited.\n\n\
         Tidegate {}, redis-rs {}, redis-server as installed. Measured on: {machine}\n",
        version("tidegate"),
        version("redis"),
    )
}

fn method(plan: Plan) -> String {
    format!(
        "* A real redis-server on this machine, on a processor of its own; clients on the other.\n\
         * Rounds take turns: every case once, then every case again; {} rounds of {} requests. A figure is the median of the \
         rounds (the lowest – the highest). A ratio is ours ÷ peer within each round, and then the median of these.\n\
         * The peers are two scripts: the *minimal* one keeps one instant and compares it; the *usual* one keeps tokens and a time \
         in a hash, as most programs do. Neither counts exactly, tells a remaining or a reset, or knows other algorithms.\n",
        plan.rounds, plan.requests
    )
}
