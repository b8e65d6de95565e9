//! # Limits as text
//!
//! The text of a rule is the library's own, `100/s burst 200` or `sliding_window 5/s cells 10`, and one form more,
//! for those who are at work at once:
//!
//! ```text
//!   20 at once                   at most twenty at work
//!   20 at once lease 10s         whoever is silent for ten seconds is no longer counted
//! ```

use std::time::Duration;

use tidegate_core::{Algorithm, InvalidQuota, Micros, Outcome, Quota};

use super::near::did_you_mean;
use crate::rules::Limit;

/// How long a place is kept for somebody silent, unless a rule says otherwise.
pub const LEASE: Duration = Duration::from_secs(30);

/// What is wrong with a text, and where in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// In characters; `None` if it is not in one place.
    pub(crate) at: Option<usize>,
    pub(crate) what: String,
    pub(crate) help: Option<String>,
}

const ALGORITHMS: [&str; 8] = [
    "token_bucket",
    "gcra",
    "leaky_meter",
    "leaky_queue",
    "stepped_bucket",
    "fixed_window",
    "sliding_log",
    "sliding_window",
];

/// The quota that the library reads and the service rejects.
const UNLIMITED: &str = "unlimited";

/// What a text says may pass.
pub(crate) fn parse(text: &str) -> Result<Limit, Wrong> {
    match words(text).as_slice() {
        [count, (_, "at"), rest @ ..] => at_once(text, count, rest),
        // A rule without a limit is a mistake here, as any unknown word: keys without limits are listed under `allow`.
        _ => text.replacen(UNLIMITED, "u", 1).parse().map(Limit::Rate).map_err(|error| rate(text, &error)),
    }
}

/// A length of time: `20ms`, `1min 30s`.
pub(crate) fn period(text: &str) -> Option<Duration> {
    let is_period = text.trim().starts_with(|c: char| c.is_ascii_digit()) && !text.contains("burst");
    let quota = is_period.then(|| format!("1 per {text}").parse::<Quota>())?;
    quota.ok().map(|quota| quota.period())
}

/// Whether a request of this cost could ever pass.
pub(crate) fn has_room_for(limit: &Limit, cost: u32) -> bool {
    match limit {
        Limit::AtOnce { limit, .. } => cost <= *limit,
        Limit::Rate(rate) => {
            let fresh = vec![0; rate.words()];
            rate.peek(fresh.as_slice(), Micros::ZERO, cost).outcome != Outcome::Never
        }
    }
}

/// The words of a text, each with the character it begins at.
fn words(text: &str) -> Vec<(usize, &str)> {
    let start = |word: &str| word.as_ptr() as usize - text.as_ptr() as usize;
    text.split_whitespace().map(|word| (text[..start(word)].chars().count(), word)).collect()
}

fn at_once(text: &str, count: &(usize, &str), rest: &[(usize, &str)]) -> Result<Limit, Wrong> {
    let end = text.chars().count();
    let expected = |at: Option<&(usize, &str)>, what: &str| Wrong {
        at: Some(at.map_or(end, |(at, _)| *at)),
        what: format!("expected {what}"),
        help: None,
    };
    let limit = count.1.replace('_', "").parse::<u32>();
    let limit = limit.map_err(|_| expected(Some(count), "a whole number, as in 20 at once"))?;
    if limit == 0 {
        let what = "a limit of 0 lets nobody be at work; use 1 or more".to_owned();
        return Err(Wrong { at: Some(count.0), what, help: None });
    }
    match rest {
        [(_, "once")] => Ok(Limit::AtOnce { limit, lease: LEASE }),
        [(_, "once"), (_, "lease"), first @ (_, time), more @ ..] => {
            let time = more.iter().fold((*time).to_owned(), |text, (_, word)| text + " " + word);
            let lease = period(&time).ok_or_else(|| expected(Some(first), "a length of time, as in 10s"))?;
            Ok(Limit::AtOnce { limit, lease })
        }
        [(_, "once"), (_, "lease")] => Err(expected(None, "a length of time, as in lease 10s")),
        [(_, "once"), other, ..] => {
            Err(expected(Some(other), "'lease' and a length of time, or nothing more"))
        }
        _ => Err(expected(rest.first(), "'once', as in 20 at once")),
    }
}

fn rate(text: &str, error: &InvalidQuota) -> Wrong {
    let at = error.position();
    let sentence = error.to_string();
    let what = match (at, sentence.split_once(": ")) {
        (Some(_), Some((_, what))) => what.to_owned(), // without "at character n": the place is shown
        _ => sentence,
    };
    Wrong { at, what, help: help(text, at) }
}

/// What was meant, for the slips that are common.
fn help(text: &str, at: Option<usize>) -> Option<String> {
    let word: String =
        text.chars().skip(at?).take_while(|c| c.is_alphanumeric() || *c == '_' || *c == '-').collect();
    match word.as_str() {
        "month" | "months" | "mo" => Some("months differ in length; write `30 days`".into()),
        "year" | "years" | "y" => Some("years differ in length; write `365 days`".into()),
        "unlimited" | "none" => Some("who is not to be limited belongs under `allow`".into()),
        "r" => Some("write `10/s` for 10 requests in a second".into()),
        _ if at == Some(0) => did_you_mean(&word, ALGORITHMS),
        _ => did_you_mean(&word, WORDS),
    }
}

const WORDS: [&str; 14] = [
    "burst",
    "queue",
    "delay",
    "nodelay",
    "max_wait",
    "offset",
    "from",
    "first",
    "hit",
    "cells",
    "strict",
    "interpolated",
    "plain",
    "second",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_can_be_written() {
        for text in [
            "100/s burst 200",
            "token_bucket 10/s",
            "gcra 10/s",
            "leaky_queue 10/s queue 5 max_wait 300ms",
            "stepped_bucket 20/min burst 50 offset 10s",
            "fixed_window 5/min offset 10s",
            "fixed_window 5/min from first hit",
            "sliding_log 5/min",
            "sliding_window 5/s cells 5 interpolated",
        ] {
            assert_eq!(parse(text), Ok(Limit::Rate(text.parse().unwrap())), "{text}");
        }
        assert_eq!(parse("20 at once"), Ok(Limit::AtOnce { limit: 20, lease: LEASE }));
        let lease = Duration::from_secs(90);
        assert_eq!(parse("2_000  at once lease 1min 30s"), Ok(Limit::AtOnce { limit: 2_000, lease }));
    }

    #[test]
    fn mistakes_are_pointed_at() {
        let table = [
            ("slidng_log 5/s", Some(0), Some("did you mean `sliding_log`?")),
            ("10/s brust 5", Some(5), Some("did you mean `burst`?")),
            ("10/month", Some(3), Some("months differ in length; write `30 days`")),
            ("0/s", Some(0), None),
            ("0 at once", Some(0), None),
            ("5 at one", Some(5), None),
            ("5 at", Some(4), None),
            ("x at once", Some(0), None),
            ("5 at once lease", Some(15), None),
            ("5 at once lease soon", Some(16), None),
            ("5 at once please", Some(10), None),
            ("99999999999 at once", Some(0), None),
        ];
        for (text, at, help) in table {
            let wrong = parse(text).expect_err(text);
            assert_eq!((wrong.at, wrong.help.as_deref()), (at, help), "{text}: {}", wrong.what);
        }
    }

    #[test]
    fn a_length_of_time_is_nothing_else() {
        assert_eq!(period("20ms"), Some(Duration::from_millis(20)));
        assert_eq!(period("1min 30s"), Some(Duration::from_secs(90)));
        for text in ["", "s", "20", "0s", "-1s", "20ms burst 1", "1 per s"] {
            assert_eq!(period(text), None, "{text}");
        }
    }

    #[test]
    fn room_is_what_the_algorithm_says() {
        let room = |text: &str, cost| has_room_for(&parse(text).unwrap(), cost);
        for (text, most) in [
            ("10/s burst 20", 20),
            ("fixed_window 5/min", 5),
            ("leaky_queue 10/s queue 5", 6),
            ("3 at once", 3),
        ] {
            assert!(room(text, most) && !room(text, most + 1), "{text}");
        }
    }
}
