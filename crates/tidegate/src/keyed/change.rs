//! # Another setting for all keys
//!
//! Every state is held, taken over by the new setting, and let go: in place if it keeps its size, else into another
//! table. Whoever decides meanwhile waits for the one word it needs. What was promised for later is taken over last.

use std::cell::Cell;
use std::sync::Arc;

use super::states::{Keyed, Regime};
use crate::ahead;
use crate::hold::HELD;
use crate::shared::{Guarded, When};
use crate::table::Table;
use tidegate_core::{Algorithm, Words, WordsMut};

impl<A: Algorithm> Keyed<A> {
    /// The clock is read when every state is held: before, somebody could still decide at a later instant.
    pub(crate) fn change(&self, algorithm: A, when: impl FnOnce() -> When) {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // First, so that whoever holds one of these locks finds no state held for long.
        let visits = self.ahead.visit_all();
        let old = self.current();
        let when = if algorithm.words() == old.algorithm.words() {
            self.change_in_place(algorithm, old, when)
        } else {
            self.change_table(algorithm, old, when)
        };
        ahead::migrate_from(self, visits, &old.algorithm, when);
    }

    fn change_in_place(&self, algorithm: A, old: &Regime<A>, when: impl FnOnce() -> When) -> When {
        let (table, changed) = (&old.table, Cell::new(None));
        table.convert(
            || {
                let when = when();
                self.regimes.push(Regime { algorithm, table: table.clone(), since: when.since() });
                changed.set(Some(when));
                when
            },
            |when, found, beside| {
                let next = &self.current().algorithm;
                paste(next, &adopted(next, &old.algorithm, &copy_of(found, beside), when), beside)
            },
        );
        changed.into_inner().expect("the setting was put in force")
    }

    fn change_table(&self, algorithm: A, old: &Regime<A>, when: impl FnOnce() -> When) -> When {
        let handed_over = old.table.hand_over();
        let when = when();
        let adopted = |was: &[u64]| adopted(&algorithm, &old.algorithm, was, when);
        let table = Table::planted(old.table.max_keys(), algorithm.words(), |table| {
            handed_over.states().all(|(fingerprint, found, beside)| {
                let state = adopted(&copy_of(found, beside));
                let idle_at = algorithm.idle_at(state.as_slice());
                idle_at <= when.now || table.plant(fingerprint, &state, idle_at)
            })
        });
        let (words, is_ordered) = (algorithm.words(), algorithm.is_ordered());
        let sketch =
            old.table.sketch().taken_over(words, is_ordered, adopted, |cell| algorithm.idle_at(cell));
        let table = Arc::new(table.with_sketch(sketch));
        self.regimes.push(Regime { algorithm, table, since: when.since() });
        drop(handed_over);
        when
    }
}

/// The state under `next` of what was a state under `old`.
fn adopted<A: Algorithm>(next: &A, old: &A, was: &[u64], when: When) -> Vec<u64> {
    let mut state = vec![0; next.words()];
    next.migrate_from(old, was, state.as_mut_slice(), when.for_state(old, was));
    state
}

/// The words of a slot's state, wherever they lie.
fn copy_of(word: u64, beside: &[crate::sync::AtomicU64]) -> Vec<u64> {
    if beside.is_empty() {
        vec![word]
    } else {
        (0..beside.len()).map(|index| Guarded(beside).get(index)).collect()
    }
}

/// Writes a state back, and tells the word of its slot.
fn paste<A: Algorithm>(algorithm: &A, state: &[u64], beside: &[crate::sync::AtomicU64]) -> u64 {
    if beside.is_empty() {
        return state[0] & !HELD;
    }
    let mut words = Guarded(beside);
    state.iter().enumerate().for_each(|(index, word)| words.set(index, *word));
    algorithm.idle_at(state).get()
}
