//! What nodes admit from their local shares in an outage: all together never more than the refill of the
//! limit since the start of the outage, and each node exactly its share.
//!
//! A node does not report the start of the outage, but it follows from the reset of a share that was never
//! used: the share started empty then. From that instant on the core decides on the same share, and every
//! decision must be equal.

mod gates;
mod support;

use std::time::Duration;

use gates::{eventually, ready};
use support::{Kind, Server};
use tidegate::algorithm::Algorithm;
use tidegate::clock::{Clock, Micros};
use tidegate::gate::{Part, RuleId};
use tidegate::{Decision, Quota, Rule, Source, SteadyClock};
use tidegate_redis::{OnOutage, RedisGate};

/// Limits that can be shared by each number of nodes in `CROWDS`.
const RULES: [&str; 9] = [
    "100/s burst 20",
    "leaky_queue 100/s queue 19",
    "leaky_queue 100/s queue 19 nodelay",
    "leaky_queue 100/s queue 19 nodelay nginx",
    "stepped_bucket 20 per 200ms burst 30",
    "fixed_window 20 per 200ms",
    "fixed_window 20 per 200ms from first hit",
    "sliding_log 20 per 200ms",
    "sliding_window 20 per 200ms cells 4",
];
/// The share of this rule reveals the start of the outage.
const REVEALS_START: usize = 0;
const CROWDS: [u32; 4] = [1, 2, 3, 5];
/// One node more than can share 20.
const TOO_MANY: u32 = 21;
/// How long the nodes send requests, by the clock of the decisions; longer if they have not sent a hundred by
/// then.
const DURATION: u64 = 700_000;

fn rule(text: &str) -> Rule {
    text.parse().expect("a rule")
}

/// A gate with all the rules, and one more that is open in an outage and has no share.
fn node(server: &Server, nodes: u32) -> RedisGate {
    let mut builder = RedisGate::builder(server.url()).connections(1).nodes(nodes);
    for (number, text) in RULES.iter().enumerate() {
        builder = builder.rule(format!("r{number}"), rule(text)).on_outage(OnOutage::Local);
    }
    ready(builder.rule("open", Quota::per_hour(1)).on_outage(OnOutage::Open))
}

fn number(rule: usize) -> RuleId {
    RuleId(u16::try_from(rule).expect("a few rules"))
}

/// Returns when the breaker is open; until then each decision takes its deadline.
async fn breaker_opens(gate: &RedisGate) {
    let open = [Part::of(number(RULES.len()))];
    eventually("the breaker is open", async || {
        assert_eq!(gate.check_parts(&open).await.expect("a request").decision.source, Source::Open);
        gate.health().breaker_open.then_some(())
    })
    .await;
}

/// The decisions of a node on one rule, in order.
#[derive(Clone, Debug)]
struct Share {
    outage_start: Micros,
    decided: Vec<(u32, Decision)>,
}

/// The start of the outage as this node knows it: the first decision without Redis.
async fn outage_start(gate: &RedisGate, nodes: u32) -> Micros {
    let before = SteadyClock::new().now();
    let part = Part::of(number(REVEALS_START)).key("unused").cost(20 / nodes); // refused, takes nothing
    let decision = gate.check_parts(&[part]).await.expect("a request").decision;
    let encoded = rule(RULES[REVEALS_START]).share(nodes).expect("it can be shared").encode();
    let [p, q, burst] = encoded.numbers() else { panic!("a bucket") };
    let outage_start = decision.at().plus(decision.reset_after().as_micros()).minus(p * burst / q);
    assert!(
        before <= outage_start && outage_start <= decision.at(),
        "sent at {before}, outage from {outage_start}: {decision:?}"
    );
    outage_start
}

/// Uses all shares again and again. A reply that was in flight when the outage began may arrive late and end
/// that outage: then the next outage is another one, and everything starts again.
async fn shares(gate: RedisGate, nodes: u32) -> Vec<Share> {
    loop {
        let openings = gate.health().breaker_openings;
        let shares = shares_of_one_outage(&gate, nodes).await;
        if gate.health().breaker_open && gate.health().breaker_openings == openings {
            return shares;
        }
        let open = [Part::of(number(RULES.len()))];
        while !gate.health().breaker_open {
            let _ = gate.check_parts(&open).await.expect("a request");
        }
    }
}

async fn shares_of_one_outage(gate: &RedisGate, nodes: u32) -> Vec<Share> {
    let outage_start = outage_start(gate, nodes).await;
    let mut shares = vec![Share { outage_start, decided: Vec::new() }; RULES.len()];
    while SteadyClock::new().now() < outage_start.plus(DURATION) || shares[0].decided.len() < 100 {
        for (index, share) in shares.iter_mut().enumerate() {
            let cost = 1 + u32::from(share.decided.len() % 5 == 4);
            let part = Part::of(number(index)).key("alice").cost(cost);
            share.decided.push((cost, gate.check_parts(&[part]).await.expect("a request").decision));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    shares
}

/// A key with its whole quota used up at an instant.
struct Emptied {
    rule: Rule,
    words: Vec<u64>,
}

impl Emptied {
    fn at(rule: Rule, outage_start: Micros) -> Self {
        let mut words = vec![0; rule.words()];
        let limit = rule.peek(words.as_slice(), outage_start, 0).limit();
        let _ = rule.force(words.as_mut_slice(), outage_start, u32::try_from(limit).expect("a small limit"));
        Emptied { rule, words }
    }

    fn decide(&mut self, at: Micros, cost: u32) -> Decision {
        self.rule.decide(self.words.as_mut_slice(), at, cost)
    }
}

/// Each node decides exactly as its share does. Returns the total cost that passed.
fn assert_is_its_share(share: &Share, text: &str, nodes: u32) -> u64 {
    let mut right = Emptied::at(rule(text).share(nodes).expect("it can be shared"), share.outage_start);
    let fields = |it: Decision| (it.outcome, it.limit(), it.remaining(), it.reset_after());
    let mut passed = 0;
    for (cost, decision) in &share.decided {
        assert_eq!(decision.source, Source::Local, "{text}, {nodes} nodes: {decision:?}");
        let right = right.decide(decision.at(), *cost);
        assert_eq!(fields(*decision), fields(right), "{text}, {nodes} nodes at {}", decision.at());
        passed += if right.is_allowed() { u64::from(*cost) } else { 0 };
    }
    passed
}

/// All nodes together admit no more than the refill of the whole limit.
fn assert_within_the_whole(shares: &[&Share], text: &str) {
    let outage_start = shares.iter().map(|share| share.outage_start).min().expect("a node");
    let mut whole = Emptied::at(rule(text).share(1).expect("the whole"), outage_start);
    let passed = shares.iter().flat_map(|share| &share.decided).filter(|(_, decision)| decision.is_allowed());
    let mut passed: Vec<(Micros, u32)> = passed.map(|(cost, decision)| (decision.at(), *cost)).collect();
    passed.sort_unstable();
    for (at, cost) in passed {
        let whole = whole.decide(at, cost);
        assert!(whole.is_allowed(), "too many by {text} of {} nodes at {at}: {whole:?}", shares.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_together_admit_the_refill_and_each_exactly_its_share() {
    let server = Server::start(Kind::Redis, &[]);
    let crowds = CROWDS.map(|nodes| (0..nodes).map(|_| node(&server, nodes)).collect::<Vec<_>>());
    server.pause();
    for gate in crowds.iter().flatten() {
        breaker_opens(gate).await;
    }
    let crowds = crowds.map(|gates| {
        let nodes = u32::try_from(gates.len()).expect("a few nodes");
        gates.into_iter().map(|gate| tokio::spawn(shares(gate, nodes))).collect::<Vec<_>>()
    });
    for (nodes, tasks) in CROWDS.into_iter().zip(crowds) {
        let mut shares = Vec::new();
        for task in tasks {
            shares.push(task.await.expect("no panic"));
        }
        for (index, text) in RULES.into_iter().enumerate() {
            let shares: Vec<&Share> = shares.iter().map(|node| &node[index]).collect();
            let passed: u64 = shares.iter().map(|share| assert_is_its_share(share, text, nodes)).sum();
            let refused = |share: &&Share| share.decided.iter().any(|(_, decision)| !decision.is_allowed());
            assert!(passed > 0 && shares.iter().all(refused), "{text} of {nodes} nodes: {passed} passed");
            assert_within_the_whole(&shares, text);
        }
    }
    server.resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_of_less_than_one_per_node_is_closed() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = node(&server, TOO_MANY);
    server.pause();
    breaker_opens(&gate).await;
    for index in [0, 1, 5, 7] {
        let part = Part::of(number(index)).key("alice");
        let decision = gate.check_parts(&[part]).await.expect("a request").decision;
        assert_eq!((decision.is_allowed(), decision.source), (false, Source::Closed), "{}", RULES[index]);
    }
    server.resume();
}
