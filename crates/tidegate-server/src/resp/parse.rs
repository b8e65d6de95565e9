//! # What a client says
//!
//! A request is an array of byte strings, each with its length in front; or a line of words, for people at a terminal:
//!
//! ```text
//!   *3\r\n  $4\r\n ECHO \r\n  $2\r\n hi \r\n ...        array: count, then length and bytes of each
//!   ECHO hi\r\n                                       line: words, perhaps in quotes
//! ```
//!
//! The simplest parser builds a list of strings. That is an allocation for each word of each request, and a client that
//! announces a length of 500 MB is believed. This one builds nothing: it notes where each argument lies in the bytes that
//! were read, and every length is judged by the [`Bounds`] when it is *announced*. If the request is not all there yet it
//! says how many bytes there must be before it is worth asking again, so that nobody makes it read the same beginning a
//! thousand times by sending one byte after the other.
//!
//! It is stricter than Redis in one thing: what follows the bytes of an argument must be `\r\n`, and not any two bytes.

use std::fmt;

use crate::engine::LONGEST_VALUE;

/// How much a request may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bounds {
    /// Arguments, with the name of the command.
    pub args: usize,
    /// Bytes of one argument.
    pub arg: usize,
    /// Bytes of the whole request, with all its lengths.
    pub request: usize,
    /// Bytes of a request that is a line.
    pub line: usize,
}

/// Where the arguments of a request lie. Kept from one request to the next, so that nothing is allocated.
#[derive(Debug, Default)]
pub struct Places(Vec<(usize, usize)>);

/// A request: its arguments, of which the first is the name of the command.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    bytes: &'a [u8],
    places: &'a [(usize, usize)],
}

/// What came of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A request, of so many bytes. It may be empty: then there is nothing to answer.
    Whole(usize),
    /// Not yet: there must be so many bytes at least.
    Needs(usize),
}

/// Why these bytes are no request. There is no going on from here: nobody knows where the next would begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// The number of arguments is no number, or too large.
    Count,
    /// The length of an argument is no number, or too large.
    Length,
    /// Something else where the length of an argument should begin.
    NoLength(u8),
    /// An argument goes on where it should end.
    NoEnd,
    /// All arguments together are too long.
    Request,
    /// A line that is too long.
    Line,
    /// Quotes in a line that do not match, or with a backslash between them.
    Quotes,
}

/// The longest line that can announce a count or a length, with its end: `*`, a sign, 19 digits.
const NUMBER: usize = 23;

impl Default for Bounds {
    fn default() -> Self {
        Bounds { args: 1024, arg: LONGEST_VALUE, request: 1 << 20, line: 4 << 10 }
    }
}

impl Bounds {
    /// For those of whom nobody knows who they are: enough to say it.
    pub(crate) fn for_strangers(self) -> Self {
        Bounds { args: self.args.min(16), request: self.request.min(16 << 10), ..self }
    }
}

/// Reads one request from the beginning of `bytes`, and notes where its arguments lie.
///
/// ```
/// use tidegate_server::resp::{Bounds, Parsed, Places, parse};
///
/// let (bytes, mut places) = (b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\nPING\r\n", Places::default());
/// assert_eq!(parse(bytes, &Bounds::default(), &mut places), Ok(Parsed::Whole(22)));
/// let request = places.request(bytes);
/// assert_eq!((request.name(), request.arg(1)), (&b"ECHO"[..], Some(&b"hi"[..])));
///
/// assert_eq!(parse(b"*2\r\n$4\r\nEC", &Bounds::default(), &mut places), Ok(Parsed::Needs(14)));
/// ```
///
/// # Errors
///
/// [`Malformed`] if no request begins like this, or one larger than the bounds.
pub fn parse(bytes: &[u8], bounds: &Bounds, places: &mut Places) -> Result<Parsed, Malformed> {
    places.0.clear();
    match bytes.first() {
        None => Ok(Parsed::Needs(1)),
        Some(b'*') => array(bytes, bounds, places),
        Some(_) => line(bytes, bounds, places),
    }
}

fn array(bytes: &[u8], bounds: &Bounds, places: &mut Places) -> Result<Parsed, Malformed> {
    let Some((count, mut at)) = number(bytes, 0, Malformed::Count)? else {
        return Ok(Parsed::Needs(bytes.len() + 1));
    };
    let count = usize::try_from(count).unwrap_or(0); // below zero is none, as in Redis
    if count > bounds.args {
        return Err(Malformed::Count);
    }
    for _ in 0..count {
        match bytes.get(at) {
            None => return Ok(Parsed::Needs(at + 1)),
            Some(b'$') => {}
            Some(other) => return Err(Malformed::NoLength(*other)),
        }
        let Some((length, from)) = number(bytes, at, Malformed::Length)? else {
            return Ok(Parsed::Needs(bytes.len() + 1));
        };
        let length = usize::try_from(length).ok().filter(|length| *length <= bounds.arg);
        let to = from + length.ok_or(Malformed::Length)?;
        at = to + 2;
        if at > bounds.request {
            return Err(Malformed::Request);
        }
        match bytes.get(to..at) {
            Some(b"\r\n") => places.0.push((from, to)),
            Some(_) => return Err(Malformed::NoEnd),
            None => return Ok(Parsed::Needs(at)),
        }
    }
    Ok(Parsed::Whole(at))
}

/// The number after the letter at `at`, and where its line ends. `None` if that is not there yet.
#[inline]
fn number(bytes: &[u8], at: usize, wrong: Malformed) -> Result<Option<(i64, usize)>, Malformed> {
    let text = &bytes[at + 1..];
    // Nearly all are one or two digits.
    match *text {
        [a @ b'0'..=b'9', b'\r', b'\n', ..] => return Ok(Some((i64::from(a - b'0'), at + 4))),
        [a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', b'\n', ..] => {
            return Ok(Some((i64::from(a - b'0') * 10 + i64::from(b - b'0'), at + 5)));
        }
        _ => {}
    }
    let line = &text[..text.len().min(NUMBER)];
    match line.iter().position(|byte| *byte == b'\r') {
        None if line.len() == NUMBER => Err(wrong),
        None => Ok(None),
        Some(end) => match line.get(end + 1) {
            None if end + 1 < NUMBER => Ok(None),
            Some(b'\n') => Ok(Some((whole_number(&line[..end]).ok_or(wrong)?, at + end + 3))),
            _ => Err(wrong),
        },
    }
}

/// A number as Redis writes them: no plus, no zeros in front.
fn whole_number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_plain = matches!(digits, [b'1'..=b'9', ..]) || text == b"0";
    if !is_plain {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn line(bytes: &[u8], bounds: &Bounds, places: &mut Places) -> Result<Parsed, Malformed> {
    let within = &bytes[..bytes.len().min(bounds.line)];
    let Some(end) = within.iter().position(|byte| *byte == b'\n') else {
        return if within.len() == bounds.line {
            Err(Malformed::Line)
        } else {
            Ok(Parsed::Needs(bytes.len() + 1))
        };
    };
    let text = within[..end].strip_suffix(b"\r").unwrap_or(&within[..end]);
    words(text, bounds, places)?;
    Ok(Parsed::Whole(end + 1))
}

fn words(text: &[u8], bounds: &Bounds, places: &mut Places) -> Result<(), Malformed> {
    let mut at = 0;
    while let Some(skipped) = text[at..].iter().position(|byte| !byte.is_ascii_whitespace()) {
        let (place, after) = word(text, at + skipped)?;
        at = after;
        places.0.push(place);
        if places.0.len() > bounds.args {
            return Err(Malformed::Count);
        }
    }
    Ok(())
}

/// The word that begins at `at`, and where to look for the next.
fn word(text: &[u8], at: usize) -> Result<((usize, usize), usize), Malformed> {
    let quote = text[at];
    if !matches!(quote, b'"' | b'\'') {
        let end =
            text[at..].iter().position(u8::is_ascii_whitespace).map_or(text.len(), |length| at + length);
        let is_plain = !text[at..end].iter().any(|byte| matches!(byte, b'"' | b'\''));
        return if is_plain { Ok(((at, end), end)) } else { Err(Malformed::Quotes) };
    }
    let from = at + 1;
    let length = text[from..].iter().position(|byte| *byte == quote).ok_or(Malformed::Quotes)?;
    let to = from + length;
    let ends_there = text.get(to + 1).is_none_or(u8::is_ascii_whitespace);
    // What a backslash stands for would have to be written somewhere, and arguments are where they were read.
    if ends_there && !text[from..to].contains(&b'\\') {
        Ok(((from, to), to + 1))
    } else {
        Err(Malformed::Quotes)
    }
}

// === impl Places ===

impl Places {
    /// The request that was read from these bytes.
    #[must_use]
    pub fn request<'a>(&'a self, bytes: &'a [u8]) -> Request<'a> {
        Request { bytes, places: &self.0 }
    }

    /// The places of arguments that are kept somewhere else, laid end to end.
    pub(crate) fn end_to_end(&mut self, lengths: impl Iterator<Item = usize>) {
        self.0.clear();
        let mut at = 0;
        self.0.extend(lengths.map(|length| {
            at += length;
            (at - length, at)
        }));
    }
}

// === impl Request ===

impl<'a> Request<'a> {
    /// The name of the command, as it was written; empty if the request is.
    #[inline]
    #[must_use]
    pub fn name(self) -> &'a [u8] {
        self.arg(0).unwrap_or_default()
    }

    /// The argument of this number; the name of the command is number 0.
    #[inline]
    #[must_use]
    pub fn arg(self, number: usize) -> Option<&'a [u8]> {
        let (from, to) = *self.places.get(number)?;
        self.bytes.get(from..to)
    }

    /// How many arguments there are, with the name of the command.
    #[inline]
    #[must_use]
    pub fn len(self) -> usize {
        self.places.len()
    }

    /// Whether there is nothing to answer.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.places.is_empty()
    }

    /// Whether it is a line of a request of HTTP: its first, or the one that names the host.
    pub(crate) fn is_http(self) -> bool {
        let is_inline = self.bytes.first().is_some_and(|byte| *byte != b'*');
        let is = |name: &[u8]| self.name().eq_ignore_ascii_case(name);
        let is_first = || self.arg(self.len() - 1).is_some_and(|last| last.starts_with(b"HTTP/"));
        is_inline && (is(b"POST") || is(b"GET") || is(b"Host:") || is_first())
    }

    /// The arguments from this number on.
    pub fn args(self, from: usize) -> impl Iterator<Item = &'a [u8]> {
        (from..self.len()).filter_map(move |number| self.arg(number))
    }
}

impl fmt::Debug for Request<'_> {
    /// The name only: arguments may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({}, {} arguments)", self.name().escape_ascii(), self.len().saturating_sub(1))
    }
}

// === impl Malformed ===

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Count => f.write_str("invalid multibulk length"),
            Malformed::Length => f.write_str("invalid bulk length"),
            Malformed::NoLength(other) => write!(f, "expected '$', got '{}'", other.escape_ascii()),
            Malformed::NoEnd => f.write_str("expected '\\r\\n' after a bulk string"),
            Malformed::Request => f.write_str("too big request"),
            Malformed::Line => f.write_str("too big inline request"),
            Malformed::Quotes => f.write_str("unbalanced quotes in request"),
        }
    }
}

impl std::error::Error for Malformed {}
