//! A real cluster: keys of hostile bytes, requests for several keys, and a primary that dies.

mod gates;
mod support;

use std::env;
use std::time::Duration;

use gates::{eventually, long_deadline, one, strict, strict_for};
use support::{Cluster, Mode, Proxy, Server, until};
use tidegate::gate::{Part, RuleId};
use tidegate::{Decision, Quota, Source};
use tidegate_redis::{OnOutage, RedisGate};

const SLOTS: usize = 16_384;
/// The number of concurrent tasks.
const TASKS: u32 = 32;

fn builder(cluster: &Cluster) -> tidegate_redis::Builder {
    RedisGate::cluster(cluster.urls())
}

// --- hostile keys

/// The number of keys; `TIDEGATE_KEYS` sets it, to a million for example.
fn many() -> u32 {
    env::var("TIDEGATE_KEYS").map_or(100_000, |many| many.parse().expect("TIDEGATE_KEYS is a number"))
}

/// A key that tries to break key names: braces, empty braces, the end of a line or of a string, bytes that
/// are not text, up to a kilobyte.
fn hostile(n: u32) -> Vec<u8> {
    let mut key = match n % 6 {
        0 => format!("{{a}}{n}").into_bytes(),
        1 => format!("{{}}{{a}}{n}").into_bytes(),
        2 => format!("{{a}}\0\r\n}}{{{n}").into_bytes(),
        3 => format!("}}{n}{{").into_bytes(),
        4 => format!("tg1{{bqmI7nN6aND7HXu3YEDoBA}}{n}").into_bytes(),
        _ => [&[0xff, 0xfe, b'{'][..], &n.to_be_bytes(), b"}"].concat(),
    };
    key.resize(key.len() + (n % 97) as usize * 10, b'}');
    key
}

/// The slot of a name, as Redis computes it: from what is between the first brace and the next, unless it is
/// empty.
fn slot(name: &[u8]) -> usize {
    let open = name.iter().position(|byte| *byte == b'{');
    let tag = open.map(|open| &name[open + 1..]).and_then(|rest| {
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then_some(&rest[..close])
    });
    usize::from(crc16(tag.unwrap_or(name))) % SLOTS
}

/// The CRC16 of XMODEM, bit by bit.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8)
            .fold(crc ^ u16::from(*byte) << 8, |crc, _| crc << 1 ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    })
}

/// Checks each of these keys once, two rules in one call; returns how many keys fell into each slot.
async fn check_all(gate: RedisGate, keys: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut slots = vec![0; SLOTS];
    for key in keys.map(hostile) {
        let request = [0, 1].map(|rule| Part::of(RuleId(rule)).key(&key[..]));
        let decision = gate.check_parts(&request).await.expect("a request").decision;
        assert_eq!((decision.source, decision.is_allowed()), (Source::Strict, true), "{:?}", gate.health());
        slots[slot(gate.describe(request[0]).expect("a rule").as_bytes())] += 1;
    }
    slots
}

/// How far counts are from even: the sum of the squared differences, each divided by the expected count.
fn chi_square(counts: &[u32]) -> f64 {
    let expected = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
    counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_keys_reach_the_right_slot_and_spread_evenly() {
    let cluster = Cluster::start();
    let gate = long_deadline(
        builder(&cluster)
            .rule("user", Quota::per_second(1).burst(1))
            .rule("log", "sliding_log 5/min".parse::<tidegate::Rule>().expect("a rule")),
    );
    for name in (0..60).filter_map(|n| gate.describe(Part::of(RuleId(0)).key(&hostile(n)[..]))) {
        let theirs = cluster.node(0).cli(&["CLUSTER", "KEYSLOT", &name]);
        assert_eq!(slot(name.as_bytes()).to_string(), theirs, "{name}");
    }
    let many = many();
    let checks = |task: u32| tokio::spawn(check_all(gate.clone(), (task..many).step_by(TASKS as usize)));
    let checks: Vec<_> = (0..TASKS).map(checks).collect();
    let mut slots = vec![0; SLOTS];
    for task in checks {
        let more = task.await.expect("every key was decided by Redis");
        slots.iter_mut().zip(more).for_each(|(count, more)| *count += more);
    }
    assert_eq!((slots.iter().sum::<u32>(), gate.health().last_error), (many, None), "no errors");
    // For an even spread the sum is about the number of slots, and half of the time within 122 of it; the
    // names are always the same, and so is the result.
    let spread = chi_square(&slots);
    assert!((spread - SLOTS as f64).abs() < 1_100.0, "{spread}");
}

// --- requests

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_several_keys_refunds_its_charges_when_one_refuses() {
    let cluster = Cluster::start();
    let gate =
        long_deadline(builder(&cluster).rule("global", Quota::per_hour(10)).rule("user", Quota::per_hour(2)));
    let [global, user] = [RuleId(0), RuleId(1)];
    let mut passed = [0; 8];
    for round in 0..24 {
        let name = format!("user {}", round % 8);
        let admission =
            gate.check_parts(&[Part::of(global), Part::of(user).key(&name)]).await.expect("a request");
        passed[round % 8] += u32::from(admission.is_allowed());
    }
    assert_eq!(passed.iter().sum::<u32>(), 10, "{passed:?}");
    assert!(passed.iter().all(|passed| *passed <= 2), "{passed:?}");
    for (n, passed) in passed.iter().enumerate() {
        let name = format!("user {n}");
        let only_allowed_requests_are_charged = async || {
            let left = gate.request().parts(&[Part::of(user).key(&name).cost(0)]).peek().await;
            (left.expect("a reply").remaining() == 2 - u64::from(*passed)).then_some(())
        };
        eventually("refused charges are refunded", only_allowed_requests_are_charged).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_primary_is_replaced_and_every_key_is_served_again() {
    let mut cluster = Cluster::start();
    let rule = Quota::per_hour(1_000_000);
    let gate = gates::ready(builder(&cluster).rule("user", rule).on_outage(OnOutage::Closed));
    assert!(strict(&gate).await.is_allowed());
    let name = gate.describe(one("alice")[0]).expect("a rule");
    let primary = cluster.primary_of(&name);
    cluster.kill(primary);
    until("a replica takes over", || (cluster.primary_of(&name) != primary).then_some(()));
    assert!(strict(&gate).await.is_allowed());
    for n in 0..100 {
        assert!(strict_for(&gate, &format!("user {n}")).await.is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_a_migrating_slot_is_decided_on_the_target_node() {
    let mut cluster = Cluster::start();
    let gate = long_deadline(builder(&cluster).rule("user", Quota::per_hour(2)).on_outage(OnOutage::Closed));
    let name = gate.describe(one("alice")[0]).expect("a rule");
    let from = cluster.primary_of(&name);
    let slot = cluster.node(0).cli(&["CLUSTER", "KEYSLOT", &name]);
    let to = (from + 1) % 3; // the first three are primaries
    let [source, target] = [from, to].map(|node| cluster.node(node).cli(&["CLUSTER", "MYID"]));
    assert_eq!(cluster.node(to).cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]), "OK");
    assert_eq!(cluster.node(from).cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]), "OK");
    for passes in [true, true, false] {
        let decision = gate.check_parts(&one("alice")).await.expect("a request").decision;
        assert_eq!((decision.source, decision.is_allowed()), (Source::Strict, passes), "{:?}", gate.health());
    }
    let keys = [from, to].map(|node| cluster.node(node).cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot]));
    assert_eq!(keys, ["0", "1"], "the key is on the target node");
}

// --- a network that fails

/// A key in a slot of the node with this number.
fn key_of(cluster: &mut Cluster, gate: &RedisGate, node: usize) -> String {
    let mut keys = (0..1_000).map(|n| format!("user {n}"));
    let is_owned = |key: &String| {
        let name = gate.describe(one(key)[0]).expect("a rule");
        cluster.primary_of(&name) == node
    };
    keys.find(is_owned).expect("every node has a third of the slots")
}

/// Checks through a network that loses the reply and recovers while the check waits for it: a retry would
/// succeed.
async fn lose_a_reply(gate: &RedisGate, key: &str, proxy: &Proxy, node: &Server) -> Decision {
    let name = gate.describe(one(key)[0]).expect("a rule");
    let state = node.cli(&["GET", &name]);
    proxy.set(Mode::LoseReplies);
    let (gate, key) = (gate.clone(), key.to_owned());
    let checks = tokio::spawn(async move { gate.check_parts(&one(&key)).await.expect("a request").decision });
    until("the request is charged", || (node.cli(&["GET", &name]) != state).then_some(()));
    tokio::time::sleep(Duration::from_millis(200)).await; // and its reply has been lost
    proxy.set(Mode::Pass);
    checks.await.expect("no panic")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_a_node_did_not_answer_is_not_sent_again() {
    let mut cluster = Cluster::start();
    let proxy = cluster.put_proxy_before(1);
    let limit = 100;
    let gate =
        long_deadline(builder(&cluster).rule("user", Quota::per_day(limit)).on_outage(OnOutage::Closed));
    let (beyond, here) = (key_of(&mut cluster, &gate, 1), key_of(&mut cluster, &gate, 0));
    assert!(strict_for(&gate, &beyond).await.is_allowed());
    assert!(proxy.requests() > 0, "requests go through the proxy");
    for _ in 0..3 {
        let lost = lose_a_reply(&gate, &beyond, &proxy, cluster.node(1)).await;
        assert_eq!((lost.source, lost.is_allowed()), (Source::Closed, false), "{:?}", gate.health());
        assert!(strict_for(&gate, &beyond).await.is_allowed());
    }
    let made = gate.health().decisions;
    let left = strict_for(&gate, &beyond).await.remaining();
    assert!(left <= limit - 8, "one, three lost, three replied to, and the last: {left}");
    assert!(limit - left <= made.strict + made.closed + 1, "none was charged twice: {left}, {made:?}");
    assert!(strict_for(&gate, &here).await.is_allowed(), "the other nodes still decide");
}
