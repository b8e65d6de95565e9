//! # Reading `Retry-After` and `RateLimit`
//!
//! A server that is called too often responds with `Retry-After` in a refusal, or with a `RateLimit` field whose
//! remaining quota is 0. `Retry-After` takes precedence. A header that cannot be parsed counts as missing.

use std::time::{Duration, SystemTime};

use ::http::header::{DATE, HeaderName, HeaderValue, RETRY_AFTER};
use ::http::{HeaderMap, StatusCode};

use super::forwarded::outside_quotes;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Returns how long a client must wait before it calls the server of this response again.
///
/// `None` if the response requests no wait.
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, HeaderValue, StatusCode};
/// use tidegate::http::retry_after_of;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit", HeaderValue::from_static("\"burst\";r=0;t=2, \"daily\";r=812;t=3600"));
/// assert_eq!(retry_after_of(StatusCode::OK, &headers), Some(Duration::from_secs(2)));
/// headers.insert("retry-after", HeaderValue::from_static("7"));
/// assert_eq!(retry_after_of(StatusCode::TOO_MANY_REQUESTS, &headers), Some(Duration::from_secs(7)));
/// ```
#[must_use]
pub fn retry_after_of(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let is_refusal = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let requested =
        headers.get(RETRY_AFTER).filter(|_| is_refusal).and_then(|value| retry_after(value, headers));
    requested.or_else(|| exhausted_quota(headers)).filter(|wait| !wait.is_zero())
}

fn retry_after(value: &HeaderValue, headers: &HeaderMap) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    if let Some(seconds) = parse_number(text) {
        return Some(Duration::from_secs(seconds));
    }
    let date = parse_date(text)?;
    let server_now = headers.get(DATE).and_then(|value| parse_date(value.to_str().ok()?.trim()));
    Some(Duration::from_secs(date.saturating_sub(server_now.or_else(now)?))) // by the server's clock, if it sends `Date`
}

/// Parses a whole number. A number beyond `u64` becomes `u64::MAX`.
fn parse_number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

fn now() -> Option<u64> {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// The longest wait of all members with nothing remaining.
fn exhausted_quota(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(RATE_LIMIT).iter();
    let waits = lines.flat_map(|line| outside_quotes(line.as_bytes(), b',')).filter_map(wait_of_member);
    waits.max().map(Duration::from_secs)
}

/// The seconds until the reset (`t`, or else `w`) of a member with nothing remaining (`r`, or else `a`, is 0).
///
/// The names differ between the drafts of the field.
fn wait_of_member(member: &[u8]) -> Option<u64> {
    let number =
        |wanted: &str| outside_quotes(member, b';').find_map(|parameter| number_of(parameter, wanted));
    match (number("r").or_else(|| number("a"))?, number("t").or_else(|| number("w"))) {
        (0, wait) => wait,
        _ => None,
    }
}

/// The number in a parameter, if the parameter has this name.
fn number_of(parameter: &[u8], wanted: &str) -> Option<u64> {
    let (name, value) = std::str::from_utf8(parameter).ok()?.split_once('=')?;
    if name.trim() == wanted { parse_number(value.trim()) } else { None }
}

/// Parses a date to seconds since 1970, in any of the three formats of RFC 9110:
///
/// ```text
///   Sun, 06 Nov 1994 08:49:37 GMT
///   Sunday, 06-Nov-94 08:49:37 GMT
///   Sun Nov  6 08:49:37 1994
/// ```
fn parse_date(date: &str) -> Option<u64> {
    let words: Vec<&str> = date.split([' ', '-']).filter(|word| !word.is_empty()).collect();
    let (day, month, year, time) = match words[..] {
        [weekday, day, month, year, time, "GMT"] if weekday.ends_with(',') => (day, month, year, time),
        [_, month, day, time, year] => (day, month, year, time),
        _ => return None,
    };
    let [hour, minute, second] = time.split(':').collect::<Vec<_>>()[..] else { return None };
    let number = |text: &str, max: u64| parse_number(text).filter(|number| *number <= max);
    let month = MONTHS.iter().position(|name| *name == month)?;
    let days = days_before(full_year(year)?, month)? + number(day, 31)?.checked_sub(1)?;
    Some(((days * 24 + number(hour, 23)?) * 60 + number(minute, 59)?) * 60 + number(second, 60)?)
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Parses a year of four digits, or of two, which stand for 1970 to 2069.
fn full_year(year: &str) -> Option<u64> {
    match (year.len(), parse_number(year)?) {
        (4, year) => Some(year),
        (2, year) => Some(if year < 70 { 2_000 + year } else { 1_900 + year }),
        _ => None,
    }
}

/// The number of days from 1970 to the start of this month, which is counted from 0.
fn days_before(year: u64, month: usize) -> Option<u64> {
    const BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let years = year.checked_sub(1970)?;
    let leap_days = leaps(year - 1) - leaps(1969) + u64::from(is_leap && month > 1);
    Some(years * 365 + leap_days + BEFORE[month])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn http_dates_are_parsed() {
        assert_eq!(parse_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(parse_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(parse_date("Tue, 29 Feb 2000 23:59:59 GMT"), Some(951_868_799));
        assert_eq!(parse_date("Mon, 16 Nov 2026 12:00:00 GMT"), Some(1_794_830_400));
        assert_eq!(parse_date("Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(parse_date("Sun Nov  6 08:49:37 1994"), Some(784_111_777));
        assert_eq!(parse_date("Monday, 16-Nov-26 12:00:00 GMT"), Some(1_794_830_400));
        for invalid in [
            "",
            "tomorrow",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1969 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 19994 08:49:37 GMT",
            "Sun, +6 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(parse_date(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn only_refusals_and_exhausted_quotas_request_a_wait() {
        const REFUSED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
        type Row = (StatusCode, &'static [(&'static str, &'static str)], Option<u64>);
        let rows: &[Row] = &[
            (REFUSED, &[("retry-after", "3")], Some(3)),
            (StatusCode::SERVICE_UNAVAILABLE, &[("retry-after", " 3 ")], Some(3)),
            (StatusCode::OK, &[("retry-after", "3")], None),
            (REFUSED, &[("retry-after", "3"), ("ratelimit", "\"a\";r=0;t=9")], Some(3)),
            (REFUSED, &[("retry-after", "soon"), ("ratelimit", "\"a\";r=0;t=9")], Some(9)),
            (
                REFUSED,
                &[
                    ("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT"),
                    ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
                ],
                Some(10),
            ),
            (REFUSED, &[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")], None),
            (StatusCode::OK, &[("ratelimit", "\"a\";r=1;t=9, \"b,;r=0\";r=0;t=4")], Some(4)),
            (StatusCode::OK, &[("ratelimit", "\"a\";a=0;w=5")], Some(5)),
            (StatusCode::OK, &[("ratelimit", "\"a\";r=0")], None),
            (
                StatusCode::OK,
                &[("ratelimit", "\"a\\\",b\";r=0;t=6"), ("ratelimit", "\"c\";t=8;r=0")],
                Some(8),
            ),
            (REFUSED, &[("retry-after", "99999999999999999999")], Some(u64::MAX)),
            (REFUSED, &[("retry-after", "-1")], None),
            (REFUSED, &[("retry-after", "1.5")], None),
            (StatusCode::OK, &[("ratelimit", ";;;r==,=\"")], None),
        ];
        for (status, fields, wait) in rows {
            assert_eq!(
                retry_after_of(*status, &headers(fields)),
                wait.map(Duration::from_secs),
                "{fields:?}"
            );
        }
    }
}
