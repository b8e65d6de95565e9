//! # A function and its limits
//!
//! The limits are known at compile time, so they are in a static of the function. The static creates the limiter on the
//! first call, and converts the answer of a gate into permits, or into an error that names the function.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use super::CallDenied;
use super::denied::DenialReason;
use crate::error::AcquireError;
use crate::gate::{Admission, Answer, InvalidRequest, Permits};
use crate::policy::Policy;
use crate::wait::block;
use tidegate_core::{Decision, Outcome, Rule, RuleId};

/// A function and its limits, as written in its attribute.
///
/// ```
/// use tidegate::attribute::{CallLimit, LimitedFunction};
/// use tidegate::gate::{Gate, Part, RuleId};
///
/// static SEND: LimitedFunction = LimitedFunction::new("send", &[CallLimit::Rate("1/day"), CallLimit::Concurrency(10)]);
/// let request = [Part::of(RuleId(0)).key("alice"), Part::of(RuleId(1))];
/// let permits = SEND.check(SEND.limiter().decide(&request)).unwrap();
/// assert_eq!(permits.len(), 1); // held while the function runs
/// let denied = SEND.check(SEND.limiter().decide(&request)).unwrap_err();
/// assert_eq!(denied.limit(), Some(CallLimit::Rate("1/day")));
/// ```
pub struct LimitedFunction {
    function: &'static str,
    limits: &'static [CallLimit],
    limiter: OnceLock<Policy>,
}

/// One limit of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallLimit {
    /// A rate, as the text of a [`Rule`].
    Rate(&'static str),
    /// The maximum number of concurrent calls.
    Concurrency(u32),
}

impl LimitedFunction {
    /// Creates a function with this name and these limits.
    ///
    /// `limits` is empty if the function uses a custom limiter.
    #[must_use]
    pub const fn new(function: &'static str, limits: &'static [CallLimit]) -> Self {
        LimitedFunction { function, limits, limiter: OnceLock::new() }
    }

    /// Returns the limiter for these limits. Rule 0 is the first limit.
    ///
    /// The first call creates it.
    ///
    /// # Panics
    ///
    /// If there are no limits, or the text of one of them is not a rule. The attribute produces neither: it parses the
    /// texts with the same parser when the function is compiled.
    pub fn limiter(&self) -> &Policy {
        self.limiter.get_or_init(|| policy(self.limits))
    }

    /// Returns the permits of an allowed call, or why it is denied.
    ///
    /// Blocks the thread if the answer is pending or requires a wait. Async tasks use
    /// [`check_async`](LimitedFunction::check_async) instead.
    ///
    /// # Errors
    ///
    /// [`CallDenied`], if the call is not allowed.
    pub fn check(&'static self, answer: Answer<'_>) -> Result<Permits, CallDenied> {
        let admission = match answer {
            Answer::Ready(answer) => answer,
            Answer::Pending(answer) => block(answer),
        };
        let (permits, wait) = self.admit(admission)?;
        if let Some((wait, _)) = wait {
            std::thread::sleep(wait);
        }
        Ok(permits)
    }

    /// As [`check`](LimitedFunction::check), for async tasks.
    ///
    /// # Errors
    ///
    /// [`CallDenied`], if the call is not allowed; also if it would have to wait and the feature `tokio`, which provides
    /// the timer, is disabled.
    pub async fn check_async(&'static self, answer: Answer<'_>) -> Result<Permits, CallDenied> {
        let (permits, wait) = self.admit(answer.wait().await)?;
        #[cfg(feature = "tokio")]
        if let Some((wait, _)) = wait {
            tokio::time::sleep(wait).await;
        }
        #[cfg(not(feature = "tokio"))]
        if let Some((_, decision)) = wait {
            return Err(self.denied(DenialReason::NoTimer(decision)));
        }
        Ok(permits)
    }

    /// Returns the permits of a call that has waited at its gate, or why it is denied.
    ///
    /// See [`WaitingGate`](crate::gate::WaitingGate) and [`BlockingGate`](crate::gate::BlockingGate).
    ///
    /// # Errors
    ///
    /// [`CallDenied`], if the call is not allowed.
    pub fn check_waited(
        &'static self,
        answer: Result<Admission, AcquireError>,
    ) -> Result<Permits, CallDenied> {
        match answer {
            Ok(admission) => self.admit(Ok(admission)).map(|(permits, _)| permits),
            // The rules of the function's own limiter have numbers for names; the message has the limit itself.
            Err(error) if !self.limits.is_empty() => Err(self.denied(DenialReason::Waited(error.unnamed()))),
            Err(error) => Err(self.denied(DenialReason::Waited(error))),
        }
    }

    /// The permits, and the wait before they may be used, if there is one.
    fn admit(
        &'static self,
        answer: Result<Admission, InvalidRequest>,
    ) -> Result<(Permits, Option<(Duration, Decision)>), CallDenied> {
        let Admission { decision, permits, .. } =
            answer.map_err(|invalid| self.denied(DenialReason::Invalid(invalid)))?;
        match decision.outcome {
            Outcome::Allowed => Ok((permits, None)),
            Outcome::AllowedAfter(wait) => Ok((permits, Some((wait.duration(), decision)))),
            Outcome::RetryAfter(_) | Outcome::Busy | Outcome::Never => {
                Err(self.denied(DenialReason::Decided(decision)))
            }
        }
    }

    fn denied(&'static self, reason: DenialReason) -> CallDenied {
        CallDenied { function: self, reason }
    }

    pub(super) const fn function(&self) -> &'static str {
        self.function
    }

    pub(super) fn limit(&self, rule: RuleId) -> Option<CallLimit> {
        self.limits.get(usize::from(rule.0)).copied()
    }
}

impl PartialEq for LimitedFunction {
    /// Compares the function and its limits, not what has been used of them.
    fn eq(&self, other: &Self) -> bool {
        (self.function, self.limits) == (other.function, other.limits)
    }
}

impl Eq for LimitedFunction {}

impl fmt::Debug for LimitedFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimitedFunction { function, limits, .. } = self;
        f.debug_struct("LimitedFunction")
            .field("function", function)
            .field("limits", limits)
            .finish_non_exhaustive()
    }
}

fn policy(limits: &[CallLimit]) -> Policy {
    let builder = limits.iter().enumerate().fold(Policy::builder(), |builder, (index, limit)| {
        let name = index.to_string();
        match *limit {
            CallLimit::Rate(text) => builder.rule(name, text.parse::<Rule>().expect("text of a rule")),
            CallLimit::Concurrency(limit) => builder.concurrency(name, limit),
        }
    });
    builder.build().expect("each limit has its index as its name")
}

/// Converts an integer of any type to a cost.
///
/// A number that is negative or does not fit 32 bits becomes `u32::MAX`, which is more than any limit allows.
///
/// ```
/// use tidegate::attribute::cost;
/// assert_eq!([cost(5u8), cost("text".len()), cost(-1)], [5, 4, u32::MAX]);
/// ```
#[must_use]
pub fn cost(cost: impl TryInto<u32>) -> u32 {
    cost.try_into().unwrap_or(u32::MAX)
}

/// Compiles only if async tasks have a timer, which the feature `tokio` provides.
///
/// A limit with a queue on an `async` function needs it.
///
/// # Panics
///
/// At compile time, without the feature `tokio`.
pub const fn require_async_timer() {
    if cfg!(not(feature = "tokio")) {
        panic!(
            "a limit with a queue on an async function needs a timer: enable the feature `tokio` of `tidegate`"
        );
    }
}

impl fmt::Display for CallLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallLimit::Rate(text) => f.write_str(text),
            CallLimit::Concurrency(limit) => write!(f, "{limit} concurrent"),
        }
    }
}
