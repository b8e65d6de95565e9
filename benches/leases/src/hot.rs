//! One key that everybody wants, and a limit that is not reached.

use std::time::Instant;

use bench_harness::goal::Goal;
use bench_harness::report::Section;
use bench_harness::rounds::Measured;
use tidegate::{Part, Quota, RuleId};
use tidegate_redis::Leased;

use crate::support::{Kind, Server};
use crate::{Plan, nodes};

const DECISIONS: &str = "decisions on a hot key, 2 nodes";
const LEASED: &str = "**tidegate**, leased";
const STRICT: &str = "**tidegate**, strict";
/// Of each node, at the same time.
const TASKS: usize = 32;
/// A strict round is shorter, as each decision takes longer.
const FEWER: usize = 50;

pub(crate) async fn section(plan: Plan) -> Section {
    let server = Server::start(Kind::Redis, &[]);
    let gates = nodes(&server, 2, Quota::per_second(100_000_000).burst(30_000)).await;
    let (mut leased, mut strict) = (Vec::new(), Vec::new());
    eprintln!("{DECISIONS}: {} rounds", plan.rounds);
    for _ in 0..plan.rounds {
        leased.push(decisions(&gates, plan.decisions, true).await);
        strict.push(decisions(&gates, plan.decisions / FEWER, false).await);
    }
    let measured = |who, rounds| Measured { what: DECISIONS, who, rounds, surprise: None };
    Section {
        title: "A hot key",
        unit: "ns",
        text: "Nanoseconds for each decision, of 64 tasks in all. The burst is 30,000, so that lots are 10,000 each; strict decisions \
               are asked of the same Redis, 64 at a time.",
        measured: vec![measured(STRICT, strict), measured(LEASED, leased)],
        goals: vec![Goal::same(DECISIONS, LEASED, STRICT, 0.01, 0.005)],
    }
}

/// Nanoseconds for each.
async fn decisions(gates: &[Leased], n: usize, leased: bool) -> f64 {
    let started = Instant::now();
    let tasks: Vec<_> = (0..TASKS * gates.len())
        .map(|task| {
            let gate = gates[task % gates.len()].clone();
            tokio::spawn(ask(gate, n / (TASKS * gates.len()), leased))
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    started.elapsed().as_secs_f64() * 1e9 / n as f64
}

async fn ask(gate: Leased, n: usize, leased: bool) {
    let request = [Part::of(RuleId(0)).key("everybody")];
    for count in 0..n {
        let admission = match leased {
            true => gate.check(&request).await,
            false => gate.strict().check(&request).await,
        };
        assert!(admission.expect("a request").is_allowed() || !leased, "the limit is not reached");
        if count % 64 == 63 {
            tokio::task::yield_now().await; // as who serves others does
        }
    }
}
