//! # Instants and lengths of time
//!
//! `100ms`, `99.999ms`, `1min 30s`, `1484551710s`, `12:34:31`, `+100ms`. A bare number is rejected: a table
//! in which `5` may mean seconds or milliseconds is easily misread. A time finer than a microsecond is
//! rejected too, because rounding it would test something that the file does not say.

use tidegate::clock::Micros;

use super::line::{Kind, Line};
use super::mistake::Mistake;

/// Every spelling of a unit, and its length in microseconds.
const UNITS: [(&[&str], u64); 7] = [
    (&["us", "µs", "μs", "microsecond", "microseconds"], 1),
    (&["ms", "millisecond", "milliseconds"], 1_000),
    (&["s", "sec", "secs", "second", "seconds"], 1_000_000),
    (&["min", "mins", "minute", "minutes", "m"], 60_000_000),
    (&["h", "hr", "hour", "hours"], 3_600_000_000),
    (&["d", "day", "days"], 86_400_000_000),
    (&["w", "week", "weeks"], 604_800_000_000),
];

const GIVE_A_UNIT: &str = "a unit after the number: give a unit, one of us, ms, s, min, h, d, w";
const WHOLE_MICROS: &str = "a whole number of microseconds";
const SMALLER_UNIT: &str =
    "a unit smaller than the one before it, as in 1min 30s; two columns must not run together";
const TOO_LARGE: &str = "a smaller number";

/// An instant: absolute, or relative to `previous` if it has a sign.
pub(crate) fn instant(line: &mut Line<'_>, previous: Micros) -> Result<Micros, Mistake> {
    let mark = line.mark();
    if line.takes("+") {
        return Ok(previous.plus(span(line)?));
    }
    if line.takes("-") {
        let back = span(line)?;
        let earlier = previous.get().checked_sub(back).map(Micros::new);
        return earlier.ok_or_else(|| line.mistake_at(mark, "a step back that does not go beyond zero"));
    }
    if line.second().is_some_and(|(token, _)| token.text == ":") {
        return clock_time(line).map(Micros::new);
    }
    span(line).map(Micros::new)
}

/// A length of time in microseconds: one or more numbers with their units, the largest first.
pub(crate) fn span(line: &mut Line<'_>) -> Result<u64, Mistake> {
    let (mut sum, mut last_unit) = (0u64, u64::MAX);
    loop {
        let mark = line.mark();
        let (micros, unit) = stretch(line)?;
        if unit >= last_unit {
            return Err(line.mistake_at(mark, SMALLER_UNIT));
        }
        sum = sum.checked_add(micros).ok_or_else(|| line.mistake_at(mark, TOO_LARGE))?;
        last_unit = unit;
        if !at_stretch(line) {
            return Ok(sum);
        }
    }
}

/// A length of time in microseconds: one number and its unit. For lists, where a sum would swallow the next
/// value.
pub(crate) fn single(line: &mut Line<'_>) -> Result<u64, Mistake> {
    stretch(line).map(|(micros, _)| micros)
}

/// Whether a number and its unit come next. A word that touches the number was meant as its unit.
pub(crate) fn at_stretch(line: &Line<'_>) -> bool {
    let number = line.peek().is_some_and(|token| token.kind == Kind::Number);
    number
        && line.second().is_some_and(|(token, touches)| {
            token.kind == Kind::Word && (touches || unit_length(token.text).is_some())
        })
}

/// A number with its unit, as microseconds, and the length of the unit.
fn stretch(line: &mut Line<'_>) -> Result<(u64, u64), Mistake> {
    let mark = line.mark();
    let Some(number) = line.next_of(Kind::Number) else {
        return Err(line.mistake("a time, such as 100ms, 1min 30s or 1484551710s"));
    };
    let Some(unit) = line.peek().and_then(|token| unit_length(token.text)) else {
        return Err(line.mistake_at(mark, GIVE_A_UNIT));
    };
    line.next_of(Kind::Word);
    let micros = scaled(number.text, unit).map_err(|expected| line.mistake_at(mark, expected))?;
    Ok((micros, unit))
}

fn unit_length(word: &str) -> Option<u64> {
    UNITS.iter().find(|(spellings, _)| spellings.contains(&word)).map(|&(_, length)| length)
}

/// `18:59` or `12:34:31.5`, as microseconds since midnight.
fn clock_time(line: &mut Line<'_>) -> Result<u64, Mistake> {
    let mark = line.mark();
    let wrong = |line: &Line<'_>| line.mistake_at(mark, "a time of day, such as 18:59 or 12:34:31");
    let mut sum = 0u64;
    for (unit, most) in [(3_600_000_000, u64::MAX), (60_000_000, 3_600_000_000), (1_000_000, 60_000_000)] {
        let part = line.next_of(Kind::Number).ok_or_else(|| wrong(line))?;
        let micros = scaled(part.text, unit).ok().filter(|&micros| micros < most);
        sum = micros.and_then(|micros| sum.checked_add(micros)).ok_or_else(|| wrong(line))?;
        let whole = !part.text.contains('.');
        if !(whole && line.takes(":")) {
            return if unit < 3_600_000_000 && (whole || unit == 1_000_000) {
                Ok(sum)
            } else {
                Err(wrong(line))
            };
        }
    }
    Err(wrong(line))
}

/// A decimal number of units, if that is a whole number of microseconds.
fn scaled(number: &str, unit: u64) -> Result<u64, &'static str> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let (whole, fraction) = (whole.replace('_', ""), fraction.replace('_', ""));
    let fraction = fraction.trim_end_matches('0');
    // The longest unit, a week, has fewer digits than this: a longer fraction cannot be whole microseconds.
    let Some(scale) = u32::try_from(fraction.len()).ok().filter(|&n| n <= 15).map(|n| 10u128.pow(n)) else {
        return Err(WHOLE_MICROS);
    };
    let digits = format!("{whole}{fraction}").parse::<u128>().map_err(|_| TOO_LARGE)?;
    let parts = digits.checked_mul(u128::from(unit)).ok_or(TOO_LARGE)?;
    if !parts.is_multiple_of(scale) {
        return Err(WHOLE_MICROS);
    }
    u64::try_from(parts / scale).map_err(|_| TOO_LARGE)
}
