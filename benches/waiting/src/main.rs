//! # The waiting suite: permits, waiting and policies, beside their peers and the floor
//!
//! Measured in rounds that take turns, like the core suite. Nobody waits in these cases: what is measured is what everybody
//! pays who does not have to.
//!
//! ```text
//!   bench-waiting            the whole suite; the report goes to stdout, progress to stderr
//!   bench-waiting --quick    the same cases, in few and short rounds
//! ```

mod pacing;
mod permits;
mod policies;

use std::env;
use std::process::ExitCode;

use bench_harness::machine;
use bench_harness::report::{page, version, warn_of_surprises};
use bench_harness::turns::Turns;

/// How much to measure: of cases that touch one place, and of those with a million keys, which need longer to warm the
/// caches.
struct Plan {
    one_place: Turns,
    keyed: Turns,
}

const FULL: Plan = Plan { one_place: Turns::new(101, 8, 2), keyed: Turns::new(25, 60, 50) };
const QUICK: Plan = Plan { one_place: Turns::new(21, 5, 1), keyed: Turns::new(5, 30, 25) };

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => run(&FULL),
        ["--quick"] => run(&QUICK),
        _ => {
            eprintln!("usage: bench-waiting [--quick]");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Measures everything and prints the report.
fn run(plan: &Plan) {
    let machine = machine::description();
    let sections =
        [permits::section(&plan.one_place), pacing::section(&plan.one_place), policies::section(&plan.keyed)];
    print!("{}", page(&opening(&machine), &method(plan), &sections));
    warn_of_surprises(&sections);
}

fn opening(machine: &str) -> String {
    format!(
        "# Benchmarks: waiting\n\n\
         Written by `scripts/bench waiting`; to be run again rather than edited.\n\n\
         Tidegate {}, tokio {}, governor {}, leaky-bucket {}. Measured on: {machine}\n",
        version("tidegate"),
        version("tokio"),
        version("governor"),
        version("leaky-bucket"),
    )
}

fn method(Plan { one_place, keyed }: &Plan) -> String {
    format!(
        "## How it is measured\n\n\
         * One decision is a permit taken and given back. There is always one free, and nobody waits; a case in \
           which a permit is refused is reported.\n\
         * Tidegate counts how each permit ended, tokio does not.\n\
         * *Async* is one poll of the future of `acquire`, by a loop without a runtime; tokio's own accounting of \
           how long a task runs is thus at its cheapest.\n\
         * The floor is one word that is lowered by a compare-and-swap and raised again.\n\
         * Threads are pinned. Rounds take turns: every case once, then every case again; {} rounds of {} ms, each \
           after running untimed for {} ms; with a million keys, {} of {} ms after {} ms.\n\
         * A figure is the median of the rounds (the lowest – the highest). A ratio is ours ÷ peer within each round, \
           and then the median of these ratios, because machines are shared and noisy. When the load that is printed \
           above is not far below the number of processors, the figures are provisional.\n\
         * One profile for everybody: cargo's `release` with `lto = \"fat\"` and `codegen-units = 1`.\n",
        one_place.rounds,
        one_place.slice.as_millis(),
        one_place.warm_up.as_millis(),
        keyed.rounds,
        keyed.slice.as_millis(),
        keyed.warm_up.as_millis(),
    )
}
