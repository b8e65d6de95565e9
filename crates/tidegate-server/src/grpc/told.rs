//! # What is told
//!
//! A status for each descriptor. Whole seconds, rounded up: Envoy cuts them, and whoever comes back too early is
//! refused again.

use tidegate::{Decision, Source};

use super::Headers;
use super::generated::messages::{
    Duration, HeaderValue, ListValue, RateLimitResponse, RateLimitResponseCode as Code,
    RateLimitResponseDescriptorStatus as DescriptorStatus, RateLimitResponseRateLimit as CurrentLimit,
    Struct, StructFieldsEntry, Value,
};
use super::unit::per_unit;
use crate::engine::{Decided, InForce, Verdict};
use crate::rules::Limit;

/// Of the rules, beside the statuses.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// Whether a store did not answer, and rules did what they say for that.
    is_degraded: bool,
    /// The rules that only watch and would have refused.
    would_refuse: Vec<String>,
}

impl Beside {
    pub(super) fn note<C>(&mut self, rules: &InForce<C>, decided: &Decided) {
        let source = decided.decision().map(|decision| decision.source);
        self.is_degraded |= matches!(source, Some(Source::Local | Source::Open | Source::Closed));
        let name =
            decided.would_refuse.and_then(|rule| Some(rules.compiled().rule(rule as usize)?.name.clone()));
        self.would_refuse.extend(name.filter(|name| !self.would_refuse.contains(name)));
    }

    /// For access logs and whoever else looks at it in Envoy.
    fn metadata(self) -> Option<Struct> {
        let mut fields = Vec::new();
        if self.is_degraded {
            fields.push(field("degraded", Value { bool_value: Some(true), ..Value::default() }));
        }
        if !self.would_refuse.is_empty() {
            let text = |name| Value { string_value: Some(name), ..Value::default() };
            let values = self.would_refuse.into_iter().map(text).collect();
            let list_value = Some(ListValue { values });
            fields.push(field("would_refuse", Value { list_value, ..Value::default() }));
        }
        if fields.is_empty() {
            return None;
        }
        let ours = Value { struct_value: Some(Struct { fields }), ..Value::default() };
        Some(Struct { fields: vec![field("tidegate", ours)] })
    }
}

fn field(key: &str, value: Value) -> StructFieldsEntry {
    StructFieldsEntry { key: key.to_owned(), value: Some(value) }
}

/// What became of one descriptor.
pub(super) fn status<C>(rules: &InForce<C>, decided: &Decided) -> DescriptorStatus {
    let none = DescriptorStatus::default();
    match decided.verdict {
        Verdict::Limited(decision) => limited(rules, &decision),
        Verdict::Unlimited => DescriptorStatus { code: Code::OK, ..none },
        Verdict::Exempt => DescriptorStatus { code: Code::OK, limit_remaining: u32::MAX, ..none },
        Verdict::Denied | Verdict::Refused { .. } => DescriptorStatus { code: Code::OVER_LIMIT, ..none },
    }
}

fn limited<C>(rules: &InForce<C>, decision: &Decision) -> DescriptorStatus {
    let is_allowed = decision.is_allowed();
    let wait = decision.retry_after().filter(|_| !is_allowed).unwrap_or(decision.reset_after());
    DescriptorStatus {
        code: if is_allowed { Code::OK } else { Code::OVER_LIMIT },
        current_limit: Some(current_limit(rules, decision)),
        limit_remaining: if is_allowed { small(decision.remaining()) } else { 0 },
        duration_until_reset: Some(seconds(wait.as_secs_up())),
    }
}

fn current_limit<C>(rules: &InForce<C>, decision: &Decision) -> CurrentLimit {
    let said = rules.limit(decision.rule).and_then(|numbered| match &numbered.limit {
        Limit::Rate(rate) => per_unit(rate),
        Limit::AtOnce { .. } => None,
    });
    let (requests_per_unit, unit) = said.unwrap_or((small(decision.limit()), 0));
    CurrentLimit { requests_per_unit, unit, name: rules.name(decision.rule).to_owned() }
}

/// All of it.
pub(super) fn response(
    statuses: Vec<DescriptorStatus>,
    beside: Beside,
    headers: Headers,
) -> RateLimitResponse {
    let is_over = statuses.iter().any(|status| status.code == Code::OVER_LIMIT);
    let response_headers_to_add = match headers {
        Headers::None => Vec::new(),
        Headers::RateLimit => rate_limit_headers(&statuses),
    };
    RateLimitResponse {
        overall_code: if is_over { Code::OVER_LIMIT } else { Code::OK },
        statuses,
        response_headers_to_add,
        dynamic_metadata: beside.metadata(),
        ..RateLimitResponse::default()
    }
}

/// Of the last descriptor that is over its limit, or else of the one with the least left.
fn rate_limit_headers(statuses: &[DescriptorStatus]) -> Vec<HeaderValue> {
    let limited = || statuses.iter().filter_map(|status| Some((status, status.current_limit.as_ref()?)));
    let over = limited().rfind(|(status, _)| status.code == Code::OVER_LIMIT);
    let Some((status, limit)) = over.or_else(|| limited().min_by_key(|(status, _)| status.limit_remaining))
    else {
        return Vec::new();
    };
    let reset = status.duration_until_reset.as_ref().map_or(0, |reset| reset.seconds);
    let mut all = vec![
        header("RateLimit-Limit", limit.requests_per_unit),
        header("RateLimit-Remaining", status.limit_remaining),
        header("RateLimit-Reset", reset),
    ];
    all.extend((status.code == Code::OVER_LIMIT).then(|| header("Retry-After", reset.max(1))));
    all
}

fn header(key: &str, value: impl ToString) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value: value.to_string(), raw_value: Vec::new() }
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}

pub(super) fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
