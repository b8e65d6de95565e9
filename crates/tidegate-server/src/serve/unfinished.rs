//! # The memory of unfinished requests
//!
//! Requests that are not whole yet and responses that the client has not read are kept in memory. A client decides how long, so all
//! connections of all protocols share one budget, and a connection or call that needs more than what is left of it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The budget of all workers, in bytes.
#[derive(Debug)]
pub(crate) struct Unfinished {
    used: AtomicUsize,
    max: usize,
}

/// The part of the budget that one connection or call uses, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Unfinished>,
    bytes: usize,
}

impl Unfinished {
    pub(crate) fn new(max: usize) -> Self {
        Unfinished { used: AtomicUsize::new(0), max }
    }

    pub(crate) fn share(self: &Arc<Self>) -> Share {
        Share { of: self.clone(), bytes: 0 }
    }
}

impl Default for Unfinished {
    fn default() -> Self {
        Unfinished::new(usize::MAX)
    }
}

impl Share {
    /// Uses this many bytes from now on. `false` if that exceeds the budget.
    #[must_use]
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes <= before {
            self.of.used.fetch_sub(before - bytes, Ordering::Relaxed);
            return true;
        }
        let more = bytes - before;
        self.of.used.fetch_add(more, Ordering::Relaxed) + more <= self.of.max
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_are_returned() {
        let budget = Arc::new(Unfinished::new(100));
        let (mut a, mut b) = (budget.share(), budget.share());
        assert!(a.resize(60) && b.resize(40) && !b.resize(41));
        assert!(a.resize(10) && b.resize(90) && !a.resize(11));
        drop(b);
        assert!(a.resize(100));
        drop(a);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }
}
