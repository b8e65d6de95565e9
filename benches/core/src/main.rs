//! # The core suite: decisions in memory, beside the peers and the floor
//!
//! A figure in nanoseconds says more about the machine than about the library. So everything is measured in
//! one run, in rounds that take turns, and what counts is the ratio of ours to the peer within a round.
//!
//! ```text
//!   bench-core            the whole suite; the report goes to stdout, progress to stderr
//!   bench-core --quick    the same cases, in few and short rounds
//!   bench-core child …    one measurement that needs a process to itself; started by the suite
//! ```

mod child;
mod direct;
mod floor;
mod insert;
mod keyed;
mod memory;
mod ours;
mod peers;
mod plan;
mod report;

use std::env;
use std::process::ExitCode;

use bench_harness::{case, goal, keys, machine, rounds};
use plan::Plan;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => run(&Plan::FULL),
        ["--quick"] => run(&Plan::QUICK),
        ["child", task, who, keys] => return child::answer(task, who, keys),
        _ => {
            eprintln!("usage: bench-core [--quick]");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Measures everything and prints the report.
fn run(plan: &Plan) {
    let machine = machine::description();
    let sections = [
        direct::section(plan),
        keyed::numbers(plan),
        keyed::texts(plan),
        keyed::others(plan),
        memory::section(plan),
        insert::section(plan),
    ];
    print!("{}", report::page(plan, &machine, &sections));
    report::warn_of_surprises(&sections);
}
