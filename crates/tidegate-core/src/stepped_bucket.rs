//! # Token bucket refilled in steps
//!
//! A [`TokenBucket`](crate::TokenBucket) refills continuously. Some contracts refill in steps instead:
//! "20 credits are added at every full minute". Then the tokens are added together, at well-known instants.
//!
//! ```text
//!   tokens
//!   burst ┤████           ████
//!         │   ███    ┌────┘   ███
//!         │     ██┌──┘ +n        ██
//!       0 ┼───────┴────┬──────────┬──► t
//!              step   step       step        every `period`, aligned to the clock
//! ```
//!
//! The steps are aligned to the clock, to `offset` after each multiple of the period, so no key stores
//! a phase of its own. The state is the number of the step it was last written in, and how much was
//! used then. Each step since subtracts `limit` from the usage; at zero the key is as if never seen.
//!
//! In any time span Δ at most `burst` + limit·(⌊Δ/period⌋ + 1) pass: a full bucket just before a step, and the step.
//!
//! A clock that steps back creates no tokens: the usage then counts as made in the current step. If the clock returns,
//! the steps in between count once more: n times back and forth admit at most n bursts more.

use core::time::Duration;

use crate::algorithm::Algorithm;
use crate::counter::{Counter, Grid};
use crate::decision::{Decision, Level, Outcome, Wait};
use crate::encoded_rule::EncodedRule;
use crate::invalid_quota::{InvalidQuota, Reason};
use crate::{Micros, Quota, Words, WordsMut};

/// A token bucket that receives `limit` tokens at every step of the clock, up to a burst.
///
/// ```
/// use tidegate_core::{Algorithm, Micros, Quota, SteppedBucket};
///
/// const CREDITS: SteppedBucket = SteppedBucket::new(Quota::per_minute(20).burst(50));
/// let mut state = [0; 1]; // with shorter periods the state may take two words
/// assert!(CREDITS.decide(&mut state, Micros::ZERO, 50).is_allowed());
/// let refused = CREDITS.decide(&mut state, Micros::new(59_000_000), 30);
/// assert_eq!(refused.retry_after().unwrap().duration().as_secs(), 61); // two steps: 20 at 1:00, 20 more at 2:00
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteppedBucket {
    burst: u64,
    step: u64,
    grid: Grid,
    counter: Counter,
}

impl SteppedBucket {
    /// A bucket of `quota.max_burst()` tokens that receives `quota.limit()` in every period.
    ///
    /// # Panics
    /// If the period is not a whole number of microseconds, or the quota is unlimited; in a `const` that is a compile error.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        match Self::checked(quota) {
            Ok(bucket) => bucket,
            Err(reason) => panic!("{}", reason.sentence()),
        }
    }

    /// As [`SteppedBucket::new`], for a quota that has not been validated.
    ///
    /// # Errors
    /// If the period is not a whole number of microseconds, or the quota is [unlimited](Quota::unlimited).
    pub fn try_new(quota: Quota) -> Result<Self, InvalidQuota> {
        Self::checked(quota).map_err(InvalidQuota::because)
    }

    /// The same bucket with its steps at `offset` after each multiple of the period.
    #[must_use]
    pub const fn offset(self, offset: Duration) -> Self {
        SteppedBucket { grid: self.grid.offset(offset), ..self }
    }

    const fn checked(quota: Quota) -> Result<Self, Reason> {
        if let Err(reason) = quota.finite() {
            return Err(reason);
        }
        match Grid::of(quota.period()) {
            Ok(grid) => {
                let (burst, step) = (quota.max_burst(), quota.limit());
                // Debt lasts over several steps, so the counter has room for some debt beyond the burst.
                let most = burst.saturating_add(u32::MAX as u64);
                Ok(SteppedBucket { burst, step, grid, counter: Counter::aligned(grid.period(), most) })
            }
            Err(reason) => Err(reason),
        }
    }

    pub(crate) fn encode(&self) -> EncodedRule {
        EncodedRule::new(b's', [self.step, self.grid.period(), self.grid.get_offset(), self.burst])
    }

    /// The usage that remains in step `number`.
    #[inline]
    fn used<S: Words + ?Sized>(&self, state: &S, number: u64) -> u64 {
        let (written, used) = self.counter.read(state);
        used.saturating_sub(number.saturating_sub(written).saturating_mul(self.step))
    }

    /// How long after `now` the amount `amount` of the usage has been refilled.
    #[inline]
    fn until_refilled(&self, now: Micros, number: u64, amount: u64) -> u64 {
        if amount == 0 {
            return 0;
        }
        let steps = amount.div_ceil(self.step);
        self.grid.start(number.saturating_add(steps)).since(now)
    }

    #[inline]
    fn decision(&self, outcome: Outcome, now: Micros, number: u64, used: u64) -> Decision {
        let remaining = self.burst.saturating_sub(used);
        let reset = self.until_refilled(now, number, used);
        Decision::new(outcome, now, Level::Counted { limit: self.burst, remaining, reset })
    }
}

impl Algorithm for SteppedBucket {
    #[inline]
    fn words(&self) -> usize {
        self.counter.words()
    }

    #[inline]
    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        let number = self.grid.number(now);
        let (used, cost) = (self.used(state, number), u64::from(cost));
        let over = (used + cost).saturating_sub(self.burst);
        if cost > self.burst {
            self.decision(Outcome::Never, now, number, used)
        } else if over == 0 || cost == 0 {
            self.decision(Outcome::Allowed, now, number, used + cost)
        } else {
            let wait = Wait::micros(self.until_refilled(now, number, over));
            self.decision(Outcome::RetryAfter(wait), now, number, used)
        }
    }

    #[inline]
    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        let number = self.grid.number(now);
        let used = self.used(state, number);
        if cost > 0 {
            self.counter.write(state, number, used + u64::from(cost));
        }
        self.decision(Outcome::Allowed, now, number, self.used(state, number))
    }

    fn force_wide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u64) {
        if cost > 0 {
            let number = self.grid.number(now);
            self.counter.write(state, number, self.used(state, number).saturating_add(cost));
        }
    }

    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
        if cost == 0 {
            return;
        }
        let number = self.grid.number(now);
        let used = self.used(state, number);
        if used > 0 {
            self.counter.write(state, number, used.saturating_sub(u64::from(cost)));
        }
    }

    #[inline]
    fn repair<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        self.counter.repair(state, self.grid.number(now));
    }

    #[inline]
    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        let (written, used) = self.counter.read(state);
        if used == 0 {
            return Micros::ZERO;
        }
        self.grid.start(written.saturating_add(used.div_ceil(self.step)))
    }

    #[inline]
    fn last_seen<S: Words + ?Sized>(&self, state: &S) -> Micros {
        self.grid.start(self.counter.read(state).0)
    }

    fn migrate_from<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        let used = old.used(from, old.grid.number(now));
        self.counter.write(state, self.grid.number(now), used);
    }
}
