//! # Response to a refused request
//!
//! 429 means that the client's own limit is reached. 503 means that the server is busy, which is not the client's
//! fault. Both say when to retry, must not be cached, and have a short body: RFC 9457's JSON for programs, a page for
//! browsers. A gRPC client gets a gRPC status, in the headers, because no body follows. A `HEAD` request gets no body.
//!
//! The body of the request is never read. A client that sent `Expect: 100-continue` therefore receives 429 instead of
//! 100. If it sends its body all the same, the server has to drain it or close the connection.

use std::fmt;
use std::sync::Arc;

use ::http::header::{
    ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
};
use ::http::{HeaderMap, Method, Response, StatusCode};

use super::fields::Fields;
use super::head::Head;
use super::negotiate::{grpc_kind, wants_html};
use super::outcome::Decisions;
use super::retry::{self, Jitter};
use super::rule::{Expose, HttpRule, RuleQuota};
use tidegate_core::{Decision, Outcome, Wait};

/// Why a request is refused, and how it is answered by default.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Refusal {
    /// The reason.
    pub why: Why,
    /// The name of the rule that refused the request.
    pub rule: Arc<str>,
    /// How much of the rule is reported to clients.
    pub expose: Expose,
    /// The status of the response.
    pub status: StatusCode,
    /// When to retry, with jitter. `None` if a retry is futile, or the time is hidden.
    pub retry_after: Option<Wait>,
    /// The remaining quotas to report to the client.
    left: Decisions,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The rule refused it.
    Limit(Decision),
    /// The queue is full: the maximum number of requests is already waiting.
    LineFull,
    /// It lacks the key of the rule.
    MissingKey,
}

/// How refusals are answered, and what is added to every response.
pub(super) struct Answers {
    pub(super) fields: Fields,
    /// The policy field, if it is the same in every response.
    pub(super) policy: Option<HeaderValue>,
    /// When to retry if it is unknown when a permit will be free.
    pub(super) when_busy: Wait,
    pub(super) in_browsers: bool,
    pub(super) jitter: Jitter,
    pub(super) page: Option<String>,
    pub(super) replaced: Option<Replaced>,
}

type Replaced = Box<dyn Fn(&Head<'_>, &Refusal) -> Response<Vec<u8>> + Send + Sync>;

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
const A_SECOND: Wait = Wait::micros(1_000_000);

impl Refusal {
    pub(super) fn new(rule: &HttpRule, why: Why, left: Decisions, answers: &Answers) -> Self {
        let busy = answers.when_busy.max(longest(&left)); // no retry before the other rules that refused allow it
        let (status, wait) = match why {
            Why::Limit(decision) => (rule.status(decision.outcome), wait_of(decision.outcome, busy)),
            Why::LineFull => (rule.status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE), Some(busy)),
            Why::MissingKey => (StatusCode::BAD_REQUEST, None),
        };
        let told = wait.filter(|_| rule.expose != Expose::Hidden);
        let retry_after = told.map(|wait| answers.jitter.on(wait));
        Refusal { why, rule: rule.name.clone(), expose: rule.expose, status, retry_after, left }
    }

    /// The value of `Retry-After`, in seconds.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map(retry::seconds)
    }

    /// The code to close a WebSocket with, if a message is refused and not a request.
    ///
    /// It is 1008 for a limit of the client's own, and 1013, to try again later, if the server is busy. Before the
    /// connection is upgraded, the refusal is that of an ordinary request.
    #[must_use]
    pub fn close_code(&self) -> u16 {
        if self.status == StatusCode::SERVICE_UNAVAILABLE { 1013 } else { 1008 }
    }

    /// The decision, if there was one.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        match self.why {
            Why::Limit(decision) => Some(decision),
            Why::LineFull | Why::MissingKey => None,
        }
    }
}

/// When the last of the rules that refused allows the request, in whole seconds.
fn longest(left: &Decisions) -> Wait {
    let refused = left.as_slice().iter().filter(|left| left.is_refusal);
    let seconds = refused.map(|left| left.within).max().unwrap_or(0);
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
        match self.why {
            Why::Limit(decision) => write!(f, "rule {:?}: {decision}", self.rule),
            Why::LineFull => write!(f, "rule {:?}: too many wait already; try later", self.rule),
            Why::MissingKey => write!(f, "rule {:?}: the request lacks what it is limited by", self.rule),
        }
    }
}

// === impl Answers ===

impl Default for Answers {
    fn default() -> Self {
        Answers {
            fields: Fields::None,
            policy: None,
            when_busy: A_SECOND,
            in_browsers: false,
            jitter: Jitter::default(),
            page: None,
            replaced: None,
        }
    }
}

impl Answers {
    /// Builds the response to a refused request, with the fields for these rules.
    pub(super) fn refuse(&self, head: &Head<'_>, refusal: &Refusal, rules: &[HttpRule]) -> Response<Vec<u8>> {
        if let Some(replaced) = &self.replaced {
            return replaced(head, refusal);
        }
        let mut response = match grpc_kind(head.headers) {
            Some(kind) => grpc(refusal, kind),
            None => self.problem(head, refusal, rules),
        };
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if refusal.decision().is_some() {
            self.tell(headers, rules, refusal.left.as_slice());
        } else {
            self.expose_in_browsers(headers);
        }
        response
    }

    /// Precomputes what is the same in every response.
    pub(super) fn prepare(&mut self, rules: &[HttpRule]) {
        let is_same = rules.iter().all(HttpRule::is_told_alike);
        self.policy =
            is_same.then(|| self.fields.policy(rules.iter().filter_map(|rule| rule.shown(None)))).flatten();
    }

    /// Adds the fields for these rules, and the remaining quotas of some of them.
    fn tell(&self, headers: &mut HeaderMap, rules: &[HttpRule], left: &[RuleQuota]) {
        let limit_of = |number| left.iter().find(|left| left.rule == number).map(|left| left.limit);
        let shown = || (0..).zip(rules).filter_map(|(number, rule)| rule.shown(limit_of(number)));
        let policy = self.policy.clone().or_else(|| self.fields.policy(shown()));
        let states = left.iter().filter_map(|left| rules.get(usize::from(left.rule))?.state(left));
        self.fields.add_to(headers, policy, states);
        self.expose_in_browsers(headers);
    }

    /// As [`tell`](Answers::tell), for a response of the service.
    ///
    /// A redirect does not report that nothing remains: the client would not follow it.
    pub(super) fn tell_with(
        &self,
        status: StatusCode,
        headers: &mut HeaderMap,
        rules: &[HttpRule],
        left: &[RuleQuota],
    ) {
        if !status.is_redirection() || left.iter().all(|left| left.remaining > 0) {
            self.tell(headers, rules, left);
        }
    }

    fn expose_in_browsers(&self, headers: &mut HeaderMap) {
        if self.in_browsers {
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
    if refusal.why == Why::MissingKey {
        return format!(
            "{{\"type\":\"about:blank\",\"title\":\"Request lacks what it is limited by\",\"status\":{status}}}"
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

/// The rules that refused, as far as clients know them.
///
/// All of them if the decision of each rule is known, else the binding one.
fn violated<'a>(refusal: &'a Refusal, rules: &'a [HttpRule]) -> Vec<&'a str> {
    let refused = refusal.left.as_slice().iter().filter(|left| left.is_refusal);
    let names: Vec<&str> =
        refused.filter_map(|left| Some(&*rules.get(usize::from(left.rule))?.name)).collect();
    match refusal.expose {
        Expose::Quota if names.is_empty() => vec![&refusal.rule],
        _ => names,
    }
}

/// A gRPC status, all of it in the headers.
fn grpc(refusal: &Refusal, kind: &'static str) -> Response<Vec<u8>> {
    let (status, message) = match refusal.why {
        Why::MissingKey => ("3", "the request lacks what it is limited by"),
        Why::Limit(_) | Why::LineFull => ("8", "limit reached"),
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
    match (refusal.retry_after, refusal.why) {
        (Some(wait), _) => Some(HeaderValue::from(wait.as_micros().div_ceil(1_000))),
        (None, Why::Limit(decision)) if decision.outcome == Outcome::Never => {
            Some(HeaderValue::from_static("-1"))
        }
        (None, _) => None,
    }
}
