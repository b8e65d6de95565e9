//! # The largest numbers
//!
//! Cases that a random walk seldom reaches: debts that last until the end of the time line, counts that
//! outgrow their bytes.

use tidegate_core::{Micros, Rule};

use crate::clocked::Clocked;
use crate::reference::Reference;
use crate::wire::Ask;

const NOON: Micros = Micros::new(1_700_000_000_123_456);

/// Script and core, side by side.
struct Both {
    clocked: Clocked,
    rule: Rule,
    reference: Reference,
}

impl Both {
    fn of(text: &str) -> Self {
        let rule: Rule = text.parse().expect("a rule");
        Both { clocked: Clocked::start(), rule, reference: Reference::new(&[rule], false) }
    }

    #[track_caller]
    fn agree(&mut self, at: Micros, verb: &str, cost: u32) {
        let got = self.clocked.ask(at, verb, &[Ask::new("key", cost, &self.rule)], None);
        assert_eq!(got, self.reference.ask(at, verb, &[cost]), "{verb} {cost} at {at}");
    }
}

#[test]
fn a_debt_until_the_end_of_time_equals_the_core() {
    let mut both = Both::of("1/day");
    for _ in 0..3 {
        both.agree(NOON, "force", u32::MAX);
    }
    both.agree(NOON.plus(1), "check", 1);
    both.agree(NOON.plus(86_400_000_000), "peek", 0);
    both.agree(Micros::MAX, "check", 1);
}

#[test]
fn debts_below_two_to_the_fifty_third_are_exact() {
    let mut both = Both::of("7/s");
    for at in [NOON, NOON.plus(142_857)] {
        both.agree(at, "force", u32::MAX);
        both.agree(at.plus(1), "check", 1);
    }
    both.agree(NOON.plus(1_000_000_000_000), "refund", u32::MAX);
    both.agree(NOON.plus(1_000_000_000_001), "check", 7);
}

/// For the finest parts of a microsecond the core has room for a step of four hours.
#[test]
fn a_step_back_is_remembered_as_far_as_in_the_core() {
    for text in ["999983/s burst 3", "1099511627777 per 1d burst 3"] {
        for hours in [1, 4, 5, 100_000] {
            let (mut both, back) = (Both::of(text), NOON.minus(hours * 3_600_000_000));
            for at in [NOON, back, NOON, back, back.plus(1), back.minus(1), NOON, NOON.plus(1)] {
                both.agree(at, "check", 3);
                both.agree(at, "refund", 1);
                both.agree(at, "check", 1);
            }
        }
    }
}

#[test]
fn counts_beyond_five_bytes_are_exact() {
    let mut both = Both::of("fixed_window 2000000000000/min");
    for _ in 0..300 {
        both.agree(NOON, "force", u32::MAX);
    }
    both.agree(NOON, "refund", 7);
    both.agree(NOON, "check", u32::MAX);
    both.agree(NOON.plus(60_000_000), "check", 1);
}

#[test]
fn a_log_of_the_largest_size_is_exact() {
    let mut both = Both::of("sliding_log 16384/s");
    for (at, cost) in [(0, 9_000), (10, 7_000), (20, 385), (20, 384), (30, 1), (1_000_000, 8_000)] {
        both.agree(NOON.plus(at), "check", cost);
    }
    both.agree(NOON.minus(5_000_000), "check", 1);
    both.agree(NOON.minus(4_000_000), "check", 16_384);
}

#[test]
fn a_window_of_the_most_cells_is_exact() {
    let mut both = Both::of("sliding_window 1000/s cells 1000 interpolated");
    for step in 0..1_200 {
        both.agree(NOON.plus(step * 999), "check", 1);
    }
    both.agree(NOON.plus(1_200 * 999), "check", 900);
    both.agree(NOON, "check", 900);
}
