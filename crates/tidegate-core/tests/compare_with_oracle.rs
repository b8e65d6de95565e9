//! Every algorithm against its oracle, a million random steps each: verdict, remaining, retry and reset must
//! be equal at every one, to the unit and to the microsecond.
//!
//! `TIDEGATE_STEPS` makes the comparisons longer or shorter.

mod oracle;
mod oracle_comparison;
mod random;

use std::time::Duration;

use oracle::{Bucket, CellCounts, Log, Model, Oldest, Oracle, Policy, Steps, Time, Window, Zone};
use oracle_comparison::Clock::{Forward, SometimesBack};
use oracle_comparison::{Clock, Scale, compare};
use random::Random;
use tidegate_core::ClockKind::{MayStepBack, Monotonic};
use tidegate_core::{
    Algorithm, Cells, ClockKind, FixedWindow, LeakyQueue, NginxQueue, PerCallBucket, Quota, Rule, SlidingLog,
    SlidingWindow, SteppedBucket, TokenBucket,
};

const DAY: Duration = Duration::from_secs(86_400);
const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// Quotas that have caused bugs: slow ones, primes, several units per microsecond, fractional intervals.
const HARD: [(u64, Duration, u64); 11] = [
    (1, DAY, 1),
    (7, SECOND, 7),
    (999_983, SECOND, 999_983),
    (700_000, SECOND, 700_000),
    (1_500_000, SECOND, 1_500_000),
    (100_000_000, SECOND, 100_000_000),
    (3, SECOND, 1),
    (5, MINUTE, 10),
    (999_983, SECOND, 3),
    (100_000_000, SECOND, 7),
    (240, Duration::from_secs(3_600), 240),
];

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[usize::try_from(random.below(from.len() as u64)).expect("an index")]
}

/// One of the hard quotas, or any other, with a limit of at most `most`.
fn draw_quota(random: &mut Random, most: u64) -> Quota {
    loop {
        let (limit, period, burst) = if random.one_in(2) { pick(random, &HARD) } else { any_quota(random) };
        match Quota::try_new(limit, period, burst) {
            Ok(quota) if limit <= most => return quota,
            _ => {}
        }
    }
}

fn any_quota(random: &mut Random) -> (u64, Duration, u64) {
    let limit = if random.one_in(4) { random.between(1, 5_000_000) } else { random.between(1, 30) };
    let period = match random.below(5) {
        0 => Duration::from_micros(random.between(10, 2_000)),
        1 => Duration::from_millis(random.between(1, 999)),
        2 => Duration::from_micros(random.between(10, 100_000_000)),
        _ => Duration::from_secs(random.between(1, 4_000)),
    };
    (limit, period, random.between(1, limit * 3))
}

/// A quota for which `algorithm` remembers debts of several times the limit.
///
/// A count that shares its word with a number saturates where the word ends, and the oracle does not. So the two are
/// compared only where the count cannot saturate: with two words, or with one that has room for a far larger limit.
fn draw_roomy_quota<A: Algorithm>(random: &mut Random, algorithm: impl Fn(Quota) -> A) -> Quota {
    loop {
        let quota = draw_quota(random, u64::MAX);
        let (limit, burst) = (quota.limit() * 5, quota.max_burst() * 5);
        let larger = Quota::try_new(limit, quota.period(), burst).map(&algorithm);
        if algorithm(quota).words() == 2 || larger.is_ok_and(|larger| larger.words() == 1) {
            return quota;
        }
    }
}

/// An offset below a period, beyond it, or none.
fn draw_offset(random: &mut Random, quota: Quota) -> Duration {
    let period = micros(quota.period());
    match random.below(4) {
        0 => Duration::ZERO,
        1 => Duration::from_micros(random.below(period * 5)),
        _ => Duration::from_micros(random.below(period)),
    }
}

fn compare_the_token_bucket(clock: Clock, seed: u64, for_clock: ClockKind) {
    compare(clock, seed, |random, comparison| {
        let mut quota = draw_quota(random, u64::MAX);
        if random.one_in(10) {
            // A period need not be a whole number of microseconds.
            quota = Quota::per(random.between(1, 9), Duration::from_nanos(random.between(1, 9_999)));
        }
        let bucket = TokenBucket::new(quota).for_clock(for_clock);
        let scale = Scale::of(quota, quota.max_burst());
        comparison.run(random, format!("{bucket:?}"), &bucket, &mut Bucket::new(quota, for_clock), scale);
    });
}

/// With the same quota in every call, a per-call bucket equals the token bucket of that quota.
fn compare_the_per_call_bucket(clock: Clock, seed: u64, for_clock: ClockKind) {
    compare(clock, seed, |random, comparison| {
        let quota = draw_quota(random, u64::MAX);
        let per_call_bucket = PerCallBucket::new(quota).for_clock(for_clock);
        let scale = Scale::of(quota, quota.max_burst());
        comparison.run(
            random,
            format!("{per_call_bucket:?}"),
            &per_call_bucket,
            &mut Bucket::new(quota, for_clock),
            scale,
        );
    });
}

/// A queue with its oracle, and the most that passes at once.
fn draw_queue(random: &mut Random, quota: Quota, for_clock: ClockKind) -> (LeakyQueue, Bucket, u64) {
    let queue = u32::try_from(quota.max_burst() - 1).expect("a queue that fits");
    let delay = match random.below(4) {
        0 => u32::MAX,
        1 => u32::try_from(random.below(u64::from(queue) + 1)).expect("less than the queue"),
        _ => 0,
    };
    let (mut exact, mut longest) = (LeakyQueue::new(quota, queue).delay(delay), Time::from(u64::MAX));
    if random.one_in(3) {
        let micros = random.below(micros(quota.period()) * 2);
        (exact, longest) = (exact.max_wait(Duration::from_micros(micros)), Time::from(micros));
    }
    let model = Bucket::queue(quota, queue, delay, longest, for_clock);
    let most = u64::try_from(model.capacity()).expect("a capacity that fits");
    (exact.for_clock(for_clock), model, most)
}

fn micros(period: Duration) -> u64 {
    u64::try_from(period.as_micros()).expect("a period that fits")
}

fn compare_the_leaky_queue(clock: Clock, seed: u64, for_clock: ClockKind) {
    compare(clock, seed, |random, comparison| {
        let quota = draw_quota(random, u64::MAX);
        let (queue, mut model, most) = draw_queue(random, quota, for_clock);
        comparison.run(random, format!("{queue:?}"), &queue, &mut model, Scale::of(quota, most));
    });
}

/// A zone with its oracle, and the most that passes at once. Not every quota has a rate in nginx.
fn draw_zone(random: &mut Random, quota: Quota) -> Option<(NginxQueue, Zone, u64)> {
    let burst = u32::try_from(quota.max_burst() - 1).ok()?;
    let delay = match random.below(4) {
        0 => u32::MAX,
        1 => u32::try_from(random.below(u64::from(burst) + 1)).expect("no more than the burst"),
        _ => 0,
    };
    let queue = NginxQueue::try_new(quota, burst).ok();
    let zone = Zone::new(quota, burst, delay);
    assert_eq!(queue.is_some(), zone.is_some(), "{quota}");
    let queue = queue?;
    let queue = if delay == u32::MAX { queue.nodelay() } else { queue.delay(delay) };
    Some((queue, zone?, quota.max_burst()))
}

fn compare_the_nginx_queue(clock: Clock, seed: u64) {
    compare(clock, seed, |random, comparison| {
        let quota = draw_quota(random, u64::MAX);
        let Some((queue, mut model, most)) = draw_zone(random, quota) else { return };
        comparison.run(random, format!("{queue:?}"), &queue, &mut model, Scale::of(quota, most));
    });
}

fn compare_the_stepped_bucket(clock: Clock, seed: u64, offset: fn(&mut Random, Quota) -> Duration) {
    compare(clock, seed, |random, comparison| {
        let quota = draw_roomy_quota(random, SteppedBucket::new);
        let offset = offset(random, quota);
        let bucket = SteppedBucket::new(quota).offset(offset);
        let scale = Scale::of(quota, quota.max_burst());
        comparison.run(random, format!("{bucket:?} {quota}"), &bucket, &mut Steps::new(quota, offset), scale);
    });
}

fn compare_the_fixed_window(clock: Clock, seed: u64, offset: fn(&mut Random, Quota) -> Duration) {
    compare(clock, seed, |random, comparison| {
        let quota = draw_roomy_quota(random, FixedWindow::new);
        let offset = offset(random, quota);
        let window = FixedWindow::new(quota).offset(offset);
        let scale = Scale::of(quota, quota.limit());
        comparison.run(
            random,
            format!("{window:?} {quota}"),
            &window,
            &mut Window::aligned(quota, offset),
            scale,
        );
    });
}

fn compare_the_window_from_the_first_hit(clock: Clock, seed: u64) {
    compare(clock, seed, |random, comparison| {
        let quota = draw_roomy_quota(random, |quota| FixedWindow::new(quota).from_first_hit());
        let window = FixedWindow::new(quota).from_first_hit();
        let scale = Scale::of(quota, quota.limit());
        comparison.run(
            random,
            format!("{window:?} {quota}"),
            &window,
            &mut Window::from_first_hit(quota),
            scale,
        );
    });
}

fn compare_the_log(clock: Clock, seed: u64) {
    compare(clock, seed, |random, comparison| {
        let quota = draw_quota(random, 30);
        let room = random.below(80);
        let log = SlidingLog::new(quota).room(room);
        let scale = Scale::of(quota, quota.limit());
        comparison.run(random, format!("{log:?} {quota}"), &log, &mut Log::new(quota, room), scale);
    });
}

fn compare_the_cells(clock: Clock, seed: u64, kind: Cells) {
    compare(clock, seed, |random, comparison| {
        let quota = draw_quota(random, u64::from(u32::MAX));
        let cells = pick(random, &[1, 5, 7, 10, 1, 5, 7, 10, 2, 3]);
        let window = SlidingWindow::new(quota, cells).oldest(kind);
        let mut model = CellCounts::new(quota, cells, oldest(kind));
        let scale = Scale::of(quota, quota.limit());
        comparison.run(random, format!("{window:?} {quota}"), &window, &mut model, scale);
    });
}

fn oldest(kind: Cells) -> Oldest {
    match kind {
        Cells::Strict => Oldest::InFull,
        Cells::Interpolated => Oldest::InProportion,
        Cells::Plain => Oldest::NotAtAll,
    }
}

fn compare_pairs(clock: Clock, seed: u64) {
    compare(clock, seed, |random, comparison| {
        let (fast, slow) = (draw_quota(random, 1_000), draw_quota(random, 1_000));
        let policy = (TokenBucket::new(fast), FixedWindow::new(slow));
        let mut model = Policy(vec![
            Box::new(Bucket::new(fast, MayStepBack)),
            Box::new(Window::aligned(slow, Duration::ZERO)),
        ]);
        let scale = Scale::of(fast, fast.max_burst().min(slow.limit()));
        comparison.run(random, format!("{policy:?} {slow}"), &policy, &mut model, scale);
    });
}

fn compare_triples(clock: Clock, seed: u64) {
    compare(clock, seed, |random, comparison| {
        let quotas = [(); 3].map(|()| draw_quota(random, 20));
        let [first, second, third] = quotas;
        let policy = (SlidingLog::new(first), TokenBucket::new(second), SlidingWindow::new(third, 5));
        let mut model = Policy(vec![
            Box::new(Log::new(first, 0)),
            Box::new(Bucket::new(second, MayStepBack)),
            Box::new(CellCounts::new(third, 5, Oldest::InFull)),
        ]);
        let least = first.limit().min(second.max_burst()).min(third.limit());
        comparison.run(random, format!("{quotas:?}"), &policy, &mut model, Scale::of(second, least));
    });
}

/// Any algorithm with its oracle, and the most that passes at once.
fn draw_rule(random: &mut Random) -> (Rule, Box<dyn Oracle>, u64) {
    let quota = draw_quota(random, 30);
    let (limit, burst) = (quota.limit(), quota.max_burst());
    let offset = draw_offset(random, quota);
    match random.below(8) {
        7 if let Some((queue, model, most)) = draw_zone(random, quota) => {
            (Rule::NginxQueue(queue), Box::new(model), most)
        }
        6 => {
            let (queue, model, most) = draw_queue(random, quota, MayStepBack);
            (Rule::LeakyQueue(queue), Box::new(model), most)
        }
        0 => (Rule::TokenBucket(TokenBucket::new(quota)), Box::new(Bucket::new(quota, MayStepBack)), burst),
        1 => {
            let bucket = SteppedBucket::new(quota).offset(offset);
            (Rule::SteppedBucket(bucket), Box::new(Steps::new(quota, offset)), burst)
        }
        2 => {
            let window = FixedWindow::new(quota).offset(offset);
            (Rule::FixedWindow(window), Box::new(Window::aligned(quota, offset)), limit)
        }
        3 => {
            let window = FixedWindow::new(quota).from_first_hit();
            (Rule::FixedWindow(window), Box::new(Window::from_first_hit(quota)), limit)
        }
        4 => (Rule::SlidingLog(SlidingLog::new(quota)), Box::new(Log::new(quota, 0)), limit),
        _ => {
            let kind = pick(random, &[Cells::Strict, Cells::Interpolated, Cells::Plain]);
            let window = SlidingWindow::new(quota, 7).oldest(kind);
            (Rule::SlidingWindow(window), Box::new(CellCounts::new(quota, 7, oldest(kind))), limit)
        }
    }
}

fn compare_slices(clock: Clock, seed: u64) {
    compare(clock, seed, |random, comparison| {
        let (mut rules, mut models, mut least) = (Vec::new(), Vec::new(), u64::MAX);
        for _ in 0..random.between(1, 4) {
            let (rule, model, capacity) = draw_rule(random);
            rules.push(rule);
            models.push(model);
            least = least.min(capacity);
        }
        let quota = draw_quota(random, 30);
        let rules = rules.as_slice();
        assert_eq!(usize::from(rules.rules()), models.len());
        comparison.run(random, format!("{rules:?}"), rules, &mut Policy(models), Scale::of(quota, least));
    });
}

fn none(_: &mut Random, _: Quota) -> Duration {
    Duration::ZERO
}

#[test]
fn the_token_bucket_equals_its_oracle() {
    compare_the_token_bucket(Forward, 1, MayStepBack);
}

#[test]
fn the_token_bucket_for_a_steady_clock_equals_its_oracle() {
    compare_the_token_bucket(Forward, 23, Monotonic);
}

#[test]
fn the_token_bucket_for_a_steady_clock_equals_its_oracle_for_late_readings() {
    compare_the_token_bucket(SometimesBack, 24, Monotonic);
}

#[test]
fn the_token_bucket_equals_its_oracle_when_the_clock_steps_back() {
    compare_the_token_bucket(SometimesBack, 2, MayStepBack);
}

#[test]
fn the_per_call_bucket_equals_its_oracle() {
    compare_the_per_call_bucket(Forward, 40, MayStepBack);
}

#[test]
fn the_per_call_bucket_for_a_steady_clock_equals_its_oracle() {
    compare_the_per_call_bucket(Forward, 41, Monotonic);
}

#[test]
fn the_per_call_bucket_equals_its_oracle_when_the_clock_steps_back() {
    compare_the_per_call_bucket(SometimesBack, 42, MayStepBack);
}

#[test]
fn the_leaky_queue_equals_its_oracle() {
    compare_the_leaky_queue(Forward, 50, MayStepBack);
}

#[test]
fn the_leaky_queue_for_a_steady_clock_equals_its_oracle() {
    compare_the_leaky_queue(Forward, 51, Monotonic);
}

#[test]
fn the_leaky_queue_equals_its_oracle_when_the_clock_steps_back() {
    compare_the_leaky_queue(SometimesBack, 52, MayStepBack);
}

#[test]
fn the_nginx_queue_equals_its_oracle() {
    compare_the_nginx_queue(Forward, 53);
}

#[test]
fn the_nginx_queue_equals_its_oracle_when_the_clock_steps_back() {
    compare_the_nginx_queue(SometimesBack, 54);
}

#[test]
fn the_stepped_bucket_equals_its_oracle() {
    compare_the_stepped_bucket(Forward, 3, none);
}

#[test]
fn the_stepped_bucket_with_an_offset_equals_its_oracle() {
    compare_the_stepped_bucket(Forward, 4, draw_offset);
}

#[test]
fn the_stepped_bucket_equals_its_oracle_when_the_clock_steps_back() {
    compare_the_stepped_bucket(SometimesBack, 5, draw_offset);
}

#[test]
fn the_fixed_window_equals_its_oracle() {
    compare_the_fixed_window(Forward, 6, none);
}

#[test]
fn the_fixed_window_with_an_offset_equals_its_oracle() {
    compare_the_fixed_window(Forward, 7, draw_offset);
}

#[test]
fn the_fixed_window_equals_its_oracle_when_the_clock_steps_back() {
    compare_the_fixed_window(SometimesBack, 8, draw_offset);
}

#[test]
fn the_window_from_the_first_hit_equals_its_oracle() {
    compare_the_window_from_the_first_hit(Forward, 9);
}

#[test]
fn the_window_from_the_first_hit_equals_its_oracle_when_the_clock_steps_back() {
    compare_the_window_from_the_first_hit(SometimesBack, 10);
}

#[test]
fn the_log_equals_its_oracle() {
    compare_the_log(Forward, 11);
}

#[test]
fn the_log_equals_its_oracle_when_the_clock_steps_back() {
    compare_the_log(SometimesBack, 12);
}

#[test]
fn strict_cells_equal_their_oracle() {
    compare_the_cells(Forward, 13, Cells::Strict);
}

#[test]
fn strict_cells_equal_their_oracle_when_the_clock_steps_back() {
    compare_the_cells(SometimesBack, 14, Cells::Strict);
}

#[test]
fn interpolated_cells_equal_their_oracle() {
    compare_the_cells(Forward, 15, Cells::Interpolated);
}

#[test]
fn interpolated_cells_equal_their_oracle_when_the_clock_steps_back() {
    compare_the_cells(SometimesBack, 16, Cells::Interpolated);
}

#[test]
fn plain_cells_equal_their_oracle() {
    compare_the_cells(Forward, 17, Cells::Plain);
}

#[test]
fn plain_cells_equal_their_oracle_when_the_clock_steps_back() {
    compare_the_cells(SometimesBack, 18, Cells::Plain);
}

#[test]
fn a_pair_of_rules_equals_its_oracle() {
    compare_pairs(Forward, 19);
}

#[test]
fn three_rules_equal_their_oracle_when_the_clock_steps_back() {
    compare_triples(SometimesBack, 20);
}

#[test]
fn any_slice_of_rules_equals_its_oracle() {
    compare_slices(Forward, 21);
}

#[test]
fn any_slice_of_rules_equals_its_oracle_when_the_clock_steps_back() {
    compare_slices(SometimesBack, 22);
}
