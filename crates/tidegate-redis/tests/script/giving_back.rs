//! # Refunds, late or before the clock steps back
//!
//! Two keys are charged alike, but one of them has once been charged more, and later refunded what still
//! counts. From then on it never has more left than the other.

use tidegate_core::{Micros, Rule};

use crate::clocked::Clocked;
use crate::reference::Reference;
use crate::walk::{RULES, Random};
use crate::wire::{Ask, Told};

const NOON: Micros = Micros::new(1_700_000_000_000_000);

struct Pair {
    clocked: Clocked,
    rule: Rule,
    now: Micros,
}

impl Pair {
    fn start() -> Self {
        Pair { clocked: Clocked::start(), rule: RULES[0].parse().expect("a rule"), now: NOON }
    }

    fn begin(&mut self, rule: &Rule, now: Micros) {
        self.clocked.clear();
        (self.rule, self.now) = (*rule, now);
    }

    fn ask(&mut self, key: &str, verb: &str, cost: u32) -> Told {
        let asks = [Ask::new(key, cost, &self.rule)];
        self.clocked.ask(self.now, verb, &asks, None).rules[0]
    }

    fn give_back(&mut self, key: &str, cost: u32, til: Micros) -> Told {
        let ask = Ask { cost: format!("{cost} {}", til.get()), ..Ask::new(key, cost, &self.rule) };
        self.clocked.ask(self.now, "rollback", &[ask], None).rules[0]
    }

    fn left(&mut self) -> (u64, u64) {
        (self.ask("more", "peek", 0).remaining, self.ask("alike", "peek", 0).remaining)
    }

    /// Charges both keys at random instants, if the key with less left allows it.
    fn wander(&mut self, random: &mut Random, steps: u64, pace: u64) {
        for _ in 0..steps {
            self.now = self.now.plus(random.below(2 * pace));
            let cost = random.one_of(&[1, 1, 2]);
            if self.ask("more", "check", cost).outcome < 2 {
                self.ask("alike", "force", cost);
            }
        }
    }
}

/// How long one unit takes to refill, more or less.
fn pace(rule: &Rule) -> u64 {
    let setting = rule.encode();
    match (setting.letter(), setting.numbers()) {
        (b'b' | b'q', [p, q, ..]) => p / q + 1,
        (b'g', [rate, ..]) => 1_000_000_000 / rate,
        (b's', [step, period, ..]) => period / step + 1,
        (_, [limit, period, ..]) => period / limit + 1,
        (letter, numbers) => panic!("{letter} {numbers:?}"),
    }
}

#[test]
fn a_refunded_key_never_has_more_left_than_one_never_charged() {
    let (mut random, mut given) = (Random(11), 0);
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
            let told = pair.ask("more", "check", cost);
            if told.outcome >= 2 {
                continue;
            }
            let til = pair.now.plus(told.reset);
            let steps = random.below(4);
            pair.wander(&mut random, steps, pace);
            let before = pair.ask("more", "peek", 0).remaining;
            given += pair.give_back("more", cost, til).remaining - before;
            for _ in 0..6 {
                let (more, alike) = pair.left();
                assert!(
                    more <= alike,
                    "{text}: {more} > {alike} at {}, charged {cost} until {til}",
                    pair.now
                );
                let steps = random.below(2);
                pair.wander(&mut random, steps, pace);
                pair.now = pair.now.plus(random.below(pace));
            }
        }
    }
    assert!(given > 50, "only {given} were refunded");
}

#[test]
fn an_early_refund_restores_the_quota_without_delay() {
    let mut pair = Pair::start();
    for text in RULES.iter().filter(|text| !text.contains("nginx")) {
        let rule: Rule = text.parse().expect("a rule");
        pair.begin(&rule, NOON);
        let told = pair.ask("more", "check", 1);
        let til = pair.now.plus(told.reset);
        let late = told.reset.min(1_000) / 2;
        pair.now = pair.now.plus(late);
        pair.give_back("more", 1, til);
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
        let setting = rule.encode();
        pair.begin(&rule, NOON);
        let told = pair.ask("more", "force", 1);
        let til = pair.now.plus(told.reset);
        pair.give_back("more", 1, til);
        let (more, alike) = pair.left();
        // Where a unit takes no whole number of microseconds, or nginx's milliseconds, the last unit may be
        // lost.
        let rounded = matches!(setting.numbers(), [_, q, ..] if setting.letter() == b'b' && *q > 1);
        let lost = u64::from(rounded || matches!(setting.letter(), b'q' | b'g'));
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
        for (refunded, looked) in steps.iter().flat_map(|one| steps.map(|other| (*one, other))) {
            pair.begin(&rule, NOON);
            let mut core = Reference::new(&[rule], false);
            let story = [(0, "force", 4), (refunded, "refund", 4), (looked, "check", 3), (looked, "peek", 0)];
            for (offset, verb, cost) in story {
                pair.now = at(offset);
                let want = core.ask(pair.now, verb, &[cost]).rules[0];
                let got = pair.ask("more", verb, cost);
                assert_eq!(got, want, "{text}: refunded at {refunded}, {verb} {cost} at {offset}");
            }
        }
    }
}

#[test]
fn a_refunded_charge_is_not_missing_after_a_step_back() {
    let mut pair = Pair::start();
    pair.begin(&"7/s burst 9".parse().expect("a rule"), NOON);
    assert_eq!(pair.ask("more", "check", 4).remaining, 5);
    assert_eq!(pair.ask("more", "refund", 4).remaining, 9);
    pair.now = NOON.minus(1_000_000);
    assert_eq!((pair.ask("more", "check", 3).outcome, pair.left().0), (0, 6));
}

/// A window that is over counts again when the clock steps back into it, whatever was refunded meanwhile.
#[test]
fn a_refund_to_a_key_that_owes_nothing_changes_nothing() {
    let mut pair = Pair::start();
    for verb in ["refund", "rollback"] {
        for text in RULES {
            pair.begin(&text.parse().expect("a rule"), NOON);
            let charged = pair.ask("more", "force", 1);
            pair.ask("alike", "force", 1);
            pair.now = NOON.plus(charged.reset + 2_000_000); // a queue may be full before its debt is 0
            if verb == "refund" {
                pair.ask("more", "refund", 1);
            } else {
                let til = pair.now.plus(1);
                pair.give_back("more", 1, til);
            }
            pair.now = NOON;
            let (more, alike) = pair.left();
            assert_eq!(more, alike, "{verb} of {text}");
        }
    }
}
