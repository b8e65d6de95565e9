//! # Taking all states over
//!
//! When the setting changes, every state is held at once, under all locks: nobody decides and nobody moves in. Then each is
//! converted where it lies, or all of them are handed over to another table, in which nobody looks before it is in force.

use super::segment::{Location, Segment};
use super::{OwnersGuard, Table, lock};
use crate::lock_bit::{lock_bit, unlock_bit};
use crate::sync::AtomicU64;
use tidegate_core::Micros;

impl Table {
    /// Holds every state, lets `put_in_force` act, and then gives each state to `convert`, with what that returned.
    ///
    /// Nothing is decided meanwhile. `convert` tells the new word of a slot, which is held. Cells of the sketch it is
    /// given like slots.
    pub(crate) fn convert<T: Copy>(
        &self,
        put_in_force: impl FnOnce() -> T,
        convert: impl Fn(T, u64, &[AtomicU64]) -> u64,
    ) {
        let mut locks = self.lock_all();
        let held = self.lock_states();
        let it = put_in_force();
        for (place, found) in held {
            unlock_bit(place.word(), convert(it, found, self.wide(place)));
        }
        self.sketch.convert(|found, wide| convert(it, found, wide));
        // Under another setting an owner may be idle earlier.
        locks.iter_mut().for_each(|owners| owners.none_idle_before = Micros::ZERO);
        self.eviction_hint.idle_from(Micros::ZERO);
    }

    /// Holds every state, for good: whoever looks for one here from now on waits until another table is in force. That must
    /// happen before what this returns is dropped, or newcomers would still settle here.
    #[must_use]
    pub(crate) fn migrate(&self) -> Migrated<'_> {
        let locks = self.lock_all();
        Migrated { held: self.lock_states(), table: self, _locks: locks }
    }

    /// Holds every state. Only under all locks.
    fn lock_states(&self) -> Vec<(Location<'_>, u64)> {
        self.occupied().map(|place| (place, lock_bit(place.word()))).collect()
    }

    /// The state beside the word of `place`, if there is one.
    fn wide<'a>(&self, place: Location<'a>) -> &'a [AtomicU64] {
        if self.words == 1 { &[] } else { place.state() }
    }

    /// Puts a state where no other thread can see the table yet. `false` if there is no room.
    pub(crate) fn insert_raw(&self, fingerprint: u64, state: &[u64], idle_at: Micros) -> bool {
        loop {
            let segment = self.segments.of(fingerprint);
            let mut owners = lock(segment);
            if owners.keys < segment.slots() * 7 / 8 || !self.segments.can_grow(segment, &owners) {
                let Some(place) = segment.find_room(fingerprint, &|_| false) else { return false };
                if !self.reserve() {
                    return false;
                }
                self.move_in(place, &mut owners, fingerprint, state, idle_at);
                return true;
            }
            self.segments.grow(segment, &mut owners);
        }
    }

    fn occupied(&self) -> impl Iterator<Item = Location<'_>> {
        self.segments.all().flat_map(Segment::places).filter(|place| !place.is_empty())
    }

    fn lock_all(&self) -> Vec<OwnersGuard<'_>> {
        // A table without a root would have no lock, and the first key would arrive under the old setting meanwhile.
        self.segments.make_root();
        // A segment made while we wait for its parent's lock is locked after it, so this ends with all of them.
        let mut locks = Vec::new();
        while let Some(segment) = u32::try_from(locks.len()).ok().and_then(|n| self.segments.nth(n)) {
            locks.push(lock(segment));
        }
        locks
    }
}

/// All the states of a table. No owner changes while this lives, and nobody ever decides there again.
pub(crate) struct Migrated<'a> {
    held: Vec<(Location<'a>, u64)>,
    table: &'a Table,
    _locks: Vec<OwnersGuard<'a>>,
}

impl<'a> Migrated<'a> {
    /// The fingerprint of each key, its word and the state beside it.
    pub(crate) fn states(&self) -> impl Iterator<Item = (u64, u64, &'a [AtomicU64])> {
        self.held.iter().map(|(place, found)| (place.owner(), *found, self.table.wide(*place)))
    }
}
