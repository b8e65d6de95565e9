//! # When anybody can be idle
//!
//! At the cap a newcomer is refused only if nobody is idle, wherever in the table that would be. Looking everywhere for
//! each of a million newcomers would take longer than the decisions of all others. So whoever has looked everywhere in
//! vain writes down when somebody can be idle at the earliest, and until then nobody looks again.
//!
//! ```text
//!   who looks      counts arrivals ─► looks into each segment ─► writes it down ─► counts again: more? forget it
//!   who moves in              is counted ─► if it is idle earlier, writes that down
//! ```
//!
//! Somebody may move into a segment that was already looked into. It is counted before it writes, and the count is looked at
//! after writing: whichever of the two came first, the earlier instant stays.

use crate::sync::{AtomicU64, Ordering};
use tidegate_core::Micros;

#[derive(Debug)]
pub(crate) struct EvictionHint {
    none_idle_before: AtomicU64,
    arrivals: AtomicU64,
}

impl EvictionHint {
    /// Nothing is known: somebody may be idle at any time.
    pub(crate) fn new() -> Self {
        EvictionHint { none_idle_before: AtomicU64::new(0), arrivals: AtomicU64::new(0) }
    }

    /// Nobody in the table can be idle before this.
    pub(crate) fn none_idle_before(&self) -> Micros {
        Micros::new(self.none_idle_before.load(Ordering::Acquire))
    }

    /// Somebody may be idle from `instant` on. Under the lock of the segment it lives in.
    pub(crate) fn idle_from(&self, instant: Micros) {
        self.arrivals.fetch_add(1, Ordering::AcqRel);
        self.none_idle_before.fetch_min(instant.get(), Ordering::AcqRel);
    }

    /// What to tell [`looked_everywhere`](EvictionHint::looked_everywhere) afterwards.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::Acquire)
    }

    /// After a look into every segment: nobody can be idle before `instant`, except those who arrived since.
    pub(crate) fn looked_everywhere(&self, arrivals: u64, instant: Micros) {
        self.none_idle_before.store(instant.get(), Ordering::Release);
        // Adding nothing, unlike loading, cannot miss an arrival that wrote before we did.
        if self.arrivals.fetch_add(0, Ordering::AcqRel) != arrivals {
            self.none_idle_before.store(0, Ordering::Release);
        }
    }
}
