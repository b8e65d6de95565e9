//! # Decisions
//!
//! Every limiter, policy and store answers with the same type. The fields that determine the caller's next step
//! (outcome, rule, source) are public. Limit, remaining and reset are computed on demand, because most callers of a
//! limiter that allows a million requests per second never read them.
//!
//! A wait stays a number of microseconds until the caller asks for a `Duration`, because making one takes a
//! division. Most callers only need to know whether they were refused.

use core::fmt;
use core::time::Duration;

use crate::Micros;
use crate::divisor::Divisor;

/// The decision on one request, with the numbers a client needs to behave well.
///
/// ```
/// use core::time::Duration;
/// use tidegate_core::{Algorithm, Micros, Outcome, Quota, TokenBucket, Wait};
///
/// let bucket = TokenBucket::new(Quota::per_second(10).burst(2));
/// let mut state = [0; 3];
/// assert_eq!(bucket.decide(&mut state, Micros::ZERO, 2).remaining(), 0);
///
/// let refused = bucket.decide(&mut state, Micros::ZERO, 1);
/// assert_eq!(refused.outcome, Outcome::RetryAfter(Wait::micros(100_000)));
/// assert_eq!(refused.reset_after(), Duration::from_millis(200));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// Whether the request may pass, and if not, when to retry.
    pub outcome: Outcome,
    /// The binding rule: the rule that refused, or the rule with the least remaining quota.
    pub rule: RuleId,
    /// How the decision was made.
    pub source: Source,
    at: Micros,
    level: Level,
}

/// Whether a request may pass, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request may pass now.
    Allowed,
    /// The request may pass, but only after this wait. Cannot be mistaken for `Allowed`.
    AllowedAfter(Wait),
    /// Refused. The request would pass exactly this much later, unless other requests take quota first.
    RetryAfter(Wait),
    /// Refused: all permits are in use, and it is not known when one will be free.
    Busy,
    /// Refused for good: the cost exceeds the most that the limit allows at one instant.
    Never,
}

/// A waiting time in microseconds.
///
/// It stays a number until converted to a [`Duration`]: most callers only check whether the request was refused.
///
/// ```
/// use core::time::Duration;
/// use tidegate_core::Wait;
/// let wait = Wait::micros(1_500_000);
/// assert_eq!(wait.duration(), Duration::from_millis(1_500));
/// assert_eq!(wait.as_secs_up(), 2); // for a `Retry-After` header
/// assert_eq!(wait.to_string(), "1.5s");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wait(u64);

/// The position of a rule in its policy, counted from 0. A single limit is rule 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u16);

/// How a decision was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// From the one exact state of the key.
    #[default]
    Strict,
    /// From tokens that were leased in advance.
    Lease,
    /// From this node's share of the limit, in an outage of the shared store.
    Local,
    /// Allowed without counting, in an outage: the rule is configured to fail open.
    Open,
    /// From a sketch, whose cells are shared by keys that had no room for their own state.
    ///
    /// Never more generous than the exact state. It may be stricter if other keys that share the cells have used more.
    Sketch,
    /// Refused without counting: there was no state to count in, and the rule fails closed.
    Closed,
}

/// The figures from which limit, remaining and reset are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// A debt in whole microseconds and q-ths of one, for a bucket with this token value.
    Owed { whole: u64, part: u64, token_value: TokenValue },
    /// Plain counts.
    Counted { limit: u64, remaining: u64, reset: u64 },
}

/// The value of a token and of a full bucket: `p` and `full` q-ths of a microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenValue {
    p: Divisor,
    q: u64,
    full: u64,
}

/// A request that was refused, as an error for `?`.
///
/// ```
/// use tidegate_core::{Algorithm, Denied, Micros, Quota, TokenBucket};
///
/// fn serve(bucket: &TokenBucket, state: &mut [u64; 3]) -> Result<(), Denied> {
///     bucket.decide(state, Micros::ZERO, 1).into_result()?;
///     Ok(())
/// }
/// let (bucket, mut state) = (TokenBucket::new(Quota::per_minute(1)), [0; 3]);
/// assert!(serve(&bucket, &mut state).is_ok());
/// assert_eq!(serve(&bucket, &mut state).unwrap_err().to_string(), "limit of 1 reached; retry after 60s");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The whole decision.
    pub decision: Decision,
}

// === impl Decision ===

impl Decision {
    #[inline]
    pub(crate) const fn new(outcome: Outcome, at: Micros, level: Level) -> Self {
        Decision { outcome, rule: RuleId(0), source: Source::Strict, at, level }
    }

    #[inline]
    pub(crate) const fn with_outcome(self, outcome: Outcome) -> Self {
        Decision { outcome, ..self }
    }

    #[inline]
    pub(crate) const fn with_level(self, level: Level) -> Self {
        Decision { level, ..self }
    }

    #[inline]
    pub(crate) const fn level(&self) -> Level {
        self.level
    }

    /// Creates a decision from plain numbers, as a store returns them.
    #[must_use]
    pub const fn counted(
        outcome: Outcome,
        at: Micros,
        limit: u64,
        remaining: u64,
        reset_after: Wait,
    ) -> Self {
        Decision::new(outcome, at, Level::Counted { limit, remaining, reset: reset_after.0 })
    }

    /// Creates a refusal made without any state: there was no room to count in.
    #[must_use]
    pub const fn closed(at: Micros, retry_after: Wait, limit: u64) -> Self {
        let level = Level::Counted { limit, remaining: 0, reset: 0 };
        let decision = Decision::new(Outcome::RetryAfter(retry_after), at, level);
        Decision { source: Source::Closed, ..decision }
    }

    /// The same decision, rebuilt field by field. The limiters that call it say why.
    #[doc(hidden)]
    #[expect(clippy::needless_match, reason = "taking the value apart is the purpose")]
    #[inline(always)]
    #[must_use]
    pub const fn rebuilt(self) -> Self {
        let outcome = match self.outcome {
            Outcome::Allowed => Outcome::Allowed,
            Outcome::AllowedAfter(wait) => Outcome::AllowedAfter(wait),
            Outcome::RetryAfter(wait) => Outcome::RetryAfter(wait),
            Outcome::Busy => Outcome::Busy,
            Outcome::Never => Outcome::Never,
        };
        let level = match self.level {
            Level::Owed { whole, part, token_value: TokenValue { p, q, full } } => {
                Level::Owed { whole, part, token_value: TokenValue { p, q, full } }
            }
            Level::Counted { limit, remaining, reset } => Level::Counted { limit, remaining, reset },
        };
        Decision { outcome, rule: self.rule, source: self.source, at: self.at, level }
    }

    /// Restates a decision made for a later instant, before which nothing may pass, at `now`.
    ///
    /// For limiters in which the time up to that instant is already reserved.
    #[doc(hidden)]
    #[must_use]
    pub const fn held_back(self, now: Micros) -> Self {
        let until_then = self.at.since(now);
        let outcome = match self.outcome {
            Outcome::Allowed | Outcome::AllowedAfter(_) => Outcome::RetryAfter(Wait(until_then)),
            Outcome::RetryAfter(Wait(wait)) => Outcome::RetryAfter(Wait(until_then.saturating_add(wait))),
            refused @ (Outcome::Busy | Outcome::Never) => refused,
        };
        let reset = self.reset_after().0.saturating_add(until_then);
        let level = Level::Counted { limit: self.limit(), remaining: 0, reset };
        Decision { outcome, at: now, level, ..self }
    }

    /// The same decision, attributed to rule `rule`.
    #[inline]
    #[must_use]
    pub const fn of_rule(self, rule: RuleId) -> Self {
        Decision { rule, ..self }
    }

    /// The same decision, with `earlier` added to its rule number.
    #[inline]
    pub(crate) const fn after(self, earlier: u16) -> Self {
        self.of_rule(RuleId(self.rule.0 + earlier))
    }

    /// Whether the request may pass, now or after a wait.
    #[inline]
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allowed | Outcome::AllowedAfter(_))
    }

    /// How long to wait before the same request would pass.
    ///
    /// `None` if the request passed, can never pass, or the time is not known.
    #[inline]
    #[must_use]
    pub const fn retry_after(&self) -> Option<Wait> {
        match self.outcome {
            Outcome::RetryAfter(wait) => Some(wait),
            _ => None,
        }
    }

    /// The instant at which the decision was made, on the deciding clock.
    #[inline]
    #[must_use]
    pub const fn at(&self) -> Micros {
        self.at
    }

    /// The most that can pass at one instant: the burst of a bucket, the limit of a window.
    #[inline]
    #[must_use]
    pub const fn limit(&self) -> u64 {
        match self.level {
            Level::Owed { token_value, .. } => token_value.p.quotient(token_value.full),
            Level::Counted { limit, .. } => limit,
        }
    }

    /// The largest cost that would pass now, after this decision. Rounded down.
    #[inline(always)]
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        match self.level {
            Level::Owed { whole, part, token_value } => token_value.tokens_left_beside(whole, part),
            Level::Counted { remaining, .. } => remaining,
        }
    }

    /// How long until the full limit is available, if no quota is taken.
    ///
    /// Rounded up to a microsecond.
    #[inline]
    #[must_use]
    pub const fn reset_after(&self) -> Wait {
        Wait::micros(match self.level {
            Level::Owed { whole, part, .. } => whole + (part > 0) as u64,
            Level::Counted { reset, .. } => reset,
        })
    }

    /// This decision if it allows the request, or an error for `?` if it refuses.
    ///
    /// # Errors
    /// [`Denied`], carrying the decision, for [`Outcome::RetryAfter`], [`Outcome::Busy`] and [`Outcome::Never`].
    #[inline]
    pub const fn into_result(self) -> Result<Decision, Denied> {
        if self.is_allowed() { Ok(self) } else { Err(Denied { decision: self }) }
    }

    /// The stricter of two decisions on one request.
    ///
    /// The order of the two, and of any chain, does not matter.
    /// A refusal is stricter than a pass, a longer wait than a shorter one, less remaining than more; between
    /// equals the rule that comes first.
    #[inline]
    #[must_use]
    pub fn and(self, other: Decision) -> Decision {
        if self.is_stricter_than(&other) { self } else { other }
    }

    /// Whether this decision is stricter. No two different rules are equally strict.
    #[inline]
    fn is_stricter_than(&self, other: &Decision) -> bool {
        let by_outcome = self.outcome.cmp(&other.outcome);
        let by_remaining = || other.remaining().cmp(&self.remaining());
        let by_reset = || self.reset_after().cmp(&other.reset_after());
        let by_rule = || other.rule.cmp(&self.rule);
        by_outcome.then_with(by_remaining).then_with(by_reset).then_with(by_rule).is_gt()
    }
}

impl fmt::Debug for Decision {
    /// Writes the numbers that the methods return, not the level they are computed from.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("outcome", &self.outcome)
            .field("rule", &self.rule.0)
            .field("source", &self.source)
            .field("limit", &self.limit())
            .field("remaining", &self.remaining())
            .field("reset_after", &self.reset_after())
            .finish()
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.outcome {
            Outcome::Allowed => write!(f, "allowed; {} of {} left", self.remaining(), self.limit()),
            Outcome::AllowedAfter(wait) => write!(f, "allowed after {wait}"),
            Outcome::RetryAfter(wait) => write!(f, "limit of {} reached; retry after {wait}", self.limit()),
            Outcome::Busy => write!(f, "all {} permits are in use; retry when one is free", self.limit()),
            Outcome::Never => {
                write!(f, "cost exceeds the limit of {}; it can never be allowed", self.limit())
            }
        }
    }
}

// === impl TokenValue ===

impl TokenValue {
    pub(crate) const fn new(p: u64, q: u64, full: u64) -> Self {
        TokenValue { p: Divisor::new(p), q, full }
    }

    /// The number of whole tokens left beside this debt.
    #[inline(always)]
    const fn tokens_left_beside(self, whole: u64, part: u64) -> u64 {
        let Some(owed) = whole.checked_mul(self.q) else { return 0 };
        let there = self.full.saturating_sub(owed).saturating_sub(part);
        self.p.quotient(there)
    }
}

// === impl Outcome ===

impl PartialOrd for Outcome {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Outcome {
    /// Orders from the most permissive to the strictest.
    #[inline]
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        let rank = |outcome: &Outcome| match *outcome {
            Outcome::Allowed => (0, Wait(0)),
            Outcome::AllowedAfter(wait) => (1, wait),
            Outcome::RetryAfter(wait) => (2, wait),
            // Stricter than `RetryAfter`: if both refuse, the time that `RetryAfter` promises may not hold.
            Outcome::Busy => (3, Wait(0)),
            Outcome::Never => (4, Wait(0)),
        };
        rank(self).cmp(&rank(other))
    }
}

// === impl Wait ===

impl Wait {
    /// A wait of this many microseconds.
    #[inline]
    #[must_use]
    pub const fn micros(micros: u64) -> Self {
        Wait(micros)
    }

    /// The wait as a [`Duration`], for sleeping.
    #[inline]
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_micros(self.0)
    }
}

impl Wait {
    /// The number of microseconds.
    #[inline]
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole seconds, rounded up for `Retry-After`, so that no client retries too early.
    #[inline]
    #[must_use]
    pub const fn as_secs_up(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }
}

impl PartialEq<Duration> for Wait {
    fn eq(&self, other: &Duration) -> bool {
        self.duration() == *other
    }
}

impl From<Wait> for Duration {
    fn from(wait: Wait) -> Self {
        wait.duration()
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.duration().fmt(f)
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

// === impl RuleId ===

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl Source ===

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Strict => "strict",
            Source::Lease => "lease",
            Source::Local => "local",
            Source::Open => "open",
            Source::Sketch => "sketch",
            Source::Closed => "closed",
        })
    }
}

// === impl Denied ===

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.decision.fmt(f)
    }
}

impl core::error::Error for Denied {}
