//! # Pacing: everybody passes, but not all at once
//!
//! A limiter refuses what is too much. A pacer lets it wait: whoever asks is told how long, and the requests leave one
//! after the other at the pace of the quota. It is what one wants on the way *out*, before calling somebody else.
//!
//! The simplest pacer keeps the instant at which the next request may leave, and each request moves it on by as long as
//! it takes at this pace. Two things follow that surprise at first.
//!
//! ```text
//!   asks for   1    100                    1
//!              │     │                     │
//!   leaves     │     │ at once             │ when the hundred are paid for
//!   ───────────┼─────┼─────────────────────┼──────────► t
//!              └─1×I─┴───── 100 × I ───────┴─1×I─
//! ```
//!
//! *The next one pays.* How long a request waits depends on those before it, never on how much it asks for. A request
//! for a hundred permits to an idle pacer leaves at once, since there is nobody to wait for; the one after it waits
//! for a hundred. *Nothing is too large.* There is no burst that a request would have to fit into.
//!
//! What the pacer makes of time in which nobody asked is where its two kinds differ. [`Bursty`] puts it by, so that a
//! few requests after a rest may leave together: what was paced may catch up. [`WarmUp`] takes it as a sign that
//! whoever is called has gone cold, and begins slowly again.
//!
//! Both keep the instant in parts of a microsecond, so many to each that the interval of the quota is a whole number
//! of them. 80,000 a second are 25/2 µs apart and not 12, which would be 83,333 a second. A wait is rounded up to a
//! microsecond; the instant is not, so no rounding ever adds up.
//!
//! ```text
//!   words 0 and 1   the instant, in parts since zero: a number of 128 bits
//!   word 2          only while warming up: how warm it is, in parts of time
//! ```
//!
//! All words zero is a pacer made at instant zero. A pacer just made is *not* one that has long been idle: it has
//! nothing put by yet. So whoever makes one later says when, by [`Pacing::start`].
//!
//! A promise is kept: nothing that comes later, no reservation, no other rate, moves an instant that was promised.
//! That is why [`Pacing::cancel`] gives back only what nobody has built upon.

mod bursty;
mod text;
mod warm_up;

use core::fmt;

pub use bursty::Bursty;
pub use warm_up::WarmUp;

use crate::{InvalidQuota, Micros, Quota, Wait, Words, WordsMut};

/// A pace to keep, and what becomes of time in which nobody asked. Pure steps: no clock, no lock, and nobody sleeps.
///
/// ```
/// use tidegate_core::{Micros, Pacing, Quota, Wait};
///
/// let pacing = Pacing::new(Quota::per_second(5));
/// let mut state = [0; 3]; // made at instant zero
/// let noon = Micros::ZERO;
///
/// assert_eq!(pacing.reserve(&mut state, noon, 5)?.wait(), Wait::micros(0)); // at once, however many
/// assert_eq!(pacing.reserve(&mut state, noon, 1)?.wait(), Wait::micros(1_000_000)); // pays for the five
/// assert_eq!(pacing.reserve(&mut state, noon, 1)?.wait(), Wait::micros(1_200_000));
/// # Ok::<(), tidegate_core::TooLong>(())
/// ```
///
/// As text: `5/s`, `5/s max_burst 10s`, `5/s warm_up 3s`, `5/s warm_up 3s cold_factor 2.5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// Time in which nobody asked is put by.
    Bursty(Bursty),
    /// After time in which nobody asked the pace starts cold.
    WarmUp(WarmUp),
}

/// A place in the line: how long to wait for it, and what giving it back would restore.
///
/// It counts whether or not it is kept; only [`Pacing::cancel`] gives it back, and takes it for that.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is reserved is charged, and is to be waited for"]
pub struct Reserved {
    wait: Wait,
    from: Micros,
    before: Image,
    after: Image,
}

/// The wait would have been longer than allowed. Nothing was charged.
///
/// ```
/// use tidegate_core::{Micros, Pacing, Quota, Wait};
/// let (pacing, mut state) = (Pacing::new(Quota::per_second(5)), [0; 3]);
/// let _ = pacing.reserve(&mut state, Micros::ZERO, 1)?;
/// let refused = pacing.try_within(&mut state, Micros::ZERO, 1, Wait::micros(50_000)).unwrap_err();
/// assert_eq!(refused.wait, Wait::micros(200_000));
/// assert_eq!(refused.to_string(), "the wait would be 200ms, which is too long; nothing was reserved");
/// # Ok::<(), tidegate_core::TooLong>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// How long it would have been. Where that is beyond the end of the time line, how long it is until there.
    pub wait: Wait,
}

/// The words of a state, held apart.
type Image = [u64; MAX_WORDS];
const MAX_WORDS: usize = 3;

/// Longer than any wait on the time line.
const ANY: Wait = Wait::micros(u64::MAX);

// === impl Pacing ===

impl Pacing {
    /// Pacing that puts by up to one second; see [`Bursty`].
    ///
    /// Of the quota only the pace counts; how much may catch up after a rest is [`Bursty::max_burst`]'s to say.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Pacing::Bursty(Bursty::new(quota))
    }

    /// The pace.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        match self {
            Pacing::Bursty(bursty) => bursty.quota(),
            Pacing::WarmUp(warm_up) => warm_up.quota(),
        }
    }

    /// The same pacing at another pace. States have to be [adopted](Pacing::migrate_from).
    ///
    /// # Errors
    /// [`InvalidQuota`] if a warm-up could not be counted exactly at that pace. Of [`Bursty`], never.
    pub fn with_quota(&self, quota: Quota) -> Result<Self, InvalidQuota> {
        match self {
            Pacing::Bursty(bursty) => Ok(Pacing::Bursty(bursty.with_quota(quota))),
            Pacing::WarmUp(warm_up) => warm_up.with_quota(quota).map(Pacing::WarmUp),
        }
    }

    /// How many words a state takes: 2, or 3 if it warms up. All zero is a pacer made at instant zero.
    #[must_use]
    pub const fn words(&self) -> usize {
        match self {
            Pacing::Bursty(_) => 2,
            Pacing::WarmUp(_) => 3,
        }
    }

    /// Makes `state` that of a pacer made at `now`: nothing put by, or cold.
    pub fn start<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        for index in 2..self.words() {
            state.set(index, 0);
        }
        write(state, parts_at(now, self.parts()));
    }

    /// How long a request would wait at `now`, whatever it asks for. Charges nothing.
    ///
    /// # Errors
    /// [`TooLong`] if that is beyond the end of the time line.
    pub fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros) -> Result<Wait, TooLong> {
        let (free, parts) = (read(state), self.parts());
        if free >= parts_at(Micros::MAX, parts) {
            return Err(TooLong { wait: Wait::micros(Micros::MAX.since(now)) });
        }
        Ok(wait_until(free, now, parts))
    }

    /// Charges `permits` at `now`, and tells how long to wait for them.
    ///
    /// Zero permits wait as long as any others, and are charged nothing.
    ///
    /// # Errors
    /// [`TooLong`] if the wait would be beyond the end of the time line.
    #[inline]
    pub fn reserve<S>(&self, state: &mut S, now: Micros, permits: u64) -> Result<Reserved, TooLong>
    where
        S: WordsMut + ?Sized,
    {
        self.try_within(state, now, permits, ANY)
    }

    /// Charges `permits` if there is nothing to wait for at `now`; else charges nothing. Tells whether it did.
    #[inline]
    pub fn try_now<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, permits: u64) -> bool {
        let (free, here) = (read(state), parts_at(now, self.parts()));
        let is_free = free < here || free == here && now < Micros::MAX; // what ends there never comes
        if is_free && permits > 0 {
            self.charge(state, now, permits);
        }
        is_free
    }

    /// Charges `permits` at `now` if the wait for them is no longer than `timeout`; else charges nothing.
    ///
    /// # Errors
    /// [`TooLong`], at once, if the wait would be longer than `timeout` or beyond the end of the time line.
    #[inline]
    pub fn try_within<S>(
        &self,
        state: &mut S,
        now: Micros,
        permits: u64,
        timeout: Wait,
    ) -> Result<Reserved, TooLong>
    where
        S: WordsMut + ?Sized,
    {
        let wait = self.peek(state, now)?;
        if wait > timeout {
            return Err(TooLong { wait });
        }
        let before = self.image(state);
        if permits > 0 {
            self.charge(state, now, permits);
        }
        Ok(Reserved { wait, from: now.plus(wait.as_micros()), before, after: self.image(state) })
    }

    /// Gives a reservation back, if nobody has built upon it and its instant has not passed. Tells whether it did.
    ///
    /// Whoever reserved later was promised an instant that lies beyond this one by what it was charged, and keeps it:
    /// then there is nothing to give back that would not put two requests where there is room for one. Else the state
    /// is as if the reservation had never been. Either way cancelling never lets more pass than not cancelling.
    pub fn cancel<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, reserved: Reserved) -> bool {
        let untouched = now <= reserved.from && self.image(state) == reserved.after;
        if untouched {
            for index in 0..self.words() {
                state.set(index, reserved.before[index]);
            }
        }
        untouched
    }

    /// Takes over a state written under `old`, an earlier setting of the same pacer.
    ///
    /// What was promised stays promised. What was put by stays put by as *time*, and what was warm stays as warm as
    /// it was: so the permits in store keep their proportion to the most there can be.
    pub fn migrate_from<F, S>(&self, old: &Self, from: &F, state: &mut S)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        let free = rescaled(read(from), old.parts(), self.parts());
        let warmth = match (self, old) {
            (Pacing::WarmUp(new), Pacing::WarmUp(old)) => Some(new.as_warm_as(old, from.get(2))),
            (Pacing::WarmUp(_), Pacing::Bursty(_)) => Some(0),
            (Pacing::Bursty(_), _) => None,
        };
        write(state, free);
        if let Some(warmth) = warmth {
            state.set(2, warmth);
        }
    }

    /// How many parts of time make a microsecond.
    #[inline]
    const fn parts(&self) -> u64 {
        match self {
            Pacing::Bursty(bursty) => bursty.parts(),
            Pacing::WarmUp(warm_up) => warm_up.parts(),
        }
    }

    #[inline]
    fn charge<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, permits: u64) {
        match self {
            Pacing::Bursty(bursty) => bursty.charge(state, now, permits),
            Pacing::WarmUp(warm_up) => warm_up.charge(state, now, permits),
        }
    }

    #[inline]
    fn image<S: Words + ?Sized>(&self, state: &S) -> Image {
        let mut image = [0; MAX_WORDS];
        for (index, word) in image.iter_mut().enumerate().take(self.words()) {
            *word = state.get(index);
        }
        image
    }
}

impl From<Bursty> for Pacing {
    fn from(bursty: Bursty) -> Self {
        Pacing::Bursty(bursty)
    }
}

impl From<WarmUp> for Pacing {
    fn from(warm_up: WarmUp) -> Self {
        Pacing::WarmUp(warm_up)
    }
}

// === impl Reserved ===

impl Reserved {
    /// How long to wait, from the instant it was reserved at. Zero: not at all.
    #[inline]
    #[must_use]
    pub const fn wait(&self) -> Wait {
        self.wait
    }

    /// The instant from which it may be used.
    #[inline]
    #[must_use]
    pub const fn from(&self) -> Micros {
        self.from
    }
}

// === impl TooLong ===

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the wait would be {}, which is too long; nothing was reserved", self.wait)
    }
}

impl core::error::Error for TooLong {}

// --- instants in parts

/// The instant that a state begins with.
#[inline]
fn read<S: Words + ?Sized>(state: &S) -> u128 {
    u128::from(state.get(1)) << 64 | u128::from(state.get(0))
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the number is cut into its halves")]
fn write<S: WordsMut + ?Sized>(state: &mut S, instant: u128) {
    state.set(0, instant as u64);
    state.set(1, (instant >> 64) as u64);
}

/// `now` in parts. Both factors are below 2⁶³, so this cannot overflow.
#[inline]
const fn parts_at(now: Micros, parts: u64) -> u128 {
    now.get() as u128 * parts as u128
}

/// From `now` until `instant`, rounded up to a microsecond.
#[inline]
fn wait_until(instant: u128, now: Micros, parts: u64) -> Wait {
    let left = instant.saturating_sub(parts_at(now, parts));
    if left == 0 {
        return Wait::micros(0); // a division takes longer than everything else here
    }
    Wait::micros(u64::try_from(left.div_ceil(u128::from(parts))).unwrap_or(u64::MAX))
}

/// An instant counted in other parts, rounded up to one of them.
fn rescaled(instant: u128, old: u64, new: u64) -> u128 {
    let (old, new) = (u128::from(old), u128::from(new));
    instant / old * new + (instant % old * new).div_ceil(old)
}
