//! # Rules change, state stays
//!
//! The script learns of a change with the next request. What was used stays used: under another quota the
//! same number of tokens, under another algorithm as much as it can hold, as if it had been used at that
//! moment.

use tidegate_core::{Micros, Rule};

use crate::mock_clock::MockClockScript;
use crate::scripted::limit;
use crate::wire::{Reply, RuleArgs, RuleReply};

const NOON: Micros = Micros::new(1_700_000_040_000_000); // a full minute

/// One rule of each algorithm, with a burst of ten.
const EACH: [&str; 9] = [
    "10/min",
    "leaky_queue 10/min queue 9 nodelay",
    "leaky_queue 10/min queue 9 nodelay nginx",
    "stepped_bucket 10/min",
    "fixed_window 10/min",
    "fixed_window 10/min from first hit",
    "sliding_log 10/min",
    "sliding_window 10/min cells 6",
    "permits",
];

fn rule(text: &str) -> Rule {
    text.parse().expect("a rule")
}

fn args(text: &str, cost: u32) -> [RuleArgs; 1] {
    if text == "permits" {
        return [RuleArgs::concurrency("key", cost, 10, 60_000_000)];
    }
    [RuleArgs::rate("key", cost, &rule(text))]
}

struct Changing(MockClockScript);

impl Changing {
    fn start() -> Self {
        Changing(MockClockScript::start())
    }

    fn call(&mut self, at: Micros, operation: &str, cost: u32, text: &str) -> RuleReply {
        let id = (text == "permits").then_some(b"an id of 16 byte".as_slice());
        let Reply { rules, .. } = self.0.call(at, operation, &args(text, cost), id);
        rules[0]
    }
}

#[test]
fn another_algorithm_is_charged_what_was_used() {
    let mut changing = Changing::start();
    for old in EACH {
        for new in EACH {
            for used in [1, 6, 10] {
                changing.0.clear();
                changing.call(NOON, "check", used, old);
                let reply = changing.call(NOON, "peek", 0, new);
                assert_eq!(reply.remaining, u64::from(10 - used), "{used} used by {old}, seen by {new}");
                if old != new && old != "permits" && new != "permits" {
                    let refused = changing.call(NOON, "check", 10, new);
                    assert_eq!(refused.outcome, 2, "{used} used by {old}, requested from {new}");
                    assert_wait_holds(&mut changing, refused.wait, old, new);
                }
            }
        }
    }
}

/// A refusal has written the migrated state, so that the wait it reported holds.
fn assert_wait_holds(changing: &mut Changing, wait: u64, old: &str, new: &str) {
    let early = changing.call(NOON.plus(wait - 1), "peek", 10, new);
    assert_eq!((early.outcome, early.wait), (2, 1), "{old}, {new}");
    assert_eq!(changing.call(NOON.plus(wait), "peek", 10, new).outcome, 0, "{old}, {new}");
}

#[test]
fn another_algorithm_is_charged_no_more_than_it_can_hold() {
    let mut changing = Changing::start();
    for old in ["fixed_window 10/min", "sliding_log 50/min", "sliding_window 10/min cells 6"] {
        for new in ["2/min", "leaky_queue 2/min queue 1", "stepped_bucket 1/min burst 2"] {
            changing.0.clear();
            changing.call(NOON, "force", 50, old);
            let reply = changing.call(NOON, "peek", 2, new);
            let nothing_before = if new.starts_with("stepped") { 120_000_000 } else { 60_000_000 };
            assert_eq!((reply.outcome, reply.remaining, reply.reset), (2, 0, nothing_before), "{old}, {new}");
        }
    }
}

#[test]
fn another_quota_keeps_the_number_of_used_tokens() {
    let mut changing = Changing::start();
    let (fine, coarse) = ("999983/s", "1/s burst 20000");
    changing.call(NOON, "check", 60_000, fine);
    // 49999 have refilled, the others are used; the time since then has 850 thousand parts of a microsecond
    // that 1/s cannot represent.
    let at = NOON.plus(50_000);
    assert_eq!(changing.call(at, "check", 3, fine).remaining, 999_983 - 10_004);
    assert_eq!(changing.call(at, "peek", 0, coarse).remaining, 9_996);
    assert_eq!(changing.call(at.plus(1_000_000), "peek", 0, coarse).remaining, 9_997);
    assert_eq!(changing.call(at.plus(1_000_000), "check", 1, coarse).remaining, 9_996);
    assert_eq!(changing.call(at.plus(1_000_000), "peek", 0, "1/h burst 10005").remaining, 1);
    assert_eq!(changing.call(at.plus(1_000_000), "peek", 0, "1/h burst 5").remaining, 0);
}

/// A key has whole tokens and the time since: what had refilled of the next token is kept as time, and so
/// counts at the new rate.
#[test]
fn a_partly_refilled_token_or_step_counts_at_the_new_rate() {
    let mut changing = Changing::start();
    let at = |millis: u64| NOON.plus(millis * 1_000);
    changing.call(NOON, "check", 2, "3/s");
    assert_eq!(changing.call(at(100), "check", 1, "3/s").remaining, 0); // a third of a token less than three
    let reply = changing.call(at(100), "peek", 0, "10/s");
    assert_eq!((reply.remaining, reply.reset), (8, 200_000), "the 100ms are a token at the new rate");
    assert_eq!(
        changing.call(at(100), "peek", 0, "1/h burst 3").remaining,
        0,
        "and next to nothing at a slower one"
    );

    changing.0.clear();
    changing.call(NOON, "check", 30, "stepped_bucket 20/min burst 50");
    let reply = changing.call(at(29_000), "peek", 0, "stepped_bucket 10 per 10s burst 50");
    assert_eq!(
        (reply.remaining, reply.reset),
        (40, 1_000_000),
        "two steps of the new rule, since the step of the old one began"
    );
}

#[test]
fn an_open_window_keeps_its_count_under_a_new_rule() {
    let mut changing = Changing::start();
    let at = |seconds: u64| NOON.plus(seconds * 1_000_000);
    changing.call(NOON, "check", 4, "fixed_window 10/min");
    assert_eq!(changing.call(at(59), "peek", 0, "fixed_window 10/h").remaining, 6);
    assert_eq!(changing.call(at(60), "peek", 0, "fixed_window 10/h").remaining, 10);
    assert_eq!(changing.call(at(59), "peek", 0, "fixed_window 10 per 7s from first hit").reset, 7_000_000);
    // A refusal under the new rule migrates it.
    changing.call(at(59), "check", 10, "fixed_window 10/h");
    assert_eq!(changing.call(at(61), "peek", 0, "fixed_window 10/h").remaining, 6);

    changing.0.clear();
    changing.call(NOON, "check", 4, "fixed_window 10 per 30s from first hit");
    assert_eq!(changing.call(at(10), "peek", 0, "fixed_window 10 per 20s from first hit").reset, 10_000_000);
    assert_eq!(changing.call(at(20), "peek", 0, "fixed_window 10 per 20s from first hit").remaining, 10);
    assert_eq!(changing.call(at(29), "peek", 0, "fixed_window 10 per 40s from first hit").reset, 11_000_000);
    assert_eq!(changing.call(at(29), "peek", 0, "fixed_window 10/min").reset, 31_000_000);
}

#[test]
fn another_number_of_cells_counts_all_usage_as_of_now() {
    let mut changing = Changing::start();
    let at = |millis: u64| NOON.plus(millis * 1_000);
    let (five, ten) = ("sliding_window 5/s cells 5", "sliding_window 5/s cells 10");
    changing.call(NOON, "check", 3, five);
    assert_eq!(limit(&rule(ten)), 5);
    let refused = changing.call(at(400), "check", 3, ten);
    assert_eq!((refused.outcome, refused.remaining, refused.wait), (2, 2, 1_100_000));
    let refused = changing.call(at(1_500).minus(1), "check", 3, ten);
    assert_eq!((refused.outcome, refused.remaining, refused.wait), (2, 2, 1));
    assert_eq!(changing.call(at(1_500), "check", 5, ten).outcome, 0);
}
