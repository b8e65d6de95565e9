//! The unlimited quota: an ordinary exact quota of token buckets that no caller can exhaust.

mod random;

use std::time::Duration;

use random::Random;
use tidegate_core::{
    Algorithm, ClockKind, FixedWindow, InvalidQuota, LeakyQueue, Micros, NginxQueue, Pacing, PerCallBucket,
    Quota, Rule, SlidingLog, SlidingWindow, SteppedBucket, TokenBucket, Wait, WarmUp,
};

const UNLIMITED: Quota = Quota::unlimited();
const CLOCKS: [ClockKind; 2] = [ClockKind::MayStepBack, ClockKind::Monotonic];
const NOW: Micros = Micros::new(1_760_000_000_000_000);

fn rule(text: &str) -> Rule {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn pick<T: Copy, const N: usize>(random: &mut Random, values: [T; N]) -> T {
    values[usize::try_from(random.below(N as u64)).expect("an index")]
}

#[test]
fn the_numbers_of_unlimited_are_those_of_an_ordinary_quota() {
    let ordinary = Quota::try_new(1 << 52, Duration::from_micros(1), 1 << 52).expect("an exact quota");
    assert_eq!(UNLIMITED, ordinary);
    assert_eq!((UNLIMITED.p(), UNLIMITED.q(), UNLIMITED.max_burst()), (1, 1 << 52, 1 << 52));
    assert!(UNLIMITED.is_unlimited());
    for other in [UNLIMITED.burst((1 << 52) - 1), Quota::per((1 << 52) - 1, Duration::from_micros(1))] {
        assert!(!other.is_unlimited(), "{other}");
    }
}

#[test]
fn thousands_of_largest_costs_pass_at_one_instant() {
    let bucket = TokenBucket::new(UNLIMITED);
    let per_call = PerCallBucket::new(UNLIMITED);
    for (clock, now) in CLOCKS.into_iter().flat_map(|clock| [(clock, Micros::ZERO), (clock, NOW)]) {
        let (bucket, per_call) = (bucket.for_clock(clock), per_call.for_clock(clock));
        let (mut one, mut other) = (vec![0; bucket.words()], vec![0; per_call.words()]);
        for passed in 1..=5_000 {
            let left = (1 << 52) - passed * u64::from(u32::MAX);
            for decision in
                [bucket.decide(&mut one[..], now, u32::MAX), per_call.decide(&mut other[..], now, u32::MAX)]
            {
                assert!(decision.is_allowed(), "{decision:?}");
                assert_eq!((decision.limit(), decision.remaining()), (1 << 52, left));
                assert_eq!(decision.reset_after(), Wait::micros(1));
            }
        }
        assert_eq!(bucket.peek(&one[..], now.plus(1), 0).remaining(), 1 << 52, "full a microsecond later");
    }
}

#[test]
fn unlimited_is_read_and_written_as_text() {
    assert_eq!(UNLIMITED.to_string(), "unlimited");
    assert_eq!("unlimited".parse(), Ok(UNLIMITED));
    assert_eq!(" unlimited ".parse(), Ok(UNLIMITED));
    assert_eq!("4503599627370496/us".parse::<Quota>().map(|quota| quota.to_string()), Ok("unlimited".into()));
    let bucket = Rule::TokenBucket(TokenBucket::new(UNLIMITED));
    for text in
        ["unlimited", " unlimited", "token_bucket unlimited", "gcra unlimited", "leaky_meter unlimited"]
    {
        assert_eq!(rule(text), bucket, "{text}");
    }
    assert_eq!("unlimited".parse(), Ok(Pacing::new(UNLIMITED)));
    let finite_burst = UNLIMITED.burst(5);
    assert_eq!(finite_burst.to_string().parse(), Ok(finite_burst));
}

/// Quotas next to the unlimited one, and ordinary ones.
#[test]
fn every_quota_parses_back_from_its_text() {
    let mut random = Random::seeded(1);
    for _ in 0..20_000 {
        let near = |random: &mut Random| (1 << 52) - 1 + random.below(3);
        let limit = if random.one_in(2) { near(&mut random) } else { random.between(1, 1_000) };
        let burst = if random.one_in(2) { near(&mut random) } else { random.between(1, 1_000) };
        let period = Duration::from_nanos(1_000 * random.between(1, 2) + random.below(2) * 500);
        let Ok(quota) = Quota::try_new(limit, period, burst) else { continue };
        let text = quota.to_string();
        assert_eq!(text.parse(), Ok(quota), "{text}");
        assert_eq!(text == "unlimited", quota == UNLIMITED, "{text}");
    }
}

#[test]
fn text_after_unlimited_is_rejected_at_its_position() {
    for (text, position) in [
        ("unlimited burst 5", 10),
        ("unlimited/s", 9),
        ("unlimited per s", 10),
        ("token_bucket unlimited 5", 23),
        ("token_bucket unlimited offset 5s", 23),
    ] {
        let error = text.parse::<Rule>().expect_err(text);
        assert_eq!(error.position(), Some(position), "{error}");
        assert!(
            error.to_string().ends_with("nothing more: 'unlimited' has no period and no burst"),
            "{error}"
        );
    }
}

#[test]
fn other_algorithms_reject_unlimited_with_a_remedy() {
    let sentence = "only a token bucket accepts an unlimited quota; use a token bucket or a finite limit";
    let rejects = |result: Result<(), InvalidQuota>| {
        assert_eq!(result.expect_err("unlimited is rejected").to_string(), sentence);
    };
    rejects(FixedWindow::try_new(UNLIMITED).map(drop));
    rejects(SteppedBucket::try_new(UNLIMITED).map(drop));
    rejects(SlidingLog::try_new(UNLIMITED).map(drop));
    for cells in [0, 1, 5, u32::MAX] {
        rejects(SlidingWindow::try_new(UNLIMITED, cells).map(drop));
    }
    for queue in [0, 1, u32::MAX] {
        rejects(LeakyQueue::try_new(UNLIMITED, queue).map(drop));
        rejects(NginxQueue::try_new(UNLIMITED, queue).map(drop));
    }
    for text in [
        "fixed_window unlimited",
        "fixed_window unlimited from first hit",
        "fixed_window unlimited offset 10s",
        "stepped_bucket unlimited",
        "sliding_log unlimited",
        "sliding_window unlimited cells 5",
        "leaky_queue unlimited queue 5",
        "leaky_queue unlimited queue 5 nodelay",
        "leaky_queue unlimited queue 5 nginx",
    ] {
        rejects(text.parse::<Rule>().map(drop));
    }
    let warm_up = WarmUp::try_new(UNLIMITED, Duration::from_secs(1)).expect_err("too fine to be counted");
    assert!(warm_up.to_string().contains("cannot be counted exactly"), "{warm_up}");
}

#[test]
fn the_encoded_numbers_of_unlimited_fit_a_double() {
    let encoded = rule("unlimited").encode();
    assert_eq!((encoded.letter(), encoded.numbers()), (b'b', &[1, 1 << 52, 1 << 52][..]));
    for nodes in [1, 2, 3, 7, 1_000, u32::MAX] {
        let share = rule("unlimited").share(nodes).expect("a share of more than one");
        assert!(share.encode().numbers().iter().all(|number| *number < 1 << 53), "{nodes}: {share:?}");
    }
}

#[test]
fn changing_between_unlimited_and_a_small_quota_never_overflows() {
    let longest = Quota::per(1, Duration::from_micros((1 << 53) - 1));
    let quotas = [UNLIMITED, Quota::per_minute(10), Quota::per_second(999_983).burst(50), longest];
    for (seed, clock) in (0..200).flat_map(|seed| CLOCKS.map(|clock| (seed, clock))) {
        let mut random = Random::seeded(seed);
        let plans = quotas.map(|quota| PerCallBucket::new(quota).for_clock(clock));
        let buckets = quotas.map(|quota| TokenBucket::new(quota).for_clock(ClockKind::MayStepBack));
        let mut state = vec![0; plans[0].words()];
        let (mut bucket, mut words) = (buckets[0], [0; 3]);
        let mut now = pick(&mut random, [Micros::ZERO, NOW, Micros::MAX.minus(1_000_000)]);
        for _ in 0..100 {
            now = match random.below(6) {
                0 => now.plus(random.below(100_000_000)),
                1 if clock == ClockKind::MayStepBack => now.minus(random.below(200_000_000)),
                _ => now.plus(random.below(2)),
            };
            let choice = pick(&mut random, [0, 1, 2, 3]);
            let cost = pick(&mut random, [0, 1, 7, u32::MAX]);
            let plan = &plans[choice];
            let _ = match random.below(4) {
                0 => plan.force(&mut state[..], now, cost),
                1 => plan.take(&mut state[..], now, cost).decision,
                _ => plan.decide(&mut state[..], now, cost),
            };
            plan.refund(&mut state[..], now, pick(&mut random, [0, 1, u32::MAX]));
            let _ = (plan.peek(&state[..], now, cost), plan.idle_at(&state[..]));

            let mut migrated = [0; 3];
            buckets[choice].migrate_from(&bucket, &words, &mut migrated, now);
            (bucket, words) = (buckets[choice], migrated);
            let _ = bucket.force(&mut words, now, cost);
            bucket.repair(&mut words, now);
        }
    }
}

#[test]
fn what_a_key_used_is_still_used_after_unlimited() {
    let (small, unlimited) = (PerCallBucket::new(Quota::per_minute(10)), PerCallBucket::new(UNLIMITED));
    let mut state = vec![0; small.words()];
    assert_eq!(small.decide(&mut state[..], NOW, 7).remaining(), 3);
    assert_eq!(unlimited.decide(&mut state[..], NOW, 1).remaining(), (1 << 52) - 8);
    assert_eq!(small.peek(&state[..], NOW, 0).remaining(), 2);
    // The debt is paid at the pace it was charged at: a microsecond later nothing is owed.
    assert_eq!(small.peek(&state[..], NOW.plus(1), 0).remaining(), 10);
}

#[test]
fn unlimited_pacing_never_waits_a_microsecond_longer_than_one() {
    let (pacing, mut state) = (Pacing::new(UNLIMITED), [0; 3]);
    pacing.start(&mut state, NOW);
    for _ in 0..5_000 {
        let reserved = pacing.reserve(&mut state, NOW, u64::from(u32::MAX)).expect("a short wait");
        assert!(reserved.wait() <= Wait::micros(1), "{reserved:?}");
    }
}
