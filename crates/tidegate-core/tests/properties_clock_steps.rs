//! Properties on a clock that steps back: the step frees no quota, and blocks no key for long.

mod random;
#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod random_walk;

use std::time::Duration;

use random::Random;
use random_walk::{
    Operations, RULES, assert_bound, draw_cost, fresh, micros, random_walk, rule, rules, steady_rules,
};
use tidegate_core::{Algorithm, Cells, Micros, Quota, Rule, SlidingLog, SlidingWindow, TokenBucket};

#[test]
fn a_step_back_frees_no_quota() {
    for rule in rules() {
        random_walk(&rule, Operations::All, |it| {
            let back = it.now.minus(it.random.below(100_000_000));
            let (before, after) = (rule.peek(it.state, it.now, 0), rule.peek(it.state, back, 0));
            assert!(after.remaining() <= before.remaining(), "{rule:?} from {} to {back}", it.now);
        });
    }
}

#[test]
fn a_step_back_blocks_no_key_longer_than_a_full_refill() {
    for (text, longest) in RULES {
        let (rule, longest) = (rule(text), longest + next_cell(text));
        random_walk(&rule, Operations::WithoutDebt, |mut it| {
            let cost = draw_cost(&rule, &mut it);
            let back = Micros::new(it.random.below(it.now.get()));
            let mut state = it.state.to_vec();
            let decision = rule.decide(&mut state[..], back, cost);
            assert!(micros(decision.reset_after()) <= longest, "{text} at {back}: {decision:?}");
            let wait = decision.retry_after().unwrap_or_default();
            assert!(micros(wait) <= longest, "{text} at {back}: {decision:?}");
            // The decision also holds for the state after the repair.
            if !decision.is_allowed() {
                assert_eq!(rule.peek(&state[..], back, cost), decision, "{text} at {back}");
            }
        });
    }
}

/// The wait of an interpolated window for its next cell after a far step back, in microseconds.
fn next_cell(text: &str) -> u64 {
    match rule(text).encode().numbers() {
        [_, period, cells, _] if text.contains("interpolated") => period.div_ceil(*cells),
        _ => 0,
    }
}

/// After a step shorter than a refill no time counts until the clock has caught up, so a key waits for that too.
#[test]
fn a_step_back_shorter_than_a_refill_or_a_window_is_waited_for_at_most_once() {
    for (text, longest) in RULES.into_iter().filter(|(text, _)| remembers(&rule(text))) {
        let (rule, longest, mut waited) = (rule(text), longest + next_cell(text), 0);
        random_walk(&rule, Operations::WithoutDebt, |mut it| {
            let cost = draw_cost(&rule, &mut it);
            let step = it.random.below(3 * longest);
            let decision = rule.decide(&mut it.state.to_vec()[..], it.now.minus(step), cost);
            let most = longest + step.min(longest);
            assert!(micros(decision.reset_after()) <= most, "{text} back by {step}: {decision:?}");
            let wait = micros(decision.retry_after().unwrap_or_default());
            assert!(wait <= most, "{text} back by {step}: {decision:?}");
            waited += u32::from(wait > longest);
        });
        assert!(longest == 1 || waited > 0, "{text} never waits for the clock");
    }
}

#[test]
fn the_longest_block_is_as_long_as_the_table_says() {
    for (text, longest) in RULES {
        let rule = rule(text);
        let mut state = fresh(&rule);
        let all = u32::try_from(rule.peek(&state[..], Micros::ZERO, 0).limit()).unwrap();
        // The whole limit at the very beginning of a window, a step and a cell. A step at 300 ms leaves 300
        // ms.
        let decision = rule.decide(&mut state[..], Micros::ZERO, all);
        let offset = if text.contains("offset 300ms") { 700_000 } else { 0 };
        let offset = if text.contains("offset 10s") { 50_000_000 } else { offset };
        assert_eq!(micros(decision.reset_after()) + offset, longest, "{text}");
    }
}

/// What passes when the clock keeps stepping back, by the time that really passed.
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

#[test]
fn a_clock_that_keeps_stepping_back_admits_no_more_than_real_time_allows() {
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

// === A clock that flickers ===

/// Whether a rule remembers the latest instant before the clock stepped back.
fn remembers(rule: &Rule) -> bool {
    let bucket = matches!(rule, Rule::TokenBucket(_) | Rule::LeakyQueue(_)) && rule.words() == 3;
    bucket || matches!(rule, Rule::SlidingLog(_) | Rule::SlidingWindow(_))
}

/// The longest step back that a rule remembers, in microseconds.
fn furthest_back(rule: &Rule) -> u64 {
    match (rule, rule.encode().numbers()) {
        (Rule::SlidingWindow(_), [_, period, cells, _]) => {
            let numbers = (u128::from(Micros::MAX.get()) * u128::from(*cells) / u128::from(*period) + 1)
                .next_power_of_two();
            let furthest = ((1 << 64) / numbers - 1) * u128::from(*period) / u128::from(*cells);
            u64::try_from(furthest).unwrap_or(u64::MAX)
        }
        _ => u64::MAX,
    }
}

/// How much passes at each of these instants, if everything available is taken.
fn passed_at<A: Algorithm>(limit: &A, state: &mut [u64], instants: &[u64]) -> Vec<u32> {
    let most = |at: &u64| {
        let all = u32::try_from(limit.peek(state, Micros::new(*at), 0).limit()).expect("a limit");
        (1..=all).rev().find(|&cost| limit.decide(state, Micros::new(*at), cost).is_allowed()).unwrap_or(0)
    };
    instants.iter().map(most).collect()
}

#[test]
fn a_flickering_clock_frees_no_quota() {
    let bucket = TokenBucket::new(Quota::per_second(10).burst(4));
    let (there, back) = (1_000_000_000, 990_000_000);
    assert_eq!(passed_at(&bucket, &mut [0; 3], &[there, back, there, back, there]), [4, 0, 0, 0, 0]);
    for rule in rules().filter(remembers) {
        for step in [1_000, 10_000_000, 3_600_000_000, 1_000_000_000_000_000] {
            if step > furthest_back(&rule) {
                continue;
            }
            let (there, mut state) = (1_760_000_000_000_000, fresh(&rule));
            let flicker = [there, there - step].repeat(5);
            let passed = passed_at(&rule, &mut state, &flicker);
            assert_eq!(passed[1..], [0; 9], "{rule:?} flickers by {step}");
            // And then the rule goes on as if the clock had never flickered.
            let mut steady = fresh(&rule);
            assert_eq!(passed_at(&rule, &mut steady, &[there])[0], passed[0]);
            let later =
                Micros::new(there + micros(rule.peek(&steady[..], Micros::new(there), 0).reset_after()));
            let left = [state, steady].map(|state| rule.peek(&state[..], later, 0).remaining());
            assert!(left[0] == left[1], "{rule:?} flickers by {step}: {left:?}");
        }
    }
}

/// The clock moves ten seconds back and forth, five times. A cell of a day is far longer than that, one of 10
/// us far shorter.
#[test]
fn a_clock_flickering_by_ten_seconds_admits_one_limit_of_logs_and_cells() {
    let (there, back) = (1_760_000_000_000_000, 1_759_999_990_000_000);
    let flicker = [there, back].repeat(5);
    for text in ["1/s", "7/s", "5 per 10s", "30/min", "3/day"] {
        let limit = |rule: &Rule| rule.peek(&fresh(rule)[..], Micros::ZERO, 0).limit();
        let kinds = ["strict", "interpolated", "plain"];
        let cells = [1, 2, 5, 10, 60].into_iter().flat_map(|cells| kinds.map(|kind| (cells, kind)));
        let windows = cells.map(|(cells, kind)| format!("sliding_window {text} cells {cells} {kind}"));
        for text in windows.chain([format!("sliding_log {text}")]) {
            let rule = rule(&text);
            let passed = passed_at(&rule, &mut fresh(&rule), &flicker);
            assert_eq!(u64::from(passed.iter().sum::<u32>()), limit(&rule), "{text}: {passed:?}");
        }
    }
}

/// Every other algorithm starts anew when an instant comes again: n steps back admit at most n more limits.
#[test]
fn n_steps_back_free_at_most_n_limits_of_any_other_algorithm() {
    for rule in rules().filter(|rule| !remembers(rule)) {
        let (there, mut state) = (1_760_000_000_000_000, fresh(&rule));
        let flicker = [there, there - 200_000_000].repeat(5);
        let passed = passed_at(&rule, &mut state, &flicker);
        let all = rule.peek(&fresh(&rule)[..], Micros::new(there), 0).limit();
        for (reading, amount) in passed.into_iter().enumerate() {
            let most = if reading % 2 == 0 { all } else { u64::from(matches!(rule, Rule::NginxQueue(_))) };
            assert!(u64::from(amount) <= most, "{rule:?}: {amount} at reading {reading}");
        }
    }
}

/// The bound for any readings: the burst, and the rate times the time that counts. A move from below the
/// latest reading so far up to it counts nothing; moves beyond it and moves between readings below it count
/// in full.
#[test]
fn what_passes_on_any_clock_is_bounded_by_the_burst_and_the_time_that_counts() {
    let (limit, burst) = (7, 4);
    let bucket = TokenBucket::new(Quota::per_second(limit).burst(burst));
    let mut most_used = 0;
    for seed in 0..200 {
        let (mut random, mut state) = (Random::seeded(seed), fresh(&bucket));
        let (mut now, mut passed, mut time) = (1_000_000_000_000_u64, 0, 0);
        let mut latest = now;
        for _ in 0..300 {
            passed += u64::from(passed_at(&bucket, &mut state, &[now])[0]);
            let next = match random.below(5) {
                0 => now - random.below(10_000_000),
                1 => latest,
                2 => latest.max(now) + random.below(1_000_000),
                _ => now + random.below(500_000),
            };
            time += if next >= latest { next - latest } else { next.saturating_sub(now) };
            (now, latest) = (next, latest.max(next));
            let bound = burst + time * limit / 1_000_000;
            assert!(passed <= bound, "seed {seed}: {passed} in {time} us, at {now}");
            most_used = most_used.max(passed * 100 / bound);
        }
    }
    assert!(most_used > 80, "only {most_used}% of the bound is reached");
}

/// Which readings of a clock that jumps about count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readings {
    All,
    /// Only readings at which the state changes. A refusal that finds that the clock has caught up writes
    /// that, and not what lies beyond.
    Written,
}

/// What passes on a clock that jumps about, each amount with the time that has counted before it, in units of
/// `unit`.
fn passed_by_counted_time<A: Algorithm>(
    limit: &A,
    seed: u64,
    period: u64,
    unit: u64,
    readings: Readings,
) -> Vec<(u64, u64)> {
    let (mut random, mut state) = (Random::seeded(seed), fresh(limit));
    let (mut now, mut time, mut passed) = (1_000_000_000_000_u64, 0, Vec::new());
    let (mut latest, mut last, mut latest_counted) = (now, now / unit, now / unit);
    for _ in 0..300 {
        let before = state.clone();
        let amount = passed_at(limit, &mut state, &[now])[0];
        if readings == Readings::All || state != before {
            let beyond = amount > 0 || readings == Readings::All;
            let this = if beyond { now / unit } else { (now / unit).min(latest_counted) };
            time += if this >= latest_counted { this - latest_counted } else { this.saturating_sub(last) };
            (last, latest_counted) = (this, latest_counted.max(this));
            passed.push((time, u64::from(amount)));
        }
        now = match random.below(6) {
            0 => now - random.below(period * 10),
            1 => latest,
            2 => latest.max(now) + random.below(period),
            3 => now - random.below(period / 4),
            _ => now + random.below(period / 2),
        };
        latest = latest.max(now);
    }
    passed
}

/// The same bound for logs: the limit, and once more for each period that has counted. Windows count in
/// cells.
#[test]
fn what_passes_on_any_clock_is_a_limit_and_one_for_each_period_that_counts() {
    let (quota, period) = (Quota::per_second(7), 1_000_000);
    let cells = |cells, kind| SlidingWindow::new(quota, cells).oldest(kind);
    let windows =
        [cells(1, Cells::Strict), cells(5, Cells::Strict), cells(1, Cells::Plain), cells(5, Cells::Plain)];
    let cells = [(1, 2), (5, 6), (1, 1), (5, 5)];
    let mut most_used = 0;
    let mut assert_total = |about: &str, passed: &[(u64, u64)], whole: u64| {
        let mut sum = 0;
        for (time, amount) in passed {
            sum += amount;
            let bound = 7 * (time / whole + 1);
            assert!(sum <= bound, "{about}: {sum} in {time}");
            most_used = most_used.max(if sum > 70 { sum * 100 / bound } else { 0 });
        }
    };
    for seed in 0..200 {
        let log = SlidingLog::new(quota);
        assert_total("log", &passed_by_counted_time(&log, seed, period, 1, Readings::All), period);
        for (window, (cells, whole)) in windows.iter().zip(cells) {
            let passed = passed_by_counted_time(window, seed, period, period / cells, Readings::All);
            assert_total(&format!("{window:?}"), &passed, whole);
        }
    }
    assert!(most_used > 80, "only {most_used}% of the bound is reached");
}

/// No period of time that counts holds more than the limit, wherever it begins.
///
/// Refusals are left out, because they are not written.
#[test]
fn any_period_that_counts_holds_at_most_the_limit_on_any_clock() {
    let (quota, period) = (Quota::per_second(7), 1_000_000);
    for seed in 0..200 {
        let log = SlidingLog::new(quota);
        let passed = passed_by_counted_time(&log, seed, period, 1, Readings::Written);
        assert_bound(&log, &passed, |stretch| if stretch < period { 7 } else { u64::MAX });
        for (cells, kind) in
            [(1, Cells::Strict), (5, Cells::Strict), (5, Cells::Interpolated), (5, Cells::Plain)]
        {
            let window = SlidingWindow::new(quota, cells).oldest(kind);
            let full = u64::from(cells) + u64::from(kind == Cells::Strict);
            let unit = period / u64::from(cells);
            let passed = passed_by_counted_time(&window, seed, period, unit, Readings::Written);
            assert_bound(&window, &passed, |stretch| if stretch < full { 7 } else { u64::MAX });
        }
    }
}

#[test]
fn a_bucket_refills_at_its_rate_after_the_clock_was_set_back() {
    let bucket = TokenBucket::new(Quota::per_second(10).burst(4));
    let (noon, hour) = (43_200_000_000, 3_600_000_000);
    let every_100ms: Vec<u64> = (0..100).map(|n| noon - hour + n * 100_000).collect();
    let mut state = [0; 3];
    assert_eq!(passed_at(&bucket, &mut state, &[noon]), [4]);
    let passed = passed_at(&bucket, &mut state, &every_100ms);
    assert_eq!((passed[0], passed[1..].iter().sum()), (0, 99));
    // No requests come for the rest of the hour. That hour does not count, and the time after it does.
    assert_eq!(passed_at(&bucket, &mut state, &[noon, noon + 100_000, noon + hour]), [0, 1, 4]);
}

/// Two clocks ten seconds apart alternate every 10 ms, and a token refills every 100 ms. The refill between
/// two readings is less than a token, and is not lost.
#[test]
fn two_alternating_clocks_refill_a_bucket_at_its_rate() {
    let bucket = TokenBucket::new(Quota::per_second(10).burst(4));
    let readings: Vec<u64> = (0..1_000).map(|n| 1_000_000_000 + n * 10_000 - n % 2 * 10_000_000).collect();
    let passed: u32 = passed_at(&bucket, &mut [0; 3], &readings).iter().sum();
    assert_eq!(passed, 4 + 99);
}

/// The same for logs and cells: once a second a limit passes, whichever clock is read.
#[test]
fn two_alternating_clocks_free_logs_and_cells_at_their_rate() {
    let readings =
        |apart: u64| -> Vec<u64> { (0..2_000).map(|n| 1_000_000_000 + n * 10_000 - n % 2 * apart).collect() };
    for apart in [7_000, 300_000, 990_000, 1_000_000, 10_000_000] {
        let passed = |rule: &str| -> u32 {
            let rule = rule.parse::<Rule>().expect("a rule");
            passed_at(&rule, &mut fresh(&rule), &readings(apart)).iter().sum()
        };
        // In 20 s. Greedy demand takes everything immediately, so strict cells of a fifth let a limit pass
        // each 1.2 s.
        assert_eq!(passed("sliding_log 5/s"), 20 * 5, "{apart} us apart");
        assert_eq!(passed("sliding_window 5/s cells 5"), 17 * 5, "{apart} us apart");
        assert_eq!(passed("sliding_window 5/s cells 5 plain"), 20 * 5, "{apart} us apart");
        let interpolated = passed("sliding_window 5/s cells 5 interpolated");
        assert!((15 * 5..=20 * 5).contains(&interpolated), "{apart} us apart: {interpolated}");
    }
}

#[test]
fn logs_and_cells_slide_on_after_the_clock_was_set_back() {
    let (noon, hour) = (43_200_000_000, 3_600_000_000);
    let every_100ms: Vec<u64> = (1..=100).map(|n| noon - hour + n * 100_000).collect();
    for (text, of_every_100ms) in [
        ("sliding_log 5/s", 50),
        ("sliding_window 5/s cells 5", 40),
        ("sliding_window 5/s cells 5 plain", 50),
    ] {
        let rule = rule(text);
        let mut state = fresh(&rule);
        assert_eq!(passed_at(&rule, &mut state, &[noon, noon - hour]), [5, 0], "{text}");
        let passed: u32 = passed_at(&rule, &mut state, &every_100ms).iter().sum();
        assert_eq!(passed, of_every_100ms, "{text}");
        // No requests come for the rest of the hour, and it does not count: the last units leave a window
        // after noon.
        let after = [noon, noon + 900_000, noon + 1_200_000];
        assert_eq!(passed_at(&rule, &mut state, &after), [0, 0, 5], "{text}");
    }
}

/// The longest step that a window remembers. The return from a longer one admits the limit again.
#[test]
fn how_far_back_a_window_remembers_depends_on_the_length_of_a_cell() {
    let there = 1_760_000_000_000_000;
    for (text, cell, furthest) in [
        ("sliding_window 3 per 5us cells 5", 1, 2_047),
        ("sliding_window 3 per 10us cells 5", 2, 4_095),
        ("sliding_window 3/s cells 10", 100_000, (1 << 27) - 1),
    ] {
        let rule = rule(text);
        let at = |cells: u64| there - cells * cell;
        let flicker = [there, at(furthest), there, at(furthest), there];
        assert_eq!(passed_at(&rule, &mut fresh(&rule), &flicker), [3, 0, 0, 0, 0], "{text}");
        let too_far = [there, at(furthest + 11), there];
        assert_eq!(passed_at(&rule, &mut fresh(&rule), &too_far), [3, 0, 3], "{text}");
    }
    // A log remembers any step, whatever its limit.
    for limit in [1, 2, 3, 40] {
        let log = SlidingLog::new(Quota::per_second(limit));
        let (all, last) = (u32::try_from(limit).expect("a limit"), Micros::MAX.get() - 10);
        let flicker = [last, 2_000_000, last, 3_000_000, last];
        assert_eq!(passed_at(&log, &mut fresh(&log), &flicker), [all, 0, 0, 0, 0], "{limit}");
    }
}

#[test]
fn a_refusal_while_the_clock_is_behind_reports_the_exact_wait() {
    for rule in rules().filter(remembers) {
        random_walk(&rule, Operations::All, |mut it| {
            let cost = draw_cost(&rule, &mut it);
            let (back, mut state) = (it.now.minus(it.random.below(5_000_000)), it.state.to_vec());
            if let Some(wait) = rule.decide(&mut state[..], back, cost).retry_after() {
                let passes = |at| rule.peek(&state[..], at, cost).is_allowed();
                let then = back.plus(micros(wait));
                assert!(
                    passes(then) && !passes(then.minus(1)),
                    "{rule:?}: {cost} at {back}, from {}",
                    it.now
                );
            }
        });
    }
}

/// The finer the parts of a microsecond, the fewer bits are left to remember a step. A million parts leave
/// enough for any step, a million millions for four hours.
#[test]
fn how_far_back_a_bucket_remembers_depends_on_the_parts_of_a_microsecond() {
    let of = |limit, period| TokenBucket::new(Quota::try_new(limit, period, 3).expect("a quota"));
    let (fine, finest) =
        (of(999_983, Duration::from_secs(1)), of((1 << 40) + 1, Duration::from_secs(86_400)));
    let (there, hour) = (1_760_000_000_000_000, 3_600_000_000);
    for (bucket, step) in [(fine, there), (finest, 4 * hour)] {
        let passed = passed_at(&bucket, &mut [0; 3], &[there, there - step, there, there - step, there]);
        assert_eq!(passed, [3, 0, 0, 0, 0], "{bucket:?} back by {step}");
    }
    let passed = passed_at(&finest, &mut [0; 3], &[there, there - 5 * hour, there]);
    assert_eq!(passed, [3, 0, 3], "a longer step is treated as the longest that can be remembered");
}

/// A table evicts a key when it is idle. While the clock is behind, all units may have left the window; they count again
/// when the clock reaches the instant before the step.
#[test]
fn logs_and_cells_make_a_difference_until_they_are_idle_and_not_after() {
    for rule in rules().filter(|rule| matches!(rule, Rule::SlidingLog(_) | Rule::SlidingWindow(_))) {
        let longest = furthest_back(&rule).min(200_000_000);
        random_walk(&rule, Operations::All, |it| {
            let (back, mut state) = (it.now.minus(it.random.below(longest)), it.state.to_vec());
            rule.repair(&mut state[..], back);
            if it.random.one_in(2) {
                let _ = rule.decide(&mut state[..], back.plus(it.random.below(longest)), 1);
            }
            let idle_at = rule.idle_at(&state[..]);
            if idle_at > Micros::ZERO {
                let used = |at| {
                    let found = rule.peek(&state[..], at, 0);
                    found.limit() - found.remaining()
                };
                let around = (used(idle_at.minus(1)) > 0, used(idle_at), used(idle_at.plus(1)));
                assert_eq!(around, (true, 0, 0), "{rule:?} from {} to {back}, idle at {idle_at}", it.now);
            }
        });
    }
}

// === Refunds ===

/// The clock runs on after the refund, or steps back and catches up.
///
/// A bucket that would owe more than it holds is forgiven the step. After a refund it may owe less than that, and then
/// it waits for the clock, as after a smaller charge.
#[test]
fn a_refund_never_leaves_a_key_worse_off_wherever_the_clock_goes() {
    for rule in rules() {
        random_walk(&rule, Operations::All, |mut it| {
            let cost = draw_cost(&rule, &mut it);
            let mut now = it.now;
            let [mut with, mut without] = [it.state.to_vec(), it.state.to_vec()];
            if it.random.one_in(2) {
                now = now.minus(it.random.below(2_000_000));
                rule.repair(&mut with[..], now);
                rule.repair(&mut without[..], now);
            }
            rule.refund(&mut with[..], now, cost);
            for at in [now, now.plus(it.random.below(90_000_000)), now.minus(it.random.below(90_000_000))] {
                let mut repaired = without.clone();
                rule.repair(&mut repaired[..], at);
                if repaired != without && matches!(rule, Rule::TokenBucket(_) | Rule::LeakyQueue(_)) {
                    continue;
                }
                let [with, without] = [&with, &without].map(|state| rule.peek(&state[..], at, 0));
                assert!(with.remaining() >= without.remaining(), "{rule:?}: {cost} at {now}, seen at {at}");
            }
        });
    }
}

#[test]
fn a_refund_to_a_key_that_owes_nothing_changes_nothing() {
    for rule in rules() {
        let mut never_used = fresh(&rule);
        rule.refund(&mut never_used[..], Micros::new(1_000_000_000), 5);
        assert_eq!(never_used, fresh(&rule), "{rule:?}");
        random_walk(&rule, Operations::All, |it| {
            let at_rest = rule.idle_at(it.state).max(it.now);
            let mut state = it.state.to_vec();
            rule.refund(&mut state[..], at_rest, 5);
            assert_eq!(state, it.state, "{rule:?} at {at_rest}");
        });
    }
}

#[test]
fn a_fully_refunded_key_is_as_if_never_seen() {
    for rule in rules() {
        random_walk(&rule, Operations::All, |it| {
            let mut state = it.state.to_vec();
            if rule.idle_at(&state[..]) > it.now {
                rule.refund(&mut state[..], it.now, u32::MAX);
                assert_eq!(rule.idle_at(&state[..]), Micros::ZERO, "{rule:?} at {}", it.now);
                let back = it.now.minus(it.random.below(90_000_000));
                let left = rule.peek(&state[..], back, 0);
                assert_eq!(left.remaining(), left.limit(), "{rule:?} from {} to {back}", it.now);
            }
        });
    }
}

/// A burst of nine, seven per second. If the refund had written that the key owes nothing *at 1000 s*, it
/// would owe seven a second before that.
#[test]
fn a_refunded_charge_is_not_missing_after_a_step_back() {
    let at = |seconds: u64| Micros::new(seconds * 1_000_000);
    let bucket = rule("7/s burst 9");
    let mut state = fresh(&bucket);
    assert!(bucket.decide(&mut state[..], at(1_000), 4).is_allowed());
    bucket.refund(&mut state[..], at(1_000), 4);
    assert_eq!(bucket.peek(&state[..], at(999), 3).remaining(), 6);
    assert!(bucket.decide(&mut state[..], at(999), 3).is_allowed());
}

#[test]
fn a_decision_no_earlier_than_last_seen_pulls_no_state_back() {
    for rule in steady_rules() {
        random_walk(&rule, Operations::All, |it| {
            let last_seen = rule.last_seen(it.state);
            assert!(last_seen <= it.now, "{rule:?} has seen {last_seen}, after {}", it.now);
            let late_reader = last_seen.max(it.now.minus(it.random.below(3_000_000)));
            let mut repaired = it.state.to_vec();
            rule.repair(&mut repaired[..], late_reader);
            assert_eq!(
                repaired, it.state,
                "{rule:?} is pulled back at {late_reader}, having seen {last_seen}"
            );
        });
    }
}

/// Two tokens of a burst of three are used at 200 ms. Seen from 100 ms nothing is left. Seen from earlier, the debt would
/// exceed the burst, so the step back is forgiven and the state is as it was at the charge.
#[test]
fn a_step_back_is_forgiven_only_if_less_than_nothing_would_be_left() {
    let bucket = TokenBucket::new(Quota::per_second(10).burst(3));
    let mut state = [0; 3];
    assert!(bucket.decide(&mut state, Micros::new(200_000), 2).is_allowed());
    let left = |now| bucket.peek(&state, Micros::new(now), 0).remaining();
    assert_eq!([200_000, 199_999, 100_000, 99_999].map(left), [1, 0, 0, 1]);
}
