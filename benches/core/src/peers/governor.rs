//! governor: the peer that every goal is held against. Its default middleware, clock and keyed store.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;

use governor::clock::{DefaultClock, QuantaInstant};
use governor::middleware::StateInformationMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{DefaultDirectRateLimiter, NotUntil, Quota, RateLimiter};

use crate::case::{Case, each};
use crate::keys::{each_number, each_text, fill_numbers, fill_texts};

/// The row of governor in every table.
pub(crate) const GOVERNOR: &str = "governor";

type Keyed<K> = RateLimiter<K, DashMapStateStore<K>, DefaultClock>;

// === One limiter ===

pub(crate) fn allowed(what: &'static str, threads: usize) -> Case {
    let limiter = RateLimiter::direct(open());
    Case::new(what, GOVERNOR, move |n| each(&limiter, n, |limiter| read(limiter.check()))).threads(threads)
}

pub(crate) fn refused(what: &'static str) -> Case {
    let limiter = spent();
    Case::new(what, GOVERNOR, move |n| each(&limiter, n, |limiter| read(limiter.check()))).refused()
}

/// Only yes or no is read, so that the compiler may leave out the rest of the answer.
pub(crate) fn yes_or_no(allowed: &'static str, refused: &'static str) -> Vec<Case> {
    const WHO: &str = "governor, yes or no only";
    let (open, spent) = (RateLimiter::direct(open()), spent());
    vec![
        Case::new(allowed, WHO, move |n| each(&open, n, |limiter| black_box(limiter.check().is_ok()))),
        Case::new(refused, WHO, move |n| each(&spent, n, |limiter| black_box(limiter.check().is_ok())))
            .refused(),
    ]
}

/// The middleware that tells how much is left.
pub(crate) fn remaining(what: &'static str) -> Case {
    let limiter = RateLimiter::direct(open()).with_middleware::<StateInformationMiddleware>();
    Case::new(what, "governor, with state information", move |n| {
        each(&limiter, n, |limiter| {
            limiter.check().is_ok_and(|state| black_box(state.remaining_burst_capacity()) > 0)
        })
    })
}

/// The whole answer: a refusal carries what the time to wait is worked out from.
#[inline]
fn read(answer: Result<(), NotUntil<QuantaInstant>>) -> bool {
    black_box(answer).is_ok()
}

/// A million a second, and a billion at once.
fn open() -> Quota {
    Quota::per_second(count(1_000_000)).allow_burst(count(1_000_000_000))
}

/// One an hour, and it is gone.
fn spent() -> DefaultDirectRateLimiter {
    let limiter = RateLimiter::direct(Quota::per_hour(count(1)));
    assert!(limiter.check().is_ok(), "the first of the hour passes");
    limiter
}

// === A million keys ===

pub(crate) fn numbers(one: &'static str, two: &'static str) -> Vec<Case> {
    let limiter: Arc<Keyed<u64>> = Arc::new(RateLimiter::dashmap(lasting()));
    fill_numbers(|key| read(limiter.check_key(&key)));
    let case = |what| {
        let limiter = Arc::clone(&limiter);
        Case::new(what, GOVERNOR, move |n| {
            let limiter = &*limiter; // the way to it is gone once, as with a handle
            each_number(n, |key| read(limiter.check_key(&key)))
        })
    };
    vec![case(one), case(two).threads(2)]
}

pub(crate) fn texts(one: &'static str, two: &'static str) -> Vec<Case> {
    let limiter: Arc<Keyed<String>> = Arc::new(RateLimiter::dashmap(lasting()));
    fill_texts(|key| read(limiter.check_key(key)));
    let case = |what| {
        let limiter = Arc::clone(&limiter);
        Case::new(what, GOVERNOR, move |n| {
            let limiter = &*limiter;
            each_text(n, |key| read(limiter.check_key(key)))
        })
    };
    vec![case(one), case(two).threads(2)]
}

/// A limiter without keys yet, as a question about a text.
pub(crate) fn empty() -> impl FnMut(&String) -> bool {
    let limiter: Keyed<String> = RateLimiter::dashmap(lasting());
    move |key| read(limiter.check_key(key))
}

/// One an hour, and a million at once: always allowed, and no key is idle before an hour has passed.
fn lasting() -> Quota {
    Quota::per_hour(count(1)).allow_burst(count(1_000_000))
}

fn count(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("not zero")
}
