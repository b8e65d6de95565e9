//! # Token bucket
//!
//! The simplest limiter remembers when the last request came and makes the next one keep its distance. It
//! forgets idle time: a client that was quiet for an hour is treated like one that was not. A bucket
//! remembers. Tokens drip into it at the pace of the quota, up to `burst`, and each request takes as many
//! as it costs; after a rest a whole burst may pass at once.
//!
//! Counting tokens needs two numbers, the tokens and when they were counted, and a division at each visit
//! that rounds. We keep the books upside down: one number, the instant at which the key will owe
//! nothing again.
//!
//! ```text
//!   now + full ┤─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─   a request that would push the instant past this line is refused
//!              │      ┌──┐    ┌─
//!   owes until │   ┌──┘  └────┘          taking pushes it out by cost × interval; time catches up
//!          now ┼───┘──────────────► t    not in the future = owes nothing = never seen
//! ```
//!
//! A full bucket is an instant in the past, so a key at rest is the same as no key and can be forgotten.
//! `full` is the time an empty bucket takes to fill, `burst` × interval.
//!
//! Turn the drawing round and it is a *leaky bucket* used as a meter: water is what is owed, the leak is time,
//! and overflow is refused. Call the instant a theoretical arrival time and it is *GCRA*. The three are one
//! machine, and here they are one type: [`Gcra`] and [`LeakyMeter`] are names for it.
//!
//! The interval is a fraction p/q of microseconds, and the instant carries its q-ths: 3 per second is exactly
//! 3 per second. In any stretch Δ at most `burst` + ⌊rate·Δ⌋ pass. With `burst` = limit that is up to twice
//! the limit within one period; where "never more than the limit in any period" is wanted, use
//! [`SlidingWindow`](crate::SlidingWindow).
//!
//! Two things can put the instant beyond the line. A clock that stepped back: no honest history reaches there,
//! so the instant is pulled back to the line and the key waits one refill at most. Or debt, from
//! [`force`](Algorithm::force) or a lowered quota: that is marked, and is paid in full.

use core::time::Duration;

use crate::algorithm::Algorithm;
use crate::decision::{Decision, Level, Outcome};
use crate::{Micros, Quota, Words, WordsMut};

/// Tokens drip in at an even pace up to a burst; a request takes as many as it costs.
///
/// ```
/// use tidegate_core::{Algorithm, Micros, Quota, TokenBucket};
///
/// let bucket = TokenBucket::new(Quota::per_second(10).burst(3));
/// let mut state = [0; 1];
/// let noon = Micros::new(0);
/// assert!(bucket.decide(&mut state, noon, 3).is_allowed());
/// assert!(!bucket.decide(&mut state, noon.plus(99_999), 1).is_allowed());
/// assert!(bucket.decide(&mut state, noon.plus(100_000), 1).is_allowed());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    burst: u64,
    p: u64,
    q: u64,
    one: Span,
    full: Span,
    layout: Layout,
}

/// The token bucket, by the name of the generic cell rate algorithm.
pub type Gcra = TokenBucket;
/// The token bucket, seen as a leaking bucket whose overflow is refused.
pub type LeakyMeter = TokenBucket;

/// A stretch of time: whole microseconds and a number of q-ths below q.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    whole: u64,
    part: u64,
}

/// The instant at which a key owes nothing again, and whether it may lie beyond the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OwesUntil {
    instant: Span,
    in_debt: bool,
}

/// How an instant lies in its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// One word: 53 bits of microseconds, 9 bits of q-ths, 1 bit of debt. The topmost bit stays clear.
    Narrow,
    /// Two words, for a q above 512.
    Wide,
}

const NARROW_PARTS: u64 = 1 << 9;

impl TokenBucket {
    /// A bucket of `quota.max_burst()` tokens, filled at the pace of the quota.
    #[inline]
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        let (burst, p, q) = (quota.max_burst(), quota.p(), quota.q());
        let layout = if q <= NARROW_PARTS { Layout::Narrow } else { Layout::Wide };
        TokenBucket { burst, p, q, one: Span::of(p, q), full: Span::of(burst * p, q), layout }
    }

    /// The instant a charge of `cost` that starts at `from` ends. `cost` is at most the burst.
    #[inline]
    fn charged(&self, from: Span, cost: u32) -> Span {
        let charge = if cost == 1 { self.one } else { Span::of(u64::from(cost) * self.p, self.q) };
        from.plus(charge, self.q)
    }

    /// Where the state stands once a clock that stepped back is forgiven, never before `now`.
    #[inline]
    fn standing(&self, owes: OwesUntil, now: Micros) -> Span {
        let instant = if owes.in_debt { owes.instant } else { owes.instant.min(self.line(now)) };
        instant.max(Span::at(now))
    }

    /// The latest instant a charge may reach.
    #[inline]
    fn line(&self, now: Micros) -> Span {
        // At the end of the time line instants can no longer grow, and a bucket that could not fill up
        // would look full for ever: the line ends with it, so that there nothing passes any more.
        Span::at(now).plus(self.full, self.q).min(Span { whole: Micros::MAX.get(), part: 0 })
    }

    #[inline]
    fn fits(&self, cost: u32) -> bool {
        u64::from(cost) <= self.burst
    }

    #[inline]
    fn decision(&self, outcome: Outcome, now: Micros, stands: Span) -> Decision {
        let Span { whole, part } = Span { whole: stands.whole - now.get(), part: stands.part };
        Decision::new(outcome, now, Level::Owed { whole, part, p: self.p, q: self.q, burst: self.burst })
    }

    /// The refusal of a cost that would end at `due`, while the line is at `line`.
    #[inline]
    fn refused(&self, now: Micros, stands: Span, due: Span, line: Span) -> Decision {
        let wait = due.whole - line.whole + u64::from(due.part > line.part);
        self.decision(Outcome::RetryAfter(Duration::from_micros(wait)), now, stands)
    }

    #[inline]
    fn read<S: Words + ?Sized>(&self, state: &S) -> OwesUntil {
        match self.layout {
            Layout::Narrow => {
                let word = state.get(0);
                let instant = Span { whole: word >> 10, part: (word >> 1) % NARROW_PARTS };
                OwesUntil { instant, in_debt: word & 1 == 1 }
            }
            Layout::Wide => {
                let word = state.get(0);
                OwesUntil { instant: Span { whole: word >> 1, part: state.get(1) }, in_debt: word & 1 == 1 }
            }
        }
    }

    #[inline]
    fn write<S: WordsMut + ?Sized>(&self, state: &mut S, owes: OwesUntil) {
        let Span { whole, part } = owes.instant;
        match self.layout {
            Layout::Narrow => state.set(0, whole << 10 | part << 1 | u64::from(owes.in_debt)),
            Layout::Wide => {
                state.set(0, whole << 1 | u64::from(owes.in_debt));
                state.set(1, part);
            }
        }
    }

    /// Writes an instant that may lie anywhere, marked as debt if it lies beyond the line.
    fn write_any<S: WordsMut + ?Sized>(&self, state: &mut S, instant: Span, now: Micros) {
        let end = Span { whole: Micros::MAX.get(), part: 0 };
        let instant = instant.min(end);
        self.write(state, OwesUntil { instant, in_debt: instant > self.line(now) });
    }
}

impl Algorithm for TokenBucket {
    #[inline]
    fn words(&self) -> usize {
        match self.layout {
            Layout::Narrow => 1,
            Layout::Wide => 2,
        }
    }

    #[inline]
    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        let stands = self.standing(self.read(state), now);
        if cost == 0 {
            return self.decision(Outcome::Allowed, now, stands);
        }
        if !self.fits(cost) {
            return self.decision(Outcome::Never, now, stands);
        }
        let (due, line) = (self.charged(stands, cost), self.line(now));
        if due > line {
            self.refused(now, stands, due, line)
        } else {
            self.decision(Outcome::Allowed, now, due)
        }
    }

    /// The hot path, written out: one comparison tells allowed from refused, and an allowed charge needs no
    /// forgiveness, because what ends before the line began before it.
    #[inline]
    fn decide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        if cost == 0 {
            return self.peek(state, now, cost);
        }
        if !self.fits(cost) {
            self.settle(state, now);
            return self.peek(state, now, cost);
        }
        let owes = self.read(state);
        let line = self.line(now);
        let due = self.charged(owes.instant.max(Span::at(now)), cost);
        if due <= line {
            self.write(state, OwesUntil { instant: due, in_debt: false });
            return self.decision(Outcome::Allowed, now, due);
        }
        self.settle(state, now);
        let stands = self.standing(owes, now);
        self.refused(now, stands, self.charged(stands, cost), line)
    }

    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        let stands = self.standing(self.read(state), now);
        if cost == 0 {
            return self.decision(Outcome::Allowed, now, stands);
        }
        let charge = u128::from(cost) * u128::from(self.p);
        let due = stands.plus(Span::of_wide(charge, self.q), self.q);
        self.write_any(state, due, now);
        self.decision(Outcome::Allowed, now, self.standing(self.read(state), now))
    }

    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
        if cost == 0 {
            return;
        }
        let stands = self.standing(self.read(state), now);
        let charge = Span::of_wide(u128::from(cost) * u128::from(self.p), self.q);
        self.write_any(state, stands.minus(charge, self.q), now);
    }

    #[inline]
    fn settle<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        let (owes, line) = (self.read(state), self.line(now));
        if !owes.in_debt && owes.instant > line {
            self.write(state, OwesUntil { instant: line, in_debt: false });
        }
    }

    #[inline]
    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        let Span { whole, part } = self.read(state).instant;
        Micros::new(whole + u64::from(part > 0))
    }

    #[inline]
    fn seen<S: Words + ?Sized>(&self, state: &S) -> Micros {
        let owes = self.read(state);
        if owes.in_debt {
            return Micros::ZERO;
        }
        let Span { whole, part } = owes.instant.minus(self.full, self.q);
        Micros::new(whole + u64::from(part > 0))
    }

    fn adopt<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        let owed = old.standing(old.read(from), now).minus(Span::at(now), old.q);
        if owed == (Span { whole: 0, part: 0 }) {
            return;
        }
        // Debt in q-ths ÷ p is tokens used; tokens used × the new p is the new debt, rounded against the key.
        let used = u128::from(owed.whole) * u128::from(old.q) + u128::from(owed.part);
        let owed = used.saturating_mul(u128::from(self.p)).div_ceil(u128::from(old.p));
        self.write_any(state, Span::at(now).plus(Span::of_wide(owed, self.q), self.q), now);
    }
}

// === impl Span ===

impl Span {
    /// `parts` q-ths of a microsecond.
    #[inline]
    const fn of(parts: u64, q: u64) -> Self {
        Span { whole: parts / q, part: parts % q }
    }

    /// As [`Span::of`], ending at the end of the time line.
    fn of_wide(parts: u128, q: u64) -> Self {
        let (whole, part) = (parts / u128::from(q), parts % u128::from(q));
        match (u64::try_from(whole), u64::try_from(part)) {
            (Ok(whole), Ok(part)) if whole <= Micros::MAX.get() => Span { whole, part },
            _ => Span { whole: Micros::MAX.get(), part: 0 },
        }
    }

    #[inline]
    const fn at(now: Micros) -> Self {
        Span { whole: now.get(), part: 0 }
    }

    #[inline]
    const fn plus(self, other: Span, q: u64) -> Self {
        let parts = self.part + other.part;
        let carry = (parts >= q) as u64;
        Span { whole: self.whole + other.whole + carry, part: parts - carry * q }
    }

    /// The difference, or zero.
    #[inline]
    fn minus(self, other: Span, q: u64) -> Self {
        if self <= other {
            return Span { whole: 0, part: 0 };
        }
        let borrow = u64::from(self.part < other.part);
        Span { whole: self.whole - other.whole - borrow, part: self.part + borrow * q - other.part }
    }
}
