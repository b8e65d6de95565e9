//! # HTTP rule
//!
//! The gate knows the quota of a rule. This module has what only the request can tell, the key and the cost, and what
//! concerns only the client side: what is reported, and whether the rule is a shadow.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::http::StatusCode;

use super::fast_path::{FastPath, Shortcut};
use super::fields::{Fields, ShownRule, ShownState, Unit};
use super::head::Head;
use super::key::RuleKey;
use super::retry;
use crate::gate::Remaining;
use tidegate_core::{Decision, Outcome, Quota, RuleId};

/// How much of a rule is reported to clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expose {
    /// Everything: the quota, what remains, when to retry.
    ///
    /// For limits that clients are meant to keep.
    #[default]
    Quota,
    /// Only when to retry.
    ///
    /// For limits against abuse: their numbers would help clients to stay just below them.
    RetryAfterOnly,
    /// Nothing, apart from the refusal.
    Hidden,
}

/// The counters of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleStats {
    /// The name of the rule.
    pub name: String,
    /// How many requests it refused.
    pub refused: u64,
    /// As a shadow: how many requests it would have refused.
    pub would_refuse: u64,
    /// As a shadow: how many requests it would have allowed.
    pub would_allow: u64,
    /// How many requests lacked the key.
    ///
    /// They were not limited by the rule, or were refused for it.
    pub missing: u64,
}

pub(super) type Cost = Arc<dyn Fn(&Head<'_>) -> u32 + Send + Sync>;

/// A rule of [`Limits`](super::Limits).
pub(super) struct HttpRule {
    pub(super) name: Arc<str>,
    pub(super) id: RuleId,
    pub(super) key: Arc<dyn RuleKey>,
    pub(super) shortcut: Box<dyn Shortcut>,
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
    /// The seconds until a refused request passes, else until the whole limit is back.
    pub(super) within: u64,
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
    pub(super) fn new(name: &str, key: Arc<dyn RuleKey>, shortcut: Box<dyn Shortcut>) -> Self {
        HttpRule {
            name: name.into(),
            id: RuleId(0),
            key,
            shortcut,
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
    /// It must decide immediately, and on all requests.
    pub(super) fn fast_path(&self, fields: Fields) -> FastPath {
        match (fields, self.cost.is_none()) {
            (Fields::None, true) => FastPath::InlineKey,
            (Fields::None, false) => FastPath::Plain,
            (_, true) if self.is_shown() => FastPath::WithQuota,
            _ => FastPath::None,
        }
    }

    /// The status of a refusal.
    ///
    /// 429 for the client's own limit, 503 if too many requests of all clients are in progress.
    pub(super) fn status(&self, outcome: Outcome) -> StatusCode {
        let usual = match outcome {
            Outcome::Busy if self.key.is_global() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::TOO_MANY_REQUESTS,
        };
        self.status.unwrap_or(usual)
    }

    /// The quota to report for a decision of this rule, the `number`th.
    ///
    /// `None` if the rule is not reported to clients.
    pub(super) fn left(&self, number: u8, decision: &Decision) -> Option<RuleQuota> {
        let within = match decision.outcome {
            Outcome::RetryAfter(wait) => retry::seconds(wait),
            _ => decision.reset_after().as_secs_up(),
        };
        let is_refusal = !decision.is_allowed();
        let remaining = if is_refusal { 0 } else { decision.remaining() };
        let left = || RuleQuota { rule: number, limit: decision.limit(), remaining, within, is_refusal };
        self.is_shown().then(left)
    }

    /// The quota to report if a request has passed the only rule.
    #[inline]
    pub(super) fn left_of(standing: Remaining) -> RuleQuota {
        let Remaining { limit, remaining, reset_after } = standing;
        RuleQuota { rule: 0, limit, remaining, within: reset_after.as_secs_up(), is_refusal: false }
    }

    fn is_shown(&self) -> bool {
        self.expose == Expose::Quota && !self.is_shadow
    }

    /// The rule as clients see it.
    ///
    /// The limit that the gate returned is used if no quota is configured.
    pub(super) fn shown(&self, limit: Option<u64>) -> Option<ShownRule<'_>> {
        let (quota, window) = match (self.quota, limit) {
            (Some(quota), _) => (quota.limit(), Some(seconds_up(quota))),
            (None, Some(limit)) => (limit, None),
            (None, None) => return None,
        };
        self.is_shown().then_some(ShownRule { name: &self.name, quota, window, unit: self.unit })
    }

    /// Whether each report of the rule is the same, apart from what remains.
    pub(super) fn is_told_alike(&self) -> bool {
        self.quota.is_some() || !self.is_shown()
    }

    pub(super) fn state(&self, left: &RuleQuota) -> Option<ShownState<'_>> {
        let rule = self.shown(Some(left.limit))?;
        Some(ShownState { rule, remaining: left.remaining, within: left.within })
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
fn seconds_up(quota: Quota) -> u64 {
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
