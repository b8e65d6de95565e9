//! A random walk of a limit through states that really occur, for properties that hold in all of them.

use std::fmt::Debug;
use std::time::Duration;

use tidegate_core::{Algorithm, ClockKind, Decision, Micros, Rule, RuleId};

use crate::random::Random;

/// Rules of every kind, each with the longest time in microseconds that it can refuse a key without debt.
pub(crate) const RULES: [(&str, u64); 25] = [
    ("token_bucket 10/s burst 3", 300_000),
    ("token_bucket 3/s burst 1", 333_334),
    ("token_bucket 5/min burst 10", 120_000_000),
    ("token_bucket 999983/s burst 5", 6),
    ("token_bucket 100000000/s burst 50", 1),
    ("leaky_queue 10/s queue 2", 300_000),
    ("leaky_queue 3/s queue 5 delay 2", 2_000_000),
    ("leaky_queue 999983/s queue 20 nodelay", 22),
    ("leaky_queue 5/min queue 9 max_wait 36s", 48_000_000),
    ("leaky_queue 30/min queue 3 delay 1 nginx", 8_000_000),
    ("stepped_bucket 20/min burst 50", 180_000_000),
    ("stepped_bucket 7/s burst 3 offset 300ms", 1_000_000),
    ("stepped_bucket 2 per 10us burst 4000000", 20_000_000),
    ("fixed_window 5/min", 60_000_000),
    ("fixed_window 5/min offset 10s", 60_000_000),
    ("fixed_window 5/s from first hit", 1_000_000),
    ("fixed_window 2000/s from first hit", 1_000_000),
    ("sliding_log 5/min", 60_000_000),
    ("sliding_log 12/s", 1_000_000),
    ("sliding_window 5/s cells 5", 1_200_000),
    ("sliding_window 10/s cells 3", 1_333_334),
    ("sliding_window 4/s cells 1 interpolated", 2_000_000),
    ("sliding_window 9 per 300ms cells 7 interpolated", 342_858),
    ("sliding_window 5/s cells 10 plain", 1_000_000),
    ("sliding_window 9 per 100us cells 7", 115),
];

pub(crate) const POLICIES: [&[&str]; 5] = [
    &["10/s burst 3", "sliding_log 20/min"],
    &["leaky_queue 10/s queue 4", "leaky_queue 2/s queue 6 delay 3", "fixed_window 9/s"],
    &["leaky_queue 5/s queue 3 nginx", "leaky_queue 120/min queue 6 delay 2 nginx"],
    &["fixed_window 5/s", "sliding_window 12/min cells 6", "3/s burst 1"],
    &["stepped_bucket 5/s burst 9", "sliding_window 7/s cells 4 plain", "fixed_window 8/s from first hit"],
];

pub(crate) fn rule(text: &str) -> Rule {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// All rules for any clock, and the buckets and queues for a clock that never steps back.
pub(crate) fn rules() -> impl Iterator<Item = Rule> {
    let as_made = RULES.iter().map(|(text, _)| rule(text));
    as_made
        .chain(steady_rules().filter(|steady| matches!(steady, Rule::TokenBucket(_) | Rule::LeakyQueue(_))))
}

pub(crate) fn steady_rules() -> impl Iterator<Item = Rule> {
    RULES.iter().map(|(text, _)| rule(text).for_clock(ClockKind::Monotonic))
}

pub(crate) fn policies() -> impl Iterator<Item = Vec<Rule>> {
    POLICIES.iter().map(|texts| texts.iter().map(|text| rule(text)).collect())
}

/// One step of a walk: a state that is valid at `now`, and a random number generator.
pub(crate) struct Step<'a> {
    pub(crate) state: &'a [u64],
    pub(crate) now: Micros,
    pub(crate) random: &'a mut Random,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operations {
    /// Nothing is forced, so there is no debt.
    WithoutDebt,
    All,
}

/// Walks forward through states that really occur, and shows each one to `look`.
pub(crate) fn random_walk<A: Algorithm + ?Sized>(
    limit: &A,
    operations: Operations,
    mut look: impl FnMut(Step<'_>),
) {
    let mut random = Random::seeded(0x71DE);
    let mut state = vec![0; limit.words()];
    let mut now = Micros::new(1_760_000_000_000_000);
    for _ in 0..2_000 {
        look(Step { state: &state, now, random: &mut random });
        let _ = act(limit, operations, &mut state, now, &mut random);
        now = now.plus(pause(limit, &state, now, &mut random));
    }
}

pub(crate) fn act<A: Algorithm + ?Sized>(
    limit: &A,
    operations: Operations,
    state: &mut [u64],
    now: Micros,
    random: &mut Random,
) -> Decision {
    let most = limit.peek(state, now, 0).limit() + 1;
    let cost = if random.one_in(2) { 1 } else { random.between(0, most) };
    let cost = u32::try_from(cost).expect("a cost");
    match random.below(10) {
        0 if operations == Operations::All => limit.force(state, now, cost),
        1 => {
            limit.refund(state, now, cost);
            limit.peek(state, now, 1)
        }
        2 => limit.take(state, now, cost).decision,
        _ => limit.decide(state, now, cost),
    }
}

pub(crate) fn pause<A: Algorithm + ?Sized>(
    limit: &A,
    state: &[u64],
    now: Micros,
    random: &mut Random,
) -> u64 {
    let reset = micros(limit.peek(state, now, 0).reset_after());
    match random.below(8) {
        0..3 => 0,
        3 => 1,
        4 => random.below(reset + 1),
        5 => random.below(reset / 5 + 1),
        6 => reset.saturating_sub(1),
        _ => reset + random.below(3),
    }
}

/// Each rule's own decision, before any charge.
pub(crate) fn shown<A: Algorithm + ?Sized>(
    limit: &A,
    state: &[u64],
    now: Micros,
    cost: u32,
) -> Vec<Decision> {
    let mut shown = Vec::new();
    limit.explain(state, now, cost, RuleId(0), &mut |decision| shown.push(decision));
    shown
}

pub(crate) fn fresh<A: Algorithm + ?Sized>(limit: &A) -> Vec<u64> {
    vec![0; limit.words()]
}

pub(crate) fn micros(time: impl Into<Duration>) -> u64 {
    u64::try_from(time.into().as_micros()).expect("a time that fits")
}

pub(crate) fn draw_cost<A: Algorithm + ?Sized>(limit: &A, it: &mut Step<'_>) -> u32 {
    let most = limit.peek(it.state, it.now, 0).limit() + 1;
    u32::try_from(it.random.between(1, most)).expect("a cost")
}

/// In every stretch no more passed than `bound` says for its length.
pub(crate) fn assert_bound(about: &impl Debug, passed: &[(u64, u64)], bound: impl Fn(u64) -> u64) {
    for (first, &(from, _)) in passed.iter().enumerate() {
        let mut sum = 0;
        for &(until, amount) in &passed[first..] {
            sum += amount;
            assert!(sum <= bound(until - from), "{about:?}: {sum} in {} us", until - from);
        }
    }
}
