//! Settings that cannot be counted exactly are refused when built, with a message that names the value and
//! the remedy.

use std::time::Duration;

use tidegate_core::{
    Algorithm, FixedWindow, InvalidQuota, LeakyQueue, Micros, NginxQueue, Quota, Rule, SlidingLog,
    SlidingWindow, SteppedBucket, TokenBucket,
};

const SECOND: Duration = Duration::from_secs(1);

fn sentence<T: std::fmt::Debug>(result: Result<T, InvalidQuota>) -> String {
    result.expect_err("this must be refused").to_string()
}

fn nanos(nanos: u64) -> Quota {
    Quota::per(1, Duration::from_nanos(nanos))
}

#[test]
fn a_quota_of_zero_or_beyond_the_largest_is_refused() {
    let most = u64::MAX;
    assert_eq!(sentence(Quota::try_new(0, SECOND, 1)), "a limit of 0 lets nothing pass; use 1 or more");
    assert_eq!(
        sentence(Quota::try_new(1, Duration::ZERO, 1)),
        "a period of zero has no pace; use 1us or more"
    );
    assert_eq!(sentence(Quota::try_new(1, SECOND, 0)), "a burst of 0 lets nothing pass; use 1 or more");
    assert!(sentence(Quota::try_new(most, SECOND, most)).contains("cannot be counted exactly"));
    assert!(sentence(Quota::try_new(1, Duration::MAX, 1)).contains("cannot be counted exactly"));
}

#[test]
fn the_largest_exact_burst_is_accepted_and_one_more_is_not() {
    let most = (1 << 53) / 1_000_000; // at 1/s a token is worth a million microseconds
    assert_eq!(Quota::try_new(1, SECOND, most).map(|quota| quota.max_burst()), Ok(most));
    assert_eq!(
        sentence(Quota::try_new(1, SECOND, most + 1)),
        "1 per 1s with a burst of 9007199255 cannot be counted exactly; \
         use a smaller burst, a shorter period or a rounder limit"
    );
}

#[test]
fn the_largest_exact_interval_is_accepted_and_one_more_is_not() {
    // The limit alone determines q, and the period alone determines p, when they have no common divisor.
    let most = (1u64 << 53) - 1;
    assert!(Quota::try_new(1, Duration::from_micros(most), 1).is_ok());
    assert!(Quota::try_new(1, Duration::from_micros(most + 1), 1).is_err());
    assert!(Quota::try_new(most, Duration::from_micros(1), 1).is_ok());
    assert!(Quota::try_new(most + 1, Duration::from_micros(1), 1).is_err());
}

#[test]
fn windows_are_whole_microseconds_on_the_time_line() {
    let not_whole =
        "a window of 1.5µs cannot be counted; use a whole number of microseconds, from 1us to 285 years";
    assert_eq!(sentence(FixedWindow::try_new(nanos(1_500))), not_whole);
    assert_eq!(sentence(SteppedBucket::try_new(nanos(1_500))), not_whole);
    assert_eq!(sentence(SlidingLog::try_new(nanos(1_500))), not_whole);
    assert_eq!(sentence(SlidingWindow::try_new(nanos(1_500), 1)), not_whole);
    assert!(FixedWindow::try_new(nanos(999)).is_err(), "less than a microsecond");
    assert!(FixedWindow::try_new(nanos(1_000)).is_ok());

    let end = (1u64 << 53) - 1;
    let as_long_as = |micros| Quota::try_new(1_000, Duration::from_micros(micros), 1).unwrap();
    assert!(FixedWindow::try_new(as_long_as(end)).is_ok());
    assert!(FixedWindow::try_new(as_long_as(end + 1)).is_err(), "longer than time");
}

#[test]
fn a_log_has_a_largest_limit() {
    assert!(SlidingLog::try_new(Quota::per_day(SlidingLog::MAX)).is_ok());
    assert_eq!(
        sentence(SlidingLog::try_new(Quota::per_day(16_385))),
        "a limit of 16385 is too large for this algorithm; use 16384 or less"
    );
}

#[test]
fn cells_must_be_from_one_to_a_thousand_and_long_enough() {
    let per_second = Quota::per_second(5);
    let out_of_range = |cells| format!("a window of {cells} cells is out of range; use 1 to 1000");
    assert_eq!(sentence(SlidingWindow::try_new(per_second, 0)), out_of_range(0));
    assert_eq!(sentence(SlidingWindow::try_new(per_second, 1_001)), out_of_range(1_001));
    assert!(SlidingWindow::try_new(per_second, 1).is_ok());
    assert!(SlidingWindow::try_new(per_second, 1_000).is_ok());

    let short = Quota::per(5, Duration::from_micros(10));
    assert!(SlidingWindow::try_new(short, 10).is_ok());
    assert_eq!(
        sentence(SlidingWindow::try_new(short, 11)),
        "11 cells in 10µs are shorter than 1us each; use fewer cells"
    );
    let many = u64::from(u32::MAX);
    assert!(SlidingWindow::try_new(Quota::per(many, Duration::from_micros(many)), 5).is_ok());
    assert_eq!(
        sentence(SlidingWindow::try_new(Quota::per(many + 1, Duration::from_micros(many + 1)), 5)),
        "a limit of 4294967296 is too large for this algorithm; use 4294967295 or less"
    );
}

#[test]
fn a_queue_that_cannot_be_counted_is_refused_with_its_numbers() {
    let yearly = Quota::per(1, Duration::from_secs(365 * 86_400));
    assert!(LeakyQueue::try_new(yearly, 200).is_ok());
    assert_eq!(
        sentence(LeakyQueue::try_new(yearly, u32::MAX)),
        "1 per 31536000s with a burst of 4294967296 cannot be counted exactly; \
         use a smaller burst, a shorter period or a rounder limit"
    );
    assert_eq!(
        sentence(NginxQueue::try_new(Quota::per_day(86), 5)),
        "86 per 86400s is not a rate that nginx can count; \
         use 0.001 to 4294967 requests per second, or leave out 'nginx' for the exact queue"
    );
    assert!(NginxQueue::try_new(Quota::per_day(87), 5).is_ok(), "one thousandth of a request per second");
    assert!(NginxQueue::try_new(Quota::per_second(4_294_967), 5).is_ok());
    assert!(NginxQueue::try_new(Quota::per_second(4_294_968), 5).is_err());
}

fn assert_rejected((text, position, expected): (&str, usize, &str)) {
    let error = text.parse::<Rule>().expect_err(text);
    assert_eq!(error.position(), Some(position), "{text:?}: {error}");
    assert!(error.to_string().contains(expected), "{text:?}: {error}");
}

#[test]
fn the_text_of_a_rule_is_parsed_to_its_end_or_the_error_has_the_position() {
    let table = [
        ("leaky_bucket 5/s", 0, "an algorithm: token_bucket, leaky_queue, stepped_bucket,"),
        ("", 0, "an algorithm: token_bucket, leaky_queue, stepped_bucket,"),
        ("token_bucket", 12, "a number, as in 100/s"),
        ("gcra 5/s offset 1s", 9, "'burst' and a number, or nothing more"),
        ("leaky_queue 5/s", 15, "'queue' and a number, as in leaky_queue 10/s queue 5"),
        ("leaky_queue 5/s burst 3", 16, "'queue' and a number, as in leaky_queue 10/s queue 5"),
        ("leaky_queue 5/s queue", 21, "a number"),
        ("leaky_queue 5/s queue 3 delay", 29, "a number"),
        ("leaky_queue 5/s queue 3 max_wait", 32, "a unit of time"),
        ("stepped_bucket 5/s plain", 19, "'burst' and a number, 'offset' and a duration, or nothing more"),
        ("fixed_window 5/s from", 21, "'first hit' after 'from'"),
        ("fixed_window 5/s from first visit", 28, "'first hit' after 'from'"),
        ("fixed_window 5/s offset", 23, "a unit of time"),
        ("fixed_window 5/s cells 3", 17, "'offset' and a duration, 'from first hit', or nothing more"),
        (
            "fixed_window 5/s from first hit offset 10s",
            32,
            "found 'o', expected nothing more: windows from the first hit have no offset",
        ),
        (
            "fixed_window 5/s offset 10s from first hit",
            28,
            "found 'f', expected nothing more: windows with an offset do not begin with the first hit",
        ),
        ("sliding_log 5/s 3", 16, "nothing more"),
        ("sliding_window 5/s", 18, "'cells' and a number"),
        ("sliding_window 5/s cells many", 25, "a number"),
        ("sliding_window 5/s cells 5 loose", 27, "'strict', 'interpolated', 'plain', or nothing more"),
    ];
    table.into_iter().for_each(assert_rejected);
}

#[test]
fn only_words_that_are_accepted_at_the_position_are_offered() {
    let table = [
        (
            "leaky_queue 5/s queue 3 now",
            24,
            "'delay' and a number, 'nodelay', 'max_wait' and a duration, 'nginx', or nothing more",
        ),
        (
            "leaky_queue 5/s queue 3 nodelay delay 2",
            32,
            "expected 'max_wait' and a duration, 'nginx', or nothing more",
        ),
        (
            "leaky_queue 5/s queue 3 delay 2 nodelay",
            32,
            "expected 'max_wait' and a duration, 'nginx', or nothing more",
        ),
        (
            "leaky_queue 5/s queue 3 nginx max_wait 1s",
            30,
            "expected nothing more: 'nginx' comes last, and such queues have no 'max_wait'",
        ),
        ("leaky_queue 5/s queue 3 max_wait 1s nginx", 36, "expected nothing more: 'max_wait' comes last"),
        ("stepped_bucket 5/s burst 9 plain", 27, "expected 'offset' and a duration, or nothing more"),
        (
            "stepped_bucket 5/s offset 1s burst 9",
            29,
            "expected nothing more: 'offset' comes last, after 'burst'",
        ),
        (
            "sliding_window 5/s cells 5 strict plain",
            34,
            "expected nothing more: a window is strict, interpolated or plain",
        ),
        ("gcra 5/s burst 9 burst 8", 17, "found 'b', expected nothing more"),
    ];
    table.into_iter().for_each(assert_rejected);
}

const WINDOW: FixedWindow = FixedWindow::new(Quota::per_second(5));

#[test]
#[should_panic(
    expected = "windows from the first hit have no offset; use either `offset` or `from_first_hit`"
)]
fn an_offset_after_from_first_hit_panics() {
    let _ = WINDOW.from_first_hit().offset(Duration::from_millis(100));
}

#[test]
#[should_panic(
    expected = "windows from the first hit have no offset; use either `offset` or `from_first_hit`"
)]
fn from_first_hit_after_an_offset_panics() {
    let _ = WINDOW.offset(Duration::from_millis(100)).from_first_hit();
}

#[test]
fn an_offset_of_whole_periods_is_no_offset() {
    assert_eq!(WINDOW.offset(SECOND * 3).from_first_hit(), WINDOW.from_first_hit());
}

/// Valid texts, and pieces to spoil them with.
const GOOD: [&str; 8] = [
    "100/s",
    "5/min burst 10",
    "1 per 200ms",
    "20 per 1min 30s",
    "3 per 1.5s",
    "fixed_window 5/min offset 10s",
    "fixed_window 2 per 3s from first hit",
    "sliding_window 5/s cells 5 plain",
];
const PIECES: [&str; 18] = [
    "from first hit",
    "offset",
    "5",
    "/",
    "s",
    " ",
    "burst",
    "per",
    "ms",
    "µs",
    "_",
    "99999999999999999999",
    "-",
    "\0",
    "é",
    ".",
    "0",
    "cells",
];

#[test]
fn no_text_makes_the_parsers_panic() {
    let mut seed = 7u64;
    let mut draw = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).expect("31 bits fit") % below
    };
    let (mut parsed, mut refused) = (0, 0);
    for _ in 0..100_000 {
        let mut text: Vec<char> = GOOD[draw(GOOD.len())].chars().collect();
        for _ in 0..draw(3) {
            let from = draw(text.len() + 1);
            let to = (from + draw(3)).min(text.len());
            text.splice(from..to, PIECES[draw(PIECES.len())].chars());
        }
        let text: String = text.into_iter().collect();
        let _ = text.parse::<Quota>();
        match text.parse::<Rule>() {
            Ok(_) => parsed += 1,
            Err(error) => {
                refused += 1;
                assert!(error.position().is_none_or(|at| at <= text.chars().count()), "{text:?}: {error}");
            }
        }
    }
    assert!(parsed > 10_000 && refused > 10_000, "{parsed} parsed, {refused} refused");
}

/// A debt of 2⁶⁴ − 4096 microseconds fits a word, but overflows if it is added to an instant above 4096.
#[test]
fn a_debt_that_just_fits_a_word_ends_with_the_time_line() {
    let bucket = TokenBucket::new(Quota::per(1, Duration::from_micros((1 << 52) - 1)));
    let (mut state, now) = ([0; 3], Micros::new(5_000_000));
    let forced = bucket.force(&mut state, now, 4096);
    assert_eq!(forced.reset_after().as_micros(), Micros::MAX.since(now));
    bucket.refund(&mut state, now, 4096);
    assert!(bucket.peek(&state, now, 1).is_allowed());
}
