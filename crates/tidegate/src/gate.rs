//! # Gate: the interface between middleware and limits
//!
//! A request may have to pass several limits: the global one, that of its tenant, that of its user, and a limit on
//! operations in progress. It passes all of them or none. A [`Gate`] decides such a request:
//!
//! ```text
//!   request = │ global, "", 1 │ tenant, "acme", 1 │ user, "alice", 5 │     each part: rule, key, cost
//!                                        │
//!                                      Gate ──► Admission: a decision, and the permits that go with it
//! ```
//!
//! The interface is here, and not where states are stored: the place of the decision differs, from one compare-and-swap
//! in this process to a script in Redis, and the caller need not know. A [`Policy`](crate::Policy) is a gate with named
//! rules; each limiter of this crate is a gate with a single rule, number 0. So middleware works with all of them.
//!
//! Programs that only check limits do not need this module: every limiter and policy has
//! [requests](crate::Request) of its own.

mod limiters;
mod waiting;

pub use waiting::{BlockingGate, WaitingGate};

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::concurrency::{KeyedPermit, OwnedPermit};
pub use tidegate_core::RuleId;
use tidegate_core::{Decision, Denied, Wait};

/// Decides requests: a limiter, a policy, or a store such as Redis.
///
/// An answer that is known at once is [ready](Answer::Ready): no allocation, no task. An answer that comes over the
/// network is awaited; [`Answer::wait`] handles both.
pub trait Gate: Send + Sync {
    /// Decides whether all parts of `request` may pass now, and charges all of them or none.
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a>;

    /// Whether the request passes at once, without permits. If so it was charged; otherwise nothing was charged, and
    /// [`decide`](Gate::decide) says why.
    ///
    /// The fast path for callers that need no numbers. A gate without one returns `false`.
    fn passes(&self, request: &[Part<'_>]) -> bool {
        let _ = request;
        false
    }

    /// As [`passes`](Gate::passes), with the remaining quota.
    fn pass_with(&self, request: &[Part<'_>]) -> Option<Remaining> {
        let _ = request;
        None
    }

    /// As [`decide`](Gate::decide), with the decision of each part in [`Admission::rules`], as far as they are known.
    fn decide_each<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        self.decide(request)
    }

    /// The position of the rule with this name. A gate with a single rule returns that, whatever the name.
    fn rule(&self, name: &str) -> Option<RuleId> {
        let _ = name;
        Some(RuleId(0))
    }

    /// Whether every answer is [ready](Answer::Ready). Callers of such a gate need not keep the request.
    fn is_immediate(&self) -> bool {
        false
    }
}

/// What a request takes of one rule: a cost, for a key.
///
/// ```
/// use tidegate::gate::{Part, RuleId};
///
/// let global = Part::of(RuleId(0));
/// let user = Part::of(RuleId(1)).key("alice").cost(5);
/// assert_eq!((global.cost, user.cost), (1, 5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part<'a> {
    /// The rule, by its position in the gate.
    pub rule: RuleId,
    /// The identity that the limit applies to.
    pub key: Key<'a>,
    /// What the request takes.
    pub cost: u32,
}

/// The identity that a limit applies to: a text or any bytes. Empty for a limit that all requests share.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Key<'a>(&'a [u8]);

/// The numbers of a rule after a request has passed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// The most that can pass at one instant.
    pub limit: u64,
    /// The largest cost that would pass now.
    pub remaining: u64,
    /// How long until the full limit is available again.
    pub reset_after: Wait,
}

/// A future on the heap, for gates behind a pointer.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The answer of a gate: an admission, now or later.
pub enum Answer<'a> {
    /// The answer is known.
    Ready(Result<Admission, InvalidRequest>),
    /// The answer is on its way.
    Pending(BoxFuture<'a, Result<Admission, InvalidRequest>>),
}

/// The decision on a request, and the permits that come with it.
///
/// Only concurrency limits give permits, and only if the whole request may pass. Dropping the permits releases them.
#[derive(Debug)]
#[must_use = "an admission that is dropped at once releases its permits"]
pub struct Admission {
    /// The decision. Its [rule](Decision::rule) is the binding one.
    pub decision: Decision,
    /// The permits, held until they are dropped.
    pub permits: Permits,
    /// The decision of each part, in the order of the request, if that was requested.
    pub rules: Vec<Decision>,
}

/// The permits of a request, one for each of its concurrency limits.
#[derive(Debug, Default)]
#[must_use = "permits that are dropped at once limit nothing"]
pub struct Permits(pub(crate) Vec<AnyPermit>);

#[derive(Debug)]
pub(crate) enum AnyPermit {
    Owned(OwnedPermit),
    Keyed(KeyedPermit),
    Elsewhere(Box<dyn RemotePermit>),
}

/// A permit that is counted elsewhere, such as in Redis. Dropping it releases it.
pub trait RemotePermit: fmt::Debug + Send + Sync {
    /// Ends the work as successful.
    fn succeeded(self: Box<Self>);
    /// Ends the work as rejected or timed out by an overloaded service.
    fn overloaded(self: Box<Self>);
}

/// A request that cannot be decided, because it contains a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// It names no rule.
    Empty,
    /// It names a rule that does not exist.
    NoSuchRule {
        /// The name in the request.
        name: Box<str>,
        /// The names of the rules, separated by commas.
        known: Box<str>,
    },
    /// A part has a rule that the gate does not have.
    UnknownRule {
        /// The position of the rule.
        rule: RuleId,
        /// The number of rules.
        rules: usize,
    },
    /// It names the same rule and key twice.
    SameKeyTwice {
        /// The position of the rule.
        rule: RuleId,
    },
    /// It has more parts than the gate can decide together.
    TooManyParts {
        /// The number of parts.
        parts: usize,
        /// The maximum number of parts.
        most: usize,
    },
    /// It gives parts twice.
    PartsTwice,
    /// It checks a concurrency limit, without a place for the permit.
    NeedsPermit {
        /// The name of the rule.
        rule: Box<str>,
    },
    /// The rule is a concurrency limit where a rate limit is expected, or the other way round.
    WrongKind {
        /// The name of the rule.
        rule: Box<str>,
    },
}

impl<G: Gate + ?Sized> Gate for Arc<G> {
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        (**self).decide(request)
    }

    #[inline]
    fn passes(&self, request: &[Part<'_>]) -> bool {
        (**self).passes(request)
    }

    #[inline]
    fn pass_with(&self, request: &[Part<'_>]) -> Option<Remaining> {
        (**self).pass_with(request)
    }

    fn decide_each<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        (**self).decide_each(request)
    }

    fn rule(&self, name: &str) -> Option<RuleId> {
        (**self).rule(name)
    }

    fn is_immediate(&self) -> bool {
        (**self).is_immediate()
    }
}

// === impl Part ===

impl<'a> Part<'a> {
    /// A cost of 1, with the empty key.
    #[must_use]
    pub const fn of(rule: RuleId) -> Self {
        Part { rule, key: Key(&[]), cost: 1 }
    }

    /// The same, for this key.
    #[must_use]
    pub fn key(self, key: impl Into<Key<'a>>) -> Self {
        Part { key: key.into(), ..self }
    }

    /// The same, with this cost.
    #[must_use]
    pub const fn cost(self, cost: u32) -> Self {
        Part { cost, ..self }
    }
}

// === impl Key ===

impl<'a> Key<'a> {
    /// The bytes of the key.
    #[must_use]
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Whether it is the empty key, of a limit that all requests share.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> From<&'a str> for Key<'a> {
    fn from(text: &'a str) -> Self {
        Key(text.as_bytes())
    }
}

impl<'a> From<&'a String> for Key<'a> {
    fn from(text: &'a String) -> Self {
        Key(text.as_bytes())
    }
}

impl<'a> From<&'a [u8]> for Key<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Key(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Key<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Key(bytes)
    }
}

impl fmt::Debug for Key<'_> {
    /// Writes text as text, and other bytes escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(\"{}\")", self.0.escape_ascii())
    }
}

// === impl Remaining ===

impl From<Decision> for Remaining {
    #[inline]
    fn from(decision: Decision) -> Self {
        Remaining {
            limit: decision.limit(),
            remaining: decision.remaining(),
            reset_after: decision.reset_after(),
        }
    }
}

// === impl Answer ===

impl Answer<'_> {
    /// Waits for the answer, if it is not known yet.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] if the request contains a mistake.
    pub async fn wait(self) -> Result<Admission, InvalidRequest> {
        match self {
            Answer::Ready(answer) => answer,
            Answer::Pending(answer) => answer.await,
        }
    }
}

impl fmt::Debug for Answer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Ready(answer) => f.debug_tuple("Ready").field(answer).finish(),
            Answer::Pending(_) => f.write_str("Pending(..)"),
        }
    }
}

// === impl Admission ===

impl Admission {
    /// Wraps a decision that comes without permits. For writers of a gate.
    #[inline]
    pub const fn without_permits(decision: Decision) -> Self {
        Admission { decision, permits: Permits(Vec::new()), rules: Vec::new() }
    }

    /// Whether the request may pass, now or after a wait.
    #[inline]
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// This admission if it allows the request, or an error for `?` if it refuses.
    ///
    /// # Errors
    ///
    /// [`Denied`], carrying the decision.
    pub fn into_result(self) -> Result<Admission, Denied> {
        self.decision.into_result().map(|_| self)
    }
}

// === impl Permits ===

impl Permits {
    /// No permits. For writers of a gate.
    pub const fn none() -> Self {
        Permits(Vec::new())
    }

    /// The same permits and another one that is counted elsewhere. For writers of a gate.
    pub fn with(mut self, held: Box<dyn RemotePermit>) -> Self {
        self.0.push(AnyPermit::Elsewhere(held));
        self
    }

    /// The same permits and those of another admission.
    pub fn and(mut self, others: Permits) -> Self {
        self.0.extend(others.0);
        self
    }

    /// The number of permits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no permits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the work as successful: see [`Permit::succeeded`](crate::Permit::succeeded).
    pub fn succeeded(self) {
        self.0.into_iter().for_each(|permit| match permit {
            AnyPermit::Owned(permit) => permit.succeeded(),
            AnyPermit::Keyed(permit) => permit.succeeded(),
            AnyPermit::Elsewhere(permit) => permit.succeeded(),
        });
    }

    /// Ends the work as rejected or timed out by an overloaded service: see
    /// [`Permit::overloaded`](crate::Permit::overloaded).
    pub fn overloaded(self) {
        self.0.into_iter().for_each(|permit| match permit {
            AnyPermit::Owned(permit) => permit.overloaded(),
            AnyPermit::Keyed(permit) => permit.overloaded(),
            AnyPermit::Elsewhere(permit) => permit.overloaded(),
        });
    }
}

impl From<KeyedPermit> for AnyPermit {
    fn from(permit: KeyedPermit) -> Self {
        AnyPermit::Keyed(permit)
    }
}

impl From<OwnedPermit> for AnyPermit {
    fn from(permit: OwnedPermit) -> Self {
        AnyPermit::Owned(permit)
    }
}

// === impl InvalidRequest ===

impl InvalidRequest {
    /// Creates the error for a rule that does not exist. For writers of a gate.
    pub fn no_rule_named<N: AsRef<str>>(name: &str, known: impl IntoIterator<Item = N>) -> Self {
        let known: Vec<String> = known.into_iter().map(|name| format!("{:?}", name.as_ref())).collect();
        InvalidRequest::NoSuchRule { name: name.into(), known: known.join(", ").into() }
    }
}

impl fmt::Display for InvalidRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidRequest::Empty => f.write_str("the request names no rule; name at least one"),
            InvalidRequest::NoSuchRule { name, known } => {
                write!(f, "there is no rule {name:?}; the rules are {known}")
            }
            InvalidRequest::UnknownRule { rule, rules } => {
                write!(
                    f,
                    "there is no rule number {rule} among {rules} rules, counted from 0; find it by its name"
                )
            }
            InvalidRequest::SameKeyTwice { rule } => {
                write!(
                    f,
                    "the request names rule number {rule} twice for one key; name it once, with the sum of the costs"
                )
            }
            InvalidRequest::TooManyParts { parts, most } => {
                write!(
                    f,
                    "the request has {parts} parts, and this gate decides at most {most} together; use a policy"
                )
            }
            InvalidRequest::PartsTwice => {
                f.write_str("the request gives parts twice; give all of them in one slice")
            }
            InvalidRequest::NeedsPermit { rule } => write!(
                f,
                "rule {rule:?} is a concurrency limit, whose permit `check` would release at once; use `try_acquire`"
            ),
            InvalidRequest::WrongKind { rule } => write!(
                f,
                "rule {rule:?} is of the other kind; use `change` for a rate limit and `resize` for a concurrency limit"
            ),
        }
    }
}

impl Error for InvalidRequest {}

/// Checks that each part has a known rule, and that no two have the same rule and key. For writers of a gate.
///
/// # Errors
///
/// [`InvalidRequest`] if not.
pub fn validate(request: &[Part<'_>], rules: usize) -> Result<(), InvalidRequest> {
    if request.is_empty() {
        return Err(InvalidRequest::Empty);
    }
    for (index, part) in request.iter().enumerate() {
        let rule = part.rule;
        if usize::from(rule.0) >= rules {
            return Err(InvalidRequest::UnknownRule { rule, rules });
        }
        if request[..index].iter().any(|earlier| earlier.rule == rule && earlier.key == part.key) {
            return Err(InvalidRequest::SameKeyTwice { rule });
        }
    }
    Ok(())
}

/// As [`validate`], for a request of a few parts, without the reason.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "loops over numbers are unrolled, those over slices are not")]
pub(crate) fn is_valid<const N: usize>(request: &[Part<'_>; N], rules: usize) -> bool {
    for n in 0..N {
        let Part { rule, key, .. } = request[n];
        for earlier in 0..n {
            if request[earlier].rule == rule && request[earlier].key == key {
                return false;
            }
        }
        if usize::from(rule.0) >= rules {
            return false;
        }
    }
    true
}

/// Returns the only part of a request to a gate with a single rule.
///
/// # Errors
///
/// [`InvalidRequest`] if the request is another one.
#[inline]
pub(crate) fn only_part<'a>(request: &[Part<'a>]) -> Result<Part<'a>, InvalidRequest> {
    match request {
        [part] if part.rule == RuleId(0) => Ok(*part),
        _ => Err(not_one_part(request)),
    }
}

#[cold]
fn not_one_part(request: &[Part<'_>]) -> InvalidRequest {
    let too_many = InvalidRequest::TooManyParts { parts: request.len(), most: 1 };
    validate(request, 1).err().unwrap_or(too_many)
}
