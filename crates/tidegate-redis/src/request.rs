//! # Requests to shared limits
//!
//! The same words as in memory: a request names its rules, its cost and its timeout, and ends in `check`, `acquire` and
//! so on. [`RedisLimiter`] is a handle on one rule, for programs that move from a
//! [`KeyedLimiter`](tidegate::KeyedLimiter) to Redis: the construction changes, and calls get an `.await`.
//!
//! ```text
//!   gate.limiter("per user")? ─► check(key)                                              Decision
//!                              └► request(key).cost(3).timeout(d).acquire()               Decision or AcquireError
//!   gate.request().rule("global").rule_for("per user", key) ─► check(), try_acquire(), …  all rules or none
//! ```

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use tidegate::algorithm::{Detailed, Taken};
use tidegate::gate::{Key, Part, RuleId};
use tidegate::{AcquireError, Admission, Decision, InvalidRequest};

use crate::error::Error;
use crate::gate::RedisGate;
use crate::lease::Leased;
use crate::wait::WaitDeadline;

/// A request to the rules of a gate, before it is made: all rules are charged or none.
///
/// ```no_run
/// use std::time::Duration;
/// # async fn run(gate: tidegate_redis::RedisGate) -> Result<(), Box<dyn std::error::Error>> {
/// let decision = gate.request().rule("global").rule_for("per user", "alice").cost(2).check().await?;
/// let upload = gate.request().rule_for("uploads", "alice").timeout(Duration::from_secs(1)).acquire().await?;
/// drop(upload); // and with it the permit
/// # Ok(())
/// # }
/// ```
#[must_use = "a request does nothing until an operation such as `check` or `acquire`"]
pub struct RedisRequest<'a, G, D = ()> {
    gate: &'a G,
    /// The rules that were added by name. All of them have the cost of the request.
    named: Vec<Part<'a>>,
    /// Parts with costs of their own.
    given: &'a [Part<'a>],
    invalid: Option<InvalidRequest>,
    cost: u32,
    deadline: D,
}

/// One rate limit of a gate, with the words of a [`KeyedLimiter`](tidegate::KeyedLimiter).
///
/// ```no_run
/// # async fn run(gate: tidegate_redis::RedisGate) -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = gate.limiter("per user")?;
/// if limiter.check("alice").await.is_allowed() { /* serve */ }
/// limiter.request("alice").cost(3).acquire().await?;
/// # Ok(())
/// # }
/// ```
///
/// Clones share the same gate.
#[derive(Clone)]
pub struct RedisLimiter<G = RedisGate> {
    gate: G,
    rule: RuleId,
}

/// A request to a [`RedisLimiter`] for one key, before it is made.
#[must_use = "a request does nothing until an operation such as `check` or `acquire`"]
pub struct KeyRequest<'a, G, D = ()> {
    gate: &'a G,
    part: Part<'a>,
    deadline: D,
}

/// A gate that takes requests: [`RedisGate`] and [`Leased`].
pub(crate) trait Requests {
    fn gate(&self) -> &RedisGate;
    /// Decides a request that was validated.
    fn check_valid(&self, parts: &[Part<'_>]) -> impl Future<Output = Admission> + Send;
    fn check_each_valid(&self, parts: &[Part<'_>]) -> impl Future<Output = Admission> + Send;
    fn peek_valid(&self, parts: &[Part<'_>]) -> impl Future<Output = Result<Decision, Error>> + Send;
    fn refund_valid(&self, parts: &[Part<'_>]) -> impl Future<Output = Result<(), Error>> + Send;
    fn reset_valid(&self, parts: &[Part<'_>]) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The methods that begin a request, the same for every gate.
macro_rules! begin_requests {
    ($gate:ty) => {
        impl $gate {
            /// Begins a request, which names the rules it has to pass: all of them are charged or none.
            pub fn request(&self) -> RedisRequest<'_, Self> {
                RedisRequest::new(self)
            }

            /// Returns a handle on one rate limit, with the words of a [`KeyedLimiter`](tidegate::KeyedLimiter).
            ///
            /// # Errors
            ///
            /// [`Error`] with [`invalid_request`](Error::invalid_request) if there is no rule with this name, or it is a
            /// concurrency limit: its permits come with [`try_acquire`](RedisRequest::try_acquire).
            pub fn limiter(&self, rule: &str) -> Result<RedisLimiter<Self>, Error> {
                let id = self.gate().find(rule)?;
                self.gate().without_permits(&[Part::of(id)])?;
                Ok(RedisLimiter { gate: self.clone(), rule: id })
            }
        }
    };
}

begin_requests!(RedisGate);
begin_requests!(Leased);

// === impl RedisRequest ===

impl<'a, G> RedisRequest<'a, G> {
    fn new(gate: &'a G) -> Self {
        RedisRequest { gate, named: Vec::new(), given: &[], invalid: None, cost: 1, deadline: () }
    }
}

#[expect(private_bounds, reason = "only for the gates of this crate")]
impl<'a, G: Requests, D> RedisRequest<'a, G, D> {
    /// Adds a rule, with the empty key: for limits that are shared by all requests.
    pub fn rule(self, name: &str) -> Self {
        self.rule_for(name, "")
    }

    /// Adds a rule, for this key.
    pub fn rule_for(mut self, name: &str, key: impl Into<Key<'a>>) -> Self {
        match self.gate.gate().find(name) {
            Ok(rule) => self.named.push(Part::of(rule).key(key)),
            Err(invalid) => self.invalid = self.invalid.or(Some(invalid)),
        }
        self
    }

    /// Adds parts with costs of their own, which [`cost`](RedisRequest::cost) does not change.
    pub fn parts(mut self, parts: &'a [Part<'a>]) -> Self {
        if self.given.is_empty() {
            self.given = parts;
        } else {
            self.invalid = self.invalid.or(Some(InvalidRequest::PartsTwice));
        }
        self
    }

    /// What the request takes of every rule that is added by name: 1 unless set.
    pub fn cost(self, cost: u32) -> Self {
        RedisRequest { cost, ..self }
    }

    /// Returns all parts, if they are valid.
    fn valid_parts(self) -> Result<Vec<Part<'a>>, InvalidRequest> {
        if let Some(invalid) = self.invalid {
            return Err(invalid);
        }
        let cost = self.cost;
        let mut parts = self.named;
        parts.iter_mut().for_each(|part| part.cost = cost);
        parts.extend_from_slice(self.given);
        self.gate.gate().shared.validate(&parts)?;
        Ok(parts)
    }
}

#[expect(private_bounds, reason = "only for the gates of this crate")]
impl<'a, G: Requests> RedisRequest<'a, G> {
    /// Waits at most this long in [`acquire`](RedisRequest::acquire). Refuses at once if that cannot suffice.
    pub fn timeout(self, timeout: Duration) -> RedisRequest<'a, G, WaitDeadline> {
        self.with_deadline(WaitDeadline::after(timeout))
    }

    /// Waits at most until this instant, like [`timeout`](RedisRequest::timeout).
    pub fn deadline(self, deadline: Instant) -> RedisRequest<'a, G, WaitDeadline> {
        self.with_deadline(WaitDeadline(Some(deadline.into())))
    }

    fn with_deadline<D>(self, deadline: D) -> RedisRequest<'a, G, D> {
        let RedisRequest { gate, named, given, invalid, cost, .. } = self;
        RedisRequest { gate, named, given, invalid, cost, deadline }
    }

    /// Decides whether all rules allow the request now, and charges all of them or none.
    ///
    /// # Errors
    ///
    /// [`Error`] with [`invalid_request`](Error::invalid_request) if the request names no rule, an unknown rule, or one
    /// rule and key twice; or if it names a concurrency limit, whose permit comes with
    /// [`try_acquire`](RedisRequest::try_acquire). Neither a refusal nor an outage of Redis is an error.
    pub async fn check(self) -> Result<Decision, Error> {
        let gate = self.gate;
        let parts = self.valid_parts()?;
        gate.gate().without_permits(&parts)?;
        Ok(gate.check_valid(&parts).await.decision)
    }

    /// As [`check`](RedisRequest::check), with the decision of each rule.
    ///
    /// The list is empty if these decisions are unknown: because Redis did not decide, or because parts with different
    /// keys were decided one after another in a cluster.
    ///
    /// # Errors
    ///
    /// As [`check`](RedisRequest::check).
    pub async fn check_each(self) -> Result<Detailed, Error> {
        let gate = self.gate;
        let parts = self.valid_parts()?;
        gate.gate().without_permits(&parts)?;
        let Admission { decision, rules, .. } = gate.check_each_valid(&parts).await;
        Ok(Detailed { decision, rules })
    }

    /// Decides whether all rules allow the request now, charges all of them or none, and takes the permits of its
    /// concurrency limits.
    ///
    /// # Errors
    ///
    /// [`AcquireError`] with the rule that refused, or with an [`InvalidRequest`].
    pub async fn try_acquire(self) -> Result<Admission, AcquireError> {
        let gate = self.gate;
        let parts = self.valid_parts()?;
        gate.gate().allowed(&parts, gate.check_valid(&parts).await, None)
    }

    /// Decides as [`try_acquire`](RedisRequest::try_acquire) would, and charges nothing. A cost of 0 queries the
    /// remaining quota.
    ///
    /// # Errors
    ///
    /// [`Error`] if the request is invalid, or Redis did not decide.
    pub async fn peek(self) -> Result<Decision, Error> {
        let gate = self.gate;
        gate.peek_valid(&self.valid_parts()?).await
    }

    /// Refunds what a recent charge took of each rate limit, never above the limit.
    ///
    /// Permits of concurrency limits are released by dropping them.
    ///
    /// # Errors
    ///
    /// [`Error`] if the request is invalid, or Redis did not reply.
    pub async fn refund(self) -> Result<(), Error> {
        let gate = self.gate;
        gate.refund_valid(&self.valid_parts()?).await
    }

    /// Forgets the recorded usage of each rule for its key, and every permit held on it. The cost plays no part.
    ///
    /// # Errors
    ///
    /// As [`refund`](RedisRequest::refund).
    pub async fn reset(self) -> Result<(), Error> {
        let gate = self.gate;
        gate.reset_valid(&self.valid_parts()?).await
    }
}

impl RedisRequest<'_, RedisGate> {
    /// Takes as much of the cost as all rate limits have left, possibly nothing. Concurrency limits are left out.
    ///
    /// In a cluster, different amounts may be taken for different keys; the result is the smallest.
    ///
    /// # Errors
    ///
    /// [`Error`] if the request is invalid, or Redis did not decide.
    pub async fn take(self) -> Result<Taken, Error> {
        let gate = self.gate;
        gate.take_valid(&self.valid_parts()?).await
    }
}

impl<D: Into<WaitDeadline>> RedisRequest<'_, RedisGate, D> {
    /// Waits until all rules allow the request, charges all of them, and takes the permits of its concurrency limits.
    ///
    /// Waiters of this process queue for the state that refused them, first come, first served, and only the first
    /// waiter of a queue sends requests to Redis. There is no order between waiters of different processes, nor between
    /// waiters and plain checks.
    ///
    /// # Errors
    ///
    /// [`AcquireError`]: the timeout cannot suffice or did not, the cost exceeds what a limit can ever allow, or the
    /// request is invalid.
    pub async fn acquire(self) -> Result<Admission, AcquireError>
    where
        D: Copy,
    {
        let (gate, deadline) = (self.gate, self.deadline.into());
        gate.acquire_valid(&self.valid_parts()?, deadline).await
    }
}

impl<G, D> fmt::Debug for RedisRequest<'_, G, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisRequest").field("cost", &self.cost).finish_non_exhaustive()
    }
}

// === impl RedisLimiter ===

#[expect(private_bounds, reason = "only for the gates of this crate")]
impl<G: Requests> RedisLimiter<G> {
    /// Decides whether a cost of 1 may pass for `key` now, and charges it if it may.
    ///
    /// Without Redis, the rule follows its `on_outage` setting; [`Decision::source`] says how it was decided.
    pub async fn check<'k>(&self, key: impl Into<Key<'k>>) -> Decision {
        self.request_for(key.into()).check().await
    }

    /// Begins a request for `key`.
    pub fn request<'k>(&'k self, key: impl Into<Key<'k>>) -> KeyRequest<'k, G> {
        self.request_for(key.into())
    }

    fn request_for<'k>(&'k self, key: Key<'k>) -> KeyRequest<'k, G> {
        KeyRequest { gate: &self.gate, part: Part::of(self.rule).key(key), deadline: () }
    }
}

impl RedisLimiter {
    /// Waits until a cost of 1 may pass for `key`, and charges it. See [`RedisRequest::acquire`].
    ///
    /// # Errors
    ///
    /// [`AcquireError`] if the cost exceeds what the limit can ever allow.
    pub async fn acquire<'k>(&self, key: impl Into<Key<'k>>) -> Result<Decision, AcquireError> {
        self.request_for(key.into()).acquire().await
    }
}

impl<G: fmt::Debug> fmt::Debug for RedisLimiter<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLimiter").field("rule", &self.rule).field("gate", &self.gate).finish()
    }
}

// === impl KeyRequest ===

impl<G, D> KeyRequest<'_, G, D> {
    /// What the request takes of the limit: 1 unless set.
    pub fn cost(mut self, cost: u32) -> Self {
        self.part.cost = cost;
        self
    }
}

#[expect(private_bounds, reason = "only for the gates of this crate")]
impl<'a, G: Requests> KeyRequest<'a, G> {
    /// Waits at most this long in [`acquire`](KeyRequest::acquire). Refuses at once if that cannot suffice.
    pub fn timeout(self, timeout: Duration) -> KeyRequest<'a, G, WaitDeadline> {
        let KeyRequest { gate, part, .. } = self;
        KeyRequest { gate, part, deadline: WaitDeadline::after(timeout) }
    }

    /// Waits at most until this instant, like [`timeout`](KeyRequest::timeout).
    pub fn deadline(self, deadline: Instant) -> KeyRequest<'a, G, WaitDeadline> {
        let KeyRequest { gate, part, .. } = self;
        KeyRequest { gate, part, deadline: WaitDeadline(Some(deadline.into())) }
    }

    /// Decides whether the cost may pass now, and charges it if it may.
    ///
    /// Without Redis, the rule follows its `on_outage` setting; [`Decision::source`] says how it was decided.
    pub async fn check(self) -> Decision {
        self.gate.check_valid(&[self.part]).await.decision
    }

    /// Decides as [`check`](KeyRequest::check) would, and charges nothing. A cost of 0 queries the remaining quota.
    ///
    /// # Errors
    ///
    /// [`Error`] if Redis did not decide.
    pub async fn peek(self) -> Result<Decision, Error> {
        self.gate.peek_valid(&[self.part]).await
    }

    /// Refunds what a recent charge took, never above the limit.
    ///
    /// # Errors
    ///
    /// [`Error`] if Redis did not reply.
    pub async fn refund(self) -> Result<(), Error> {
        self.gate.refund_valid(&[self.part]).await
    }

    /// Forgets the recorded usage of the key. The cost plays no part.
    ///
    /// # Errors
    ///
    /// [`Error`] if Redis did not reply.
    pub async fn reset(self) -> Result<(), Error> {
        self.gate.reset_valid(&[self.part]).await
    }
}

impl KeyRequest<'_, RedisGate> {
    /// Takes as much of the cost as is left, possibly nothing.
    ///
    /// # Errors
    ///
    /// [`Error`] if Redis did not decide.
    pub async fn take(self) -> Result<Taken, Error> {
        self.gate.take_valid(&[self.part]).await
    }
}

impl<D: Into<WaitDeadline> + Copy> KeyRequest<'_, RedisGate, D> {
    /// Waits until the cost may pass, and charges it. See [`RedisRequest::acquire`].
    ///
    /// # Errors
    ///
    /// [`AcquireError`] if the timeout cannot suffice or did not, or the cost exceeds what the limit can ever allow.
    pub async fn acquire(self) -> Result<Decision, AcquireError> {
        let admission = self.gate.acquire_valid(&[self.part], self.deadline.into()).await?;
        Ok(admission.decision)
    }
}

impl<G, D> fmt::Debug for KeyRequest<'_, G, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRequest").field("part", &self.part).finish_non_exhaustive()
    }
}
