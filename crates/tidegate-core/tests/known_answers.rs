//! Known answers: published tables and outputs, and the faults of widely copied scripts, each with the input
//! that showed it. Each fault has a test with its name.

use std::time::Duration;

use tidegate_core::{
    Algorithm, Cells, Decision, FixedWindow, Micros, Outcome, Quota, RuleId, SlidingLog, SlidingWindow,
    SteppedBucket, TokenBucket, Wait,
};

/// One limit and its state, with instants in seconds or milliseconds.
struct Limit<A> {
    algorithm: A,
    state: Vec<u64>,
}

impl<A: Algorithm> Limit<A> {
    fn new(algorithm: A) -> Self {
        let state = vec![0; algorithm.words()];
        Limit { algorithm, state }
    }

    fn at_ms(&mut self, millis: u64, cost: u32) -> Decision {
        self.algorithm.decide(&mut self.state[..], Micros::new(millis * 1_000), cost)
    }

    fn at_s(&mut self, seconds: u64, cost: u32) -> Decision {
        self.at_ms(seconds * 1_000, cost)
    }

    fn passes_s(&mut self, seconds: &[u64]) -> Vec<bool> {
        seconds.iter().map(|&at| self.at_s(at, 1).is_allowed()).collect()
    }

    /// How many of `wanted` requests for one pass at that millisecond.
    fn admitted_ms(&mut self, millis: u64, wanted: u32) -> usize {
        (0..wanted).filter(|_| self.at_ms(millis, 1).is_allowed()).count()
    }

    /// Each rule's own decision on a cost, without charging it.
    fn rules_at_s(&self, seconds: u64, cost: u32) -> Vec<Decision> {
        let mut shown = Vec::new();
        let now = Micros::new(seconds * 1_000_000);
        self.algorithm.explain(&self.state[..], now, cost, RuleId(0), &mut |decision| shown.push(decision));
        shown
    }
}

fn bucket(rate: u64, burst: u64) -> Limit<TokenBucket> {
    Limit::new(TokenBucket::new(Quota::per_second(rate).burst(burst)))
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn remaining(decisions: &[Decision]) -> Vec<u64> {
    decisions.iter().map(Decision::remaining).collect()
}

/// "1 a second and 5 a minute", as two logs.
fn two_logs() -> (SlidingLog, SlidingLog) {
    (SlidingLog::new(Quota::per_second(1)), SlidingLog::new(Quota::per_minute(5)))
}

const YES: bool = true;
const NO: bool = false;

// === Faults that must not occur ===

#[test]
fn neg_1_the_last_token_is_given() {
    let mut limit = bucket(1, 5);
    assert_eq!(limit.passes_s(&[0; 6]), [YES, YES, YES, YES, YES, NO]);
}

#[test]
fn neg_2_a_bucket_of_one_passes() {
    let mut limit = bucket(1, 1);
    assert_eq!(limit.passes_s(&[0, 1, 2, 3]), [YES; 4]);
}

#[test]
fn neg_3_a_late_clock_reading_drives_nothing_below_zero() {
    let mut limit = bucket(10, 10);
    for (at, left) in [(10_000, 9), (5_000, 8), (5_000, 7), (10_000, 6)] {
        let decision = limit.at_ms(at, 1);
        assert_eq!((decision.outcome, decision.remaining()), (Outcome::Allowed, left), "at {at} ms");
    }
}

#[test]
fn neg_3_an_empty_bucket_stays_empty_on_a_late_clock_and_refills_at_its_rate() {
    let mut limit = bucket(10, 10);
    assert!(limit.at_ms(10_000, 10).is_allowed());
    let behind = limit.at_ms(5_000, 1);
    assert_eq!(behind.retry_after().map(Wait::duration), Some(Duration::from_millis(100)));
    assert_eq!(behind.reset_after(), seconds(1));
    assert!(!limit.at_ms(5_099, 1).is_allowed());
    assert!(limit.at_ms(5_100, 1).is_allowed());
}

#[test]
fn neg_4_requests_at_exactly_the_refill_rate_are_never_refused() {
    let every_second: Vec<u64> = (0..16).collect();
    assert_eq!(bucket(1, 10).passes_s(&every_second), [YES; 16]);

    let mut drained = bucket(1, 10);
    assert!(drained.at_s(0, 10).is_allowed());
    assert_eq!(drained.passes_s(&every_second[1..]), [YES; 15]);
}

#[test]
fn no_idle_time_is_credited_twice_and_none_is_lost_after_a_burst() {
    let mut limit = bucket(1, 10);
    assert!(limit.at_s(0, 10).is_allowed());
    assert!(limit.at_s(5, 5).is_allowed());
    assert!(!limit.at_s(5, 1).is_allowed());
    assert!(limit.at_s(6, 1).is_allowed());
    assert!(!limit.at_s(6, 1).is_allowed());
}

#[test]
fn neg_7_steady_hits_do_not_keep_a_window_open() {
    let every_50_s: Vec<u64> = (0..12).map(|n| n * 50).collect();
    let window = FixedWindow::new(Quota::per_minute(5));
    assert_eq!(Limit::new(window).passes_s(&every_50_s), [YES; 12]);
    assert_eq!(Limit::new(window.from_first_hit()).passes_s(&every_50_s), [YES; 12]);
}

#[test]
fn neg_8_an_expired_cell_does_not_count() {
    let window = SlidingWindow::new(Quota::per_minute(2), 60).oldest(Cells::Plain);
    let mut limit = Limit::new(window);
    let table = [(0, YES, 1), (0, YES, 0), (1, NO, 0), (59, NO, 0), (60, YES, 1), (61, YES, 0)];
    for (row, (at, passes, left)) in table.into_iter().enumerate() {
        let decision = limit.at_s(at, 1);
        assert_eq!((decision.is_allowed(), decision.remaining()), (passes, left), "row {row} at {at} s");
    }
}

#[test]
fn neg_8_a_refusal_never_reports_a_wait_of_zero() {
    let window = SlidingWindow::new(Quota::per_minute(2), 60).oldest(Cells::Plain);
    let mut limit = Limit::new(window);
    assert!(limit.at_s(0, 2).is_allowed());
    let refused = limit.at_s(59, 1);
    assert_eq!(refused.retry_after().map(Wait::duration), Some(seconds(1)));
    assert_eq!(refused.reset_after(), seconds(1));
}

#[test]
fn neg_13_slow_rates_are_not_rounded() {
    let table = [(10, 60), (1, 60), (2, 60), (3, 60), (100, 60), (1_000, 86_400)];
    for (limit, period) in table {
        let mut bucket = Limit::new(TokenBucket::new(Quota::per(limit, seconds(period))));
        let drain = u32::try_from(limit).unwrap();
        assert!(bucket.at_s(0, drain).is_allowed());
        for n in 1..=20 {
            let mut admitted = 0;
            for part in 1..=1_000 {
                let at = (n - 1) * period * 1_000 + part * period;
                admitted += bucket.admitted_ms(at, 5);
            }
            assert_eq!(admitted as u64, limit, "{limit} per {period} s, in period {n}");
        }
    }
}

#[test]
fn neg_15_no_part_of_a_token_is_lost_between_calls() {
    let mut limit = bucket(10, 10);
    assert!(limit.at_ms(0, 10).is_allowed());
    let granted = (1..=1_000).filter(|n| limit.at_ms(n * 99, 1).is_allowed()).count();
    assert!((989..=990).contains(&granted), "{granted} granted");
}

#[test]
fn neg_16_a_window_grants_the_limit_and_not_one_more() {
    let quota = Quota::per_second(10);
    for window in [FixedWindow::new(quota), FixedWindow::new(quota).from_first_hit()] {
        let mut limit = Limit::new(window);
        for start in [0, 1_000, 2_000] {
            assert_eq!(limit.admitted_ms(start, 20), 10, "{window:?} at {start} ms");
        }
    }
}

#[test]
fn neg_17_a_used_up_window_starts_anew_after_its_end() {
    let quota = Quota::per_second(10);
    for window in [FixedWindow::new(quota), FixedWindow::new(quota).from_first_hit()] {
        let mut limit = Limit::new(window);
        assert_eq!(limit.admitted_ms(0, 11), 10);
        assert_eq!(limit.at_ms(999, 1).retry_after().map(Wait::duration), Some(Duration::from_millis(1)));
        assert_eq!(limit.admitted_ms(1_000, 11), 10);
    }
}

#[test]
fn neg_18_an_aligned_window_resets_when_it_ends() {
    let mut limit = Limit::new(FixedWindow::new(Quota::per_minute(10)));
    assert_eq!(limit.at_s(119, 1).reset_after(), seconds(1));
}

#[test]
fn a_lowered_burst_does_not_block_a_key_for_ever() {
    let (large, small) = (Quota::per_second(1).burst(100), Quota::per_second(1).burst(2));
    let (old, new) = (TokenBucket::new(large), TokenBucket::new(small));
    let (mut before, mut after) = ([0; 3], [0; 3]);
    assert!(old.decide(&mut before, Micros::ZERO, 50).is_allowed());
    new.migrate_from(&old, &before, &mut after, Micros::ZERO);
    // 50 are used and only 2 are allowed: 48 must refill, and one more for the request.
    let refused = new.decide(&mut after, Micros::ZERO, 1);
    assert_eq!(refused.retry_after().map(Wait::duration), Some(seconds(49)));
    assert!(new.decide(&mut after, Micros::new(49_000_000), 1).is_allowed());
}

#[test]
fn a_state_matters_until_it_is_idle_and_not_a_microsecond_less() {
    let bucket = TokenBucket::new(Quota::per_second(3).burst(7));
    let mut state = [0; 3];
    assert!(bucket.decide(&mut state, Micros::ZERO, 7).is_allowed());
    let idle = bucket.idle_at(&state);
    assert_eq!(idle, Micros::new(2_333_334));
    assert_eq!(bucket.peek(&state, idle, 7).outcome, Outcome::Allowed);
    assert!(!bucket.peek(&state, idle.minus(1), 7).is_allowed());
}

#[test]
fn two_hits_in_one_second_or_in_one_microsecond_are_counted_twice() {
    let mut limit = Limit::new(SlidingLog::new(Quota::per_minute(3)));
    assert_eq!(limit.at_ms(100, 1).remaining(), 2);
    assert_eq!(limit.at_ms(900, 1).remaining(), 1);
    assert_eq!(limit.at_ms(900, 1).remaining(), 0);
    assert!(!limit.at_ms(900, 1).is_allowed());
}

// === Published tables ===

#[test]
fn s000_fw_two_in_three_seconds_from_the_first_hit() {
    let window = FixedWindow::new(Quota::per(2, seconds(3))).from_first_hit();
    assert_eq!(Limit::new(window).passes_s(&[0, 0, 0, 3, 3, 5]), [YES, YES, NO, YES, YES, NO]);
}

#[test]
fn s000_sl_one_a_second_and_five_a_minute() {
    let mut limit = Limit::new(two_logs());
    let first = 1_484_551_710;
    let table = [
        (first, [YES, YES]),
        (first, [NO, YES]),
        (first + 1, [YES, YES]),
        (first + 2, [YES, YES]),
        (first + 3, [YES, YES]),
        (first + 4, [YES, YES]),
        (first + 5, [YES, NO]),
        (first + 66, [YES, YES]),
    ];
    for (row, (at, want)) in table.into_iter().enumerate() {
        let each: Vec<bool> = limit.rules_at_s(at, 1).iter().map(Decision::is_allowed).collect();
        assert_eq!(each, want, "row {row} at {at} s");
        assert_eq!(limit.at_s(at, 1).is_allowed(), want == [YES, YES], "row {row} at {at} s");
    }
}

#[test]
fn s000_sl2_the_oldest_entry_determines_the_wait() {
    let at = |minute: u64, second: u64| (12 * 60 + minute) * 60 + second;
    let mut limit = Limit::new(two_logs());
    for (minute, second) in [(33, 35), (33, 37), (34, 14), (34, 26), (34, 28)] {
        assert!(limit.at_s(at(minute, second), 1).is_allowed());
    }
    let refused = limit.at_s(at(34, 31), 1);
    assert_eq!((refused.retry_after().map(Wait::duration), refused.rule), (Some(seconds(4)), RuleId(1)));
    assert!(limit.rules_at_s(at(34, 35), 1).iter().all(Decision::is_allowed));
    assert!(limit.at_s(at(34, 40), 1).is_allowed());
    // The entries of 12:33:35 and 12:33:37 have left; four of the five per minute are in use.
    assert_eq!(remaining(&limit.rules_at_s(at(34, 40), 0)), [0, 1]);
}

#[test]
fn s000_mr_a_refused_request_is_charged_to_no_rule() {
    let mut limit =
        Limit::new((FixedWindow::new(Quota::per_second(2)), FixedWindow::new(Quota::per_minute(3))));
    let table =
        [(600, YES, [1, 2]), (600, YES, [0, 1]), (600, NO, [0, 1]), (601, YES, [1, 0]), (601, NO, [1, 0])];
    for (row, (at, passes, left)) in table.into_iter().enumerate() {
        assert_eq!(limit.at_s(at, 1).is_allowed(), passes, "row {row}");
        assert_eq!(remaining(&limit.rules_at_s(at, 0)), left, "row {row}");
    }
}

/// How many of 240 pass at 19:00, when 200 have passed at 18:59.
fn admitted_on_the_hour<A: Algorithm>(algorithm: A) -> usize {
    let minute = |hour: u64, minute: u64| (hour * 60 + minute) * 60_000;
    let mut limit = Limit::new(algorithm);
    assert_eq!(limit.admitted_ms(minute(18, 59), 200), 200);
    limit.admitted_ms(minute(19, 0), 240)
}

#[test]
fn s000_b_a_fixed_window_admits_twice_on_the_hour_and_a_sliding_one_does_not() {
    let quota = Quota::per_hour(240);
    assert_eq!(admitted_on_the_hour(FixedWindow::new(quota)), 240);
    assert_eq!(admitted_on_the_hour(SlidingLog::new(quota)), 40);
    for cells in [1, 6, 60] {
        let window = SlidingWindow::new(quota, cells);
        assert_eq!(admitted_on_the_hour(window), 40, "{cells} strict cells");
        assert_eq!(admitted_on_the_hour(window.oldest(Cells::Interpolated)), 40, "{cells} cells");
    }
    assert_eq!(admitted_on_the_hour(SlidingWindow::new(quota, 60).oldest(Cells::Plain)), 40);
}

#[test]
fn s004_b1_a_fixed_window_admits_ten_within_a_fifth_of_a_second() {
    let window = FixedWindow::new(Quota::per_second(5));
    let mut limit = Limit::new(window);
    assert_eq!([limit.admitted_ms(900, 5), limit.admitted_ms(1_100, 5)], [5, 5]);
    let mut limit = Limit::new(window.from_first_hit());
    assert_eq!([limit.admitted_ms(900, 5), limit.admitted_ms(1_100, 5)], [5, 0]);
}

#[test]
fn s004_b2_a_window_of_five_cells_admits_five_across_the_boundary() {
    let window = SlidingWindow::new(Quota::per_second(5), 5);
    // What was admitted at 0.9 s leaves at: 1.8 s plain, 2.0 s strict.
    for (kind, leaves) in [(Cells::Plain, 1_800), (Cells::Strict, 2_000)] {
        let mut limit = Limit::new(window.oldest(kind));
        assert_eq!([limit.admitted_ms(900, 5), limit.admitted_ms(1_100, 5)], [5, 0], "{kind:?}");
        assert_eq!(limit.admitted_ms(leaves - 1, 5), 0, "{kind:?}");
        assert_eq!(limit.admitted_ms(leaves, 5), 5, "{kind:?}");
    }
}

#[test]
fn interpolated_cells_free_units_one_by_one() {
    let window = SlidingWindow::new(Quota::per_second(5), 5).oldest(Cells::Interpolated);
    let mut limit = Limit::new(window);
    assert_eq!(limit.admitted_ms(900, 5), 5);
    // The cell of 0.8 s leaves between 1.8 s and 2.0 s: a fifth of it every 40 ms.
    for fifth in 1..=5 {
        assert_eq!(limit.admitted_ms(1_800 + fifth * 40 - 1, 5), 0, "before fifth {fifth}");
        assert_eq!(limit.admitted_ms(1_800 + fifth * 40, 5), 1, "at fifth {fifth}");
    }
}

#[test]
fn s004_fw_three_in_each_second() {
    let mut limit = Limit::new(FixedWindow::new(Quota::per_second(3)));
    assert_eq!([limit.admitted_ms(0, 4), limit.admitted_ms(1_000, 3)], [3, 3]);
}

#[test]
fn sg_01_tokens_refilled_meanwhile_are_counted() {
    let mut limit = bucket(1, 10);
    for (at, left) in [(1_000, 5), (1_003, 3)] {
        let decision = limit.at_s(at, 5);
        assert_eq!((decision.outcome, decision.remaining()), (Outcome::Allowed, left), "at {at} s");
    }
}

#[test]
fn sg_02_a_cost_above_the_burst_never_passes_and_charges_nothing() {
    let mut limit = bucket(1, 10);
    let decision = limit.at_s(1_000, 20);
    assert_eq!((decision.outcome, decision.remaining()), (Outcome::Never, 10));
    assert_eq!(decision.retry_after(), None);
    assert!(limit.at_s(1_000, 10).is_allowed());
}

#[test]
fn ln_01_a_count_falls_by_one_with_each_request() {
    let mut limit = Limit::new(FixedWindow::new(Quota::per(10, seconds(100))));
    for left in (0..10).rev() {
        let decision = limit.at_s(0, 1);
        assert_eq!((decision.is_allowed(), decision.remaining()), (YES, left));
    }
    assert_eq!(limit.passes_s(&[0, 0]), [NO, NO]);
}

#[test]
fn a_stepped_bucket_refills_in_steps_at_fixed_instants() {
    let mut limit = Limit::new(SteppedBucket::new(Quota::per_minute(20).burst(50)).offset(seconds(10)));
    assert_eq!(limit.at_s(0, 50).reset_after(), seconds(130)); // steps at 0:10, 1:10 and 2:10
    assert_eq!(limit.at_s(9, 1).retry_after().map(Wait::duration), Some(seconds(1)));
    assert_eq!(limit.at_s(10, 1).remaining(), 19);
    assert_eq!(limit.at_s(69, 20).retry_after().map(Wait::duration), Some(seconds(1)));
    assert_eq!(limit.at_s(70, 20).remaining(), 19);
}
