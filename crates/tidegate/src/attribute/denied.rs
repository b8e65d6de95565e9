//! # Denied calls
//!
//! The error names the function, the limit that denied the call, and when to retry. How the error reaches the caller
//! depends on what the function returns: [`FromDenied`].
//!
//! A macro sees names and not types, so it cannot tell whether a function returns a `Result`: `io::Result`, an alias and
//! a custom response are all valid. So the error is returned through a trait, which every `Result` with a suitable error
//! implements. If a return type does not implement it, the compiler prints the message of the trait. The macro itself
//! rejects only what it can see: a function that returns nothing, or an opaque type.

use std::error::Error;
use std::fmt;

use super::{CallLimit, LimitedFunction};
use crate::error::AcquireError;
use crate::gate::InvalidRequest;
use tidegate_core::{Decision, RuleId, Wait};

/// The error of a denied call. Nothing was charged, and the function did not run.
///
/// ```
/// use tidegate::{attribute::CallDenied, rate_limit};
///
/// #[derive(Debug)]
/// enum MailError {
///     TooMany(CallDenied),
/// }
/// impl From<CallDenied> for MailError {
///     fn from(denied: CallDenied) -> Self {
///         MailError::TooMany(denied)
///     }
/// }
///
/// #[rate_limit("1/day", key = to)]
/// fn send(to: &str) -> Result<(), MailError> {
///     Ok(())
/// }
/// send("alice").unwrap();
/// let MailError::TooMany(denied) = send("alice").unwrap_err();
/// assert_eq!((denied.function(), denied.limit().unwrap().to_string()), ("send", "1/day".to_owned()));
/// assert_eq!(denied.retry_after().unwrap().as_secs_up(), 86_400);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallDenied {
    pub(super) function: &'static LimitedFunction,
    pub(super) reason: DenialReason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DenialReason {
    /// The gate refused the call.
    Decided(Decision),
    /// The call was not admitted to wait, or did not pass in time.
    Waited(AcquireError),
    /// The request is not valid for the limiter that was given.
    Invalid(InvalidRequest),
    /// The call may pass later, and there is no timer to wait with.
    #[cfg_attr(feature = "tokio", expect(dead_code, reason = "with `tokio` there is always a timer here"))]
    NoTimer(Decision),
}

impl CallDenied {
    /// The name of the function.
    #[must_use]
    pub const fn function(&self) -> &'static str {
        self.function.function()
    }

    /// The limit that denied the call, as written in the attribute.
    ///
    /// `None` if the function uses a custom limiter.
    #[must_use]
    pub fn limit(&self) -> Option<CallLimit> {
        self.function.limit(self.rule())
    }

    /// The rule that denied the call.
    ///
    /// The limits of a function are numbered from 0. A custom limiter has its own numbers.
    #[must_use]
    pub fn rule(&self) -> RuleId {
        match &self.reason {
            DenialReason::Decided(decision) | DenialReason::NoTimer(decision) => decision.rule,
            DenialReason::Waited(error) => error.rule_id(),
            DenialReason::Invalid(
                InvalidRequest::UnknownRule { rule, .. } | InvalidRequest::SameKeyTwice { rule },
            ) => *rule,
            DenialReason::Invalid(_) => RuleId(0),
        }
    }

    /// The time until the same call would pass, if no other call comes first.
    ///
    /// `None` if it would never pass, or if the time is unknown.
    #[must_use]
    pub fn retry_after(&self) -> Option<Wait> {
        match &self.reason {
            DenialReason::Decided(decision) => decision.retry_after(),
            DenialReason::Waited(error) => error.retry_after(),
            DenialReason::Invalid(_) | DenialReason::NoTimer(_) => None,
        }
    }

    /// The whole decision, with limit and reset for headers.
    ///
    /// `None` if a wait was refused or timed out, or if the request was not valid for its limiter.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        match self.reason {
            DenialReason::Decided(decision) | DenialReason::NoTimer(decision) => Some(decision),
            DenialReason::Waited(_) | DenialReason::Invalid(_) => None,
        }
    }
}

impl fmt::Display for CallDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit() {
            Some(limit) => write!(f, "{} is limited to {limit}: ", self.function())?,
            None => write!(f, "{} is limited: ", self.function())?,
        }
        match &self.reason {
            DenialReason::Decided(decision) => decision.fmt(f),
            DenialReason::Waited(error) => error.fmt(f),
            DenialReason::Invalid(invalid) => write!(f, "invalid request to its limiter: {invalid}"),
            DenialReason::NoTimer(decision) => {
                write!(
                    f,
                    "{decision}, but there is no timer to wait with; enable the feature `tokio` of `tidegate`"
                )
            }
        }
    }
}

impl Error for CallDenied {}

/// A return type that can report that a call was denied.
///
/// Implemented for every `Result` with an error that is `From<CallDenied>`. Implement it for other types, such as a
/// response, to limit functions that return them.
///
/// ```
/// use tidegate::{attribute::{CallDenied, FromDenied}, rate_limit};
///
/// struct Page(u16);
/// impl FromDenied for Page {
///     fn from_denied(_: CallDenied) -> Self {
///         Page(429)
///     }
/// }
///
/// #[rate_limit("1/day")]
/// fn index() -> Page {
///     Page(200)
/// }
/// assert_eq!((index().0, index().0), (200, 429));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot report a denied call",
    label = "returned by a function with `#[rate_limit]`",
    note = "return `Result<_, E>` with an `E` that implements `From<tidegate::attribute::CallDenied>`",
    note = "or add a fallback function with the same arguments: `otherwise = …`"
)]
pub trait FromDenied {
    /// Converts the denial to the return type.
    fn from_denied(denied: CallDenied) -> Self;
}

impl<T, E: From<CallDenied>> FromDenied for Result<T, E> {
    fn from_denied(denied: CallDenied) -> Self {
        Err(denied.into())
    }
}
