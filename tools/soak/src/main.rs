//! # Soak: services, a Redis that fails, and a check of every decision
//!
//! ```text
//!   soak --program target/debug/tidegate [--minutes 10] [--seed N]
//! ```
//!
//! With `--attack`, floods and slow clients instead: see [`attack`].
//!
//! Four services share one Redis, behind a proxy that can fail. Clients send requests all the time, at about twice the
//! rate that the limits admit, while faults come and go. Every decision is checked against the contract of its rule, in the
//! worst of all intervals. The exit code is 1 if anything was admitted beyond the contract and its stated allowances.
//!
//! ```text
//!   load ──TG.CHECK──► services ──► proxy ──► Redis
//!     │                   ▲           ▲         ▲
//!     │                   └─ faults ──┴─────────┘
//!     ▼ records                │ when
//!   audit ◄────────────────────┘
//!     └─► report
//! ```

mod attack;
mod audit;
mod check;
mod client;
mod faults;
mod latency;
mod load;
mod random;
mod report;
mod rules;
mod stage;
#[path = "../../../crates/tidegate-redis/tests/support/mod.rs"]
mod support;

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, thread};

use audit::Audit;
use check::{Nanos, SECOND};
use faults::FaultLog;
use load::{Clock, Demand, Load};
use report::Findings;
use stage::Stage;

/// The options of the command line.
struct Options {
    program: PathBuf,
    minutes: f64,
    seed: u64,
    /// Floods and slow clients, instead of a Redis that fails.
    attacks: bool,
}

const USAGE: &str = "usage: soak --program PATH [--minutes N] [--seed N] [--attack]";
const ROUND: Duration = Duration::from_secs(1);
const PROGRESS: Nanos = 10 * SECOND;
/// The time without faults at the end.
const CALM: Nanos = 2 * SECOND;

fn main() -> ExitCode {
    let options = match options(env::args().skip(1)) {
        Ok(options) => options,
        Err(mistake) => {
            eprintln!("soak: {mistake}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let ran = if options.attacks {
        attack::run(&options.program, options.minutes).map(|()| 0)
    } else {
        run(&options)
    };
    match ran {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::from(3)
        }
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        program: PathBuf::new(),
        minutes: 10.0,
        seed: RandomState::new().hash_one("seed") % 1_000_000,
        attacks: false,
    };
    while let Some(name) = arguments.next() {
        if name == "--attack" {
            options.attacks = true;
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let not_a_number = || format!("{name} needs a number, not {value}");
        match name.as_str() {
            "--program" => options.program = value.into(),
            "--minutes" => options.minutes = value.parse().map_err(|_| not_a_number())?,
            "--seed" => options.seed = value.parse().map_err(|_| not_a_number())?,
            _ => return Err(format!("unknown option {name}")),
        }
    }
    if !(options.minutes > 0.0 && options.minutes < 1e5) {
        return Err(format!("cannot run for {} minutes", options.minutes));
    }
    if options.program.is_file() { Ok(options) } else { Err("no service to run; build it first".into()) }
}

/// Runs the soak, and returns how many tokens were admitted beyond every allowance.
fn run(options: &Options) -> Result<i64, Box<dyn Error>> {
    println!("soak: seed {}, {} minutes", options.seed, options.minutes);
    let mut stage = Stage::start(&options.program)?;
    let clock = Clock::start();
    let wall = wall_ahead(clock);
    let faults = FaultLog::new(clock);
    let demand = Demand::usual();
    let load = Load::start(options.seed, clock, stage.ports(), &demand);
    let (mut audit, mut findings, mut drift) = (Audit::new(wall), Findings::default(), 0);
    let end = clock.now() + Nanos::try_from(Duration::from_secs_f64(options.minutes * 60.0).as_nanos())?;
    let failed = AtomicBool::new(false);
    let injected = thread::scope(|scope| {
        let injector = scope.spawn(|| {
            let is_over = || clock.now() >= end - CALM;
            let injected = faults::inject(options.seed, &mut stage, &faults, &demand, is_over);
            failed.store(injected.is_err(), Ordering::Relaxed);
            injected
        });
        let mut next_progress = PROGRESS;
        while !(injector.is_finished() && (clock.now() >= end || failed.load(Ordering::Relaxed))) {
            thread::sleep(ROUND);
            let collected = load.collect();
            let entries = faults.entries();
            audit.round(collected, &entries);
            findings.update(&audit, &entries);
            drift = drift.max((wall_ahead(clock) - wall).abs());
            if clock.now() >= next_progress {
                next_progress += PROGRESS;
                report::progress(clock.now(), &audit, &entries, &findings);
            }
            if injector.is_finished() && clock.now() < end && failed.load(Ordering::Relaxed) {
                break;
            }
        }
        injector.join().unwrap_or_else(|_| Err(std::io::Error::other("a fault could not be injected")))
    });
    audit.round(load.stop(), &faults.entries());
    findings.update(&audit, &faults.entries());
    report::summary(clock.now(), drift, &audit, &faults.entries(), &findings);
    injected?;
    Ok(findings.total())
}

/// How far the wall clock, which Redis reads, is ahead of the soak's.
fn wall_ahead(clock: Clock) -> Nanos {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    Nanos::try_from(wall).unwrap_or(0) - clock.now()
}
