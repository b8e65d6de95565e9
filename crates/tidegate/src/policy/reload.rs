//! # One set of rules after another
//!
//! A file is read again: a rule is new, one is gone, one has another quota. The simplest way makes a policy of the
//! new rules and forgets the old one, and with it everything that was used: a fresh burst for everybody, each time.
//! Changing the old policy in place keeps what was used, but its rules cannot become more or fewer, and their numbers
//! mean something to those who are asking at the moment.
//!
//! So a new policy is made, and rules that are in both *share their states*:
//!
//! ```text
//!   old   │ everybody │ user │ search │          who is still asking here
//!              ▲          ▲                      charges the same states
//!              │          │
//!   new   │ everybody │ user │ uploads │         as who is asking here already
//! ```
//!
//! There is no moment at which a state belongs to neither or is copied, so nothing is lost and nothing is counted
//! twice, however many are deciding meanwhile. A rule with another setting is [changed](Policy::change), for both.

use std::collections::HashMap;
use std::sync::Arc;

use super::wait_queues::WaitQueues;
use super::{Bounds, InvalidPolicy, Kind, Limit, Limits, Policy, PolicyBuilder};
use crate::clock::Clock;
use tidegate_core::{Algorithm, RuleId};

impl<A: Algorithm + PartialEq, C: Clock + Clone> Policy<A, C> {
    /// A policy of other rules, in which those that have the name of a rule of this one go on with its states. What
    /// was used stays used, and permits that are held stay held.
    ///
    /// ```
    /// use tidegate::{ManualClock, Part, Policy, Quota};
    ///
    /// let rules = Policy::builder().rule("user", Quota::per_hour(10)).rule("search", Quota::per_hour(5));
    /// let policy = rules.build()?.with_clock(ManualClock::new());
    /// let user = [Part::of(policy.id("user").unwrap()).key("alice").cost(8)];
    /// assert!(policy.check(&user)?.is_allowed()); // 8 used of 10
    ///
    /// let rules = Policy::builder().rule("uploads", Quota::per_hour(3)).rule("user", Quota::per_hour(100));
    /// let policy = policy.reload(rules)?;
    /// let user = [Part::of(policy.id("user").unwrap()).key("alice").cost(0)];
    /// assert_eq!(policy.peek(&user)?.remaining(), 92); // 8 used of 100
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// This policy and its clones can still be asked, and charge the same states: nothing is lost while callers go
    /// over to the new one. A rule that goes on with another setting has it for both from now on, as after
    /// [`change`](Policy::change) or [`resize`](Policy::resize); one after the other, so a request in between may
    /// meet the new setting of one rule and the old one of another. Rules that go on keep the bound on their keys
    /// that they were made with. A rule that counted what passes and now counts who is at work, or the other way
    /// round, begins anew.
    ///
    /// Who waits for this policy goes on waiting for it, in no line with those who wait for the new one.
    ///
    /// # Errors
    ///
    /// [`InvalidPolicy`] if these rules are none. Then nothing has changed.
    pub fn reload(&self, next: PolicyBuilder<A>) -> Result<Self, InvalidPolicy> {
        next.validate()?;
        let Bounds { max_keys, max_waiting } = next.bounds;
        let numbers = (0..=u16::MAX).map(RuleId);
        let before: HashMap<&str, RuleId> =
            self.shared.names.iter().map(String::as_str).zip(numbers).collect();
        let (names, kinds): (Vec<_>, Vec<_>) = next.rules.into_iter().unzip();
        let limits = names.iter().zip(kinds).map(|(name, kind)| match before.get(name.as_str()) {
            Some(rule) => self.carry_over(*rule, kind, max_keys),
            None => Limit::fresh::<C>(kind, max_keys),
        });
        let limits = limits.collect();
        let shared = Limits { names: names.into(), limits, queues: WaitQueues::new(max_waiting), max_keys };
        Ok(Policy { shared: Arc::new(shared), clock: self.clock.clone(), observer: self.observer.clone() })
    }

    /// The states of a rule of this policy, under a setting that may be another.
    fn carry_over(&self, rule: RuleId, kind: Kind<A>, max_keys: usize) -> Limit<A> {
        match (self.shared.limit(rule), kind) {
            (Limit::Rate(keyed), Kind::Rate(algorithm)) => {
                let algorithm = algorithm.for_clock(C::KIND);
                if keyed.current().algorithm != algorithm {
                    keyed.change(algorithm, || self.when());
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
