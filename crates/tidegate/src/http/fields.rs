//! # Rate limit header fields
//!
//! There is no standard yet, only drafts and conventions. All fields are written in this file, so that the next draft
//! changes nothing else:
//!
//! ```text
//!   RateLimit-Policy: "user";q=100;w=60          the rules
//!   RateLimit: "user";r=50;t=30                  what remains of each
//! ```
//!
//! Both are lists of RFC 9651. In the eleventh draft `t` is the time within which no more than `r` may be used; that is
//! not when the whole quota is back. Here it is the time until a refused request would pass, or otherwise the time until
//! the whole limit is available again.
//!
//! Fields that the service has set itself are kept, and these fields are appended. A field that can contain only one
//! number keeps the smaller number. For clients, `Retry-After` takes precedence over all of these fields.

use std::time::SystemTime;

use ::http::HeaderMap;
use ::http::header::{HeaderName, HeaderValue};

use super::header_buf::{HeaderBuf, number};

/// The header fields that report the remaining quota to clients.
///
/// Set with [`LimitsBuilder::fields`](super::LimitsBuilder::fields).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fields {
    /// No fields. Costs nothing per request.
    #[default]
    None,
    /// `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-11.
    Draft11,
    /// As `Draft11`, with the changes planned for the next draft.
    ///
    /// `a` is the available quota, and `w` is the time.
    DraftNext,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, of the drafts up to 06.
    Draft06,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, in seconds from now.
    XRateLimit,
    /// As `XRateLimit`, with the reset in seconds since 1970.
    XRateLimitEpoch,
}

/// The unit of a quota, as reported to clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// Requests, or another unit that the cost of a request is measured in.
    #[default]
    Requests,
    /// Bytes of content.
    ContentBytes,
    /// Requests in progress at the same time.
    ConcurrentRequests,
}

/// A rule, as reported to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedRule<'a> {
    /// Its name: see [`is_valid_name`].
    pub name: &'a str,
    /// The quota.
    pub quota: u64,
    /// The window in seconds, if it is known.
    pub window: Option<u64>,
    /// What the quota counts.
    pub unit: Unit,
}

/// The remaining quota of a rule, as reported to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedQuota<'a> {
    /// The rule.
    pub rule: ReportedRule<'a>,
    /// What remains.
    pub remaining: u64,
    /// The seconds until a refused request would pass, otherwise until the full quota is back.
    pub reset_secs: u64,
}

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static RATE_LIMIT_NAMES: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
static X_RATE_LIMIT_NAMES: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

impl Fields {
    /// Adds the fields for these rules, with the remaining quota of some of them.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use tidegate::http::{Fields, ReportedRule, ReportedQuota, Unit};
    ///
    /// let rule = ReportedRule { name: "default", quota: 100, window: Some(60), unit: Unit::Requests };
    /// let mut headers = HeaderMap::new();
    /// Fields::Draft11.add(&mut headers, &[rule], &[ReportedQuota { rule, remaining: 50, reset_secs: 30 }]);
    /// assert_eq!(headers["ratelimit-policy"], "\"default\";q=100;w=60");
    /// assert_eq!(headers["ratelimit"], "\"default\";r=50;t=30");
    /// ```
    pub fn add(self, headers: &mut HeaderMap, rules: &[ReportedRule<'_>], quotas: &[ReportedQuota<'_>]) {
        self.add_to(headers, self.policy(rules.iter().copied()), quotas.iter().copied());
    }

    /// The policy field, if there is one.
    pub(super) fn policy<'a>(self, rules: impl Iterator<Item = ReportedRule<'a>>) -> Option<HeaderValue> {
        match self {
            Fields::Draft11 | Fields::DraftNext => list(rules, write_rule),
            Fields::None | Fields::Draft06 | Fields::XRateLimit | Fields::XRateLimitEpoch => None,
        }
    }

    /// Adds the fields. The value of the policy field is given.
    pub(super) fn add_to<'a>(
        self,
        headers: &mut HeaderMap,
        policy: Option<HeaderValue>,
        quotas: impl Iterator<Item = ReportedQuota<'a>>,
    ) {
        match self {
            Fields::None => {}
            Fields::Draft11 => add_lists(headers, policy, quotas, ["r", "t"]),
            Fields::DraftNext => add_lists(headers, policy, quotas, ["a", "w"]),
            Fields::Draft06 => add_numbers(headers, quotas, &RATE_LIMIT_NAMES, 0),
            Fields::XRateLimit => add_numbers(headers, quotas, &X_RATE_LIMIT_NAMES, 0),
            Fields::XRateLimitEpoch => {
                add_numbers(headers, quotas, &X_RATE_LIMIT_NAMES, seconds_since_1970())
            }
        }
    }

    /// The names of the fields, for `Access-Control-Expose-Headers`.
    #[must_use]
    pub const fn names(self) -> &'static str {
        match self {
            Fields::None => "Retry-After",
            Fields::Draft11 | Fields::DraftNext => "Retry-After, RateLimit, RateLimit-Policy",
            Fields::Draft06 => "Retry-After, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset",
            Fields::XRateLimit | Fields::XRateLimitEpoch => {
                "Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset"
            }
        }
    }
}

/// Whether a rule name can be sent in a header: printable ASCII, and not empty.
///
/// Strings of RFC 9651 contain only printable ASCII.
#[must_use]
pub fn is_valid_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

fn add_lists<'a>(
    headers: &mut HeaderMap,
    policy: Option<HeaderValue>,
    quotas: impl Iterator<Item = ReportedQuota<'a>>,
    names: [&str; 2],
) {
    policy.map(|policy| headers.append(RATE_LIMIT_POLICY, policy));
    list(quotas, |buf, state| write_state(buf, state, names)).map(|value| headers.append(RATE_LIMIT, value));
}

fn write_rule(buf: &mut HeaderBuf, rule: &ReportedRule<'_>) {
    buf.quoted(rule.name);
    buf.push(b";q=");
    buf.number(rule.quota);
    match rule.unit {
        Unit::Requests => {}
        Unit::ContentBytes => buf.push(b";qu=\"content-bytes\""),
        Unit::ConcurrentRequests => buf.push(b";qu=\"concurrent-requests\""),
    }
    if let Some(window) = rule.window {
        buf.push(b";w=");
        buf.number(window);
    }
}

fn write_state(buf: &mut HeaderBuf, state: &ReportedQuota<'_>, [remaining, reset]: [&str; 2]) {
    buf.quoted(state.rule.name);
    parameter(buf, remaining, state.remaining);
    if state.reset_secs > 0 {
        parameter(buf, reset, state.reset_secs);
    }
}

fn parameter(buf: &mut HeaderBuf, name: &str, value: u64) {
    buf.push(b";");
    buf.push(name.as_bytes());
    buf.push(b"=");
    buf.number(value);
}

fn list<T>(members: impl Iterator<Item = T>, write: impl Fn(&mut HeaderBuf, &T)) -> Option<HeaderValue> {
    let mut buf = HeaderBuf::new();
    for member in members {
        if !buf.is_empty() {
            buf.push(b", ");
        }
        write(&mut buf, &member);
    }
    buf.value()
}

/// Adds limit, remaining and reset of the rule with the least remaining quota.
///
/// Does nothing if the response already reports the same or a smaller remaining quota.
fn add_numbers<'a>(
    headers: &mut HeaderMap,
    quotas: impl Iterator<Item = ReportedQuota<'a>>,
    names: &'static [HeaderName; 3],
    now: u64,
) {
    let Some(state) = quotas.min_by_key(|state| state.remaining) else { return };
    let [limit, remaining, reset] = names;
    if headers.get_all(remaining).iter().any(|value| is_at_most(value, state.remaining)) {
        return;
    }
    headers.insert(remaining, number(state.remaining));
    headers.insert(limit, number(state.rule.quota));
    headers.insert(reset, number(now.saturating_add(state.reset_secs)));
}

fn is_at_most(value: &HeaderValue, remaining: u64) -> bool {
    value
        .to_str()
        .ok()
        .and_then(|value| value.trim().parse::<u64>().ok())
        .is_some_and(|value| value <= remaining)
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The value of the `pk` parameter for these named parts of a key.
///
/// It is a byte sequence of RFC 9651. Hash private values, such as addresses and e-mails, first.
///
/// ```
/// use tidegate::http::partition_key;
/// assert_eq!(partition_key(&mut [("user_id", b"alice"), ("method", b"GET")]), ":R0VUH2FsaWNl:");
/// ```
#[must_use]
pub fn partition_key(dimensions: &mut [(&str, &[u8])]) -> String {
    dimensions.sort_unstable_by_key(|(name, _)| *name);
    let values: Vec<&[u8]> = dimensions.iter().map(|(_, value)| *value).collect();
    format!(":{}:", base64(&values.join(&0x1f)))
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0_usize, |group, byte| group << 8 | usize::from(*byte))
            << (8 * (3 - chunk.len()));
        for position in 0..4 {
            let letter = ALPHABET[group >> (18 - 6 * position) & 63];
            text.push(if position <= chunk.len() { letter.into() } else { '=' });
        }
    }
    text
}
