//! # A rule, seen from the request
//!
//! The gate knows how much a rule lets pass. Here is what only the request can tell: whose limit it is and what it
//! costs; and what only the client's side of it needs: what is shown, and whether the rule is only being tried out.

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

/// How much clients are told of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expose {
    /// All of it: the quota, what is left, when to come back. For limits that clients are meant to keep.
    #[default]
    Quota,
    /// Only when to come back. For limits against abuse, whose numbers would help to stay just below them.
    RetryAfterOnly,
    /// Nothing, apart from the refusal.
    Hidden,
}

/// What became of the requests under a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleStats {
    /// The name of the rule.
    pub name: String,
    /// How many it refused.
    pub refused: u64,
    /// In shadow: how many it would have refused.
    pub would_refuse: u64,
    /// In shadow: how many it would have let pass.
    pub would_allow: u64,
    /// How many lacked the key, and were not limited by it or were refused for it.
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

/// What is left of a rule, in the numbers that clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuleQuota {
    /// Which of the limits' rules.
    pub(super) rule: u8,
    /// The most that can pass at once.
    pub(super) limit: u64,
    pub(super) remaining: u64,
    /// Within so many seconds.
    pub(super) within: u64,
    /// Whether it was one that did not let the request pass.
    pub(super) is_refusal: bool,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) refused: AtomicU64,
    pub(super) would_refuse: AtomicU64,
    pub(super) would_allow: AtomicU64,
    pub(super) missing: AtomicU64,
}

/// One more.
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

    /// How short the way of requests is if this is the only rule, decides at once, and on all of them.
    pub(super) fn fast_path(&self, fields: Fields) -> FastPath {
        match (fields, self.cost.is_none()) {
            (Fields::None, true) => FastPath::InlineKey,
            (Fields::None, false) => FastPath::Plain,
            (_, true) if self.is_shown() => FastPath::WithQuota,
            _ => FastPath::None,
        }
    }

    /// 429 where it is the client's own limit, 503 where too many are at work whoever they are.
    pub(super) fn status(&self, outcome: Outcome) -> StatusCode {
        let usual = match outcome {
            Outcome::Busy if self.key.is_global() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::TOO_MANY_REQUESTS,
        };
        self.status.unwrap_or(usual)
    }

    /// What clients are told of this decision of the rule, which is the `number`th. `None` if that is nothing.
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

    /// What clients are told of the only rule if a request has passed it.
    #[inline]
    pub(super) fn left_of(standing: Remaining) -> RuleQuota {
        let Remaining { limit, remaining, reset_after } = standing;
        RuleQuota { rule: 0, limit, remaining, within: reset_after.as_secs_up(), is_refusal: false }
    }

    fn is_shown(&self) -> bool {
        self.expose == Expose::Quota && !self.is_shadow
    }

    /// As clients know it. What the gate said is the limit serves where nobody has said what the quota is.
    pub(super) fn shown(&self, limit: Option<u64>) -> Option<ShownRule<'_>> {
        let (quota, window) = match (self.quota, limit) {
            (Some(quota), _) => (quota.limit(), Some(seconds_up(quota))),
            (None, Some(limit)) => (limit, None),
            (None, None) => return None,
        };
        self.is_shown().then_some(ShownRule { name: &self.name, quota, window, unit: self.unit })
    }

    /// Whether clients are told always the same of it: what it is, but not what is left.
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

/// A window is a whole number of seconds, and at least one.
fn seconds_up(quota: Quota) -> u64 {
    let period = quota.period();
    period.as_secs().saturating_add(u64::from(period.subsec_nanos() > 0)).max(1)
}

impl fmt::Debug for HttpRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleOf")
            .field("name", &self.name)
            .field("id", &self.id)
            .field("is_shadow", &self.is_shadow)
            .field("expose", &self.expose)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}
