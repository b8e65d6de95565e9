//! Properties of a changed limit: another quota or rule frees nothing, and used quota stays used.

mod random;
#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod random_walk;

use std::time::Duration;

use random::Random;
use random_walk::{Operations, assert_bound, fresh, random_walk, rule, rules};
use tidegate_core::{
    Algorithm, Decision, FixedWindow, Micros, Quota, Rule, SlidingLog, SlidingWindow, SteppedBucket,
    TokenBucket,
};

/// Changes the limit a hundred times while a client takes everything available. Returns what passed, and
/// when.
fn passed_under_change<A: Algorithm>(seed: u64, draw: impl Fn(&mut Random) -> A) -> Vec<(u64, u64)> {
    let mut random = Random::seeded(seed);
    let mut limit = draw(&mut random);
    let (mut state, mut now, mut passed) = (fresh(&limit), 0, Vec::new());
    for _ in 0..100 {
        for _ in 0..5 {
            let amount = limit.take(&mut state[..], Micros::new(now), u32::MAX).amount;
            passed.push((now, u64::from(amount)));
            now += if random.one_in(2) { 0 } else { random.below(400_000) };
        }
        let next = draw(&mut random);
        let mut migrated = fresh(&next);
        next.migrate_from(&limit, &state[..], &mut migrated[..], Micros::new(now));
        (limit, state) = (next, migrated);
    }
    passed
}

fn draw_quota(random: &mut Random) -> Quota {
    Quota::per_second(random.between(1, 20)).burst(random.between(1, 30))
}

#[test]
fn a_changed_quota_never_admits_an_extra_burst() {
    for seed in 0..40 {
        let bucket = passed_under_change(seed, |random| TokenBucket::new(draw_quota(random)));
        assert_bound(&"token bucket", &bucket, |stretch| 30 + stretch * 20 / 1_000_000);
        let stepped = passed_under_change(seed, |random| SteppedBucket::new(draw_quota(random)));
        assert_bound(&"stepped bucket", &stepped, |stretch| 30 + 20 * (stretch / 1_000_000 + 1));
        let fixed = passed_under_change(seed, |random| FixedWindow::new(draw_quota(random)));
        assert_bound(&"fixed window", &fixed, |stretch| 20 * (stretch.div_ceil(1_000_000) + 1));
        let first = passed_under_change(seed, |random| FixedWindow::new(draw_quota(random)).from_first_hit());
        assert_bound(&"from first hit", &first, |stretch| 20 * (stretch.div_ceil(1_000_000) + 1));
        let any_period = |stretch| if stretch < 1_000_000 { 20 } else { u64::MAX };
        // A log needs the room to remember what a larger limit let pass.
        let log = passed_under_change(seed, |random| SlidingLog::new(draw_quota(random)).room(20));
        assert_bound(&"sliding log", &log, any_period);
        let cells = passed_under_change(seed, |random| {
            let quota = draw_quota(random);
            SlidingWindow::new(quota, u32::try_from(random.between(4, 5)).expect("a few cells"))
        });
        assert_bound(&"strict cells", &cells, any_period);
    }
}

#[test]
fn a_changed_rate_never_admits_an_extra_burst() {
    // From 1 an hour to 20 a second and back: the bound is the largest burst and the fastest rate.
    let draw = |random: &mut Random| {
        let period = Duration::from_secs(random.between(1, 3_600));
        TokenBucket::new(Quota::per(random.between(1, 20), period).burst(random.between(1, 30)))
    };
    for seed in 0..100 {
        let passed = passed_under_change(seed, draw);
        assert_bound(&"token bucket", &passed, |stretch| 30 + stretch * 20 / 1_000_000);
    }
}

/// What is used, as far as a decision shows it.
fn used(decision: &Decision) -> u64 {
    decision.limit() - decision.remaining()
}

/// Whether both rules store instants, as logs and windows from the first hit do.
///
/// In a shorter period these instants may have left.
fn keep_their_own_time(old: &Rule, new: &Rule) -> bool {
    let first_hit = |rule: &Rule| format!("{rule:?}").contains("FirstHit");
    let log = |rule: &Rule| matches!(rule, Rule::SlidingLog(_));
    log(old) && log(new) || first_hit(old) && first_hit(new)
}

#[test]
fn what_was_used_stays_used_whatever_the_rule_becomes() {
    let rules: Vec<Rule> = rules().collect();
    for old in &rules {
        for (index, new) in rules.iter().enumerate().filter(|(_, new)| !keep_their_own_time(old, new)) {
            let mut looks = 0;
            random_walk(old, Operations::WithoutDebt, |it| {
                looks += 1;
                // All pairs at all states would take too long.
                if looks % 20 != index % 20 {
                    return;
                }
                let mut state = fresh(new);
                new.migrate_from(old, it.state, &mut state[..], it.now);
                let (before, after) = (old.peek(it.state, it.now, 0), new.peek(&state[..], it.now, 0));
                let least = used(&before).min(after.limit());
                assert!(used(&after) >= least, "from {old:?}\n  to {new:?}\n  {before:?}\n  {after:?}");
            });
        }
    }
}

#[test]
fn the_same_rule_migrates_its_own_state_unchanged() {
    for rule in rules() {
        random_walk(&rule, Operations::All, |it| {
            let mut state = fresh(&rule);
            rule.migrate_from(&rule, it.state, &mut state[..], it.now);
            for cost in [0, 1, 3] {
                let (old, new) = (rule.peek(it.state, it.now, cost), rule.peek(&state[..], it.now, cost));
                assert_eq!(old, new, "{rule:?} at {}", it.now);
            }
        });
    }
}

#[test]
fn a_state_from_far_ahead_is_migrated_as_quickly_as_any_other() {
    // A loop over all the cells between then and now would not end.
    let (old, new) = (rule("sliding_window 9 per 100us cells 7"), rule("sliding_window 9 per 100us cells 5"));
    let (mut before, mut after) = (fresh(&old), fresh(&new));
    assert!(old.decide(&mut before[..], Micros::MAX.minus(1_000), 9).is_allowed());
    new.migrate_from(&old, &before[..], &mut after[..], Micros::ZERO);
    assert_eq!(new.peek(&after[..], Micros::ZERO, 0).remaining(), 0);
}

/// The oldest cell is charged in full when the number of cells changes, whether or not it still counts.
#[test]
fn a_window_with_other_cells_charges_all_counts_of_the_ring() {
    let new = rule("sliding_window 9/s cells 10");
    let at = |millis: u64| Micros::new(1_760_000_000_000_000 + millis * 1_000);
    for oldest in ["plain", "strict", "interpolated"] {
        let old = rule(&format!("sliding_window 9/s cells 5 {oldest}"));
        let mut before = fresh(&old);
        assert!(old.decide(&mut before[..], at(0), 5).is_allowed());
        let found = [900, 1_000, 1_200].map(|millis| {
            let mut state = fresh(&new);
            new.migrate_from(&old, &before[..], &mut state[..], at(millis));
            new.peek(&state[..], at(millis), 0).remaining()
        });
        assert_eq!(found, [4, 4, 9], "{old:?}");
    }
}

/// Used quota stays used, whether the limit changes while the clock is behind or after it has caught up.
#[test]
fn a_changed_log_or_window_remembers_the_instant_before_the_step_back() {
    let at = |seconds: u64| Micros::new(1_760_000_000_000_000 + seconds * 1_000_000);
    for (old, new) in [
        ("sliding_log 4/s", "sliding_log 4/s"),
        ("sliding_log 4/s", "sliding_log 3 per 2s"),
        ("sliding_window 4/s cells 10", "sliding_window 3/s cells 10 plain"),
        ("sliding_window 4/s cells 10", "sliding_window 4/s cells 5"),
        ("sliding_window 4/s cells 5", "sliding_window 4 per 2s cells 3 interpolated"),
        ("sliding_window 4/s cells 5 interpolated", "sliding_window 4/s cells 1 plain"),
    ] {
        let (old, new) = (rule(old), rule(new));
        for (repaired, changed) in [(90, 90), (90, 100), (100, 90)] {
            let (mut before, mut state) = (fresh(&old), fresh(&new));
            assert!(old.decide(&mut before[..], at(100), 4).is_allowed());
            assert!(!old.decide(&mut before[..], at(repaired), 1).is_allowed());
            new.migrate_from(&old, &before[..], &mut state[..], at(changed));
            for seconds in [changed, 100, 90, 100] {
                let decision = new.decide(&mut state[..], at(seconds), 1);
                assert!(!decision.is_allowed(), "{old:?} to {new:?}, {repaired} {changed}: {seconds}");
            }
        }
    }
    // While the clock is behind, all entries leave. They count again when it reaches the instant before the step.
    let (old, new) = (rule("sliding_log 4/s"), rule("sliding_log 5/s"));
    let (mut before, mut state) = (fresh(&old), fresh(&new));
    assert!(old.decide(&mut before[..], at(100), 4).is_allowed());
    old.repair(&mut before[..], at(90));
    new.migrate_from(&old, &before[..], &mut state[..], at(95));
    assert_eq!([95, 100].map(|seconds| new.peek(&state[..], at(seconds), 0).remaining()), [5, 1]);
}
