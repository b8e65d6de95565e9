//! What is true of every limit, whichever algorithm it is by: laws, checked along random walks.
//!
//! The oracle proves the numbers of each algorithm. A law needs no numbers: a refusal changes nothing, a promise is
//! kept to the microsecond, time that runs backwards gives nothing away.

mod random;

use std::any::TypeId;
use std::fmt::Debug;
use std::time::Duration;

use random::Random;
use tidegate_core::{
    Algorithm, Cells, Decision, FixedWindow, Gcra, LeakyMeter, Micros, Outcome, Quota, Rule, RuleId,
    SlidingLog, SlidingWindow, Steadiness, SteppedBucket, TokenBucket, Wait,
};

/// Rules of every kind, each with the longest time in microseconds that it can refuse a key that has no debt.
const RULES: [(&str, u64); 25] = [
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

const POLICIES: [&[&str]; 5] = [
    &["10/s burst 3", "sliding_log 20/min"],
    &["leaky_queue 10/s queue 4", "leaky_queue 2/s queue 6 delay 3", "fixed_window 9/s"],
    &["leaky_queue 5/s queue 3 nginx", "leaky_queue 120/min queue 6 delay 2 nginx"],
    &["fixed_window 5/s", "sliding_window 12/min cells 6", "3/s burst 1"],
    &["stepped_bucket 5/s burst 9", "sliding_window 7/s cells 4 plain", "fixed_window 8/s from first hit"],
];

fn rule(text: &str) -> Rule {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// All of them as they are made, for any clock, and as they are for a clock that never steps back.
fn rules() -> impl Iterator<Item = Rule> {
    let as_made = RULES.iter().map(|(text, _)| rule(text));
    as_made
        .chain(steady_rules().filter(|steady| matches!(steady, Rule::TokenBucket(_) | Rule::LeakyQueue(_))))
}

fn steady_rules() -> impl Iterator<Item = Rule> {
    RULES.iter().map(|(text, _)| rule(text).suited_to(Steadiness::Steady))
}

fn policies() -> impl Iterator<Item = Vec<Rule>> {
    POLICIES.iter().map(|texts| texts.iter().map(|text| rule(text)).collect())
}

/// Where a walk stands: a state that is honest at `now`, and chance to ask it something.
struct Standing<'a> {
    state: &'a [u64],
    now: Micros,
    random: &'a mut Random,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verbs {
    /// What was not there was not taken.
    WithoutDebt,
    All,
}

/// Walks forward through states that really occur, and shows each one to `look`.
fn wander<A: Algorithm + ?Sized>(limit: &A, verbs: Verbs, mut look: impl FnMut(Standing<'_>)) {
    let mut random = Random::seeded(0x71DE);
    let mut state = vec![0; limit.words()];
    let mut now = Micros::new(1_760_000_000_000_000);
    for _ in 0..2_000 {
        look(Standing { state: &state, now, random: &mut random });
        let _ = act(limit, verbs, &mut state, now, &mut random);
        now = now.plus(pause(limit, &state, now, &mut random));
    }
}

fn act<A: Algorithm + ?Sized>(
    limit: &A,
    verbs: Verbs,
    state: &mut [u64],
    now: Micros,
    random: &mut Random,
) -> Decision {
    let most = limit.peek(state, now, 0).limit() + 1;
    let cost = if random.one_in(2) { 1 } else { random.between(0, most) };
    let cost = u32::try_from(cost).expect("a cost");
    match random.below(10) {
        0 if verbs == Verbs::All => limit.force(state, now, cost),
        1 => {
            limit.refund(state, now, cost);
            limit.peek(state, now, 1)
        }
        2 => limit.take(state, now, cost).decision,
        _ => limit.decide(state, now, cost),
    }
}

fn pause<A: Algorithm + ?Sized>(limit: &A, state: &[u64], now: Micros, random: &mut Random) -> u64 {
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

/// Each rule's own answer, as found.
fn shown<A: Algorithm + ?Sized>(limit: &A, state: &[u64], now: Micros, cost: u32) -> Vec<Decision> {
    let mut shown = Vec::new();
    limit.explain(state, now, cost, RuleId(0), &mut |decision| shown.push(decision));
    shown
}

fn fresh<A: Algorithm + ?Sized>(limit: &A) -> Vec<u64> {
    vec![0; limit.words()]
}

fn micros(time: impl Into<Duration>) -> u64 {
    u64::try_from(time.into().as_micros()).expect("a time that fits")
}

fn draw_cost<A: Algorithm + ?Sized>(limit: &A, it: &mut Standing<'_>) -> u32 {
    let most = limit.peek(it.state, it.now, 0).limit() + 1;
    u32::try_from(it.random.between(1, most)).expect("a cost")
}

// === Denial changes nothing ===

fn refusals_change_nothing<A: Algorithm + ?Sized + Debug>(limit: &A) {
    let mut refusals = 0;
    wander(limit, Verbs::All, |mut it| {
        let cost = draw_cost(limit, &mut it);
        let mut after = it.state.to_vec();
        if !limit.decide(&mut after[..], it.now, cost).is_allowed() {
            refusals += 1;
            assert_eq!(after, it.state, "{limit:?} refused {cost} at {}", it.now);
        }
    });
    assert!(refusals > 100, "{limit:?} refused only {refusals} times");
}

#[test]
fn denial_changes_nothing() {
    rules().for_each(|rule| refusals_change_nothing(&rule));
    policies().for_each(|policy| refusals_change_nothing(policy.as_slice()));
}

fn nothing_is_nothing<A: Algorithm + ?Sized + Debug>(limit: &A) {
    wander(limit, Verbs::All, |it| {
        // Whatever the clock says, forward or back.
        let now = it.now.plus(it.random.below(5_000_000)).minus(it.random.below(10_000_000));
        let mut after = it.state.to_vec();
        let asked = limit.peek(it.state, now, 0);
        assert_eq!(asked.outcome, Outcome::Allowed);
        assert_eq!(limit.decide(&mut after[..], now, 0), asked, "{limit:?}");
        assert_eq!(limit.force(&mut after[..], now, 0), asked, "{limit:?}");
        limit.refund(&mut after[..], now, 0);
        assert_eq!(limit.take(&mut after[..], now, 0).decision, asked, "{limit:?}");
        assert_eq!(after, it.state, "{limit:?} at {now}");
    });
}

#[test]
fn a_cost_of_nothing_always_passes_and_changes_nothing() {
    rules().for_each(|rule| nothing_is_nothing(&rule));
    policies().for_each(|policy| nothing_is_nothing(policy.as_slice()));
}

// === Larger is stricter ===

/// Shows pairs of states, the smaller first, that both were met on the way to an instant, and both settled at it.
///
/// A bucket for a steady clock is shown at no earlier instant than the walk has come to; all others at earlier ones
/// too.
fn ordered_pairs(limit: &Rule, mut look: impl FnMut(&[u64], &[u64], Micros, &mut Random)) {
    let may_step_back =
        !steady_rules().any(|steady| steady == *limit && matches!(limit, Rule::TokenBucket(_)));
    let mut met: Vec<Vec<u64>> = vec![fresh(limit)];
    wander(limit, Verbs::All, |it| {
        let back = if may_step_back && it.random.one_in(3) { it.random.below(2_000_000) } else { 0 };
        let now = it.now.minus(back).plus(it.random.below(3) * it.random.below(500_000));
        // One of the last few, or the first of all.
        let before = (0..8).filter(|_| it.random.one_in(2)).count();
        let mut pair = [it.state.to_vec(), met[met.len().saturating_sub(1 + before)].clone()];
        pair.iter_mut().for_each(|state| limit.settle(&mut state[..], now));
        pair.sort_unstable();
        look(&pair[0], &pair[1], now, it.random);
        met.push(it.state.to_vec());
    });
}

fn ordered_rules() -> impl Iterator<Item = Rule> {
    rules().filter(Algorithm::is_ordered)
}

#[test]
fn buckets_and_windows_by_the_clock_are_ordered_and_nothing_else_is() {
    let ordered = |text: &&str| rule(text).is_ordered();
    let (yes, no): (Vec<&str>, Vec<&str>) = RULES.iter().map(|(text, _)| *text).partition(ordered);
    assert!(yes.iter().all(|text| text.starts_with("token") || text.starts_with("fixed")), "{yes:?}");
    assert_eq!((yes.len(), no.len()), (7, 18));
    assert!(policies().all(|policy| !policy.as_slice().is_ordered()));
}

#[test]
fn of_ordered_states_the_larger_is_never_more_generous() {
    for limit in ordered_rules() {
        let mut stricter = 0;
        ordered_pairs(&limit, |less, more, now, random| {
            let cost = u32::try_from(random.below(6)).expect("a small cost");
            let [first, second] = [less, more].map(|state| limit.peek(state, now, cost));
            assert!(first.outcome <= second.outcome, "{limit:?} {less:?} {more:?}: {first:?} {second:?}");
            let [left, left_of_more] = [less, more].map(|state| limit.peek(state, now, 0));
            assert!(left.remaining() >= left_of_more.remaining(), "{limit:?} {less:?} {more:?}");
            assert!(left.reset_after() <= left_of_more.reset_after(), "{limit:?} {less:?} {more:?}");
            stricter += u32::from(first.outcome < second.outcome);
            let [mut less, mut more] = [less.to_vec(), more.to_vec()];
            if second.is_allowed() {
                let _ = [&mut less, &mut more].map(|state| limit.force(&mut state[..], now, cost));
                assert!(cost == 0 || less <= more, "{limit:?}: {less:?} {more:?} after {cost} at {now}");
            }
        });
        assert!(stricter > 20, "{limit:?} was stricter {stricter} times only");
    }
}

#[test]
fn of_ordered_states_the_larger_is_still_so_when_another_setting_takes_them_over() {
    let settings = || ordered_rules().filter(|rule| rule.words() < 3);
    for (old, new) in settings().flat_map(|old| settings().map(move |new| (old, new))) {
        ordered_pairs(&old, |less, more, now, _| {
            let [less, more] = [less, more].map(|state| {
                let mut adopted = fresh(&new);
                new.adopt(&old, state, &mut adopted[..], now);
                adopted
            });
            assert!(less <= more, "{old:?} became {new:?}: {less:?} {more:?} at {now}");
        });
    }
}

// === Fresh is idle, and idle is fresh ===

/// What a limit answers to the same questions from `start` on.
fn future<A: Algorithm + ?Sized>(limit: &A, state: &[u64], start: Micros, seed: u64) -> Vec<Decision> {
    let (mut state, mut random, mut now) = (state.to_vec(), Random::seeded(seed), start);
    (0..12)
        .map(|_| {
            let decision = act(limit, Verbs::All, &mut state, now, &mut random);
            now = now.plus(pause(limit, &state, now, &mut random));
            decision
        })
        .collect()
}

fn idle_is_fresh<A: Algorithm + ?Sized + Debug>(limit: &A) {
    let mut waited = 0;
    wander(limit, Verbs::All, |it| {
        let idle = limit.idle_at(it.state);
        let (then, seed) = (idle.max(it.now), it.random.next());
        let fresh = fresh(limit);
        assert_eq!(
            future(limit, it.state, then, seed),
            future(limit, &fresh, then, seed),
            "{limit:?} is idle at {idle}"
        );
        if idle > it.now {
            waited += 1;
            let before = idle.minus(1);
            let (old, new) = (shown(limit, it.state, before, 0), shown(limit, &fresh, before, 0));
            assert_ne!(old, new, "{limit:?} was idle before {idle}");
        }
    });
    assert!(waited > 100, "{limit:?} was in use only {waited} times");
}

#[test]
fn a_state_is_fresh_from_the_instant_it_is_idle_and_not_before() {
    rules().for_each(|rule| idle_is_fresh(&rule));
    policies().for_each(|policy| idle_is_fresh(policy.as_slice()));
}

// === A promise is exact ===

fn promises_are_exact<A: Algorithm + ?Sized + Debug>(limit: &A) {
    let mut promises = 0;
    wander(limit, Verbs::All, |mut it| {
        let cost = draw_cost(limit, &mut it);
        let Some(wait) = limit.peek(it.state, it.now, cost).retry_after() else { return };
        promises += 1;
        let then = it.now.plus(micros(wait));
        let about = format!("{limit:?} promised {cost} at {then}");
        assert!(limit.peek(it.state, then, cost).is_allowed(), "{about}");
        assert!(!limit.peek(it.state, then.minus(1), cost).is_allowed(), "{about}, and kept it too early");
    });
    assert!(promises > 100, "{limit:?} promised only {promises} times");
}

#[test]
fn a_promise_is_exact() {
    rules().for_each(|rule| promises_are_exact(&rule));
    policies().for_each(|policy| promises_are_exact(policy.as_slice()));
}

fn resets_are_exact(limit: &Rule) {
    wander(limit, Verbs::All, |it| {
        let found = limit.peek(it.state, it.now, 0);
        let whole = it.now.plus(micros(found.reset_after()));
        assert_eq!(limit.peek(it.state, whole, 0).remaining(), found.limit(), "{limit:?} at {whole}");
        if whole > it.now {
            let before = limit.peek(it.state, whole.minus(1), 0);
            assert!(before.remaining() < found.limit(), "{limit:?} was whole before {whole}");
        }
    });
}

#[test]
fn the_whole_limit_is_there_at_the_reset_and_not_before() {
    rules().for_each(|rule| resets_are_exact(&rule));
}

// === n × 1 is 1 × n ===

fn many_are_one<A: Algorithm + ?Sized + Debug>(limit: &A) {
    let mut compared = 0;
    wander(limit, Verbs::All, |it| {
        let cost = u32::try_from(it.random.between(2, 6)).expect("a cost");
        let (mut at_once, mut one_by_one) = (it.state.to_vec(), it.state.to_vec());
        if limit.decide(&mut at_once[..], it.now, cost).is_allowed() {
            compared += 1;
            let all = (0..cost).all(|_| limit.decide(&mut one_by_one[..], it.now, 1).is_allowed());
            assert!(all, "{limit:?} at {}", it.now);
            assert_eq!(at_once, one_by_one, "{limit:?} passed {cost} at {}", it.now);
        } else {
            let _ = limit.force(&mut at_once[..], it.now, cost);
            for _ in 0..cost {
                let _ = limit.force(&mut one_by_one[..], it.now, 1);
            }
            // What has no room in a log may turn its ring further, and makes no other difference.
            let seed = it.random.next();
            let (one, other) =
                (future(limit, &at_once, it.now, seed), future(limit, &one_by_one, it.now, seed));
            assert_eq!(one, other, "{limit:?} was forced to {cost} at {}", it.now);
        }
    });
    let at_most_one_passes = limit.peek(&fresh(limit)[..], Micros::ZERO, 2).outcome == Outcome::Never;
    assert!(compared > 20 || at_most_one_passes, "{limit:?} passed only {compared} times");
}

#[test]
fn many_small_charges_are_one_large_one() {
    rules().for_each(|rule| many_are_one(&rule));
    policies().for_each(|policy| many_are_one(policy.as_slice()));
}

// === A clock that steps back ===

#[test]
fn a_step_back_mints_nothing() {
    for rule in rules() {
        wander(&rule, Verbs::All, |it| {
            let back = it.now.minus(it.random.below(100_000_000));
            let (before, after) = (rule.peek(it.state, it.now, 0), rule.peek(it.state, back, 0));
            assert!(after.remaining() <= before.remaining(), "{rule:?} from {} to {back}", it.now);
        });
    }
}

#[test]
fn a_step_back_locks_nobody_out_for_longer_than_an_empty_limit_takes_to_fill() {
    for (text, longest) in RULES {
        let rule = rule(text);
        wander(&rule, Verbs::WithoutDebt, |mut it| {
            let cost = draw_cost(&rule, &mut it);
            let back = Micros::new(it.random.below(it.now.get()));
            let mut state = it.state.to_vec();
            let decision = rule.decide(&mut state[..], back, cost);
            assert!(micros(decision.reset_after()) <= longest, "{text} at {back}: {decision:?}");
            let wait = decision.retry_after().unwrap_or_default();
            assert!(micros(wait) <= longest, "{text} at {back}: {decision:?}");
            // And what was said stays true of the state that was left behind.
            if !decision.is_allowed() {
                assert_eq!(rule.peek(&state[..], back, cost), decision, "{text} at {back}");
            }
        });
    }
}

#[test]
fn the_longest_lock_out_is_as_long_as_the_table_says() {
    for (text, longest) in RULES {
        let rule = rule(text);
        let mut state = fresh(&rule);
        let all = u32::try_from(rule.peek(&state[..], Micros::ZERO, 0).limit()).unwrap();
        // All of it at the very beginning of a window, a step and a cell. A step at 300 ms leaves 300 ms.
        let decision = rule.decide(&mut state[..], Micros::ZERO, all);
        let offset = if text.contains("offset 300ms") { 700_000 } else { 0 };
        let offset = if text.contains("offset 10s") { 50_000_000 } else { offset };
        assert_eq!(micros(decision.reset_after()) + offset, longest, "{text}");
    }
}

/// What passes when the clock keeps stepping back, by the time that really went by.
fn passed_on_a_bad_clock<A: Algorithm>(limit: &A, period: u64, seed: u64) -> Vec<(u64, u64)> {
    let (mut random, mut state) = (Random::seeded(seed), fresh(limit));
    let (mut clock, mut real, mut passed) = (1_000_000_000_000, 0, Vec::new());
    for _ in 0..1_200 {
        let wish = if random.one_in(2) { 1 } else { u32::MAX };
        let amount = limit.take(&mut state[..], Micros::new(clock), wish).amount;
        passed.push((real, u64::from(amount)));
        let forward = if random.one_in(3) { 0 } else { random.below(period / 2) };
        clock += forward;
        real += forward;
        if random.one_in(5) {
            clock -= random.below(period * 3);
        }
    }
    passed
}

fn assert_bound(about: &impl Debug, passed: &[(u64, u64)], bound: impl Fn(u64) -> u64) {
    for (first, &(from, _)) in passed.iter().enumerate() {
        let mut sum = 0;
        for &(until, amount) in &passed[first..] {
            sum += amount;
            assert!(sum <= bound(until - from), "{about:?}: {sum} in {} us", until - from);
        }
    }
}

#[test]
fn a_clock_that_keeps_stepping_back_still_admits_no_more_than_real_time_allows() {
    let quota = Quota::per_second(7).burst(4);
    let bucket_bound = |stretch: u64| 4 + stretch * 7 / 1_000_000;
    let window_bound = |stretch: u64| if stretch < 1_000_000 { 7 } else { u64::MAX };
    for seed in 0..20 {
        let bucket = TokenBucket::new(quota);
        assert_bound(&bucket, &passed_on_a_bad_clock(&bucket, 1_000_000, seed), bucket_bound);
        let log = SlidingLog::new(quota);
        assert_bound(&log, &passed_on_a_bad_clock(&log, 1_000_000, seed), window_bound);
        for cells in [1, 5, 7] {
            let window = SlidingWindow::new(quota, cells);
            assert_bound(&window, &passed_on_a_bad_clock(&window, 1_000_000, seed), window_bound);
        }
    }
}

#[test]
fn what_a_state_has_seen_is_past_and_who_decides_no_earlier_pulls_nothing_back() {
    for rule in steady_rules() {
        wander(&rule, Verbs::All, |it| {
            let seen = rule.seen(it.state);
            assert!(seen <= it.now, "{rule:?} has seen {seen}, after {}", it.now);
            let late_reader = seen.max(it.now.minus(it.random.below(3_000_000)));
            let mut settled = it.state.to_vec();
            rule.settle(&mut settled[..], late_reader);
            assert_eq!(settled, it.state, "{rule:?} is pulled back at {late_reader}, having seen {seen}");
        });
    }
}

// === The short cut ===

fn short_cut_is_the_long_way(limit: &Rule, it: &mut Standing<'_>) -> bool {
    let cost = if it.random.one_in(3) { 1 } else { draw_cost(limit, it) };
    let now = it.now.plus(it.random.below(3)).minus(it.random.below(4) * it.random.below(500_000));
    let Some((next, decision)) = limit.decide_word(it.state[0], now, cost) else { return false };
    let about = format!("{limit:?} at {now}, a cost of {cost}, {:?}", it.state);
    assert!(limit.seen(it.state) <= now, "{about}");
    let mut state = it.state.to_vec();
    assert_eq!(decision, limit.decide(&mut state[..], now, cost), "{about}");
    assert_eq!([next], state[..], "{about}");
    if decision.outcome == Outcome::Allowed {
        assert_eq!(limit.peek(&state[..], now, 0), decision, "what a charged word has to say: {about}");
    }
    true
}

#[test]
fn the_short_cut_for_one_word_has_the_same_answers() {
    let mut taken = 0;
    for rule in steady_rules().filter(|rule| rule.words() == 1) {
        wander(&rule, Verbs::All, |mut it| {
            for _ in 0..5 {
                taken += u32::from(short_cut_is_the_long_way(&rule, &mut it));
            }
        });
    }
    assert!(taken > 10_000, "the short cut was open only {taken} times");
}

// === A changed quota hands nothing out ===

/// Changes the limit a hundred times while somebody takes all there is. Returns what passed, and when.
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
        let mut adopted = fresh(&next);
        next.adopt(&limit, &state[..], &mut adopted[..], Micros::new(now));
        (limit, state) = (next, adopted);
    }
    passed
}

fn draw_quota(random: &mut Random) -> Quota {
    Quota::per_second(random.between(1, 20)).burst(random.between(1, 30))
}

#[test]
fn a_changed_quota_never_hands_out_a_burst() {
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
        // A log must have the room to remember what a larger limit let pass.
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
fn a_changed_pace_never_hands_out_a_burst() {
    // From 1 an hour to 20 a second and back: what counts is the largest burst and the fastest pace.
    let draw = |random: &mut Random| {
        let period = Duration::from_secs(random.between(1, 3_600));
        TokenBucket::new(Quota::per(random.between(1, 20), period).burst(random.between(1, 30)))
    };
    for seed in 0..100 {
        let passed = passed_under_change(seed, draw);
        assert_bound(&"token bucket", &passed, |stretch| 30 + stretch * 20 / 1_000_000);
    }
}

/// What is used, as far as it can be told from outside.
fn used(decision: &Decision) -> u64 {
    decision.limit() - decision.remaining()
}

/// Two logs, and two windows from the first hit, remember when it was; in a shorter period that may be long ago.
fn keep_their_own_time(old: &Rule, new: &Rule) -> bool {
    let first_hit = |rule: &Rule| format!("{rule:?}").contains("FirstHit");
    let log = |rule: &Rule| matches!(rule, Rule::SlidingLog(_));
    log(old) && log(new) || first_hit(old) && first_hit(new)
}

#[test]
fn what_was_used_stays_used_whatever_the_rule_becomes() {
    let rules: Vec<Rule> = rules().collect();
    for old in &rules {
        for (place, new) in rules.iter().enumerate().filter(|(_, new)| !keep_their_own_time(old, new)) {
            let mut looks = 0;
            wander(old, Verbs::WithoutDebt, |it| {
                looks += 1;
                // All pairs at all states would take too long.
                if looks % 20 != place % 20 {
                    return;
                }
                let mut state = fresh(new);
                new.adopt(old, it.state, &mut state[..], it.now);
                let (before, after) = (old.peek(it.state, it.now, 0), new.peek(&state[..], it.now, 0));
                let least = used(&before).min(after.limit());
                assert!(used(&after) >= least, "from {old:?}\n  to {new:?}\n  {before:?}\n  {after:?}");
            });
        }
    }
}

#[test]
fn the_same_rule_adopts_its_own_state_unchanged() {
    for rule in rules() {
        wander(&rule, Verbs::All, |it| {
            let mut state = fresh(&rule);
            rule.adopt(&rule, it.state, &mut state[..], it.now);
            for cost in [0, 1, 3] {
                let (old, new) = (rule.peek(it.state, it.now, cost), rule.peek(&state[..], it.now, cost));
                assert_eq!(old, new, "{rule:?} at {}", it.now);
            }
        });
    }
}

#[test]
fn a_state_from_far_ahead_is_adopted_as_quickly_as_any_other() {
    // A loop over all the cells between then and now would not end.
    let (old, new) = (rule("sliding_window 9 per 100us cells 7"), rule("sliding_window 9 per 100us cells 5"));
    let (mut before, mut after) = (fresh(&old), fresh(&new));
    assert!(old.decide(&mut before[..], Micros::MAX.minus(1_000), 9).is_allowed());
    new.adopt(&old, &before[..], &mut after[..], Micros::ZERO);
    assert_eq!(new.peek(&after[..], Micros::ZERO, 0).remaining(), 0);
}

// === Decisions combine ===

#[test]
fn the_stricter_of_decisions_does_not_depend_on_their_order() {
    let mut decisions = Vec::new();
    for rule in rules() {
        let mut looks = 0;
        wander(&rule, Verbs::All, |mut it| {
            looks += 1;
            if looks % 600 == 0 {
                let cost = draw_cost(&rule, &mut it);
                let number = u16::try_from(decisions.len()).expect("a rule");
                decisions.push(rule.peek(it.state, it.now, cost).of_rule(RuleId(number)));
            }
        });
    }
    for a in &decisions {
        for b in &decisions {
            assert_eq!(a.and(*b), b.and(*a));
            for c in &decisions {
                assert_eq!(a.and(*b).and(*c), a.and(b.and(*c)));
            }
        }
    }
}

#[test]
fn a_refusal_is_stricter_than_a_pass_and_never_stricter_than_a_wait() {
    let bucket = TokenBucket::new(Quota::per_second(1).burst(2));
    let mut state = [0; 3];
    let pass = bucket.decide(&mut state, Micros::ZERO, 2);
    let soon = bucket.peek(&state, Micros::ZERO, 1);
    let later = bucket.peek(&state, Micros::ZERO, 2);
    let never = bucket.peek(&state, Micros::ZERO, 3);
    for (kind, strict) in [(pass, soon), (soon, later), (later, never)] {
        assert_eq!(kind.and(strict), strict);
        assert_eq!(strict.and(kind), strict);
    }
}

#[test]
fn a_refused_request_spends_nothing_of_any_rule() {
    // Nothing comes back within the test, so what is left of each rule is its limit less what passed.
    let rules = ["20/day", "fixed_window 25/day", "sliding_log 30/day", "sliding_window 35/day cells 4"];
    let rules: Vec<Rule> = rules.iter().map(|text| rule(text)).collect();
    let (policy, mut state) = (rules.as_slice(), fresh(rules.as_slice()));
    let (mut random, mut passed, mut refused) = (Random::seeded(14), 0, 0);
    for _ in 0..500 {
        let cost = random.between(1, 36);
        match policy.decide(&mut state[..], Micros::ZERO, u32::try_from(cost).unwrap()).is_allowed() {
            true => passed += cost,
            false => refused += 1,
        }
        let left: Vec<u64> = shown(policy, &state, Micros::ZERO, 0).iter().map(Decision::remaining).collect();
        assert_eq!(left, [20, 25, 30, 35].map(|limit| limit - passed));
    }
    assert!(passed > 0 && refused > 400, "{passed} passed, {refused} were refused");
}

#[test]
fn a_policy_explains_each_rule_as_it_was_found() {
    let policy = [rule("5/day"), rule("fixed_window 3/day")];
    let mut state = fresh(policy.as_slice());
    assert!(policy.decide(&mut state[..], Micros::ZERO, 2).is_allowed());
    let each = shown(policy.as_slice(), &state, Micros::ZERO, 2);
    assert_eq!(each[0].outcome, Outcome::Allowed);
    assert_eq!(each[0].remaining(), 3); // not as if it had been charged
    assert_eq!(each[1].retry_after(), Some(Wait::micros(86_400_000_000)));
    assert_eq!((each[0].rule, each[1].rule), (RuleId(0), RuleId(1)));
}

// === Taking and giving back ===

fn take_is_the_most_that_passes<A: Algorithm + ?Sized + Debug>(limit: &A) {
    wander(limit, Verbs::All, |mut it| {
        let most = draw_cost(limit, &mut it);
        let mut state = it.state.to_vec();
        let taken = limit.take(&mut state[..], it.now, most);
        let about = format!("{limit:?} gave {} of {most} at {}", taken.amount, it.now);
        assert!(taken.amount <= most, "{about}");
        assert!(limit.peek(it.state, it.now, taken.amount).is_allowed(), "{about}");
        if taken.amount < most {
            assert!(!limit.peek(it.state, it.now, taken.amount + 1).is_allowed(), "{about}");
        }
        let mut charged = it.state.to_vec();
        assert_eq!(limit.decide(&mut charged[..], it.now, taken.amount), taken.decision, "{about}");
        assert_eq!(charged, state, "{about}");
    });
}

#[test]
fn take_gives_the_most_that_would_pass() {
    rules().for_each(|rule| take_is_the_most_that_passes(&rule));
    policies().for_each(|policy| take_is_the_most_that_passes(policy.as_slice()));
}

#[test]
fn a_refund_never_lifts_a_limit_above_itself() {
    for rule in rules() {
        wander(&rule, Verbs::All, |it| {
            let mut state = it.state.to_vec();
            let before = rule.peek(it.state, it.now, 0);
            rule.refund(&mut state[..], it.now, u32::MAX);
            let after = rule.peek(&state[..], it.now, 0);
            assert!(after.remaining() >= before.remaining(), "{rule:?}");
            let all = u32::try_from(after.limit()).expect("a limit");
            let taken = rule.take(&mut state[..], it.now, u32::MAX).amount;
            assert_eq!(u64::from(taken), after.remaining(), "{rule:?}");
            assert!(taken <= all, "{rule:?} gave {taken}");
            assert!(!rule.decide(&mut state[..], it.now, 1).is_allowed(), "{rule:?}");
        });
    }
}

#[test]
fn what_was_just_charged_can_be_given_back() {
    for rule in rules() {
        wander(&rule, Verbs::WithoutDebt, |mut it| {
            let cost = draw_cost(&rule, &mut it);
            let mut state = it.state.to_vec();
            let before = rule.peek(it.state, it.now, 0).remaining();
            if rule.decide(&mut state[..], it.now, cost).is_allowed() {
                rule.refund(&mut state[..], it.now, cost);
                let after = rule.peek(&state[..], it.now, 0).remaining();
                // A unit of an oldest cell that counts in part gives back only that part.
                let whole = !format!("{rule:?}").contains("Interpolated");
                assert!(after == before || (!whole && after < before), "{rule:?}: {before}, then {after}");
            }
        });
    }
}

// === The ends of the world ===

/// Rules at the edge of what can be counted, beside the ordinary ones.
const EDGES: [&str; 8] = [
    "1 per 100000day",
    "9000000000000000/s",
    "stepped_bucket 1 per 100000day burst 1",
    "stepped_bucket 1/us burst 511",
    "fixed_window 9000000000000000/s",
    "fixed_window 511/us",
    "sliding_window 4294967295/s cells 1000",
    "sliding_window 1 per 100000day cells 1000 interpolated",
];

const INSTANTS: [u64; 7] = [0, 1, 1_000_000, (1 << 53) - 2, (1 << 53) - 1, 1 << 53, u64::MAX];
const COSTS: [u32; 6] = [0, 1, 2, 511, u32::MAX - 1, u32::MAX];

fn survives<A: Algorithm + ?Sized + Debug>(limit: &A, random: &mut Random) {
    let mut state = fresh(limit);
    for _ in 0..200 {
        let now = Micros::new(INSTANTS[usize::try_from(random.below(7)).expect("an index")]);
        let cost = COSTS[usize::try_from(random.below(6)).expect("an index")];
        let decision = match random.below(5) {
            0 => limit.decide(&mut state[..], now, cost),
            1 => limit.force(&mut state[..], now, cost),
            2 => limit.take(&mut state[..], now, cost).decision,
            3 => {
                limit.refund(&mut state[..], now, cost);
                limit.peek(&state[..], now, cost)
            }
            _ => limit.peek(&state[..], now, cost),
        };
        assert!(decision.remaining() <= decision.limit(), "{limit:?}: {decision:?}");
        assert!(state.len() > 1 || state[0] >> 63 == 0, "{limit:?} used the topmost bit");
        assert!(limit.idle_at(&state[..]) <= Micros::MAX && limit.seen(&state[..]) <= Micros::MAX);
    }
}

#[test]
fn no_instant_and_no_cost_makes_anything_panic_or_wrap() {
    let mut random = Random::seeded(33);
    for rule in rules().chain(EDGES.iter().map(|text| rule(text))) {
        (0..50).for_each(|_| survives(&rule, &mut random));
    }
    for policy in policies() {
        (0..50).for_each(|_| survives(policy.as_slice(), &mut random));
    }
}

#[test]
fn no_instant_makes_a_change_of_rules_panic() {
    let rules: Vec<Rule> = rules().chain(EDGES.iter().map(|text| rule(text))).collect();
    for old in &rules {
        for new in &rules {
            for then in INSTANTS.map(Micros::new) {
                let mut state = fresh(old);
                let _ = old.force(&mut state[..], then, 3);
                for now in INSTANTS.map(Micros::new) {
                    let mut adopted = fresh(new);
                    new.adopt(old, &state[..], &mut adopted[..], now);
                    let found = new.peek(&adopted[..], now, 0);
                    assert!(found.remaining() <= found.limit(), "{old:?} to {new:?} at {now}");
                }
            }
        }
    }
}

#[test]
fn nothing_beyond_the_limit_passes_at_the_end_of_time() {
    for rule in rules() {
        let mut state = fresh(&rule);
        let most = rule.peek(&state[..], Micros::ZERO, 0).limit();
        for instant in [Micros::MAX, Micros::new(1 << 53), Micros::new(u64::MAX)] {
            let _ = rule.take(&mut state[..], instant, u32::MAX);
            let more = (0..10).filter(|_| rule.decide(&mut state[..], instant, 1).is_allowed()).count();
            assert_eq!(more, 0, "{rule:?}, of which {most} may pass, at {instant}");
        }
    }
}

#[test]
fn a_debt_beyond_all_measure_is_still_a_debt() {
    for rule in rules() {
        let mut state = fresh(&rule);
        let now = Micros::new(1_760_000_000_000_000);
        for _ in 0..20 {
            let _ = rule.force(&mut state[..], now, u32::MAX);
        }
        let refused = rule.decide(&mut state[..], now, 1);
        assert!(refused.retry_after().is_some_and(|wait| wait.as_micros() > 0), "{rule:?}: {refused:?}");
        assert_eq!(refused.remaining(), 0, "{rule:?}");
    }
}

// === One machine, three names ===

#[test]
fn the_three_names_of_the_bucket_are_one() {
    assert_eq!(TypeId::of::<TokenBucket>(), TypeId::of::<Gcra>());
    assert_eq!(TypeId::of::<TokenBucket>(), TypeId::of::<LeakyMeter>());
    assert_eq!(rule("gcra 10/s burst 3"), rule("token_bucket 10/s burst 3"));
    assert_eq!(rule("leaky_meter 10/s burst 3"), rule("token_bucket 10/s burst 3"));
    assert_eq!(rule("10/s burst 3"), rule("token_bucket 10/s burst 3"));
}

#[test]
fn cells_are_strict_unless_said_otherwise() {
    let quota = Quota::per_second(5);
    assert_eq!(SlidingWindow::new(quota, 5), SlidingWindow::new(quota, 5).oldest(Cells::Strict));
    assert_eq!(rule("sliding_window 5/s cells 5"), rule("sliding_window 5/s cells 5 strict"));
}
