//! # The HTTP suite: what a limit adds to a request
//!
//! The same handler of axum's, bare, with our layer and with tower_governor's, in one run: within the process, where
//! a request is a call, and over a connection of the loopback.
//!
//! ```text
//!   bench-http            the whole suite; the report goes to stdout, progress to stderr
//!   bench-http --quick    the same cases, in few and short rounds
//!
//!   bench-http --alone around|on-routes LOAD APP N
//!                         N requests to one app (0 bare, 1 nothing, 2 tower_governor, 3 ours) under one load (0 one
//!                         address, 1 ten thousand, 2 a million, 3 and 4 with fields), for whoever counts instructions
//! ```

mod alone;
mod apps;
mod inside;
mod loopback;

use std::env;
use std::process::ExitCode;

use bench_harness::machine;
use bench_harness::report::{page, version, warn_of_surprises};
use bench_harness::turns::Turns;

use alone::serve_alone;
use apps::{GROUPS, Place};
use inside::LOADS;

/// How much to measure.
struct Plan {
    inside: Turns,
    loopback: Turns,
}

const FULL: Plan = Plan { inside: Turns::new(300, 3, 1), loopback: Turns::new(601, 8, 2) };
const QUICK: Plan = Plan { inside: Turns::new(60, 2, 1), loopback: Turns::new(90, 4, 1) };

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => run(&FULL),
        ["--quick"] => run(&QUICK),
        ["--alone", place, load, app, n] if alone(place, load, app, n).is_some() => {}
        _ => {
            eprintln!("usage: bench-http [--quick | --alone around|on-routes LOAD APP N]");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// `None` if it is not said so that it could be done.
fn alone(place: &str, load: &str, app: &str, n: &str) -> Option<()> {
    let place = match place {
        "around" => Place::Around,
        "on-routes" => Place::OnRoutes,
        _ => return None,
    };
    let load = load.parse().ok().filter(|load| *load < LOADS.len())?;
    serve_alone(place, load, app.parse().ok()?, n.parse().ok()?);
    Some(())
}

fn run(plan: &Plan) {
    let machine = machine::description();
    let sections =
        [inside::around(&plan.inside), inside::on_routes(&plan.inside), loopback::section(&plan.loopback)];
    print!("{}", page(&opening(&machine), &method(plan), &sections));
    warn_of_surprises(&sections);
}

fn opening(machine: &str) -> String {
    format!(
        "# Benchmarks: HTTP\n\n\
         Written by `scripts/bench http`; to be run again rather than edited.\n\n\
         Tidegate {}, tower_governor {}, axum {}. Measured on: {machine}\n",
        version("tidegate"),
        version("tower_governor"),
        version("axum"),
    )
}

fn method(Plan { inside, loopback }: &Plan) -> String {
    format!(
        "## How it is measured\n\n\
         * The same handler, which answers two bytes. The limit is by the address of the socket and is never reached; a \
           case in which a request is refused is reported.\n\
         * *Around the router* a layer is the service that a connection calls, and the router is inside it. *On the routes* \
           it is put there by `Router::layer`. Both layers are in the same place.\n\
         * tower_governor tells clients what is left in two fields, `X-RateLimit-Limit` and `-Remaining`. *Two fields*: ours \
           are then `RateLimit` and `RateLimit-Policy`. *X-RateLimit*: ours are those of tower_governor, and `-Reset`. Else \
           nothing is told, and responses are left as they are.\n\
         * *Added* is what a layer takes more than the bare handler. *A layer that does nothing* is what the place takes for \
           any layer: on the routes axum clones the service and boxes its future, which is part of what both limits add.\n\
         * Within the process a request is built and handed to a clone of the service, as servers do, by a loop without a \
           runtime. All addresses have been there before, and come in turn.\n\
         * Over the loopback a connection of HTTP/1.1 sends 64 requests at a time; client and server are one thread, and \
           five such pairs take turns.\n\
         * Rounds take turns: every case once, then every case again; {} rounds of {} ms within the process, {} of {} ms \
           over the loopback, each after running untimed for a while. A figure is the median of the rounds (the lowest – \
           the highest).\n\
         * What is *added* is a small difference of large figures, and whatever disturbs a round makes it longer. So the \
           rounds make {} groups, and the fastest quarter of each group counts. A ratio is ours ÷ peer within each group, and \
           then the median of these.\n\
         * One profile for everybody: cargo's `release` with `lto = \"fat\"` and `codegen-units = 1`.\n",
        inside.rounds,
        inside.slice.as_millis(),
        loopback.rounds,
        loopback.slice.as_millis(),
        GROUPS,
    )
}
