//! # Rate limit header fields
//!
//! There is no standard yet, only drafts of one and conventions. All fields are written here, so that the next draft is
//! a change of one file:
//!
//! ```text
//!   RateLimit-Policy: "user";q=100;w=60          the rules
//!   RateLimit: "user";r=50;t=30                  what remains of each
//! ```
//!
//! Both are lists of RFC 9651. In the eleventh draft `t` is the time within which no more than `r` may be used; that is
//! not when the whole quota is back. Here it is the time until a refused request passes, or else the time until the
//! whole limit is available again.
//!
//! Fields that a server behind us has set stay, and ours are added. If a field has room for one number only, the
//! smaller one stays. Clients obey `Retry-After` before all of these.

use std::time::SystemTime;

use ::http::HeaderMap;
use ::http::header::{HeaderName, HeaderValue};

use super::header_buf::{HeaderBuf, number};

/// The header fields that tell clients their remaining quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fields {
    /// No fields. Costs nothing per request.
    #[default]
    None,
    /// `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-11.
    Draft11,
    /// The same with the changes that its editors plan.
    ///
    /// `a` is what is available, and `w` is the time.
    DraftNext,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, of the drafts up to 06.
    Draft06,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, in seconds from now.
    XRateLimit,
    /// The same, with the reset in seconds since 1970.
    XRateLimitEpoch,
}

/// What a quota counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// Requests, or whatever the cost stands for.
    #[default]
    Requests,
    /// Bytes of content.
    ContentBytes,
    /// Requests in progress at the same time.
    ConcurrentRequests,
}

/// A rule as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownRule<'a> {
    /// Its name: see [`is_name`].
    pub name: &'a str,
    /// The quota.
    pub quota: u64,
    /// The window in seconds, if it is known.
    pub window: Option<u64>,
    /// What the quota counts.
    pub unit: Unit,
}

/// The remaining quota of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownState<'a> {
    /// The rule.
    pub rule: ShownRule<'a>,
    /// What remains.
    pub remaining: u64,
    /// The seconds until a refused request passes, else until the whole limit is back.
    pub within: u64,
}

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static THREE: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
static X_THREE: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

impl Fields {
    /// Adds the fields for these rules, and what remains of some of them.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use tidegate::http::{Fields, ShownRule, ShownState, Unit};
    ///
    /// let rule = ShownRule { name: "default", quota: 100, window: Some(60), unit: Unit::Requests };
    /// let mut headers = HeaderMap::new();
    /// Fields::Draft11.add(&mut headers, &[rule], &[ShownState { rule, remaining: 50, within: 30 }]);
    /// assert_eq!(headers["ratelimit-policy"], "\"default\";q=100;w=60");
    /// assert_eq!(headers["ratelimit"], "\"default\";r=50;t=30");
    /// ```
    pub fn add(self, headers: &mut HeaderMap, rules: &[ShownRule<'_>], left: &[ShownState<'_>]) {
        self.add_to(headers, self.policy(rules.iter().copied()), left.iter().copied());
    }

    /// The policy field, if there is one.
    pub(super) fn policy<'a>(self, rules: impl Iterator<Item = ShownRule<'a>>) -> Option<HeaderValue> {
        match self {
            Fields::Draft11 | Fields::DraftNext => list(rules, write_rule),
            Fields::None | Fields::Draft06 | Fields::XRateLimit | Fields::XRateLimitEpoch => None,
        }
    }

    /// Adds the fields, of which the policy is already written.
    pub(super) fn add_to<'a>(
        self,
        headers: &mut HeaderMap,
        policy: Option<HeaderValue>,
        left: impl Iterator<Item = ShownState<'a>>,
    ) {
        match self {
            Fields::None => {}
            Fields::Draft11 => add_lists(headers, policy, left, ["r", "t"]),
            Fields::DraftNext => add_lists(headers, policy, left, ["a", "w"]),
            Fields::Draft06 => add_three(headers, left, &THREE, 0),
            Fields::XRateLimit => add_three(headers, left, &X_THREE, 0),
            Fields::XRateLimitEpoch => add_three(headers, left, &X_THREE, seconds_since_1970()),
        }
    }

    /// The names of the fields, which browsers need to let scripts read them.
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

/// Whether a rule of this name can be shown to clients.
///
/// A string of RFC 9651 contains printable ASCII and nothing else. The name must not be empty.
#[must_use]
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

fn add_lists<'a>(
    headers: &mut HeaderMap,
    policy: Option<HeaderValue>,
    left: impl Iterator<Item = ShownState<'a>>,
    names: [&str; 2],
) {
    policy.map(|policy| headers.append(RATE_LIMIT_POLICY, policy));
    list(left, |buf, state| write_state(buf, state, names)).map(|left| headers.append(RATE_LIMIT, left));
}

fn write_rule(buf: &mut HeaderBuf, rule: &ShownRule<'_>) {
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

fn write_state(buf: &mut HeaderBuf, state: &ShownState<'_>, [remaining, within]: [&str; 2]) {
    buf.quoted(state.rule.name);
    parameter(buf, remaining, state.remaining);
    if state.within > 0 {
        parameter(buf, within, state.within);
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

/// Adds three numbers, of the rule with the least remaining.
///
/// Does nothing if the response already has the same or a smaller remaining number.
fn add_three<'a>(
    headers: &mut HeaderMap,
    left: impl Iterator<Item = ShownState<'a>>,
    names: &'static [HeaderName; 3],
    now: u64,
) {
    let Some(state) = left.min_by_key(|state| state.remaining) else { return };
    let [limit, remaining, reset] = names;
    if headers.get_all(remaining).iter().any(|told| is_at_most(told, state.remaining)) {
        return;
    }
    headers.insert(remaining, number(state.remaining));
    headers.insert(limit, number(state.rule.quota));
    headers.insert(reset, number(now.saturating_add(state.within)));
}

fn is_at_most(told: &HeaderValue, remaining: u64) -> bool {
    told.to_str().ok().and_then(|told| told.trim().parse::<u64>().ok()).is_some_and(|told| told <= remaining)
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The value of `pk` for these named dimensions of a key: a byte sequence of RFC 9651.
///
/// Not for private values, such as addresses and e-mails: hash them first.
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
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0_usize, |group, byte| group << 8 | usize::from(*byte))
            << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let letter = LETTERS[group >> (18 - 6 * place) & 63];
            text.push(if place <= chunk.len() { letter.into() } else { '=' });
        }
    }
    text
}
