//! # A counter for many threads
//!
//! Each thread adds to one of several stripes, so that threads seldom contend for a cache line. Reading sums the
//! stripes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[derive(Debug, Default)]
pub(crate) struct StripedCounter([Stripe; STRIPES]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(AtomicU64);

const STRIPES: usize = 16;

thread_local! {
    static STRIPE: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed) % STRIPES
    };
}

impl StripedCounter {
    #[inline]
    pub(crate) fn add(&self, number: u64) {
        self.0[STRIPE.with(|stripe| *stripe)].0.fetch_add(number, Ordering::Relaxed);
    }

    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum()
    }
}
