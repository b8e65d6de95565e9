//! # Change of the algorithm for all keys
//!
//! Every state is locked, migrated to the new version, and unlocked: in place if it keeps its size, otherwise into
//! another table. A concurrent decision waits only for the one word it needs. Reservations are migrated last.

use std::cell::Cell;
use std::sync::Arc;

use super::states::{Keyed, Version};
use crate::lock_bit::LOCKED;
use crate::reservation;
use crate::state_cell::{DecisionTime, Guarded};
use crate::table::Table;
use tidegate_core::{Algorithm, Keep, Words, WordsMut};

impl<A: Algorithm> Keyed<A> {
    /// Makes `algorithm` current and migrates every state.
    ///
    /// The clock is read when every state is locked: before that, another thread could still decide at a later instant.
    pub(crate) fn change(&self, keep: Keep, algorithm: A, when: impl FnOnce() -> DecisionTime) {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // First, so that a thread that has locked a shard does not find a state locked for long.
        let guards = self.reservations.lock_all_shards();
        let old = self.current();
        let when = if algorithm.words() == old.algorithm.words() {
            self.change_in_place(keep, algorithm, old, when)
        } else {
            self.change_table(keep, algorithm, old, when)
        };
        reservation::migrate(self, keep, guards, &old.algorithm, when);
    }

    fn change_in_place(
        &self,
        keep: Keep,
        algorithm: A,
        old: &Version<A>,
        when: impl FnOnce() -> DecisionTime,
    ) -> DecisionTime {
        let (table, changed) = (&old.table, Cell::new(None));
        table.convert(
            || {
                let when = when();
                self.versions.push(Version { algorithm, table: table.clone(), since: when.since() });
                changed.set(Some(when));
                when
            },
            |when, found, wide| {
                let next = &self.current().algorithm;
                paste(next, &migrated(keep, next, &old.algorithm, &copy_of(found, wide), when), wide)
            },
        );
        changed.into_inner().expect("the version was pushed")
    }

    fn change_table(
        &self,
        keep: Keep,
        algorithm: A,
        old: &Version<A>,
        when: impl FnOnce() -> DecisionTime,
    ) -> DecisionTime {
        let old_table = old.table.migrate();
        let when = when();
        let migrated = |was: &[u64]| migrated(keep, &algorithm, &old.algorithm, was, when);
        let table = Table::inserted_raw(old.table.max_keys(), algorithm.words(), |table| {
            old_table.states().all(|(fingerprint, found, wide)| {
                let state = migrated(&copy_of(found, wide));
                let idle_at = algorithm.idle_at(state.as_slice());
                idle_at <= when.now || table.insert_raw(fingerprint, &state, idle_at)
            })
        });
        let (words, is_ordered) = (algorithm.words(), algorithm.is_ordered());
        let sketch =
            old.table.sketch().taken_over(words, is_ordered, migrated, |cell| algorithm.idle_at(cell));
        let table = Arc::new(table.with_sketch(sketch));
        self.versions.push(Version { algorithm, table, since: when.since() });
        drop(old_table);
        when
    }
}

/// Returns the state under `next` for a state under `old`.
fn migrated<A: Algorithm>(keep: Keep, next: &A, old: &A, was: &[u64], when: DecisionTime) -> Vec<u64> {
    let mut state = vec![0; next.words()];
    keep.migrate(next, old, was, state.as_mut_slice(), when.for_state(old, was));
    state
}

/// Returns the words of a slot's state, whether it is one word or wide.
fn copy_of(word: u64, wide: &[crate::sync::AtomicU64]) -> Vec<u64> {
    if wide.is_empty() { vec![word] } else { (0..wide.len()).map(|index| Guarded(wide).get(index)).collect() }
}

/// Writes a state back, and returns the word of its slot.
fn paste<A: Algorithm>(algorithm: &A, state: &[u64], wide: &[crate::sync::AtomicU64]) -> u64 {
    if wide.is_empty() {
        return state[0] & !LOCKED;
    }
    let mut words = Guarded(wide);
    state.iter().enumerate().for_each(|(index, word)| words.set(index, *word));
    algorithm.idle_at(state).get()
}
