//! # Pacing: delay instead of refusal
//!
//! A limiter refuses excess requests. A pacer delays them: it tells each caller how long to wait, and the requests
//! leave one after the other at the pace of the quota. It suits *outgoing* requests, before a call to another service.
//!
//! The simplest pacer stores the instant at which the next request may leave. Each request moves it by the time the
//! request takes at this pace. This has two surprising consequences.
//!
//! ```text
//!   permits    1    100                    1
//!              │     │                     │
//!   leaves     │     │ without waiting     │ when the hundred are paid for
//!   ───────────┼─────┼─────────────────────┼──────────► t
//!              └─1×I─┴───── 100 × I ───────┴─1×I─
//! ```
//!
//! *The next request pays.* How long a request waits depends on the requests before it, never on how many permits it
//! asks for. A request for a hundred permits to an idle pacer leaves immediately, since nothing is ahead of it; the next
//! request waits for the hundred. *No request is too large.* There is no burst that a request would have to fit into.
//!
//! The two kinds of pacer differ in what idle time does. [`Bursty`] stores it, so that a few requests after a pause may
//! leave together: delayed work may catch up. [`WarmUp`] takes it as a sign that the called service has gone cold, and
//! starts slowly again.
//!
//! # Units and state
//!
//! Both kinds count instants in parts of a microsecond, chosen such that the interval of the quota is a whole number of
//! parts. 80,000 per second are 25/2 µs apart and not 12, which would be 83,333 per second. A wait is rounded up to a
//! microsecond; the instant is not rounded, so rounding errors never add up.
//!
//! ```text
//!   words 0 and 1   the instant, in parts since zero: a number of 128 bits
//!   word 2          only with warm-up: the warmth, in parts of time
//! ```
//!
//! All words zero is a pacer created at instant zero. A new pacer is *not* a pacer that has long been idle: it has no
//! stored time yet. So a pacer that is created later needs its instant of creation, by [`Pacing::start`].
//!
//! A promise is kept: no later reservation and no change of rate moves an instant that was promised. That is why
//! [`Pacing::cancel`] refunds only a reservation that no later reservation builds upon.
//!
//! Refunding a part would be unsafe. Let five permits be reserved from 0 to 5 intervals, and two after them
//! from 5 to 7, and let the five be cancelled. `x/time/rate` in Go refunds the cost minus what was reserved
//! later, here three, which is safe for a token bucket because a burst may pass at one instant anyway. Here
//! the next request would leave at 4, and, if it takes one permit, the one after it at 5 together with the
//! two. So cancelling restores the state from before the reservation, if the state is still the one that the
//! reservation left; otherwise it changes nothing.
//!
//! A reservation that is dropped at or after its instant counts as used. If it were refunded, a loop that
//! holds its reservation while it works would never be paced.

mod bursty;
mod text;
mod warm_up;

pub use bursty::Bursty;
pub use warm_up::WarmUp;

use crate::{InvalidQuota, Micros, Quota, Wait, Words, WordsMut};

/// A pace, and what happens to idle time. Pure steps: no clock, no lock, no sleeping.
///
/// ```
/// use tidegate_core::{Micros, Pacing, Quota, Wait};
///
/// let pacing = Pacing::new(Quota::per_second(5));
/// let mut state = [0; 3]; // created at instant zero
/// let noon = Micros::ZERO;
///
/// assert_eq!(pacing.reserve(&mut state, noon, 5)?.wait(), Wait::micros(0)); // no wait, however many permits
/// assert_eq!(pacing.reserve(&mut state, noon, 1)?.wait(), Wait::micros(1_000_000)); // pays for the five
/// assert_eq!(pacing.reserve(&mut state, noon, 1)?.wait(), Wait::micros(1_200_000));
/// # Ok::<(), tidegate_core::Wait>(())
/// ```
///
/// As text: `5/s`, `5/s max_burst 10s`, `5/s warm_up 3s`, `5/s warm_up 3s cold_factor 2.5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// Idle time is stored.
    Bursty(Bursty),
    /// After idle time the pace starts cold.
    WarmUp(WarmUp),
}

/// A reservation: how long to wait for it, and the state that cancelling restores.
///
/// It is charged whether or not it is kept. Only [`Pacing::cancel`], which consumes it, refunds it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is reserved is charged, and is to be waited for"]
pub struct Reserved {
    wait: Wait,
    from: Micros,
    before: Image,
    after: Image,
}

/// A copy of the words of a state.
type Image = [u64; MAX_WORDS];
const MAX_WORDS: usize = 3;

/// Longer than any wait on the time line.
const ANY: Wait = Wait::micros(u64::MAX);

// === impl Pacing ===

impl Pacing {
    /// Pacing that stores up to one second of idle time; see [`Bursty`].
    ///
    /// Only the pace of the quota counts. [`Bursty::max_burst`] sets how much may catch up after a pause.
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

    /// The same pacing at another pace. States have to be [migrated](Pacing::migrate_from).
    ///
    /// # Errors
    /// [`InvalidQuota`] if a warm-up could not be counted exactly at that pace. Never for [`Bursty`].
    pub fn with_quota(&self, quota: Quota) -> Result<Self, InvalidQuota> {
        match self {
            Pacing::Bursty(bursty) => Ok(Pacing::Bursty(bursty.with_quota(quota))),
            Pacing::WarmUp(warm_up) => warm_up.with_quota(quota).map(Pacing::WarmUp),
        }
    }

    /// The number of words of a state: 2, or 3 with warm-up.
    ///
    /// All zero is a pacer created at instant zero.
    #[must_use]
    pub const fn words(&self) -> usize {
        match self {
            Pacing::Bursty(_) => 2,
            Pacing::WarmUp(_) => 3,
        }
    }

    /// Sets `state` to that of a pacer created at `now`: no stored time, or cold.
    pub fn start<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        for index in 2..self.words() {
            state.set(index, 0);
        }
        write(state, parts_at(now, self.parts()));
    }

    /// How long a request would wait at `now`, whatever its permits. Charges nothing.
    ///
    /// # Errors
    /// The time until the end of the time line, if the wait does not end before that.
    pub fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros) -> Result<Wait, Wait> {
        let (free, parts) = (read(state), self.parts());
        if free >= parts_at(Micros::MAX, parts) {
            return Err(Wait::micros(Micros::MAX.since(now)));
        }
        Ok(wait_until(free, now, parts))
    }

    /// Charges `permits` at `now`, and returns how long to wait for them.
    ///
    /// Zero permits wait as long as any other number, and are charged nothing.
    ///
    /// # Errors
    /// The time until the end of the time line, if the wait would not end before that. Nothing is charged.
    #[inline]
    pub fn reserve<S>(&self, state: &mut S, now: Micros, permits: u64) -> Result<Reserved, Wait>
    where
        S: WordsMut + ?Sized,
    {
        self.try_within(state, now, permits, ANY)
    }

    /// Charges `permits` if there is no wait at `now`, and returns whether it did.
    #[inline]
    pub fn try_now<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, permits: u64) -> bool {
        let (free, here) = (read(state), parts_at(now, self.parts()));
        let is_free = free < here || free == here && now < Micros::MAX; // the end of the time line is never reached
        if is_free && permits > 0 {
            self.charge(state, now, permits);
        }
        is_free
    }

    /// Charges `permits` at `now` if the wait is at most `timeout`; else charges nothing.
    ///
    /// # Errors
    /// How long the wait would have been, if that is longer than `timeout`. If the wait would not end before the end of
    /// the time line, the error is the time until that end.
    ///
    /// ```
    /// use tidegate_core::{Micros, Pacing, Quota, Wait};
    /// let (pacing, mut state) = (Pacing::new(Quota::per_second(5)), [0; 3]);
    /// let _ = pacing.reserve(&mut state, Micros::ZERO, 1)?;
    /// let too_long = pacing.try_within(&mut state, Micros::ZERO, 1, Wait::micros(50_000)).unwrap_err();
    /// assert_eq!(too_long, Wait::micros(200_000)); // nothing was charged
    /// # Ok::<(), tidegate_core::Wait>(())
    /// ```
    #[inline]
    pub fn try_within<S>(
        &self,
        state: &mut S,
        now: Micros,
        permits: u64,
        timeout: Wait,
    ) -> Result<Reserved, Wait>
    where
        S: WordsMut + ?Sized,
    {
        let wait = self.peek(state, now)?;
        if wait > timeout {
            return Err(wait);
        }
        let before = self.image(state);
        if permits > 0 {
            self.charge(state, now, permits);
        }
        Ok(Reserved { wait, from: now.plus(wait.as_micros()), before, after: self.image(state) })
    }

    /// Cancels a reservation if it is the latest and not yet due; returns whether it did.
    ///
    /// A later reservation was promised an instant that includes this charge, and keeps it. Then nothing can be
    /// refunded without putting two requests where there is room for one. Otherwise the state is as if the reservation
    /// had never been made. In both cases cancelling never lets more pass than not cancelling.
    pub fn cancel<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, reserved: Reserved) -> bool {
        let untouched = now <= reserved.from && self.image(state) == reserved.after;
        if untouched {
            for index in 0..self.words() {
                state.set(index, reserved.before[index]);
            }
        }
        untouched
    }

    /// Converts a state written under `old`, an earlier setting of the same pacer.
    ///
    /// Promised instants stay. Stored idle time stays as *time*, and the warmth stays the same. So the stored permits
    /// keep their proportion to the maximum.
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

    /// The number of parts per microsecond.
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
    /// How long to wait, counted from the instant of the reservation. Zero: not at all.
    #[inline]
    #[must_use]
    pub const fn wait(&self) -> Wait {
        self.wait
    }

    /// The instant from which the reservation may be used.
    #[inline]
    #[must_use]
    pub const fn from(&self) -> Micros {
        self.from
    }
}

// --- instants in parts

/// The instant in the first two words of a state.
#[inline]
fn read<S: Words + ?Sized>(state: &S) -> u128 {
    u128::from(state.get(1)) << 64 | u128::from(state.get(0))
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the number is split into its halves")]
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
        return Wait::micros(0); // skips the division, the most expensive operation here
    }
    Wait::micros(u64::try_from(left.div_ceil(u128::from(parts))).unwrap_or(u64::MAX))
}

/// Converts an instant to another number of parts per microsecond, rounded up.
fn rescaled(instant: u128, old: u64, new: u64) -> u128 {
    let (old, new) = (u128::from(old), u128::from(new));
    instant / old * new + (instant % old * new).div_ceil(old)
}
