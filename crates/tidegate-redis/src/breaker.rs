//! # Circuit breaker
//!
//! An unreachable server costs each request its whole deadline. After a few consecutive failures the breaker opens, and
//! requests are decided without Redis until the [prober](crate::prober), which sends requests of its own, gets a reply.
//!
//! ```text
//!             a few failures in a row
//!   closed ───────────────────────────► open: decide without Redis, immediately
//!     ▲                                   │
//!     └─────── the prober gets a reply ◄──┘
//! ```
//!
//! Client requests are never used as probes: each would pay for it with its deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Breaker {
    /// The number of consecutive failures that opens the breaker.
    threshold: u32,
    failures: AtomicU32,
    open: AtomicBool,
    /// How many times this breaker, and the breakers it replaces, have opened.
    openings: Arc<AtomicU64>,
    opened: Notify,
}

impl Breaker {
    pub(crate) fn new(threshold: u32, openings: Arc<AtomicU64>) -> Self {
        Breaker {
            threshold: threshold.max(1),
            failures: AtomicU32::new(0),
            open: AtomicBool::new(false),
            openings,
            opened: Notify::new(),
        }
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Returns how many times the breaker has opened.
    pub(crate) fn openings(&self) -> u64 {
        self.openings.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a failure, and returns whether it opened the breaker.
    pub(crate) fn failed(&self) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        failures >= self.threshold && self.open()
    }

    /// Opens the breaker, and returns whether it was closed.
    pub(crate) fn open(&self) -> bool {
        let was_closed = !self.open.swap(true, Ordering::AcqRel);
        if was_closed {
            self.openings.fetch_add(1, Ordering::Relaxed);
            self.opened.notify_one();
        }
        was_closed
    }

    /// ReturnOnDrop the breaker, after the prober got a reply.
    pub(crate) fn close(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.open.store(false, Ordering::Release);
    }

    /// Waits until the breaker opens.
    pub(crate) async fn opened(&self) {
        self.opened.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Breaker;

    #[test]
    fn only_consecutive_failures_open_the_breaker() {
        let breaker = Breaker::new(3, Arc::default());
        for _ in 0..10 {
            assert!(!breaker.failed() && !breaker.failed());
            breaker.succeeded();
        }
        assert!(!breaker.is_open());
        assert!(!breaker.failed() && !breaker.failed() && breaker.failed());
        assert!(breaker.is_open() && !breaker.failed(), "it opens once");
        breaker.close();
        assert!(!breaker.is_open() && !breaker.failed(), "and counts from zero again");
        assert_eq!(breaker.openings(), 1);
    }
}
