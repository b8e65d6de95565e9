//! # Denied calls
//!
//! The error names the function, which of its limits refused, and when to retry. How the error reaches the caller
//! depends on what the function returns: [`FromDenied`].
//!
//! The attribute cannot look for a `Result`: a macro sees names and not types, and `io::Result`, an alias and
//! a custom response are all valid. So a refusal is returned through a trait, which every `Result` with a
//! fitting error implements. Where it is missing, the compiler prints the message of the trait. The macro
//! itself reports only what it can see: that a function returns nothing, or an opaque type.

use std::error::Error;
use std::fmt;

use super::{Call, Limit};
use crate::gate::InvalidRequest;
use crate::reservation::WaitRefused;
use tidegate_core::{Decision, RuleId, Wait};

/// A call that was denied. Nothing was charged, and the function did not run.
///
/// ```
/// use tidegate::{attribute::Denied, rate_limit};
///
/// #[derive(Debug)]
/// enum MailError {
///     TooMany(Denied),
/// }
/// impl From<Denied> for MailError {
///     fn from(denied: Denied) -> Self {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    pub(super) call: &'static Call,
    pub(super) why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The gate refused the call.
    Decided(Decision),
    /// The call was not admitted to wait, or did not pass in time.
    Waited { rule: RuleId, why: WaitRefused },
    /// The request is not valid for the limiter that was given.
    Invalid(InvalidRequest),
    /// The call may pass later, and there is no timer to wait with.
    #[cfg_attr(feature = "tokio", expect(dead_code, reason = "with `tokio` there is always a timer here"))]
    NoTimer(Decision),
}

impl Denied {
    /// The name of the function.
    #[must_use]
    pub const fn function(&self) -> &'static str {
        self.call.function()
    }

    /// The limit that refused, as it is written at the function.
    ///
    /// `None` if the function uses a custom limiter.
    #[must_use]
    pub fn limit(&self) -> Option<Limit> {
        self.call.limit(self.rule())
    }

    /// The number of the rule that refused.
    ///
    /// The limits of the function are counted from 0; a custom limiter has its own numbers.
    #[must_use]
    pub const fn rule(&self) -> RuleId {
        match self.why {
            Why::Decided(decision) | Why::NoTimer(decision) => decision.rule,
            Why::Waited { rule, .. } => rule,
            Why::Invalid(
                InvalidRequest::UnknownRule { rule, .. } | InvalidRequest::SameKeyTwice { rule },
            ) => rule,
            Why::Invalid(_) => RuleId(0),
        }
    }

    /// How long until the same call would pass, if no other call comes first.
    ///
    /// `None` if it never would, or if the time is unknown.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Wait> {
        match self.why {
            Why::Decided(decision) => decision.retry_after(),
            Why::Waited { why: WaitRefused::TooLong { wait, .. }, .. } => Some(wait),
            Why::Waited { why: WaitRefused::TooManyKeys { retry_after }, .. } => Some(retry_after),
            Why::Waited { .. } | Why::Invalid(_) | Why::NoTimer(_) => None,
        }
    }

    /// The whole decision, with limit and reset for headers.
    ///
    /// `None` if the call was to wait and could not, or was not valid for its limiter.
    #[must_use]
    pub const fn decision(&self) -> Option<Decision> {
        match self.why {
            Why::Decided(decision) | Why::NoTimer(decision) => Some(decision),
            Why::Waited { .. } | Why::Invalid(_) => None,
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit() {
            Some(limit) => write!(f, "{} is limited to {limit}: ", self.function())?,
            None => write!(f, "{} is limited: ", self.function())?,
        }
        match self.why {
            Why::Decided(decision) => decision.fmt(f),
            Why::Waited { why, .. } => why.fmt(f),
            Why::Invalid(invalid) => write!(f, "its limiter cannot be asked like this: {invalid}"),
            Why::NoTimer(decision) => {
                write!(
                    f,
                    "{decision}, and there is nothing to wait by; enable the feature `tokio` of tidegate"
                )
            }
        }
    }
}

impl Error for Denied {}

/// A return type that can report that a call was denied.
///
/// Every `Result` can if its error is `From<Denied>`. Implement this for a type of your own, such as a response, and
/// functions that return it can be annotated, too.
///
/// ```
/// use tidegate::{attribute::{Denied, FromDenied}, rate_limit};
///
/// struct Page(u16);
/// impl FromDenied for Page {
///     fn from_denied(_: Denied) -> Self {
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
    message = "`{Self}` cannot say that a call was refused",
    label = "returned by a function with `#[rate_limit]`",
    note = "return `Result<_, E>` with an `E` that is `From<tidegate::attribute::Denied>`",
    note = "or name a function that is called instead, with the same arguments: `otherwise = …`"
)]
pub trait FromDenied {
    /// Converts the denial to the return type.
    fn from_denied(denied: Denied) -> Self;
}

impl<T, E: From<Denied>> FromDenied for Result<T, E> {
    fn from_denied(denied: Denied) -> Self {
        Err(denied.into())
    }
}
