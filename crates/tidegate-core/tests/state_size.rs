//! The size of a state is the documented one. The memory of a limiter is this size times the number of keys.

use std::time::Duration;

use tidegate_core::{
    Algorithm, ClockKind, FixedWindow, LeakyQueue, Micros, PerCallBucket, Quota, SlidingLog, SlidingWindow,
    SteppedBucket, TokenBucket,
};

const STEADY: ClockKind = ClockKind::Monotonic;
const ANY: ClockKind = ClockKind::MayStepBack;

#[test]
fn a_bucket_takes_one_word_on_a_steady_clock_unless_its_fractions_are_fine() {
    let words = |limit, clock| TokenBucket::new(Quota::per_second(limit)).for_clock(clock).words();
    assert_eq!(words(10, STEADY), 1);
    assert_eq!(words(1_023, STEADY), 1, "q is 1023");
    assert_eq!(words(1_025, STEADY), 1, "q is 41");
    assert_eq!(words(1_027, STEADY), 2, "q is 1027");
    assert_eq!(words(10, ANY), 3);
    assert_eq!(words(1_027, ANY), 3);
    assert_eq!(TokenBucket::new(Quota::per_second(10)).for_clock(STEADY).for_clock(ANY).words(), 3);
}

#[test]
fn every_per_call_bucket_takes_the_same_number_of_words() {
    for limit in [10, 1_027] {
        let bucket = PerCallBucket::new(Quota::per_second(limit));
        assert_eq!(
            (bucket.words(), bucket.for_clock(ANY).words(), bucket.for_clock(STEADY).words()),
            (6, 6, 5)
        );
    }
}

#[test]
fn a_window_takes_one_word_as_long_as_its_count_fits_beside_its_number() {
    let words = |limit| FixedWindow::new(Quota::per_second(limit)).words();
    assert_eq!((words((1 << 29) - 1), words(1 << 29)), (1, 2), "34 bits are the number's");
    let first_hit = |limit| FixedWindow::new(Quota::per_second(limit)).from_first_hit().words();
    assert_eq!((first_hit(1_023), first_hit(1_024)), (1, 2), "53 bits are the instant's");
    assert_eq!(SteppedBucket::new(Quota::per_minute(20)).words(), 1);
    assert_eq!(SteppedBucket::new(Quota::per_second(20)).words(), 2, "there must be room for debt");
}

#[test]
fn a_window_of_two_words_counts_beyond_one_word() {
    let window = FixedWindow::new(Quota::per_second(1 << 29));
    let mut state = [0; 2];
    for _ in 0..4 {
        assert!(window.decide(&mut state, Micros::ZERO, 1 << 27).is_allowed());
    }
    assert!(!window.decide(&mut state, Micros::ZERO, 1).is_allowed());
    assert!(window.decide(&mut state, Micros::new(1_000_000), 1).is_allowed());
}

#[test]
fn logs_and_cells_take_words_for_what_they_remember() {
    assert_eq!(SlidingLog::new(Quota::per_second(7)).words(), 8);
    assert_eq!(SlidingLog::new(Quota::per_second(7)).room(3).words(), 8, "never less than the limit");
    assert_eq!(SlidingLog::new(Quota::per_second(7)).room(20).words(), 21);
    assert_eq!(SlidingLog::new(Quota::per_second(7)).room(1 << 40).words(), 1 + (1 << 14));
    let cells = |cells| SlidingWindow::new(Quota::per(7, Duration::from_secs(60)), cells).words();
    assert_eq!((cells(1), cells(2), cells(3), cells(10)), (2, 3, 3, 7));
}

#[test]
fn rules_of_one_word_have_a_fast_path() {
    let now = Micros::new(5_000_000);
    let bucket = TokenBucket::new(Quota::per_second(10)).for_clock(STEADY);
    assert!([1, 2, 10].iter().all(|cost| bucket.decide_word(0, now, *cost).is_some()));
    assert!(bucket.decide_word(0, now, 11).is_none(), "a cost that never passes takes the slow path");

    let window = FixedWindow::new(Quota::per_second(10));
    assert!(window.decide_word(0, now, 1).is_some());
    assert!(window.from_first_hit().decide_word(0, now, 1).is_none());

    let queue = LeakyQueue::new(Quota::per_second(10), 3).for_clock(STEADY);
    assert!([1, 4].iter().all(|cost| queue.decide_word(0, now, *cost).is_some()));
}
