//! # HTTP rule
//!
//! The gate knows the quota of a rule. This module adds the HTTP side of the rule: how a request maps to a key and a
//! cost, what is reported to clients, and whether the rule is a shadow.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::http::StatusCode;

use super::fast_path::{FastCheck, FastPath};
use super::fields::{Fields, ReportedQuota, ReportedRule, Unit};
use super::head::Head;
use super::jitter;
use super::key::RuleKey;
use crate::gate::Remaining;
use tidegate_core::{Decision, Outcome, Quota, RuleId};

/// How much of a rule is reported to clients.
///
/// Set with [`LimitsBuilder::expose`](super::LimitsBuilder::expose).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expose {
    /// Everything: the quota, what remains, when to retry.
    ///
    /// For limits that clients are expected to respect.
    #[default]
    Quota,
    /// Only when to retry.
    ///
    /// For limits against abuse: their numbers would help clients to stay just below them.
    RetryAfterOnly,
    /// Nothing, apart from the refusal.
    Hidden,
}

/// Counters of a rule, since its limits were built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleStats {
    /// The name of the rule.
    pub name: String,
    /// The number of requests that the rule refused.
    pub refused: u64,
    /// As a shadow: the number of requests that it would have refused.
    pub would_refuse: u64,
    /// As a shadow: the number of requests that it would have allowed.
    pub would_allow: u64,
    /// The number of requests without the key of the rule.
    ///
    /// The rule was skipped for them, or they were refused, depending on the fallback of the key.
    pub missing: u64,
}

pub(super) type Cost = Arc<dyn Fn(&Head<'_>) -> u32 + Send + Sync>;

/// A rule of [`Limits`](super::Limits).
pub(super) struct HttpRule {
    pub(super) name: Arc<str>,
    pub(super) id: RuleId,
    pub(super) key: Arc<dyn RuleKey>,
    pub(super) fast_check: Box<dyn FastCheck>,
    pub(super) cost: Option<Cost>,
    pub(super) is_shadow: bool,
    pub(super) expose: Expose,
    pub(super) quota: Option<Quota>,
    pub(super) unit: Unit,
    pub(super) status: Option<StatusCode>,
    pub(super) counts: Counts,
}

/// The remaining quota of a rule, in the numbers that are reported to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuleQuota {
    /// The index of the rule in the limits.
    pub(super) rule: u8,
    /// The most that can pass at the same instant.
    pub(super) limit: u64,
    pub(super) remaining: u64,
    /// The seconds until a refused request would pass, otherwise until the full quota is back.
    pub(super) reset_secs: u64,
    /// Whether the rule refused the request.
    pub(super) is_refusal: bool,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) refused: AtomicU64,
    pub(super) would_refuse: AtomicU64,
    pub(super) would_allow: AtomicU64,
    pub(super) missing: AtomicU64,
}

/// Increments a counter.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl HttpRule {
    pub(super) fn new(name: &str, key: Arc<dyn RuleKey>, fast_check: Box<dyn FastCheck>) -> Self {
        HttpRule {
            name: name.into(),
            id: RuleId(0),
            key,
            fast_check,
            cost: None,
            is_shadow: false,
            expose: Expose::Quota,
            quota: None,
            unit: Unit::Requests,
            status: None,
            counts: Counts::default(),
        }
    }

    pub(super) fn cost(&self, head: &Head<'_>) -> u32 {
        self.cost.as_ref().map_or(1, |cost| cost(head))
    }

    /// The fast path if this is the only rule.
    ///
    /// Requires that the rule decides immediately and applies to every request.
    pub(super) fn fast_path(&self, fields: Fields) -> FastPath {
        match (fields, self.cost.is_none()) {
            (Fields::None, true) => FastPath::InlineKey,
            (Fields::None, false) => FastPath::Plain,
            (_, true) if self.is_reported() => FastPath::WithQuota,
            _ => FastPath::None,
        }
    }

    /// The status of a refusal.
    ///
    /// 429 for a limit of one client, 503 if a concurrency limit that all clients share is reached.
    pub(super) fn status(&self, outcome: Outcome) -> StatusCode {
        let default = match outcome {
            Outcome::Busy if self.key.is_global() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::TOO_MANY_REQUESTS,
        };
        self.status.unwrap_or(default)
    }

    /// The quota to report for a decision of this rule, the `number`th.
    ///
    /// `None` if the rule is not reported to clients.
    pub(super) fn report(&self, number: u8, decision: &Decision) -> Option<RuleQuota> {
        let reset_secs = match decision.outcome {
            Outcome::RetryAfter(wait) => jitter::retry_after_seconds(wait),
            _ => decision.reset_after().as_secs_up(),
        };
        let is_refusal = !decision.is_allowed();
        let remaining = if is_refusal { 0 } else { decision.remaining() };
        let quota = || RuleQuota { rule: number, limit: decision.limit(), remaining, reset_secs, is_refusal };
        self.is_reported().then(quota)
    }

    /// The quota to report if a request passed the only rule.
    #[inline]
    pub(super) fn report_remaining(remaining: Remaining) -> RuleQuota {
        let Remaining { limit, remaining, reset_after } = remaining;
        RuleQuota { rule: 0, limit, remaining, reset_secs: reset_after.as_secs_up(), is_refusal: false }
    }

    fn is_reported(&self) -> bool {
        self.expose == Expose::Quota && !self.is_shadow
    }

    /// The rule as clients see it.
    ///
    /// The limit that the gate returned is used if no quota is configured.
    pub(super) fn reported(&self, limit: Option<u64>) -> Option<ReportedRule<'_>> {
        let (quota, window) = match (self.quota, limit) {
            (Some(quota), _) => (quota.limit(), Some(period_secs(quota))),
            (None, Some(limit)) => (limit, None),
            (None, None) => return None,
        };
        self.is_reported().then_some(ReportedRule { name: &self.name, quota, window, unit: self.unit })
    }

    /// Whether the policy field of the rule is the same in every response.
    pub(super) fn has_constant_report(&self) -> bool {
        self.quota.is_some() || !self.is_reported()
    }

    pub(super) fn reported_quota(&self, quota: &RuleQuota) -> Option<ReportedQuota<'_>> {
        let rule = self.reported(Some(quota.limit))?;
        Some(ReportedQuota { rule, remaining: quota.remaining, reset_secs: quota.reset_secs })
    }

    pub(super) fn stats(&self) -> RuleStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RuleStats {
            name: self.name.to_string(),
            refused: read(&self.counts.refused),
            would_refuse: read(&self.counts.would_refuse),
            would_allow: read(&self.counts.would_allow),
            missing: read(&self.counts.missing),
        }
    }
}

/// The period in whole seconds, rounded up, and at least one.
fn period_secs(quota: Quota) -> u64 {
    let period = quota.period();
    period.as_secs().saturating_add(u64::from(period.subsec_nanos() > 0)).max(1)
}

impl fmt::Debug for HttpRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpRule")
            .field("name", &self.name)
            .field("id", &self.id)
            .field("is_shadow", &self.is_shadow)
            .field("expose", &self.expose)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}
