//! # Sketch: cells that keys share when the table is full
//!
//! At the cap, with no idle key, a new key has no slot for its state. Refusing it is safe, but then a client that makes
//! up keys locks out every client that comes later. Evicting an active key is worse: that key comes back with a fresh
//! burst.
//!
//! But a count need not belong to one key. Let a new key count in a cell that is chosen by its fingerprint, together
//! with all other keys that map to the same cell. The cell contains what they have used together, which is never less
//! than what one of them has used. With one cell per key, a single collision would decide. So every key has four cells,
//! in four rows, chosen independently. Its collisions differ from row to row, and the *smallest* of its cells is the
//! closest to the truth.
//!
//! ```text
//!            row 0   │   │ 9 │   │   │        a key's cells contain 9, 4, 7 and 4: it has used at most 4.
//!            row 1   │   │   │   │ 4 │        It is charged 1: every cell is raised to at least 5, so
//!            row 2   │ 7 │   │   │   │        the 4s become 5 and the others stay as they are
//!            row 3   │   │   │ 4 │   │        (they are too large already, because of other keys).
//! ```
//!
//! Adding to all four cells would count the charges of colliding keys as this key's own. Raising them to the new
//! estimate, a *conservative update*, does not, and is sufficient. A cell is a state of the algorithm, word for word:
//! for a bucket an instant with its q-ths, for a window a number and a count. Where larger states are stricter
//! ([`Algorithm::is_ordered`]), the largest of several states stands for all of them. Time empties cells as it empties
//! states, so there is nothing to clear.
//!
//! **Never admits too much.** Let a key's exact state be the state it would have, alone, after the same charges. Each
//! of its cells is at least that. This holds when nothing was charged, and cells only rise. When the key is charged,
//! its estimate e, the smallest of its cells, is at least its exact state s. A charge that e allows is allowed by s as
//! well, and makes of e at least what it makes of s. Each cell is then raised to that. Hence nothing passes that the
//! exact state would have refused.
//!
//! **Never admits too much with many threads.** Between reading the estimate and raising the cells, no other thread may
//! do so *for the same key*: both would see the same tokens left. A key without a slot is decided on under the lock of
//! its segment, which is the same lock for every thread, so this holds. Threads that decide on *other* keys, under
//! other locks, may raise some of the cells meanwhile. That makes this key's estimate too small for the other keys,
//! which does not matter because they read their own cells, and it makes the cells only larger than this key needs. A
//! cell is changed with the lock bit of its first word set, so that no raise is lost and no two words are torn.
//!
//! **A clock that steps back** may leave cells that were written at instants that have not come yet. Each decision
//! first pulls the cells of its key back, as it does with a state of its own ([`Algorithm::repair`]). Only then do
//! cells ever get smaller. When the clock reaches these instants again, a charge of a colliding key may have replaced
//! what one of the cells remembered of the step. Such a return gives a key one burst at most.
//!
//! **Insertion.** A key that gets a slot starts with its estimate. Its cells stay as they are, for the keys that share
//! them.
//!
//! **A version that cannot share cells.** When the version changes, each cell is migrated as a state is. If the states
//! of the next version are not ordered, the sketch accepts no more charges. But the keys in it must not start fresh in
//! a free slot, so a key is refused until the first of its cells is idle.
//!
//! [`Algorithm::is_ordered`]: tidegate_core::Algorithm::is_ordered
//! [`Algorithm::repair`]: tidegate_core::Algorithm::repair

use std::sync::OnceLock;

use super::{Step, is_past};
use crate::lock_bit::{LOCKED, lock_bit, unlock_bit};
use crate::state_cell::Guarded;
use crate::sync::{AtomicU64, Ordering};
use tidegate_core::Micros;

/// What happens to a key when the table is full.
///
/// Set with [`KeyedLimiterBuilder::on_full`](crate::builder::KeyedLimiterBuilder::on_full).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    /// The key shares cells with other keys, and may be refused for what they have used.
    ///
    /// Never admits too much. Works for token buckets and for fixed windows aligned to the clock, also as a
    /// [`Rule`](crate::Rule). Other algorithms refuse the key.
    #[default]
    Sketch,
    /// The key is refused until another key is idle.
    Refuse,
}

/// Statistics of the sketch of a table: part of [`Stats`](crate::stats::Stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SketchStats {
    /// Decisions made from shared cells, since the table was created.
    pub decided: u64,
    /// Refusals among these decisions, whether exact or caused by other keys.
    pub refused: u64,
    /// The number of cells: 0 until the first key finds no room.
    pub cells: usize,
    /// The number of cells that are not idle.
    ///
    /// When most cells are in use, new keys are refused for what other keys have used.
    pub cells_in_use: usize,
}

#[derive(Debug)]
pub(crate) struct Sketch {
    on_full: OnFull,
    /// The number of cells in a row, a power of two.
    width: usize,
    /// The number of words in a cell.
    words: usize,
    content: CellContent,
    /// Allocated when the first key finds no room.
    cells: OnceLock<Box<[AtomicU64]>>,
    decided: AtomicU64,
    refused: AtomicU64,
}

/// What a cell contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CellContent {
    /// A state that stands for several keys.
    States,
    /// Only the instant at which that state is idle.
    ///
    /// Used when the states of this version are not ordered; they may be large.
    IdleAt,
}

/// What the sketch knows of a key without a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recalled {
    /// The key owes nothing.
    Nothing,
    /// The key has used at most what is now in the state.
    Estimate,
    /// The key owed something when cells were shared, and is refused until this instant.
    OwesUntil(Micros),
}

/// The number of rows.
///
/// Two under loom: each further row repeats the same code and multiplies the interleavings.
const ROWS: usize = if cfg!(loom) { 2 } else { 4 };
/// Bounds for the cells of a row.
///
/// In total there are as many cells as there may be keys, within these bounds.
const MIN_WIDTH: usize = 1 << 10;
const MAX_WIDTH: usize = 1 << 18;
/// The maximum number of words of a cell: more than any ordered state has.
const MAX_WORDS: usize = 3;
/// The words of a cell, padded with zeros.
type CellWords = [u64; MAX_WORDS];
/// Odd multipliers without a pattern. Fingerprints are secret, so these need not be.
const ROW_MULTIPLIERS: [u64; 4] =
    [0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB, 0xD6E8_FEB8_6659_FD93];

impl Sketch {
    /// Creates the sketch of a table with at most `max_keys` states of `words` each.
    pub(crate) fn new(max_keys: usize, words: usize, on_full: OnFull) -> Self {
        let width = (max_keys / ROWS).clamp(MIN_WIDTH, MAX_WIDTH).next_power_of_two();
        Sketch::of_width(width, words, on_full)
    }

    pub(crate) fn of_width(width: usize, words: usize, on_full: OnFull) -> Self {
        Sketch {
            on_full,
            width,
            words,
            content: CellContent::States,
            cells: OnceLock::new(),
            decided: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Returns whether keys without a slot may be counted here.
    pub(crate) fn serves<T: Step>(&self, step: &T) -> bool {
        self.on_full == OnFull::Sketch
            && self.content == CellContent::States
            && self.words <= MAX_WORDS
            && step.is_ordered()
    }

    /// Returns what the sketch knows of a key, and writes an estimate into `state`.
    ///
    /// `state` must be zero.
    ///
    /// The caller has locked the key's segment, and keeps it locked until the new state is stored.
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

    /// Writes the smallest of a key's cells into `state`.
    fn estimate<T: Step>(&self, fingerprint: u64, step: &T, state: &mut [u64]) {
        state.fill(u64::MAX);
        for cell in self.cells_of(fingerprint) {
            let found = repaired(cell, step);
            let found = &found[..self.words];
            if found < state {
                state.copy_from_slice(found);
            }
        }
    }

    /// Raises each of the key's cells to at least `state`.
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

    /// Marks an answer as given from the sketch, and counts it.
    pub(crate) fn label<T: Step>(&self, step: &T, answer: T::Answer) -> T::Answer {
        if let Some(passed) = step.passed(&answer) {
            self.decided.fetch_add(1, Ordering::Relaxed);
            self.refused.fetch_add(u64::from(!passed), Ordering::Relaxed);
        }
        step.sketched(answer)
    }

    /// Converts every cell with `convert`, as a table does with a slot.
    ///
    /// Requires all locks of the table.
    pub(crate) fn convert(&self, convert: impl Fn(u64, &[AtomicU64]) -> u64) {
        if self.content == CellContent::IdleAt {
            return;
        }
        for cell in self.used() {
            match cell {
                [word] => unlock_bit(word, convert(word.load(Ordering::Relaxed), &[])),
                _ => _ = convert(0, cell),
            }
        }
    }

    /// Returns a sketch for a table with states of `words`, with every cell migrated.
    ///
    /// A cell becomes what `migrate_from` makes of it, or, if the new states are not ordered, only the instant at which
    /// that state is idle. Requires all locks of the table.
    pub(crate) fn taken_over(
        &self,
        words: usize,
        is_ordered: bool,
        migrate_from: impl Fn(&[u64]) -> Vec<u64>,
        idle_at: impl Fn(&[u64]) -> Micros,
    ) -> Self {
        let states = is_ordered && words <= MAX_WORDS && self.content == CellContent::States;
        let (words, content) = if states { (words, CellContent::States) } else { (1, CellContent::IdleAt) };
        let convert = |found: Vec<u64>| match self.content {
            _ if found.iter().all(|word| *word == 0) => vec![0; words],
            CellContent::States if states => migrate_from(&found),
            CellContent::States => vec![idle_at(&migrate_from(&found)).get()],
            CellContent::IdleAt => found, // there is no state left to migrate
        };
        let next = Sketch { content, ..Sketch::of_width(self.width, words, self.on_full) };
        if self.cells.get().is_some() {
            let cells = self.all().flat_map(|cell| convert(copy_of(cell)));
            next.cells.get_or_init(|| cells.map(AtomicU64::new).collect());
        }
        next
    }

    pub(crate) fn bytes(&self) -> usize {
        self.cells.get().map_or(0, |cells| size_of_val(&**cells))
    }

    /// Returns the statistics at `now`. `idle_at` tells when a state is idle.
    pub(crate) fn stats(&self, idle_at: impl Fn(&Guarded<'_>) -> Micros, now: Micros) -> SketchStats {
        let is_in_use = |cell: &[AtomicU64]| match self.content {
            CellContent::States => idle_at(&Guarded(cell)) > now,
            CellContent::IdleAt => Micros::new(cell[0].load(Ordering::Relaxed)) > now,
        };
        SketchStats {
            decided: self.decided.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            cells: self.all().count(),
            cells_in_use: self.used().filter(|cell| is_in_use(cell)).count(),
        }
    }

    /// Returns a key's cell of each row.
    fn cells_of(&self, fingerprint: u64) -> impl Iterator<Item = &[AtomicU64]> {
        ROW_MULTIPLIERS[..ROWS].iter().enumerate().filter_map(move |(row, pick)| {
            // The high bits of the product depend on the whole fingerprint.
            let column = (fingerprint.wrapping_mul(*pick) >> 40) as usize & (self.width - 1);
            self.all().nth(row * self.width + column)
        })
    }

    /// Returns every cell, row after row; none before the first allocation.
    fn all(&self) -> std::slice::Chunks<'_, AtomicU64> {
        self.cells.get().map_or(&[][..], |cells| cells).chunks(self.words)
    }

    /// Returns the cells in which anything was ever counted.
    fn used(&self) -> impl Iterator<Item = &[AtomicU64]> {
        self.all().filter(|cell| cell.iter().any(|word| word.load(Ordering::Relaxed) != 0))
    }

    fn idle_at<T: Step>(&self, cell: &[AtomicU64], step: &T) -> Micros {
        match self.content {
            CellContent::IdleAt => Micros::new(cell[0].load(Ordering::Relaxed)),
            CellContent::States => step.idle_at(&Guarded(cell)),
        }
    }
}

/// Returns the content of a cell, pulled back if the clock has stepped back.
fn repaired<T: Step>(cell: &[AtomicU64], step: &T) -> CellWords {
    let found = read(cell);
    let mut repaired = found;
    step.repair(&mut repaired[..cell.len()]);
    if repaired != found {
        update(cell, |found| step.repair(found));
    }
    repaired
}

/// Returns the content of a cell.
///
/// While another thread is raising the word, the old value is valid: the raise comes later.
fn read(cell: &[AtomicU64]) -> CellWords {
    let mut copied = [0; MAX_WORDS];
    match cell {
        [word] => copied[0] = word.load(Ordering::Acquire) & !LOCKED,
        _ => update(cell, |found| copied[..found.len()].copy_from_slice(found)),
    }
    copied
}

/// Passes the content of a cell to `change` and stores the result.
///
/// The cell is locked meanwhile.
fn update(cell: &[AtomicU64], change: impl FnOnce(&mut [u64])) {
    let mut words: CellWords = [0; MAX_WORDS];
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

/// Returns the words of a cell that is not locked.
fn copy_of(cell: &[AtomicU64]) -> Vec<u64> {
    cell.iter().map(|word| word.load(Ordering::Relaxed)).collect()
}
