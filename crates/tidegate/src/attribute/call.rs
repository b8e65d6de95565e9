//! # A function and its limits
//!
//! The limits are known when the function is compiled, so they are a static of it. It creates the limiter of the
//! function on the first call, and turns the answer of a gate into permits, or into a refusal that names the function.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use super::Denied;
use super::denied::Why;
use crate::gate::{Admission, Answer, InvalidRequest, Permits};
use crate::policy::{NotAdmitted, Policy};
use crate::wait::block;
use tidegate_core::{Decision, Outcome, Rule, RuleId};

/// A function and its limits, as written in its attribute.
///
/// ```
/// use tidegate::{attribute::{Call, Limit}, Gate, Part, RuleId};
///
/// static SEND: Call = Call::of("send", &[Limit::Rate("1/day"), Limit::Concurrency(10)]);
/// let request = [Part::of(RuleId(0)).key("alice"), Part::of(RuleId(1))];
/// let permits = SEND.check(SEND.limiter().decide(&request)).unwrap();
/// assert_eq!(permits.len(), 1); // to be held while the function runs
/// let denied = SEND.check(SEND.limiter().decide(&request)).unwrap_err();
/// assert_eq!(denied.limit(), Some(Limit::Rate("1/day")));
/// ```
pub struct Call {
    function: &'static str,
    limits: &'static [Limit],
    limiter: OnceLock<Policy>,
}

/// One limit of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// A rate: the text of a [`Rule`].
    Rate(&'static str),
    /// The maximum number of concurrent calls.
    Concurrency(u32),
}

impl Call {
    /// A function of this name.
    ///
    /// There are no limits if the function uses a custom limiter.
    #[must_use]
    pub const fn of(function: &'static str, limits: &'static [Limit]) -> Self {
        Call { function, limits, limiter: OnceLock::new() }
    }

    /// The limiter for these limits, created on first use: rule 0 is the first of them.
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
    /// Blocks the thread if the answer is pending, or requires a wait. Tasks must not call it unless neither can
    /// happen.
    ///
    /// # Errors
    ///
    /// [`Denied`], if the call is not allowed.
    pub fn check(&'static self, answer: Answer<'_>) -> Result<Permits, Denied> {
        let admission = match answer {
            Answer::Ready(answer) => answer,
            Answer::Pending(answer) => block(answer),
        };
        let (permits, wait) = self.let_in(admission)?;
        if let Some((wait, _)) = wait {
            std::thread::sleep(wait);
        }
        Ok(permits)
    }

    /// As [`check`](Call::check), for tasks.
    ///
    /// # Errors
    ///
    /// [`Denied`], if the call is not allowed; also if it is allowed after a wait and there is no timer, because the
    /// feature `tokio` is disabled.
    pub async fn check_later(&'static self, answer: Answer<'_>) -> Result<Permits, Denied> {
        let (permits, wait) = self.let_in(answer.wait().await)?;
        #[cfg(feature = "tokio")]
        if let Some((wait, _)) = wait {
            tokio::time::sleep(wait).await;
        }
        #[cfg(not(feature = "tokio"))]
        if let Some((_, decision)) = wait {
            return Err(self.denied(Why::NoTimer(decision)));
        }
        Ok(permits)
    }

    /// Returns the permits of a call that has waited, or why it is denied.
    ///
    /// See [`WaitingGate`](crate::WaitingGate) and [`BlockingGate`](crate::BlockingGate).
    ///
    /// # Errors
    ///
    /// [`Denied`], if the call is not allowed.
    pub fn waited(&'static self, answer: Result<Admission, NotAdmitted>) -> Result<Permits, Denied> {
        match answer {
            Ok(admission) => self.let_in(Ok(admission)).map(|(permits, _)| permits),
            Err(NotAdmitted::Invalid(invalid)) => Err(self.denied(Why::Invalid(invalid))),
            Err(NotAdmitted::Refused { rule, why }) => Err(self.denied(Why::Waited { rule, why })),
        }
    }

    /// The permits, and the wait before they may be used, if there is one.
    fn let_in(
        &'static self,
        answer: Result<Admission, InvalidRequest>,
    ) -> Result<(Permits, Option<(Duration, Decision)>), Denied> {
        let Admission { decision, permits, .. } =
            answer.map_err(|invalid| self.denied(Why::Invalid(invalid)))?;
        match decision.outcome {
            Outcome::Allowed => Ok((permits, None)),
            Outcome::AllowedAfter(wait) => Ok((permits, Some((wait.duration(), decision)))),
            Outcome::RetryAfter(_) | Outcome::Busy | Outcome::Never => {
                Err(self.denied(Why::Decided(decision)))
            }
        }
    }

    fn denied(&'static self, why: Why) -> Denied {
        Denied { call: self, why }
    }

    pub(super) const fn function(&self) -> &'static str {
        self.function
    }

    pub(super) fn limit(&self, rule: RuleId) -> Option<Limit> {
        self.limits.get(usize::from(rule.0)).copied()
    }
}

impl PartialEq for Call {
    /// Compares the function and its limits, not what has been used of them.
    fn eq(&self, other: &Self) -> bool {
        (self.function, self.limits) == (other.function, other.limits)
    }
}

impl Eq for Call {}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { function, limits, .. } = self;
        f.debug_struct("Call").field("function", function).field("limits", limits).finish_non_exhaustive()
    }
}

fn policy(limits: &[Limit]) -> Policy {
    let builder = limits.iter().enumerate().fold(Policy::builder(), |builder, (index, limit)| {
        let name = index.to_string();
        match *limit {
            Limit::Rate(text) => builder.rule(name, text.parse::<Rule>().expect("text of a rule")),
            Limit::Concurrency(limit) => builder.concurrency(name, limit),
        }
    });
    builder.build().expect("limits, each with its index for a name")
}

/// Converts a number of any type to a cost.
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

/// Compiles only if tasks have timers to wait with.
///
/// A limit with a queue on an `async` function needs them.
///
/// # Panics
///
/// At compile time, without the feature `tokio`.
pub const fn tasks_can_wait() {
    if cfg!(not(feature = "tokio")) {
        panic!("tasks wait in a queue with tokio's timers: enable the feature `tokio` of `tidegate`");
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Rate(text) => f.write_str(text),
            Limit::Concurrency(limit) => write!(f, "{limit} at once"),
        }
    }
}
