//! # Text form of a quota
//!
//! `100/s`, `5/min burst 10`, `1 per 200ms`, `300 per 20s`, `1000/day`, `20 per 1min 30s`, `unlimited`:
//!
//! ```text
//!   quota  = count ( "/" | "per" ) period [ "burst" count ] | "unlimited"
//!   period = unit | ( number unit )…
//!   count  = digits, with "_" allowed between them for readability
//! ```

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use super::gcd;
use crate::Quota;
use crate::invalid_quota::{InvalidQuota, Reason};

const COUNT: &str = "a number, as in 100/s";
const SLASH: &str = "'/' or 'per', as in 100/s";
const UNIT: &str = "a unit of time: us, ms, s, min, h, day or week";
const AFTER_UNLIMITED: &str = "nothing more: 'unlimited' has no period and no burst";
const AFTER_PERIOD: &str = "'burst' and a number, or nothing more";
const AFTER_BURST: &str = "nothing more";

/// Every spelling of a unit, and its length in nanoseconds.
///
/// The first spelling of each length is the one used for output.
const UNITS: [(&str, u64); 29] = [
    ("week", 604_800 * SECOND),
    ("weeks", 604_800 * SECOND),
    ("w", 604_800 * SECOND),
    ("day", 86_400 * SECOND),
    ("days", 86_400 * SECOND),
    ("d", 86_400 * SECOND),
    ("h", 3_600 * SECOND),
    ("hr", 3_600 * SECOND),
    ("hour", 3_600 * SECOND),
    ("hours", 3_600 * SECOND),
    ("min", 60 * SECOND),
    ("mins", 60 * SECOND),
    ("minute", 60 * SECOND),
    ("minutes", 60 * SECOND),
    ("m", 60 * SECOND),
    ("s", SECOND),
    ("sec", SECOND),
    ("secs", SECOND),
    ("second", SECOND),
    ("seconds", SECOND),
    ("ms", 1_000_000),
    ("millisecond", 1_000_000),
    ("milliseconds", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("microsecond", 1_000),
    ("microseconds", 1_000),
    ("ns", 1),
];
/// The text of [`Quota::unlimited`].
pub(crate) const UNLIMITED: &str = "unlimited";
const SECOND: u64 = 1_000_000_000;

impl FromStr for Quota {
    type Err = InvalidQuota;

    fn from_str(text: &str) -> Result<Self, InvalidQuota> {
        let mut reader = Reader::new(text);
        let quota = reader.quota()?;
        reader.end_after(quota)?;
        Ok(quota)
    }
}

/// A parser's position in the text, which only advances over what has been parsed.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    text: &'a str,
    at: usize,
    has_burst: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let mut reader = Reader { text, at: 0, has_burst: false };
        reader.skip_blanks();
        reader
    }

    /// Parses a whole quota, and the blanks after it.
    pub(crate) fn quota(&mut self) -> Result<Quota, InvalidQuota> {
        if self.word(UNLIMITED) {
            return self.unlimited();
        }
        let start = self.at;
        let (limit, period) = self.limit_and_period()?;
        self.has_burst = self.word("burst");
        let burst = if self.has_burst { self.count()? } else { limit };
        self.checked(start, limit, period, burst)
    }

    /// Parses a quota without a burst, for rules that use only the pace.
    pub(crate) fn pace(&mut self) -> Result<Quota, InvalidQuota> {
        if self.word(UNLIMITED) {
            return self.unlimited();
        }
        let start = self.at;
        let (limit, period) = self.limit_and_period()?;
        self.checked(start, limit, period, 1)
    }

    /// The unlimited quota, unless a part of a finite quota follows.
    fn unlimited(&self) -> Result<Quota, InvalidQuota> {
        if self.rest().starts_with('/') || self.at_word("per") || self.at_word("burst") {
            return Err(self.expected(AFTER_UNLIMITED));
        }
        Ok(Quota::unlimited())
    }

    fn limit_and_period(&mut self) -> Result<(u64, Duration), InvalidQuota> {
        let limit = self.count()?;
        if !self.symbol('/') && !self.word("per") {
            return Err(self.expected(SLASH));
        }
        Ok((limit, self.period()?))
    }

    fn checked(&self, start: usize, limit: u64, period: Duration, burst: u64) -> Result<Quota, InvalidQuota> {
        Quota::checked(limit, period, burst)
            .map_err(|reason| InvalidQuota::at(reason, self.position_of(start)))
    }

    /// Parses a whole number, and the blanks after it.
    pub(crate) fn count(&mut self) -> Result<u64, InvalidQuota> {
        let start = self.at;
        let digits = self.while_char(|c| c.is_ascii_digit() || c == '_');
        if !digits.starts_with(|c: char| c.is_ascii_digit()) {
            self.at = start;
            return Err(self.expected(COUNT));
        }
        let number = digits
            .bytes()
            .filter(u8::is_ascii_digit)
            .try_fold(0u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')));
        self.skip_blanks();
        number.ok_or_else(|| InvalidQuota::at(Reason::NumberTooLarge, self.position_of(start)))
    }

    /// Parses a duration, `s` or `200ms` or `1min 30s`, and the blanks after it.
    pub(crate) fn period(&mut self) -> Result<Duration, InvalidQuota> {
        let start = self.at;
        if !self.at_digit() {
            return self.unit().map(Duration::from_nanos);
        }
        let mut nanos = self.stretch()?;
        while self.at_digit() {
            let more = self.stretch()?;
            nanos = nanos.checked_add(more).ok_or_else(|| self.too_large(start))?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Parses a number, optionally with a decimal fraction, and its unit.
    ///
    /// The result is in nanoseconds, rounded down.
    fn stretch(&mut self) -> Result<u64, InvalidQuota> {
        let start = self.at;
        let whole = self.count()?;
        let (fraction, scale) = if self.symbol('.') { self.fraction()? } else { (0, 1) };
        let unit = self.unit()?;
        whole
            .checked_mul(unit)
            .and_then(|nanos| {
                nanos.checked_add(u64::try_from(u128::from(fraction) * u128::from(unit) / scale).ok()?)
            })
            .ok_or_else(|| self.too_large(start))
    }

    fn fraction(&mut self) -> Result<(u64, u128), InvalidQuota> {
        let start = self.at;
        let digits = self.while_char(|c| c.is_ascii_digit() || c == '_');
        let digits = digits.bytes().filter(u8::is_ascii_digit).count(); // "_" is a separator without value
        self.at = start;
        let fraction = self.count()?;
        Ok((fraction, 10u128.pow(u32::try_from(digits).unwrap_or(u32::MAX).min(38))))
    }

    /// Parses a number, optionally with a decimal fraction, and the blanks after it.
    ///
    /// Returns numerator and denominator.
    pub(crate) fn decimal(&mut self) -> Result<(u32, u32), InvalidQuota> {
        let start = self.at;
        let whole = self.count()?;
        let (fraction, scale) = if self.symbol('.') { self.fraction()? } else { (0, 1) };
        let numerator =
            u128::from(whole).checked_mul(scale).and_then(|n| n.checked_add(u128::from(fraction)));
        let ratio = numerator.and_then(|numerator| {
            let common = gcd(numerator, scale);
            Some((u32::try_from(numerator / common).ok()?, u32::try_from(scale / common).ok()?))
        });
        ratio.ok_or_else(|| self.too_large(start))
    }

    fn unit(&mut self) -> Result<u64, InvalidQuota> {
        let start = self.at;
        let name = self.while_char(char::is_alphabetic);
        let Some(&(_, nanos)) = UNITS.iter().find(|(spelling, _)| *spelling == name) else {
            self.at = start;
            return Err(self.expected(UNIT));
        };
        self.skip_blanks();
        Ok(nanos)
    }

    /// Consumes `word` if it is the next whole word.
    pub(crate) fn word(&mut self, word: &str) -> bool {
        let start = self.at;
        if self.while_char(|c| c.is_alphanumeric() || c == '_') == word {
            self.skip_blanks();
            return true;
        }
        self.at = start;
        false
    }

    /// Whether `word` is the next whole word.
    pub(crate) fn at_word(&self, word: &str) -> bool {
        Reader { ..*self }.word(word)
    }

    fn symbol(&mut self, symbol: char) -> bool {
        let there = self.rest().starts_with(symbol);
        if there {
            self.at += symbol.len_utf8();
            self.skip_blanks();
        }
        there
    }

    /// Fails unless the text ends after `quota`.
    pub(crate) fn end_after(&self, quota: Quota) -> Result<(), InvalidQuota> {
        self.end(match quota.is_unlimited() {
            true => AFTER_UNLIMITED,
            false if self.has_burst => AFTER_BURST,
            false => AFTER_PERIOD,
        })
    }

    /// Whether the quota that was parsed last has a burst.
    pub(crate) fn has_burst(&self) -> bool {
        self.has_burst
    }

    pub(crate) fn end(&self, otherwise: &'static str) -> Result<(), InvalidQuota> {
        if self.rest().is_empty() { Ok(()) } else { Err(self.expected(otherwise)) }
    }

    pub(crate) fn expected(&self, what: &'static str) -> InvalidQuota {
        let found = self.rest().chars().next();
        InvalidQuota::at(Reason::Expected { what, found }, self.position_of(self.at))
    }

    fn too_large(&self, start: usize) -> InvalidQuota {
        InvalidQuota::at(Reason::NumberTooLarge, self.position_of(start))
    }

    fn at_digit(&self) -> bool {
        self.rest().starts_with(|c: char| c.is_ascii_digit())
    }

    fn skip_blanks(&mut self) {
        self.while_char(char::is_whitespace);
    }

    fn while_char(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !wanted(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// The position in characters, not bytes.
    fn position_of(&self, byte: usize) -> usize {
        self.text[..byte].chars().count()
    }
}

pub(super) fn write_quota(quota: &Quota, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if *quota == Quota::unlimited() {
        return f.write_str(UNLIMITED);
    }
    write!(f, "{}", quota.limit())?;
    let nanos = quota.period().as_nanos();
    match UNITS.iter().find(|&&(_, unit)| u128::from(unit) == nanos) {
        Some((unit, _)) => write!(f, "/{unit}")?,
        None => {
            let (unit, length) = largest_unit_in(nanos);
            write!(f, " per {}{unit}", nanos / length)?;
        }
    }
    if quota.max_burst() != quota.limit() {
        write!(f, " burst {}", quota.max_burst())?;
    }
    Ok(())
}

fn largest_unit_in(nanos: u128) -> (&'static str, u128) {
    let (unit, length) =
        UNITS.iter().find(|&&(_, unit)| nanos.is_multiple_of(u128::from(unit))).unwrap_or(&("ns", 1));
    (unit, u128::from(*length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(text: &str) -> Quota {
        text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
    }

    fn complaint(text: &str) -> String {
        text.parse::<Quota>().expect_err(text).to_string()
    }

    extern crate std;
    use std::string::{String, ToString};

    #[test]
    fn common_spellings_are_parsed() {
        let seconds = Duration::from_secs;
        assert_eq!(quota("100/s"), Quota::per_second(100));
        assert_eq!(quota("5/min burst 10"), Quota::per_minute(5).burst(10));
        assert_eq!(quota("1 per 200ms"), Quota::every(Duration::from_millis(200)));
        assert_eq!(quota("300 per 20s"), Quota::per(300, seconds(20)));
        assert_eq!(quota("1000/day"), Quota::per_day(1_000));
        assert_eq!(quota("  10 / minute  "), Quota::per_minute(10));
        assert_eq!(quota("1_000_000/h"), Quota::per_hour(1_000_000));
        assert_eq!(quota("7 per 1min 30s burst 3"), Quota::per(7, seconds(90)).burst(3));
        assert_eq!(quota("3 per 1.5s"), Quota::per(3, Duration::from_millis(1_500)));
        assert_eq!(quota("1 per 0.25ms"), Quota::every(Duration::from_micros(250)));
        assert_eq!(quota("1 per 0.2_5ms"), Quota::every(Duration::from_micros(250)));
    }

    #[test]
    fn the_display_of_a_quota_parses_back() {
        for text in [
            "100/s",
            "5/min burst 10",
            "1 per 200ms",
            "300 per 20s",
            "1000/day",
            "2/week",
            "9 per 1500ns",
            "unlimited",
        ] {
            assert_eq!(quota(text).to_string(), text);
        }
    }

    #[test]
    fn errors_name_the_position_and_what_was_expected() {
        let table = [
            ("", "at character 1: the text ends, expected a number, as in 100/s"),
            ("-5/s", "at character 1: found '-', expected a number, as in 100/s"),
            ("NaN/s", "at character 1: found 'N', expected a number, as in 100/s"),
            ("1e9/s", "at character 2: found 'e', expected '/' or 'per', as in 100/s"),
            ("100", "at character 4: the text ends, expected '/' or 'per', as in 100/s"),
            (
                "100/",
                "at character 5: the text ends, expected a unit of time: us, ms, s, min, h, day or week",
            ),
            (
                "5/fortnight",
                "at character 3: found 'f', expected a unit of time: us, ms, s, min, h, day or week",
            ),
            ("5/s bursts 3", "at character 5: found 'b', expected 'burst' and a number, or nothing more"),
            ("5/s burst", "at character 10: the text ends, expected a number, as in 100/s"),
            ("5/s burst 3 4", "at character 13: found '4', expected nothing more"),
            ("0/s", "at character 1: a limit of 0 lets nothing pass; use 1 or more"),
            ("5 per 0s", "at character 1: a period of zero has no pace; use 1us or more"),
            ("5/s burst 0", "at character 1: a burst of 0 lets nothing pass; use 1 or more"),
            ("99999999999999999999/s", "at character 1: the number is too large"),
            (
                "unlimited burst 5",
                "at character 11: found 'b', expected nothing more: 'unlimited' has no period and no burst",
            ),
            (
                "unlimited/s",
                "at character 10: found '/', expected nothing more: 'unlimited' has no period and no burst",
            ),
            (
                "unlimited 5",
                "at character 11: found '5', expected nothing more: 'unlimited' has no period and no burst",
            ),
            ("unlimitedly", "at character 1: found 'u', expected a number, as in 100/s"),
            ("µ/s", "at character 1: found 'µ', expected a number, as in 100/s"),
        ];
        for (text, sentence) in table {
            assert_eq!(complaint(text), sentence, "for {text:?}");
        }
    }

    #[test]
    fn a_quota_that_cannot_be_exact_is_refused() {
        let sentence = complaint("1/week burst 20000");
        assert!(sentence.starts_with("at character 1: 1 per 604800s with a burst of 20000"), "{sentence}");
    }
}
