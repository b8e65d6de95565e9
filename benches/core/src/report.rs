//! What the page says before its figures.

use bench_harness::report::version;
pub(crate) use bench_harness::report::{Section, warn_of_surprises};

use crate::plan::Plan;

pub(crate) fn page(plan: &Plan, machine: &str, sections: &[Section]) -> String {
    bench_harness::report::page(&opening(machine), &method(plan), sections)
}

fn opening(machine: &str) -> String {
    format!(
        "# Benchmarks\n\n\
         Written by `scripts/bench core`; to be run again rather than edited.\n\n\
         Tidegate {}, governor {}, throttlecrab {}, limitador {} (without its default features, which bring \
         in databases). Measured on: {machine}\n",
        version("tidegate"),
        version("governor"),
        version("throttlecrab"),
        version("limitador"),
    )
}

fn method(plan: &Plan) -> String {
    let (direct, keyed) = (&plan.direct, &plan.keyed);
    format!(
        "## How it is measured\n\n\
         * Peers are in their default configuration. So is Tidegate: idle keys leave, and the number of keys \
           is bounded.\n\
         * The same quota for Tidegate and governor. Where all is allowed, no key is idle during the run; a \
           case whose answers are not all as expected is reported.\n\
         * The caller reads the whole answer: outcome, rule and source; where it says *all read*, remaining \
           and reset too. Of governor the whole result is read.\n\
         * The floor is printed beside: the loop around each case, a clock, one word, a flat table.\n\
         * Threads are pinned. Rounds take turns: every case once, then every case again; {} rounds of {} ms \
           each without keys, {} of {} ms with keys, each after running untimed for {} and {} ms.\n\
         * A figure is the median of the rounds (the lowest – the highest). A ratio is ours ÷ peer within \
           each round, and then the median of these ratios, because machines are shared and noisy.\n\
         * One profile for everybody: cargo's `release` with `lto = \"fat\"` and `codegen-units = 1`.\n",
        direct.rounds,
        direct.slice.as_millis(),
        keyed.rounds,
        keyed.slice.as_millis(),
        direct.warm_up.as_millis(),
        keyed.warm_up.as_millis(),
    )
}
