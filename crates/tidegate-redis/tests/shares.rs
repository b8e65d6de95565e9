//! What nodes admit from their local shares in an outage: all together never more than comes in at the pace of the limit from
//! the moment of loss, and each node exactly its share.
//!
//! A node does not tell the moment of loss, but it follows from the reset of a share that was never used: the share started
//! empty then. From that moment on the core decides on the same share, and every answer must be equal.

mod gates;
mod support;

use std::time::Duration;

use gates::{eventually, ready};
use support::{Kind, Server};
use tidegate::{Algorithm, Clock, Decision, Micros, Part, Quota, Rule, RuleId, Source, SteadyClock};
use tidegate_redis::{OnOutage, RedisGate};

/// Limits that can be shared by as many as there are nodes in any of the crowds.
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
/// The rule whose share tells the moment of loss.
const TELLS: usize = 0;
const CROWDS: [u32; 4] = [1, 2, 3, 5];
/// One more than can share 20.
const TOO_MANY: u32 = 21;
/// For so long, by the clock of the decisions, they ask; or longer, until they have asked a hundred times.
const ASKING: u64 = 700_000;

fn rule(text: &str) -> Rule {
    text.parse().expect("a rule")
}

/// A gate with all the rules, and one more that is open, of which nothing is lost.
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

/// Returns when Redis is not asked any more; until then each decision takes its deadline.
async fn is_lost(gate: &RedisGate) {
    let open = [Part::of(number(RULES.len()))];
    eventually("Redis is not asked", async || {
        assert_eq!(gate.check(&open).await.expect("a request").decision.source, Source::Open);
        gate.health().not_asked.then_some(())
    })
    .await;
}

/// What a node decided on one rule, in order.
#[derive(Clone, Debug)]
struct Share {
    lost: Micros,
    decided: Vec<(u32, Decision)>,
}

/// When Redis was lost, as far as this node knows: the outage begins with the first decision without Redis.
async fn lost(gate: &RedisGate, nodes: u32) -> Micros {
    let asked = SteadyClock::new().now();
    let part = Part::of(number(TELLS)).key("nobody").cost(20 / nodes); // is refused, and takes nothing
    let decision = gate.check(&[part]).await.expect("a request").decision;
    let setting = rule(RULES[TELLS]).share(nodes).expect("it can be shared").encode();
    let [p, q, burst] = setting.numbers() else { panic!("a bucket") };
    let lost = decision.at().plus(decision.reset_after().as_micros()).minus(p * burst / q);
    assert!(asked <= lost && lost <= decision.at(), "asked at {asked}, lost at {lost}: {decision:?}");
    lost
}

/// Asks for all shares again and again. An answer that was under way when Redis was lost may come late and end that loss: then the
/// next is another one, and all begins anew.
async fn shares(gate: RedisGate, nodes: u32) -> Vec<Share> {
    loop {
        let openings = gate.health().openings;
        let shares = shares_of_one_loss(&gate, nodes).await;
        if gate.health().not_asked && gate.health().openings == openings {
            return shares;
        }
        let open = [Part::of(number(RULES.len()))];
        while !gate.health().not_asked {
            let _ = gate.check(&open).await.expect("a request");
        }
    }
}

async fn shares_of_one_loss(gate: &RedisGate, nodes: u32) -> Vec<Share> {
    let lost = lost(gate, nodes).await;
    let mut shares = vec![Share { lost, decided: Vec::new() }; RULES.len()];
    while SteadyClock::new().now() < lost.plus(ASKING) || shares[0].decided.len() < 100 {
        for (index, share) in shares.iter_mut().enumerate() {
            let cost = 1 + u32::from(share.decided.len() % 5 == 4);
            let part = Part::of(number(index)).key("alice").cost(cost);
            share.decided.push((cost, gate.check(&[part]).await.expect("a request").decision));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    shares
}

/// A key of which all was used up at an instant.
struct Emptied {
    rule: Rule,
    words: Vec<u64>,
}

impl Emptied {
    fn at(rule: Rule, lost: Micros) -> Self {
        let mut words = vec![0; rule.words()];
        let limit = rule.peek(words.as_slice(), lost, 0).limit();
        let _ = rule.force(words.as_mut_slice(), lost, u32::try_from(limit).expect("a small limit"));
        Emptied { rule, words }
    }

    fn decide(&mut self, at: Micros, cost: u32) -> Decision {
        self.rule.decide(self.words.as_mut_slice(), at, cost)
    }
}

/// Each node decides as its share does. Tells how much that let pass.
fn is_its_share(share: &Share, text: &str, nodes: u32) -> u64 {
    let mut right = Emptied::at(rule(text).share(nodes).expect("it can be shared"), share.lost);
    let told = |it: Decision| (it.outcome, it.limit(), it.remaining(), it.reset_after());
    let mut passed = 0;
    for (cost, decision) in &share.decided {
        assert_eq!(decision.source, Source::Local, "{text}, {nodes} nodes: {decision:?}");
        let right = right.decide(decision.at(), *cost);
        assert_eq!(told(*decision), told(right), "{text}, {nodes} nodes at {}", decision.at());
        passed += if right.is_allowed() { u64::from(*cost) } else { 0 };
    }
    passed
}

/// All nodes together admit no more than comes in at the pace of the whole limit.
fn is_no_more_than_the_whole(shares: &[&Share], text: &str) {
    let lost = shares.iter().map(|share| share.lost).min().expect("a node");
    let mut whole = Emptied::at(rule(text).share(1).expect("the whole"), lost);
    let passed = shares.iter().flat_map(|share| &share.decided).filter(|(_, decision)| decision.is_allowed());
    let mut passed: Vec<(Micros, u32)> = passed.map(|(cost, decision)| (decision.at(), *cost)).collect();
    passed.sort_unstable();
    for (at, cost) in passed {
        let whole = whole.decide(at, cost);
        assert!(whole.is_allowed(), "too many by {text} of {} nodes at {at}: {whole:?}", shares.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_together_admit_what_comes_in_and_each_its_share() {
    let server = Server::start(Kind::Redis, &[]);
    let crowds = CROWDS.map(|nodes| (0..nodes).map(|_| node(&server, nodes)).collect::<Vec<_>>());
    server.pause();
    for gate in crowds.iter().flatten() {
        is_lost(gate).await;
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
            let passed: u64 = shares.iter().map(|share| is_its_share(share, text, nodes)).sum();
            let refused = |share: &&Share| share.decided.iter().any(|(_, decision)| !decision.is_allowed());
            assert!(passed > 0 && shares.iter().all(refused), "{text} of {nodes} nodes: {passed} passed");
            is_no_more_than_the_whole(&shares, text);
        }
    }
    server.resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_less_than_one_for_each_is_closed() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = node(&server, TOO_MANY);
    server.pause();
    is_lost(&gate).await;
    for index in [0, 1, 5, 7] {
        let part = Part::of(number(index)).key("alice");
        let decision = gate.check(&[part]).await.expect("a request").decision;
        assert_eq!((decision.is_allowed(), decision.source), (false, Source::Closed), "{}", RULES[index]);
    }
    server.resume();
}
