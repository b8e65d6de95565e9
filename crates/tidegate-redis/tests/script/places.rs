//! # Permits: held, renewed, released, expired

use tidegate_core::Micros;

use crate::clocked::Clocked;
use crate::walk::Random;
use crate::wire::{Ask, Reply, Told};

const LEASE: u64 = 30_000_000;
const LIMIT: u64 = 3;
const NOON: Micros = Micros::new(1_700_000_000_000_000);

fn seconds(seconds: u64) -> Micros {
    NOON.plus(seconds * 1_000_000)
}

/// The number of permits, and how long each is held without a renewal.
#[derive(Clone, Copy, Debug)]
struct Setting {
    limit: u64,
    lease: u64,
}

const USUAL: Setting = Setting { limit: LIMIT, lease: LEASE };

/// A gate with three permits, unless a request says otherwise.
struct Gate(Clocked);

impl Gate {
    fn open() -> Self {
        Gate(Clocked::start())
    }

    fn ask(&mut self, at: Micros, verb: &str, cost: u32, id: &str) -> Told {
        self.ask_of(USUAL, at, verb, cost, id)
    }

    fn ask_of(&mut self, rule: Setting, at: Micros, verb: &str, cost: u32, id: &str) -> Told {
        let asks = [Ask::places("places", cost, rule.limit, rule.lease)];
        let id = (!id.is_empty()).then(|| named(id));
        let id = id.as_ref().map(<[u8; 16]>::as_slice);
        let Reply { now, binding, rules, .. } = self.0.ask(at, verb, &asks, id);
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

fn told(outcome: u64, remaining: u64) -> Told {
    Told { outcome, remaining, wait: 0, reset: 0 }
}

#[test]
fn no_more_than_the_limit_of_permits_is_held() {
    let mut gate = Gate::open();
    assert_eq!(gate.ask(NOON, "peek", 1, ""), told(0, 2));
    assert_eq!(gate.ask(NOON, "check", 1, "a"), told(0, 2));
    assert_eq!(gate.ask(NOON, "check", 2, "b"), told(0, 0));
    assert_eq!(gate.ask(NOON, "check", 1, "c"), told(3, 0));
    assert_eq!(gate.ask(NOON, "check", 4, "c"), told(4, 0));
    assert_eq!(gate.ask(NOON, "check", 0, "c"), told(0, 0));
    assert_eq!(gate.ask(NOON, "peek", 1, ""), told(3, 0));
    assert_eq!(gate.ask(NOON, "release", 0, "b"), told(0, 2));
    assert_eq!(gate.ask(NOON, "release", 0, "b"), told(0, 2), "a second release does nothing");
    assert_eq!(gate.ask(NOON, "check", 2, "c"), told(0, 0));
    assert_eq!(gate.ask(NOON, "reset", 0, ""), told(0, 3));
    assert_eq!(gate.0.expiry("places"), None);
}

#[test]
fn a_holder_that_asks_again_is_not_counted_twice() {
    let mut gate = Gate::open();
    assert_eq!(gate.ask(NOON, "check", 2, "a"), told(0, 1));
    assert_eq!(gate.ask(seconds(1), "check", 2, "a"), told(0, 1));
    assert_eq!(gate.ask(seconds(1), "peek", 3, "a"), told(0, 0));
    assert_eq!(gate.ask(seconds(1), "peek", 3, ""), told(3, 1));
    assert_eq!(gate.ask(seconds(1), "check", 1, "b"), told(0, 0));
    assert_eq!(gate.ask(seconds(1), "check", 3, "a"), told(3, 0), "two of its own and one of another holder");
    assert_eq!(gate.ask(seconds(1), "force", 3, "c"), told(0, 0));
    assert_eq!(gate.ask(seconds(1), "refund", 2, "c"), told(0, 0));
    assert_eq!(gate.ask(seconds(1), "refund", 9, "c"), told(0, 0));
    assert_eq!(gate.ask(seconds(1), "refund", 1, "a"), told(0, 1));
}

#[test]
fn permits_that_are_not_renewed_expire() {
    let mut gate = Gate::open();
    assert_eq!(gate.ask(NOON, "check", 1, "a"), told(0, 2));
    assert_eq!(gate.ask(seconds(1), "check", 1, "b"), told(0, 1));
    assert_eq!(gate.ask(seconds(20), "renew", 0, "a"), told(0, 1));
    assert_eq!(gate.0.expiry("places"), Some(seconds(50).get() / 1_000));
    assert_eq!(gate.ask(seconds(31).minus(1), "peek", 0, ""), told(0, 1));
    assert_eq!(gate.ask(seconds(31), "peek", 0, ""), told(0, 2));
    assert_eq!(gate.ask(seconds(31), "renew", 0, "b"), told(3, 2));
    assert_eq!(gate.ask(seconds(50), "renew", 0, "a"), told(3, 3));
    assert_eq!(gate.0.expiry("places"), None, "state that makes no difference is not kept");
}

#[test]
fn after_a_step_back_no_permit_is_held_longer_than_a_lease() {
    let mut gate = Gate::open();
    assert_eq!(gate.ask(seconds(3_600), "check", 3, "a"), told(0, 0));
    assert_eq!(gate.ask(NOON, "check", 1, "b"), told(3, 0));
    assert_eq!(gate.0.expiry("places"), Some(seconds(30).get() / 1_000), "a refusal has written it");
    assert_eq!(gate.ask(seconds(30).minus(1), "check", 1, "b"), told(3, 0));
    assert_eq!(gate.ask(seconds(30), "check", 1, "b"), told(0, 2));
}

/// The end of one entry and the beginning of the next may read like an id.
#[test]
fn an_id_is_found_only_at_the_start_of_an_entry() {
    let mut clocked = Clocked::start();
    let mut hold = |id: &[u8]| {
        let asks = [Ask::places("places", 1, LIMIT, LEASE)];
        clocked.ask(NOON, "check", &asks, Some(id)).rules[0]
    };
    assert_eq!(hold(&named("a")), told(0, 2));
    assert_eq!(hold(&named("b")), told(0, 1));
    let expires = NOON.plus(LEASE).get().to_be_bytes();
    let alike = [&named("a")[12..], &expires[1..], &1u32.to_be_bytes(), b"b"].concat();
    assert_eq!(hold(&alike), told(0, 0), "a third holder");
    assert_eq!(hold(&alike), told(0, 0), "the same holder again");
    assert_eq!(hold(&named("c")), told(3, 0));
}

#[test]
fn permits_and_other_rules_are_charged_together_or_not_at_all() {
    let mut clocked = Clocked::start();
    let bucket = "10/s burst 2".parse().expect("a quota");
    let mut ask = |verb, id: &str| {
        let asks = [Ask::new("bucket", 1, &bucket), Ask::places("places", 1, 1, LEASE)];
        clocked.ask(NOON, verb, &asks, Some(&named(id)))
    };
    let passed = |remaining, reset| Told { outcome: 0, remaining, wait: 0, reset };
    assert_eq!(ask("check", "a").rules, [passed(1, 100_000), passed(0, 0)]);
    let refused = ask("check", "b");
    assert_eq!((refused.binding, &*refused.rules), (2, &[passed(1, 100_000), told(3, 0)][..]));
    assert_eq!(ask("release", "b").rules, [passed(0, 0), passed(0, 0)], "the bucket is left out");
    assert_eq!(ask("renew", "a").rules, [passed(0, 0), passed(0, 0)]);
    assert_eq!(ask("release", "a").rules, [passed(0, 0), passed(1, 0)]);
    assert_eq!(ask("take", "b").taken, Some(1));
    assert_eq!(ask("take", "c").taken, Some(0), "neither a token nor a permit");
    assert_eq!(ask("reset", "b").rules, [passed(2, 0), passed(1, 0)]);
}

#[test]
fn releasing_or_refunding_permits_of_others_does_nothing() {
    let mut gate = Gate::open();
    assert_eq!(gate.ask(NOON, "check", 1, "a"), told(0, 2));
    assert_eq!(gate.ask(NOON, "release", 0, "stranger"), told(0, 2));
    assert_eq!(gate.ask(seconds(30), "check", 3, "b"), told(0, 0), "the permit of a has expired");
    for verb in ["release", "release", "refund"] {
        assert_eq!(gate.ask(seconds(31), verb, 1, "a"), told(0, 0), "and a cannot release those of b");
    }
    assert_eq!(gate.ask(seconds(31), "renew", 0, "a"), told(3, 0));
    assert_eq!(gate.ask(seconds(31), "refund", 2, "b"), told(0, 2));
    assert_eq!(gate.ask(seconds(31), "release", 0, "b"), told(0, 3));
    assert_eq!(gate.ask(seconds(31), "release", 0, "b"), told(0, 3), "a second release does nothing");
}

#[test]
fn another_limit_keeps_current_holders_and_applies_to_new_ones() {
    let mut gate = Gate::open();
    let (fewer, more) = (Setting { limit: 2, ..USUAL }, Setting { limit: 5, ..USUAL });
    for id in ["a", "b", "c"] {
        gate.ask(NOON, "check", 1, id);
    }
    assert_eq!(gate.ask_of(fewer, NOON, "peek", 0, ""), told(0, 0), "one more than the limit");
    assert_eq!(gate.ask_of(fewer, seconds(20), "renew", 0, "a"), told(0, 0), "no holder is evicted");
    assert_eq!(gate.ask_of(fewer, seconds(20), "release", 0, "b"), told(0, 0));
    assert_eq!(gate.ask_of(fewer, seconds(20), "check", 1, "d"), told(3, 0), "as many as the limit");
    assert_eq!(gate.ask_of(fewer, seconds(20), "check", 3, "d"), told(4, 0));
    assert_eq!(gate.ask_of(more, seconds(20), "check", 3, "d"), told(0, 0));
    assert_eq!(gate.ask_of(more, seconds(30), "peek", 0, ""), told(0, 1), "all have renewed but c");
}

#[test]
fn a_shorter_lease_applies_to_current_holders() {
    let mut gate = Gate::open();
    let (short, long) = (Setting { lease: LEASE / 3, ..USUAL }, Setting { lease: 2 * LEASE, ..USUAL });
    gate.ask(NOON, "check", 3, "a");
    assert_eq!(gate.ask_of(short, seconds(1), "check", 1, "b"), told(3, 0));
    assert_eq!(gate.0.expiry("places"), Some(seconds(11).get() / 1_000), "a refusal has written it");
    assert_eq!(gate.ask_of(short, seconds(11), "check", 1, "b"), told(0, 2));
    assert_eq!(gate.ask_of(long, seconds(20), "renew", 0, "b"), told(0, 2));
    assert_eq!(gate.0.expiry("places"), Some(seconds(80).get() / 1_000));
}

/// The same in the simplest way: id, expiry and number of permits of each holder.
#[derive(Clone, Debug, Default)]
struct Model(Vec<(String, u64, u64)>);

impl Model {
    fn ask(&mut self, rule: Setting, now: u64, verb: &str, cost: u64, id: &str) -> Told {
        let found = self.clone();
        let pulled = self.0.iter().any(|(_, expires, _)| *expires > now + rule.lease);
        let told = self.judge(rule, now, verb, cost, id);
        let refused = verb == "check" && told.outcome != 0;
        let asked = verb == "peek" || (cost == 0 && matches!(verb, "check" | "force"));
        if asked || refused && !pulled {
            *self = found; // nothing is written
        }
        told
    }

    fn judge(
        &mut self,
        Setting { limit, lease }: Setting,
        now: u64,
        verb: &str,
        cost: u64,
        id: &str,
    ) -> Told {
        self.0.retain(|(_, expires, _)| *expires > now);
        self.0.iter_mut().for_each(|place| place.1 = place.1.min(now + lease));
        let others: u64 = self.0.iter().filter(|place| place.0 != id).map(|place| place.2).sum();
        let mut outcome = 0;
        match verb {
            "check" | "peek" if cost > limit => outcome = 4,
            "check" | "peek" if cost > 0 && others + cost > limit => outcome = 3,
            "check" | "peek" | "force" if cost > 0 => self.hold(id, now + lease, cost),
            "renew" => match self.0.iter_mut().find(|place| place.0 == id) {
                Some(place) => place.1 = now + lease,
                None => outcome = 3,
            },
            "release" => self.0.retain(|place| place.0 != id),
            "reset" => self.0.clear(),
            _ => {}
        }
        let used = self.0.iter().map(|place| place.2).sum();
        told(outcome, limit.saturating_sub(used))
    }

    fn hold(&mut self, id: &str, expires: u64, cost: u64) {
        self.0.retain(|place| place.0 != id);
        self.0.push((id.to_owned(), expires, cost));
    }
}

#[test]
fn a_long_random_walk_of_permits_equals_a_simple_model() {
    let (mut gate, mut model, mut random) = (Gate::open(), Model::default(), Random(7));
    let (mut now, mut rule) = (NOON, USUAL);
    for step in 0..4_000 {
        if random.below(50) == 0 {
            rule = Setting { limit: 2 + random.below(4), lease: LEASE * (1 + random.below(6)) / 3 };
        }
        now = match random.below(12) {
            0..5 => now,
            5..8 => now.plus(random.below(LEASE / 4)),
            8 => now.plus(LEASE),
            9 => now.plus(LEASE - 1),
            10 => now.minus(random.below(LEASE / 2)),
            _ => now.minus(random.below(LEASE * 10)),
        };
        let verb = random.one_of(&[
            "check", "check", "check", "check", "peek", "force", "renew", "renew", "release", "release",
            "reset",
        ]);
        let verb = if verb == "reset" && random.below(10) > 0 { "check" } else { verb };
        let (cost, id) = (random.one_of(&[0, 1, 1, 1, 2, 3, 4]), random.one_of(&["a", "b", "c", "d", "e"]));
        let want = model.ask(rule, now.get(), verb, u64::from(cost), id);
        assert_eq!(
            gate.ask_of(rule, now, verb, cost, id),
            want,
            "step {step}: {verb} {cost} by {id} at {now} under {rule:?}; {model:?}"
        );
    }
}
