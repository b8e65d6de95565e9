//! The documented bound of each algorithm holds under the worst possible demand, and is reached.
//!
//! A bound is the most that passes in any stretch of a given length. A bound that is never reached is wrong too.

mod random;

use std::time::Duration;

use random::Random;
use tidegate_core::{
    Algorithm, Cells, FixedWindow, LeakyQueue, Micros, Outcome, Quota, SlidingLog, SlidingWindow,
    SteppedBucket, TokenBucket,
};

const SECOND: u64 = 1_000_000;

/// What passed: when, and how much.
type Passed = Vec<(u64, u64)>;

/// Takes everything available at each of these instants.
fn greedy<A: Algorithm>(algorithm: &A, instants: impl IntoIterator<Item = u64>) -> Passed {
    let mut state = vec![0; algorithm.words()];
    let mut take = |at| u64::from(algorithm.take(&mut state[..], Micros::new(at), u32::MAX).amount);
    instants.into_iter().map(|at| (at, take(at))).filter(|&(_, amount)| amount > 0).collect()
}

/// Saves up, spends, returns a little early or exactly on time, requests one unit or all.
fn adversarial<A: Algorithm>(algorithm: &A, seed: u64, period: u64) -> Passed {
    let mut random = Random::seeded(seed);
    let mut state = vec![0; algorithm.words()];
    let (mut now, mut passed) = (random.below(3 * period), Passed::new());
    for _ in 0..600 {
        let most = if random.one_in(3) { random.between(1, 3) } else { u64::from(u32::MAX) };
        let most = u32::try_from(most).expect("a cost");
        let taken = algorithm.take(&mut state[..], Micros::new(now), most);
        passed.push((now, u64::from(taken.amount)));
        let reset = taken.decision.reset_after().as_micros();
        now += match random.below(8) {
            0 => 0,
            1 => 1,
            2 => random.below(period / 10 + 1),
            3 => random.below(period + 1),
            4 => reset,
            5 => reset.saturating_sub(1),
            // Just before and just after the boundary of a window.
            6 => (period - now % period).saturating_sub(1),
            _ => period - now % period,
        };
    }
    passed.retain(|&(_, amount)| amount > 0);
    passed
}

/// Checks that no stretch holds more than `bound` of its length, both ends included.
///
/// Only stretches that begin and end with an admission are checked. A longer stretch around one holds no more.
fn assert_bound(about: &str, passed: &Passed, bound: impl Fn(u64) -> u64) {
    for (first, &(from, _)) in passed.iter().enumerate() {
        let mut sum = 0;
        for &(until, amount) in &passed[first..] {
            sum += amount;
            let most = bound(until - from);
            assert!(sum <= most, "{about}: {sum} in {} us from {from}, at most {most}", until - from);
        }
    }
}

fn held<A: Algorithm>(about: &str, algorithm: &A, period: u64, bound: impl Fn(u64) -> u64) {
    for seed in 0..30 {
        assert_bound(about, &adversarial(algorithm, seed, period), &bound);
    }
    let step = (period / 97).max(1);
    let instants = (0..1_000).map(|n| n * step);
    assert_bound(about, &greedy(algorithm, instants), &bound);
}

/// How much passed from `from` until `until`, both included.
fn between(passed: &Passed, from: u64, until: u64) -> u64 {
    passed.iter().filter(|(at, _)| (from..=until).contains(at)).map(|(_, amount)| amount).sum()
}

fn total(passed: &Passed) -> u64 {
    between(passed, 0, u64::MAX)
}

fn micros(period: Duration) -> u64 {
    u64::try_from(period.as_micros()).expect("a period that fits")
}

/// ⌊limit · elapsed ÷ period⌋, exactly.
fn refilled(quota: Quota, elapsed: u64) -> u64 {
    let units = u128::from(quota.limit()) * u128::from(elapsed) * 1_000 / quota.period().as_nanos();
    u64::try_from(units).expect("a number of tokens")
}

fn quotas() -> [Quota; 6] {
    [
        Quota::per_second(3).burst(1),
        Quota::per_second(7),
        Quota::per_minute(5).burst(10),
        Quota::per(100, Duration::from_secs(60)),
        Quota::per(5, Duration::from_micros(313)).burst(2),
        Quota::per_second(999_983).burst(1_000),
    ]
}

// === Token bucket: burst + ⌊rate · Δ⌋ ===

#[test]
fn a_token_bucket_admits_at_most_its_burst_and_the_refill() {
    for quota in quotas() {
        let bound = |stretch| quota.max_burst() + refilled(quota, stretch);
        held(&quota.to_string(), &TokenBucket::new(quota), micros(quota.period()), bound);
    }
}

#[test]
fn a_token_bucket_under_constant_demand_admits_exactly_its_bound() {
    // A bucket of one that gets no request at the very instant its token arrives wastes what refills next.
    for quota in quotas().into_iter().filter(|quota| quota.max_burst() > 1) {
        let passed = greedy(&TokenBucket::new(quota), (0..5_000).map(|n| n * wastes_nothing(quota)));
        for &(until, _) in &passed {
            let want = quota.max_burst() + refilled(quota, until);
            assert_eq!(between(&passed, 0, until), want, "{quota} until {until}");
        }
    }
}

/// How long a bucket that holds less than one token may be left alone without overflowing.
fn wastes_nothing(quota: Quota) -> u64 {
    let missing = u128::from(quota.max_burst() - 1) * quota.period().as_nanos();
    u64::try_from(missing / 1_000 / u128::from(quota.limit())).expect("a length of time")
}

// === Leaky queue: 1 + ⌊rate · Δ⌋ proceed, and `delay` more ===

/// When each of many requests that arrive too fast may proceed.
fn turns(queue: &LeakyQueue, seed: u64, period: u64) -> Passed {
    let mut random = Random::seeded(seed);
    let mut state = vec![0; queue.words()];
    let (mut now, mut turns) = (random.below(3 * period), Passed::new());
    for _ in 0..600 {
        match queue.decide(&mut state[..], Micros::new(now), 1).outcome {
            Outcome::Allowed => turns.push((now, 1)),
            Outcome::AllowedAfter(wait) => turns.push((now + wait.as_micros(), 1)),
            _ => now += random.below(period / 5 + 1),
        }
    }
    turns.sort_unstable();
    turns
}

#[test]
fn a_leaky_queue_spaces_requests_at_its_rate() {
    for quota in quotas() {
        for delay in [0, 2] {
            let queue = LeakyQueue::new(quota, 5).delay(delay);
            for seed in 0..30 {
                let turns = turns(&queue, seed, micros(quota.period()));
                // A wait is in whole microseconds, so a request may proceed up to one late.
                let bound = |stretch| 1 + u64::from(delay) + refilled(quota, stretch + 1);
                assert_bound(&format!("{quota} delay {delay}"), &turns, bound);
            }
        }
    }
}

#[test]
fn a_leaky_queue_that_is_never_empty_admits_exactly_its_rate() {
    let queue = LeakyQueue::new(Quota::per_second(10), 20);
    let mut state = [0; 3];
    let turns: Vec<u64> = (0..21)
        .map(|_| match queue.decide(&mut state, Micros::ZERO, 1).outcome {
            Outcome::AllowedAfter(wait) => wait.as_micros(),
            outcome => {
                assert_eq!(outcome, Outcome::Allowed);
                0
            }
        })
        .collect();
    assert_eq!(turns, (0..21).map(|n| n * SECOND / 10).collect::<Vec<_>>());
}

// === Stepped bucket: burst + limit · (⌊Δ/period⌋ + 1) ===

#[test]
fn a_stepped_bucket_admits_at_most_its_burst_and_the_steps_of_a_stretch() {
    for quota in quotas() {
        let period = micros(quota.period());
        let bound = |stretch| quota.max_burst() + quota.limit() * (stretch / period + 1);
        let bucket = SteppedBucket::new(quota);
        held(&quota.to_string(), &bucket, period, bound);
        held(&quota.to_string(), &bucket.offset(Duration::from_micros(period / 3)), period, bound);
    }
}

#[test]
fn a_stepped_bucket_admits_exactly_its_bound_around_a_step() {
    let (quota, step) = (Quota::per_minute(20).burst(50), 60 * SECOND);
    let bucket = SteppedBucket::new(quota);
    for steps in 0..5 {
        // A full bucket one microsecond before the step, then a refill at the step and at each one after.
        let instants = std::iter::once(step - 1).chain((0..=steps).map(|n| (n + 1) * step));
        let passed = greedy(&bucket, instants);
        let stretch = steps * step + 1;
        assert_eq!(total(&passed), 50 + 20 * (stretch / step + 1));
    }
}

// === Fixed window: limit · (⌈Δ/period⌉ + 1) ===

#[test]
fn a_fixed_window_admits_at_most_the_limit_in_each_window_of_a_stretch() {
    for quota in quotas() {
        let period = micros(quota.period());
        let bound = |stretch: u64| quota.limit() * (stretch.div_ceil(period) + 1);
        let window = FixedWindow::new(quota);
        held(&quota.to_string(), &window, period, bound);
        held(&quota.to_string(), &window.offset(Duration::from_micros(period / 7)), period, bound);
        held(&quota.to_string(), &window.from_first_hit(), period, bound);
    }
}

#[test]
fn an_aligned_window_never_holds_more_than_the_limit() {
    for quota in quotas() {
        let period = micros(quota.period());
        let passed = adversarial(&FixedWindow::new(quota), 99, period);
        for &(at, _) in &passed {
            let start = at / period * period;
            assert!(between(&passed, start, start + period - 1) <= quota.limit(), "{quota} from {start}");
        }
    }
}

#[test]
fn a_fixed_window_admits_exactly_its_bound_around_its_boundary() {
    let window = FixedWindow::new(Quota::per_minute(10));
    let turn = 60 * SECOND;
    for more in 0..4 {
        let stretch = more * turn + 1;
        let instants = (0..=more + 1).map(|n| if n == 0 { turn - 1 } else { n * turn });
        assert_eq!(total(&greedy(&window, instants)), 10 * (stretch.div_ceil(turn) + 1));
    }
}

#[test]
fn a_window_from_the_first_hit_admits_twice_the_limit_around_its_end() {
    let window = FixedWindow::new(Quota::per_minute(10)).from_first_hit();
    let (mut state, end) = ([0], 60 * SECOND);
    let mut take = |at, most| window.take(&mut state, Micros::new(at), most).amount;
    assert_eq!(take(0, 1), 1);
    assert_eq!(take(end - 1, 100), 9);
    assert_eq!(take(end, 100), 10);
    // 19 within a microsecond, and with the one that opened the window 20 in one period and one microsecond.
}

// === Sliding log: limit in any period, ⌈Δ/period⌉ · limit in any stretch, both half open ===

#[test]
fn a_log_admits_at_most_the_limit_in_any_period() {
    for quota in quotas().into_iter().filter(|quota| quota.limit() <= SlidingLog::MAX) {
        let period = micros(quota.period());
        // Both ends of a half-open stretch are included only if it is a microsecond longer.
        let bound = |stretch: u64| quota.limit() * (stretch + 1).div_ceil(period);
        held(&quota.to_string(), &SlidingLog::new(quota), period, bound);
    }
}

#[test]
fn a_log_admits_exactly_the_limit_in_every_period() {
    let quota = Quota::per_second(7);
    let passed = greedy(&SlidingLog::new(quota), (0..10_000).map(|n| n * 1_000));
    assert_eq!(total(&passed), 10 * 7);
    for at in 0..9 {
        assert_eq!(between(&passed, at * SECOND, (at + 1) * SECOND - 1), 7);
    }
}

// === Sliding window by cells ===

#[test]
fn strict_cells_admit_at_most_the_limit_in_any_period() {
    for quota in quotas() {
        let period = micros(quota.period());
        let bound = |stretch| if stretch < period { quota.limit() } else { u64::MAX };
        for cells in [1, 5, 7, 10] {
            held(&format!("{quota} in {cells}"), &SlidingWindow::new(quota, cells), period, bound);
        }
    }
}

#[test]
fn strict_cells_use_n_of_n_plus_one_parts_of_the_limit_under_greedy_demand() {
    for cells in [1_u32, 5, 7, 10] {
        let period = u64::from(cells) * 100_000;
        let quota = Quota::per(12, Duration::from_micros(period));
        // As many periods as make n + 1 rounds of n periods: the limit is then used in n of n + 1 of them.
        let periods = u64::from(cells + 1) * 6;
        let instants = (0..periods * u64::from(cells)).map(|cell| cell * 100_000);
        let passed = greedy(&SlidingWindow::new(quota, cells), instants);
        assert_eq!(total(&passed), 12 * periods * u64::from(cells) / u64::from(cells + 1), "{cells} cells");
    }
}

#[test]
fn interpolated_cells_admit_less_than_twice_the_limit_in_any_period() {
    for quota in quotas() {
        let period = micros(quota.period());
        let bound = |stretch| if stretch < period { quota.limit() * 2 - 1 } else { u64::MAX };
        for cells in [1, 5, 7, 10] {
            let window = SlidingWindow::new(quota, cells).oldest(Cells::Interpolated);
            held(&format!("{quota} in {cells}"), &window, period, bound);
        }
    }
}

#[test]
fn interpolated_cells_can_be_cheated_to_one_less_than_twice_the_limit() {
    let (limit, period) = (1_000, 60 * SECOND);
    for cells in [1, 5, 10] {
        let window = SlidingWindow::new(Quota::per_minute(limit), cells).oldest(Cells::Interpolated);
        // The whole limit in the last microsecond of a cell, and again when almost nothing is left of that
        // cell.
        let late = period / u64::from(cells) - 1;
        let passed = greedy(&window, [late, late + period - 1]);
        assert_eq!(total(&passed), 2 * limit - 1, "{cells} cells");
    }
}

#[test]
fn plain_cells_admit_ten_within_nine_tenths_of_a_second() {
    let window = SlidingWindow::new(Quota::per_second(5), 5).oldest(Cells::Plain);
    let passed = greedy(&window, [900_000, 1_799_999, 1_800_000]);
    assert_eq!(passed, [(900_000, 5), (1_800_000, 5)]);
}

#[test]
fn plain_cells_admit_at_most_the_limit_in_a_period_less_one_cell() {
    for quota in quotas() {
        let period = micros(quota.period());
        for cells in [2, 5, 7, 10] {
            let shorter = period * (u64::from(cells) - 1) / u64::from(cells);
            let bound = |stretch| if stretch < shorter { quota.limit() } else { u64::MAX };
            let window = SlidingWindow::new(quota, cells).oldest(Cells::Plain);
            held(&format!("{quota} in {cells}"), &window, period, bound);
        }
    }
}

// === The attack on the boundary: 100 a minute, all demand within 10 ms before and 10 ms after the minute ===

fn attack<A: Algorithm>(algorithm: &A) -> u64 {
    let minute = 60 * SECOND;
    total(&greedy(algorithm, (minute - 10_000..minute + 10_000).step_by(100)))
}

#[test]
fn the_boundary_attack_admits_the_documented_amount_of_each_algorithm() {
    let quota = Quota::per_minute(100);
    assert_eq!(attack(&FixedWindow::new(quota)), 200);
    assert_eq!(attack(&SlidingLog::new(quota)), 100);
    assert_eq!(attack(&SlidingWindow::new(quota, 10)), 100);
    assert_eq!(attack(&TokenBucket::new(quota)), 100);
}

#[test]
fn a_bucket_admits_its_burst_and_the_limit_over_the_full_period_that_follows() {
    let passed = greedy(&TokenBucket::new(Quota::per_minute(100)), (0..=600).map(|n| n * SECOND / 10));
    assert_eq!(between(&passed, 0, 0), 100);
    assert_eq!(between(&passed, 0, 60 * SECOND), 200);
}

// === No rounding, however long ===

/// Takes everything available at irregular instants, and checks that exactly the refill has passed.
///
/// No pause is so long that the bucket overflows. Ends when the given amount has passed, or at the end of the time line.
fn assert_exact_over(quota: Quota, emissions: u64) {
    let longest = wastes_nothing(quota);
    let bucket = TokenBucket::new(quota);
    let (mut state, mut random) = (vec![0; bucket.words()], Random::seeded(6));
    let (mut now, mut admitted) = (0, 0);
    while admitted < emissions && now < Micros::MAX.get() - 3 * longest {
        admitted += u64::from(bucket.take(&mut state[..], Micros::new(now), u32::MAX).amount);
        assert_eq!(admitted, quota.max_burst() + refilled(quota, now), "{quota} at {now}");
        now += random.between(longest / 3, longest);
    }
}

#[test]
fn a_billion_tokens_at_awkward_rates_are_exact() {
    let billion = 1_000_000_000;
    for quota in [
        Quota::per_day(1).burst(3),
        Quota::per_second(7).burst(100_000),
        Quota::per_second(999_983),
        Quota::per_second(700_000),
        Quota::per_second(1_500_000),
        Quota::per_second(100_000_000),
    ] {
        assert_exact_over(quota, billion);
    }
}

#[test]
fn taking_at_every_microsecond_is_exact() {
    for quota in [Quota::per_second(999_983).burst(3), Quota::per_second(700_000).burst(2)] {
        let bucket = TokenBucket::new(quota);
        let mut state = vec![0; bucket.words()];
        let mut pass = |at| u64::from(bucket.decide(&mut state[..], Micros::new(at), 1).is_allowed());
        let mut admitted: u64 = (0..quota.max_burst()).map(|_| pass(0)).sum();
        for now in 1..2_000_000 {
            admitted += pass(now);
            assert_eq!(admitted, quota.max_burst() + refilled(quota, now), "{quota} at {now}");
        }
    }
}
