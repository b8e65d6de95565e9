//! # Limits that come with the call
//!
//! Clients of redis-cell send the whole limit with each request: `CL.THROTTLE key max_burst count period quantity`. The
//! server remembers one number per key, the instant at which the key will owe nothing again, and reads it by whatever
//! limit comes next. That differs from [`PerCallBucket`](tidegate::algorithm::PerCallBucket), which carries over what was
//! *used*: here, a key that owed ten seconds under one limit owes ten seconds under any other.
//!
//! ```text
//!   interval = period ÷ count, cut to a whole nanosecond       full = interval × (max_burst + 1)
//!
//!   now + full ┤─ ─ ─ ─ ─ ─ ─ ─   a request that would push the instant past this line is limited
//!              │      ┌──┐
//!   owes until │   ┌──┘  └────    quantity × interval; below zero pulls it back, to now at most
//!          now ┼───┘───────► t
//! ```
//!
//! Nanoseconds, and cut, because redis-cell's answers come of them; one word per key, because they fit: 63 bits of
//! nanoseconds since 1970. `remaining` is exact where redis-cell's is not, and nothing wraps. A Redis that keeps the
//! counts decides by the same arithmetic; what is asked of it, and what its answer comes to, is told here, too.

use std::fmt;

use tidegate::algorithm::{Algorithm, Keep, Words, WordsMut};
use tidegate::clock::Micros;
use tidegate::{Decision, Outcome, Source, Wait};
use tidegate_redis::{AdhocDecision, AdhocLimit};

/// Why a call can always be decided by a limit of its own.
pub(super) const ONE_WORD: &str = "the states of all ad-hoc limits have one word";

/// What one call asks for: its limit, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// Nanoseconds for one.
    interval: u64,
    /// Nanoseconds for all of them.
    full: u64,
    /// How many there are.
    limit: u64,
    /// Nanoseconds for the quantity, below zero for what comes back.
    charge: i64,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a decision protects nothing until you act on it"]
#[non_exhaustive]
pub struct Throttled {
    /// Whether it was refused.
    pub limited: bool,
    /// The most that can pass at once.
    pub limit: u64,
    /// What is left.
    pub remaining: u64,
    /// How long to wait, rounded down to a microsecond; `None` if it passed or never will.
    pub retry_after: Option<Wait>,
    /// How long until nothing is owed, rounded down to a microsecond.
    pub reset_after: Wait,
    /// Who decided.
    pub source: Source,
}

/// Why there is no such limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidThrottle {
    /// No time, or none at all for each: a limit that limits nothing.
    ZeroRate,
    /// Less than there must be.
    TooSmall {
        /// Of what.
        what: &'static str,
        /// How much there is.
        value: i64,
        /// How much there must be.
        least: i64,
    },
    /// The burst or the quantity lasts longer than can be counted.
    TooLong,
}

/// The longest that a whole burst may last, 146 years of nanoseconds: from now on that is before the time line ends.
const LONGEST: u64 = 1 << 62;
const NANOS: u64 = 1_000;

impl Throttle {
    /// So many in so many nanoseconds, and `limit` at once; to be charged for `quantity`.
    ///
    /// # Errors
    ///
    /// [`InvalidThrottle`] if that is no limit.
    pub fn new(limit: u64, count: i64, period: i64, quantity: i64) -> Result<Self, InvalidThrottle> {
        let count = positive("count", count)?;
        let interval = positive("period", period)?.checked_div(count).filter(|interval| *interval > 0);
        let interval = interval.ok_or(InvalidThrottle::ZeroRate)?;
        let full = interval.checked_mul(limit).filter(|full| *full <= LONGEST);
        let charge = i64::try_from(interval).ok().and_then(|interval| interval.checked_mul(quantity));
        match (full, charge) {
            (Some(full), Some(charge)) => Ok(Throttle { interval, full, limit, charge }),
            _ => Err(InvalidThrottle::TooLong),
        }
    }

    /// What to ask with to see what is owed, whatever the limit.
    pub(super) const fn of_any_limit() -> Self {
        Throttle { interval: 1, full: LONGEST, limit: LONGEST, charge: 0 }
    }

    pub(super) const fn limit(&self) -> u64 {
        self.limit
    }

    /// The share of one of so many nodes: the limit divided among them, at the limit's pace. `None` if it is less than one.
    pub(super) fn share(&self, nodes: u32) -> Option<Self> {
        let nodes = u64::from(nodes.max(1));
        let limit = Some(self.limit / nodes).filter(|limit| *limit > 0)?;
        let interval = self.interval.checked_mul(nodes)?; // no longer than the whole limit takes
        let charge = self.charge.saturating_mul(nodes.cast_signed());
        Some(Throttle { interval, full: interval.checked_mul(limit)?, limit, charge })
    }

    /// Whether the whole limit has room for what is asked.
    pub(super) fn has_room(&self) -> bool {
        u64::try_from(self.charge).map_or(true, |charge| charge <= self.full)
    }

    /// The state of a key that has used up the limit at an instant.
    pub(super) fn empty_at(&self, at: Micros) -> u64 {
        (at.get() * NANOS).saturating_add(self.full).min(Micros::MAX.get() * NANOS)
    }

    /// What a Redis is asked.
    pub(super) const fn brought(&self) -> AdhocLimit {
        AdhocLimit { full: self.full, charge: self.charge }
    }

    /// What the answer of a Redis comes to. All that it lacks is what is left, which its numbers are too small for.
    pub(super) fn told(&self, owed: AdhocDecision) -> Decision {
        self.decision(owed.outcome, owed.at, owed.nanos)
    }

    /// Whether it only asks.
    pub(super) fn is_peek(&self) -> bool {
        self.charge == 0
    }

    /// The next instant of a key that owes until `owes`, and the decision.
    #[inline]
    pub(super) fn step(&self, owes: u64, now: Micros) -> (u64, Decision) {
        let nanos = now.get() * NANOS;
        let (stands, line) =
            (owes.max(nanos), nanos.saturating_add(self.full).min(Micros::MAX.get() * NANOS));
        let due = stands.saturating_add_signed(self.charge);
        if due <= line {
            let next = if self.is_peek() { owes } else { due }; // an instant that has passed is none
            return (next, self.decision(Outcome::Allowed, now, due.saturating_sub(nanos)));
        }
        let wait = Wait::micros((due - line) / NANOS);
        let outcome = if self.has_room() { Outcome::RetryAfter(wait) } else { Outcome::Never };
        (owes, self.decision(outcome, now, stands - nanos))
    }

    /// Rounded down, unlike all other waits: what is rounded to seconds by redis-cell's rule must not be rounded up before.
    #[inline]
    fn decision(&self, outcome: Outcome, now: Micros, owed: u64) -> Decision {
        let remaining = self.full.saturating_sub(owed) / self.interval;
        Decision::counted(outcome, now, self.limit, remaining, Wait::micros(owed / NANOS))
    }
}

fn positive(what: &'static str, value: i64) -> Result<u64, InvalidThrottle> {
    u64::try_from(value).map_err(|_| InvalidThrottle::TooSmall { what, value, least: 1 })
}

/// The cost is part of the setting, so that of the call plays no part.
impl Algorithm for Throttle {
    fn words(&self) -> usize {
        1
    }

    #[inline]
    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, _: u32) -> Decision {
        self.step(state.get(0), now).1
    }

    #[inline]
    fn decide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, _: u32) -> Decision {
        let owes = state.get(0);
        let (next, decision) = self.step(owes, now);
        if next != owes {
            state.set(0, next);
        }
        decision
    }

    #[inline(always)]
    fn decide_word(&self, word: u64, now: Micros, _: u32) -> Option<(u64, Decision)> {
        Some(self.step(word, now))
    }

    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        self.decide(state, now, cost) // nobody forces a call that brings its limit along
    }

    fn refund<S: WordsMut + ?Sized>(&self, _: &mut S, _: Micros, _: u32) {}

    fn repair<S: WordsMut + ?Sized>(&self, _: &mut S, _: Micros) {}

    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        Micros::new(state.get(0).div_ceil(NANOS))
    }

    fn last_seen<S: Words + ?Sized>(&self, _: &S) -> Micros {
        Micros::ZERO
    }

    /// Who owes until later has used more.
    fn is_ordered(&self) -> bool {
        true
    }

    fn migrate_from<F, S>(&self, _: &Self, from: &F, state: &mut S, _: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        state.set(0, from.get(0));
    }

    /// The cost of a call plays no part, so what remains cannot be measured by charging it: the state stays as it is.
    fn migrate_keeping<F, S>(&self, _: Keep, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        self.migrate_from(old, from, state, now);
    }
}

// === impl Throttled ===

impl From<Decision> for Throttled {
    #[inline]
    fn from(decision: Decision) -> Self {
        Throttled {
            limited: !decision.is_allowed(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after(),
            reset_after: decision.reset_after(),
            source: decision.source,
        }
    }
}

// === impl InvalidThrottle ===

impl fmt::Display for InvalidThrottle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The words of redis-cell, which clients may look for.
            InvalidThrottle::ZeroRate => {
                f.write_str("Cell error: Store error: Zero rates are not supported; use a count and a period of 1 or more")
            }
            InvalidThrottle::TooSmall { what, value, least } => write!(f, "{what} is {value}; use {least} or more"),
            InvalidThrottle::TooLong => {
                f.write_str("value is out of range: the whole burst takes more than 146 years; use a smaller one")
            }
        }
    }
}

impl std::error::Error for InvalidThrottle {}
