//! # AcquireError: why a request did not get what it waited for
//!
//! One error for every limiter, policy and gate. Callers ask it questions ([`is_timeout`](AcquireError::is_timeout),
//! [`retry_after`](AcquireError::retry_after), …) instead of matching on variants, so a new reason breaks no program.
//! Inside the crate the reason is a plain enum, [`RefusalKind`], with the numbers that were compared.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::gate::InvalidRequest;
use tidegate_core::{Decision, Micros, Outcome, RuleId, Source, Wait};

/// Why a request did not pass, did not get a permit, or was not allowed to wait. Nothing was charged.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{KeyedLimiter, Quota};
///
/// let limiter = KeyedLimiter::<str>::new(Quota::per_hour(1));
/// assert!(limiter.request("alice").acquire_blocking().is_ok()); // there is nothing to wait for
///
/// let error = limiter.request("alice").timeout(Duration::from_secs(1)).acquire_blocking().unwrap_err();
/// assert!(error.is_timeout()); // refused at once: an hour is longer than a second
/// assert!(error.retry_after().unwrap().as_secs_up() > 3_590);
///
/// let error = limiter.request("alice").cost(5).acquire_blocking().unwrap_err();
/// assert!(error.is_never());
/// assert_eq!(error.to_string(), "cost 5 exceeds the limit of 1: it can never be allowed; use 1 or less");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct AcquireError {
    cause: Cause,
    rule: RuleId,
    name: Option<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Cause {
    Refused(RefusalKind),
    /// Boxed, so that results stay small.
    Invalid(Box<InvalidRequest>),
}

/// The reason of a refusal, with the numbers that were compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalKind {
    /// The wait would exceed the deadline. `within` is the time that was left until then; 0 if the request
    /// does not wait.
    TooLong { wait: Wait, within: Wait },
    /// The deadline passed in a wait queue, where the wait cannot be predicted.
    TimedOut { within: Wait },
    /// The queue is full.
    QueueFull { max_waiting: usize },
    /// The cost exceeds what the limit can ever allow at one instant.
    Never { cost: u32, limit: u64 },
    /// The request would pass only after the end of the time line, in the year 2255.
    BeyondTime { cost: u32 },
    /// The store is unavailable, and the rule refuses requests meanwhile.
    Outage { retry_after: Wait },
    /// The key is new, the maximum number of keys is reached, and none of them is idle.
    TooManyKeys { retry_after: Wait },
    /// Fewer permits are free than requested, or earlier requests wait for them. Only for requests that do not wait.
    Busy { cost: u32, limit: u32 },
}

impl RefusalKind {
    /// Returns the refusal for an instant `ready` that is after `deadline`, seen from `now`.
    pub(crate) fn too_long(now: Micros, ready: Micros, deadline: Micros) -> Self {
        let (wait, within) = (Wait::micros(ready.since(now)), Wait::micros(deadline.since(now)));
        RefusalKind::TooLong { wait, within }
    }

    /// Returns the refusal as an outcome, for callers that want a decision.
    pub(crate) fn outcome(self) -> Outcome {
        match self {
            RefusalKind::TooManyKeys { retry_after } if retry_after == Wait::default() => Outcome::Busy,
            RefusalKind::TooLong { wait, .. }
            | RefusalKind::TooManyKeys { retry_after: wait }
            | RefusalKind::Outage { retry_after: wait } => Outcome::RetryAfter(wait),
            RefusalKind::QueueFull { .. } | RefusalKind::TimedOut { .. } | RefusalKind::Busy { .. } => {
                Outcome::Busy
            }
            RefusalKind::Never { .. } | RefusalKind::BeyondTime { .. } => Outcome::Never,
        }
    }
}

// === impl AcquireError ===

impl AcquireError {
    /// Creates the error for a request that was refused with this decision and did not wait. For writers of a gate.
    ///
    /// A decision with [`Source::Closed`] becomes "the maximum number of keys is in use". For an outage, use
    /// [`outage`](AcquireError::outage).
    #[must_use]
    pub fn refused(decision: &Decision, cost: u32) -> Self {
        let limit = decision.limit();
        let refusal = match decision.outcome {
            Outcome::RetryAfter(retry_after) if decision.source == Source::Closed => {
                RefusalKind::TooManyKeys { retry_after }
            }
            Outcome::Busy if decision.source == Source::Closed => {
                RefusalKind::TooManyKeys { retry_after: Wait::default() }
            }
            Outcome::RetryAfter(wait) | Outcome::AllowedAfter(wait) => {
                RefusalKind::TooLong { wait, within: Wait::default() }
            }
            // An allowed decision is no refusal. A caller that passes one gets this error rather than a panic.
            Outcome::Allowed | Outcome::Busy => {
                RefusalKind::Busy { cost, limit: u32::try_from(limit).unwrap_or(u32::MAX) }
            }
            Outcome::Never => RefusalKind::Never { cost, limit },
        };
        AcquireError::from(refusal).of_rule(decision.rule)
    }

    /// Creates the error for a request that would have waited `timeout`, and was refused with this decision.
    ///
    /// The source of the decision is ignored: a new key for which there is no room is reported as a timeout. For writers
    /// of a gate.
    #[must_use]
    pub fn timed_out(decision: &Decision, cost: u32, timeout: Duration) -> Self {
        let within = Wait::micros(u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX));
        let refusal = match decision.outcome {
            Outcome::RetryAfter(wait) | Outcome::AllowedAfter(wait) => RefusalKind::TooLong { wait, within },
            // An allowed decision is no refusal, as in `refused`.
            Outcome::Allowed | Outcome::Busy => RefusalKind::TimedOut { within },
            Outcome::Never => RefusalKind::Never { cost, limit: decision.limit() },
        };
        AcquireError::from(refusal).of_rule(decision.rule)
    }

    /// Creates the error for a rule that refuses requests while its store is unavailable. For writers of a gate.
    #[must_use]
    pub fn outage(decision: &Decision) -> Self {
        let retry_after = decision.retry_after().unwrap_or_default();
        AcquireError::from(RefusalKind::Outage { retry_after }).of_rule(decision.rule)
    }

    /// The same error, attributed to a rule of a gate. For writers of a gate.
    #[must_use]
    pub fn of_rule(self, rule: RuleId) -> Self {
        AcquireError { rule, ..self }
    }

    /// The same error, with the name of its rule. For writers of a gate.
    #[must_use]
    pub fn named(self, name: Arc<str>) -> Self {
        AcquireError { name: Some(name), ..self }
    }

    /// The same error without the name of its rule.
    #[cfg(feature = "macros")]
    pub(crate) fn unnamed(self) -> Self {
        AcquireError { name: None, ..self }
    }

    /// Whether the wait would exceed the timeout, or the timeout has passed.
    ///
    /// Also true if a rate limit refuses a request that does not wait.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self.refusal(), Some(RefusalKind::TooLong { .. } | RefusalKind::TimedOut { .. }))
    }

    /// Whether the cost exceeds what the limit can ever allow: a retry fails in the same way.
    #[must_use]
    pub fn is_never(&self) -> bool {
        matches!(self.refusal(), Some(RefusalKind::Never { .. } | RefusalKind::BeyondTime { .. }))
    }

    /// Whether the maximum number of requests was already waiting.
    #[must_use]
    pub fn is_queue_full(&self) -> bool {
        matches!(self.refusal(), Some(RefusalKind::QueueFull { .. }))
    }

    /// Whether there was no state to decide by.
    ///
    /// That is so if the maximum number of keys is in use, or the store is unavailable.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.refusal(), Some(RefusalKind::TooManyKeys { .. } | RefusalKind::Outage { .. }))
    }

    /// Whether too few permits were free, or earlier requests waited for them. Only for requests that do not wait.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self.refusal(), Some(RefusalKind::Busy { .. }))
    }

    /// The mistake in the request, if it could not be decided at all: for example an unknown rule.
    #[must_use]
    pub fn invalid_request(&self) -> Option<&InvalidRequest> {
        match &self.cause {
            Cause::Invalid(invalid) => Some(invalid),
            Cause::Refused(_) => None,
        }
    }

    /// The name of the rule that refused. `None` for a limiter without named rules.
    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The index of the refusing rule in its policy or gate; 0 for a single limit.
    #[must_use]
    pub fn rule_id(&self) -> RuleId {
        self.rule
    }

    /// How long to wait before the same request would pass, if that is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Wait> {
        match self.refusal()?.outcome() {
            Outcome::RetryAfter(wait) => Some(wait),
            _ => None,
        }
    }

    pub(crate) fn refusal(&self) -> Option<RefusalKind> {
        match self.cause {
            Cause::Refused(refusal) => Some(refusal),
            Cause::Invalid(_) => None,
        }
    }
}

impl From<RefusalKind> for AcquireError {
    fn from(refusal: RefusalKind) -> Self {
        AcquireError { cause: Cause::Refused(refusal), rule: RuleId(0), name: None }
    }
}

impl From<InvalidRequest> for AcquireError {
    fn from(invalid: InvalidRequest) -> Self {
        AcquireError { cause: Cause::Invalid(Box::new(invalid)), rule: RuleId(0), name: None }
    }
}

impl fmt::Debug for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Refused(refusal) => fmt::Debug::fmt(refusal, f)?,
            Cause::Invalid(invalid) => fmt::Debug::fmt(invalid, f)?,
        }
        self.name.as_ref().map_or(Ok(()), |name| write!(f, " of rule {name:?}"))
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "rule {name:?}: ")?;
        }
        match &self.cause {
            Cause::Refused(refusal) => refusal.fmt(f),
            Cause::Invalid(invalid) => invalid.fmt(f),
        }
    }
}

impl Error for AcquireError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        None // the message of an invalid request is part of this one
    }
}

impl fmt::Display for RefusalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            RefusalKind::TooLong { wait, within } if within == Wait::default() => {
                write!(f, "limit reached; retry after {wait}")
            }
            RefusalKind::TooLong { wait, within } => {
                write!(f, "the wait would be {wait}, longer than the timeout of {within}; retry after {wait}")
            }
            RefusalKind::TimedOut { within } => {
                write!(f, "timed out after {within}; retry later or use a longer timeout")
            }
            RefusalKind::QueueFull { max_waiting } => {
                write!(f, "the queue is full: {max_waiting} requests are waiting; retry later")
            }
            RefusalKind::Never { cost, limit } => {
                write!(
                    f,
                    "cost {cost} exceeds the limit of {limit}: it can never be allowed; use {limit} or less"
                )
            }
            RefusalKind::BeyondTime { cost } => {
                write!(
                    f,
                    "cost {cost} could be allowed only after the year 2255, the end of the time line; use a smaller cost"
                )
            }
            RefusalKind::TooManyKeys { retry_after } if retry_after == Wait::default() => {
                f.write_str("the maximum number of keys is in use; retry later")
            }
            RefusalKind::TooManyKeys { retry_after } => {
                write!(f, "the maximum number of keys is in use; retry after {retry_after}")
            }
            RefusalKind::Outage { retry_after } => {
                write!(
                    f,
                    "the store is unavailable, and the rule refuses requests in an outage (on_outage: closed); \
                     retry after {retry_after}"
                )
            }
            RefusalKind::Busy { limit: 0, .. } => {
                f.write_str("the limit is 0, so no request is allowed; raise it")
            }
            RefusalKind::Busy { cost, limit } => {
                write!(
                    f,
                    "{cost} of {limit} permits are not available: too few are free, or earlier requests wait for \
                     them; retry later or wait"
                )
            }
        }
    }
}
