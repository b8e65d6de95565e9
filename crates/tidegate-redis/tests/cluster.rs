//! A real cluster: keys of hostile bytes, requests for several keys, and a primary that dies.

mod gates;
mod support;

use std::env;
use std::time::Duration;

use gates::{eventually, one, patient, strict, strict_for};
use support::{Cluster, Mode, Proxy, Server, until};
use tidegate::{Decision, Part, Quota, RuleId, Source};
use tidegate_redis::{RedisGate, WhenLost};

const SLOTS: usize = 16_384;
/// That ask at once.
const TASKS: u32 = 32;

fn builder(cluster: &Cluster) -> tidegate_redis::Builder {
    RedisGate::cluster(cluster.urls())
}

// --- hostile keys

/// How many keys; `TIDEGATE_KEYS` asks for more, such as a million.
fn many() -> u32 {
    env::var("TIDEGATE_KEYS").map_or(100_000, |many| many.parse().expect("TIDEGATE_KEYS is a number"))
}

/// One of as many ways as there are to meddle with names: braces, nothing in braces, the end of a line or of a text,
/// bytes that are no text, up to a kilobyte.
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

/// The slot of a name, as Redis counts: by what is between the first brace and the next, if that is something.
fn slot(name: &[u8]) -> usize {
    let open = name.iter().position(|byte| *byte == b'{');
    let tag = open.map(|open| &name[open + 1..]).and_then(|rest| {
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then_some(&rest[..close])
    });
    usize::from(crc16(tag.unwrap_or(name))) % SLOTS
}

/// XMODEM's, bit by bit.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8)
            .fold(crc ^ u16::from(*byte) << 8, |crc, _| crc << 1 ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    })
}

/// Asks for each of these keys once, of two rules in one call; tells how many fell into each slot.
async fn ask_for(gate: RedisGate, keys: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut slots = vec![0; SLOTS];
    for key in keys.map(hostile) {
        let request = [0, 1].map(|rule| Part::of(RuleId(rule)).key(&key[..]));
        let decision = gate.check(&request).await.expect("a request").decision;
        assert_eq!((decision.source, decision.is_allowed()), (Source::Strict, true), "{:?}", gate.health());
        slots[slot(gate.describe(request[0]).expect("a rule").as_bytes())] += 1;
    }
    slots
}

/// How far counts are from even: the sum of the squared differences, each divided by what was to be expected.
fn chi_square(counts: &[u32]) -> f64 {
    let expected = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
    counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_however_hostile_meets_a_wrong_slot_and_slots_are_even() {
    let cluster = Cluster::start();
    let gate = patient(
        builder(&cluster)
            .rule("user", Quota::per_second(1).burst(1))
            .rule("log", "sliding_log 5/min".parse::<tidegate::Rule>().expect("a rule")),
    );
    for name in (0..60).filter_map(|n| gate.describe(Part::of(RuleId(0)).key(&hostile(n)[..]))) {
        let theirs = cluster.node(0).cli(&["CLUSTER", "KEYSLOT", &name]);
        assert_eq!(slot(name.as_bytes()).to_string(), theirs, "{name}");
    }
    let many = many();
    let asking = |task: u32| tokio::spawn(ask_for(gate.clone(), (task..many).step_by(TASKS as usize)));
    let asking: Vec<_> = (0..TASKS).map(asking).collect();
    let mut slots = vec![0; SLOTS];
    for task in asking {
        let more = task.await.expect("nobody was asked for in vain");
        slots.iter_mut().zip(more).for_each(|(count, more)| *count += more);
    }
    assert_eq!((slots.iter().sum::<u32>(), gate.health().last_trouble), (many, None), "nothing went wrong");
    // Where all is even it is about as large as there are slots, and half of the time within 122 of it; the names are
    // always the same, and so is what comes out.
    let far = chi_square(&slots);
    assert!((far - SLOTS as f64).abs() < 1_100.0, "{far}");
}

// --- requests

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_several_keys_gives_back_what_it_took_when_one_refuses() {
    let cluster = Cluster::start();
    let gate =
        patient(builder(&cluster).rule("everybody", Quota::per_hour(10)).rule("user", Quota::per_hour(2)));
    let [everybody, user] = [RuleId(0), RuleId(1)];
    let mut passed = [0; 8];
    for round in 0..24 {
        let name = format!("user {}", round % 8);
        let admission =
            gate.check(&[Part::of(everybody), Part::of(user).key(&name)]).await.expect("a request");
        passed[round % 8] += u32::from(admission.is_allowed());
    }
    assert_eq!(passed.iter().sum::<u32>(), 10, "{passed:?}");
    assert!(passed.iter().all(|passed| *passed <= 2), "{passed:?}");
    for (n, passed) in passed.iter().enumerate() {
        let name = format!("user {n}");
        let spent_only_by_those_who_passed = async || {
            let left = gate.peek(&[Part::of(user).key(&name).cost(0)]).await.expect("a request");
            (left.expect("an answer").remaining() == 2 - u64::from(*passed)).then_some(())
        };
        eventually("what everybody's limit refused is given back", spent_only_by_those_who_passed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_dies_is_replaced_and_no_key_is_stuck() {
    let mut cluster = Cluster::start();
    let rule = Quota::per_hour(1_000_000);
    let gate = gates::ready(builder(&cluster).rule("user", rule).when_lost(WhenLost::Closed));
    assert!(strict(&gate).await.is_allowed());
    let name = gate.describe(one("alice")[0]).expect("a rule");
    let primary = cluster.primary_of(&name);
    cluster.kill(primary);
    until("another takes over", || (cluster.primary_of(&name) != primary).then_some(()));
    assert!(strict(&gate).await.is_allowed());
    for n in 0..100 {
        assert!(strict_for(&gate, &format!("user {n}")).await.is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_being_moved_is_asked_for_where_it_goes() {
    let mut cluster = Cluster::start();
    let gate = patient(builder(&cluster).rule("user", Quota::per_hour(2)).when_lost(WhenLost::Closed));
    let name = gate.describe(one("alice")[0]).expect("a rule");
    let from = cluster.primary_of(&name);
    let slot = cluster.node(0).cli(&["CLUSTER", "KEYSLOT", &name]);
    let to = (from + 1) % 3; // the first three are primaries
    let [source, target] = [from, to].map(|node| cluster.node(node).cli(&["CLUSTER", "MYID"]));
    assert_eq!(cluster.node(to).cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]), "OK");
    assert_eq!(cluster.node(from).cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]), "OK");
    for passes in [true, true, false] {
        let decision = gate.check(&one("alice")).await.expect("a request").decision;
        assert_eq!((decision.source, decision.is_allowed()), (Source::Strict, passes), "{:?}", gate.health());
    }
    let keys = [from, to].map(|node| cluster.node(node).cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot]));
    assert_eq!(keys, ["0", "1"], "it lies where the slot goes");
}

// --- a network that fails

/// A key that the node with this number decides on.
fn key_of(cluster: &mut Cluster, gate: &RedisGate, node: usize) -> String {
    let mut keys = (0..1_000).map(|n| format!("user {n}"));
    let lies_there = |key: &String| {
        let name = gate.describe(one(key)[0]).expect("a rule");
        cluster.primary_of(&name) == node
    };
    keys.find(lies_there).expect("every node has a third of the slots")
}

/// Asks through a network that loses the reply, and heals while it is waited for: whoever would send it again could.
async fn lose_a_reply(gate: &RedisGate, key: &str, proxy: &Proxy, node: &Server) -> Decision {
    let name = gate.describe(one(key)[0]).expect("a rule");
    let state = node.cli(&["GET", &name]);
    proxy.set(Mode::LoseReplies);
    let (gate, key) = (gate.clone(), key.to_owned());
    let asking = tokio::spawn(async move { gate.check(&one(&key)).await.expect("a request").decision });
    until("it is charged", || (node.cli(&["GET", &name]) != state).then_some(()));
    tokio::time::sleep(Duration::from_millis(200)).await; // and the reply is on its way into nothing
    proxy.set(Mode::Pass);
    asking.await.expect("no panic")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_to_a_node_and_not_answered_is_not_sent_again() {
    let mut cluster = Cluster::start();
    let proxy = cluster.put_proxy_before(1);
    let limit = 100;
    let gate = patient(builder(&cluster).rule("user", Quota::per_day(limit)).when_lost(WhenLost::Closed));
    let (beyond, here) = (key_of(&mut cluster, &gate, 1), key_of(&mut cluster, &gate, 0));
    assert!(strict_for(&gate, &beyond).await.is_allowed());
    assert!(proxy.requests() > 0, "it is asked through the proxy");
    for _ in 0..3 {
        let lost = lose_a_reply(&gate, &beyond, &proxy, cluster.node(1)).await;
        assert_eq!((lost.source, lost.is_allowed()), (Source::Closed, false), "{:?}", gate.health());
        assert!(strict_for(&gate, &beyond).await.is_allowed());
    }
    let made = gate.health().decisions;
    let left = strict_for(&gate, &beyond).await.remaining();
    assert!(left <= limit - 8, "one, three lost, three that were not, and the last: {left}");
    assert!(limit - left <= made.strict + made.closed + 1, "none was charged twice: {left}, {made:?}");
    assert!(strict_for(&gate, &here).await.is_allowed(), "the others are not stuck");
}
