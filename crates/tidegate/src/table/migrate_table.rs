//! # Migration of all states to another version
//!
//! When the limit changes, all states are locked together, under the locks of all segments: no decision and no
//! insertion happens meanwhile. Then each state is converted in place, or all of them are copied into another table,
//! which no thread reads before its version is current.

use super::segment::{Location, Segment};
use super::{OwnersGuard, Table, lock};
use crate::lock_bit::{lock_bit, unlock_bit};
use crate::sync::AtomicU64;
use tidegate_core::Micros;

impl Table {
    /// Locks every state, calls `activate`, and converts each state with its result.
    ///
    /// No decision happens meanwhile. `convert` returns the new word of a slot, which is locked. It is called for the
    /// cells of the sketch as well.
    pub(crate) fn convert<T: Copy>(
        &self,
        activate: impl FnOnce() -> T,
        convert: impl Fn(T, u64, &[AtomicU64]) -> u64,
    ) {
        let mut locks = self.lock_all();
        let locked = self.lock_states();
        let version = activate();
        for (place, found) in locked {
            unlock_bit(place.word(), convert(version, found, self.wide(place)));
        }
        self.sketch.convert(|found, wide| convert(version, found, wide));
        // Under another version a key may become idle earlier.
        locks.iter_mut().for_each(|owners| owners.none_idle_before = Micros::ZERO);
        self.eviction_hint.idle_from(Micros::ZERO);
    }

    /// Locks every state for good, so that all of them can be copied into another table.
    ///
    /// From now on a thread that looks for a state here waits until another table is current. That table must be
    /// current before the returned value is dropped, or new keys would still be inserted here.
    #[must_use]
    pub(crate) fn migrate(&self) -> Migrated<'_> {
        let locks = self.lock_all();
        Migrated { locked: self.lock_states(), table: self, _locks: locks }
    }

    /// Locks every state. Requires the locks of all segments.
    fn lock_states(&self) -> Vec<(Location<'_>, u64)> {
        self.occupied().map(|place| (place, lock_bit(place.word()))).collect()
    }

    /// Returns the wide state of `place`, or an empty slice if states are one word.
    fn wide<'a>(&self, place: Location<'a>) -> &'a [AtomicU64] {
        if self.words == 1 { &[] } else { place.state() }
    }

    /// Inserts a state into a table that no other thread can see yet.
    ///
    /// Returns `false` if there is no room.
    pub(crate) fn insert_raw(&self, fingerprint: u64, state: &[u64], idle_at: Micros) -> bool {
        loop {
            let segment = self.segments.of(fingerprint);
            let mut owners = lock(segment);
            if owners.keys < segment.slots() * 7 / 8 || !self.segments.can_grow(segment, &owners) {
                let Some(place) = segment.find_room(fingerprint, &|_| false) else { return false };
                if !self.reserve() {
                    return false;
                }
                self.store_new_key(place, &mut owners, fingerprint, state, idle_at);
                return true;
            }
            self.segments.grow(segment, &mut owners);
        }
    }

    fn occupied(&self) -> impl Iterator<Item = Location<'_>> {
        self.segments.all().flat_map(Segment::places).filter(|place| !place.is_empty())
    }

    fn lock_all(&self) -> Vec<OwnersGuard<'_>> {
        // Without a root there would be no lock to take, and the first key could be inserted under the old version
        // meanwhile.
        self.segments.make_root();
        // A segment allocated while this thread waits for its parent's lock is locked after it, so the loop locks all of
        // them.
        let mut locks = Vec::new();
        while let Some(segment) = u32::try_from(locks.len()).ok().and_then(|n| self.segments.nth(n)) {
            locks.push(lock(segment));
        }
        locks
    }
}

/// All states of a table.
///
/// No slot changes its owner while this value exists, and no decision is ever made there again.
pub(crate) struct Migrated<'a> {
    locked: Vec<(Location<'a>, u64)>,
    table: &'a Table,
    _locks: Vec<OwnersGuard<'a>>,
}

impl<'a> Migrated<'a> {
    /// Returns the fingerprint, the word and the wide state of each key.
    pub(crate) fn states(&self) -> impl Iterator<Item = (u64, u64, &'a [AtomicU64])> {
        self.locked.iter().map(|(place, found)| (place.owner(), *found, self.table.wide(*place)))
    }
}
