//! Tidegate, in its default configuration: idle keys leave, and there are never more than the bound.

use std::hint::black_box;

use tidegate::algorithm::{FixedWindow, SlidingWindow};
use tidegate::{Decision, KeyedLimiter, Limiter, Outcome, Quota};

use crate::case::{Case, each};
use crate::keys::{each_number, each_text, fill_numbers, fill_texts};

/// The row of Tidegate in every table: a token bucket.
pub(crate) const TIDEGATE: &str = "**tidegate**";

/// The row of requests with a cost, which are built before they are checked.
pub(crate) const REQUEST: &str = "**tidegate**, request with a cost";

/// The row of fixed windows.
pub(crate) const FIXED: &str = "**tidegate**, fixed window";

/// The row of sliding windows.
pub(crate) const SLIDING: &str = "**tidegate**, sliding window of 10 cells";

/// A million a second, and a billion at once: one client never uses it up in a run.
const OPEN: Quota = Quota::per_second(1_000_000).burst(1_000_000_000);

/// One an hour.
const SHUT: Quota = Quota::per_hour(1);

/// One an hour, and a million at once: always allowed, and no key is idle before an hour has passed.
const LASTING: Quota = Quota::per_hour(1).burst(1_000_000);

/// A million a day: always allowed, and no key is idle before the day is over.
const DAILY: Quota = Quota::per_day(1_000_000);

// === One limiter ===

pub(crate) fn allowed(what: &'static str, threads: usize) -> Case {
    let limiter = Limiter::new(OPEN);
    Case::new(what, TIDEGATE, move |n| each(&limiter, n, |limiter| read(limiter.check()))).threads(threads)
}

pub(crate) fn allowed_request(what: &'static str) -> Case {
    let limiter = Limiter::new(OPEN);
    Case::new(what, REQUEST, move |n| each(&limiter, n, |limiter| read(limiter.request().cost(2).check())))
}

pub(crate) fn refused(what: &'static str) -> Case {
    let limiter = Limiter::new(SHUT);
    assert!(limiter.check().is_allowed(), "the first of the hour passes");
    Case::new(what, TIDEGATE, move |n| each(&limiter, n, |limiter| read(limiter.check()))).refused()
}

pub(crate) fn allowed_all_read(what: &'static str) -> Case {
    let limiter = Limiter::new(OPEN);
    Case::new(what, TIDEGATE, move |n| each(&limiter, n, |limiter| read_all(limiter.check())))
}

pub(crate) fn refused_all_read(what: &'static str) -> Case {
    let limiter = Limiter::new(SHUT);
    assert!(limiter.check().is_allowed(), "the first of the hour passes");
    Case::new(what, TIDEGATE, move |n| each(&limiter, n, |limiter| read_all(limiter.check()))).refused()
}

/// What a caller needs who serves or refuses.
#[inline]
fn read(decision: Decision) -> bool {
    let (outcome, _, _) = black_box((decision.outcome, decision.rule, decision.source));
    matches!(outcome, Outcome::Allowed | Outcome::AllowedAfter(_))
}

/// What a caller needs who writes headers too.
#[inline]
fn read_all(decision: Decision) -> bool {
    black_box((decision.remaining(), decision.reset_after()));
    read(decision)
}

// === A million keys ===

pub(crate) fn numbers(one: &'static str, two: &'static str) -> Vec<Case> {
    let limiter = KeyedLimiter::<u64>::new(LASTING);
    fill_numbers(|key| read(limiter.check(&key)));
    let case = |what| {
        let limiter = limiter.clone();
        Case::new(what, TIDEGATE, move |n| each_number(n, |key| read(limiter.check(&key))))
    };
    let mut cases = vec![case(one), case(two).threads(2)];
    cases.push(Case::new(one, REQUEST, move |n| {
        each_number(n, |key| read(limiter.request(&key).cost(2).check()))
    }));
    cases
}

pub(crate) fn texts(one: &'static str, two: &'static str) -> Vec<Case> {
    let limiter = KeyedLimiter::<String>::new(LASTING);
    fill_texts(|key| read(limiter.check(key.as_str())));
    let case = |what| {
        let limiter = limiter.clone();
        Case::new(what, TIDEGATE, move |n| each_text(n, |key| read(limiter.check(key.as_str()))))
    };
    vec![case(one), case(two).threads(2)]
}

pub(crate) fn windows(what: &'static str) -> Vec<Case> {
    let fixed = KeyedLimiter::<u64, _>::with(FixedWindow::new(DAILY));
    let sliding = KeyedLimiter::<u64, _>::with(SlidingWindow::new(DAILY, 10));
    fill_numbers(|key| read(fixed.check(&key)));
    fill_numbers(|key| read(sliding.check(&key)));
    vec![
        Case::new(what, FIXED, move |n| each_number(n, |key| read(fixed.check(&key)))),
        Case::new(what, SLIDING, move |n| each_number(n, |key| read(sliding.check(&key)))),
    ]
}

/// A limiter without keys yet, as a question about a text.
pub(crate) fn empty() -> impl FnMut(&String) -> bool {
    let limiter = KeyedLimiter::<String>::new(LASTING);
    move |key| read(limiter.check(key.as_str()))
}
