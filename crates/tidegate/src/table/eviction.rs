//! # Eviction of idle keys
//!
//! A new key that finds no free slot evicts an idle key: first in its own segment (see [`insertion`](super::insertion)),
//! then, at the cap, in any other one. [`Location::evict_if`](super::segment::Location::evict_if) clears the slot.
//!
//! **Eviction hint.** At the cap a new key is refused only if no key in the whole table is idle. Scanning the whole
//! table for each of a million new keys would take longer than all other decisions. So a thread that scanned every
//! segment in vain stores the earliest instant at which a key can be idle, and no thread scans again before that instant.
//!
//! ```text
//!   scan           reads insertions ─► scans each segment ─► stores the instant ─► reads insertions: more? clear it
//!   insertion                 adds 1 to insertions ─► if its key is idle earlier, stores that instant
//! ```
//!
//! A key may be inserted into a segment that was already scanned. The insertion adds to `insertions` before it stores its
//! instant, and the scan reads `insertions` after it stored its own. Whichever came first, the earlier instant stays.

use super::segment::{Owners, Segment};
use super::{Step, Table, idle_at};
use crate::sync::{AtomicU64, Ordering, try_lock};
use tidegate_core::Micros;

/// The earliest instant at which any key of the table can be idle.
#[derive(Debug)]
pub(crate) struct EvictionHint {
    none_idle_before: AtomicU64,
    insertions: AtomicU64,
}

impl EvictionHint {
    /// Creates a hint that knows nothing: a key may be idle at any time.
    pub(crate) fn new() -> Self {
        EvictionHint { none_idle_before: AtomicU64::new(0), insertions: AtomicU64::new(0) }
    }

    /// Returns the instant before which no key of the table can be idle.
    pub(crate) fn none_idle_before(&self) -> Micros {
        Micros::new(self.none_idle_before.load(Ordering::Acquire))
    }

    /// Records that a key may be idle from `instant` on.
    ///
    /// Requires the lock of the key's segment.
    pub(crate) fn idle_from(&self, instant: Micros) {
        self.insertions.fetch_add(1, Ordering::AcqRel);
        self.none_idle_before.fetch_min(instant.get(), Ordering::AcqRel);
    }

    /// Returns the number of insertions so far.
    ///
    /// A scan reads it first and passes it to [`scanned_all`](EvictionHint::scanned_all) at its end.
    pub(crate) fn insertions(&self) -> u64 {
        self.insertions.load(Ordering::Acquire)
    }

    /// Records a scan of every segment: only keys inserted later can be idle before `instant`.
    pub(crate) fn scanned_all(&self, insertions: u64, instant: Micros) {
        self.none_idle_before.store(instant.get(), Ordering::Release);
        // Adding 0, unlike loading, cannot miss an insertion that stored its instant before this thread did.
        if self.insertions.fetch_add(0, Ordering::AcqRel) != insertions {
            self.none_idle_before.store(0, Ordering::Release);
        }
    }
}

impl Table {
    /// Evicts the idle keys of another segment, for a new key that finds none in its own.
    ///
    /// Returns the instant before which no further key can be idle.
    pub(super) fn sweep_elsewhere<T: Step>(&self, own: &Segment, owners: &Owners, step: &T) -> Micros {
        if step.now() < self.eviction_hint.none_idle_before() {
            return self.eviction_hint.none_idle_before();
        }
        let insertions = self.eviction_hint.insertions();
        let (count, first) = (self.segments.allocated_segments(), self.swept.load(Ordering::Relaxed));
        let (mut next, mut complete) = (owners.none_idle_before, true);
        for number in (first..count).chain(0..first) {
            match self.sweep_other(number, own, step) {
                Some((0, none_before)) => next = next.min(none_before),
                Some((_, none_before)) => {
                    self.swept.store(number, Ordering::Relaxed);
                    return next.min(none_before);
                }
                None => complete = false,
            }
        }
        if complete {
            self.eviction_hint.scanned_all(insertions, next);
        }
        next
    }

    /// Evicts the idle keys of one segment.
    ///
    /// Returns their number, and when the next key can be idle. Returns `None` if the segment could not be locked.
    fn sweep_other<T: Step>(&self, number: u32, own: &Segment, step: &T) -> Option<(usize, Micros)> {
        let segment = self.segments.nth(number)?;
        if std::ptr::eq(segment, own) {
            return Some((0, Micros::MAX));
        }
        // Without waiting: this thread has its own segment locked, and the holder of the other lock may wait for that
        // one.
        let mut owners = try_lock(segment.owners())?;
        let evicted = segment.sweep(&mut owners, &|place| idle_at(place, step), step.now());
        self.count_evicted(evicted);
        Some((evicted, owners.none_idle_before))
    }

    pub(super) fn count_evicted(&self, keys: usize) {
        self.keys.fetch_sub(keys, Ordering::Relaxed);
        self.evicted.fetch_add(keys as u64, Ordering::Relaxed);
    }
}
