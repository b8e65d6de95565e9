//! # Table: the states of millions of keys
//!
//! The table is not a map of keys but a flat array of fingerprints and words. Nothing is allocated per key, no key is
//! stored itself, and a decision usually touches one cache line.
//!
//! ```text
//!   fingerprint  ──high bits──►  directory  ──►  segment            (1024 slots, 16 KiB)
//!        └──────low bits──────────────────────────► line            (4 slots, 64 bytes)
//! ```
//!
//! **Starting small.** A table without a request has no segment and no directory. The first key creates the *root*, a
//! segment of 1 KiB that stores all keys. A root that is nearly full is replaced by one of four times its size, until
//! it has the size of every later segment:
//!
//! ```text
//!   keys up to    0         56        224        896               more
//!   new           nothing   1 KiB     4 KiB      16 KiB            the directory, and 16 KiB for each division
//!                           root      root       root, full size   segments
//! ```
//!
//! A root that was replaced is kept, empty, because a thread may be reading it.
//!
//! **Growing** never moves the whole table. A segment of full size that is nearly full divides: a new segment takes
//! over the upper half of its stretch of the directory, and the keys that belong there. That takes one thread a few
//! microseconds, and the other threads continue to decide. See [`segments`].
//!
//! **Eviction** costs existing keys nothing. A key that owes nothing is decided like a key never seen, so its slot is given
//! to the next new key that needs one. Only insertions pay for it.
//!
//! **The cap** limits the number of keys. When it is reached and no key is idle, new keys share the cells of a
//! [`sketch`], or are refused where sharing is impossible. Existing keys keep their exact state. A client never gets a
//! fresh burst by evicting other keys.

mod cache_line;
mod claim;
mod eviction;
mod insertion;
mod migrate_table;
mod segment;
mod segments;
mod sketch;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::lock_bit::{Backoff, LOCKED, try_lock_bit, unlock_bit};
use crate::state_cell::Guarded;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, MutexGuard, Ordering};
use std::ops::RangeInclusive;

pub(crate) use claim::{Claim, Locks};
use eviction::EvictionHint;
pub(crate) use segment::Location;
use segment::{Owners, Segment};
use segments::Segments;
pub(crate) use sketch::Sketch;
pub use sketch::{OnFull, SketchStats};
use tidegate_core::{Micros, Wait, Words, WordsMut};

/// An operation on the state of a key, as the table sees it.
pub(crate) trait Step {
    type Answer;

    /// Runs the operation on a state.
    fn run<S: WordsMut + ?Sized>(&self, state: &mut S) -> Self::Answer;
    /// Runs the operation on a state never seen.
    ///
    /// The key may have had a state that was evicted as idle at `evicted_at`. A thread that read the clock before that
    /// and was slow to get here must not treat the state as fresh too early.
    fn run_anew<S: WordsMut + ?Sized>(&self, state: &mut S, evicted_at: Micros) -> Self::Answer {
        let _ = evicted_at;
        self.run(state)
    }
    /// Returns the next word and the answer for a state of one word, if there is a fast path.
    fn fast_path(&self, word: u64) -> Option<(u64, Self::Answer)>;
    /// Returns the answer for a new key when there is no room for it.
    fn refuse(&self, room_after: Wait) -> Self::Answer;
    /// Returns when a state, of this key or another, equals a state never seen.
    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros;
    fn now(&self) -> Micros;
    /// Returns whether the version that this step was made for is still current.
    fn is_current(&self) -> bool;

    /// Returns whether larger states are stricter, so that one can stand for several keys.
    fn is_ordered(&self) -> bool {
        false
    }
    /// Pulls a state back if the clock has stepped back since the state was written.
    fn repair(&self, state: &mut [u64]) {
        let _ = state;
    }
    /// Returns whether the request passed, if the answer is to be counted.
    fn passed(&self, answer: &Self::Answer) -> Option<bool> {
        let _ = answer;
        None
    }
    /// Marks the answer as given from a state that several keys share.
    fn sketched(&self, answer: Self::Answer) -> Self::Answer {
        answer
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    segments: Segments,
    words: usize,
    max_keys: usize,
    keys: AtomicUsize,
    eviction_hint: EvictionHint,
    /// The slot in which the hot key was found last: the segment, and the slot in it.
    remembered: AtomicU64,
    /// The segment that was last swept for a new key of another segment.
    swept: AtomicU32,
    evicted: AtomicU64,
    refused: AtomicU64,
    /// Shared cells for the keys that find no room.
    sketch: Sketch,
}

/// Statistics of the key table of a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Keys that have a state now, including idle keys that are not evicted yet.
    pub keys: usize,
    /// The maximum number of keys.
    pub max_keys: usize,
    /// Idle keys that were evicted for other keys, since the table was created.
    pub evicted: u64,
    /// Requests refused for lack of room for another key, since the table was created.
    pub refused: u64,
    /// Memory of the limiter in bytes.
    ///
    /// Includes the limiter itself, the directory and the segments of its table, the cells of the sketch, and the
    /// tables that were replaced when the limit changed.
    pub bytes: usize,
    /// Decisions on keys that found no room and share cells: [`KeyedLimiter::on_full`].
    ///
    /// [`KeyedLimiter::on_full`]: crate::builder::KeyedLimiterBuilder::on_full
    pub sketch: SketchStats,
}

/// No remembered slot: a number that belongs to no segment.
const NOWHERE: u64 = (segments::NONE as u64) << 32;

/// The approximate size of a full segment in bytes.
///
/// A segment never has fewer than `MIN_LINES`, because uneven fingerprints would fill it early.
const SEGMENT_BYTES: usize = 64 << 10;
const MIN_LINES: usize = 16;
const MAX_LINES: usize = 256;
/// The approximate size of the first root in bytes. It has at least one pair of lines.
const FIRST_ROOT_BYTES: usize = 1 << 10;
const MIN_ROOT_LINES: usize = 2;

impl Table {
    /// Creates an empty table for at most `max_keys` states of `words` each.
    pub(crate) fn new(max_keys: usize, words: usize) -> Self {
        Table::with_room(max_keys, words, 1)
    }

    /// Creates a table that has room for every key that `insert_all` inserts.
    ///
    /// `insert_all` returns whether all keys fit. Until they do, a table with twice the room is tried.
    pub(crate) fn inserted_raw(max_keys: usize, words: usize, insert_all: impl Fn(&Table) -> bool) -> Self {
        let mut room = 1;
        loop {
            let table = Table::with_room(max_keys, words, room);
            if insert_all(&table) {
                return table;
            }
            room *= 2;
        }
    }

    /// Creates a table with `room` times the segments that it needs.
    fn with_room(max_keys: usize, words: usize, room: usize) -> Self {
        let lines = (SEGMENT_BYTES / line_bytes(words)).clamp(MIN_LINES, MAX_LINES);
        let lines = 1 << lines.ilog2();
        // Three quarters full at the cap, once every segment has divided as often as it can. Small segments are half
        // full, because keys spread less evenly among them.
        let keys = lines * cache_line::SLOTS * if lines < 128 { 2 } else { 3 } / 4;
        let stretches = max_keys.div_ceil(keys).saturating_mul(room).clamp(1, segments::MAX_STRETCHES);
        let root = (FIRST_ROOT_BYTES / line_bytes(words)).clamp(MIN_ROOT_LINES, lines);
        Table::of_stretches(stretches, max_keys, words, 1 << root.ilog2()..=lines)
    }

    /// Creates a table of at most `stretches` segments.
    ///
    /// The first root has as many lines as the range starts with; a segment of full size has as many as it ends with.
    fn of_stretches(stretches: usize, max_keys: usize, words: usize, lines: RangeInclusive<usize>) -> Self {
        Table {
            segments: Segments::new(stretches, words, lines),
            words,
            max_keys,
            keys: AtomicUsize::new(0),
            eviction_hint: EvictionHint::new(),
            remembered: AtomicU64::new(NOWHERE),
            swept: AtomicU32::new(0),
            evicted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            sketch: Sketch::new(max_keys, words, OnFull::default()),
        }
    }

    /// Creates a table of segments that all have `lines` lines.
    ///
    /// It starts with `first` segments, one or two, and each of them can divide `max_divisions` times.
    #[cfg(test)]
    pub(crate) fn of_segments(
        first: usize,
        max_divisions: u32,
        max_keys: usize,
        words: usize,
        lines: usize,
    ) -> Self {
        let table = Table::of_stretches(first << max_divisions, max_keys, words, lines..=lines);
        if first == 2 {
            let root = table.segments.of(0);
            table.segments.grow(root, &mut lock(root));
        }
        table
    }

    /// Creates a table with a root of `lines` lines that is replaced once and never divides.
    ///
    /// The second root has twice the lines.
    #[cfg(all(test, loom))]
    pub(crate) fn of_root(lines: usize, max_keys: usize, words: usize) -> Self {
        Table::of_stretches(1, max_keys, words, lines..=2 * lines)
    }

    /// Replaces the sketch.
    pub(crate) fn with_sketch(self, sketch: Sketch) -> Self {
        Table { sketch, ..self }
    }

    pub(crate) fn max_keys(&self) -> usize {
        self.max_keys
    }

    pub(crate) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    pub(crate) fn sketch(&self) -> &Sketch {
        &self.sketch
    }

    /// Returns the allocated memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.segments.bytes() + self.sketch.bytes()
    }

    /// Returns the statistics; every cell of the sketch that was ever used counts as in use.
    ///
    /// The table does not know when a state is idle.
    pub(crate) fn stats(&self) -> Stats {
        self.stats_with(self.sketch.stats(|_| Micros::MAX, Micros::ZERO))
    }

    /// Returns the statistics, given the statistics of the sketch.
    ///
    /// Reading all cells of the sketch takes a while.
    pub(crate) fn stats_with(&self, sketch: SketchStats) -> Stats {
        Stats {
            keys: self.keys(),
            max_keys: self.max_keys,
            evicted: self.evicted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            bytes: self.bytes(),
            sketch,
        }
    }

    /// Runs a step on the fast path.
    ///
    /// The fast path needs a key that is in the table, a state of one word that is not locked, and a step that can be
    /// decided from the word alone. The step is created once the key is found.
    #[inline(always)]
    pub(crate) fn apply_fast<T: Step>(
        &self,
        fingerprint: u64,
        step: impl FnOnce() -> T,
    ) -> Option<T::Answer> {
        let place = self.find_word(fingerprint)?;
        let found = place.word().load(Ordering::Acquire);
        let step = step();
        if found & LOCKED != 0 {
            return None;
        }
        let (next, answer) = step.fast_path(found)?;
        let done = if next == found {
            place.is_still(fingerprint, found) && step.is_current()
        } else {
            put(place, fingerprint, found, next, &step)
        };
        done.then_some(answer)
    }

    /// Finds the slot of a key with a state of one word.
    ///
    /// Returns `None` also if states are wide here.
    #[inline(always)]
    pub(crate) fn find_word(&self, fingerprint: u64) -> Option<Location<'_>> {
        if self.words != 1 {
            return None;
        }
        self.segments.find(fingerprint)?.find_one_word(fingerprint)
    }

    /// Returns the slot in which the hot key was found last.
    ///
    /// Searches for the key if no slot is remembered. Does not compare the fingerprint: the caller must check the owner
    /// after locking the word.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "two numbers of 32 bits in one")]
    pub(crate) fn find_word_by_memory(&self, fingerprint: u64) -> Option<Location<'_>> {
        let remembered = self.remembered.load(Ordering::Relaxed);
        let number = (remembered as u32) as usize;
        match self.segments.get((remembered >> 32) as u32) {
            Some(segment) if self.words == 1 => Some(segment.nth_slot(number)),
            _ => self.find_and_remember(fingerprint),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_and_remember(&self, fingerprint: u64) -> Option<Location<'_>> {
        let place = self.find_word(fingerprint)?;
        let number = self.segments.number(fingerprint);
        if std::ptr::eq(self.segments.get(number)?, place.segment) {
            let remembered = u64::from(number) << 32 | u64::from(segment_number(place.number_in_segment()));
            self.remembered.store(remembered, Ordering::Relaxed);
        }
        Some(place)
    }

    /// Forgets the slot of the hot key, because another key owns the slot now.
    #[cold]
    pub(crate) fn forget_place(&self) {
        self.remembered.store(NOWHERE, Ordering::Relaxed);
    }

    /// Prefetches the memory that a decision on the key is likely to need.
    #[inline]
    pub(crate) fn prefetch(&self, fingerprint: u64) {
        if let Some(segment) = self.segments.find(fingerprint) {
            segment.prefetch(fingerprint);
        }
    }

    /// Runs `step` on the state of the key.
    ///
    /// Returns `None` if the version changed and nothing was done.
    pub(crate) fn apply<T: Step>(&self, fingerprint: u64, step: &T) -> Option<T::Answer> {
        let mut backoff = Backoff::new();
        loop {
            let segment = self.segments.of(fingerprint);
            let answer = match segment.find(fingerprint) {
                Some(place) if self.words == 1 => apply_to_word(place, fingerprint, step),
                Some(place) => apply_guarded(place, fingerprint, step),
                None => self.insert_or_decide(fingerprint, step),
            };
            if answer.is_some() {
                return answer;
            }
            if !step.is_current() {
                return None;
            }
            backoff.wait();
        }
    }

    /// Resets the eviction hint of this key's segment: a key may have become idle early.
    pub(crate) fn allow_eviction_scan(&self, fingerprint: u64) {
        if let Some(segment) = self.segments.find(fingerprint) {
            lock(segment).none_idle_before = Micros::ZERO;
        }
        self.eviction_hint.idle_from(Micros::ZERO);
    }
}

type OwnersGuard<'a> = MutexGuard<'a, Owners>;

fn lock(segment: &Segment) -> OwnersGuard<'_> {
    segment.owners().lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Returns the size in bytes of a line and its wide states.
fn line_bytes(words: usize) -> usize {
    cache_line::SLOTS * (2 + segment::stride(words)) * 8
}

fn segment_number(number: usize) -> u32 {
    u32::try_from(number).expect("a table has fewer than 2³² segments")
}

/// A temporary state, of one word or of many.
#[derive(Clone, Debug)]
enum Scratch {
    One([u64; 1]),
    Many(Vec<u64>),
}

impl Scratch {
    fn new(words: usize) -> Self {
        if words == 1 { Scratch::One([0]) } else { Scratch::Many(vec![0; words]) }
    }

    fn words(&mut self) -> &mut [u64] {
        match self {
            Scratch::One(word) => word,
            Scratch::Many(words) => words,
        }
    }
}

/// Returns whether a state that is idle at `idle_at` is idle now.
///
/// At the end of the time line no state is, because time stands still there.
fn is_past<T: Step>(idle_at: Micros, step: &T) -> bool {
    idle_at <= step.now() && step.now() < Micros::MAX
}

fn idle_at<T: Step>(place: Location<'_>, step: &T) -> Micros {
    let word = place.word().load(Ordering::Acquire) & !LOCKED;
    if place.has_wide_state() { Micros::new(word) } else { step.idle_at(&[word]) }
}

/// Decides on a copy of the word, and locks the word only to write it.
fn apply_to_word<T: Step>(place: Location<'_>, fingerprint: u64, step: &T) -> Option<T::Answer> {
    let version = place.version();
    let found = place.word().load(Ordering::Acquire);
    if found & LOCKED != 0 {
        return None;
    }
    let mut state = [found];
    let answer = step.run(&mut state);
    let done = if state[0] == found {
        place.owner() == fingerprint && place.unchanged_since(version) && step.is_current()
    } else {
        put(place, fingerprint, found, state[0], step)
    };
    done.then_some(answer)
}

/// Replaces the word, if it has not changed since it was `found`.
///
/// Returns `false` if it has, if it no longer belongs to `fingerprint`, or if the version of `step` is not current.
#[inline(always)]
fn put<T: Step>(place: Location<'_>, fingerprint: u64, found: u64, next: u64, step: &T) -> bool {
    if !try_lock_bit(place.word(), found) {
        return false;
    }
    let is_valid = place.owner() == fingerprint && step.is_current();
    unlock_bit(place.word(), if is_valid { next } else { found });
    is_valid
}

/// Locks the word, and changes the wide state in place.
fn apply_guarded<T: Step>(place: Location<'_>, fingerprint: u64, step: &T) -> Option<T::Answer> {
    let found = place.try_lock_bit(fingerprint)?;
    if !step.is_current() {
        unlock_bit(place.word(), found);
        return None;
    }
    let mut state = Guarded(place.state());
    let answer = step.run(&mut state);
    unlock_bit(place.word(), step.idle_at(&state).get());
    Some(answer)
}
