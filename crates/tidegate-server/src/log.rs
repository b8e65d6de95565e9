//! # What is said of itself
//!
//! One line for each thing that happens: that it listens, that a file is in force or is not, that Redis is lost, that an
//! administrator has blocked a key. Nothing is said for a request; for those there are [metrics](crate::admin).
//!
//! ```text
//!   text   tidegate: http on 127.0.0.1:8080
//!   json   {"time":"2026-11-16T15:39:47.012Z","level":"info","message":"http on 127.0.0.1:8080",
//!           "protocol":"http","address":"127.0.0.1:8080"}                                             (in one line)
//! ```
//!
//! The message reads by itself, for people; the fields say the same again, for programs. What is in order goes to standard
//! output and all else to standard error. A line stays a line whatever is in it: keys come from callers, and may hold
//! anything. Secrets never get here; what holds one does not show it (see [`config`](crate::config)).

mod writer;

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

pub(crate) use writer::{Stream, dropped, flush, write};

/// How it is said, if at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Log {
    /// Not at all.
    #[default]
    Silent,
    /// For people.
    Text,
    /// For programs: each line an object.
    Json,
}

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// As it should be.
    Info,
    /// It goes on, but not as it should.
    Warn,
    /// It does not go on.
    Error,
}

/// Something that has happened.
#[derive(Debug)]
#[must_use = "nothing is said before `say`"]
pub(crate) struct Event {
    log: Log,
    level: Level,
    message: String,
    /// More than a line of it, such as everything that is wrong with a file.
    detail: Option<String>,
    fields: Map<String, Value>,
}

impl Log {
    pub(crate) fn info(self, message: impl Into<String>) -> Event {
        Event::new(self, Level::Info, message.into())
    }

    pub(crate) fn warn(self, message: impl Into<String>) -> Event {
        Event::new(self, Level::Warn, message.into())
    }

    pub(crate) fn error(self, message: impl Into<String>) -> Event {
        Event::new(self, Level::Error, message.into())
    }
}

impl Event {
    fn new(log: Log, level: Level, message: String) -> Self {
        Event { log, level, message, detail: None, fields: Map::new() }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    /// Before the message, in as many lines as it has.
    pub(crate) fn detail(self, detail: impl Into<String>) -> Self {
        Event { detail: Some(detail.into()), ..self }
    }

    /// Says it soon: whoever reads the log may be slow, or go away.
    pub(crate) fn say(self) {
        let line = match self.log {
            Log::Silent => return,
            Log::Text => self.text(),
            Log::Json => self.json(SystemTime::now()),
        };
        write(if self.level == Level::Info { Stream::Output } else { Stream::Error }, line);
    }

    fn text(&self) -> String {
        let mut text = self.detail.clone().unwrap_or_default();
        text.push_str("tidegate: ");
        for letter in self.message.chars() {
            match letter {
                letter if letter.is_control() => text.extend(letter.escape_default()),
                letter => text.push(letter),
            }
        }
        text.push('\n');
        text
    }

    fn json(&self, now: SystemTime) -> String {
        let mut object = Map::new();
        object.insert("time".to_owned(), instant(now).into());
        object.insert("level".to_owned(), self.level.name().into());
        object.insert("message".to_owned(), self.message.as_str().into());
        object.extend(self.fields.clone());
        if let Some(detail) = &self.detail {
            object.insert("detail".to_owned(), detail.as_str().into());
        }
        format!("{}\n", Value::Object(object))
    }
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }
}

/// As RFC 3339 has it, to the millisecond.
fn instant(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (seconds, millis) = (since.as_secs(), since.subsec_millis());
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let mut text = String::new();
    let _ = write!(text, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z");
    text
}

/// The year, month and day that are so many days after the first of January 1970.
fn date(days: u64) -> (u64, u64, u64) {
    // Years that begin in March have the day that comes and goes at their end; 400 of them have always as many days.
    let days = days + 719_468; // since the first of March of the year 0
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // of 31, 30, 31, 30, 31 days, again and again
    let year = 400 * era + year + u64::from(month >= 10);
    (year, if month < 10 { month + 3 } else { month - 9 }, day - (153 * month + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_those_of_the_calendar() {
        let rows = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_001, "2000-03-01T00:00:00.001Z"),
            (1_798_761_599_000, "2026-12-31T23:59:59.000Z"),
            (1_798_761_600_000, "2027-01-01T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ];
        for (millis, expected) in rows {
            assert_eq!(instant(UNIX_EPOCH + Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn a_line_stays_a_line_whatever_is_in_it() {
        let key = "a\n{\"level\":\"info\"}\r\u{1b}[2J\u{9b}\"";
        let text = Log::Text.warn(format!("blocked {key}")).text();
        assert_eq!(text, "tidegate: blocked a\\n{\"level\":\"info\"}\\r\\u{1b}[2J\\u{9b}\"\n");

        let json = Log::Json.warn(format!("blocked {key}")).with("key", key).json(UNIX_EPOCH);
        assert_eq!(json.matches('\n').count(), 1, "{json}");
        let read: Value = serde_json::from_str(&json).expect("an object");
        assert_eq!((&read["level"], &read["key"]), (&"warn".into(), &key.into()));
        let names: Vec<_> = read.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(names, ["time", "level", "message", "key"]);
    }

    #[test]
    fn what_takes_many_lines_is_a_field_for_programs() {
        let event = Log::Json.error("a.yaml is not in force").detail("one\ntwo\n");
        assert_eq!(event.text(), "one\ntwo\ntidegate: a.yaml is not in force\n");
        let read: Value = serde_json::from_str(&event.json(UNIX_EPOCH)).expect("an object");
        assert_eq!(read["detail"], "one\ntwo\n");
    }
}
