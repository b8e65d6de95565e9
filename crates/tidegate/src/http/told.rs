//! # What others ask of us
//!
//! Whoever we call may say that we call too often: `Retry-After` with a refusal, or a `RateLimit` of which nothing is
//! left. The first is an order and comes before the second. What cannot be read is as good as not said.

use std::time::{Duration, SystemTime};

use ::http::header::{DATE, HeaderName, HeaderValue, RETRY_AFTER};
use ::http::{HeaderMap, StatusCode};

use super::forwarded::quoted;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// For how long whoever answered like this is not to be called; `None` if nothing of the kind was said.
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, HeaderValue, StatusCode};
/// use tidegate::http::asked_to_wait;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit", HeaderValue::from_static("\"burst\";r=0;t=2, \"daily\";r=812;t=3600"));
/// assert_eq!(asked_to_wait(StatusCode::OK, &headers), Some(Duration::from_secs(2)));
/// headers.insert("retry-after", HeaderValue::from_static("7"));
/// assert_eq!(asked_to_wait(StatusCode::TOO_MANY_REQUESTS, &headers), Some(Duration::from_secs(7)));
/// ```
#[must_use]
pub fn asked_to_wait(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let is_refusal = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let ordered =
        headers.get(RETRY_AFTER).filter(|_| is_refusal).and_then(|value| retry_after(value, headers));
    ordered.or_else(|| nothing_left(headers)).filter(|wait| !wait.is_zero())
}

fn retry_after(value: &HeaderValue, headers: &HeaderMap) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().map(Duration::from_secs);
    }
    let then = seconds_of(text)?;
    let theirs = headers.get(DATE).and_then(|date| seconds_of(date.to_str().ok()?.trim()));
    Some(Duration::from_secs(then.saturating_sub(theirs.or_else(now)?))) // by their clock, if they tell the time
}

fn now() -> Option<u64> {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// The longest time within which nothing may be used.
fn nothing_left(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(RATE_LIMIT).iter().filter_map(|line| line.to_str().ok());
    let waits = lines.flat_map(|line| quoted(line, b',')).filter_map(wait_of_member);
    waits.max().map(Duration::from_secs)
}

/// The `t` of a member whose `r` is 0, or the `w` of one whose `a` is.
fn wait_of_member(member: &str) -> Option<u64> {
    let parameters = quoted(member, b';');
    let number = |wanted: &str| {
        parameters.iter().skip(1).find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            (name.trim() == wanted).then(|| value.trim().parse::<u64>().ok())?
        })
    };
    match (number("r").or_else(|| number("a"))?, number("t").or_else(|| number("w"))) {
        (0, wait) => wait,
        _ => None,
    }
}

/// Seconds since 1970 of a date such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn seconds_of(date: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, rest) = date.strip_suffix(" GMT")?.split_once(", ")?;
    let [day, month, year, time] = rest.split(' ').collect::<Vec<_>>()[..] else { return None };
    let [hour, minute, second] = time.split(':').collect::<Vec<_>>()[..] else { return None };
    let number = |text: &str, most: u64| text.parse::<u64>().ok().filter(|number| *number <= most);
    let month = MONTHS.iter().position(|name| *name == month)?;
    let days = days_before(number(year, 9_999)?, month)? + number(day, 31)?.checked_sub(1)?;
    Some(((days * 24 + number(hour, 23)?) * 60 + number(minute, 59)?) * 60 + number(second, 60)?)
}

/// How many days lie between 1970 and this month, counted from 0.
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
    fn dates_are_read() {
        assert_eq!(seconds_of("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(seconds_of("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(seconds_of("Tue, 29 Feb 2000 23:59:59 GMT"), Some(951_868_799));
        assert_eq!(seconds_of("Mon, 16 Nov 2026 12:00:00 GMT"), Some(1_794_830_400));
        for odd in [
            "",
            "tomorrow",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1969 08:49:37 GMT",
        ] {
            assert_eq!(seconds_of(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_refusal_is_obeyed_and_other_responses_only_if_nothing_is_left() {
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
            (StatusCode::OK, &[("ratelimit", ";;;r==,=\"")], None),
        ];
        for (status, fields, wait) in rows {
            assert_eq!(asked_to_wait(*status, &headers(fields)), wait.map(Duration::from_secs), "{fields:?}");
        }
    }
}
