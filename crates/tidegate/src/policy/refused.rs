//! # Why nobody is admitted
//!
//! A request that waits for a policy is admitted or told why not. Which rule it was is told too: several were asked.

use std::error::Error;
use std::fmt;

use crate::gate::InvalidRequest;
use crate::reservation::WaitRefused;
use tidegate_core::RuleId;

/// Why a [`Policy`](crate::Policy) did not let a request wait, or wait any longer. Nothing was charged.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{NotAdmitted, Part, Policy, Quota, WaitRefused};
///
/// let policy = Policy::builder().rule("user", Quota::per_hour(1)).build()?;
/// let request = [Part::of(policy.id("user").unwrap()).key("alice")];
/// assert!(policy.acquire_blocking(&request)?.is_allowed()); // there is nothing to wait for
///
/// match policy.acquire_blocking_timeout(&request, Duration::from_secs(1)) { // nor here: an hour is too long
///     Err(NotAdmitted::Refused { rule, why: WaitRefused::TooLong { .. } }) => {
///         assert_eq!(policy.name(rule), Some("user"));
///     }
///     other => unreachable!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotAdmitted {
    /// It is no request.
    Invalid(InvalidRequest),
    /// It has waited long enough, would wait in vain, or finds too many who wait.
    Refused {
        /// The rule that held it up.
        rule: RuleId,
        /// Why it does not wait for it.
        why: WaitRefused,
    },
}

impl From<InvalidRequest> for NotAdmitted {
    fn from(invalid: InvalidRequest) -> Self {
        NotAdmitted::Invalid(invalid)
    }
}

impl fmt::Display for NotAdmitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotAdmitted::Invalid(invalid) => invalid.fmt(f),
            NotAdmitted::Refused { rule, why } => write!(f, "rule {rule}: {why}"),
        }
    }
}

impl Error for NotAdmitted {}
