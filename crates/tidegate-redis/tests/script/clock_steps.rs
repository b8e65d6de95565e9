//! # A server clock that steps back and returns
//!
//! The comparison of script and core is in `random_walk.rs`; here is the required behaviour, whichever of them
//! decides.

use tidegate_core::{Micros, Rule};

use crate::mock_clock::MockClockScript;
use crate::random_walk::{RULES, Random};
use crate::reference::Reference;
use crate::wire::{RuleArgs, RuleReply};

const NOON: Micros = Micros::new(1_700_000_000_000_000);
const SECOND: u64 = 1_000_000;

/// Whether a rule remembers the latest instant before the clock stepped back.
fn remembers(rule: &Rule) -> bool {
    !matches!(rule, Rule::FixedWindow(_) | Rule::SteppedBucket(_) | Rule::NginxQueue(_))
}

fn call_one(
    mock: &mut MockClockScript,
    at: Micros,
    operation: &str,
    cost: &str,
    rule: &Rule,
    id: Option<&[u8]>,
) -> RuleReply {
    let args = [RuleArgs { cost: cost.to_owned(), ..RuleArgs::rate("key", 1, rule) }];
    mock.numbers(at, operation, &args, id).0
}

fn length(mock: &mut MockClockScript) -> u64 {
    redis::cmd("STRLEN").arg("key").query(&mut mock.connection).expect("a reply")
}

#[test]
fn a_clock_that_jumps_back_and_forth_creates_no_tokens() {
    let mut mock = MockClockScript::start();
    mock.forget(true);
    for text in RULES {
        let rule: Rule = text.parse().expect("a rule");
        if !remembers(&rule) {
            continue;
        }
        let all = call_one(&mut mock, NOON, "reset", "0", &rule, None).remaining.to_string();
        assert!(call_one(&mut mock, NOON, "check", &all, &rule, None).outcome < 2, "{text}");
        for _ in 0..3 {
            for at in [NOON.minus(100_000 * SECOND), NOON] {
                let reply = call_one(&mut mock, at, "check", "1", &rule, None);
                assert_eq!((reply.outcome, reply.remaining), (2, 0), "{text} at {at}");
            }
        }
    }
}

#[test]
fn a_clock_that_jumps_back_and_forth_creates_no_tokens_in_several_buckets() {
    let mut mock = MockClockScript::start();
    let rules: [Rule; 3] =
        ["10/s burst 4", "7/s burst 5", "3/s burst 9"].map(|text| text.parse().expect("a rule"));
    let mut core = Reference::new(&rules, false);
    let args = |cost| [0, 1, 2].map(|n: usize| RuleArgs::rate(&n.to_string(), cost, &rules[n]));
    for (at, cost) in [(10, 4), (0, 1), (10, 1), (0, 1), (1, 2), (10, 1), (11, 4)] {
        let at = NOON.plus(at * SECOND);
        let want = core.call(at, "check", &[cost; 3]);
        assert_eq!(mock.call(at, "check", &args(cost), None), want, "{cost} at {at}");
    }
}

#[test]
fn a_bucket_value_is_longer_only_while_the_clock_is_behind() {
    let (mut mock, rule) = (MockClockScript::start(), "10/s burst 4".parse().expect("a rule"));
    let mut visit = |at: Micros, cost: &str| {
        call_one(&mut mock, at, "check", cost, &rule, None);
        length(&mut mock)
    };
    assert_eq!(visit(NOON, "4"), 12);
    assert_eq!(visit(NOON.minus(10 * SECOND), "1"), 35);
    assert_eq!(visit(NOON.minus(9 * SECOND), "1"), 35);
    assert_eq!(visit(NOON, "1"), 12);
}

/// The clock moves ten seconds back and forth, five times.
#[test]
fn a_clock_that_jumps_by_ten_seconds_admits_one_limit_of_logs_and_windows() {
    let mut mock = MockClockScript::start();
    for kind in ["sliding_log 5/s", "sliding_window 5/s cells 10", "sliding_window 5/s cells 5 interpolated"]
    {
        assert_admits_one_limit(&mut mock, kind);
    }
    for kind in
        ["sliding_window 5 per 10s cells 1 plain", "sliding_window 5 per 3s cells 7", "sliding_log 5/h"]
    {
        assert_admits_one_limit(&mut mock, kind);
    }
}

fn assert_admits_one_limit(mock: &mut MockClockScript, text: &str) {
    mock.clear();
    let (rule, mut passed) = (text.parse().expect("a rule"), 0);
    for _ in 0..5 {
        for at in [NOON, NOON.minus(10 * SECOND)] {
            let reply = (0..10).map(|_| call_one(mock, at, "check", "1", &rule, None).outcome);
            passed += reply.filter(|outcome| *outcome == 0).count();
        }
    }
    assert_eq!(passed, 5, "{text}");
}

#[test]
fn a_log_or_window_value_is_longer_only_while_the_clock_is_behind() {
    for (text, length_of_one) in [("sliding_log 4/s", 8), ("sliding_window 4/s cells 10", 21)] {
        let (mut mock, rule) = (MockClockScript::start(), text.parse().expect("a rule"));
        let mut visit = |at: Micros, cost: &str| {
            call_one(&mut mock, at, "check", cost, &rule, None);
            length(&mut mock)
        };
        assert_eq!(visit(NOON, "1"), length_of_one, "{text}");
        assert_eq!(visit(NOON.minus(SECOND / 2), "5"), length_of_one, "{text}: a small step");
        assert_eq!(visit(NOON.minus(10 * SECOND), "5"), length_of_one + 7, "{text}: a far step");
        assert_eq!(visit(NOON.minus(9 * SECOND), "5"), length_of_one + 7, "{text}");
        assert_eq!(visit(NOON, "5"), length_of_one, "{text}");
    }
}

/// A window changes its cells, and a log changes its period, while the clock is behind.
#[test]
fn a_changed_rule_remembers_the_latest_instant_before_the_step_back() {
    let changes = [
        ("sliding_window 4/s cells 10", "sliding_window 4/s cells 5"),
        ("sliding_window 4/s cells 10", "sliding_window 4 per 2s cells 3 interpolated"),
        ("sliding_log 4/s", "sliding_log 4 per 2s"),
        ("sliding_log 4/s", "sliding_log 3/s"),
    ];
    for (old, new) in changes {
        let mut mock = MockClockScript::start();
        let [old, new]: [Rule; 2] = [old, new].map(|text| text.parse().expect("a rule"));
        assert_eq!(call_one(&mut mock, NOON, "check", "4", &old, None).outcome, 0);
        assert_eq!(call_one(&mut mock, NOON.minus(10 * SECOND), "check", "1", &old, None).outcome, 2);
        for at in [NOON.minus(10 * SECOND), NOON, NOON.minus(10 * SECOND), NOON] {
            assert_eq!(call_one(&mut mock, at, "check", "1", &new, None).outcome, 2, "{new:?} at {at}");
        }
    }
}

#[test]
fn another_algorithm_is_charged_the_usage_without_the_latest_instant() {
    let new = "fixed_window 10/h".parse().expect("a rule");
    for old in ["sliding_log 4/s", "sliding_window 4/s cells 10"] {
        let (mut mock, old) = (MockClockScript::start(), old.parse().expect("a rule"));
        call_one(&mut mock, NOON, "check", "3", &old, None);
        let low = NOON.minus(10 * SECOND);
        assert_eq!(call_one(&mut mock, low, "check", "2", &old, None).remaining, 1);
        assert_eq!(call_one(&mut mock, low, "peek", "0", &new, None).remaining, 7, "{old:?}");
        assert_eq!(call_one(&mut mock, NOON, "peek", "0", &new, None).remaining, 7, "{old:?}");
    }
}

/// The longest step that a window with such cells remembers, and some that are too long, as in the core.
#[test]
fn a_window_remembers_a_step_back_as_far_as_the_core() {
    let mut mock = MockClockScript::start();
    for (text, cell, furthest) in [
        ("sliding_window 3 per 10us cells 5", 2, 4_095),
        ("sliding_window 3/s cells 10", 100_000, (1 << 27) - 1),
    ] {
        for step in [furthest, furthest + 1, furthest + 3, furthest + 12] {
            mock.clear();
            let rule: Rule = text.parse().expect("a rule");
            let mut core = Reference::new(&[rule], false);
            let low = NOON.minus(step * cell);
            for (at, cost) in [(NOON, 3), (low, 1), (low.plus(cell), 1), (NOON, 1), (NOON.plus(7 * cell), 1)]
            {
                let want = core.call(at, "check", &[cost]);
                let args = [RuleArgs::rate("key", cost, &rule)];
                assert_eq!(mock.call(at, "check", &args, None), want, "{text}: {step} cells, {cost} at {at}");
            }
        }
    }
}

/// The next reading of a clock that jumps back and forth, for a rule with windows of this length.
fn stepped(at: Micros, latest: Micros, period: u64, random: &mut Random) -> Micros {
    match random.below(12) {
        0..3 => at,
        3 => at.plus(random.below(period / 4)),
        4 => at.plus(random.below(2 * period)),
        5 => at.minus(random.below(period)),
        6 => at.minus(period + random.below(3)),
        7 => at.minus(random.below(20 * period)),
        8 => latest,
        9 => latest.plus(random.below(3)).minus(1),
        10 => latest.plus(random.below(period)),
        _ => latest.minus(random.below(period)),
    }
}

/// Compares script and core on logs and windows only, with many more steps back and returns than in `random_walk.rs`.
#[test]
fn logs_and_windows_on_a_clock_that_jumps_decide_as_the_core() {
    let (mut mock, mut random) = (MockClockScript::start(), Random(0xF11C));
    let sliding = RULES.iter().copied().filter(|text| text.starts_with("sliding"));
    for text in
        sliding.chain(["sliding_log 1/s", "sliding_log 3 per 10us", "sliding_window 6 per 20us cells 7"])
    {
        let rule: Rule = text.parse().expect("a rule");
        let encoded = rule.encode();
        let &[limit, period, ..] = encoded.numbers() else { panic!("{text} has no period") };
        for forgets in [true, false] {
            mock.clear();
            mock.forget(forgets);
            let (mut core, mut at) = (Reference::new(&[rule], forgets), NOON.plus(random.below(period)));
            let mut latest = at;
            for step in 0..400 {
                at = stepped(at, latest, period, &mut random);
                latest = latest.max(at);
                let operation = random.one_of(&[
                    "check", "check", "check", "check", "check", "take", "peek", "force", "refund",
                ]);
                let cost = random.one_of(&[1, 1, limit, limit / 2 + 1, limit + 1]);
                let cost = u32::try_from(cost).expect("a cost");
                let want = core.call(at, operation, &[cost]);
                let got = mock.call(at, operation, &[RuleArgs::rate("key", cost, &rule)], None);
                assert_eq!(got, want, "{text}: step {step}, {operation} {cost} at {at}");
                let expiry = mock.expiry("key");
                assert_eq!(
                    expiry,
                    core.states[0].expiry(),
                    "{text}: step {step}, {operation} {cost} at {at}"
                );
            }
        }
    }
}

/// Two of four tokens are leased for a second, and two are taken.
#[test]
fn a_clock_that_jumps_back_and_forth_creates_no_leased_tokens() {
    let (mut mock, rule) = (MockClockScript::start(), "10/s burst 4".parse().expect("a rule"));
    let lent = call_one(&mut mock, NOON, "lease", "2 2 1000000 0", &rule, Some(&[7; 16]));
    assert_eq!((lent.outcome, lent.remaining), (0, 2));
    assert_eq!(call_one(&mut mock, NOON, "check", "2", &rule, None).outcome, 0);
    for _ in 0..3 {
        for at in [NOON.minus(10 * SECOND), NOON] {
            assert_eq!(call_one(&mut mock, at, "check", "1", &rule, None).outcome, 2, "at {at}");
        }
    }
    assert_eq!(length(&mut mock), 21 + 27, "with the grant behind it");
    call_one(&mut mock, NOON.minus(10 * SECOND), "check", "1", &rule, None);
    assert_eq!(length(&mut mock), 35 + 27);
    let back = call_one(&mut mock, NOON, "return", "2", &rule, Some(&[7; 16]));
    assert_eq!((back.remaining, length(&mut mock)), (2, 12));
}
