//! # The sketch: cells that keys share when there is no room for more
//!
//! At the cap, with nobody idle, a newcomer has no slot to count in. Refusing it is safe, and lets whoever makes up
//! keys lock out everybody who comes after them. Pushing somebody out is worse: who is pushed out comes back with a
//! fresh burst.
//!
//! But a count need not belong to one key. Let a newcomer count in a cell that is picked by its fingerprint, together
//! with all others who picked the same: the cell says what they have used together, which is never less than what one
//! of them has. With one cell each, an unlucky neighbour decides; so every key has four, in four rows, picked
//! independently. Its neighbours differ from row to row, and the *smallest* of its cells is the nearest to the truth.
//!
//! ```text
//!            row 0   │   │ 9 │   │   │        a key's cells lock_bit 9, 4, 7 and 4: it has used at most 4.
//!            row 1   │   │   │   │ 4 │        It is charged 1: every cell is raised to at least 5, so
//!            row 2   │ 7 │   │   │   │        the 4s become 5 and the others stay as they are
//!            row 3   │   │   │ 4 │   │        (they are too large already, for their other keys' sake).
//! ```
//!
//! Adding to all four would count a neighbour's charges as one's own. Raising to the new estimate, a *conservative
//! update*, does not, and is all that is needed. A cell is a state of the algorithm, word for word, so for a bucket
//! it is an instant with its q-ths and for a window a number and a count; where larger states are stricter
//! ([`Algorithm::is_ordered`]) the largest of several states stands for all of them. Time empties cells as it empties
//! states: there is nothing to clear.
//!
//! **Never too much.** Let a key's exact state be what it would have, alone, after the same charges. Each of its
//! cells is at least that. It is true when nothing was charged, and cells only rise. When the key is charged, its
//! estimate e, the smallest of its cells, was at least its exact state s; what was charged to e passes for s, and
//! makes of e at least what it makes of s; and each cell is then raised to that. Hence nothing passes that the exact
//! state would have refused.
//!
//! **Never too much, by many threads.** Between reading the estimate and raising the cells nobody else may do so *for
//! the same key*: both would see the same tokens left. A key without a slot is decided on under the lock of its
//! segment, and that is the same lock for every thread, so that is so. Threads of *other* keys, under other locks,
//! may raise some of the cells meanwhile. That makes the estimate too small for their keys, which is not their
//! concern since they read their own, and the cells only larger than this key needs. A cell is changed by holding its
//! first word, so that no raise is lost and no two words are torn.
//!
//! **A clock that steps back** may leave cells that were written at instants that have not come yet. Whoever comes
//! pulls its cells back first, as a decision does with a state of its own ([`Algorithm::repair`]). Only then do cells
//! ever get smaller. When the clock comes again, a key may find that a neighbour's charge has replaced what one of its cells
//! remembered of the step; such a return hands it a burst at most.
//!
//! **Moving in.** A key that finds a slot takes its estimate along. Its cells stay as they are, for its neighbours.
//!
//! **A setting that cannot share.** When the setting is changed, each cell is taken over as a state is. If the states
//! of the next setting are not ordered, the sketch serves no more, but who was in it must not start afresh in a free
//! slot: a key is turned away until the first of its cells is idle.
//!
//! [`Algorithm::is_ordered`]: tidegate_core::Algorithm::is_ordered
//! [`Algorithm::repair`]: tidegate_core::Algorithm::repair

use std::sync::OnceLock;

use super::{Step, is_past};
use crate::lock_bit::{LOCKED, lock_bit, unlock_bit};
use crate::state_cell::Guarded;
use crate::sync::{AtomicU64, Ordering};
use tidegate_core::Micros;

/// What becomes of a key for which there is no room: [`KeyedLimiter::on_full`](crate::KeyedLimiter::on_full).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    /// It shares cells with others, and may be refused for what they have used; never is too much admitted.
    ///
    /// For token buckets and for fixed windows by the clock, also as a [`Rule`](crate::Rule). By other algorithms it
    /// is refused.
    #[default]
    Sketch,
    /// It is refused, until somebody is idle.
    Refuse,
}

/// What the sketch of a table can tell about itself: part of [`Stats`](crate::Stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SketchStats {
    /// Decisions that were made from shared cells, since the beginning.
    pub decided: u64,
    /// Those of them that were refusals, rightly or for what others have used.
    pub refused: u64,
    /// How many cells there are: none until the first key finds no room.
    pub cells: usize,
    /// How many of them are not idle. When most are, newcomers are refused for what others have used.
    pub cells_in_use: usize,
}

#[derive(Debug)]
pub(crate) struct Sketch {
    on_full: OnFull,
    /// How many cells a row has, a power of two.
    width: usize,
    /// How many words a cell has.
    words: usize,
    meaning: Meaning,
    /// Made when the first key finds no room.
    cells: OnceLock<Box<[AtomicU64]>>,
    decided: AtomicU64,
    refused: AtomicU64,
}

/// What a cell holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// A state that stands for several keys.
    States,
    /// Only when that state will be idle: the states of this setting are not ordered, and may be large.
    IdleAt,
}

/// What is known of a key without a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recalled {
    /// It owes nothing.
    Nothing,
    /// It has used at most what is now in the state.
    Estimate,
    /// It owed something under a setting that shared cells, and is to be turned away until then.
    OwesUntil(Micros),
}

/// Under loom two: every further one does the same once more, and multiplies the interleavings.
const ROWS: usize = if cfg!(loom) { 2 } else { 4 };
/// As many cells in all as there may be keys, within these bounds for a row.
const NARROWEST: usize = 1 << 10;
const WIDEST: usize = 1 << 18;
/// More words than any state has that is ordered.
const MOST_WORDS: usize = 3;
/// The words of a cell, and zeros.
type Copied = [u64; MOST_WORDS];
/// Odd numbers without a pattern. Fingerprints are secret, so these need not be.
const PICKS: [u64; 4] =
    [0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB, 0xD6E8_FEB8_6659_FD93];

impl Sketch {
    /// For a table of at most `max_keys` states of `words` each.
    pub(crate) fn new(max_keys: usize, words: usize, on_full: OnFull) -> Self {
        let width = (max_keys / ROWS).clamp(NARROWEST, WIDEST).next_power_of_two();
        Sketch::of_width(width, words, on_full)
    }

    pub(crate) fn of_width(width: usize, words: usize, on_full: OnFull) -> Self {
        Sketch {
            on_full,
            width,
            words,
            meaning: Meaning::States,
            cells: OnceLock::new(),
            decided: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Whether keys without a slot may be counted here.
    pub(crate) fn serves<T: Step>(&self, step: &T) -> bool {
        self.on_full == OnFull::Sketch
            && self.meaning == Meaning::States
            && self.words <= MOST_WORDS
            && step.is_ordered()
    }

    /// What is known of a key; an estimate is put into `state`, which is clear.
    ///
    /// Under the lock of the key's segment, until what comes of it was kept.
    pub(crate) fn recall<T: Step>(&self, fingerprint: u64, step: &T, state: &mut [u64]) -> Recalled {
        if self.cells.get().is_none() {
            return Recalled::Nothing;
        }
        if !self.serves(step) {
            let idle_at = self.cells_of(fingerprint).map(|cell| self.idle_at(cell, step)).min();
            let owes_until = idle_at.filter(|at| !is_past(*at, step));
            return owes_until.map_or(Recalled::Nothing, Recalled::OwesUntil);
        }
        self.estimate(fingerprint, step, state);
        if !is_past(step.idle_at(state), step) {
            return Recalled::Estimate;
        }
        state.fill(0);
        Recalled::Nothing
    }

    /// The smallest of a key's cells.
    fn estimate<T: Step>(&self, fingerprint: u64, step: &T, state: &mut [u64]) {
        state.fill(u64::MAX);
        for cell in self.cells_of(fingerprint) {
            let found = settled(cell, step);
            let found = &found[..self.words];
            if found < state {
                state.copy_from_slice(found);
            }
        }
    }

    /// Has each of the key's cells hold at least `state`.
    pub(crate) fn raise(&self, fingerprint: u64, state: &[u64]) {
        self.cells.get_or_init(|| (0..ROWS * self.width * self.words).map(|_| AtomicU64::new(0)).collect());
        for cell in self.cells_of(fingerprint) {
            update(cell, |found| {
                if &*found < state {
                    found.copy_from_slice(state);
                }
            });
        }
    }

    /// Labels an answer as given from here, and counts it.
    pub(crate) fn label<T: Step>(&self, step: &T, answer: T::Answer) -> T::Answer {
        if let Some(passed) = step.passed(&answer) {
            self.decided.fetch_add(1, Ordering::Relaxed);
            self.refused.fetch_add(u64::from(!passed), Ordering::Relaxed);
        }
        step.sketched(answer)
    }

    /// Gives every cell to `convert`, as a table does with a slot. Only under all locks of the table.
    pub(crate) fn convert(&self, convert: impl Fn(u64, &[AtomicU64]) -> u64) {
        if self.meaning == Meaning::IdleAt {
            return;
        }
        for cell in self.used() {
            match cell {
                [word] => unlock_bit(word, convert(word.load(Ordering::Relaxed), &[])),
                _ => _ = convert(0, cell),
            }
        }
    }

    /// The same for a table whose states have `words`: what `migrate_from` makes of each cell, or, if those states are not
    /// ordered, only when that `is_idle_at`. Only under all locks of the table.
    pub(crate) fn taken_over(
        &self,
        words: usize,
        is_ordered: bool,
        migrate_from: impl Fn(&[u64]) -> Vec<u64>,
        idle_at: impl Fn(&[u64]) -> Micros,
    ) -> Self {
        let states = is_ordered && words <= MOST_WORDS && self.meaning == Meaning::States;
        let (words, meaning) = if states { (words, Meaning::States) } else { (1, Meaning::IdleAt) };
        let convert = |found: Vec<u64>| match self.meaning {
            _ if found.iter().all(|word| *word == 0) => vec![0; words],
            Meaning::States if states => migrate_from(&found),
            Meaning::States => vec![idle_at(&migrate_from(&found)).get()],
            Meaning::IdleAt => found, // there is no state any more that could be adopted
        };
        let next = Sketch { meaning, ..Sketch::of_width(self.width, words, self.on_full) };
        if self.cells.get().is_some() {
            let cells = self.all().flat_map(|cell| convert(copy_of(cell)));
            next.cells.get_or_init(|| cells.map(AtomicU64::new).collect());
        }
        next
    }

    pub(crate) fn bytes(&self) -> usize {
        self.cells.get().map_or(0, |cells| size_of_val(&**cells))
    }

    /// What there is to tell at `now`, given when a state is idle.
    pub(crate) fn stats(&self, idle_at: impl Fn(&Guarded<'_>) -> Micros, now: Micros) -> SketchStats {
        let is_in_use = |cell: &[AtomicU64]| match self.meaning {
            Meaning::States => idle_at(&Guarded(cell)) > now,
            Meaning::IdleAt => Micros::new(cell[0].load(Ordering::Relaxed)) > now,
        };
        SketchStats {
            decided: self.decided.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            cells: self.all().count(),
            cells_in_use: self.used().filter(|cell| is_in_use(cell)).count(),
        }
    }

    /// A key's cell of each row.
    fn cells_of(&self, fingerprint: u64) -> impl Iterator<Item = &[AtomicU64]> {
        PICKS[..ROWS].iter().enumerate().filter_map(move |(row, pick)| {
            // The high bits of the product depend on all of the fingerprint.
            let column = (fingerprint.wrapping_mul(*pick) >> 40) as usize & (self.width - 1);
            self.all().nth(row * self.width + column)
        })
    }

    /// Every cell, row after row; none as long as there are none.
    fn all(&self) -> std::slice::Chunks<'_, AtomicU64> {
        self.cells.get().map_or(&[][..], |cells| cells).chunks(self.words)
    }

    /// The cells in which anything was ever counted.
    fn used(&self) -> impl Iterator<Item = &[AtomicU64]> {
        self.all().filter(|cell| cell.iter().any(|word| word.load(Ordering::Relaxed) != 0))
    }

    fn idle_at<T: Step>(&self, cell: &[AtomicU64], step: &T) -> Micros {
        match self.meaning {
            Meaning::IdleAt => Micros::new(cell[0].load(Ordering::Relaxed)),
            Meaning::States => step.idle_at(&Guarded(cell)),
        }
    }
}

/// What is in a cell, pulled back where a clock has stepped back.
fn settled<T: Step>(cell: &[AtomicU64], step: &T) -> Copied {
    let found = read(cell);
    let mut settled = found;
    step.repair(&mut settled[..cell.len()]);
    if settled != found {
        update(cell, |found| step.repair(found));
    }
    settled
}

/// What is in a cell. A word that somebody is just raising is as good as it was: the raise comes after.
fn read(cell: &[AtomicU64]) -> Copied {
    let mut copied = [0; MOST_WORDS];
    match cell {
        [word] => copied[0] = word.load(Ordering::Acquire) & !LOCKED,
        _ => update(cell, |found| copied[..found.len()].copy_from_slice(found)),
    }
    copied
}

/// Gives what is in a cell to `change`, and keeps what becomes of it. Nobody else sees or changes it meanwhile.
fn update(cell: &[AtomicU64], change: impl FnOnce(&mut [u64])) {
    let mut words: Copied = [0; MOST_WORDS];
    let words = &mut words[..cell.len()];
    words[0] = lock_bit(&cell[0]);
    for (copy, word) in words.iter_mut().zip(cell).skip(1) {
        *copy = word.load(Ordering::Relaxed);
    }
    change(words);
    for (copy, word) in words.iter().zip(cell).skip(1) {
        word.store(*copy, Ordering::Relaxed);
    }
    unlock_bit(&cell[0], words[0]);
}

/// The words of a cell that nobody holds.
fn copy_of(cell: &[AtomicU64]) -> Vec<u64> {
    cell.iter().map(|word| word.load(Ordering::Relaxed)).collect()
}
