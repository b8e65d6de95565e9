//! A real cluster: keys of hostile bytes, requests for several keys, and a primary that dies.

mod gates;
mod support;

use gates::{eventually, one, patient, strict, strict_for};
use support::{Cluster, until};
use tidegate::{Part, Quota, RuleId, Source};
use tidegate_redis::{RedisGate, WhenLost};

fn builder(cluster: &Cluster) -> tidegate_redis::Builder {
    RedisGate::cluster(cluster.urls())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_however_hostile_meets_a_wrong_slot_and_slots_are_even() {
    let cluster = Cluster::start();
    let gate = patient(
        builder(&cluster)
            .rule("user", Quota::per_second(1).burst(1))
            .rule("log", "sliding_log 5/min".parse::<tidegate::Rule>().expect("a rule")),
    );
    let mut slots = vec![0u32; 16];
    for n in 0..4_000u32 {
        let mut key = format!("{{a}}\0\r\n}}{{{n}").into_bytes();
        key.resize(key.len() + (n % 97) as usize * 10, b'}');
        let request = [Part::of(RuleId(0)).key(&key[..]), Part::of(RuleId(1)).key(&key[..])];
        let decision = gate.check(&request).await.expect("a request").decision;
        assert_eq!((decision.source, decision.is_allowed()), (Source::Strict, true), "{:?}", gate.health());
        let name = gate.describe(request[0]).expect("a rule");
        let slot: usize = cluster.node(0).cli(&["CLUSTER", "KEYSLOT", &name]).parse().expect("a slot");
        slots[slot / 1_024] += 1;
    }
    // 250 in each sixteenth; six standard deviations are 92.
    assert!(slots.iter().all(|count| (158..342).contains(count)), "{slots:?}");
}

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
