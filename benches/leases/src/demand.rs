//! Limits under so and so much demand: how often Redis is asked, and how much of the limit is used.

use std::time::{Duration, Instant};

use bench_harness::goal::Goal;
use bench_harness::report::Section;
use bench_harness::rounds::Measured;
use tidegate::Quota;
use tidegate_redis::Leased;

use crate::Plan;
use crate::node::{KEY, RULE, STRICT, leased};
use crate::support::{Kind, Server};

const COMMANDS: &str = "commands per 100 decisions";
const USED: &str = "of what could pass, % that did";

/// By then the burst is used and lots have found their size.
const SETTLES: Duration = Duration::from_millis(1_500);

struct Load {
    who: &'static str,
    rate: u64,
    burst: u64,
    nodes: u32,
    /// Of the limit, in tenths.
    demand: u64,
    /// Commands for each decision, at most.
    required: Option<f64>,
}

const LOADS: &[Load] = &[
    Load {
        who: "1000/s burst 300, 2 nodes, 3×",
        rate: 1_000,
        burst: 300,
        nodes: 2,
        demand: 30,
        required: Some(0.01),
    },
    Load {
        who: "1000/s burst 100, 8 nodes, 3×",
        rate: 1_000,
        burst: 100,
        nodes: 8,
        demand: 30,
        required: Some(0.04),
    },
    Load {
        who: "100/s burst 20, 2 nodes, 3×",
        rate: 100,
        burst: 20,
        nodes: 2,
        demand: 30,
        required: Some(0.05),
    },
    Load {
        who: "1000/s burst 300, 2 nodes, 0.7×",
        rate: 1_000,
        burst: 300,
        nodes: 2,
        demand: 7,
        required: None,
    },
    Load {
        who: "1000/s burst 40, 8 nodes, 0.7×",
        rate: 1_000,
        burst: 40,
        nodes: 8,
        demand: 7,
        required: None,
    },
    Load { who: "100/s burst 20, 2 nodes, 0.7×", rate: 100, burst: 20, nodes: 2, demand: 7, required: None },
];

pub(crate) async fn section(plan: Plan) -> Section {
    let mut measured = Vec::new();
    let rounds = plan.rounds.div_ceil(3);
    for load in LOADS {
        eprintln!("{}: {rounds} rounds", load.who);
        let (mut commands, mut used) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (asked, share) = load.round(plan.lasts).await;
            commands.push(asked * 100.0);
            used.push(share * 100.0);
        }
        measured.push(Measured { what: COMMANDS, who: load.who, rounds: commands, surprise: None });
        measured.push(Measured { what: USED, who: load.who, rounds: used, surprise: None });
    }
    measured.push(Measured { what: COMMANDS, who: STRICT, rounds: vec![100.0; rounds], surprise: None });
    let goals = LOADS.iter().filter_map(|load| {
        load.required.map(|required| Goal::same(COMMANDS, load.who, STRICT, required, required / 2.0))
    });
    Section {
        title: "Under demand",
        unit: "of 100",
        text: "Demand comes evenly, to all nodes alike, and is measured when the burst is used and lots have found their size. Of what could \
               pass: of the limit, or of the demand if that is less. A strict decision is one command.",
        measured,
        goals: goals.collect(),
    }
}

impl Load {
    /// Commands for each decision, and the share that passed of what could.
    async fn round(&self, lasts: Duration) -> (f64, f64) {
        let server = Server::start(Kind::Redis, &[]);
        let gates = leased(&server, self.nodes, Quota::per_second(self.rate).burst(self.burst)).await;
        let each = self.rate as f64 * self.demand as f64 / 10.0 / f64::from(self.nodes);
        let tasks: Vec<_> = gates.iter().map(|gate| tokio::spawn(check_evenly(gate.clone(), each))).collect();
        tokio::time::sleep(SETTLES).await;
        let (before, began) = (Counts::of(&gates), Instant::now());
        tokio::time::sleep(lasts).await;
        let (after, took) = (Counts::of(&gates), began.elapsed());
        for task in tasks {
            task.abort();
        }
        let [commands, passed, asked] =
            [after.commands - before.commands, after.passed - before.passed, after.asked - before.asked]
                .map(|count| count as f64);
        let could = (self.rate as f64 * took.as_secs_f64()).min(asked);
        (commands / asked, passed / could)
    }
}

/// How many commands all nodes have sent, how many requests have passed, and how many were made.
struct Counts {
    commands: u64,
    passed: u64,
    asked: u64,
}

impl Counts {
    fn of(gates: &[Leased]) -> Self {
        let mut counts = Counts { commands: 0, passed: 0, asked: 0 };
        for gate in gates {
            let (stats, strict) = (gate.stats(), gate.strict().health().decisions);
            counts.commands += stats.commands + strict.strict;
            counts.passed += stats.spent;
            counts.asked += stats.spent + stats.refused + strict.strict;
        }
        counts
    }
}

/// Checks at an even pace, until it is aborted.
async fn check_evenly(gate: Leased, per_second: f64) {
    let (started, limiter) = (Instant::now(), gate.limiter(RULE).expect("a rate limit"));
    let mut asked = 0;
    loop {
        let due = (started.elapsed().as_secs_f64() * per_second) as u64;
        while asked < due {
            let _ = limiter.check(KEY).await;
            asked += 1;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
