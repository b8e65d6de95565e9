//! # The largest numbers
//!
//! Cases that a random walk seldom reaches: debts that last until the end of the time line, counts that
//! outgrow their bytes.

use tidegate_core::{Micros, Rule};

use crate::mock_clock::MockClockScript;
use crate::reference::Reference;
use crate::wire::RuleArgs;

const NOON: Micros = Micros::new(1_700_000_000_123_456);

/// Script and core, side by side.
struct Both {
    mock: MockClockScript,
    rule: Rule,
    reference: Reference,
}

impl Both {
    fn of(text: &str) -> Self {
        let rule: Rule = text.parse().expect("a rule");
        Both { mock: MockClockScript::start(), rule, reference: Reference::new(&[rule], false) }
    }

    #[track_caller]
    fn assert_equal(&mut self, at: Micros, operation: &str, cost: u32) {
        let got = self.mock.call(at, operation, &[RuleArgs::rate("key", cost, &self.rule)], None);
        assert_eq!(got, self.reference.call(at, operation, &[cost]), "{operation} {cost} at {at}");
    }
}

#[test]
fn a_debt_until_the_end_of_time_equals_the_core() {
    let mut both = Both::of("1/day");
    for _ in 0..3 {
        both.assert_equal(NOON, "force", u32::MAX);
    }
    both.assert_equal(NOON.plus(1), "check", 1);
    both.assert_equal(NOON.plus(86_400_000_000), "peek", 0);
    both.assert_equal(Micros::MAX, "check", 1);
}

#[test]
fn debts_below_two_to_the_fifty_third_are_exact() {
    let mut both = Both::of("7/s");
    for at in [NOON, NOON.plus(142_857)] {
        both.assert_equal(at, "force", u32::MAX);
        both.assert_equal(at.plus(1), "check", 1);
    }
    both.assert_equal(NOON.plus(1_000_000_000_000), "refund", u32::MAX);
    both.assert_equal(NOON.plus(1_000_000_000_001), "check", 7);
}

/// For the finest parts of a microsecond the core has room for a step of four hours.
#[test]
fn a_step_back_is_remembered_as_far_as_in_the_core() {
    for text in ["999983/s burst 3", "1099511627777 per 1d burst 3"] {
        for hours in [1, 4, 5, 100_000] {
            let (mut both, back) = (Both::of(text), NOON.minus(hours * 3_600_000_000));
            for at in [NOON, back, NOON, back, back.plus(1), back.minus(1), NOON, NOON.plus(1)] {
                both.assert_equal(at, "check", 3);
                both.assert_equal(at, "refund", 1);
                both.assert_equal(at, "check", 1);
            }
        }
    }
}

#[test]
fn counts_beyond_five_bytes_are_exact() {
    let mut both = Both::of("fixed_window 2000000000000/min");
    for _ in 0..300 {
        both.assert_equal(NOON, "force", u32::MAX);
    }
    both.assert_equal(NOON, "refund", 7);
    both.assert_equal(NOON, "check", u32::MAX);
    both.assert_equal(NOON.plus(60_000_000), "check", 1);
}

#[test]
fn a_log_of_the_largest_size_is_exact() {
    let mut both = Both::of("sliding_log 16384/s");
    for (at, cost) in [(0, 9_000), (10, 7_000), (20, 385), (20, 384), (30, 1), (1_000_000, 8_000)] {
        both.assert_equal(NOON.plus(at), "check", cost);
    }
    both.assert_equal(NOON.minus(5_000_000), "check", 1);
    both.assert_equal(NOON.minus(4_000_000), "check", 16_384);
}

#[test]
fn a_window_of_the_most_cells_is_exact() {
    let mut both = Both::of("sliding_window 1000/s cells 1000 interpolated");
    for step in 0..1_200 {
        both.assert_equal(NOON.plus(step * 999), "check", 1);
    }
    both.assert_equal(NOON.plus(1_200 * 999), "check", 900);
    both.assert_equal(NOON, "check", 900);
}

/// The products are 2^52 times a number of microseconds, far above 2^53.
#[test]
fn an_unlimited_bucket_equals_the_core() {
    let mut both = Both::of("unlimited");
    for at in [0, 0, 1, 1, 2, 3, 1_000_000, 7_200_000_000] {
        let at = NOON.plus(at);
        for (operation, cost) in
            [("check", 1), ("check", u32::MAX), ("take", u32::MAX), ("peek", 0), ("refund", 3), ("check", 2)]
        {
            both.assert_equal(at, operation, cost);
        }
    }
    // More than the burst at one instant: the debt is paid back in two microseconds.
    let later = NOON.plus(7_200_000_000);
    for _ in 0..40 {
        both.assert_equal(later, "force", u32::MAX);
    }
    for at in [later, later.plus(1), later.plus(2), later.minus(3_600_000_000), later.plus(3), Micros::MAX] {
        both.assert_equal(at, "check", u32::MAX);
        both.assert_equal(at, "peek", 1);
    }
}

/// A grant stops the refill until it expires. What is owed then refills in less than a microsecond.
#[test]
fn a_grant_of_an_unlimited_bucket_refills_a_microsecond_after_it_expires() {
    let (mut mock, rule) = (MockClockScript::start(), "unlimited".parse::<Rule>().expect("a rule"));
    let ttl = 3_600_000_000;
    for (id, amount) in [(1, 1_u32), (2, 1_000), (3, 1 << 30)] {
        mock.clear();
        let cost = format!("{amount} 1073741824 {ttl} 0");
        let args = RuleArgs { cost, ..RuleArgs::rate("key", 0, &rule) };
        let (reply, numbers) = mock.numbers(NOON, "lease", &[args], Some(&[id; 16]));
        let [.., granted, reserved, claimed] = numbers[..] else { panic!("{numbers:?}") };
        assert_eq!((granted, reserved, claimed), (amount.into(), 0, 0));
        assert_eq!((reply.remaining, reply.reset), ((1 << 52) - u64::from(amount), ttl + 1));
        let peek = |mock: &mut MockClockScript, at| {
            let (reply, _) = mock.numbers(at, "peek", &[RuleArgs::rate("key", 0, &rule)], None);
            (reply.remaining, reply.reset)
        };
        let left = (1 << 52) - u64::from(amount);
        assert_eq!(peek(&mut mock, NOON.plus(ttl - 1)), (left, 2));
        assert_eq!(peek(&mut mock, NOON.plus(ttl)), (left, 1));
        assert_eq!(peek(&mut mock, NOON.plus(ttl + 1)), (1 << 52, 0));
    }
}
