//! # Token bucket with a quota per call
//!
//! Customers have plans: one may make ten requests per second, another a thousand, and either may change plans at any
//! moment. A [`TokenBucket`] has one quota for all its keys. A per-call bucket receives the quota with each call, and
//! its state stores the quota it was written under:
//!
//! ```text
//!   │ owes until, written at │ p │ q │ burst │
//! ```
//!
//! When a key arrives with another quota than before, its usage is carried over, as
//! [`migrate_from`](Algorithm::migrate_from) does: seven used of ten are seven used of a thousand. Switching plans back
//! and forth never yields a fresh burst.
//!
//! Only a charge writes the new quota. Until then the usage decays at the pace of the old quota, and waits are computed
//! from that pace. So a request that is refused under a new quota passes exactly after the wait it was given.
//!
//! One limiter per plan would be simpler, but it loses the usage of a customer that changes plans. The quota
//! takes three more words per key, so this is a type of its own and not the way all buckets work.

use crate::algorithm::{Algorithm, Taken};
use crate::{ClockKind, Decision, Micros, Outcome, Quota, TokenBucket, Wait, Words, WordsMut};

/// A token bucket for keys with plans: each call, even for the same key, has its own quota.
///
/// ```
/// use tidegate_core::{Algorithm, Micros, PerCallBucket, Quota};
///
/// let (free, paid) = (PerCallBucket::new(Quota::per_minute(10)), PerCallBucket::new(Quota::per_minute(1_000)));
/// let mut state = vec![0; free.words()];
/// assert_eq!(free.decide(state.as_mut_slice(), Micros::ZERO, 7).remaining(), 3);
/// assert_eq!(paid.decide(state.as_mut_slice(), Micros::ZERO, 1).remaining(), 992);
/// assert_eq!(free.decide(state.as_mut_slice(), Micros::ZERO, 1).remaining(), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerCallBucket {
    bucket: TokenBucket,
    plan: [u64; PLAN],
}

/// The number of words of the quota: p, q and the burst.
const PLAN: usize = 3;
/// The maximum number of words of a bucket.
const BUCKET: usize = 3;

/// A copy of a state, converted to the quota of the call.
type Copied = [u64; BUCKET + PLAN];

impl PerCallBucket {
    /// The bucket of one plan.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        PerCallBucket { bucket: TokenBucket::new(quota), plan: [quota.p(), quota.q(), quota.max_burst()] }
    }

    fn copied<S: Words + ?Sized>(&self, state: &S, now: Micros) -> Copied {
        let mut copy = [0; BUCKET + PLAN];
        for (index, word) in copy.iter_mut().enumerate().take(self.words()) {
            *word = state.get(index);
        }
        let plan = self.written_under(state);
        if plan != self.plan {
            copy = self.carried_over(&copy, plan, now);
        }
        copy
    }

    /// The plan that a state was written under.
    fn written_under<S: Words + ?Sized>(&self, state: &S) -> [u64; PLAN] {
        let words = self.bucket.words();
        core::array::from_fn(|index| state.get(words + index))
    }

    /// Corrects the wait of a refusal if the state was written under another plan.
    ///
    /// Until the next charge the usage decays at the pace of that other plan.
    fn with_exact_wait<S>(&self, decision: Decision, state: &S, now: Micros, cost: u32) -> Decision
    where
        S: Words + ?Sized,
    {
        if !matches!(decision.outcome, Outcome::RetryAfter(_)) || self.written_under(state) == self.plan {
            return decision;
        }
        let passes_at = |at| self.bucket.peek(self.copied(state, at).as_slice(), at, cost).is_allowed();
        // The request passes once nothing is owed. The debt only decreases until then, so a binary search is valid.
        let (mut refused, mut passes) = (0, self.idle_at(state).since(now));
        while refused + 1 < passes {
            let wait = refused.midpoint(passes);
            *(if passes_at(now.plus(wait)) { &mut passes } else { &mut refused }) = wait;
        }
        decision.with_outcome(Outcome::RetryAfter(Wait::micros(passes)))
    }

    /// Converts usage under `plan` to usage under the plan of this call.
    fn carried_over(&self, state: &Copied, [p, q, burst]: [u64; PLAN], now: Micros) -> Copied {
        let words = self.bucket.words();
        let mut carried = [0; BUCKET + PLAN];
        if q > 0 {
            let old = self.bucket.with_pace(p, q, burst);
            self.bucket.migrate_from(&old, state.as_slice(), carried.as_mut_slice(), now);
        }
        carried[words..words + PLAN].copy_from_slice(&self.plan);
        carried
    }

    /// Runs an operation of the bucket on the state under this plan, and stores the result.
    fn keeping<S, R>(
        &self,
        state: &mut S,
        now: Micros,
        operation: impl FnOnce(&TokenBucket, &mut [u64]) -> R,
    ) -> R
    where
        S: WordsMut + ?Sized,
    {
        let before = self.copied(state, now);
        let mut after = before;
        let result = operation(&self.bucket, &mut after);
        // A refusal writes nothing, not even the new plan: the next call can carry the usage over just as well.
        if after != before {
            for (index, word) in after.iter().enumerate().take(self.words()) {
                state.set(index, *word);
            }
        }
        result
    }
}

impl Algorithm for PerCallBucket {
    fn words(&self) -> usize {
        self.bucket.words() + PLAN
    }

    fn for_clock(self, clock: ClockKind) -> Self {
        // The same layout whatever the quota: all plans share one table.
        PerCallBucket { bucket: self.bucket.for_clock_wide(clock), ..self }
    }

    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        let decision = self.bucket.peek(self.copied(state, now).as_slice(), now, cost);
        self.with_exact_wait(decision, state, now, cost)
    }

    fn decide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        let decision = self.keeping(state, now, |bucket, words| bucket.decide(words, now, cost));
        self.with_exact_wait(decision, &*state, now, cost)
    }

    fn take<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, max: u32) -> Taken {
        self.keeping(state, now, |bucket, words| bucket.take(words, now, max))
    }

    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        self.keeping(state, now, |bucket, words| bucket.force(words, now, cost))
    }

    fn force_wide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u64) {
        self.keeping(state, now, |bucket, words| bucket.force_wide(words, now, cost));
    }

    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
        self.keeping(state, now, |bucket, words| bucket.refund(words, now, cost));
    }

    fn repair<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        self.keeping(state, now, |bucket, words| bucket.repair(words, now));
    }

    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        match self.written_under(state) {
            plan if plan == self.plan => self.bucket.idle_at(state),
            [_, 0, _] => Micros::ZERO,
            [p, q, burst] => self.bucket.with_pace(p, q, burst).idle_at(state),
        }
    }

    fn last_seen<S: Words + ?Sized>(&self, state: &S) -> Micros {
        self.bucket.last_seen(state)
    }

    /// Copies the state: it stores the quota it was written under.
    fn migrate_from<F, S>(&self, _: &Self, from: &F, state: &mut S, _: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        (0..self.words()).for_each(|index| state.set(index, from.get(index)));
    }
}
