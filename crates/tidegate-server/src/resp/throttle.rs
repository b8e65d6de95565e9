//! # `CL.THROTTLE`, and its kin
//!
//! Three commands that bring their limit along, all over the same states:
//!
//! | command | of | limit | seconds |
//! |---|---|---|---|
//! | `CL.THROTTLE key max_burst count period [quantity]` | redis-cell | max_burst + 1 | cut to milliseconds, then up |
//! | `GCRA key max_burst tokens period [TOKENS n]` | a milestone of Redis 8.8 | max_burst + 1 | up |
//! | `THROTTLE key max_burst count period [quantity]` | throttlecrab | max_burst | as redis-cell |
//!
//! Their replies are five numbers each. What those of `CL.THROTTLE` are in every odd case is in `tests/throttle.rs`, row by
//! row.

use tidegate::Wait;
use tidegate::clock::Clock;

use super::call::whole;
use super::parse::Request;
use super::reply::Reply;
use super::session::{Flow, Session};
use crate::engine::{InvalidThrottle, Throttle, Throttled};

/// Why a call is none.
enum Wrong {
    NotANumber,
    Syntax,
    Limit(InvalidThrottle),
}

const NANOS: i64 = 1_000_000_000;

impl<C: Clock + Send + Sync + 'static> Session<C> {
    #[inline]
    pub(crate) fn cl_throttle(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.throttle_by(request, reply, cell(request), |throttled, reply| {
            let Throttled { limited, limit, remaining, retry_after, reset_after, .. } = throttled;
            reply.array(5);
            reply.number(limited.into());
            reply.count(limit);
            reply.count(remaining);
            reply.number(retry_after.map_or(-1, cell_seconds));
            reply.number(cell_seconds(reset_after));
        })
    }

    pub(crate) fn gcra(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.throttle_by(request, reply, gcra(request), |throttled, reply| {
            let Throttled { limited, limit, remaining, retry_after, reset_after, .. } = throttled;
            reply.array(5);
            reply.number(limited.into());
            reply.count(limit);
            reply.count(remaining);
            reply.number(retry_after.map_or(-1, seconds_up));
            reply.number(seconds_up(reset_after));
        })
    }

    pub(crate) fn throttle(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.throttle_by(request, reply, crab(request), |throttled, reply| {
            let Throttled { limited, limit, remaining, retry_after, reset_after, .. } = throttled;
            let never = if limited { -1 } else { 0 };
            reply.array(5);
            reply.number((!limited).into());
            reply.count(limit);
            reply.count(remaining);
            reply.number(cell_seconds(reset_after));
            reply.number(retry_after.map_or(never, cell_seconds));
        })
    }

    #[inline(always)]
    fn throttle_by(
        &self,
        request: Request<'_>,
        reply: &mut Reply<'_>,
        call: Result<Throttle, Wrong>,
        write: impl FnOnce(Throttled, &mut Reply<'_>) + Send + 'static,
    ) -> Flow {
        match (request.arg(1), call) {
            (Some(key), Ok(call)) => {
                let answer = self.service.engine.throttle(key, call);
                self.tell(answer, reply, |throttled, reply| write(throttled, reply))
            }
            (_, Err(wrong)) => refuse(&wrong, reply),
            (None, _) => refuse(&Wrong::Syntax, reply),
        }
    }
}

#[cold]
fn refuse(wrong: &Wrong, reply: &mut Reply<'_>) -> Flow {
    match wrong {
        Wrong::NotANumber => reply.error("ERR value is not an integer or out of range"),
        Wrong::Syntax => reply.error("ERR syntax error"),
        Wrong::Limit(invalid) => reply.error(format!("ERR {invalid}")),
    }
    Flow::Next
}

#[inline]
fn numbers<const N: usize>(request: Request<'_>) -> Result<[i64; N], Wrong> {
    let mut numbers = [0; N];
    for (number, index) in numbers.iter_mut().zip(2..) {
        *number = request.arg(index).and_then(whole).ok_or(Wrong::NotANumber)?;
    }
    Ok(numbers)
}

#[inline]
fn quantity(request: Request<'_>) -> Result<i64, Wrong> {
    request.arg(5).map_or(Ok(1), |text| whole(text).ok_or(Wrong::NotANumber))
}

#[inline]
fn cell(request: Request<'_>) -> Result<Throttle, Wrong> {
    let ([burst, count, period], quantity) = (numbers(request)?, quantity(request)?);
    throttle(one_more(burst)?, count, nanos(period)?, quantity)
}

fn crab(request: Request<'_>) -> Result<Throttle, Wrong> {
    let ([burst, count, period], quantity) = (numbers(request)?, quantity(request)?);
    at_least("max_burst", burst, 1)?;
    at_least("quantity", quantity, 0)?;
    throttle(burst.unsigned_abs(), count, nanos(period)?, quantity)
}

fn gcra(request: Request<'_>) -> Result<Throttle, Wrong> {
    let [burst, count] = numbers(request)?;
    let period = request.arg(4).and_then(decimal_nanos).ok_or(Wrong::NotANumber)?;
    let is_named =
        |name: &[u8]| [&b"TOKENS"[..], b"NUM_REQUESTS"].iter().any(|word| name.eq_ignore_ascii_case(word));
    let quantity = match (request.arg(5), request.arg(6)) {
        (None, None) => 1,
        (Some(name), Some(text)) if is_named(name) => whole(text).ok_or(Wrong::NotANumber)?,
        _ => return Err(Wrong::Syntax),
    };
    at_least("TOKENS", quantity, 1)?;
    throttle(one_more(burst)?, count, period, quantity)
}

#[inline]
fn throttle(limit: u64, count: i64, period: i64, quantity: i64) -> Result<Throttle, Wrong> {
    Throttle::new(limit, count, period, quantity).map_err(Wrong::Limit)
}

#[inline]
fn one_more(burst: i64) -> Result<u64, Wrong> {
    at_least("max_burst", burst, 0)?;
    Ok(burst.unsigned_abs() + 1)
}

#[inline]
fn at_least(what: &'static str, value: i64, least: i64) -> Result<(), Wrong> {
    let invalid = InvalidThrottle::TooSmall { what, value, least };
    if value < least { Err(Wrong::Limit(invalid)) } else { Ok(()) }
}

#[inline]
fn nanos(seconds: i64) -> Result<i64, Wrong> {
    if seconds < 0 {
        return Err(Wrong::Limit(InvalidThrottle::TooSmall { what: "period", value: seconds, least: 1 }));
    }
    seconds.checked_mul(NANOS).ok_or(Wrong::Limit(InvalidThrottle::TooLong))
}

/// Seconds with a point, such as `0.5`, to the nanosecond; what is finer is dropped.
fn decimal_nanos(text: &[u8]) -> Option<i64> {
    let (whole_part, part) = match text.iter().position(|byte| *byte == b'.') {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &b""[..]),
    };
    let are_digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    if whole_part.len() + part.len() == 0 || !are_digits(whole_part) || !are_digits(part) {
        return None;
    }
    let seconds = if whole_part.is_empty() { 0 } else { whole(whole_part)? };
    let digits = part.iter().map(|digit| i64::from(digit - b'0')).chain(std::iter::repeat(0)).take(9);
    let fraction = digits.fold(0, |nanos, digit| nanos * 10 + digit);
    seconds.checked_mul(NANOS)?.checked_add(fraction)
}

/// As redis-cell rounds: cut to milliseconds, and if any are left, one second more.
#[inline]
fn cell_seconds(wait: Wait) -> i64 {
    let micros = wait.as_micros();
    let seconds = micros / 1_000_000 + u64::from(micros % 1_000_000 >= 1_000);
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

fn seconds_up(wait: Wait) -> i64 {
    i64::try_from(wait.as_secs_up()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_as_redis_cell_rounds_them() {
        let seconds = |micros| cell_seconds(Wait::micros(micros));
        assert_eq!([0, 999, 1_000, 999_999].map(seconds), [0, 0, 1, 1]);
        assert_eq!([1_000_000, 1_000_999, 1_001_000, 10_000_000].map(seconds), [1, 1, 2, 10]);
    }

    #[test]
    fn periods_with_a_point_are_exact() {
        let good: [(&[u8], i64); 6] = [
            (b"10", 10 * NANOS),
            (b"0.5", NANOS / 2),
            (b".25", NANOS / 4),
            (b"3.", 3 * NANOS),
            (b"0.000000001", 1),
            (b"1.0000000019", NANOS + 1),
        ];
        assert!(good.iter().all(|(text, nanos)| decimal_nanos(text) == Some(*nanos)));
        let bad: [&[u8]; 8] = [b"", b".", b"-1", b"+1", b"1e3", b"1.-5", b"nan", b"99999999999999999999"];
        assert!(bad.iter().all(|text| decimal_nanos(text).is_none()));
    }
}
