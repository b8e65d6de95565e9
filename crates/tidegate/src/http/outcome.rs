//! # Outcome of a request
//!
//! A request passes, with permits and with quotas to report to its client, or it is refused. Some outcomes take time.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::answer::Refusal;
use super::rule::RuleQuota;
use crate::gate::Permits;

/// Whether a request may pass.
#[derive(Debug)]
pub enum LimitOutcome {
    /// It may pass now.
    Pass(Passed),
    /// It is refused. Boxed: most requests pass, and all would pay for the size.
    Refuse(Box<Refusal>),
}

/// What goes with a request that may pass.
#[derive(Debug, Default)]
pub struct Passed {
    /// The permits, to be held until the response has been sent.
    pub permits: Permits,
    /// The remaining quotas of the rules, if they are reported to clients.
    pub decisions: Decisions,
}

/// The remaining quotas of the rules, if they are reported to clients.
#[derive(Clone, Debug, Default)]
pub struct Decisions(Told);

#[derive(Clone, Debug, Default)]
enum Told {
    #[default]
    Nothing,
    /// Of a single rule, the usual case: without a box.
    One(RuleQuota),
    Each(Box<[RuleQuota]>),
}

/// The outcome of a request, now or later.
#[derive(Debug)]
pub enum Evaluation {
    /// The outcome.
    Now(LimitOutcome),
    /// A future of the outcome. The check is in progress.
    Pending(PendingOutcome),
}

/// The future outcome of a check that is in progress.
#[must_use = "an outcome protects nothing until you act on it"]
pub struct PendingOutcome(pub(super) Pin<Box<dyn Future<Output = LimitOutcome> + Send>>);

impl Future for PendingOutcome {
    type Output = LimitOutcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LimitOutcome> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for PendingOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingOutcome(..)")
    }
}

impl Decisions {
    /// The quotas of these rules; of none if clients know none of them.
    pub(super) fn of(mut left: impl Iterator<Item = RuleQuota>) -> Self {
        match (left.next(), left.next()) {
            (Some(one), None) => Decisions(Told::One(one)),
            (one, another) => Decisions(Told::Each(one.into_iter().chain(another).chain(left).collect())),
        }
    }

    /// The quota of a single rule.
    #[inline]
    pub(super) const fn one(left: RuleQuota) -> Self {
        Decisions(Told::One(left))
    }

    /// Whether there is nothing to report.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        matches!(self.0, Told::Nothing)
    }

    pub(super) fn as_slice(&self) -> &[RuleQuota] {
        match &self.0 {
            Told::Nothing => &[],
            Told::One(one) => std::slice::from_ref(one),
            Told::Each(each) => each,
        }
    }
}
