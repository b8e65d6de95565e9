//! # Segment: a part of the table that grows by dividing
//!
//! A segment stores the keys with the same high bits of the fingerprint. The *home* of a key is one line of the
//! segment. If the home line is full, the key is stored in the neighbouring line; if that is full too, in one of a
//! second pair of lines, or in any line with room. Each home line counts its keys that are stored *away* (outside the
//! first pair), and how many of them are *astray* (outside the second pair as well), so that a search knows whether to
//! continue.
//!
//! ```text
//!   home, neighbour ──► second home, its neighbour ──► every other line
//!                away > 0                      astray > 0
//! ```
//!
//! A decision takes no segment lock. The owner of a slot changes only under the segment's lock, and by these rules:
//!
//! 1. a word is locked before the fingerprint next to it changes, and unlocked afterwards;
//! 2. a thread that has locked a word reads the fingerprint again before it writes;
//! 3. `version` is odd while owners change, so that a refusal, which only reads, can tell that the word it read
//!    belonged to its key.
//!
//! Segments never move and are never freed while the table exists. So a thread may search a segment that has just
//! given away half of its keys, or all of them. It finds nothing, takes the lock, and continues in the right segment.
//!
//! Freeing a segment safely would take epochs, reference counts or hazard pointers. Each of them adds work to
//! every decision, to save memory once, and a segment that was needed yesterday will be needed again. So the
//! memory of a table grows to what its cap allows, and stays.

use std::hint::black_box;
use std::ops::Range;
use std::sync::OnceLock;

use super::cache_line::{self, CacheLine, EMPTY, SLOTS};
use crate::lock_bit::{lock_bit, unlock_bit};
use crate::sync::{AtomicU8, AtomicU64, Mutex, Ordering, fence};
use tidegate_core::Micros;

/// The part of a segment that every decision reads.
///
/// With its slot it fills one cache line.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Lines of keys, each followed by `group - 1` lines with the wide states of its slots.
    lines: Box<[CacheLine]>,
    group: u32,
    /// The number of lines of keys, a power of two, less one.
    mask: u32,
    version: AtomicU64,
    /// For each line, how many keys of this home are stored away and astray. Sticks at 255.
    homes: Box<[Home]>,
    cold: Box<ColdPart>,
}

/// Counts the keys of a home line that are stored elsewhere.
#[derive(Debug)]
struct Home {
    /// Keys stored neither in the home line nor in its neighbour.
    away: AtomicU8,
    /// Keys stored outside the second pair as well.
    astray: AtomicU8,
}

/// The part of a segment that few decisions read.
#[derive(Debug)]
struct ColdPart {
    words: usize,
    stride: usize,
    /// States that are larger than a cache line are stored here instead.
    large: Box<[AtomicU64]>,
    owners: Mutex<Owners>,
}

/// Memory for one segment.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Slot(OnceLock<Segment>);

impl Slot {
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&Segment> {
        self.0.get()
    }

    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> Segment) -> &Segment {
        self.0.get_or_init(make)
    }
}

/// The part of a segment that its lock protects.
#[derive(Debug)]
pub(crate) struct Owners {
    /// The stretches of the directory that belong to this segment.
    ///
    /// Empty for a root that was replaced.
    pub(crate) stretches: Range<usize>,
    /// The number of slots with an owner.
    pub(crate) keys: usize,
    /// No key can be idle before this instant.
    pub(crate) none_idle_before: Micros,
    /// The latest instant at which an idle key was evicted.
    pub(crate) evicted_at: Micros,
}

/// A slot of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location<'a> {
    pub(crate) segment: &'a Segment,
    line: &'a CacheLine,
    number: usize,
    slot: usize,
}

impl Segment {
    pub(crate) fn new(lines: usize, words: usize, stretches: Range<usize>) -> Self {
        let stride = stride(words);
        let (group, large) = if is_large(words) { (1, lines * SLOTS * stride) } else { (1 + stride / 2, 0) };
        let owners = Owners { stretches, keys: 0, none_idle_before: Micros::ZERO, evicted_at: Micros::ZERO };
        let large = (0..large).map(|_| AtomicU64::new(0)).collect();
        Segment {
            lines: (0..lines * group).map(|_| CacheLine::new()).collect(),
            group: to_u32(group),
            mask: to_u32(lines - 1),
            version: AtomicU64::new(0),
            homes: (0..lines).map(|_| Home { away: AtomicU8::new(0), astray: AtomicU8::new(0) }).collect(),
            cold: Box::new(ColdPart { words, stride, large, owners: Mutex::new(owners) }),
        }
    }

    pub(crate) fn owners(&self) -> &Mutex<Owners> {
        &self.cold.owners
    }

    pub(crate) fn slots(&self) -> usize {
        self.homes.len() * SLOTS
    }

    pub(crate) fn lines(&self) -> usize {
        self.homes.len()
    }

    /// Returns the allocated memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let Segment { lines, homes, cold, .. } = self;
        size_of_val(&**lines) + size_of_val(&**homes) + size_of_val(&**cold) + size_of_val(&*cold.large)
    }

    #[inline(always)]
    fn line(&self, number: usize) -> &CacheLine {
        &self.lines[number * self.group as usize]
    }

    /// Prefetches the home line of `fingerprint`, and the wide state of its preferred slot.
    ///
    /// More than half of all keys are stored in their preferred slot, so their state does not have to be waited for
    /// once the line is loaded.
    #[inline]
    pub(crate) fn prefetch(&self, fingerprint: u64) {
        let place = self.place(self.home(fingerprint), preferred_slot(fingerprint));
        black_box(place.owner());
        if place.has_wide_state() {
            black_box(place.state()[0].load(Ordering::Relaxed));
        }
    }

    /// Returns the slot of `fingerprint`, if it is in this segment.
    ///
    /// Takes no lock, so `None` is certain only if the caller has locked the segment.
    #[inline(always)]
    pub(crate) fn find(&self, fingerprint: u64) -> Option<Location<'_>> {
        let home = self.home(fingerprint);
        match self.line(home).find(fingerprint) {
            Some(slot) => Some(self.place(home, slot)),
            None => self.find_beyond_home(home, fingerprint),
        }
    }

    /// Like [`find`](Segment::find), for states of one word: their lines follow each other.
    #[inline(always)]
    pub(crate) fn find_one_word(&self, fingerprint: u64) -> Option<Location<'_>> {
        let number = self.home(fingerprint);
        let line = self.lines.get(number)?;
        match line.find(fingerprint) {
            Some(slot) => Some(Location { segment: self, line, number, slot }),
            None => self.find_beyond_home(number, fingerprint),
        }
    }

    #[inline(always)]
    fn find_beyond_home(&self, home: usize, fingerprint: u64) -> Option<Location<'_>> {
        let number = self.slot_beyond_home(home, fingerprint)?;
        Some(self.place(number / SLOTS, number % SLOTS))
    }

    /// Returns the number, among all slots, of a key's slot outside its home line.
    ///
    /// A number is returned in a register. So the compiler need not build a `Location` in memory for the keys that are
    /// found in their home line.
    #[inline(never)]
    fn slot_beyond_home(&self, home: usize, fingerprint: u64) -> Option<usize> {
        let find = |line| self.line(line).find(fingerprint).map(|slot| line * SLOTS + slot);
        if let Some(number) = find(neighbour(home)) {
            return Some(number);
        }
        let Home { away, astray } = &self.homes[home];
        if away.load(Ordering::Acquire) == 0 {
            return None;
        }
        if let Some(number) = self.second_pair(fingerprint).into_iter().find_map(find) {
            return Some(number);
        }
        if astray.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.lines_beyond(fingerprint).find_map(find)
    }

    /// See [`Location::is_still`].
    #[inline(never)]
    fn is_still(&self, line: &CacheLine, slot: usize, fingerprint: u64, found: u64) -> bool {
        let version = self.version();
        line.word(slot).load(Ordering::Acquire) == found
            && line.fingerprint(slot) == fingerprint
            && self.unchanged_since(version)
    }

    #[inline]
    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    #[inline]
    fn unchanged_since(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version
    }

    #[inline(always)]
    fn place(&self, number: usize, slot: usize) -> Location<'_> {
        Location { segment: self, line: self.line(number), number, slot }
    }

    /// Returns the slot with this number among all slots.
    #[inline(always)]
    pub(crate) fn nth_slot(&self, number: usize) -> Location<'_> {
        self.place(number / SLOTS, number % SLOTS)
    }

    /// Increments the version before owners change, and again afterwards: see rule 3.
    pub(crate) fn change_owners<R>(&self, change: impl FnOnce() -> R) -> R {
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        let result = change();
        self.version.fetch_add(1, Ordering::Release);
        result
    }

    /// Returns the slots of the home line of `fingerprint`.
    pub(crate) fn home_places(&self, fingerprint: u64) -> impl Iterator<Item = Location<'_>> {
        let line = self.home(fingerprint);
        (0..SLOTS).map(move |slot| self.place(line, slot))
    }

    /// Returns an empty slot that is not `taken`, as close to the home line as possible.
    pub(crate) fn find_room(
        &self,
        fingerprint: u64,
        taken: &dyn Fn(Location<'_>) -> bool,
    ) -> Option<Location<'_>> {
        let home = self.home(fingerprint);
        let lines = [home, neighbour(home)].into_iter().chain(self.lines_beyond(fingerprint));
        let slots = move |line| {
            (0..SLOTS).map(move |slot| self.place(line, (preferred_slot(fingerprint) + slot) % SLOTS))
        };
        lines.flat_map(slots).find(|place| place.is_empty() && !taken(*place))
    }

    /// Evicts all idle keys and returns their number. Stores when the next key can be idle.
    pub(crate) fn sweep(
        &self,
        owners: &mut Owners,
        idle_at: &dyn Fn(Location<'_>) -> Micros,
        now: Micros,
    ) -> usize {
        if now < owners.none_idle_before || now == Micros::MAX {
            return 0;
        }
        let before = owners.keys;
        let mut next = Micros::MAX;
        for place in self.places().filter(|place| place.owner() != EMPTY) {
            let at = idle_at(place);
            if at > now {
                next = next.min(at);
            } else if !place.evict_if(owners, now, &|place| idle_at(place) <= now) {
                next = now;
            }
        }
        owners.none_idle_before = next;
        before - owners.keys
    }

    /// Moves the keys for which `leaves` holds to `other`, which no other thread can see yet.
    pub(crate) fn divide(
        &self,
        owners: &mut Owners,
        other: &Segment,
        others: &mut Owners,
        leaves: &dyn Fn(u64) -> bool,
    ) {
        for place in self.places().filter(|place| place.owner() != EMPTY && leaves(place.owner())) {
            let to = other
                .find_room(place.owner(), &|_| false)
                .expect("a part of a segment fits into an empty one");
            place.move_to(to);
            owners.keys -= 1;
            others.keys += 1;
        }
        self.move_keys_home();
    }

    /// Moves keys that are stored away from their home back to it where there is room now.
    fn move_keys_home(&self) {
        for place in self.places().filter(|place| !place.is_empty() && place.is_far()) {
            let home = self.home(place.owner());
            let near = [home, neighbour(home)].into_iter();
            let mut slots = near.flat_map(|line| (0..SLOTS).map(move |slot| self.place(line, slot)));
            if let Some(to) = slots.find(|slot| slot.is_empty()) {
                place.move_to(to);
            }
        }
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = Location<'_>> {
        (0..self.slots()).map(|n| self.place(n / SLOTS, n % SLOTS))
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "only the lowest bits matter")]
    fn home(&self, fingerprint: u64) -> usize {
        (fingerprint as u32 & self.mask) as usize
    }

    /// Returns the second home, chosen by other bits of the fingerprint, and its neighbour.
    fn second_pair(&self, fingerprint: u64) -> [usize; 2] {
        let second = (fingerprint >> 24) as usize & (self.homes.len() - 1);
        [second, neighbour(second)]
    }

    /// Returns every line but the home and its neighbour.
    ///
    /// The second pair comes first; then, for the few keys that find no room there either, all other lines.
    fn lines_beyond(&self, fingerprint: u64) -> impl Iterator<Item = usize> {
        let lines = self.homes.len();
        let home = self.home(fingerprint);
        let all = (1..lines).map(move |step| (home + step) % lines);
        self.second_pair(fingerprint)
            .into_iter()
            .chain(all)
            .filter(move |line| *line != neighbour(home) && *line != home)
    }
}

/// Returns the distance of two states in words, or 0 if a state is one word.
///
/// Small states never straddle two cache lines.
pub(crate) fn stride(words: usize) -> usize {
    match words {
        1 => 0,
        2..=cache_line::WORDS => words.next_power_of_two(),
        _ => words,
    }
}

fn to_u32(number: usize) -> u32 {
    u32::try_from(number).expect("a segment has few lines")
}

fn is_large(words: usize) -> bool {
    words > cache_line::WORDS
}

/// Returns the slot of the home line that a key prefers.
#[inline]
fn preferred_slot(fingerprint: u64) -> usize {
    (fingerprint >> 40) as usize % SLOTS
}

/// Returns the other line of a pair.
///
/// The two are adjacent, and processors fetch such pairs together.
#[inline]
fn neighbour(line: usize) -> usize {
    line ^ 1
}

// === impl Location ===

impl<'a> Location<'a> {
    #[inline]
    pub(crate) fn owner(self) -> u64 {
        self.line.fingerprint(self.slot)
    }

    #[inline]
    pub(crate) fn word(self) -> &'a AtomicU64 {
        self.line.word(self.slot)
    }

    #[inline]
    pub(crate) fn has_wide_state(self) -> bool {
        self.segment.cold.words > 1
    }

    /// Returns the wide state. The caller must have locked the word.
    pub(crate) fn state(self) -> &'a [AtomicU64] {
        let Segment { lines, group, cold, .. } = self.segment;
        let ColdPart { words, stride, large, .. } = &**cold;
        if is_large(*words) {
            let start = (self.number * SLOTS + self.slot) * stride;
            return &large[start..start + words];
        }
        let start = self.slot * stride;
        let line = &lines[self.number * *group as usize + 1 + start / cache_line::WORDS];
        &line.words()[start % cache_line::WORDS..][..*words]
    }

    /// Locks the word and returns its previous value.
    ///
    /// Returns `None` if the word is locked, or if the slot no longer belongs to `fingerprint`.
    #[inline]
    pub(crate) fn try_lock_bit(self, fingerprint: u64) -> Option<u64> {
        self.line.try_lock_bit(self.slot, fingerprint)
    }

    /// Returns a number that changes with every change of owners; odd while they change.
    #[inline]
    pub(crate) fn version(self) -> u64 {
        self.segment.version()
    }

    /// Returns whether no owner changed since `version` was read.
    ///
    /// Reads in between are then consistent.
    #[inline]
    pub(crate) fn unchanged_since(self, version: u64) -> bool {
        self.segment.unchanged_since(version)
    }

    /// Returns whether the word is `found` and belongs to `fingerprint`, at one instant.
    ///
    /// For refusals, which write nothing and so have not checked the owner of the word yet.
    #[inline(always)]
    pub(crate) fn is_still(self, fingerprint: u64, found: u64) -> bool {
        self.segment.is_still(self.line, self.slot, fingerprint, found)
    }

    /// Returns the number of the slot among all slots of the segment.
    pub(crate) fn number_in_segment(self) -> usize {
        self.number * SLOTS + self.slot
    }

    /// Returns whether both are the same slot.
    pub(crate) fn is(self, other: Location<'_>) -> bool {
        std::ptr::eq(self.line, other.line) && self.slot == other.slot
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.owner() == EMPTY
    }

    /// Makes `fingerprint` the owner of an empty slot.
    ///
    /// The slot gets `word`; `fill` writes the wide state.
    pub(crate) fn insert_owner(self, fingerprint: u64, word: u64, fill: impl FnOnce(&[AtomicU64])) {
        // Locked before the fingerprint is visible: a charge by a thread that already sees it would be lost.
        lock_bit(self.word());
        if self.has_wide_state() {
            fill(self.state());
        }
        self.segment.change_owners(|| self.set_owner(fingerprint));
        unlock_bit(self.word(), word);
    }

    /// Evicts the owner if `may_evict` holds.
    ///
    /// That is checked while the word is locked, so that no charge can happen. `now` is recorded as the instant of the
    /// eviction.
    pub(crate) fn evict_if(
        self,
        owners: &mut Owners,
        now: Micros,
        may_evict: &dyn Fn(Location<'_>) -> bool,
    ) -> bool {
        let found = lock_bit(self.word());
        let evicts = may_evict(self);
        if evicts {
            self.segment.change_owners(|| self.set_owner(EMPTY));
            owners.keys -= 1;
            owners.evicted_at = owners.evicted_at.max(now);
        }
        unlock_bit(self.word(), found);
        evicts
    }

    /// Moves the owner to an empty slot, of this segment or another.
    ///
    /// It cannot be charged meanwhile.
    fn move_to(self, to: Location<'_>) {
        let found = lock_bit(self.word());
        to.insert_owner(self.owner(), found, |state| {
            for (to, from) in state.iter().zip(self.state()) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        });
        self.segment.change_owners(|| self.set_owner(EMPTY));
        unlock_bit(self.word(), found);
    }

    /// Returns whether the owner is stored neither in its home line nor in the neighbour.
    fn is_far(self) -> bool {
        self.is_away_from(self.segment.home(self.owner()))
    }

    fn is_away_from(self, home: usize) -> bool {
        self.number != home && self.number != neighbour(home)
    }

    /// Changes the owner, and the away counts of the old and the new owner's home line.
    fn set_owner(self, fingerprint: u64) {
        self.adjust_counts(self.owner(), |count| if count == u8::MAX { count } else { count - 1 });
        self.adjust_counts(fingerprint, |count| count.saturating_add(1));
        self.line.set_fingerprint(self.slot, fingerprint);
    }

    /// Adjusts the counts of an owner's home line if this slot is away from it.
    fn adjust_counts(self, owner: u64, change: fn(u8) -> u8) {
        let home = self.segment.home(owner);
        if owner == EMPTY || !self.is_away_from(home) {
            return;
        }
        let Home { away, astray } = &self.segment.homes[home];
        let store = |count: &AtomicU8| count.store(change(count.load(Ordering::Relaxed)), Ordering::Release);
        store(away);
        if !self.segment.second_pair(owner).contains(&self.number) {
            store(astray);
        }
    }
}
