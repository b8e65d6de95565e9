//! # What a refused request is answered
//!
//! 429 says: this is your own limit. 503 says: we are busy, it is not your fault. Both say when to come back, are not
//! to be cached, and carry a few words for whoever reads them: RFC 9457's JSON for programs, a page for browsers. A
//! caller of gRPC gets a status of gRPC, in the headers, because there will be no body to follow. A `HEAD` gets no
//! body.
//!
//! The body of the request is never looked at. A client that asked with `Expect: 100-continue` is therefore told 429
//! instead of being told to go on, and what it sends all the same is for the server to drain, or to close the
//! connection over.

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

/// Why a request is refused, and how it will be answered unless somebody else answers it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Refusal {
    /// Why.
    pub why: Why,
    /// The name of the rule that refused it.
    pub rule: Arc<str>,
    /// How much of the rule clients are told.
    pub expose: Expose,
    /// The status.
    pub status: StatusCode,
    /// When to come back, with the jitter. `None` if that is in vain, or is not to be told.
    pub retry_after: Option<Wait>,
    /// What is left of the rules, for clients to be told.
    left: Decisions,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The rule said so.
    Limit(Decision),
    /// As many wait for the rule as may.
    LineFull,
    /// It lacks what the rule goes by.
    MissingKey,
}

/// How refusals are answered, and what is told with every answer.
pub(super) struct Answers {
    pub(super) fields: Fields,
    /// What the rules are, where that is the same in every response.
    pub(super) policy: Option<HeaderValue>,
    /// When to come back where nobody can say when there will be room.
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

/// The least that can be told.
const A_SECOND: Wait = Wait::micros(1_000_000);

impl Refusal {
    pub(super) fn new(rule: &HttpRule, why: Why, left: Decisions, answers: &Answers) -> Self {
        let busy = answers.when_busy.max(longest(&left)); // nobody comes back before what else refused lets them pass
        let (status, wait) = match why {
            Why::Limit(decision) => (rule.status(decision.outcome), wait_of(decision.outcome, busy)),
            Why::LineFull => (rule.status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE), Some(busy)),
            Why::MissingKey => (StatusCode::BAD_REQUEST, None),
        };
        let told = wait.filter(|_| rule.expose != Expose::Hidden);
        let retry_after = told.map(|wait| answers.jitter.on(wait));
        Refusal { why, rule: rule.name.clone(), expose: rule.expose, status, retry_after, left }
    }

    /// What `Retry-After` says.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map(retry::seconds)
    }

    /// With which code to close a WebSocket, if this is of a message and not of a request: 1008 for a limit of the
    /// client's own, 1013, to try again later, where we are busy. Before the connection is upgraded it is a request like
    /// others.
    #[must_use]
    pub fn close_code(&self) -> u16 {
        if self.status == StatusCode::SERVICE_UNAVAILABLE { 1013 } else { 1008 }
    }

    /// The decision, where there was one.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        match self.why {
            Why::Limit(decision) => Some(decision),
            Why::LineFull | Why::MissingKey => None,
        }
    }
}

/// When the last of the rules that refused lets pass, as clients are told.
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
    /// The whole answer to a refused request, with what clients are told of these rules.
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

    /// Sees to what is the same in every response.
    pub(super) fn prepare(&mut self, rules: &[HttpRule]) {
        let is_same = rules.iter().all(HttpRule::is_told_alike);
        self.policy =
            is_same.then(|| self.fields.policy(rules.iter().filter_map(|rule| rule.shown(None)))).flatten();
    }

    /// Adds what clients are told of these rules, of some of which so much is left.
    fn tell(&self, headers: &mut HeaderMap, rules: &[HttpRule], left: &[RuleQuota]) {
        let limit_of = |number| left.iter().find(|left| left.rule == number).map(|left| left.limit);
        let shown = || (0..).zip(rules).filter_map(|(number, rule)| rule.shown(limit_of(number)));
        let policy = self.policy.clone().or_else(|| self.fields.policy(shown()));
        let states = left.iter().filter_map(|left| rules.get(usize::from(left.rule))?.state(left));
        self.fields.add_to(headers, policy, states);
        self.expose_in_browsers(headers);
    }

    /// As [`tell`](Answers::tell), for a response of the service. One that sends the client elsewhere does not say that
    /// nothing is left: it would not go.
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

/// RFC 9457. Names are printable ASCII, so that quoting them is all there is to do.
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

/// The rules that refused, as far as clients know them: each, if it is known what each has said, else the binding one.
fn violated<'a>(refusal: &'a Refusal, rules: &'a [HttpRule]) -> Vec<&'a str> {
    let refused = refusal.left.as_slice().iter().filter(|left| left.is_refusal);
    let names: Vec<&str> =
        refused.filter_map(|left| Some(&*rules.get(usize::from(left.rule))?.name)).collect();
    match refusal.expose {
        Expose::Quota if names.is_empty() => vec![&refusal.rule],
        _ => names,
    }
}

/// A status of gRPC, all of it in the headers.
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

/// In how many milliseconds to try again; -1 for never.
fn pushback(refusal: &Refusal) -> Option<HeaderValue> {
    match (refusal.retry_after, refusal.why) {
        (Some(wait), _) => Some(HeaderValue::from(wait.as_micros().div_ceil(1_000))),
        (None, Why::Limit(decision)) if decision.outcome == Outcome::Never => {
            Some(HeaderValue::from_static("-1"))
        }
        (None, _) => None,
    }
}
