//! Pacing: values published by other projects, properties, the ends of the time line, and invalid settings.

mod random;

use std::time::Duration;

use random::Random;
use tidegate_core::{Bursty, InvalidQuota, Micros, Pacing, Quota, Wait, WarmUp};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// A caller that reserves, waits as long as the reservation says, and reserves again.
struct Caller {
    pacing: Pacing,
    state: [u64; 3],
    now: Micros,
}

impl Caller {
    fn of(pacing: impl Into<Pacing>) -> Self {
        Caller { pacing: pacing.into(), state: [0; 3], now: Micros::ZERO }
    }

    fn at(pacing: impl Into<Pacing>, now: Micros) -> Self {
        let mut caller = Caller { now, ..Caller::of(pacing) };
        caller.pacing.start(&mut caller.state, now);
        caller
    }

    /// Waits for `permits`, and returns how long that took, in microseconds.
    fn acquire(&mut self, permits: u64) -> u64 {
        let reserved = self.pacing.reserve(&mut self.state, self.now, permits).expect("on the time line");
        self.now = reserved.from();
        reserved.wait().as_micros()
    }

    fn acquire_each(&mut self, permits: &[u64]) -> Vec<u64> {
        permits.iter().map(|&permits| self.acquire(permits)).collect()
    }

    fn idle(&mut self, micros: u64) {
        self.now = self.now.plus(micros);
    }

    fn set_rate(&mut self, quota: Quota) {
        let (old, from) = (self.pacing, self.state);
        self.pacing = old.with_quota(quota).expect("a rate that fits");
        self.pacing.migrate_from(&old, &from, &mut self.state);
    }

    fn wait(&self) -> u64 {
        self.pacing.peek(&self.state, self.now).expect("on the time line").as_micros()
    }
}

fn five() -> Quota {
    Quota::per_second(5)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Whole waits in milliseconds.
fn millis(waits: Vec<u64>) -> Vec<u64> {
    waits.into_iter().map(|micros| micros / 1_000).collect()
}

// --- published values

#[test]
fn permits_pass_at_an_even_pace() {
    let mut caller = Caller::of(Bursty::new(five()));
    assert_eq!(millis(caller.acquire_each(&[1; 7])), [0, 200, 200, 200, 200, 200, 200]);
}

#[test]
fn a_large_request_passes_and_the_next_one_waits_for_it() {
    let mut caller = Caller::of(Bursty::new(five()));
    assert_eq!(millis(caller.acquire_each(&[5, 1, 1])), [0, 1_000, 200]);
    let mut slow = Caller::of(Bursty::new(Quota::per_second(1)));
    assert_eq!(millis(slow.acquire_each(&[100, 1])), [0, 100_000]);
}

#[test]
fn idle_time_is_stored_up_to_the_max_burst() {
    let mut caller = Caller::of(Bursty::new(Quota::per_second(2)));
    assert_eq!(caller.acquire(1), 0);
    caller.idle(5_000_000);
    assert_eq!(millis(caller.acquire_each(&[1; 4])), [0, 0, 0, 500]);
}

#[test]
fn a_warm_up_starts_cold_after_idle_time() {
    let mut caller = Caller::of(WarmUp::new(five(), SECOND));
    assert_eq!(millis(caller.acquire_each(&[1; 6])), [0, 520, 360, 220, 200, 200]);
    caller.idle(1_000_000);
    assert_eq!(millis(caller.acquire_each(&[1; 5])), [0, 360, 220, 200, 200]);
}

#[test]
fn a_longer_warm_up_has_the_published_waits() {
    let mut caller = Caller::of(WarmUp::new(five(), seconds(3)));
    let waits = caller.acquire_each(&[1; 12]);
    let published = [
        0, 573_333, 520_000, 466_666, 413_333, 360_000, 306_666, 253_333, 206_666, 200_000, 200_000, 200_000,
    ];
    for (wait, published) in waits.into_iter().zip(published) {
        assert!(wait.abs_diff(published) <= 1, "{wait} is not {published}");
    }
}

// --- properties

/// However a number of permits is split, warming up over them costs the same, to the last part of a
/// microsecond.
#[test]
fn any_split_of_permits_costs_the_same() {
    let mut random = Random::seeded(41);
    for quota in [five(), Quota::per_second(999_983), Quota::per_second(7), Quota::per_day(1)] {
        for (numerator, denominator) in [(3, 1), (1, 1), (7, 3), (100, 1)] {
            let warm_up = WarmUp::new(quota, Duration::from_micros(random.between(1, 90_000_000)));
            let pacing = warm_up.try_cold_factor(numerator, denominator).expect("an exact one");
            for _ in 0..50 {
                let rest = random.below(100_000_000);
                let mut whole = Caller::of(pacing);
                whole.acquire(random.below(40));
                whole.idle(rest);
                let mut cut = Caller { pacing: whole.pacing, ..whole };
                let parts: Vec<u64> = (0..random.between(1, 9)).map(|_| random.between(1, 12)).collect();
                let reserve = |caller: &mut Caller, permits| {
                    let _ = caller.pacing.reserve(&mut caller.state, caller.now, permits);
                };
                reserve(&mut whole, parts.iter().sum());
                parts.iter().for_each(|&part| reserve(&mut cut, part));
                assert_eq!(whole.state, cut.state, "{pacing:?} {parts:?}");
            }
        }
    }
}

/// The permits that pass while a caller never rests, in a stretch of whole periods.
fn in_the_long_run(pacing: impl Into<Pacing>, quota: Quota, periods: u32, batch: u64) -> u64 {
    let end = quota.period() * periods;
    let (mut caller, mut passed) = (Caller::of(pacing), 0);
    loop {
        caller.acquire(batch);
        if Duration::from_micros(caller.now.get()) >= end {
            return passed;
        }
        passed += batch;
    }
}

#[test]
fn the_rate_is_kept_and_not_exceeded_in_the_long_run() {
    for (quota, periods, batch) in [
        (Quota::per_second(80_000), 3, 1),
        (Quota::per_second(999_983), 1, 1),
        (Quota::per_second(999_983), 600, 1_009),
        (Quota::per_second(3), 10_000, 1),
        (Quota::per_day(1), 1_000, 1),
    ] {
        let most = quota.limit() * u64::from(periods);
        let passed = in_the_long_run(Bursty::new(quota), quota, periods, batch);
        assert!((most..most + batch).contains(&passed), "{quota}: {passed} of {most}");
        // From cold, a warm-up of one period lets less pass in the first two periods, and no more in any.
        let warm_up = WarmUp::new(quota, quota.period());
        let passed = in_the_long_run(warm_up, quota, periods, batch);
        assert!(
            passed <= most + batch && passed + quota.limit() + batch >= most,
            "{quota}: {passed} of {most}"
        );
    }
}

#[test]
fn a_rate_of_eighty_thousand_per_second_is_not_rounded() {
    let mut caller = Caller::of(Bursty::new(Quota::per_second(80_000)));
    caller.acquire(80_000);
    assert_eq!(caller.acquire(1), 1_000_000);
    let waits = caller.acquire_each(&[1; 6]);
    assert_eq!(waits, [13, 12, 13, 12, 13, 12]);
}

/// Over any stretch at most rate·(stretch + max burst) passes, and one request.
#[test]
fn no_stretch_admits_more_than_rate_and_max_burst() {
    let (quota, max_burst) = (Quota::per_second(100), 250_000);
    let mut random = Random::seeded(42);
    let mut caller = Caller::of(Bursty::new(quota).max_burst(Duration::from_micros(max_burst)));
    let mut passed: Vec<(u64, u64)> = Vec::new();
    for _ in 0..3_000 {
        if random.one_in(10) {
            caller.idle(random.below(600_000));
        }
        let permits = random.between(1, 9);
        caller.acquire(permits);
        passed.push((caller.now.get(), permits));
    }
    for (index, &(from, _)) in passed.iter().enumerate() {
        let mut sum = 0;
        for &(to, permits) in passed[index..].iter().take(60) {
            // All but the last are paid for: 10 ms each.
            assert!(sum * 10_000 <= to - from + max_burst, "{sum} from {from} to {to}");
            sum += permits;
        }
    }
}

#[test]
fn a_new_rate_keeps_the_wait_that_was_reserved() {
    let mut caller = Caller::of(Bursty::new(Quota::per_second(1)));
    assert_eq!(millis(caller.acquire_each(&[1, 1])), [0, 1_000]);
    caller.set_rate(Quota::per_second(2));
    assert_eq!(millis(caller.acquire_each(&[1, 2, 4, 1])), [1_000, 500, 1_000, 2_000]);
}

#[test]
fn a_new_rate_keeps_the_proportion_of_stored_permits() {
    let mut caller = Caller::of(Bursty::new(Quota::per_second(10)));
    caller.idle(500_000); // half full
    caller.set_rate(Quota::per_second(1_000));
    assert_eq!(millis(caller.acquire_each(&[500, 1, 1])), [0, 0, 1]);

    let mut caller = Caller::of(WarmUp::new(five(), SECOND));
    caller.acquire_each(&[1; 6]); // warm, and one is still to be waited for
    caller.set_rate(Quota::per_second(10));
    assert_eq!(millis(caller.acquire_each(&[1; 3])), [200, 100, 100]);
    caller.idle(1_100_000);
    caller.set_rate(five());
    assert_eq!(millis(caller.acquire_each(&[1; 4])), [0, 520, 360, 220], "cold as ever");
}

/// Back at the first rate, the instant has been rounded up twice, each time by less than a microsecond, and
/// never down.
#[test]
fn changing_the_rate_back_and_forth_gains_no_permits() {
    for made in [Pacing::new(Quota::per_second(7)), WarmUp::new(Quota::per_second(7), SECOND).into()] {
        let mut caller = Caller::of(made);
        caller.acquire_each(&[3, 5]);
        let promised = caller.wait();
        for round in 1..=100 {
            caller.set_rate(Quota::per_second(11));
            caller.set_rate(Quota::per_second(7));
            let wait = caller.wait();
            assert!((promised..=promised + 2 * round).contains(&wait), "{wait} after {round}");
        }
    }
}

#[test]
fn cancelling_the_last_reservation_restores_the_state() {
    for made in [Pacing::new(five()), WarmUp::new(five(), SECOND).into()] {
        let (mut state, now) = ([0; 3], Micros::new(10));
        let _ = made.reserve(&mut state, now, 2).expect("on the time line");
        let before = state;
        let first = made.reserve(&mut state, now, 3).expect("on the time line");
        let between = state;
        let second = made.reserve(&mut state, now, 1).expect("on the time line");
        assert!(made.cancel(&mut state, now, second));
        assert_eq!(state, between);
        assert!(made.cancel(&mut state, now, first));
        assert_eq!(state, before);
    }
}

#[test]
fn a_reservation_with_a_later_one_cannot_be_cancelled() {
    for made in [Pacing::new(five()), WarmUp::new(five(), SECOND).into()] {
        let (mut state, now) = ([0; 3], Micros::ZERO);
        let first = made.reserve(&mut state, now, 3).expect("on the time line");
        let second = made.reserve(&mut state, now, 1).expect("on the time line");
        let after = state;
        assert!(!made.cancel(&mut state, now, first));
        assert_eq!(state, after);
        assert!(made.cancel(&mut state, now, second));
    }
}

#[test]
fn a_reservation_cannot_be_cancelled_after_its_instant() {
    let (pacing, mut state) = (Pacing::new(five()), [0; 3]);
    let _ = pacing.reserve(&mut state, Micros::ZERO, 1).expect("on the time line");
    let reserve = |state: &mut [u64; 3]| pacing.reserve(state, Micros::ZERO, 1).expect("on the time line");
    let reserved = reserve(&mut state);
    assert!(!pacing.cancel(&mut state, Micros::new(200_001), reserved));
    let reserved = reserve(&mut state);
    assert!(pacing.cancel(&mut state, Micros::new(400_000), reserved));
}

#[test]
fn try_within_passes_at_exactly_the_timeout() {
    let (pacing, mut state) = (Pacing::new(five()), [0; 3]);
    let mut tries = |now, timeout| {
        pacing
            .try_within(&mut state, Micros::new(now), 1, Wait::micros(timeout))
            .map(|reserved| reserved.wait())
    };
    assert_eq!(tries(0, 0), Ok(Wait::micros(0)));
    assert_eq!(tries(0, 199_999), Err(Wait::micros(200_000)));
    assert_eq!(tries(0, 200_000), Ok(Wait::micros(200_000)));
    assert_eq!(tries(100_000, u64::MAX), Ok(Wait::micros(300_000)));
}

#[test]
fn zero_permits_cost_nothing() {
    for made in [Pacing::new(five()), WarmUp::new(five(), SECOND).into()] {
        let mut state = [0; 3];
        let _ = made.reserve(&mut state, Micros::ZERO, 1).expect("on the time line");
        let (before, now) = (state, Micros::new(1));
        let free = made.reserve(&mut state, now, 0).expect("on the time line");
        assert_eq!((free.wait(), state), (made.peek(&before, now).expect("on the time line"), before));
    }
}

/// A thread may be interrupted between reading the clock and reserving. Its old reading changes no other wait.
#[test]
fn a_late_clock_reading_gains_no_permits() {
    for made in [Pacing::new(five()), WarmUp::new(five(), SECOND).into()] {
        let (mut late, mut punctual) = ([0; 3], [0; 3]);
        let (before, now) = (Micros::new(9_000_000), Micros::new(9_000_007));
        for state in [&mut late, &mut punctual] {
            let _ = made.reserve(state, now, 20).expect("on the time line");
        }
        let one = made.reserve(&mut late, before, 1).expect("on the time line");
        let other = made.reserve(&mut punctual, now, 1).expect("on the time line");
        assert_eq!((one.from(), late), (other.from(), punctual));
    }
}

#[test]
fn a_cold_factor_of_one_is_an_even_pace() {
    let mut caller = Caller::of(WarmUp::new(five(), SECOND).cold_factor(1));
    assert_eq!(millis(caller.acquire_each(&[1, 2, 1])), [0, 200, 400]);
    caller.idle(60_000_000);
    assert_eq!(millis(caller.acquire_each(&[1, 1, 1])), [0, 200, 200], "no permits are stored");
}

#[test]
fn a_max_burst_of_zero_lets_one_permit_pass_at_a_time() {
    let mut caller = Caller::of(Bursty::new(five()).max_burst(Duration::ZERO));
    caller.idle(60_000_000);
    assert_eq!(millis(caller.acquire_each(&[1, 1, 1])), [0, 200, 200]);
}

#[test]
fn a_new_pacer_has_no_stored_permits() {
    let today = Micros::new(1_760_000_000_000_000);
    let mut caller = Caller::at(Bursty::new(five()), today);
    assert_eq!(millis(caller.acquire_each(&[1, 1])), [0, 200]);
    let mut cold = Caller::at(WarmUp::new(five(), SECOND), today);
    assert_eq!(millis(cold.acquire_each(&[1, 1])), [0, 520]);
}

/// A warm-up of one microsecond has almost no effect. The rate still holds.
#[test]
fn the_shortest_warm_up_still_limits() {
    let mut caller = Caller::of(WarmUp::new(Quota::per_second(80_000), Duration::from_micros(1)));
    caller.acquire(80_000);
    let wait = caller.acquire(1);
    assert!((1_000_000..=1_000_001).contains(&wait), "{wait}");
}

// --- the ends

#[test]
fn more_permits_than_time_can_pay_for_block_until_the_end_of_time() {
    for made in [Pacing::new(five()), WarmUp::new(five(), SECOND).into()] {
        for permits in [1 << 53, u64::MAX - 1, u64::MAX] {
            let (mut state, now) = ([0; 3], Micros::new(1_000_000));
            let first = made.reserve(&mut state, now, permits).expect("no reservation is before it");
            assert_eq!(first.wait(), Wait::micros(0));
            let until_the_end = Wait::micros(Micros::MAX.get() - 1_000_000);
            assert_eq!(made.reserve(&mut state, now, 1), Err(until_the_end));
            assert_eq!(made.try_within(&mut state, now, 1, Wait::micros(u64::MAX)), Err(until_the_end));
            assert_eq!(made.reserve(&mut state, Micros::MAX, 1), Err(Wait::micros(0)));
            assert!(made.cancel(&mut state, now, first), "and it can be cancelled");
            assert!(made.reserve(&mut state, now, 1).is_ok());
        }
    }
}

#[test]
fn a_debt_until_the_end_of_time_survives_a_change_of_the_rate() {
    let fast = Quota::try_new((1 << 53) - 1, Duration::from_micros(1), 1).expect("the fastest there is");
    for made in
        [Pacing::new(Quota::per_day(1)), WarmUp::new(Quota::per_day(1), Duration::from_micros(1)).into()]
    {
        let mut caller = Caller::of(made);
        caller.acquire(u64::MAX);
        caller.set_rate(fast);
        let until_the_end = Wait::micros(Micros::MAX.get());
        assert_eq!(caller.pacing.peek(&caller.state, caller.now), Err(until_the_end));
    }
}

#[test]
fn no_permits_are_gained_at_the_end_of_the_time_line() {
    for made in [Pacing::new(five()), WarmUp::new(five(), SECOND).into()] {
        let mut state = [0; 3];
        made.start(&mut state, Micros::MAX.minus(1_000_000));
        let passed = (0..100).filter(|_| made.reserve(&mut state, Micros::MAX, 1).is_ok()).count();
        assert!(passed <= 6, "{passed}");
        assert!(made.reserve(&mut state, Micros::MAX, 1).is_err());
    }
}

/// `try_now` equals `try_within` with a timeout of zero.
fn assert_now_is_within_zero(made: &Pacing, mut state: [u64; 3], now: Micros, permits: u64) {
    let mut other = state;
    let within = made.try_within(&mut other, now, permits, Wait::micros(0));
    assert_eq!(made.try_now(&mut state, now, permits), within.is_ok(), "{made:?} at {now}: {permits}");
    assert_eq!(state, other, "{made:?} at {now}: {permits}");
}

#[test]
fn a_max_burst_longer_than_the_time_line_is_as_long_as_it() {
    let beyond = Duration::from_micros(u64::MAX) + Duration::from_micros(1); // of which 64 bits are zero
    let made = Pacing::from(Bursty::new(five()).max_burst(beyond));
    let (mut state, rested) = ([0; 3], Micros::new(10_000_000));
    assert!((0..51).all(|_| made.try_now(&mut state, rested, 1)), "ten seconds were stored");
    assert!(!made.try_now(&mut state, rested, 1));
}

#[test]
fn try_now_charges_only_requests_that_need_no_wait() {
    for made in [Pacing::new(five()), WarmUp::new(five(), SECOND).into()] {
        let mut state = [0; 3];
        for now in (0..3_000_000).step_by(50_000).map(Micros::new) {
            [0, 1, 2].iter().for_each(|permits| assert_now_is_within_zero(&made, state, now, *permits));
            let _ = made.try_now(&mut state, now, 1);
        }
    }
}

#[test]
fn no_instant_and_no_number_of_permits_wraps() {
    let instants = [0, 1, (1 << 53) - 10_000, (1 << 53) - 2, 1 << 53, u64::MAX];
    let permits = [0, 1, 2, 1 << 32, 1 << 53, u64::MAX];
    let quotas = [
        Quota::per_second(1),
        Quota::per_day(1),
        Quota::per_second(999_983),
        Quota::per(1, Duration::from_micros((1 << 53) - 1)),
        Quota::try_new((1 << 53) - 1, Duration::from_micros(1), 1).expect("the fastest there is"),
    ];
    for quota in quotas {
        let warm_ups = [1, 1_000_000, 86_400_000_000].map(Duration::from_micros);
        let warm = warm_ups.iter().filter_map(|&long| WarmUp::try_new(quota, long).ok()).map(Pacing::from);
        let bursty = Bursty::new(quota).max_burst(Duration::from_secs(u64::MAX));
        for made in warm.chain([bursty.into(), Pacing::new(quota)]) {
            for (start, now) in instants.iter().flat_map(|&a| instants.map(|b| (a, b))) {
                let mut state = [0; 3];
                made.start(&mut state, Micros::new(start));
                for requested in permits {
                    assert_now_is_within_zero(&made, state, Micros::new(now), requested);
                    let wait = made.peek(&state, Micros::new(now));
                    let reserved = made.reserve(&mut state, Micros::new(now), requested);
                    assert_eq!(reserved.map(|reserved| reserved.wait()), wait, "{made:?}");
                }
                // All permits that can be requested take longer than the time line, except at the fastest
                // rate.
                let fastest = quota.period() == Duration::from_micros(1);
                assert!(fastest || made.peek(&state, Micros::new(now)).is_err(), "{made:?}");
            }
        }
    }
}

// --- invalid settings

fn sentence<T: std::fmt::Debug>(result: Result<T, InvalidQuota>) -> String {
    result.expect_err("this must be refused").to_string()
}

#[test]
fn a_warm_up_is_a_whole_number_of_microseconds() {
    for (nanos, shown) in [(0, "0ns"), (999, "999ns"), (1_500, "1.5µs")] {
        assert_eq!(
            sentence(WarmUp::try_new(five(), Duration::from_nanos(nanos))),
            format!("a warm-up of {shown} is not a whole number of microseconds; use 1us or more")
        );
    }
    assert!(WarmUp::try_new(five(), Duration::from_micros(1)).is_ok());
    assert!(sentence(WarmUp::try_new(five(), Duration::MAX)).contains("not a whole number"));
}

#[test]
fn a_max_burst_is_a_whole_number_of_microseconds() {
    assert_eq!(
        sentence(Bursty::new(five()).try_max_burst(Duration::from_nanos(1_500))),
        "a max burst of 1.5µs is not a whole number of microseconds; use 0s, 1us or more"
    );
    assert!(Bursty::new(five()).try_max_burst(Duration::from_secs(u64::MAX)).is_ok(), "as long as time");
}

#[test]
fn a_cold_factor_is_one_or_more() {
    let warm_up = WarmUp::new(five(), SECOND);
    assert_eq!(sentence(warm_up.try_cold_factor(1, 2)), "a cold factor of 1/2 is below 1; use 1 or more");
    assert_eq!(sentence(warm_up.try_cold_factor(0, 1)), "a cold factor of 0/1 is below 1; use 1 or more");
    assert_eq!(
        sentence(warm_up.try_cold_factor(0, 0)),
        "a cold factor of 0/0 is not a number; use 1 or more"
    );
    assert_eq!(
        sentence(warm_up.try_cold_factor(3, 0)),
        "a cold factor of 3/0 is not a number; use 1 or more"
    );
    assert_eq!(warm_up.try_cold_factor(6, 2), Ok(warm_up), "3 is the default");
}

/// With one each second and a cold factor of 3, a microsecond has at least 4 parts and all of them are below
/// 2⁶². With 5/2 it has 30, and a whole area, 16² · (5 + 5 · 2) · (5 + 2) times the square of the warm-up, is
/// below 2¹²⁸.
#[test]
fn the_longest_warm_ups_can_be_counted_exactly_and_longer_ones_cannot() {
    let long = |micros| WarmUp::try_new(Quota::per_second(1), Duration::from_micros(micros));
    assert!(long((1 << 60) - 1).is_ok());
    assert!(long(1 << 60).is_err());
    let longest = (u128::MAX / (16 * 16 * 15 * 7)).isqrt();
    let longest = u64::try_from(longest).expect("a length that fits");
    let with_5_halves = |micros| long(micros).expect("exact with 3").try_cold_factor(5, 2);
    assert!(with_5_halves(longest + 1).is_err());
    let mut caller = Caller::of(with_5_halves(longest).expect("exact"));
    assert_eq!(caller.acquire_each(&[1, 1, 0]), [0, 2_500_000, 2_500_000], "fully cold");
}

#[test]
fn settings_that_cannot_be_counted_exactly_are_refused() {
    let quota = Quota::per_second(999_983);
    assert!(WarmUp::try_new(quota, DAY).is_ok());
    assert_eq!(
        sentence(
            WarmUp::try_new(quota, DAY * 36_500).and_then(|long| long.try_cold_factor(3_141_593, 1_000_000))
        ),
        "999983 per 1s warming up over 3153600000s with a cold factor of 3/1 cannot be counted exactly; \
         use a shorter warm-up, or a rounder limit or cold factor"
    );
    let fits = WarmUp::new(Quota::per_second(1), DAY * 365);
    let too_much = Pacing::from(fits)
        .with_quota(Quota::try_new(999_983, Duration::from_secs(999_979), 1).expect("exact by itself"));
    assert!(sentence(too_much).contains("cannot be counted exactly"));
    assert!(
        sentence(WarmUp::try_new(five(), Duration::from_secs(u64::MAX)))
            .contains("cannot be counted exactly")
    );
}

#[test]
fn text_is_parsed_and_errors_point_at_the_mistake() {
    let read = |text: &str| text.parse::<Pacing>();
    assert_eq!(read("5/s"), Ok(Pacing::new(five())));
    assert_eq!(read("5/s max_burst 10s"), Ok(Bursty::new(five()).max_burst(seconds(10)).into()));
    assert_eq!(read(" 5 / s  warm_up 1min 30s "), Ok(WarmUp::new(five(), seconds(90)).into()));
    let warm_up = WarmUp::new(five(), seconds(3));
    assert_eq!(read("5/s warm_up 3s cold_factor 3"), Ok(warm_up.into()));
    assert_eq!(read("5/s warm_up 3s cold_factor 2.50"), warm_up.try_cold_factor(5, 2).map(Pacing::from));
    for (text, wrong) in [
        (
            "5/s cold_factor 3",
            "at character 5: found 'c', expected 'max_burst' or 'warm_up' and a duration, or nothing more",
        ),
        ("5/s max_burst 1s warm_up 1s", "at character 18: found 'w', expected nothing more"),
        (
            "5/s warm_up 1s max_burst 1s",
            "at character 16: found 'm', expected 'cold_factor' and a number, or nothing more",
        ),
        ("5/s warm_up 1s cold_factor NaN", "at character 28: found 'N', expected a number, as in 100/s"),
        ("5/s warm_up 1s cold_factor 0.5", "a cold factor of 1/2 is below 1; use 1 or more"),
        ("5/s warm_up 1s cold_factor 99999999999", "at character 28: the number is too large"),
        ("0/s", "at character 1: a limit of 0 lets nothing pass; use 1 or more"),
    ] {
        assert_eq!(sentence(read(text)), wrong, "for {text:?}");
    }
}
