//! # The lease suite: what asking once for many saves
//!
//! ```text
//!   bench-leases            the whole suite; the report goes to stdout, progress to stderr
//!   bench-leases --quick    the same cases, in few and short rounds
//! ```

mod demand;
mod exact;
mod hot;
mod node;
#[allow(dead_code, unused_imports, reason = "written for tests, which use all of it")]
#[path = "../../../crates/tidegate-redis/tests/support/mod.rs"]
mod support;

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use bench_harness::machine;
use bench_harness::report::{page, version, warn_of_surprises};

/// How much to measure.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    /// Decisions of each round of a hot key.
    pub(crate) decisions: usize,
    /// How long demand lasts in each round: many lots, as where it begins and ends there may be one more or less.
    pub(crate) lasts: Duration,
}

const FULL: Plan = Plan { rounds: 9, decisions: 2_000_000, lasts: Duration::from_secs(6) };
const QUICK: Plan = Plan { rounds: 3, decisions: 500_000, lasts: Duration::from_secs(3) };

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => run(FULL),
        ["--quick"] => run(QUICK),
        _ => {
            eprintln!("usage: bench-leases [--quick]");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run(plan: Plan) {
    let machine = machine::description();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let sections = runtime.block_on(async {
        vec![hot::section(plan).await, exact::section(plan).await, demand::section(plan).await]
    });
    print!("{}", page(&opening(&machine), &method(plan), &sections));
    warn_of_surprises(&sections);
}

fn opening(machine: &str) -> String {
    format!(
        "# Benchmarks: leases\n\n\
         Written by `scripts/bench leases`; to be run again rather than edited.\n\n\
         Tidegate {}, limitador {}, redis-server as installed. Measured on: {machine}\n",
        version("tidegate"),
        version("limitador"),
    )
}

fn method(plan: Plan) -> String {
    format!(
        "* A real redis-server on this machine. A node is a gate with connections and leases of its own; all nodes are tasks of \
         one process with two threads.\n\
         * {} rounds that take turns. A figure is the median of the rounds (the lowest – the highest); a ratio is ours ÷ peer \
         within each round, and then the median of these.\n\
         * Commands are all that leases have sent, returns included, for each decision, refusals included.\n",
        plan.rounds
    )
}
