//! # Leaky queue
//!
//! A [`TokenBucket`] lets a burst pass at once. Whoever stands behind it, a database or somebody else's API, would
//! rather have the burst one by one. A leaky queue lets requests *in* like a bucket and *out* at an even pace: the
//! answer to a request is not only whether it may pass but when its turn is.
//!
//! ```text
//!             in                                                   out, one per interval
//!   ─ ─ ●●●●●●  ──►  │ waiting: at most `queue` │ being served │  ──●────●────●──►
//!        full? refused                                               ├────┤
//! ```
//!
//! Nothing waits in here, though. As in the bucket, one instant is all there is: when the last request that was let in has
//! been served. A new one is served an interval after that, and the difference to now is how long the queue is.
//!
//! ```text
//!   now + (queue+1)·interval ┤─ ─ ─ ─ ─ ─ ─   beyond this line there is no room: refused, nothing changes
//!                            │        ┌──┐
//!   now + (delay+1)·interval ┤─ ─ ┌───┘  └──  up to this line a request passes at once; above it, it waits
//!                            │ ┌──┘           for as long as it stands above
//!                        now ┼─┘──────────► t
//! ```
//!
//! With `delay` at 0, as made, every request but the first waits until the one before it has been served. nginx knows the same
//! numbers as `burst` and `delay`, where `nodelay` is a delay as large as the queue: everybody who finds room passes
//! at once, but room comes back at the even pace. As there, one request is in service and not in the queue, so a queue of 5 lets 6 in.
//!
//! A request that would wait longer than `max_wait` is refused instead. A cost of n is n requests that come together:
//! it has its turn with the last of them.
//!
//! In any stretch Δ at most 1 + ⌊rate·Δ⌋ have their turn, if `delay` is 0; at most `delay` more otherwise.
//! nginx's own rounding, for whoever moves a configuration from there and compares, is in
//! [`NginxQueue`](crate::NginxQueue).

use core::time::Duration;

use crate::algorithm::Algorithm;
use crate::decision::{Decision, Level, Outcome};
use crate::encoded_rule::{EncodedRule, share_of};
use crate::invalid::{InvalidQuota, Reason};
use crate::token_bucket::{NOTHING, Span, while_ahead};
use crate::{ClockKind, Micros, Quota, TokenBucket, Words, WordsMut};

/// Lets requests out at the pace of a quota, and lets a bounded number of them wait for their turn.
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
    /// As full as this, the queue takes no more.
    bucket: TokenBucket,
    /// Who is within this passes at once.
    free: Span,
    /// What is left of a longest wait that is no whole number of intervals: so much may still be owed when the whole limit is
    /// there again.
    spare: Span,
}

impl LeakyQueue {
    /// Requests leave at the pace of `quota`, and at most `queue` of them wait. The burst of the quota plays no part.
    ///
    /// # Panics
    /// If so many cannot be counted exactly; in a `const` that is a compile error.
    #[must_use]
    pub const fn new(quota: Quota, queue: u32) -> Self {
        match Self::checked(quota, queue) {
            Ok(queue) => queue,
            Err(reason) => panic!("{}", reason.sentence()),
        }
    }

    /// As [`LeakyQueue::new`], for values that are not known to be right.
    ///
    /// # Errors
    /// If so many cannot be counted exactly.
    pub fn try_new(quota: Quota, queue: u32) -> Result<Self, InvalidQuota> {
        Self::checked(quota, queue).map_err(InvalidQuota::because)
    }

    /// The same queue, where the first `delay` of those in it pass at once instead of waiting.
    #[must_use]
    pub const fn delay(self, delay: u32) -> Self {
        LeakyQueue { delay, ..self }.laid_out()
    }

    /// The same queue, where nobody waits: who finds room passes at once, and room comes back at the even pace.
    #[must_use]
    pub const fn nodelay(self) -> Self {
        self.delay(u32::MAX)
    }

    /// The same queue, for those who would rather be refused than wait longer than this.
    #[must_use]
    pub const fn max_wait(self, longest: Duration) -> Self {
        LeakyQueue { max_wait: Some(longest), ..self }.laid_out()
    }

    const fn checked(quota: Quota, queue: u32) -> Result<Self, Reason> {
        let inside = queue as u64 + 1;
        match Quota::checked(quota.limit(), quota.period(), inside) {
            Ok(quota) => {
                let (bucket, free) = (TokenBucket::new(quota), Span::of(quota.p(), quota.q()));
                Ok(LeakyQueue { quota, queue, delay: 0, max_wait: None, bucket, free, spare: NOTHING })
            }
            Err(reason) => Err(reason),
        }
    }

    /// Works out where the two lines lie.
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

    /// As many times slower, with as many times fewer places; nobody waits longer.
    pub(crate) fn share(&self, nodes: u64) -> Option<Self> {
        let places = u32::try_from(share_of(u64::from(self.queue) + 1, nodes)?).ok()?;
        let delay = u64::from(self.delay.min(self.queue)) / nodes;
        let period = self.quota.period().checked_mul(u32::try_from(nodes).ok()?)?;
        let quota = Quota::try_new(self.quota.limit(), period, 1).ok()?;
        let share = LeakyQueue::try_new(quota, places - 1).ok()?.delay(u32::try_from(delay).ok()?);
        Some(LeakyQueue { max_wait: self.max_wait, ..share }.laid_out())
    }

    /// The bucket's decision on a cost that it charged, with the wait until its turn.
    #[inline]
    fn with_turn(&self, charged: Decision) -> Decision {
        let wait = self.bucket.beyond(charged, self.free);
        let outcome = if wait.as_micros() == 0 { Outcome::Allowed } else { Outcome::AllowedAfter(wait) };
        self.told(charged.with_outcome(outcome))
    }

    #[inline(always)]
    fn judge<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        let found = self.bucket.judge(state, now, cost);
        if cost == 0 || !found.is_allowed() { self.told(found) } else { self.with_turn(found) }
    }

    #[inline(always)]
    fn charge<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        let forced = self.bucket.charge(state, now, cost);
        if cost == 0 { self.told(forced) } else { self.with_turn(forced) }
    }

    #[inline]
    fn told(&self, decision: Decision) -> Decision {
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
            0 => self.judge(state, now, cost),
            ahead => while_ahead(self.judge(state, now, cost), ahead),
        }
    }

    /// Charges the cost, and tells when its turn is: it takes its place in the queue even where there is none.
    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        match self.bucket.ahead(state, now) {
            0 => self.charge(state, now, cost),
            ahead => while_ahead(self.charge(state, now, cost), ahead),
        }
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
        Some((next, if decision.is_allowed() { self.with_turn(decision) } else { self.told(decision) }))
    }

    fn migrate_from<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        self.bucket.migrate_from(&old.bucket, from, state, now);
    }
}
