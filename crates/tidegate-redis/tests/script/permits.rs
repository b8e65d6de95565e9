//! # Permits: held, renewed, released, expired

use tidegate_core::Micros;

use crate::mock_clock::MockClockScript;
use crate::random_walk::Random;
use crate::wire::{Reply, RuleArgs, RuleReply};

const LEASE: u64 = 30_000_000;
const LIMIT: u64 = 3;
const NOON: Micros = Micros::new(1_700_000_000_000_000);

fn seconds(seconds: u64) -> Micros {
    NOON.plus(seconds * 1_000_000)
}

/// The number of permits, and how long each is held without a renewal.
#[derive(Clone, Copy, Debug)]
struct PermitRule {
    limit: u64,
    lease: u64,
}

const DEFAULT: PermitRule = PermitRule { limit: LIMIT, lease: LEASE };

/// A gate with three permits, unless a request says otherwise.
struct Gate(MockClockScript);

impl Gate {
    fn start() -> Self {
        Gate(MockClockScript::start())
    }

    fn call(&mut self, at: Micros, operation: &str, cost: u32, id: &str) -> RuleReply {
        self.call_with(DEFAULT, at, operation, cost, id)
    }

    fn call_with(&mut self, rule: PermitRule, at: Micros, operation: &str, cost: u32, id: &str) -> RuleReply {
        let args = [RuleArgs::concurrency("permits", cost, rule.limit, rule.lease)];
        let id = (!id.is_empty()).then(|| named(id));
        let id = id.as_ref().map(<[u8; 16]>::as_slice);
        let Reply { now, binding, rules, .. } = self.0.call(at, operation, &args, id);
        assert_eq!((now, binding, rules.len()), (at.get(), 1, 1));
        rules[0]
    }
}

/// A name, padded to the length of an id.
fn named(name: &str) -> [u8; 16] {
    let mut id = [b' '; 16];
    id[..name.len()].copy_from_slice(name.as_bytes());
    id
}

fn reply(outcome: u64, remaining: u64) -> RuleReply {
    RuleReply { outcome, remaining, wait: 0, reset: 0 }
}

#[test]
fn no_more_than_the_limit_of_permits_is_held() {
    let mut gate = Gate::start();
    assert_eq!(gate.call(NOON, "peek", 1, ""), reply(0, 2));
    assert_eq!(gate.call(NOON, "check", 1, "a"), reply(0, 2));
    assert_eq!(gate.call(NOON, "check", 2, "b"), reply(0, 0));
    assert_eq!(gate.call(NOON, "check", 1, "c"), reply(3, 0));
    assert_eq!(gate.call(NOON, "check", 4, "c"), reply(4, 0));
    assert_eq!(gate.call(NOON, "check", 0, "c"), reply(0, 0));
    assert_eq!(gate.call(NOON, "peek", 1, ""), reply(3, 0));
    assert_eq!(gate.call(NOON, "release", 0, "b"), reply(0, 2));
    assert_eq!(gate.call(NOON, "release", 0, "b"), reply(0, 2), "a second release does nothing");
    assert_eq!(gate.call(NOON, "check", 2, "c"), reply(0, 0));
    assert_eq!(gate.call(NOON, "reset", 0, ""), reply(0, 3));
    assert_eq!(gate.0.expiry("permits"), None);
}

#[test]
fn a_holder_that_repeats_its_check_is_not_counted_twice() {
    let mut gate = Gate::start();
    assert_eq!(gate.call(NOON, "check", 2, "a"), reply(0, 1));
    assert_eq!(gate.call(seconds(1), "check", 2, "a"), reply(0, 1));
    assert_eq!(gate.call(seconds(1), "peek", 3, "a"), reply(0, 0));
    assert_eq!(gate.call(seconds(1), "peek", 3, ""), reply(3, 1));
    assert_eq!(gate.call(seconds(1), "check", 1, "b"), reply(0, 0));
    assert_eq!(
        gate.call(seconds(1), "check", 3, "a"),
        reply(3, 0),
        "two of its own and one of another holder"
    );
    assert_eq!(gate.call(seconds(1), "force", 3, "c"), reply(0, 0));
    assert_eq!(gate.call(seconds(1), "refund", 2, "c"), reply(0, 0));
    assert_eq!(gate.call(seconds(1), "refund", 9, "c"), reply(0, 0));
    assert_eq!(gate.call(seconds(1), "refund", 1, "a"), reply(0, 1));
}

#[test]
fn permits_that_are_not_renewed_expire() {
    let mut gate = Gate::start();
    assert_eq!(gate.call(NOON, "check", 1, "a"), reply(0, 2));
    assert_eq!(gate.call(seconds(1), "check", 1, "b"), reply(0, 1));
    assert_eq!(gate.call(seconds(20), "renew", 0, "a"), reply(0, 1));
    assert_eq!(gate.0.expiry("permits"), Some(seconds(50).get() / 1_000));
    assert_eq!(gate.call(seconds(31).minus(1), "peek", 0, ""), reply(0, 1));
    assert_eq!(gate.call(seconds(31), "peek", 0, ""), reply(0, 2));
    assert_eq!(gate.call(seconds(31), "renew", 0, "b"), reply(3, 2));
    assert_eq!(gate.call(seconds(50), "renew", 0, "a"), reply(3, 3));
    assert_eq!(gate.0.expiry("permits"), None, "state that makes no difference is not kept");
}

#[test]
fn after_a_step_back_no_permit_is_held_longer_than_a_lease() {
    let mut gate = Gate::start();
    assert_eq!(gate.call(seconds(3_600), "check", 3, "a"), reply(0, 0));
    assert_eq!(gate.call(NOON, "check", 1, "b"), reply(3, 0));
    assert_eq!(gate.0.expiry("permits"), Some(seconds(30).get() / 1_000), "a refusal has written it");
    assert_eq!(gate.call(seconds(30).minus(1), "check", 1, "b"), reply(3, 0));
    assert_eq!(gate.call(seconds(30), "check", 1, "b"), reply(0, 2));
}

/// The end of one entry and the beginning of the next may read like an id.
#[test]
fn an_id_is_found_only_at_the_start_of_an_entry() {
    let mut mock = MockClockScript::start();
    let mut hold = |id: &[u8]| {
        let args = [RuleArgs::concurrency("permits", 1, LIMIT, LEASE)];
        mock.call(NOON, "check", &args, Some(id)).rules[0]
    };
    assert_eq!(hold(&named("a")), reply(0, 2));
    assert_eq!(hold(&named("b")), reply(0, 1));
    let expires = NOON.plus(LEASE).get().to_be_bytes();
    let alike = [&named("a")[12..], &expires[1..], &1u32.to_be_bytes(), b"b"].concat();
    assert_eq!(hold(&alike), reply(0, 0), "a third holder");
    assert_eq!(hold(&alike), reply(0, 0), "the same holder again");
    assert_eq!(hold(&named("c")), reply(3, 0));
}

#[test]
fn permits_and_other_rules_are_charged_together_or_not_at_all() {
    let mut mock = MockClockScript::start();
    let bucket = "10/s burst 2".parse().expect("a quota");
    let mut call = |operation, id: &str| {
        let args = [RuleArgs::rate("bucket", 1, &bucket), RuleArgs::concurrency("permits", 1, 1, LEASE)];
        mock.call(NOON, operation, &args, Some(&named(id)))
    };
    let passed = |remaining, reset| RuleReply { outcome: 0, remaining, wait: 0, reset };
    assert_eq!(call("check", "a").rules, [passed(1, 100_000), passed(0, 0)]);
    let refused = call("check", "b");
    assert_eq!((refused.binding, &*refused.rules), (2, &[passed(1, 100_000), reply(3, 0)][..]));
    assert_eq!(call("release", "b").rules, [passed(0, 0), passed(0, 0)], "the bucket is left out");
    assert_eq!(call("renew", "a").rules, [passed(0, 0), passed(0, 0)]);
    assert_eq!(call("release", "a").rules, [passed(0, 0), passed(1, 0)]);
    assert_eq!(call("take", "b").taken, Some(1));
    assert_eq!(call("take", "c").taken, Some(0), "neither a token nor a permit");
    assert_eq!(call("reset", "b").rules, [passed(2, 0), passed(1, 0)]);
}

#[test]
fn releasing_or_refunding_permits_of_others_does_nothing() {
    let mut gate = Gate::start();
    assert_eq!(gate.call(NOON, "check", 1, "a"), reply(0, 2));
    assert_eq!(gate.call(NOON, "release", 0, "stranger"), reply(0, 2));
    assert_eq!(gate.call(seconds(30), "check", 3, "b"), reply(0, 0), "the permit of a has expired");
    for operation in ["release", "release", "refund"] {
        assert_eq!(
            gate.call(seconds(31), operation, 1, "a"),
            reply(0, 0),
            "and a cannot release the permits of b"
        );
    }
    assert_eq!(gate.call(seconds(31), "renew", 0, "a"), reply(3, 0));
    assert_eq!(gate.call(seconds(31), "refund", 2, "b"), reply(0, 2));
    assert_eq!(gate.call(seconds(31), "release", 0, "b"), reply(0, 3));
    assert_eq!(gate.call(seconds(31), "release", 0, "b"), reply(0, 3), "a second release does nothing");
}

#[test]
fn another_limit_keeps_current_holders_and_applies_to_new_ones() {
    let mut gate = Gate::start();
    let (fewer, more) = (PermitRule { limit: 2, ..DEFAULT }, PermitRule { limit: 5, ..DEFAULT });
    for id in ["a", "b", "c"] {
        gate.call(NOON, "check", 1, id);
    }
    assert_eq!(gate.call_with(fewer, NOON, "peek", 0, ""), reply(0, 0), "one more than the limit");
    assert_eq!(gate.call_with(fewer, seconds(20), "renew", 0, "a"), reply(0, 0), "no holder is evicted");
    assert_eq!(gate.call_with(fewer, seconds(20), "release", 0, "b"), reply(0, 0));
    assert_eq!(gate.call_with(fewer, seconds(20), "check", 1, "d"), reply(3, 0), "as many as the limit");
    assert_eq!(gate.call_with(fewer, seconds(20), "check", 3, "d"), reply(4, 0));
    assert_eq!(gate.call_with(more, seconds(20), "check", 3, "d"), reply(0, 0));
    assert_eq!(gate.call_with(more, seconds(30), "peek", 0, ""), reply(0, 1), "all have renewed but c");
}

#[test]
fn a_shorter_lease_applies_to_current_holders() {
    let mut gate = Gate::start();
    let (short, long) =
        (PermitRule { lease: LEASE / 3, ..DEFAULT }, PermitRule { lease: 2 * LEASE, ..DEFAULT });
    gate.call(NOON, "check", 3, "a");
    assert_eq!(gate.call_with(short, seconds(1), "check", 1, "b"), reply(3, 0));
    assert_eq!(gate.0.expiry("permits"), Some(seconds(11).get() / 1_000), "a refusal has written it");
    assert_eq!(gate.call_with(short, seconds(11), "check", 1, "b"), reply(0, 2));
    assert_eq!(gate.call_with(long, seconds(20), "renew", 0, "b"), reply(0, 2));
    assert_eq!(gate.0.expiry("permits"), Some(seconds(80).get() / 1_000));
}

/// The same in the simplest way: id, expiry and number of permits of each holder.
#[derive(Clone, Debug, Default)]
struct Model(Vec<(String, u64, u64)>);

impl Model {
    fn call(&mut self, rule: PermitRule, now: u64, operation: &str, cost: u64, id: &str) -> RuleReply {
        let before = self.clone();
        let is_shortened = self.0.iter().any(|(_, expires, _)| *expires > now + rule.lease);
        let reply = self.decide(rule, now, operation, cost, id);
        let refused = operation == "check" && reply.outcome != 0;
        let is_read_only = operation == "peek" || (cost == 0 && matches!(operation, "check" | "force"));
        if is_read_only || refused && !is_shortened {
            *self = before; // nothing is written
        }
        reply
    }

    fn decide(
        &mut self,
        PermitRule { limit, lease }: PermitRule,
        now: u64,
        operation: &str,
        cost: u64,
        id: &str,
    ) -> RuleReply {
        self.0.retain(|(_, expires, _)| *expires > now);
        self.0.iter_mut().for_each(|entry| entry.1 = entry.1.min(now + lease));
        let others: u64 = self.0.iter().filter(|entry| entry.0 != id).map(|entry| entry.2).sum();
        let mut outcome = 0;
        match operation {
            "check" | "peek" if cost > limit => outcome = 4,
            "check" | "peek" if cost > 0 && others + cost > limit => outcome = 3,
            "check" | "peek" | "force" if cost > 0 => self.hold(id, now + lease, cost),
            "renew" => match self.0.iter_mut().find(|entry| entry.0 == id) {
                Some(entry) => entry.1 = now + lease,
                None => outcome = 3,
            },
            "release" => self.0.retain(|entry| entry.0 != id),
            "reset" => self.0.clear(),
            _ => {}
        }
        let used = self.0.iter().map(|entry| entry.2).sum();
        reply(outcome, limit.saturating_sub(used))
    }

    fn hold(&mut self, id: &str, expires: u64, cost: u64) {
        self.0.retain(|entry| entry.0 != id);
        self.0.push((id.to_owned(), expires, cost));
    }
}

#[test]
fn a_long_random_walk_of_permits_equals_a_simple_model() {
    let (mut gate, mut model, mut random) = (Gate::start(), Model::default(), Random(7));
    let (mut now, mut rule) = (NOON, DEFAULT);
    for step in 0..4_000 {
        if random.below(50) == 0 {
            rule = PermitRule { limit: 2 + random.below(4), lease: LEASE * (1 + random.below(6)) / 3 };
        }
        now = match random.below(12) {
            0..5 => now,
            5..8 => now.plus(random.below(LEASE / 4)),
            8 => now.plus(LEASE),
            9 => now.plus(LEASE - 1),
            10 => now.minus(random.below(LEASE / 2)),
            _ => now.minus(random.below(LEASE * 10)),
        };
        let operation = random.one_of(&[
            "check", "check", "check", "check", "peek", "force", "renew", "renew", "release", "release",
            "reset",
        ]);
        let operation = if operation == "reset" && random.below(10) > 0 { "check" } else { operation };
        let (cost, id) = (random.one_of(&[0, 1, 1, 1, 2, 3, 4]), random.one_of(&["a", "b", "c", "d", "e"]));
        let want = model.call(rule, now.get(), operation, u64::from(cost), id);
        assert_eq!(
            gate.call_with(rule, now, operation, cost, id),
            want,
            "step {step}: {operation} {cost} by {id} at {now} under {rule:?}; {model:?}"
        );
    }
}
