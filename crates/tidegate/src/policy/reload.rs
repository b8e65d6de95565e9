//! # Reload: replacing the rules of a policy
//!
//! A configuration file is read again: a rule was added, one was removed, one has another quota. The simplest solution
//! builds a policy from the new rules and drops the old one. It also drops all recorded usage, so that every key gets a
//! fresh burst at each reload. Changing the old policy in place keeps the usage, but the number of its rules is fixed,
//! and requests in progress refer to rules by number.
//!
//! So a reload builds a new policy, and rules that are in both policies *share their states*:
//!
//! ```text
//!   old   │  global   │ user │ search │          requests that still use the old policy
//!              ▲          ▲                      charge the same states
//!              │          │
//!   new   │  global   │ user │ uploads │         as requests that already use the new one
//! ```
//!
//! A state is never copied and always belongs to a policy. So no usage is lost or counted twice, however many threads
//! decide during the reload. A rule with another setting is [changed](Policy::change) for both policies.
//!
//! Copying the states would be no solution either. A copy is taken at some instant: charges to the original
//! after that are lost, and quota can be taken from both. Preventing this means stopping all decisions while
//! millions of states are copied. Sharing costs one more load per rule and decision, because the states of a
//! rule are behind a counted pointer.

use std::collections::HashMap;
use std::sync::Arc;

use super::wait_queues::WaitQueues;
use super::{Bounds, InvalidPolicy, Kind, Limit, Policy, PolicyBuilder, RuleStates};
use crate::clock::Clock;
use tidegate_core::{Algorithm, Keep, RuleId};

impl<A: Algorithm + PartialEq, C: Clock + Clone> Policy<A, C> {
    /// Builds a policy of other rules that keeps the states of rules with the same name.
    ///
    /// Recorded usage is kept, and permits stay held.
    ///
    /// ```
    /// use tidegate::{ManualClock, Policy, Quota};
    ///
    /// let rules = Policy::builder().rule("user", Quota::per_hour(10)).rule("search", Quota::per_hour(5));
    /// let policy = rules.clock(ManualClock::new()).build()?;
    /// assert!(policy.request().rule_for("user", "alice").cost(8).check()?.is_allowed()); // 8 used of 10
    ///
    /// let rules = Policy::builder().rule("uploads", Quota::per_hour(3)).rule("user", Quota::per_hour(100));
    /// let policy = policy.reload(rules)?;
    /// assert_eq!(policy.request().rule_for("user", "alice").cost(0).peek()?.remaining(), 92); // 8 used of 100
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// This policy and its clones still work, and charge the same states: no usage is lost while callers switch to the
    /// new policy. If a kept rule has another setting, that setting applies to both policies from now on, as after
    /// [`change`](Policy::change) or [`resize`](Policy::resize). Rules are changed one after another, so a request
    /// during the reload may see the new setting of one rule and the old setting of another. Kept rules also keep their
    /// original bound on keys. A rule that changes from a rate limit to a concurrency limit, or the other way round,
    /// starts with no usage.
    ///
    /// Waiters of this policy keep waiting in its own queues, which are separate from the queues of the new policy. The
    /// new policy has the clock of this one, and its observer unless `next` brings another.
    ///
    /// # Errors
    ///
    /// [`InvalidPolicy`] if `next` is not a valid policy. Nothing has changed then.
    pub fn reload(&self, next: PolicyBuilder<A>) -> Result<Self, InvalidPolicy> {
        next.validate()?;
        let Bounds { max_keys, max_waiting } = next.bounds;
        let numbers = (0..=u16::MAX).map(RuleId);
        let before: HashMap<&str, RuleId> =
            self.shared.names.iter().map(|name| &**name).zip(numbers).collect();
        let (names, kinds): (Vec<Arc<str>>, Vec<_>) =
            next.rules.into_iter().map(|(name, kind)| (name.into(), kind)).unzip();
        let limits = names.iter().zip(kinds).map(|(name, kind)| match before.get(&**name) {
            Some(rule) => self.carry_over(*rule, kind, max_keys),
            None => Limit::fresh::<C>(kind, max_keys),
        });
        let limits = limits.collect();
        let shared = RuleStates { names: names.into(), limits, queues: WaitQueues::new(max_waiting) };
        let observer = next.observer.or_else(|| self.observer.clone());
        Ok(Policy { shared: Arc::new(shared), clock: self.clock.clone(), observer })
    }

    /// Returns the states of a rule of this policy, under a setting that may differ.
    fn carry_over(&self, rule: RuleId, kind: Kind<A>, max_keys: usize) -> Limit<A> {
        match (self.shared.limit(rule), kind) {
            (Limit::Rate(keyed), Kind::Rate(algorithm)) => {
                let algorithm = algorithm.for_clock(C::KIND);
                if keyed.current().algorithm != algorithm {
                    keyed.change(Keep::Used, algorithm, || self.when());
                    self.shared.queues.call(rule, None);
                }
                Limit::Rate(keyed.clone())
            }
            (Limit::Concurrency(keys), Kind::Concurrency(limit)) => {
                if keys.limit() != limit {
                    keys.resize(limit);
                }
                Limit::Concurrency(keys.clone())
            }
            (_, other) => Limit::fresh::<C>(other, max_keys),
        }
    }
}
