//! # A quota that comes with the call
//!
//! Customers have plans, and who calls knows which. So the quota is said at each call, before the verb: another one may
//! come each time, even for one key. How what was used under one plan counts under another is told where the algorithm
//! is, [`PerCallBucket`]; here it is given its verbs. Those that wait are with all the others of that kind, in `wait`.

use std::borrow::Borrow;
use std::hash::Hash;

use super::KeyedLimiter;
use crate::clock::Clock;
use crate::operation::{Check, Force, Operation, Peek, Refund, Take};
use tidegate_core::{Algorithm, Decision, PerCallBucket, Quota, Taken};

/// A plan's verbs: what [`KeyedLimiter::quota`] and [`KeyedLimiter::by`] return.
#[derive(Debug)]
#[must_use = "a plan does nothing until a verb follows, such as `.check(key)`"]
pub struct KeyedPlan<'a, K: ?Sized, C, A = PerCallBucket> {
    pub(super) limiter: &'a KeyedLimiter<K, A, C>,
    pub(super) plan: A,
    pub(super) cost: u32,
}

impl<K: ?Sized, C: Clock> KeyedLimiter<K, PerCallBucket, C> {
    /// The verbs for a key whose plan has this quota. It may be another at each call, even for one key: what the key
    /// has used stays used.
    ///
    /// Those who wait, by whichever plan, stand in the key's one line, and are kept by the plan they were promised by.
    ///
    /// ```
    /// use tidegate::{KeyedLimiter, PerCallBucket, Quota};
    ///
    /// const FREE: Quota = Quota::per_hour(10);
    /// const PAID: Quota = Quota::per_hour(1_000);
    /// let limiter = KeyedLimiter::<u64, _>::with(PerCallBucket::new(FREE)); // the plan of who has none
    ///
    /// assert!(limiter.cost(10).check(&7).is_allowed());
    /// assert!(!limiter.check(&7).is_allowed());
    /// assert_eq!(limiter.quota(PAID).check(&7).remaining(), 989); // upgraded
    /// assert!(!limiter.quota(FREE).check(&7).is_allowed()); // and back: eleven used of ten
    /// ```
    #[inline]
    pub fn quota(&self, quota: Quota) -> KeyedPlan<'_, K, C> {
        self.by(PerCallBucket::new(quota))
    }
}

impl<K: ?Sized, C: Clock, A: Algorithm> KeyedPlan<'_, K, C, A> {
    /// The verbs for a cost other than 1.
    #[inline]
    pub fn cost(self, cost: u32) -> Self {
        KeyedPlan { cost, ..self }
    }

    /// Decides whether the cost may pass for `key` now, and charges it if it may. Never waits.
    pub fn check<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.limiter.apply_plan(&self.plan, key, &Check(self.cost))
    }

    /// Decides as [`check`](KeyedPlan::check) would, and charges nothing. A cost of 0 asks what is left.
    pub fn peek<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.limiter.apply_plan(&self.plan, key, &Peek(self.cost))
    }

    /// Takes as much of the cost as there is, which may be nothing.
    pub fn take<Q: Hash + ?Sized>(&self, key: &Q) -> Taken
    where
        K: Borrow<Q>,
    {
        self.limiter.apply_plan(&self.plan, key, &Take(self.cost))
    }

    /// Charges the cost whether or not it fits; what does not fit is debt.
    pub fn force<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.limiter.apply_plan(&self.plan, key, &Force(self.cost))
    }

    /// Gives back what a recent charge took, never above the limit.
    pub fn refund<Q: Hash + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.limiter.apply_plan(&self.plan, key, &Refund(self.cost));
        self.limiter.shared.allow_eviction_scan(key);
    }
}

impl<K: ?Sized, A: Algorithm, C: Clock> KeyedLimiter<K, A, C> {
    /// The verbs by another setting of the algorithm, for this call only. For algorithms whose setting comes with the call.
    ///
    /// Unlike [`change`](KeyedLimiter::change) this carries nothing over: a state is read as it was written, by whichever
    /// setting. Most callers want [`quota`](KeyedLimiter::quota), whose states know what they were written under. All
    /// settings must have states of one size; one whose states are of another is not asked, but the limiter's own.
    ///
    /// ```
    /// use tidegate::{KeyedLimiter, Quota, TokenBucket};
    ///
    /// let limiter = KeyedLimiter::<str>::new(Quota::per_minute(60));
    /// assert!(limiter.cost(30).check("alice").is_allowed()); // owes for 30 seconds
    /// let slower = limiter.by(TokenBucket::new(Quota::per_minute(6)));
    /// assert_eq!(slower.cost(0).peek("alice").remaining(), 3); // which are 3 of these, and not 30
    /// ```
    #[inline]
    pub fn by(&self, setting: A) -> KeyedPlan<'_, K, C, A> {
        KeyedPlan { limiter: self, plan: setting.for_clock(C::KIND), cost: 1 }
    }

    #[inline]
    fn apply_plan<Q: Hash + ?Sized, V: Operation>(&self, plan: &A, key: &Q, operation: &V) -> V::Answer {
        let fingerprint = self.shared.secrets.fingerprint(key);
        if self.observer.is_none()
            && let Some(answer) = self.shared.apply_plan_fast(plan, fingerprint, operation, || self.when())
        {
            return answer;
        }
        self.apply_slow(Some(plan), fingerprint, operation)
    }
}
