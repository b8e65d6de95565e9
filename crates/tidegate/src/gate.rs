//! # Who answers
//!
//! A request asks for several things at once: a unit of everybody's limit, one of its tenant's, one of its user's, and
//! a place among those at work. It passes all of them or none. A [`Gate`] is whoever can answer such a request:
//!
//! ```text
//!   request = │ global, "", 1 │ tenant, "acme", 1 │ user, "alice", 5 │     each part: rule, key, cost
//!                                        │
//!                                      Gate ──► Admission: a decision, and the permits that go with it
//! ```
//!
//! The seam is here, and not where states are stored: *who decides* differs, from one compare-and-swap in this process to
//! a script in another, and the caller need not know. A [`Policy`](crate::Policy) is a gate with named rules; each
//! limiter of this crate is one with a single rule, number 0, so that whatever works with gates works with all of them.

mod limiters;
mod waiting;

pub use waiting::{Awaited, BlockingGate, Decided, WaitingGate};

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::concurrency::{KeyedPermit, OwnedPermit};
use tidegate_core::{Decision, Denied, RuleId, Wait};

/// Whoever can answer a request.
///
/// An answer that needs no waiting is [ready](Answer::Ready): no allocation, no task. One that comes from elsewhere is
/// to be awaited; [`Answer::wait`] does either.
pub trait Gate: Send + Sync {
    /// Decides whether all parts of `request` may pass now, and charges all of them if they may, else none.
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a>;

    /// Whether the request may pass at once, with nothing to hold. If so it was charged; if not, nothing was, and
    /// [`decide`](Gate::decide) tells why.
    ///
    /// The short way for those who need no numbers. A gate that has none says no.
    fn passes(&self, request: &[Part<'_>]) -> bool {
        let _ = request;
        false
    }

    /// As [`passes`](Gate::passes), with what is left then.
    fn pass_with(&self, request: &[Part<'_>]) -> Option<Remaining> {
        let _ = request;
        None
    }

    /// As [`decide`](Gate::decide), with what each part had to say in [`Admission::rules`], as far as the gate knows that.
    fn decide_each<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        self.decide(request)
    }

    /// The number of the rule with this name. A gate of a single rule has that one, whatever it is called.
    fn rule(&self, name: &str) -> Option<RuleId> {
        let _ = name;
        Some(RuleId(0))
    }

    /// Whether every answer is [ready](Answer::Ready). Who asks such a gate need not keep the request for later.
    fn is_immediate(&self) -> bool {
        false
    }
}

/// What a request asks of one rule: so much, for this key.
///
/// ```
/// use tidegate::{Part, RuleId};
///
/// let global = Part::of(RuleId(0));
/// let user = Part::of(RuleId(1)).key("alice").cost(5);
/// assert_eq!((global.cost, user.cost), (1, 5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part<'a> {
    /// The rule, by its number in the gate.
    pub rule: RuleId,
    /// Whose limit it is.
    pub key: Key<'a>,
    /// How much is asked for.
    pub cost: u32,
}

/// Whose limit it is: a text or any bytes. Empty where a limit is everybody's.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Key<'a>(&'a [u8]);

/// What is left of a rule after a request has passed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// The most that can pass at once.
    pub limit: u64,
    /// The largest cost that would pass now.
    pub remaining: u64,
    /// How long until the whole limit is there again.
    pub reset_after: Wait,
}

/// What a gate answers.
pub enum Answer<'a> {
    /// Already.
    Ready(Result<Admission, InvalidRequest>),
    /// Later.
    Pending(Pin<Box<dyn Future<Output = Result<Admission, InvalidRequest>> + Send + 'a>>),
}

/// The decision on a request, and the permits that were given with it.
///
/// Permits are given only by rules that count how many are at work, and only if the whole request may pass. Dropping
/// them makes room for the next.
#[derive(Debug)]
#[must_use = "a decision protects nothing until you act on it"]
pub struct Admission {
    /// What was decided. Its [rule](Decision::rule) is the one that was binding.
    pub decision: Decision,
    /// Leave to be at work, until dropped.
    pub permits: Permits,
    /// What each part had to say, in the order of the request, if that was asked for.
    pub rules: Vec<Decision>,
}

/// The permits of a request, one for each of its rules that counts how many are at work.
#[derive(Debug, Default)]
#[must_use = "permits that are dropped at once limit nothing"]
pub struct Permits(pub(crate) Vec<AnyPermit>);

#[derive(Debug)]
pub(crate) enum AnyPermit {
    Owned(OwnedPermit),
    Keyed(KeyedPermit),
    Elsewhere(Box<dyn RemotePermit>),
}

/// A permit of a gate that keeps its count elsewhere. Dropped, it is given back.
pub trait RemotePermit: fmt::Debug + Send + Sync {
    /// Ends the work as done.
    fn succeeded(self: Box<Self>);
    /// Ends the work as turned away by whoever is overloaded.
    fn overloaded(self: Box<Self>);
}

/// A request that cannot be answered, because it is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// It asks for nothing.
    Empty,
    /// It names a rule that the gate does not have.
    UnknownRule {
        /// The rule.
        rule: RuleId,
        /// How many there are.
        rules: usize,
    },
    /// It asks the same rule for the same key twice.
    SameKeyTwice {
        /// The rule.
        rule: RuleId,
    },
    /// It has more parts than the gate can decide on at once.
    TooManyParts {
        /// How many it has.
        parts: usize,
        /// How many it may have.
        most: usize,
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
    /// One unit of this rule, with the empty key.
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
    /// The bytes of it.
    #[must_use]
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Whether it is the key of a limit that is everybody's.
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
    /// As text as far as it is text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(\"{}\")", self.0.escape_ascii())
    }
}

// === impl Standing ===

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
    /// The answer, waited for if it is not there yet.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`], if it was none.
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
    /// For a decision that comes without permits. For those who write a gate.
    #[inline]
    pub const fn without_permits(decision: Decision) -> Self {
        Admission { decision, permits: Permits(Vec::new()), rules: Vec::new() }
    }

    /// Whether the request may pass, at once or after a wait.
    #[inline]
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// This admission if it allows, an error for `?` if it refuses.
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
    /// None yet. For those who write a gate.
    pub const fn none() -> Self {
        Permits(Vec::new())
    }

    /// With one more, that is counted elsewhere. For those who write a gate.
    pub fn with(mut self, held: Box<dyn RemotePermit>) -> Self {
        self.0.push(AnyPermit::Elsewhere(held));
        self
    }

    /// With those of another admission, too.
    pub fn and(mut self, others: Permits) -> Self {
        self.0.extend(others.0);
        self
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the work as done, for each of them: see [`Permit::succeeded`](crate::Permit::succeeded).
    pub fn succeeded(self) {
        self.0.into_iter().for_each(|permit| match permit {
            AnyPermit::Owned(permit) => permit.succeeded(),
            AnyPermit::Keyed(permit) => permit.succeeded(),
            AnyPermit::Elsewhere(permit) => permit.succeeded(),
        });
    }

    /// Ends the work as turned away by whoever is overloaded, for each of them: see
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

impl fmt::Display for InvalidRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            InvalidRequest::Empty => f.write_str("the request asks for nothing; name a rule at least"),
            InvalidRequest::UnknownRule { rule, rules } => {
                write!(f, "there is no rule {rule}, only {rules} from 0 on; ask the gate for its numbers")
            }
            InvalidRequest::SameKeyTwice { rule } => {
                write!(f, "rule {rule} is asked twice for one key; ask once, with the sum of the costs")
            }
            InvalidRequest::TooManyParts { parts, most } => {
                write!(
                    f,
                    "{parts} parts in one request, and this gate decides on {most} at once; use a policy"
                )
            }
        }
    }
}

impl Error for InvalidRequest {}

/// Whether each part names a rule there is, and no two the same rule and key. For those who write a gate.
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

/// The same of a request of a few parts, for those who need not know why not.
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

/// The only part of a request to a gate that has one rule and decides on one thing at a time.
///
/// # Errors
///
/// [`InvalidRequest`] if it is no such request.
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
