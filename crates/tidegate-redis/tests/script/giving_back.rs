//! # What is given back late
//!
//! Two keys are charged alike, but one of them has once been charged more, and later given back what still counts. From then on
//! it never has more left than the other.

use tidegate_core::{Micros, Rule};

use crate::clocked::Clocked;
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

    fn ask(&mut self, key: &str, verb: char, cost: u32) -> Told {
        let asks = [Ask::new(key, cost, &self.rule)];
        self.clocked.ask(self.now, verb, &asks, None).rules[0]
    }

    fn give_back(&mut self, key: &str, cost: u32, til: Micros) -> Told {
        let ask = Ask { cost: format!("{cost} {}", til.get()), ..Ask::new(key, cost, &self.rule) };
        self.clocked.ask(self.now, 'g', &[ask], None).rules[0]
    }

    fn left(&mut self) -> (u64, u64) {
        (self.ask("more", 'p', 0).remaining, self.ask("alike", 'p', 0).remaining)
    }

    /// Charges both, now and then, if the one that is short of something lets it pass.
    fn wander(&mut self, random: &mut Random, steps: u64, pace: u64) {
        for _ in 0..steps {
            self.now = self.now.plus(random.below(2 * pace));
            let cost = random.one_of(&[1, 1, 2]);
            if self.ask("more", 'c', cost).outcome < 2 {
                self.ask("alike", 'f', cost);
            }
        }
    }
}

/// How long one unit takes to come back, more or less.
fn pace(rule: &Rule) -> u64 {
    let setting = rule.setting();
    match (setting.letter(), setting.numbers()) {
        (b'b' | b'q', [p, q, ..]) => p / q + 1,
        (b'g', [rate, ..]) => 1_000_000_000 / rate,
        (b's', [step, period, ..]) => period / step + 1,
        (_, [limit, period, ..]) => period / limit + 1,
        (letter, numbers) => panic!("{letter} {numbers:?}"),
    }
}

#[test]
fn who_gives_back_never_has_more_than_who_never_took() {
    let (mut random, mut given) = (Random(11), 0);
    let mut pair = Pair::start();
    // A window that a charge has opened stays open when the charge is given back, and so ends before one that others open.
    for text in RULES.iter().filter(|text| !text.contains("from first hit")) {
        let rule: Rule = text.parse().expect("a rule");
        let pace = pace(&rule);
        for _ in 0..12 {
            let start = NOON.plus(random.below(pace * 7));
            pair.begin(&rule, start);
            let steps = random.below(4);
            pair.wander(&mut random, steps, pace);
            let cost = random.one_of(&[1, 2, 3]);
            let told = pair.ask("more", 'c', cost);
            if told.outcome >= 2 {
                continue;
            }
            let til = pair.now.plus(told.reset);
            let steps = random.below(4);
            pair.wander(&mut random, steps, pace);
            let before = pair.ask("more", 'p', 0).remaining;
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
    assert!(given > 50, "only {given} were given back");
}

#[test]
fn what_is_given_back_soon_is_there_again_as_soon() {
    let mut pair = Pair::start();
    for text in RULES.iter().filter(|text| !text.contains("nginx")) {
        let rule: Rule = text.parse().expect("a rule");
        pair.begin(&rule, NOON);
        let told = pair.ask("more", 'c', 1);
        let til = pair.now.plus(told.reset);
        let late = told.reset.min(1_000) / 2;
        pair.now = pair.now.plus(late);
        pair.give_back("more", 1, til);
        pair.now = pair.now.plus(late + 1);
        let (more, alike) = pair.left();
        assert_eq!(more, alike, "{text}: given back after {late}us");
    }
}

#[test]
fn what_is_given_back_at_once_was_never_taken() {
    let mut pair = Pair::start();
    for text in RULES {
        let rule: Rule = text.parse().expect("a rule");
        let setting = rule.setting();
        pair.begin(&rule, NOON);
        let told = pair.ask("more", 'f', 1);
        let til = pair.now.plus(told.reset);
        pair.give_back("more", 1, til);
        let (more, alike) = pair.left();
        // Where a unit takes no whole number of microseconds, or nginx's milliseconds, the last one may be lost.
        let rounded = matches!(setting.numbers(), [_, q, ..] if setting.letter() == b'b' && *q > 1);
        let lost = u64::from(rounded || matches!(setting.letter(), b'q' | b'g'));
        assert!(more <= alike && more + lost >= alike, "{text}: {more}, not {alike}");
    }
}
