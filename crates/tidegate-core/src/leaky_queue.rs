//! # Leaky queue
//!
//! A [`TokenBucket`] lets a burst pass at one instant. The service behind the limiter, a database or a third-party
//! API, may need the requests of the burst one by one. A leaky queue *admits* requests like a bucket and *releases*
//! them at an even pace: the decision on a request says not only whether it may pass but also when.
//!
//! ```text
//!           admitted                                             released, one per interval
//!   ─ ─ ●●●●●●  ──►  │ waiting: at most `queue` │ being served │  ──●────●────●──►
//!        full? refused                                               ├────┤
//! ```
//!
//! Nothing waits inside this type. As in the bucket, the state is one instant: the end of service of the last admitted
//! request. A new request is served an interval after that. The difference between the instant and now is the length
//! of the queue.
//!
//! ```text
//!   now + (queue+1)·interval ┤─ ─ ─ ─ ─ ─ ─   beyond this line the queue is full: refused, nothing changes
//!                            │        ┌──┐
//!   now + (delay+1)·interval ┤─ ─ ┌───┘  └──  up to this line a request passes now; above it, it waits
//!                            │ ┌──┘           for the time by which it exceeds the line
//!                        now ┼─┘──────────► t
//! ```
//!
//! `delay` is 0 by default: every request but the first waits until the one before it has been served. The same numbers
//! are called `burst` and `delay` in nginx, where `nodelay` is a delay as large as the queue: every request that finds
//! room passes now, but room is freed at the even pace. As in nginx, one request is in service and not in the queue, so
//! a queue of 5 admits 6.
//!
//! A request that would wait longer than `max_wait` is refused instead. A cost of n is n requests that arrive together:
//! it is released with the last of them.
//!
//! In any time span Δ at most 1 + ⌊rate·Δ⌋ are released if `delay` is 0, and at most `delay` more otherwise.
//! [`NginxQueue`](crate::NginxQueue) has nginx's own rounding, for comparison after moving a configuration from nginx.

use core::time::Duration;

use crate::algorithm::Algorithm;
use crate::decision::{Decision, Level, Outcome};
use crate::encoded_rule::{EncodedRule, share_of};
use crate::invalid_quota::{InvalidQuota, Reason};
use crate::token_bucket::{NOTHING, Span, while_ahead};
use crate::{ClockKind, Micros, Quota, TokenBucket, Words, WordsMut};

/// Releases requests at the pace of a quota, and lets a bounded number of them wait.
///
/// ```
/// use core::time::Duration;
/// use tidegate_core::{Algorithm, LeakyQueue, Micros, Outcome, Quota, Wait};
///
/// const QUEUE: LeakyQueue = LeakyQueue::new(Quota::per_second(10), 2);
/// let (mut state, now) = ([0; 3], Micros::ZERO);
/// assert_eq!(QUEUE.decide(&mut state, now, 1).outcome, Outcome::Allowed);
/// assert_eq!(QUEUE.decide(&mut state, now, 1).outcome, Outcome::AllowedAfter(Wait::micros(100_000)));
/// assert_eq!(QUEUE.decide(&mut state, now, 1).outcome, Outcome::AllowedAfter(Wait::micros(200_000)));
/// assert!(!QUEUE.decide(&mut state, now, 1).is_allowed()); // two are waiting
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyQueue {
    quota: Quota,
    queue: u32,
    delay: u32,
    max_wait: Option<Duration>,
    /// The bucket whose capacity is the capacity of the queue.
    bucket: TokenBucket,
    /// A request within this span passes without waiting.
    free: Span,
    /// The remainder of a `max_wait` that is not a whole number of intervals.
    ///
    /// This much may still be owed when the whole limit is available again.
    spare: Span,
}

impl LeakyQueue {
    /// Requests leave at the pace of `quota`, and at most `queue` of them wait.
    ///
    /// The burst of the quota is ignored.
    ///
    /// # Panics
    /// If a queue of this length cannot be counted exactly; in a `const` that is a compile error.
    #[must_use]
    pub const fn new(quota: Quota, queue: u32) -> Self {
        match Self::checked(quota, queue) {
            Ok(queue) => queue,
            Err(reason) => panic!("{}", reason.sentence()),
        }
    }

    /// As [`LeakyQueue::new`], for values that have not been validated.
    ///
    /// # Errors
    /// If a queue of this length cannot be counted exactly, or the quota is [unlimited](Quota::unlimited).
    pub fn try_new(quota: Quota, queue: u32) -> Result<Self, InvalidQuota> {
        Self::checked(quota, queue).map_err(InvalidQuota::because)
    }

    /// The same queue, in which the first `delay` requests pass now instead of waiting.
    #[must_use]
    pub const fn delay(self, delay: u32) -> Self {
        LeakyQueue { delay, ..self }.laid_out()
    }

    /// The same queue without waiting: a request that finds room passes now.
    ///
    /// Room is freed at the even pace.
    #[must_use]
    pub const fn nodelay(self) -> Self {
        self.delay(u32::MAX)
    }

    /// The same queue, which refuses a request that would wait longer than this.
    #[must_use]
    pub const fn max_wait(self, longest: Duration) -> Self {
        LeakyQueue { max_wait: Some(longest), ..self }.laid_out()
    }

    const fn checked(quota: Quota, queue: u32) -> Result<Self, Reason> {
        if let Err(reason) = quota.finite() {
            return Err(reason);
        }
        let inside = queue as u64 + 1;
        match Quota::checked(quota.limit(), quota.period(), inside) {
            Ok(quota) => {
                let (bucket, free) = (TokenBucket::new(quota), Span::of(quota.p(), quota.q()));
                Ok(LeakyQueue { quota, queue, delay: 0, max_wait: None, bucket, free, spare: NOTHING })
            }
            Err(reason) => Err(reason),
        }
    }

    /// Computes the positions of the two lines.
    const fn laid_out(self) -> Self {
        let (p, q) = (self.quota.p(), self.quota.q());
        let delay = if self.delay < self.queue { self.delay } else { self.queue };
        let free = (delay as u64 + 1) * p;
        let mut full = (self.queue as u64 + 1) * p;
        if let Some(longest) = self.max_wait {
            let longest = longest.as_micros().saturating_mul(q as u128).saturating_add(free as u128);
            #[expect(clippy::cast_possible_truncation, reason = "just found to be less than full")]
            if longest < full as u128 {
                full = longest as u64;
            }
        }
        let (bucket, free, spare) = (self.bucket.filled_to(full), Span::of(free, q), Span::of(full % p, q));
        LeakyQueue { bucket, free, spare, ..self }
    }

    pub(crate) fn encode(&self) -> EncodedRule {
        let (p, q) = (self.quota.p(), self.quota.q());
        EncodedRule::new(b'q', [p, q, self.bucket.full_parts(), self.free.parts(q)])
    }

    /// The share of one of `nodes`: pace and queue divided by `nodes`, the same longest wait.
    pub(crate) fn share(&self, nodes: u64) -> Option<Self> {
        let places = u32::try_from(share_of(u64::from(self.queue) + 1, nodes)?).ok()?;
        let delay = u64::from(self.delay.min(self.queue)) / nodes;
        let period = self.quota.period().checked_mul(u32::try_from(nodes).ok()?)?;
        let quota = Quota::try_new(self.quota.limit(), period, 1).ok()?;
        let share = LeakyQueue::try_new(quota, places - 1).ok()?.delay(u32::try_from(delay).ok()?);
        Some(LeakyQueue { max_wait: self.max_wait, ..share }.laid_out())
    }

    /// The bucket's decision on a cost that it charged, with the wait until the release.
    #[inline]
    fn with_release(&self, charged: Decision) -> Decision {
        let wait = self.bucket.beyond(charged, self.free);
        let outcome = if wait.as_micros() == 0 { Outcome::Allowed } else { Outcome::AllowedAfter(wait) };
        self.with_reset(charged.with_outcome(outcome))
    }

    #[inline(always)]
    fn peek_ignoring_step<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        let found = self.bucket.peek_ignoring_step(state, now, cost);
        if cost == 0 || !found.is_allowed() { self.with_reset(found) } else { self.with_release(found) }
    }

    #[inline(always)]
    fn charge<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        let forced = self.bucket.charge(state, now, cost);
        if cost == 0 { self.with_reset(forced) } else { self.with_release(forced) }
    }

    /// The decision with a reset that leaves out `spare`, which may still be owed at a full limit.
    #[inline]
    fn with_reset(&self, decision: Decision) -> Decision {
        if self.spare == NOTHING {
            return decision;
        }
        let reset = self.bucket.beyond(decision, self.spare).as_micros();
        let (limit, remaining) = (decision.limit(), decision.remaining());
        decision.with_level(Level::Counted { limit, remaining, reset })
    }
}

impl Algorithm for LeakyQueue {
    #[inline]
    fn words(&self) -> usize {
        self.bucket.words()
    }

    fn for_clock(self, clock: ClockKind) -> Self {
        LeakyQueue { bucket: self.bucket.for_clock(clock), ..self }
    }

    #[inline]
    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        match self.bucket.ahead(state, now) {
            0 => self.peek_ignoring_step(state, now, cost),
            ahead => while_ahead(self.peek_ignoring_step(state, now, cost), ahead),
        }
    }

    /// Charges the cost even if the queue is full, and returns the wait until its release.
    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        match self.bucket.ahead(state, now) {
            0 => self.charge(state, now, cost),
            ahead => while_ahead(self.charge(state, now, cost), ahead),
        }
    }

    fn force_wide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u64) {
        self.bucket.force_wide(state, now, cost);
    }

    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
        self.bucket.refund(state, now, cost);
    }

    fn repair<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        self.bucket.repair(state, now);
    }

    #[inline]
    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        self.bucket.idle_at(state)
    }

    #[inline]
    fn last_seen<S: Words + ?Sized>(&self, state: &S) -> Micros {
        self.bucket.last_seen(state)
    }

    #[inline(always)]
    fn decide_word(&self, word: u64, now: Micros, cost: u32) -> Option<(u64, Decision)> {
        let (next, decision) = self.bucket.decide_word(word, now, cost)?;
        Some((
            next,
            if decision.is_allowed() { self.with_release(decision) } else { self.with_reset(decision) },
        ))
    }

    fn migrate_from<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        self.bucket.migrate_from(&old.bucket, from, state, now);
    }
}
