//! # Eviction hint: the earliest instant at which any key can be idle
//!
//! At the cap a new key is refused only if no key in the whole table is idle. Scanning the whole table for each of a
//! million new keys would take longer than all other decisions. So a thread that scanned every segment in vain stores
//! the earliest instant at which a key can be idle, and no thread scans again before that instant.
//!
//! ```text
//!   scan           reads arrivals ─► scans each segment ─► stores the instant ─► reads arrivals: more? clear it
//!   insertion                 adds 1 to arrivals ─► if its key is idle earlier, stores that instant
//! ```
//!
//! A key may be inserted into a segment that was already scanned. The insertion adds to `arrivals` before it stores its
//! instant, and the scan reads `arrivals` after it stored its own. Whichever came first, the earlier instant stays.

use crate::sync::{AtomicU64, Ordering};
use tidegate_core::Micros;

#[derive(Debug)]
pub(crate) struct EvictionHint {
    none_idle_before: AtomicU64,
    arrivals: AtomicU64,
}

impl EvictionHint {
    /// Creates a hint that knows nothing: a key may be idle at any time.
    pub(crate) fn new() -> Self {
        EvictionHint { none_idle_before: AtomicU64::new(0), arrivals: AtomicU64::new(0) }
    }

    /// Returns the instant before which no key of the table can be idle.
    pub(crate) fn none_idle_before(&self) -> Micros {
        Micros::new(self.none_idle_before.load(Ordering::Acquire))
    }

    /// Records that a key may be idle from `instant` on.
    ///
    /// Requires the lock of the key's segment.
    pub(crate) fn idle_from(&self, instant: Micros) {
        self.arrivals.fetch_add(1, Ordering::AcqRel);
        self.none_idle_before.fetch_min(instant.get(), Ordering::AcqRel);
    }

    /// Returns the number of insertions so far.
    ///
    /// A scan reads it first and passes it to [`looked_everywhere`](EvictionHint::looked_everywhere) at its end.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::Acquire)
    }

    /// Records a scan of every segment: only later arrivals can be idle before `instant`.
    pub(crate) fn looked_everywhere(&self, arrivals: u64, instant: Micros) {
        self.none_idle_before.store(instant.get(), Ordering::Release);
        // Adding 0, unlike loading, cannot miss an insertion that stored its instant before this thread did.
        if self.arrivals.fetch_add(0, Ordering::AcqRel) != arrivals {
            self.none_idle_before.store(0, Ordering::Release);
        }
    }
}
