//! throttlecrab, for orientation. It takes `&mut self`, so it is measured on one thread, without the lock that its users
//! put around it.

use std::hint::black_box;
use std::sync::Mutex;
use std::time::SystemTime;

use throttlecrab::{PeriodicStore, RateLimiter};

use crate::case::Case;
use crate::keys::{each_text, fill_texts};

pub(crate) fn texts(what: &'static str) -> Case {
    let mut limiter = RateLimiter::new(PeriodicStore::new());
    fill_texts(|key| ask(&mut limiter, key));
    let limiter = Mutex::new(limiter);
    Case::new(what, "throttlecrab", move |n| {
        let mut limiter = limiter.lock().expect("no case panics");
        each_text(n, |key| ask(&mut limiter, key))
    })
}

/// A million a second, and a billion at once.
#[inline]
fn ask(limiter: &mut RateLimiter<PeriodicStore>, key: &str) -> bool {
    let answer = limiter.rate_limit(key, 1_000_000_000, 1_000_000, 1, 1, SystemTime::now());
    black_box(answer).is_ok_and(|(allowed, _)| allowed)
}
