//! What the script takes, beside others.

use bench_harness::goal::Goal;
use bench_harness::report::Section;
use bench_harness::rounds::Measured;
use tidegate_redis::SCRIPT;

use crate::Plan;
use crate::raw::{Call, Raw, Took, bucket};
use crate::support::{Kind, Server};

const TIDEGATE: &str = "**tidegate**";
const THREE_CALLS: &str = "**tidegate**, three calls";
const AT_ONCE: &str = "**tidegate**, three calls at once";
const MINIMAL: &str = "minimal script";
const USUAL: &str = "usual script";

const CPU: &str = "processor, 16 pipelined";
const ONE: &str = "three rules, one request at a time";
const PIPELINED: &str = "three rules, 16 pipelined";
const MEMORY: &str = "bytes per key";

pub(crate) const GCRA: &str = include_str!("scripts/gcra.lua");
const TOKEN_BUCKET: &str = include_str!("scripts/token_bucket.lua");

/// A case, and how its figure comes from what it took.
struct Case {
    what: &'static str,
    who: &'static str,
    /// Each is sent when the one before is answered.
    steps: Vec<Vec<Call>>,
    together: usize,
    figure: fn(Took) -> f64,
}

pub(crate) fn sections(plan: Plan) -> Vec<Section> {
    let server = Server::start(Kind::Redis, &[]);
    crate::gate::pin(server.pid(), 0);
    crate::gate::pin(std::process::id(), 1);
    let mut raw = Raw::to(&server);
    let cases = cases(&mut raw);
    eprintln!("The script: {} cases, {} rounds", cases.len(), plan.rounds);
    let mut figures: Vec<Vec<f64>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..plan.rounds {
        for (case, figures) in cases.iter().zip(&mut figures) {
            raw.run(&case.steps, plan.requests / 10, case.together);
            let took = raw.run(&case.steps, plan.requests, case.together);
            figures.push((case.figure)(took) / plan.requests as f64);
        }
    }
    let times =
        cases.iter().zip(figures).map(|(case, rounds)| measured(case.what, case.who, rounds)).collect();
    vec![times_section(times), memory_section(&mut raw)]
}

fn measured(what: &'static str, who: &'static str, rounds: Vec<f64>) -> Measured {
    Measured { what, who, rounds, surprise: None }
}

fn cases(raw: &mut Raw) -> Vec<Case> {
    let wall: fn(Took) -> f64 = |took| took.wall.as_secs_f64() * 1e6;
    let cpu: fn(Took) -> f64 = |took| took.cpu.as_secs_f64() * 1e6;
    // One a second, a million at once: nobody is refused.
    let rule = bucket(1_000_000, 1_000_000);
    let one = |raw: &mut Raw, rule_name| raw.load(SCRIPT, &[rule_name], &[b"1:check", b"1", &rule]);
    let (a, b, c) = (one(raw, "abc"), one(raw, "def"), one(raw, "ghi"));
    let three =
        raw.load(SCRIPT, &["abc", "def", "ghi"], &[b"1:check", b"1", &rule, b"1", &rule, b"1", &rule]);
    let minimal = raw.load(GCRA, &["min"], &[b"1000000", b"1000000000000"]);
    let usual = raw.load(TOKEN_BUCKET, &["usu"], &[b"1", b"1000000", b"1"]);
    let case = |what, who, steps: &[&[&Call]], together, figure| {
        let steps = steps.iter().map(|calls| calls.iter().map(|call| (*call).clone()).collect()).collect();
        Case { what, who, steps, together, figure }
    };
    vec![
        case(CPU, MINIMAL, &[&[&minimal]], 16, cpu),
        case(CPU, USUAL, &[&[&usual]], 16, cpu),
        case(CPU, TIDEGATE, &[&[&a]], 16, cpu),
        case(ONE, TIDEGATE, &[&[&three]], 1, wall),
        case(ONE, THREE_CALLS, &[&[&a], &[&b], &[&c]], 1, wall),
        case(PIPELINED, TIDEGATE, &[&[&three]], 16, wall),
        case(PIPELINED, THREE_CALLS, &[&[&a], &[&b], &[&c]], 16, wall),
        case(PIPELINED, AT_ONCE, &[&[&a, &b, &c]], 16, wall),
    ]
}

fn times_section(measured: Vec<Measured>) -> Section {
    Section {
        title: "The script",
        unit: "µs",
        text: "Microseconds for each request: of the server's processor where it says so, else from sending to having the answer. \
               *Three calls*: one for each rule, each sent when the one before has passed, so that 16 requests in flight \
               are 16 calls in flight. *At once*: all three of all 16 requests in one pipeline of 48, which asks rules \
               that need not be asked, and charges those before one that refuses.",
        measured,
        goals: vec![
            Goal::same(CPU, TIDEGATE, USUAL, 0.95, 0.85),
            Goal::same(ONE, TIDEGATE, THREE_CALLS, 0.62, 0.5),
            Goal::same(PIPELINED, TIDEGATE, THREE_CALLS, 0.71, 0.6),
        ],
    }
}

fn memory_section(raw: &mut Raw) -> Section {
    // One an hour, so that no key is forgotten before it is counted.
    let minimal = raw.load(GCRA, &["min"], &[b"3600000000", b"1000000000000"]);
    let usual = raw.load(TOKEN_BUCKET, &["usu"], &[b"0.001", b"1000", b"1"]);
    let ours = raw.load(SCRIPT, &["abc"], &[b"1:check", b"1", &bucket(3_600_000_000, 1_000)]);
    let mut memory = |who, call| measured(MEMORY, who, vec![raw.memory(&call, 200_000)]);
    Section {
        title: "Memory",
        unit: "bytes",
        text: "Of the server, for each of 200,000 keys with a name of 30 bytes, expiry included. Required: at most 160.",
        measured: vec![memory(MINIMAL, minimal), memory(USUAL, usual), memory(TIDEGATE, ours)],
        goals: vec![Goal::same(MEMORY, TIDEGATE, USUAL, 0.86, 0.8)],
    }
}
