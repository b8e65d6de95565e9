//! # A segment: a piece of the table that grows by dividing
//!
//! A segment holds the keys whose fingerprints begin alike. A key's home is one line of it; when that is full, it lives
//! in the neighbouring line, and when that is full too, in one of a second pair, or wherever there is room. The home line
//! counts those who live *away*, and those among them who live *astray*, so that a search knows whether to look further.
//!
//! ```text
//!   home, neighbour ──► second home, its neighbour ──► every other line
//!                away > 0                      astray > 0
//! ```
//!
//! Deciding takes no lock. Who lives where changes only under the segment's lock, and by these rules:
//!
//! 1. a word is held before the fingerprint beside it changes, and released afterwards;
//! 2. whoever holds a word looks at the fingerprint again before writing;
//! 3. `version` is odd while owners change, so that a refusal, which only reads, can tell that what it read
//!    belonged to its key.
//!
//! Segments never move and are never freed while the table lives. A thread may therefore search one that has just
//! given away half of its keys, or all of them: it finds nothing, takes the lock, and is sent on.

use std::hint::black_box;
use std::ops::Range;
use std::sync::OnceLock;

use super::cache_line::{self, CacheLine, EMPTY, SLOTS};
use crate::lock_bit::{lock_bit, unlock_bit};
use crate::sync::{AtomicU8, AtomicU64, Mutex, Ordering, fence};
use tidegate_core::Micros;

/// What every decision reads; with the slot it lies in it fills one cache line.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Each line of keys is followed by `group - 1` lines with the states of its slots, if they are larger than their word.
    lines: Box<[CacheLine]>,
    group: u32,
    /// The number of lines of keys, a power of two, less one.
    mask: u32,
    version: AtomicU64,
    /// For each line, how many of those whose home it is live away, and how many astray. Sticks at 255.
    homes: Box<[Home]>,
    rest: Box<Rest>,
}

/// How many keys do not live where a line is their home.
#[derive(Debug)]
struct Home {
    /// Neither in it nor in its neighbour.
    away: AtomicU8,
    /// Nor in the second pair.
    astray: AtomicU8,
}

/// What few decisions need.
#[derive(Debug)]
struct Rest {
    words: usize,
    stride: usize,
    /// States that are larger than a cache line lie here instead.
    large: Box<[AtomicU64]>,
    owners: Mutex<Owners>,
}

/// Room for a segment.
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

/// What only the holder of a segment's lock may know.
#[derive(Debug)]
pub(crate) struct Owners {
    /// The stretches of the directory whose keys live here; none in a root that was replaced.
    pub(crate) stretches: Range<usize>,
    /// How many slots have an owner.
    pub(crate) keys: usize,
    /// No owner can be idle before this.
    pub(crate) none_idle_before: Micros,
    /// The latest instant at which an idle owner was let go.
    pub(crate) evicted_at: Micros,
}

/// Where a key lives.
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
            group: small(group),
            mask: small(lines - 1),
            version: AtomicU64::new(0),
            homes: (0..lines).map(|_| Home { away: AtomicU8::new(0), astray: AtomicU8::new(0) }).collect(),
            rest: Box::new(Rest { words, stride, large, owners: Mutex::new(owners) }),
        }
    }

    pub(crate) fn owners(&self) -> &Mutex<Owners> {
        &self.rest.owners
    }

    pub(crate) fn slots(&self) -> usize {
        self.homes.len() * SLOTS
    }

    pub(crate) fn lines(&self) -> usize {
        self.homes.len()
    }

    /// The memory that it has allocated.
    pub(crate) fn bytes(&self) -> usize {
        let Segment { lines, homes, rest, .. } = self;
        size_of_val(&**lines) + size_of_val(&**homes) + size_of_val(&**rest) + size_of_val(&*rest.large)
    }

    #[inline(always)]
    fn line(&self, number: usize) -> &CacheLine {
        &self.lines[number * self.group as usize]
    }

    /// Has memory send the home line of `fingerprint`, and the state beside its favourite slot, where more than half of all
    /// keys live: so it need not be waited for once the line is there.
    #[inline]
    pub(crate) fn prefetch(&self, fingerprint: u64) {
        let place = self.place(self.home(fingerprint), favourite(fingerprint));
        black_box(place.owner());
        if place.has_wide_state() {
            black_box(place.state()[0].load(Ordering::Relaxed));
        }
    }

    /// Where `fingerprint` lives, if it lives here. Takes no lock, so `None` is certain only under it.
    #[inline(always)]
    pub(crate) fn find(&self, fingerprint: u64) -> Option<Location<'_>> {
        let home = self.home(fingerprint);
        match self.line(home).find(fingerprint) {
            Some(slot) => Some(self.place(home, slot)),
            None => self.find_further(home, fingerprint),
        }
    }

    /// The same for states of one word, whose lines follow each other.
    #[inline(always)]
    pub(crate) fn find_at_once(&self, fingerprint: u64) -> Option<Location<'_>> {
        let number = self.home(fingerprint);
        let line = self.lines.get(number)?;
        match line.find(fingerprint) {
            Some(slot) => Some(Location { segment: self, line, number, slot }),
            None => self.find_further(number, fingerprint),
        }
    }

    #[inline(always)]
    fn find_further(&self, home: usize, fingerprint: u64) -> Option<Location<'_>> {
        let number = self.number_further(home, fingerprint)?;
        Some(self.place(number / SLOTS, number % SLOTS))
    }

    /// The number, among all slots, of the one where a key lives that does not live in its home line. A number, because that is
    /// returned in a register, and the compiler need not lay out a place in memory for those who are found at home.
    #[inline(never)]
    fn number_further(&self, home: usize, fingerprint: u64) -> Option<usize> {
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

    /// The place with this number among all slots.
    #[inline(always)]
    pub(crate) fn place_of(&self, number: usize) -> Location<'_> {
        self.place(number / SLOTS, number % SLOTS)
    }

    /// Counts up before owners change, and again after: see rule 3.
    pub(crate) fn change_owners<R>(&self, change: impl FnOnce() -> R) -> R {
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        let result = change();
        self.version.fetch_add(1, Ordering::Release);
        result
    }

    /// The slots of the line that is home to `fingerprint`.
    pub(crate) fn home_places(&self, fingerprint: u64) -> impl Iterator<Item = Location<'_>> {
        let line = self.home(fingerprint);
        (0..SLOTS).map(move |slot| self.place(line, slot))
    }

    /// An empty slot that is not otherwise `taken`, as near to the home of `fingerprint` as there is one.
    pub(crate) fn find_room(
        &self,
        fingerprint: u64,
        taken: &dyn Fn(Location<'_>) -> bool,
    ) -> Option<Location<'_>> {
        let home = self.home(fingerprint);
        let lines = [home, neighbour(home)].into_iter().chain(self.lines_beyond(fingerprint));
        let slots =
            move |line| (0..SLOTS).map(move |slot| self.place(line, (favourite(fingerprint) + slot) % SLOTS));
        lines.flat_map(slots).find(|place| place.is_empty() && !taken(*place))
    }

    /// Lets all idle owners go, and tells how many there were. Remembers when the next one can be idle.
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

    /// Gives the keys that `leaves` names to `other`, which nobody else can see yet.
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
        self.bring_home();
    }

    /// Moves those who found no room near their home when it was crowded to where there is some now.
    fn bring_home(&self) {
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

    /// A second home, by other bits of the fingerprint, and its neighbour.
    fn second_pair(&self, fingerprint: u64) -> [usize; 2] {
        let second = (fingerprint >> 24) as usize & (self.homes.len() - 1);
        [second, neighbour(second)]
    }

    /// Every line but the home and its neighbour: first the second pair; then, for the few who find no room there either,
    /// all of them.
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

/// How many words apart states lie, so that small ones never straddle two cache lines. None if they fit their word.
pub(crate) fn stride(words: usize) -> usize {
    match words {
        1 => 0,
        2..=cache_line::WORDS => words.next_power_of_two(),
        _ => words,
    }
}

fn small(number: usize) -> u32 {
    u32::try_from(number).expect("a segment has few lines")
}

fn is_large(words: usize) -> bool {
    words > cache_line::WORDS
}

/// The slot of its home line that a key takes if it is free.
#[inline]
fn favourite(fingerprint: u64) -> usize {
    (fingerprint >> 40) as usize % SLOTS
}

/// The other line of a pair. The two lie side by side, and processors fetch such pairs together.
#[inline]
fn neighbour(line: usize) -> usize {
    line ^ 1
}

// === impl Place ===

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
        self.segment.rest.words > 1
    }

    /// The state beside the word. For whoever holds the word.
    pub(crate) fn state(self) -> &'a [AtomicU64] {
        let Segment { lines, group, rest, .. } = self.segment;
        let Rest { words, stride, large, .. } = &**rest;
        if is_large(*words) {
            let start = (self.number * SLOTS + self.slot) * stride;
            return &large[start..start + words];
        }
        let start = self.slot * stride;
        let line = &lines[self.number * *group as usize + 1 + start / cache_line::WORDS];
        &line.words()[start % cache_line::WORDS..][..*words]
    }

    /// Holds the word if nobody else does and `fingerprint` still lives here, and tells what it was.
    #[inline]
    pub(crate) fn try_lock_bit(self, fingerprint: u64) -> Option<u64> {
        self.line.try_lock_bit(self.slot, fingerprint)
    }

    /// A number that changes when owners do; odd while they are changing.
    #[inline]
    pub(crate) fn version(self) -> u64 {
        self.segment.version()
    }

    /// Whether no owner changed since `version` was read: then what was read in between belonged together.
    #[inline]
    pub(crate) fn unchanged_since(self, version: u64) -> bool {
        self.segment.unchanged_since(version)
    }

    /// Whether the word is what was `found`, and that of `fingerprint`, at one and the same moment. For refusals, which write
    /// nothing and so have not seen yet whose word it was.
    #[inline(always)]
    pub(crate) fn is_still(self, fingerprint: u64, found: u64) -> bool {
        self.segment.is_still(self.line, self.slot, fingerprint, found)
    }

    /// Its number among all slots.
    pub(crate) fn number_in_segment(self) -> usize {
        self.number * SLOTS + self.slot
    }

    /// Whether the two are one.
    pub(crate) fn is(self, other: Location<'_>) -> bool {
        std::ptr::eq(self.line, other.line) && self.slot == other.slot
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.owner() == EMPTY
    }

    /// Makes `fingerprint` the owner of an empty slot, with `word`; `fill` writes the state beside it.
    pub(crate) fn repair(self, fingerprint: u64, word: u64, fill: impl FnOnce(&[AtomicU64])) {
        // Held before the fingerprint shows: a charge by somebody who already sees it would be lost.
        lock_bit(self.word());
        if self.has_wide_state() {
            fill(self.state());
        }
        self.segment.change_owners(|| self.set_owner(fingerprint));
        unlock_bit(self.word(), word);
    }

    /// Lets the owner go at `now` if, while nobody can charge it, it `may_go`.
    pub(crate) fn evict_if(
        self,
        owners: &mut Owners,
        now: Micros,
        may_go: &dyn Fn(Location<'_>) -> bool,
    ) -> bool {
        let found = lock_bit(self.word());
        let goes = may_go(self);
        if goes {
            self.segment.change_owners(|| self.set_owner(EMPTY));
            owners.keys -= 1;
            owners.evicted_at = owners.evicted_at.max(now);
        }
        unlock_bit(self.word(), found);
        goes
    }

    /// Moves the owner to an empty slot, of this segment or another. Nobody charges it meanwhile.
    fn move_to(self, to: Location<'_>) {
        let found = lock_bit(self.word());
        to.repair(self.owner(), found, |state| {
            for (to, from) in state.iter().zip(self.state()) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        });
        self.segment.change_owners(|| self.set_owner(EMPTY));
        unlock_bit(self.word(), found);
    }

    /// Whether the owner lives further off than next door.
    fn is_far(self) -> bool {
        self.is_away_from(self.segment.home(self.owner()))
    }

    fn is_away_from(self, home: usize) -> bool {
        self.number != home && self.number != neighbour(home)
    }

    /// Changes the owner, and how many are away from whose home is another line.
    fn set_owner(self, fingerprint: u64) {
        self.count_far(self.owner(), |count| if count == u8::MAX { count } else { count - 1 });
        self.count_far(fingerprint, |count| count.saturating_add(1));
        self.line.set_fingerprint(self.slot, fingerprint);
    }

    /// Changes the counts of an owner's home if this place is far from it.
    fn count_far(self, owner: u64, change: fn(u8) -> u8) {
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
