//! More is wanted than a limit lets pass: how much does.

use std::time::{Duration, Instant};

use bench_harness::report::Section;
use bench_harness::rounds::Measured;
use tidegate::Quota;
use tidegate::algorithm::FixedWindow;

use crate::Plan;
use crate::node::{Asker, LEASED, LIMITADOR, Node, leased, limitadors};
use crate::support::{Kind, Server};

const BEYOND: &str = "passed beyond a limit of 1000";
const LIMIT: u64 = 1_000;
const NODES: u32 = 2;
/// How much is wanted, by all nodes together, and in what time.
const WANTED: u32 = 3_000;
const LASTS: Duration = Duration::from_millis(500);

pub(crate) async fn section(plan: Plan) -> Section {
    let rounds = plan.rounds.div_ceil(3);
    eprintln!("{BEYOND}: {rounds} rounds");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let server = Server::start(Kind::Redis, &[]);
        let window = FixedWindow::new(Quota::per_minute(LIMIT)).from_first_hit();
        let gates = leased(&server, NODES, window).await;
        ours.push(beyond(gates.into_iter().map(Node::Leased).collect()).await);
        let server = Server::start(Kind::Redis, &[]);
        theirs.push(beyond(limitadors(&server, NODES, LIMIT, 60).await).await);
    }
    let measured = |who, rounds| Measured { what: BEYOND, who, rounds, surprise: None };
    Section {
        title: "More than the limit",
        unit: "requests",
        text: "A window of a minute from its first request with room for 1000, shared by two nodes, each of which is asked for 1500 \
               within half a second: how many more than 1000 pass.",
        measured: vec![measured(LEASED, ours), measured(LIMITADOR, theirs)],
        goals: vec![],
    }
}

async fn beyond(nodes: Vec<Node>) -> f64 {
    let tasks: Vec<_> = nodes.iter().map(|node| tokio::spawn(passed(node.asker()))).collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await.expect("no panic");
    }
    f64::from(sum) - LIMIT as f64
}

/// How many pass of this node's share of the demand.
async fn passed(asker: Asker) -> u32 {
    let (mut passed, started, share) = (0, Instant::now(), WANTED / NODES);
    for asked in 0..share {
        let due = LASTS * asked / share;
        tokio::time::sleep(due.saturating_sub(started.elapsed())).await;
        passed += u32::from(asker.passes().await);
    }
    passed
}
