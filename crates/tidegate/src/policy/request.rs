//! # Requests to a policy
//!
//! A request names the rules it has to pass, and for each the key. The rules are found by name when they are added; a
//! mistake is kept and reported by the operation, so that the chain of calls stays simple. A few rules need no
//! allocation.

use super::{Limit, Policy};
use crate::clock::Clock;
use crate::error::AcquireError;
use crate::gate::{Admission, InvalidRequest, Key, Part};
use crate::operation::Detailed;
use crate::request::{Deadline, Request};
use crate::wait::{Park, Sleep};
use tidegate_core::{Algorithm, Decision, RuleId};

/// The number of rules of a request that need no allocation.
const FEW: usize = 4;

/// The rules and keys of a request to a policy.
///
/// The common case is a few rules by name. It is inlined as a whole, so that the compiler keeps the parts in registers:
/// moving them from call to call would cost more than finding the names.
#[derive(Debug)]
pub struct RequestParts<'a> {
    /// The first rules added by name. All of them have the cost of the request.
    few: [Part<'a>; FEW],
    len: usize,
    /// Parts with costs of their own.
    given: &'a [Part<'a>],
    rest: Option<Box<Rest<'a>>>,
}

/// What few requests need.
#[derive(Debug, Default)]
struct Rest<'a> {
    /// All rules added by name, if they are more than a few; with the given parts at the end.
    many: Vec<Part<'a>>,
    invalid: Option<InvalidRequest>,
}

impl Default for RequestParts<'_> {
    #[inline(always)]
    fn default() -> Self {
        let none = Part::of(RuleId(0));
        RequestParts { few: [none; FEW], len: 0, given: &[], rest: None }
    }
}

impl<'a> RequestParts<'a> {
    #[inline(always)]
    fn push(&mut self, part: Part<'a>) {
        match self.few.get_mut(self.len) {
            Some(place) => *place = part,
            None => self.push_many(part),
        }
        self.len += 1;
    }

    #[cold]
    fn push_many(&mut self, part: Part<'a>) {
        let many = &mut self.rest.get_or_insert_default().many;
        if many.is_empty() {
            many.extend(self.few);
        }
        many.push(part);
    }

    /// Keeps the first mistake, which the operation reports.
    #[cold]
    fn set_invalid(&mut self, invalid: InvalidRequest) {
        self.rest.get_or_insert_default().invalid.get_or_insert(invalid);
    }

    /// Calls `decide` with all parts, of which those added by name have this cost.
    #[inline(always)]
    fn with<R, E: From<InvalidRequest>>(
        mut self,
        cost: u32,
        decide: impl FnOnce(&[Part<'_>]) -> Result<R, E>,
    ) -> Result<R, E> {
        decide(self.parts(cost)?)
    }

    /// Returns all parts, of which those added by name have this cost.
    #[inline(always)]
    fn parts(&mut self, cost: u32) -> Result<&[Part<'a>], InvalidRequest> {
        if self.rest.is_some() || (self.len > 0 && !self.given.is_empty()) {
            return self.all_parts(cost);
        }
        if self.len == 0 {
            return Ok(self.given);
        }
        let few = &mut self.few[..self.len];
        few.iter_mut().for_each(|part| part.cost = cost);
        Ok(few)
    }

    #[cold]
    fn all_parts(&mut self, cost: u32) -> Result<&[Part<'a>], InvalidRequest> {
        let Rest { many, invalid } = &mut **self.rest.get_or_insert_default();
        if let Some(invalid) = invalid.take() {
            return Err(invalid);
        }
        if many.is_empty() {
            many.extend_from_slice(&self.few[..self.len]);
        }
        many.iter_mut().for_each(|part| part.cost = cost);
        many.extend_from_slice(self.given);
        self.given = &[];
        Ok(many)
    }
}

impl<'a, A: Algorithm, C: Clock, D> Request<'a, Policy<A, C>, D> {
    /// Adds a rule, with the empty key: for limits that are shared by all requests.
    #[inline(always)]
    pub fn rule(self, name: &str) -> Self {
        self.rule_for(name, "")
    }

    /// Adds a rule, for this key.
    #[inline(always)]
    pub fn rule_for(mut self, name: &str, key: impl Into<Key<'a>>) -> Self {
        match self.limiter.id(name) {
            Some(rule) => self.key.push(Part::of(rule).key(key)),
            None => self.key.set_invalid(self.limiter.no_rule_named(name)),
        }
        self
    }

    /// Adds parts with costs of their own, which [`cost`](Request::cost) does not change.
    ///
    /// ```
    /// use tidegate::gate::Part;
    /// use tidegate::{Policy, Quota};
    ///
    /// let policy = Policy::builder()
    ///     .rule("requests", Quota::per_second(10))
    ///     .rule("bytes", Quota::per_second(1_000_000))
    ///     .build()?;
    /// let bytes = policy.id("bytes").ok_or("no such rule")?;
    /// let parts = [Part::of(bytes).key("alice").cost(4_096)];
    /// assert!(policy.request().rule_for("requests", "alice").parts(&parts).check()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn parts(mut self, parts: &'a [Part<'a>]) -> Self {
        if self.key.given.is_empty() {
            self.key.given = parts;
        } else {
            self.key.set_invalid(InvalidRequest::PartsTwice);
        }
        self
    }
}

impl<A: Algorithm, C: Clock> Request<'_, Policy<A, C>> {
    /// Decides whether all rules allow the request now, and charges all of them or none. Never waits.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] if the request names no rule, an unknown rule, or one rule and key twice; or if it names a
    /// concurrency limit, whose permit comes with [`try_acquire`](Request::try_acquire). A refusal is not an error.
    #[inline(always)]
    pub fn check(self) -> Result<Decision, InvalidRequest> {
        let policy = self.limiter;
        self.key.with(self.cost, |parts| {
            policy.without_permits(parts)?;
            policy.check_parts(parts).map(|admission| admission.decision)
        })
    }

    /// As [`check`](Request::check), with the decision of each rule. Allocates.
    ///
    /// # Errors
    ///
    /// As [`check`](Request::check).
    pub fn check_each(self) -> Result<Detailed, InvalidRequest> {
        let policy = self.limiter;
        self.key.with(self.cost, |parts| {
            policy.without_permits(parts)?;
            let Admission { decision, rules, .. } = policy.check_each_parts(parts)?;
            Ok(Detailed { decision, rules })
        })
    }

    /// Decides as [`try_acquire`](Request::try_acquire) would, and charges nothing. A cost of 0 queries the remaining
    /// quota.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] if the request names no rule, an unknown rule, or one rule and key twice.
    pub fn peek(self) -> Result<Decision, InvalidRequest> {
        let policy = self.limiter;
        self.key.with(self.cost, |parts| policy.peek(parts))
    }

    /// Refunds what a recent charge took of each rate limit, never above the limit. Permits are released by dropping
    /// them.
    ///
    /// # Errors
    ///
    /// As [`peek`](Request::peek).
    pub fn refund(self) -> Result<(), InvalidRequest> {
        let policy = self.limiter;
        self.key.with(self.cost, |parts| policy.refund(parts))
    }

    /// Forgets the recorded usage of each rate limit for its key. The cost plays no part.
    ///
    /// # Errors
    ///
    /// As [`peek`](Request::peek).
    pub fn reset(self) -> Result<(), InvalidRequest> {
        let policy = self.limiter;
        self.key.with(self.cost, |parts| policy.reset(parts))
    }

    /// Decides whether all rules allow the request now, charges all of them or none, and takes the permits of its
    /// concurrency limits. Never waits.
    ///
    /// # Errors
    ///
    /// [`AcquireError`] with the rule that refused, or with an [`InvalidRequest`].
    #[inline]
    pub fn try_acquire(self) -> Result<Admission, AcquireError> {
        let policy = self.limiter;
        self.key.with(self.cost, |parts| {
            let admission = policy.check_parts(parts)?;
            if admission.is_allowed() {
                return Ok(admission);
            }
            let decision = admission.decision;
            // A rule may be named for several keys. A cost that can never pass is the largest of them.
            let costs = parts.iter().filter(|part| part.rule == decision.rule).map(|part| part.cost);
            let cost = costs.max().unwrap_or(0);
            Err(policy.named(AcquireError::refused(&decision, cost)))
        })
    }
}

/// Operations of policies that wait.
///
/// A request waits in the queue of the state that refused it, and has charged nothing meanwhile. Each queue is first
/// come, first served: no request takes from a state for which an earlier one waits, nor does a `check`; it is refused
/// for at least as long as the first waiter will wait. Requests for other keys are not affected.
///
/// There is no `reserve`: an instant cannot be promised over several states without keeping all other requests from all
/// of them until then.
impl<A: Algorithm, C: Clock, D: Deadline> Request<'_, Policy<A, C>, D> {
    /// Waits, as a task, until all rules allow the request, and charges all of them.
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use tidegate::{Policy, Quota, TokioClock};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    /// # runtime.block_on(async {
    /// let clock = TokioClock::new();
    /// let policy = Policy::builder()
    ///     .rule("global", Quota::per_second(100))
    ///     .rule("per user", Quota::per_second(10).burst(1))
    ///     .concurrency("in progress", 3)
    ///     .clock(clock)
    ///     .build()?;
    /// for _ in 0..3 {
    ///     let request = policy.request().rule("global").rule_for("per user", "alice").rule("in progress");
    ///     let admission = request.acquire().await?; // at 0, 100 and 200 ms
    ///     drop(admission); // and with it the permit
    /// }
    /// # use tidegate::clock::Clock;
    /// # assert_eq!(clock.now().get(), 200_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # }
    /// ```
    ///
    /// A wait that is known to exceed the timeout is refused at once. How long earlier waiters take, and when permits
    /// are released, is not known: such a wait may take the whole timeout.
    ///
    /// # Errors
    ///
    /// [`AcquireError`] with the rule that refused, or with an [`InvalidRequest`]. Nothing is charged then.
    ///
    /// # Panics
    ///
    /// On the steady clock, if it has to wait outside a tokio runtime with timers.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point. It has charged nothing, and the waiters behind it are woken.
    pub async fn acquire(mut self) -> Result<Admission, AcquireError>
    where
        C: Sleep,
    {
        let (policy, deadline) = (self.limiter, self.deadline.instant(&self.limiter.clock));
        policy.wait(self.key.parts(self.cost)?, deadline).await
    }

    /// Blocks this thread until all rules allow the request. For tasks see [`acquire`](Request::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Request::acquire).
    pub fn acquire_blocking(self) -> Result<Admission, AcquireError>
    where
        C: Park,
    {
        let (policy, deadline) = (self.limiter, self.deadline.instant(&self.limiter.clock));
        self.key.with(self.cost, |parts| policy.wait_blocking(parts, deadline))
    }
}

impl<A: Algorithm, C: Clock> Policy<A, C> {
    /// Rejects concurrency limits: `check` would drop their permits at once.
    #[inline]
    fn without_permits(&self, parts: &[Part<'_>]) -> Result<(), InvalidRequest> {
        let limit = |part: &&Part<'_>| self.shared.limits.get(usize::from(part.rule.0));
        match parts.iter().find(|part| matches!(limit(part), Some(Limit::Concurrency(_)))) {
            None => Ok(()),
            Some(part) => {
                let rule = self.name(part.rule).unwrap_or_default().into();
                Err(InvalidRequest::NeedsPermit { rule })
            }
        }
    }

    /// Adds the name of the rule to an error.
    pub(super) fn named(&self, error: AcquireError) -> AcquireError {
        match self.shared.names.get(usize::from(error.rule_id().0)) {
            Some(name) if error.invalid_request().is_none() => error.named(name.clone()),
            _ => error,
        }
    }
}
