//! # Outcome of a request
//!
//! A request passes, with permits and with quotas to report to its client, or it is refused. The outcome may be pending.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::refusal::Refusal;
use super::rule::RuleQuota;
use crate::gate::Permits;

/// Whether a request passes or is refused.
#[derive(Debug)]
pub enum LimitOutcome {
    /// The request passes.
    Pass(Passed),
    /// The request is refused. Boxed, because it is large and most requests pass.
    Refuse(Box<Refusal>),
}

/// Permits and quota report of a request that passes.
#[derive(Debug, Default)]
pub struct Passed {
    /// The permits, to be held until the response has been sent.
    pub permits: Permits,
    /// The remaining quotas of the rules, if they are reported to clients.
    pub report: QuotaReport,
}

/// The remaining quotas to report to a client.
///
/// Added to a response by [`Limits::add_fields`](super::Limits::add_fields).
#[derive(Clone, Debug, Default)]
pub struct QuotaReport(Quotas);

#[derive(Clone, Debug, Default)]
enum Quotas {
    #[default]
    None,
    /// The quota of a single rule: the usual case, without an allocation.
    One(RuleQuota),
    Each(Box<[RuleQuota]>),
}

/// The outcome of a request, available now or pending.
#[derive(Debug)]
pub enum Evaluation {
    /// The outcome.
    Now(LimitOutcome),
    /// A future that resolves to the outcome. The check is in progress.
    Pending(PendingOutcome),
}

/// Resolves to the outcome of a check that is in progress.
#[must_use = "a request is not limited unless its outcome is awaited"]
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

impl QuotaReport {
    /// The quotas of these rules; may be empty if no rule is reported to clients.
    pub(super) fn of(mut quotas: impl Iterator<Item = RuleQuota>) -> Self {
        match (quotas.next(), quotas.next()) {
            (Some(one), None) => QuotaReport(Quotas::One(one)),
            (one, another) => {
                QuotaReport(Quotas::Each(one.into_iter().chain(another).chain(quotas).collect()))
            }
        }
    }

    /// The quota of a single rule.
    #[inline]
    pub(super) const fn one(quota: RuleQuota) -> Self {
        QuotaReport(Quotas::One(quota))
    }

    /// Whether there is nothing to report.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        matches!(self.0, Quotas::None)
    }

    pub(super) fn as_slice(&self) -> &[RuleQuota] {
        match &self.0 {
            Quotas::None => &[],
            Quotas::One(one) => std::slice::from_ref(one),
            Quotas::Each(each) => each,
        }
    }
}
