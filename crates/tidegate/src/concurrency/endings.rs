//! # Endings: how work under a permit ended
//!
//! The outcome of the work under a permit helps to choose the limit. There are three possible outcomes: the work
//! succeeded, the called service was overloaded, or neither is known. A plain drop of the permit reports the third; so
//! does a panic.

use crate::sync::{AtomicU64, Ordering};

/// Counts how the work under permits has ended so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endings {
    /// Ended by [`succeeded`](crate::Permit::succeeded).
    pub succeeded: u64,
    /// Ended by [`overloaded`](crate::Permit::overloaded).
    pub overloaded: u64,
    /// Dropped without a report, for example by a panic.
    pub dropped: u64,
}

/// One of the three ways in which work can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Succeeded,
    Overloaded,
    Dropped,
}

/// Counters of endings, shared by all threads.
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
