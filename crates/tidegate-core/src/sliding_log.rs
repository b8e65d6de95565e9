//! # Sliding log
//!
//! The exact answer to "at most `limit` in any period" is to write down when each unit passed, and to look
//! back one period before letting the next one through.
//!
//! ```text
//!              ├───── one period back from now ─────┤
//!   ──●──●─────●────────●──●──────────────●─────────┼──► t
//!     gone, forgotten   └── these count ──┘        now
//! ```
//!
//! An entry exactly one period old has left. No window of any position ever holds more than `limit`, and nothing
//! is refused that need not be. The price is memory, one word per unit of the limit and key, and so
//! the limit is capped at [`SlidingLog::MOST`]; a [`SlidingWindow`](crate::SlidingWindow) trades a little
//! precision for very much less.
//!
//! The entries lie in a ring, oldest first, and since they are in order the first that still counts is found by
//! halving. A clock that stepped back leaves entries in the future; they are read as made now, so they
//! leave one period from now at the latest. If the clock comes again they have left: a clock that steps back by a period or more
//! and comes again n times admits at most n limits more.
//!
//! A refund takes back the *oldest* entries that still count. Taking the newest would let the others leave too early,
//! and more than the limit could pass within a period.

use crate::algorithm::Algorithm;
use crate::count::whole_micros;
use crate::decision::{Decision, Level, Outcome, Wait};
use crate::invalid::{InvalidQuota, Reason};
use crate::setting::Setting;
use crate::{Micros, Quota, Words, WordsMut};

/// At most `limit` in any period, exactly. The burst of the quota plays no part.
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
/// assert!(log.decide(&mut state, at(1000), 1).is_allowed()); // the first is one second old: gone
/// assert!(!log.decide(&mut state, at(1000), 1).is_allowed());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u64,
    period: u64,
    room: u64,
}

/// Where the entries lie in the ring, and which of them still count.
#[derive(Clone, Copy, Debug)]
struct Ring {
    /// The place of the oldest entry, and how many there are.
    head: u64,
    len: u64,
    /// How many of them, from the oldest, no longer count.
    gone: u64,
}

impl Ring {
    #[inline]
    const fn live(self) -> u64 {
        self.len - self.gone
    }
}

impl SlidingLog {
    /// The largest limit a log may have; each unit of it takes one word of memory per key.
    pub const MOST: u64 = 1 << 14;

    /// At most `quota.limit()` in any `quota.period()`.
    ///
    /// # Panics
    /// If the limit is above [`SlidingLog::MOST`] or the period is not a whole number of microseconds; in a
    /// `const` that is a compile error.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        match Self::checked(quota) {
            Ok(log) => log,
            Err(reason) => panic!("{}", reason.sentence()),
        }
    }

    /// As [`SlidingLog::new`], for a quota that is not known to be right.
    ///
    /// # Errors
    /// If the limit is above [`SlidingLog::MOST`] or the period is not a whole number of microseconds.
    pub fn try_new(quota: Quota) -> Result<Self, InvalidQuota> {
        Self::checked(quota).map_err(InvalidQuota::because)
    }

    /// The same log with room for `entries` per key, if that is more than the limit.
    ///
    /// Debt and entries from before the limit was lowered are remembered as far as there is room for them.
    #[must_use]
    pub const fn room(self, entries: u64) -> Self {
        let room = if entries > self.room { entries } else { self.room };
        SlidingLog { room: if room > Self::MOST { Self::MOST } else { room }, ..self }
    }

    const fn checked(quota: Quota) -> Result<Self, Reason> {
        let limit = quota.limit();
        if limit > Self::MOST {
            return Err(Reason::LimitTooLarge { limit, most: Self::MOST });
        }
        match whole_micros(quota.period()) {
            Ok(period) => Ok(SlidingLog { limit, period, room: limit }),
            Err(reason) => Err(reason),
        }
    }

    pub(crate) fn setting(&self) -> Setting {
        Setting::new(b'l', [self.limit, self.period])
    }

    fn ring<S: Words + ?Sized>(&self, state: &S, now: Micros) -> Ring {
        let word = state.get(0);
        let mut ring = Ring { head: word >> 32, len: word & 0xFFFF_FFFF, gone: 0 };
        // Halving: everything before `gone` has left, everything from `counts` on has not.
        let mut counts = ring.len;
        while ring.gone < counts {
            let middle = ring.gone + (counts - ring.gone) / 2;
            if self.has_left(self.entry(state, ring, middle), now) {
                ring.gone = middle + 1;
            } else {
                counts = middle;
            }
        }
        ring
    }

    /// When the entry at `position` from the oldest was made.
    fn entry<S: Words + ?Sized>(&self, state: &S, ring: Ring, position: u64) -> u64 {
        state.get(self.place(ring, position))
    }

    #[expect(clippy::cast_possible_truncation, reason = "places are below room, which is at most MOST")]
    fn place(&self, ring: Ring, position: u64) -> usize {
        1 + ((ring.head + position) % self.room) as usize
    }

    fn has_left(&self, made: u64, now: Micros) -> bool {
        made + self.period <= now.get()
    }

    /// How long until the `count` oldest entries that count have left.
    fn until_left<S: Words + ?Sized>(&self, state: &S, ring: Ring, now: Micros, count: u64) -> u64 {
        if count == 0 {
            return 0;
        }
        let made = self.entry(state, ring, ring.gone + count - 1).min(now.get());
        made + self.period - now.get()
    }

    /// Writes the ring without its first `gone` entries.
    fn write_ring<S: WordsMut + ?Sized>(&self, state: &mut S, ring: Ring) {
        let head = if ring.live() == 0 { 0 } else { (ring.head + ring.gone) % self.room };
        state.set(0, head << 32 | ring.live());
    }

    fn refusal<S: Words + ?Sized>(&self, state: &S, ring: Ring, now: Micros, cost: u64) -> Outcome {
        // Debt may be larger than the log has room for; then it is as if all of it were the oldest.
        let over = (ring.live() + cost - self.limit).min(ring.live());
        Outcome::RetryAfter(Wait::micros(self.until_left(state, ring, now, over)))
    }

    fn decision(&self, outcome: Outcome, now: Micros, count: u64, reset: u64) -> Decision {
        let remaining = self.limit.saturating_sub(count);
        Decision::new(outcome, now, Level::Counted { limit: self.limit, remaining, reset })
    }
}

impl Algorithm for SlidingLog {
    #[expect(clippy::cast_possible_truncation, reason = "room is at most MOST")]
    fn words(&self) -> usize {
        1 + self.room as usize
    }

    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        let ring = self.ring(state, now);
        let (live, cost) = (ring.live(), u64::from(cost));
        let reset = self.until_left(state, ring, now, live);
        if cost > self.limit {
            self.decision(Outcome::Never, now, live, reset)
        } else if cost == 0 {
            self.decision(Outcome::Allowed, now, live, reset)
        } else if live + cost <= self.limit {
            self.decision(Outcome::Allowed, now, live + cost, self.period)
        } else {
            self.decision(self.refusal(state, ring, now, cost), now, live, reset)
        }
    }

    /// Debt is remembered as far as there is room: a log in debt is full, and stays full for one period.
    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        if cost == 0 {
            return self.peek(state, now, 0);
        }
        self.settle(state, now);
        let mut ring = self.ring(state, now);
        for _ in 0..u64::from(cost).min(self.room) {
            if ring.live() == self.room {
                ring.gone += 1; // the oldest makes room for the newest, which counts for longer
            }
            state.set(self.place(ring, ring.len), now.get());
            ring.len += 1;
        }
        self.write_ring(state, ring);
        self.decision(Outcome::Allowed, now, ring.live(), self.until_left(state, ring, now, ring.live()))
    }

    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
        if cost == 0 {
            return;
        }
        self.settle(state, now);
        let mut ring = self.ring(state, now);
        if ring.live() > 0 {
            ring.gone += ring.live().min(u64::from(cost));
            self.write_ring(state, ring);
        }
    }

    fn settle<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        let ring = self.ring(state, now);
        let newest_first = (0..ring.len).rev();
        for position in newest_first.take_while(|&position| position >= ring.gone) {
            if self.entry(state, ring, position) <= now.get() {
                break;
            }
            state.set(self.place(ring, position), now.get());
        }
    }

    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        let ring = self.ring(state, Micros::ZERO);
        if ring.len == 0 {
            return Micros::ZERO;
        }
        Micros::new(self.entry(state, ring, ring.len - 1)).plus(self.period)
    }

    fn seen<S: Words + ?Sized>(&self, state: &S) -> Micros {
        self.idle_at(state).minus(self.period)
    }

    fn adopt<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        let was = old.ring(from, now);
        let kept = was.live().min(self.room);
        let mut ring = Ring { head: 0, len: 0, gone: 0 };
        for position in was.len - kept..was.len {
            state.set(self.place(ring, ring.len), old.entry(from, was, position));
            ring.len += 1;
        }
        self.write_ring(state, ring);
    }
}
