//! # How work ends
//!
//! How work under a permit ended is worth knowing to whoever sets the limit, and there are three honest answers: it
//! succeeded, the one we called was overloaded, or neither can be said. The last is what a plain drop says; a panic
//! cannot say more.

use crate::sync::{AtomicU64, Ordering};

/// How the work under permits has ended so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endings {
    /// Ended by [`succeeded`](crate::Permit::succeeded).
    pub succeeded: u64,
    /// Ended by [`overloaded`](crate::Permit::overloaded).
    pub overloaded: u64,
    /// Dropped without a word, also by a panic.
    pub dropped: u64,
}

/// One of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Succeeded,
    Overloaded,
    Dropped,
}

/// Endings, counted by all threads.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    succeeded: AtomicU64,
    overloaded: AtomicU64,
    dropped: AtomicU64,
}

// === impl Tally ===

impl Tally {
    #[inline]
    pub(crate) fn count(&self, ending: Ending) {
        let counter = match ending {
            Ending::Succeeded => &self.succeeded,
            Ending::Overloaded => &self.overloaded,
            Ending::Dropped => &self.dropped,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn endings(&self) -> Endings {
        Endings {
            succeeded: self.succeeded.load(Ordering::Relaxed),
            overloaded: self.overloaded.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }
}
