//! More keys than the table holds: decisions for keys that share cells, compared with exact decisions.
//!
//! The *twin* of a limiter has room for all keys, so each of its keys has an exact state. The twin is
//! charged exactly what the limiter allowed. Every request that the limiter allows must then pass at the
//! twin; and where no key shares a cell, the two must agree in every number.

#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::collections::HashMap;
use std::time::Duration;

use random::Random;
use tidegate::algorithm::{Algorithm, FixedWindow, PerCallBucket, SlidingLog, SteppedBucket, TokenBucket};
use tidegate::clock::{Clock, Micros, SettableClock};
use tidegate::{Decision, KeyedLimiter, ManualClock, OnFull, Outcome, Quota, Rule, Source};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Keys from here on only fill the table; the walks do not use them.
const RESIDENT_KEY: u64 = 1 << 32;

fn rule(text: &str) -> Rule {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Buckets of one, two and three words, and windows of one and two.
const RULES: [&str; 6] = [
    "token_bucket 10/s burst 8",
    "token_bucket 3/s burst 5",
    "token_bucket 999983/s burst 20",
    "token_bucket 100000000/s burst 50",
    "fixed_window 5/s",
    "fixed_window 600000000/s",
];

/// A limiter with a single entry, which is taken. Windows end, so a test that advances the clock has to [`occupy`] it
/// again.
fn full<A: Algorithm + Clone, C: Clock + Clone>(algorithm: &A, clock: &C) -> KeyedLimiter<u64, A, C> {
    let limiter =
        KeyedLimiter::<u64, _>::builder_with(algorithm.clone()).max_keys(1).clock(clock.clone()).build();
    occupy(&limiter);
    limiter
}

fn occupy<A: Algorithm, C: Clock>(limiter: &KeyedLimiter<u64, A, C>) {
    let _ = limiter.request(&RESIDENT_KEY).cost(u32::MAX).force();
}

/// A random walk, and the counts of its outcomes.
struct Walk<'a, A, C> {
    limiter: &'a KeyedLimiter<u64, A, C>,
    twin: &'a KeyedLimiter<u64, A, C>,
    random: Random,
    keys: u64,
    passed: u32,
    refused: u32,
    /// Denials of requests that the twin would allow.
    for_others: u32,
}

impl<'a, A: Algorithm + Clone, C: Clock> Walk<'a, A, C> {
    fn new(limiter: &'a KeyedLimiter<u64, A, C>, twin: &'a KeyedLimiter<u64, A, C>, keys: u64) -> Self {
        Walk { limiter, twin, random: Random::seeded(7), keys, passed: 0, refused: 0, for_others: 0 }
    }

    /// One operation by a random key, with a cost of up to one more than the limit.
    fn step(&mut self) {
        let key = self.random.below(self.keys);
        let limit = self.twin.request(&key).cost(0).peek().limit();
        let cost =
            if self.random.one_in(2) { self.random.between(1, 3) } else { self.random.between(0, limit + 1) };
        let cost = u32::try_from(cost).expect("a cost that fits");
        match self.random.below(8) {
            0 => self.take(key, cost),
            1 => self.force(key, cost.min(3)),
            _ => self.check(key, cost),
        }
    }

    fn check(&mut self, key: u64, cost: u32) {
        let alone = self.twin.request(&key).cost(cost).peek();
        assert_eq!(
            self.limiter.request(&key).cost(cost).peek().outcome,
            self.limiter.request(&key).cost(cost).peek().outcome
        );
        let decision = self.limiter.request(&key).cost(cost).check();
        self.compare(key, cost, &decision, &alone);
        if decision.is_allowed() {
            let _ = self.twin.request(&key).cost(cost).force();
        }
    }

    fn take(&mut self, key: u64, most: u32) {
        let taken = self.limiter.request(&key).cost(most).take();
        let alone = self.twin.request(&key).cost(taken.amount).peek();
        self.compare(key, taken.amount, &taken.decision, &alone);
        let _ = self.twin.request(&key).cost(taken.amount).force();
    }

    /// Cells count debt, too.
    fn force(&mut self, key: u64, cost: u32) {
        let alone = self.twin.request(&key).cost(cost).force();
        let decision = self.limiter.request(&key).cost(cost).force();
        assert!(decision.remaining() <= alone.remaining(), "{decision:?} {alone:?}");
    }

    fn compare(&mut self, key: u64, cost: u32, decision: &Decision, alone: &Decision) {
        let alike = decision.is_allowed() == alone.is_allowed();
        let as_strict =
            decision.outcome >= alone.outcome && (!alike || decision.reset_after() >= alone.reset_after());
        assert!(as_strict, "{cost} for {key}: {decision:?}, alone {alone:?}");
        let passes = decision.is_allowed();
        self.passed += u32::from(passes && cost > 0);
        self.refused += u32::from(!passes);
        self.for_others += u32::from(!passes && alone.is_allowed());
    }
}

/// Walks with `keys` keys that do not fit; returns the number of requests denied for the usage of other keys.
fn walk(text: &str, keys: u64) -> u32 {
    let clock = ManualClock::new();
    let limiter = full(&rule(text), &clock);
    let twin = KeyedLimiter::<u64, _>::builder_with(rule(text)).clock(clock.clone()).build();
    let limit = u32::try_from(twin.request(&0).peek().limit()).expect("a small limit");
    let refill = twin.request(&0).cost(limit).peek().reset_after().as_micros();
    let mut walk = Walk::new(&limiter, &twin, keys);
    for _ in 0..40_000 {
        occupy(&limiter);
        walk.step();
        // Between two operations of one key about a quarter of its limit refills.
        let pause = walk.random.below(refill.div_ceil(2) + 1);
        let rest = u64::from(walk.random.below(keys) < pause % keys);
        clock.advance(Duration::from_micros(pause / keys + rest));
    }
    assert!(
        walk.passed > 1_000 && walk.refused > 1_000,
        "the walk is too one-sided to mean something: {text}"
    );
    assert!(limiter.stats().sketch.decided > 10_000, "{:?}", limiter.stats());
    walk.for_others
}

#[test]
fn keys_that_share_cells_never_get_more_than_exact_ones() {
    for text in RULES {
        let for_others = walk(text, 3_000);
        assert!(
            for_others > 100,
            "{text}: cells are shared, and {for_others} requests were denied for other keys"
        );
    }
}

/// A fifth of the cells of each row are in use: nearly every key has at least one unshared cell, and one such
/// cell is enough.
#[test]
fn few_requests_are_denied_for_other_keys_while_cells_suffice() {
    for text in RULES {
        let for_others = walk(text, 200);
        assert!(for_others < 400, "{text}: {for_others} of 40,000 were denied for other keys");
    }
}

/// Five keys on thousands of cells: by chance all four cells of one key are shared once in ten thousand million
/// runs.
#[test]
fn keys_that_share_no_cell_are_never_denied_for_other_keys() {
    for text in RULES {
        assert_eq!(walk(text, 5), 0, "{text}");
    }
}

#[test]
fn every_number_is_exact_where_no_cell_is_shared() {
    for text in RULES {
        let clock = ManualClock::new();
        let limiter = full(&rule(text), &clock);
        let twin = KeyedLimiter::<u64, _>::builder_with(rule(text)).clock(clock.clone()).build();
        for round in 0..200 {
            occupy(&limiter);
            let (key, cost) = (round % 3, u32::try_from(round % 4).expect("a small cost"));
            let (mut decision, alone) =
                (limiter.request(&key).cost(cost).check(), twin.request(&key).cost(cost).check());
            let sketched = alone.reset_after().as_micros() > 0;
            assert_eq!(decision.source, if sketched { Source::Sketch } else { Source::Strict }, "{alone:?}");
            decision.source = Source::Strict;
            assert_eq!(decision, alone, "{text}, round {round}");
            clock.advance(Duration::from_micros(round * round * 37 % 90_000));
        }
    }
}

// === Moving between table and sketch ===

const THREE: Quota = Quota::per_hour(3);

/// A limiter with one entry, where key 0 has used one, and its clock.
fn one_entry() -> (KeyedLimiter<u64, TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64>::builder(THREE).max_keys(1).clock(clock.clone()).build();
    assert_eq!(limiter.check(&0).source, Source::Strict);
    (limiter, clock)
}

#[test]
fn key_that_moves_from_the_sketch_into_the_table_gets_no_fresh_burst() {
    let (limiter, _) = one_entry();
    assert_eq!(limiter.request(&1).cost(2).check().source, Source::Sketch);
    limiter.request(&0).reset();
    let moved = limiter.check(&1);
    assert_eq!((moved.source, moved.remaining()), (Source::Sketch, 0), "its estimate moved along");
    assert_eq!(limiter.stats().evicted, 1, "into the entry of key 0");
    let refused = limiter.check(&1);
    assert_eq!((refused.source, refused.is_allowed()), (Source::Strict, false), "by its own state");
    assert_eq!(refused.retry_after().map(Duration::from), Some(HOUR / 3));
}

#[test]
fn key_evicted_while_idle_gets_one_burst_in_the_sketch_and_no_more() {
    let (limiter, clock) = one_entry();
    clock.advance(HOUR / 3);
    assert_eq!(limiter.request(&1).cost(3).check().source, Source::Strict, "key 0 was idle and is evicted");
    let back = limiter.request(&0).cost(3).check();
    assert_eq!((back.is_allowed(), back.source), (true, Source::Sketch));
    assert!(!limiter.check(&0).is_allowed());
}

#[test]
fn key_that_moves_back_and_forth_gets_exactly_its_quota() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64>::builder(THREE).max_keys(1).clock(clock.clone()).build();
    let twin = KeyedLimiter::<u64>::builder(THREE).clock(clock.clone()).build();
    let mut random = Random::seeded(3);
    let mut sources = HashMap::new();
    for _ in 0..5_000 {
        let _ = limiter.check(&0);
        if random.one_in(3) {
            limiter.request(&0).reset();
        }
        let decision = limiter.check(&1);
        assert_eq!(decision.outcome, twin.check(&1).outcome);
        *sources.entry(decision.source.to_string()).or_insert(0) += 1;
        clock.advance(if random.one_in(10) { 2 * HOUR } else { Duration::from_secs(random.below(1_500)) });
    }
    assert!(sources["strict"] > 300 && sources["sketch"] > 300, "{sources:?}");
}

#[test]
fn peek_and_denial_of_a_shared_key_take_no_entry() {
    let (limiter, _) = one_entry();
    assert!(limiter.request(&1).cost(3).check().is_allowed());
    limiter.request(&0).reset();
    assert_eq!(limiter.request(&1).peek().source, Source::Sketch);
    assert_eq!(limiter.check(&1).source, Source::Sketch);
    assert_eq!(limiter.request(&1).cost(9).check().outcome, Outcome::Never);
    assert_eq!(limiter.stats().evicted, 0, "key 0 is idle, and its entry was not needed");
}

#[test]
fn refund_and_reset_give_nothing_back_to_a_shared_key() {
    let (limiter, _) = one_entry();
    assert!(limiter.request(&1).cost(3).check().is_allowed());
    limiter.request(&1).cost(3).refund();
    limiter.request(&1).reset();
    assert!(!limiter.check(&1).is_allowed());
    limiter.request(&0).reset();
    limiter.request(&1).cost(3).refund();
    limiter.request(&1).reset();
    assert!(!limiter.check(&1).is_allowed(), "not even when there is room again");
    assert_eq!(limiter.stats().evicted, 0);
}

#[test]
fn every_operation_reports_the_source_of_its_decision() {
    let (limiter, _) = one_entry();
    assert_eq!(limiter.request(&1).peek().source, Source::Strict, "key 1 has used nothing");
    assert_eq!(limiter.request(&1).cost(1).force().source, Source::Sketch);
    let taken = limiter.request(&1).cost(9).take();
    assert_eq!((taken.amount, taken.decision.source), (2, Source::Sketch));
    let each = limiter.request(&1).cost(1).check_each();
    assert_eq!((each.decision.source, each.rules[0].source), (Source::Sketch, Source::Sketch));
    assert_eq!(limiter.request(&1).cost(2).force().remaining(), 0);
    assert_eq!(
        limiter.check(&1).retry_after().map(Duration::from),
        Some(HOUR),
        "two tokens in debt, and one more"
    );
}

#[test]
fn stats_count_the_decisions_of_the_sketch() {
    let (limiter, clock) = one_entry();
    let before = limiter.stats();
    assert_eq!((before.sketch.cells, before.sketch.cells_in_use, before.sketch.decided), (0, 0, 0));
    assert!(limiter.request(&1).cost(3).check().is_allowed());
    assert!(!limiter.check(&1).is_allowed());
    let _ = limiter.request(&1).peek();
    limiter.request(&1).cost(1).refund();
    let stats = limiter.stats();
    assert_eq!((stats.sketch.decided, stats.sketch.refused, stats.refused), (2, 1, 0));
    assert_eq!((stats.sketch.cells, stats.sketch.cells_in_use), (4_096, 4));
    assert_eq!(stats.bytes - before.bytes, 4_096 * 8);
    assert_eq!((limiter.keys(), stats.keys), (1, 1), "a key in the sketch has no state of its own");
    clock.advance(HOUR);
    assert_eq!(limiter.stats().sketch.cells_in_use, 0, "cells empty over time");
}

#[test]
fn keys_are_denied_where_the_sketch_is_not_available() {
    let hour = Quota::per_hour(3);
    assert_refuses(TokenBucket::new(hour), OnFull::Refuse);
    assert_refuses(FixedWindow::new(hour), OnFull::Refuse);
    assert_refuses(FixedWindow::new(hour).from_first_hit(), OnFull::Sketch);
    assert_refuses(SlidingLog::new(hour), OnFull::Sketch);
    assert_refuses(SteppedBucket::new(hour), OnFull::Sketch);
    assert_refuses(PerCallBucket::new(hour), OnFull::Sketch);
    assert_refuses((TokenBucket::new(hour), FixedWindow::new(hour)), OnFull::Sketch);
    assert_refuses(rule("sliding_window 3/h cells 3"), OnFull::Sketch);
}

#[track_caller]
fn assert_refuses<A: Algorithm + Clone>(algorithm: A, on_full: OnFull) {
    let builder = KeyedLimiter::<u64, A>::builder_with(algorithm).on_full(on_full).max_keys(1);
    let limiter = builder.clock(ManualClock::new()).build();
    assert!(limiter.check(&0).is_allowed());
    let refused = limiter.check(&1);
    assert_eq!((refused.is_allowed(), refused.source), (false, Source::Closed));
    assert_eq!((limiter.stats().refused, limiter.stats().sketch.cells), (1, 0));
}

// === Change ===

#[test]
fn usage_in_the_sketch_survives_a_quota_change() {
    let (limiter, _) = one_entry();
    assert!(limiter.request(&1).cost(2).check().is_allowed());
    // The states of 999,983 per second take two words instead of one: another table.
    for (quota, left) in [(Quota::per_hour(7), 5), (Quota::per_second(999_983), 999_981), (THREE, 1)] {
        limiter.change(TokenBucket::new(quota));
        let _ = limiter.request(&0).cost(u32::MAX).force();
        let found = limiter.request(&1).cost(0).peek();
        assert_eq!((found.remaining(), found.source), (left, Source::Sketch), "{quota}");
    }
    assert!(!limiter.request(&1).cost(2).check().is_allowed());
    assert!(limiter.check(&1).is_allowed());
}

#[test]
fn sketched_key_is_denied_after_a_change_to_a_rule_without_a_sketch() {
    let clock = ManualClock::new();
    let hourly =
        |text: &str| rule(&format!("{text} 3/h{}", if text == "sliding_window" { " cells 3" } else { "" }));
    for next in ["fixed_window", "stepped_bucket", "sliding_log", "sliding_window"] {
        let next =
            if next == "fixed_window" { rule("fixed_window 3/h from first hit") } else { hourly(next) };
        let limiter = KeyedLimiter::<u64, Rule>::builder_with(hourly("fixed_window"))
            .max_keys(2)
            .clock(clock.clone())
            .build();
        assert!([0, 1, 2].iter().all(|key| limiter.check(key).is_allowed()));
        limiter.request(&0).reset();
        limiter.change(next);
        let refused = limiter.check(&2);
        assert_eq!((refused.is_allowed(), refused.source), (false, Source::Closed), "{next:?}");
        assert!(limiter.check(&3).is_allowed(), "a key that was not in the sketch finds room: {next:?}");
        let wait = refused.retry_after().expect("a wait").duration();
        limiter.change(hourly("fixed_window"));
        assert!(!limiter.request(&2).cost(3).check().is_allowed(), "changing back adds no quota: {next:?}");
        clock.advance(wait.max(HOUR));
        assert!(limiter.request(&2).cost(3).check().is_allowed(), "{next:?}");
    }
}

/// Keys without an entry, while the quota changes: no more may pass than the most generous quota allows.
#[test]
fn repeated_quota_changes_never_exceed_the_most_generous_quota() {
    for others in [4, 3_000] {
        let clock = ManualClock::new();
        let settings =
            [Quota::per_second(4), Quota::per_minute(30), Quota::per(1_999, Duration::from_secs(4_000))];
        let limiter = full(&TokenBucket::new(settings[0].burst(4)), &clock);
        let (mut generous, mut sketched) = (HashMap::new(), 0);
        let mut random = Random::seeded(11);
        for step in 0..20_000 {
            let key = random.below(others);
            // A burst of at most 4, and 4 per second, for every quota in use.
            let (tokens, at) = generous.entry(key).or_insert((4_000_000_u64, 0));
            *tokens = (*tokens + 4 * (step_time(&clock) - *at)).min(4_000_000);
            *at = step_time(&clock);
            let decision = limiter.check(&key);
            sketched += u32::from(decision.source == Source::Sketch);
            if decision.is_allowed() {
                *tokens =
                    tokens.checked_sub(1_000_000).expect("no more passes than by the most generous quota");
            }
            if step % 50 == 0 {
                limiter.change(TokenBucket::new(settings[step / 50 % 3].burst(random.between(1, 4))));
            }
            clock.advance(Duration::from_micros(random.below(2_000_000 / others)));
        }
        assert!(sketched > 1_000, "the run is too one-sided to mean something: {sketched}");
    }
}

fn step_time(clock: &impl Clock) -> u64 {
    clock.now().get()
}

// === A clock that steps back ===

#[test]
fn clock_set_back_neither_adds_quota_nor_locks_out_sketched_keys() {
    for text in ["token_bucket 10/s burst 10", "fixed_window 10/s"] {
        let clock = SettableClock::new();
        clock.set(Micros::from(HOUR));
        let limiter = full(&rule(text), &clock);
        assert!(limiter.request(&1).cost(10).check().is_allowed());
        clock.set(Micros::ZERO);
        assert!(!limiter.check(&1).is_allowed(), "{text}: no quota is added");
        clock.set(Micros::from(SECOND));
        assert!(limiter.request(&1).cost(10).check().is_allowed(), "{text}: the wait is at most one refill");
        assert!(!limiter.check(&1).is_allowed());
    }
}

/// The clock steps back, but real time does not: no more may pass than a burst and the rate over real time.
#[test]
fn clock_that_keeps_stepping_back_allows_no_more_than_real_time() {
    for others in [4, 3_000] {
        let clock = SettableClock::new();
        let limiter = full(&rule("token_bucket 4/s burst 4"), &clock);
        let (mut random, mut tokens) = (Random::seeded(5), HashMap::new());
        let (mut shown, mut elapsed, mut passed) = (Micros::from(HOUR).get(), 0, 0);
        for _ in 0..30_000 {
            clock.set(Micros::new(shown));
            let key = random.below(others);
            let (left, at) = tokens.entry(key).or_insert((4_000_000_u64, 0));
            *left = (*left + 4 * (elapsed - *at)).min(4_000_000);
            *at = elapsed;
            if limiter.check(&key).is_allowed() {
                passed += 1;
                *left = left.checked_sub(1_000_000).expect("no more passes than real time allows");
            }
            let pause = random.below(2_000_000 / others);
            (shown, elapsed) = (shown + pause, elapsed + pause);
            if random.one_in(20) {
                shown = shown.saturating_sub(random.below(3_000_000));
            }
        }
        assert!(passed > 1_000, "the run is too one-sided to mean something: {passed}");
    }
}
