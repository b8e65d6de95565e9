//! # Sliding log
//!
//! The exact implementation of "at most `limit` in any period" records when each unit passed, and counts the
//! records of the last period before it allows the next one.
//!
//! ```text
//!              ├───── one period back from now ─────┤
//!   ──●──●─────●────────●──●──────────────●─────────┼──► t
//!     left, forgotten   └── these count ──┘        now
//! ```
//!
//! An entry exactly one period old has left the window. No window of any position ever holds more than `limit`, and
//! no request is refused without need. The price is memory, one word per unit of the limit and key. So the limit is
//! capped at [`SlidingLog::MAX`]. A [`SlidingWindow`](crate::SlidingWindow) trades a little precision for far less
//! memory.
//!
//! The entries are stored in a ring, oldest first. They are sorted, so a binary search finds the first that still
//! counts.
//!
//! # Clocks that step back
//!
//! After a step back the clock is before the newest entry. If that entry is less than a period ahead, the key waits:
//! until the clock reaches it again, every decision is made as of the newest entry. A longer step is *far*. Then all
//! entries move back with the clock and keep their ages, and the key remembers the instant that the clock stepped back
//! from:
//!
//! ```text
//!   reading ┤ ●●┐ stepped back from here: high    ●●──●  from here on time counts again
//!           │   │                                ┌┘      entries move ahead: their ages are as of the newest entry ○
//!           │   │              ●────●────○ ─ ─ ─ ┘       time counts here: the clock may have been corrected
//!           │   └─────────── ●●
//!           ┼──────────────────────────────────► requests
//! ```
//!
//! So the time from the newest entry up to that instant does not count, and a clock that steps back and returns frees
//! no quota, however often. Once the instant is reached again, the key forgets it. The state needs no extra words for
//! this: an entry takes 53 bits of its word, and the instant is stored in bits that are otherwise clear.
//!
//! Reading entries in the future as made now would be simpler. But each step back would then make them young
//! again, and two clocks that take turns would keep every entry in the log for ever. A refusal that finds the
//! clock where it is expected writes nothing: only the instant of the newest entry counts, and a refusal
//! makes no entry.
//!
//! # Refunds
//!
//! A refund removes the *oldest* entries that still count. Removing the newest would let the others leave too early,
//! and more than the limit could pass within a period.
//!
//! A log does not know which entry belongs to the refunded request. The oldest entry is the only choice that
//! never admits too much; its price is that the quota may be available a little later than with the true
//! entry. Cells are refunded in the same order. Buckets and fixed windows have no order, and a refund only
//! stops at a full quota.

use crate::algorithm::Algorithm;
use crate::clock_shift::Shift;
use crate::counter::whole_micros;
use crate::decision::{Decision, Level, Outcome, Wait};
use crate::encoded_rule::EncodedRule;
use crate::invalid_quota::{InvalidQuota, Reason};
use crate::{Micros, Quota, Words, WordsMut};

/// A sliding log: at most `limit` in any period, exactly. Ignores the burst of the quota.
///
/// ```
/// use tidegate_core::{Algorithm, Micros, Quota, SlidingLog};
///
/// let log = SlidingLog::new(Quota::per_second(2));
/// let mut state = [0; 3];
/// let at = |millis: u64| Micros::new(millis * 1_000);
/// assert!(log.decide(&mut state, at(0), 1).is_allowed());
/// assert!(log.decide(&mut state, at(900), 1).is_allowed());
/// assert!(!log.decide(&mut state, at(999), 1).is_allowed());
/// assert!(log.decide(&mut state, at(1000), 1).is_allowed()); // the first entry is one second old and has left
/// assert!(!log.decide(&mut state, at(1000), 1).is_allowed());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u64,
    period: u64,
    room: u64,
}

/// The position of the entries in the ring, and which of them still count.
#[derive(Clone, Copy, Debug)]
struct Ring {
    /// The index of the oldest entry, and the number of entries.
    head: u64,
    len: u64,
    /// The number of entries, from the oldest, that no longer count.
    gone: u64,
}

impl Ring {
    #[inline]
    const fn live(self) -> u64 {
        self.len - self.gone
    }
}

/// A state, seen at an instant.
#[derive(Clone, Copy, Debug)]
struct View {
    ring: Ring,
    now: u64,
    /// How a far step back, or the return from one, moves the entries.
    shift: Shift,
    /// The instant of the newest entry, after the shift; 0 if there is none.
    newest: u64,
    /// The instant to decide at: `now`, or that of the newest entry after a small step back.
    at: u64,
    /// The instant that the clock stepped back from, if not yet reached again; otherwise 0.
    high: u64,
}

const LEN_BITS: u32 = 15;
const HEAD_BITS: u32 = 14;
const LEN: u64 = (1 << LEN_BITS) - 1;
const HEAD: u64 = (1 << HEAD_BITS) - 1;
/// The number of bits of an instant.
const INSTANT_BITS: u32 = 53;
const INSTANT: u64 = Micros::MAX.get();
/// The number of bits of `high` in the first word and in the first entry.
///
/// The second entry has the rest.
const HIGH_IN_FIRST: u32 = u64::BITS - LEN_BITS - HEAD_BITS;
const HIGH_IN_SECOND: u32 = u64::BITS - INSTANT_BITS;

impl SlidingLog {
    /// The largest limit of a log. Each unit takes one word of memory per key.
    pub const MAX: u64 = 1 << 14;

    /// At most `quota.limit()` in any `quota.period()`.
    ///
    /// # Panics
    /// If the limit is above [`SlidingLog::MAX`] or the period is not a whole number of microseconds; in a
    /// `const` that is a compile error.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        match Self::checked(quota) {
            Ok(log) => log,
            Err(reason) => panic!("{}", reason.sentence()),
        }
    }

    /// As [`SlidingLog::new`], for a quota that has not been validated.
    ///
    /// # Errors
    /// If the limit is above [`SlidingLog::MAX`], the period is not a whole number of microseconds, or the quota is
    /// [unlimited](Quota::unlimited).
    pub fn try_new(quota: Quota) -> Result<Self, InvalidQuota> {
        Self::checked(quota).map_err(InvalidQuota::because)
    }

    /// The same log with room for `entries` per key, if that is more than the limit.
    ///
    /// Debt, and entries from before the limit was lowered, are stored as far as there is room for them.
    #[must_use]
    pub const fn room(self, entries: u64) -> Self {
        let room = if entries > self.room { entries } else { self.room };
        SlidingLog { room: if room > Self::MAX { Self::MAX } else { room }, ..self }
    }

    const fn checked(quota: Quota) -> Result<Self, Reason> {
        if let Err(reason) = quota.finite() {
            return Err(reason);
        }
        let limit = quota.limit();
        if limit > Self::MAX {
            return Err(Reason::LimitTooLarge { limit, max: Self::MAX });
        }
        match whole_micros(quota.period()) {
            Ok(period) => Ok(SlidingLog { limit, period, room: limit }),
            Err(reason) => Err(reason),
        }
    }

    pub(crate) fn encode(&self) -> EncodedRule {
        EncodedRule::new(b'l', [self.limit, self.period])
    }

    /// All entries.
    fn ring<S: Words + ?Sized>(&self, state: &S) -> Ring {
        let word = state.get(0);
        let head = if self.room == 1 { 0 } else { word >> LEN_BITS & HEAD };
        Ring { head, len: word & LEN, gone: 0 }
    }

    fn view<S: Words + ?Sized>(&self, state: &S, now: Micros) -> View {
        let (ring, now, high) = (self.ring(state), now.get(), self.high(state));
        if ring.len == 0 {
            return View { ring, now, shift: Shift::None, newest: 0, at: now, high: 0 };
        }
        let newest = self.entry(state, ring, ring.len - 1);
        // No entry moves to before the beginning of the time line.
        let back_to = now.max(self.period);
        let (shift, high) = if high > 0 && now >= high {
            (Shift::Ahead(high - newest), 0)
        } else if newest >= back_to + self.period {
            (Shift::Back(newest - back_to), high.max(newest))
        } else {
            (Shift::None, high)
        };
        let newest = shift.apply(newest);
        let at = now.max(newest);
        let gone = self.count_gone(state, ring, shift, at);
        View { ring: Ring { gone, ..ring }, now, shift, newest, at, high }
    }

    /// The number of entries that have left at `at`, by binary search.
    fn count_gone<S: Words + ?Sized>(&self, state: &S, ring: Ring, shift: Shift, at: u64) -> u64 {
        // Every entry before `gone` has left, every entry from `counts` on has not.
        let (mut gone, mut counts) = (0, ring.len);
        while gone < counts {
            let middle = gone + (counts - gone) / 2;
            if shift.apply(self.entry(state, ring, middle)) + self.period <= at {
                gone = middle + 1;
            } else {
                counts = middle;
            }
        }
        gone
    }

    /// The instant of the entry at `position`, counted from the oldest.
    fn entry<S: Words + ?Sized>(&self, state: &S, ring: Ring, position: u64) -> u64 {
        state.get(self.place(ring, position)) & INSTANT
    }

    /// Writes an entry, and keeps the part of `high` in its word.
    fn set_entry<S: WordsMut + ?Sized>(&self, state: &mut S, ring: Ring, position: u64, made: u64) {
        let place = self.place(ring, position);
        state.set(place, state.get(place) & !INSTANT | made);
    }

    #[expect(clippy::cast_possible_truncation, reason = "indices are below room, which is at most MAX")]
    fn place(&self, ring: Ring, position: u64) -> usize {
        1 + ((ring.head + position) % self.room) as usize
    }

    /// The instant that the clock stepped back from; 0 if there is none.
    fn high<S: Words + ?Sized>(&self, state: &S) -> u64 {
        let first = state.get(0);
        // With room for one entry no head is needed.
        let top = if self.room == 1 { first >> LEN_BITS & HEAD } else { state.get(2) >> INSTANT_BITS };
        first >> (LEN_BITS + HEAD_BITS)
            | state.get(1) >> INSTANT_BITS << HIGH_IN_FIRST
            | top << (HIGH_IN_FIRST + HIGH_IN_SECOND)
    }

    #[cold]
    fn set_high<S: WordsMut + ?Sized>(&self, state: &mut S, high: u64) {
        let (word, top) = (state.get(0), high >> (HIGH_IN_FIRST + HIGH_IN_SECOND));
        let low = high << (LEN_BITS + HEAD_BITS);
        if self.room == 1 {
            state.set(0, low | top << LEN_BITS | word & LEN);
        } else {
            state.set(0, low | word & (HEAD << LEN_BITS | LEN));
            state.set(2, top << INSTANT_BITS | state.get(2) & INSTANT);
        }
        // The bits that do not fit above the entry have been written already: the shift drops them.
        state.set(1, high >> HIGH_IN_FIRST << INSTANT_BITS | state.get(1) & INSTANT);
    }

    /// How long from `view.now` until an entry of instant `made` leaves.
    ///
    /// `newest` is the instant of the newest entry.
    fn until_left(&self, view: View, made: u64, newest: u64) -> u64 {
        let leaves = made + self.period;
        // An entry that leaves only after the clock has returned leaves later, by the time that does not count.
        let lost = if view.high > 0 && leaves >= view.high { view.high - newest } else { 0 };
        leaves + lost - view.now
    }

    /// How long until the `count` oldest entries that count have left.
    fn until_gone<S: Words + ?Sized>(&self, state: &S, view: View, count: u64) -> u64 {
        if count == 0 {
            return 0;
        }
        let made = view.shift.apply(self.entry(state, view.ring, view.ring.gone + count - 1));
        self.until_left(view, made, view.newest)
    }

    /// How long until all entries have left, after a charge.
    fn until_charge_left(&self, view: View) -> u64 {
        self.until_left(view, view.at, view.at)
    }

    /// Writes the effect of a far step back, or of the return from one, to the state.
    fn commit<S: WordsMut + ?Sized>(&self, state: &mut S, view: &mut View) {
        if view.shift == Shift::None {
            return;
        }
        for position in view.ring.gone..view.ring.len {
            let made = view.shift.apply(self.entry(state, view.ring, position));
            self.set_entry(state, view.ring, position, made);
        }
        view.shift = Shift::None;
        self.set_high(state, view.high);
        self.write_ring(state, view.ring);
    }

    /// Writes the ring without its first `gone` entries.
    fn write_ring<S: WordsMut + ?Sized>(&self, state: &mut S, ring: Ring) {
        if ring.live() == 0 {
            self.set_high(state, 0);
            return state.set(0, 0);
        }
        let head = (ring.head + ring.gone) % self.room;
        let own = if self.room == 1 { LEN } else { HEAD << LEN_BITS | LEN };
        state.set(0, state.get(0) & !own | head << LEN_BITS | ring.live());
    }

    fn refusal<S: Words + ?Sized>(&self, state: &S, view: View, cost: u64) -> Outcome {
        // Debt may be larger than the room of the log. Then it is as if all of it were the oldest entries.
        let live = view.ring.live();
        let over = (live + cost - self.limit).min(live);
        Outcome::RetryAfter(Wait::micros(self.until_gone(state, view, over)))
    }

    fn peek_in<S: Words + ?Sized>(&self, state: &S, view: View, cost: u64) -> Decision {
        let (now, live) = (Micros::new(view.now), view.ring.live());
        if cost > 0 && live + cost <= self.limit {
            return self.decision(Outcome::Allowed, now, live + cost, self.until_charge_left(view));
        }
        let reset = self.until_gone(state, view, live);
        if cost > self.limit {
            self.decision(Outcome::Never, now, live, reset)
        } else if cost == 0 {
            self.decision(Outcome::Allowed, now, live, reset)
        } else {
            self.decision(self.refusal(state, view, cost), now, live, reset)
        }
    }

    /// Charges a cost other than 0, whether or not it fits.
    fn charge<S: WordsMut + ?Sized>(&self, state: &mut S, mut view: View, cost: u32) -> Decision {
        self.commit(state, &mut view);
        let mut ring = view.ring;
        for _ in 0..u64::from(cost).min(self.room) {
            if ring.live() == self.room {
                ring.gone += 1; // the oldest entry makes room for the newest, which counts for longer
            }
            self.set_entry(state, ring, ring.len, view.at);
            ring.len += 1;
        }
        self.write_ring(state, ring);
        let reset = self.until_charge_left(view);
        self.decision(Outcome::Allowed, Micros::new(view.now), ring.live(), reset)
    }

    fn decision(&self, outcome: Outcome, now: Micros, count: u64, reset: u64) -> Decision {
        let remaining = self.limit.saturating_sub(count);
        Decision::new(outcome, now, Level::Counted { limit: self.limit, remaining, reset })
    }
}

impl Algorithm for SlidingLog {
    #[expect(clippy::cast_possible_truncation, reason = "room is at most MAX")]
    fn words(&self) -> usize {
        1 + self.room as usize
    }

    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        self.peek_in(state, self.view(state, now), u64::from(cost))
    }

    fn decide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        let mut view = self.view(state, now);
        if cost > 0 && view.ring.live() + u64::from(cost) <= self.limit {
            return self.charge(state, view, cost);
        }
        let found = self.peek_in(state, view, u64::from(cost));
        if cost > 0 {
            self.commit(state, &mut view);
        }
        found
    }

    /// Charges `cost` whether or not it fits, and stores debt as far as there is room.
    ///
    /// A log in debt is full, and stays full for one period.
    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        if cost == 0 {
            return self.peek(state, now, 0);
        }
        let view = self.view(state, now);
        self.charge(state, view, cost)
    }

    /// Charges at most `u32::MAX`. No log has room for more than `u32::MAX` entries.
    fn force_wide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u64) {
        let _ = self.force(state, now, u32::try_from(cost).unwrap_or(u32::MAX));
    }

    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
        let mut view = self.view(state, now);
        if cost == 0 || view.ring.live() == 0 {
            return;
        }
        self.commit(state, &mut view);
        view.ring.gone += view.ring.live().min(u64::from(cost));
        self.write_ring(state, view.ring);
    }

    fn repair<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        let mut view = self.view(state, now);
        self.commit(state, &mut view);
    }

    /// The instant at which all entries have left.
    ///
    /// While the log remembers an instant that the clock stepped back from, one period after that instant: when the
    /// clock reaches it again, entries count that had left before.
    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        let high = self.high(state);
        if high > 0 {
            return Micros::new(high).plus(self.period);
        }
        match self.ring(state) {
            Ring { len: 0, .. } => Micros::ZERO,
            ring => Micros::new(self.entry(state, ring, ring.len - 1)).plus(self.period),
        }
    }

    /// The instant of the newest entry.
    ///
    /// Not the instant that the clock stepped back from: the clock has yet to reach that again.
    fn last_seen<S: Words + ?Sized>(&self, state: &S) -> Micros {
        match self.ring(state) {
            Ring { len: 0, .. } => Micros::ZERO,
            ring => Micros::new(self.entry(state, ring, ring.len - 1)),
        }
    }

    fn migrate_from<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        let was = old.view(from, now);
        // Until the clock has returned, entries that have left may count again.
        let live = if was.high > 0 { was.ring.len } else { was.ring.live() };
        let mut ring = Ring { head: 0, len: 0, gone: 0 };
        for position in was.ring.len - live.min(self.room)..was.ring.len {
            let made = was.shift.apply(old.entry(from, was.ring, position));
            self.set_entry(state, ring, ring.len, made);
            ring.len += 1;
        }
        if was.high > 0 {
            self.set_high(state, was.high);
        }
        self.write_ring(state, ring);
    }
}
