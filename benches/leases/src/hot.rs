//! One key that everybody wants, and a limit that is not reached.

use std::time::Instant;

use bench_harness::goal::Goal;
use bench_harness::report::Section;
use bench_harness::rounds::Measured;
use tidegate::Quota;

use crate::Plan;
use crate::node::{LEASED, LIMITADOR, Node, STRICT, leased, limitadors};
use crate::support::{Kind, Server};

const DECISIONS: &str = "decisions on a hot key, 2 nodes";
/// Of each node, at the same time.
const TASKS: usize = 32;
/// Rounds of the others are shorter, as each decision takes longer.
const FEWER: usize = 50;

pub(crate) async fn section(plan: Plan) -> Section {
    let server = Server::start(Kind::Redis, &[]);
    let gates = leased(&server, 2, Quota::per_second(100_000_000).burst(30_000)).await;
    let asked = gates.iter().map(|gate| Node::Strict(gate.strict().clone())).collect();
    let cases = [
        (LEASED, gates.into_iter().map(Node::Leased).collect(), plan.decisions),
        (STRICT, asked, plan.decisions / FEWER),
        (LIMITADOR, limitadors(&server, 2, 1_000_000_000, 3_600).await, plan.decisions / FEWER),
    ];
    eprintln!("{DECISIONS}: {} rounds", plan.rounds);
    let mut measured =
        cases.each_ref().map(|(who, ..)| Measured { what: DECISIONS, who, rounds: vec![], surprise: None });
    for _ in 0..plan.rounds {
        for ((_, nodes, n), measured) in cases.iter().zip(&mut measured) {
            measured.rounds.push(decisions(nodes, *n).await);
        }
    }
    Section {
        title: "A hot key",
        unit: "ns",
        text: "Nanoseconds for each decision, of 64 tasks in all. The burst is 30,000, so that lots are 8,750 each; strict decisions \
               are asked of the same Redis, 64 at a time. limitador counts in its process and tells Redis once a second.",
        measured: measured.into(),
        goals: vec![
            Goal::same(DECISIONS, LEASED, STRICT, 0.01, 0.005),
            Goal::same(DECISIONS, LEASED, LIMITADOR, 0.05, 0.02),
        ],
    }
}

/// Nanoseconds for each.
async fn decisions(nodes: &Vec<Node>, n: usize) -> f64 {
    let each = n / (TASKS * nodes.len());
    let started = Instant::now();
    let tasks: Vec<_> = (0..TASKS * nodes.len())
        .map(|task| tokio::spawn(ask(nodes[task % nodes.len()].clone(), each)))
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    started.elapsed().as_secs_f64() * 1e9 / n as f64
}

async fn ask(node: Node, n: usize) {
    let asker = node.asker();
    for count in 0..n {
        let passes = asker.passes().await;
        assert!(passes || matches!(node, Node::Strict(_)), "the limit is not reached");
        if count % 64 == 63 {
            tokio::task::yield_now().await; // as who serves others does
        }
    }
}
