//! # Refunds, late or before the clock steps back
//!
//! Two keys are charged alike, but one of them has once been charged more, and later refunded what still
//! counts. From then on it never has more left than the other.

use tidegate_core::{Micros, Rule};

use crate::mock_clock::MockClockScript;
use crate::random_walk::{RULES, Random};
use crate::reference::Reference;
use crate::wire::{RuleArgs, RuleReply};

const NOON: Micros = Micros::new(1_700_000_000_000_000);

struct Pair {
    mock: MockClockScript,
    rule: Rule,
    now: Micros,
}

impl Pair {
    fn start() -> Self {
        Pair { mock: MockClockScript::start(), rule: RULES[0].parse().expect("a rule"), now: NOON }
    }

    fn begin(&mut self, rule: &Rule, now: Micros) {
        self.mock.clear();
        (self.rule, self.now) = (*rule, now);
    }

    fn call(&mut self, key: &str, operation: &str, cost: u32) -> RuleReply {
        let args = [RuleArgs::rate(key, cost, &self.rule)];
        self.mock.call(self.now, operation, &args, None).rules[0]
    }

    fn rollback(&mut self, key: &str, cost: u32, ends_at: Micros) -> RuleReply {
        let args =
            RuleArgs { cost: format!("{cost} {}", ends_at.get()), ..RuleArgs::rate(key, cost, &self.rule) };
        self.mock.call(self.now, "rollback", &[args], None).rules[0]
    }

    fn left(&mut self) -> (u64, u64) {
        (self.call("more", "peek", 0).remaining, self.call("alike", "peek", 0).remaining)
    }

    /// Charges both keys at random instants, if the key with less left allows it.
    fn wander(&mut self, random: &mut Random, steps: u64, pace: u64) {
        for _ in 0..steps {
            self.now = self.now.plus(random.below(2 * pace));
            let cost = random.one_of(&[1, 1, 2]);
            if self.call("more", "check", cost).outcome < 2 {
                self.call("alike", "force", cost);
            }
        }
    }
}

/// How long one unit takes to refill, more or less.
fn pace(rule: &Rule) -> u64 {
    let encoded = rule.encode();
    match (encoded.letter(), encoded.numbers()) {
        (b'b' | b'q', [p, q, ..]) => p / q + 1,
        (b'g', [rate, ..]) => 1_000_000_000 / rate,
        (b's', [step, period, ..]) => period / step + 1,
        (_, [limit, period, ..]) => period / limit + 1,
        (letter, numbers) => panic!("{letter} {numbers:?}"),
    }
}

#[test]
fn a_refunded_key_never_has_more_left_than_one_never_charged() {
    let (mut random, mut refunded) = (Random(11), 0);
    let mut pair = Pair::start();
    // A window that a charge has opened stays open after a refund, and so ends before one opened later.
    for text in RULES.iter().filter(|text| !text.contains("from first hit")) {
        let rule: Rule = text.parse().expect("a rule");
        let pace = pace(&rule);
        for _ in 0..12 {
            let start = NOON.plus(random.below(pace * 7));
            pair.begin(&rule, start);
            let steps = random.below(4);
            pair.wander(&mut random, steps, pace);
            let cost = random.one_of(&[1, 2, 3]);
            let reply = pair.call("more", "check", cost);
            if reply.outcome >= 2 {
                continue;
            }
            let ends_at = pair.now.plus(reply.reset);
            let steps = random.below(4);
            pair.wander(&mut random, steps, pace);
            let before = pair.call("more", "peek", 0).remaining;
            refunded += pair.rollback("more", cost, ends_at).remaining - before;
            for _ in 0..6 {
                let (more, alike) = pair.left();
                assert!(
                    more <= alike,
                    "{text}: {more} > {alike} at {}, charged {cost} until {ends_at}",
                    pair.now
                );
                let steps = random.below(2);
                pair.wander(&mut random, steps, pace);
                pair.now = pair.now.plus(random.below(pace));
            }
        }
    }
    assert!(refunded > 50, "only {refunded} were refunded");
}

#[test]
fn an_early_refund_restores_the_quota_without_delay() {
    let mut pair = Pair::start();
    for text in RULES.iter().filter(|text| !text.contains("nginx")) {
        let rule: Rule = text.parse().expect("a rule");
        pair.begin(&rule, NOON);
        let reply = pair.call("more", "check", 1);
        let ends_at = pair.now.plus(reply.reset);
        let late = reply.reset.min(1_000) / 2;
        pair.now = pair.now.plus(late);
        pair.rollback("more", 1, ends_at);
        pair.now = pair.now.plus(late + 1);
        let (more, alike) = pair.left();
        assert_eq!(more, alike, "{text}: refunded after {late}us");
    }
}

#[test]
fn an_immediate_refund_restores_the_key_up_to_rounding() {
    let mut pair = Pair::start();
    for text in RULES {
        let rule: Rule = text.parse().expect("a rule");
        let encoded = rule.encode();
        pair.begin(&rule, NOON);
        let reply = pair.call("more", "force", 1);
        let ends_at = pair.now.plus(reply.reset);
        pair.rollback("more", 1, ends_at);
        let (more, alike) = pair.left();
        // Where a unit takes no whole number of microseconds, or nginx's milliseconds, the last unit may be
        // lost.
        let rounded = matches!(encoded.numbers(), [_, q, ..] if encoded.letter() == b'b' && *q > 1);
        let lost = u64::from(rounded || matches!(encoded.letter(), b'q' | b'g'));
        assert!(more <= alike && more + lost >= alike, "{text}: {more}, not {alike}");
    }
}

/// A charge, then a refund at another instant, then a check at a third, compared with the core at each.
#[test]
fn script_and_core_agree_after_a_refund_and_a_step_back() {
    let mut pair = Pair::start();
    let steps = [0, -1, -1_000_000, 1_000_000, -300_000, 90_000_000, -90_000_000];
    let at = |offset: i64| Micros::new(NOON.get().checked_add_signed(offset).expect("after 1970"));
    for text in RULES.iter().chain(&["7/s burst 9"]) {
        let rule: Rule = text.parse().expect("a rule");
        for (refunded, checked) in steps.iter().flat_map(|one| steps.map(|other| (*one, other))) {
            pair.begin(&rule, NOON);
            let mut core = Reference::new(&[rule], false);
            let scenario =
                [(0, "force", 4), (refunded, "refund", 4), (checked, "check", 3), (checked, "peek", 0)];
            for (offset, operation, cost) in scenario {
                pair.now = at(offset);
                let want = core.call(pair.now, operation, &[cost]).rules[0];
                let got = pair.call("more", operation, cost);
                assert_eq!(got, want, "{text}: refunded at {refunded}, {operation} {cost} at {offset}");
            }
        }
    }
}

#[test]
fn a_refunded_charge_is_not_missing_after_a_step_back() {
    let mut pair = Pair::start();
    pair.begin(&"7/s burst 9".parse().expect("a rule"), NOON);
    assert_eq!(pair.call("more", "check", 4).remaining, 5);
    assert_eq!(pair.call("more", "refund", 4).remaining, 9);
    pair.now = NOON.minus(1_000_000);
    assert_eq!((pair.call("more", "check", 3).outcome, pair.left().0), (0, 6));
}

/// A window that is over counts again when the clock steps back into it, whatever was refunded meanwhile.
#[test]
fn a_refund_to_a_key_that_owes_nothing_changes_nothing() {
    let mut pair = Pair::start();
    for operation in ["refund", "rollback"] {
        for text in RULES {
            pair.begin(&text.parse().expect("a rule"), NOON);
            let charged = pair.call("more", "force", 1);
            pair.call("alike", "force", 1);
            pair.now = NOON.plus(charged.reset + 2_000_000); // a queue may be full before its debt is 0
            if operation == "refund" {
                pair.call("more", "refund", 1);
            } else {
                let ends_at = pair.now.plus(1);
                pair.rollback("more", 1, ends_at);
            }
            pair.now = NOON;
            let (more, alike) = pair.left();
            assert_eq!(more, alike, "{operation} of {text}");
        }
    }
}
