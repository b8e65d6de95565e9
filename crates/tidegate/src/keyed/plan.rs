//! # A quota that comes with the call
//!
//! Customers have plans, and who calls knows which. So the quota is said at each call, before the verb: another one may
//! come each time, even for one key. How what was used under one plan counts under another is told where the algorithm
//! is, [`Planned`]; here it is given its verbs. Those that wait are with all the others of that kind, in `wait`.

use std::borrow::Borrow;
use std::hash::Hash;

use super::KeyedLimiter;
use crate::clock::Clock;
use crate::verb::{Check, Force, Peek, Refund, Take, Verb};
use tidegate_core::{Algorithm, Decision, Planned, Quota, Taken};

/// A plan's verbs: what [`KeyedLimiter::quota`] returns.
#[derive(Debug)]
#[must_use = "a plan does nothing until a verb follows, such as `.check(key)`"]
pub struct KeyedPlan<'a, K: ?Sized, C> {
    pub(super) limiter: &'a KeyedLimiter<K, Planned, C>,
    pub(super) plan: Planned,
    pub(super) cost: u32,
}

impl<K: ?Sized, C: Clock> KeyedLimiter<K, Planned, C> {
    /// The verbs for a key whose plan has this quota. It may be another at each call, even for one key: what the key
    /// has used stays used.
    ///
    /// Those who wait, by whichever plan, stand in the key's one line, and are kept by the plan they were promised by.
    ///
    /// ```
    /// use tidegate::{KeyedLimiter, Planned, Quota};
    ///
    /// const FREE: Quota = Quota::per_hour(10);
    /// const PAID: Quota = Quota::per_hour(1_000);
    /// let limiter = KeyedLimiter::<u64, _>::with(Planned::new(FREE)); // the plan of who has none
    ///
    /// assert!(limiter.cost(10).check(&7).is_allowed());
    /// assert!(!limiter.check(&7).is_allowed());
    /// assert_eq!(limiter.quota(PAID).check(&7).remaining(), 989); // upgraded
    /// assert!(!limiter.quota(FREE).check(&7).is_allowed()); // and back: eleven used of ten
    /// ```
    #[inline]
    pub fn quota(&self, quota: Quota) -> KeyedPlan<'_, K, C> {
        KeyedPlan { limiter: self, plan: Planned::new(quota).suited_to(C::STEADINESS), cost: 1 }
    }
}

impl<K: ?Sized, C: Clock> KeyedPlan<'_, K, C> {
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
        self.limiter.apply_plan(self.plan, key, &Check(self.cost))
    }

    /// Decides as [`check`](KeyedPlan::check) would, and charges nothing. A cost of 0 asks what is left.
    pub fn peek<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.limiter.apply_plan(self.plan, key, &Peek(self.cost))
    }

    /// Takes as much of the cost as there is, which may be nothing.
    pub fn take<Q: Hash + ?Sized>(&self, key: &Q) -> Taken
    where
        K: Borrow<Q>,
    {
        self.limiter.apply_plan(self.plan, key, &Take(self.cost))
    }

    /// Charges the cost whether or not it fits; what does not fit is debt.
    pub fn force<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.limiter.apply_plan(self.plan, key, &Force(self.cost))
    }

    /// Gives back what a recent charge took, never above the limit.
    pub fn refund<Q: Hash + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.limiter.apply_plan(self.plan, key, &Refund(self.cost));
        self.limiter.shared.look_for_idle_again(key);
    }
}

impl<K: ?Sized, C: Clock> KeyedLimiter<K, Planned, C> {
    fn apply_plan<Q: Hash + ?Sized, V: Verb>(&self, plan: Planned, key: &Q, verb: &V) -> V::Answer {
        let fingerprint = self.shared.secrets.fingerprint(key);
        self.apply_slowly(Some(&plan), fingerprint, verb)
    }
}
