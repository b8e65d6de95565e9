//! # Segments of a table: allocated one by one, found by number
//!
//! The directory maps each *stretch* of fingerprints to a segment. A table has as many stretches as it can ever need
//! segments, but most tables need few of them. So nothing is allocated in advance:
//!
//! ```text
//!   no key yet       root ─► nothing
//!   few keys         root ─► segment 2          segments 0 and 1 were roots, too; they are empty now
//!   more             directory  │ 2 │ 2 │ 3 │ 3 │ 3 │        segment 3 took over the upper half of the stretches
//! ```
//!
//! Segments are stored in lists, each four times as long as the one before. A list is allocated with its first segment,
//! so no segment ever moves. The number of a segment encodes *list and index*, which costs less than computing the
//! list.
//!
//! **Allocation.** The thread that inserts the first key allocates the root, under a lock. Every other segment, and the
//! directory, is allocated under the lock of the segment that the keys move out of. Each is complete before its number
//! is published. A thread that has not seen the new number yet finds the old segment, takes its lock, and then sees it.
//!
//! **Cost.** Growing on demand costs a decision 12 to 23 of about 180 instructions, counted by callgrind: the
//! directory may not exist yet, a segment is found through its list, and the segments of a small table are
//! fuller.

use std::ops::{Range, RangeInclusive};
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

use super::lock;
use super::segment::{Owners, Segment, Slot};
use crate::sync::{self, AtomicU32, Mutex, Ordering};
use tidegate_core::Micros;

#[derive(Debug)]
pub(super) struct Segments {
    /// The number of the segment of all keys, or [`NONE`], or [`DIVIDED`].
    root: AtomicU32,
    /// The number of the segment for each stretch of fingerprints.
    ///
    /// Allocated when the root divides.
    directory: OnceLock<Box<[AtomicU32]>>,
    lists: [OnceLock<Box<[Slot]>>; LISTS],
    /// The number of stretches.
    stretches: usize,
    /// The number of segments. Counts the first root even if it is not allocated yet.
    allocated_segments: AtomicU32,
    /// The number of lines of the first root, and of a segment of full size.
    lines: RangeInclusive<usize>,
    words: usize,
    /// Locked to allocate the first root.
    root_lock: Mutex<()>,
    /// Allocated bytes.
    ///
    /// Uses `std` under loom, too: it is updated while a `OnceLock` is initialized, where loom must not switch threads.
    bytes: AtomicUsize,
}

/// No segment.
pub(super) const NONE: u32 = u32::MAX;
/// Value of `root` after it has divided: the directory is in use.
const DIVIDED: u32 = u32::MAX - 1;
/// The maximum number of stretches of a table.
pub(super) const MAX_STRETCHES: usize = 1 << 27;
/// A root is replaced by one with this many times its lines.
pub(super) const GROWTH: usize = 4;
/// The number of lists.
///
/// The last list belongs to [`NONE`] and [`DIVIDED`], and is never allocated. The others have room for more than
/// [`MAX_STRETCHES`].
const LISTS: usize = 16;
/// The number of bits of a segment number that are the index in its list.
const INDEX_BITS: u32 = 28;
/// List `n` has room for 8 · 4ⁿ segments.
const FIRST_LIST: usize = 8;

impl Segments {
    pub(super) fn new(stretches: usize, words: usize, lines: RangeInclusive<usize>) -> Self {
        Segments {
            root: AtomicU32::new(NONE),
            directory: OnceLock::new(),
            lists: [const { OnceLock::new() }; LISTS],
            stretches,
            allocated_segments: AtomicU32::new(1),
            lines,
            words,
            root_lock: Mutex::new(()),
            bytes: AtomicUsize::new(0),
        }
    }

    /// Returns the allocated memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    // --- finding

    /// Returns the segment of a key, if it is allocated.
    #[inline(always)]
    pub(super) fn find(&self, fingerprint: u64) -> Option<&Segment> {
        self.get(self.number(fingerprint))
    }

    /// Returns the number of a key's segment.
    #[inline(always)]
    pub(super) fn number(&self, fingerprint: u64) -> u32 {
        let root = self.root.load(Ordering::Acquire);
        match self.directory.get() {
            Some(directory) if root == DIVIDED => {
                directory[stretch(fingerprint, directory.len())].load(Ordering::Acquire)
            }
            _ => root,
        }
    }

    /// Returns the segment with this number.
    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> Option<&Segment> {
        let list = self.lists[(number >> INDEX_BITS) as usize].get()?;
        list.get((number & ((1 << INDEX_BITS) - 1)) as usize)?.get()
    }

    /// Returns the segment of a key. Allocates the root if there is none.
    #[inline]
    pub(super) fn of(&self, fingerprint: u64) -> &Segment {
        self.find(fingerprint).unwrap_or_else(|| self.create_root_for(fingerprint))
    }

    #[cold]
    #[inline(never)]
    fn create_root_for(&self, fingerprint: u64) -> &Segment {
        self.make_root();
        self.find(fingerprint).expect("there is a root")
    }

    /// Returns the number of segments.
    pub(super) fn allocated_segments(&self) -> u32 {
        self.allocated_segments.load(Ordering::Relaxed)
    }

    /// Returns the `n`th segment, in the order of allocation.
    pub(super) fn nth(&self, n: u32) -> Option<&Segment> {
        self.get(number(n))
    }

    /// Returns every segment.
    pub(super) fn all(&self) -> impl Iterator<Item = &Segment> {
        self.lists.iter().filter_map(OnceLock::get).flat_map(|list| list.iter().filter_map(Slot::get))
    }

    // --- allocation

    /// Allocates the root if there is none.
    pub(super) fn make_root(&self) {
        let _making_root = sync::lock(&self.root_lock);
        // Another thread may have allocated it, and replaced it since.
        if self.root.load(Ordering::Acquire) == NONE {
            self.allocate(0, *self.lines.start(), 0..self.stretches);
            self.root.store(number(0), Ordering::Release);
        }
    }

    /// Allocates the `n`th segment. No other thread allocates the same one.
    fn allocate(&self, n: u32, lines: usize, stretches: Range<usize>) -> &Segment {
        let number = number(n);
        let (list, index) = ((number >> INDEX_BITS) as usize, number & ((1 << INDEX_BITS) - 1));
        let slots = self.lists[list].get_or_init(|| {
            let slots: Box<[Slot]> = (0..self.length(list)).map(|_| Slot::default()).collect();
            self.count_bytes(size_of_val(&*slots));
            slots
        });
        slots[index as usize].get_or_init(|| {
            let segment = Segment::new(lines, self.words, stretches);
            self.count_bytes(segment.bytes());
            segment
        })
    }

    fn count_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the length of a list: at most what the maximum number of segments needs.
    fn length(&self, list: usize) -> usize {
        let roots = (self.lines.end() / self.lines.start()).ilog2().div_ceil(GROWTH.ilog2()) as usize;
        let before = FIRST_LIST * ((1 << (2 * list)) - 1) / 3;
        (self.stretches + roots - before).min(FIRST_LIST << (2 * list))
    }

    /// Returns whether a segment can give keys away.
    ///
    /// It can if it is a root below full size, or if it has several stretches.
    pub(super) fn can_grow(&self, segment: &Segment, owners: &Owners) -> bool {
        segment.lines() < *self.lines.end() || owners.stretches.len() > 1
    }

    /// Allocates a segment for keys of `segment`, and moves them there.
    ///
    /// The caller has locked `segment`, which still owns its stretches. A root below full size gives away all keys; any
    /// other segment gives away the keys of the upper half of its stretches.
    pub(super) fn grow(&self, segment: &Segment, owners: &mut Owners) {
        let Range { start, end } = owners.stretches;
        let lines = (segment.lines() * GROWTH).min(*self.lines.end());
        let is_replaced = segment.lines() < lines;
        let first = if is_replaced { start } else { start + (end - start).div_ceil(2) };
        let n = self.allocated_segments.fetch_add(1, Ordering::Relaxed);
        let other = self.allocate(n, lines, first..end);
        // Locked until the keys are moved: a sweep that reaches it earlier would find it empty and report no idle key.
        let mut others = lock(other);
        (others.none_idle_before, others.evicted_at) = (owners.none_idle_before, owners.evicted_at);
        owners.stretches.end = first;
        segment
            .divide(owners, other, &mut others, &|fingerprint| stretch(fingerprint, self.stretches) >= first);
        if is_replaced {
            owners.none_idle_before = Micros::MAX;
            self.root.store(number(n), Ordering::Release);
            return;
        }
        let root = self.root.load(Ordering::Acquire);
        for entry in &self.directory(root)[first..end] {
            entry.store(number(n), Ordering::Release);
        }
        if root != DIVIDED {
            self.root.store(DIVIDED, Ordering::Release);
        }
    }

    /// Returns the directory. A new one has the root in every entry.
    fn directory(&self, root: u32) -> &[AtomicU32] {
        self.directory.get_or_init(|| {
            let directory: Box<[_]> = (0..self.stretches).map(|_| AtomicU32::new(root)).collect();
            self.count_bytes(size_of_val(&*directory));
            directory
        })
    }
}

/// Returns the stretch of a fingerprint, out of `stretches`.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the high half of a product with a length is below it")]
fn stretch(fingerprint: u64, stretches: usize) -> usize {
    ((u128::from(fingerprint) * stretches as u128) >> 64) as usize
}

/// Returns the number of the `n`th segment: its list, and its index there.
fn number(n: u32) -> u32 {
    // List `l` starts at 8 · (4ˡ − 1) / 3.
    let list = (3 * u64::from(n) / FIRST_LIST as u64 + 1).ilog2() / 2;
    let before = FIRST_LIST as u64 * ((1 << (2 * list)) - 1) / 3;
    list << INDEX_BITS | u32::try_from(u64::from(n) - before).expect("a list has fewer than 2²⁸ entries")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn segment_numbers_are_consecutive_through_the_lists() {
        let mut next = (0, 0);
        for n in 0..100_000 {
            let number = number(n);
            assert_eq!((number >> INDEX_BITS, number & ((1 << INDEX_BITS) - 1)), next, "of segment {n}");
            next = if next.1 + 1 == 8 << (2 * next.0) { (next.0 + 1, 0) } else { (next.0, next.1 + 1) };
        }
        let last = u32::try_from(MAX_STRETCHES + 8).unwrap();
        assert!(
            (number(last) >> INDEX_BITS) as usize + 1 < LISTS,
            "the last list is never allocated_segments"
        );
    }

    #[test]
    fn lists_have_room_for_exactly_all_segments() {
        for stretches in [1, 2, 3, 7, 8, 39, 40, 41, 5_462] {
            for (lines, roots) in [(16..=256, 2), (2..=16, 2), (2..=2, 0), (4..=8, 1)] {
                let segments = Segments::new(stretches, 1, lines);
                let last = number(u32::try_from(stretches + roots - 1).unwrap()) >> INDEX_BITS;
                let room: usize = (0..=last as usize).map(|list| segments.length(list)).sum();
                assert_eq!(room, stretches + roots);
            }
        }
    }
}
