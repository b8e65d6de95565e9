//! # Response to a refused request
//!
//! 429 means that a limit of the client is reached. 503 means that the server is busy, whatever the client does. Both
//! say when to retry, must not be cached, and have a short body: RFC 9457's JSON for programs, a page for
//! browsers. A gRPC client gets a gRPC status, in the headers, because no body follows. A `HEAD` request gets no body.
//!
//! The body of the request is never read. A client that sent `Expect: 100-continue` therefore receives 429 instead of
//! 100. If it sends its body anyway, the server has to drain it or close the connection.

use std::fmt;
use std::sync::Arc;

use ::http::header::{
    ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
};
use ::http::{HeaderMap, Method, Response, StatusCode};

use super::fields::Fields;
use super::head::Head;
use super::jitter::{self, Jitter};
use super::negotiate::{grpc_kind, wants_html};
use super::outcome::QuotaReport;
use super::rule::{Expose, HttpRule, RuleQuota};
use tidegate_core::{Decision, Outcome, Wait};

/// A refused request: the reason, and the status and retry time of the default response.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Refusal {
    /// The reason.
    pub reason: RefusalReason,
    /// The name of the rule that refused the request.
    pub rule: Arc<str>,
    /// How much of the rule is reported to clients.
    pub expose: Expose,
    /// The status of the response.
    pub status: StatusCode,
    /// The time until a retry can pass, with jitter. `None` if it never can, or if it is hidden.
    pub retry_after: Option<Wait>,
    /// The remaining quotas to report to the client.
    report: QuotaReport,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The rule refused the request.
    Limit(Decision),
    /// The queue is full: the maximum number of requests is already waiting.
    QueueFull,
    /// The request lacks the key of the rule.
    MissingKey,
}

/// How refusals are sent, and which fields are added to every response.
pub(super) struct ResponseConfig {
    pub(super) fields: Fields,
    /// The policy field, if it is the same in every response.
    pub(super) policy: Option<HeaderValue>,
    /// The retry time if it is unknown when a permit will be free.
    pub(super) when_busy: Wait,
    pub(super) expose_to_browsers: bool,
    pub(super) jitter: Jitter,
    pub(super) page: Option<String>,
    pub(super) custom: Option<CustomResponse>,
}

type CustomResponse = Box<dyn Fn(&Head<'_>, &Refusal) -> Response<Vec<u8>> + Send + Sync>;

const QUOTA_EXCEEDED: Problem = Problem {
    kind: "quota-exceeded",
    title: "Request cannot be satisfied as assigned quota has been exceeded",
};
const REDUCED_CAPACITY: Problem = Problem {
    kind: "temporary-reduced-capacity",
    title: "Request cannot be satisfied due to temporary server capacity constraints",
};

struct Problem {
    kind: &'static str,
    title: &'static str,
}

/// The shortest retry time that can be sent.
const ONE_SECOND: Wait = Wait::micros(1_000_000);

impl Refusal {
    pub(super) fn new(
        rule: &HttpRule,
        reason: RefusalReason,
        report: QuotaReport,
        responses: &ResponseConfig,
    ) -> Self {
        let busy = responses.when_busy.max(longest(&report)); // not before the other rules that refused allow it
        let (status, wait) = match reason {
            RefusalReason::Limit(decision) => {
                (rule.status(decision.outcome), wait_of(decision.outcome, busy))
            }
            RefusalReason::QueueFull => (rule.status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE), Some(busy)),
            RefusalReason::MissingKey => (StatusCode::BAD_REQUEST, None),
        };
        let reported = wait.filter(|_| rule.expose != Expose::Hidden);
        let retry_after = reported.map(|wait| responses.jitter.add_to(wait));
        Refusal { reason, rule: rule.name.clone(), expose: rule.expose, status, retry_after, report }
    }

    /// The value of `Retry-After`, in seconds.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map(jitter::retry_after_seconds)
    }

    /// The close code for a WebSocket, if a message on it is refused.
    ///
    /// 1008 (policy violation) for a limit of the client, and 1013 (try again later) if the server is busy. An upgrade
    /// request is refused like any other request.
    #[must_use]
    pub fn close_code(&self) -> u16 {
        if self.status == StatusCode::SERVICE_UNAVAILABLE { 1013 } else { 1008 }
    }

    /// The decision, if there was one.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        match self.reason {
            RefusalReason::Limit(decision) => Some(decision),
            RefusalReason::QueueFull | RefusalReason::MissingKey => None,
        }
    }
}

/// When the last of the rules that refused allows the request, in whole seconds.
fn longest(report: &QuotaReport) -> Wait {
    let refused = report.as_slice().iter().filter(|quota| quota.is_refusal);
    let seconds = refused.map(|quota| quota.reset_secs).max().unwrap_or(0);
    Wait::micros(seconds.saturating_mul(1_000_000))
}

fn wait_of(outcome: Outcome, busy: Wait) -> Option<Wait> {
    match outcome {
        Outcome::RetryAfter(wait) | Outcome::AllowedAfter(wait) => Some(wait),
        Outcome::Busy => Some(busy),
        Outcome::Allowed | Outcome::Never => None,
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            RefusalReason::Limit(decision) => write!(f, "rule {:?}: {decision}", self.rule),
            RefusalReason::QueueFull => write!(f, "rule {:?}: the queue is full; retry later", self.rule),
            RefusalReason::MissingKey => {
                write!(f, "rule {:?}: the request lacks the key of the rule", self.rule)
            }
        }
    }
}

// === impl ResponseConfig ===

impl Default for ResponseConfig {
    fn default() -> Self {
        ResponseConfig {
            fields: Fields::None,
            policy: None,
            when_busy: ONE_SECOND,
            expose_to_browsers: false,
            jitter: Jitter::default(),
            page: None,
            custom: None,
        }
    }
}

impl ResponseConfig {
    /// Builds the response to a refused request, with the fields for these rules.
    pub(super) fn refuse(&self, head: &Head<'_>, refusal: &Refusal, rules: &[HttpRule]) -> Response<Vec<u8>> {
        if let Some(custom) = &self.custom {
            return custom(head, refusal);
        }
        let mut response = match grpc_kind(head.headers) {
            Some(kind) => grpc(refusal, kind),
            None => self.problem(head, refusal, rules),
        };
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if refusal.decision().is_some() {
            self.add_fields(headers, rules, refusal.report.as_slice());
        } else {
            self.add_cors(headers);
        }
        response
    }

    /// Precomputes what is the same in every response.
    pub(super) fn prepare(&mut self, rules: &[HttpRule]) {
        let is_same = rules.iter().all(HttpRule::has_constant_report);
        self.policy = is_same
            .then(|| self.fields.policy(rules.iter().filter_map(|rule| rule.reported(None))))
            .flatten();
    }

    /// Adds the fields for these rules, and the remaining quotas of some of them.
    fn add_fields(&self, headers: &mut HeaderMap, rules: &[HttpRule], quotas: &[RuleQuota]) {
        let limit_of = |number| quotas.iter().find(|quota| quota.rule == number).map(|quota| quota.limit);
        let reported = || (0..).zip(rules).filter_map(|(number, rule)| rule.reported(limit_of(number)));
        let policy = self.policy.clone().or_else(|| self.fields.policy(reported()));
        let remaining =
            quotas.iter().filter_map(|quota| rules.get(usize::from(quota.rule))?.reported_quota(quota));
        self.fields.add_to(headers, policy, remaining);
        self.add_cors(headers);
    }

    /// As [`add_fields`](ResponseConfig::add_fields), for a response of the service.
    ///
    /// A redirect does not report that nothing remains, because the client would not follow it.
    pub(super) fn add_service_fields(
        &self,
        status: StatusCode,
        headers: &mut HeaderMap,
        rules: &[HttpRule],
        quotas: &[RuleQuota],
    ) {
        if !status.is_redirection() || quotas.iter().all(|quota| quota.remaining > 0) {
            self.add_fields(headers, rules, quotas);
        }
    }

    fn add_cors(&self, headers: &mut HeaderMap) {
        if self.expose_to_browsers {
            headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(self.fields.names()));
        }
    }

    fn problem(&self, head: &Head<'_>, refusal: &Refusal, rules: &[HttpRule]) -> Response<Vec<u8>> {
        let page = self.page.as_deref().filter(|_| wants_html(head.headers));
        let (kind, body) = match page {
            Some(page) => ("text/html; charset=utf-8", page.to_owned()),
            None => ("application/problem+json", json(refusal, rules)),
        };
        let body = if head.method == Method::HEAD { Vec::new() } else { body.into_bytes() };
        let mut response = Response::new(body);
        *response.status_mut() = refusal.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if let Some(seconds) = refusal.retry_after_seconds() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// The JSON of RFC 9457.
///
/// Names are printable ASCII, so only quotes and backslashes are escaped.
fn json(refusal: &Refusal, rules: &[HttpRule]) -> String {
    let status = refusal.status.as_u16();
    if refusal.reason == RefusalReason::MissingKey {
        return format!(
            "{{\"type\":\"about:blank\",\"title\":\"Request lacks the key that it is limited by\",\"status\":{status}}}"
        );
    }
    let is_busy = refusal.status == StatusCode::SERVICE_UNAVAILABLE;
    let Problem { kind, title } = if is_busy { REDUCED_CAPACITY } else { QUOTA_EXCEEDED };
    let quoted = |name: &str| format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
    let violated = violated(refusal, rules).into_iter().map(quoted).collect::<Vec<_>>().join(",");
    format!(
        "{{\"type\":\"https://iana.org/assignments/http-problem-types#{kind}\",\"title\":\"{title}\",\
         \"status\":{status},\"violated-policies\":[{violated}]}}"
    )
}

/// The names of the rules that refused and are reported to clients.
///
/// All of them if the decision of each rule is known, otherwise the binding rule.
fn violated<'a>(refusal: &'a Refusal, rules: &'a [HttpRule]) -> Vec<&'a str> {
    let refused = refusal.report.as_slice().iter().filter(|quota| quota.is_refusal);
    let names: Vec<&str> =
        refused.filter_map(|quota| Some(&*rules.get(usize::from(quota.rule))?.name)).collect();
    match refusal.expose {
        Expose::Quota if names.is_empty() => vec![&refusal.rule],
        _ => names,
    }
}

/// A gRPC status in a response of headers only.
fn grpc(refusal: &Refusal, kind: &'static str) -> Response<Vec<u8>> {
    let (status, message) = match refusal.reason {
        RefusalReason::MissingKey => ("3", "the request lacks the key that it is limited by"),
        RefusalReason::Limit(_) | RefusalReason::QueueFull => ("8", "limit reached"),
    };
    let mut response = Response::new(Vec::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(HeaderName::from_static("grpc-status"), HeaderValue::from_static(status));
    headers.insert(HeaderName::from_static("grpc-message"), HeaderValue::from_static(message));
    if let Some(pushback) = pushback(refusal) {
        headers.insert(HeaderName::from_static("grpc-retry-pushback-ms"), pushback);
    }
    response
}

/// The milliseconds until the retry; -1 for never.
fn pushback(refusal: &Refusal) -> Option<HeaderValue> {
    match (refusal.retry_after, refusal.reason) {
        (Some(wait), _) => Some(HeaderValue::from(wait.as_micros().div_ceil(1_000))),
        (None, RefusalReason::Limit(decision)) if decision.outcome == Outcome::Never => {
            Some(HeaderValue::from_static("-1"))
        }
        (None, _) => None,
    }
}
