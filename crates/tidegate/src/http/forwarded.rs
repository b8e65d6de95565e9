//! # Parsing forwarding headers
//!
//! Each proxy appends the client that it forwards for to a header, after the entries of the proxies before it. So the
//! last entry is written by the nearest proxy, and every entry before it is only as reliable as the proxy that let it
//! through. The header is parsed from the right, strictly, and parsing ends at the first entry that is not an address.
//!
//! Nothing further to the left affects how an entry is parsed: no invalid byte, and no quote that is never closed.
//! Otherwise a client could make the entry of a trusted proxy unreadable, and be taken for the proxy.
//!
//! A parser that starts at the left reads the client's own entries first, and an invalid byte or an open quote in them
//! can hide the rest of the line. Then only the address of the proxy is left, which all clients share, and the client
//! has escaped its own limit. Quotes can be followed from the right, too: in a
//! well-formed header an opening quote follows an equals sign, and a backslash occurs only before an escaped
//! character.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ::http::HeaderMap;
use ::http::header::HeaderName;

/// The maximum number of entries that are parsed.
const MAX_HOPS: usize = 32;
/// The maximum number of bytes that are parsed.
const MAX_BYTES: usize = 4 * 1024;

/// A header in which proxies name the client, and its format.
#[derive(Clone, Debug)]
pub(super) enum ForwardingHeader {
    /// A list of addresses.
    List(HeaderName),
    /// The list of RFC 7239.
    Forwarded,
    /// One address, in a header of a provider.
    Single(HeaderName),
}

/// An entry that is not an address, or beyond the maximum of entries or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidEntry;

impl ForwardingHeader {
    /// The addresses in the header, from the last to the first.
    pub(super) fn read_from_right<'a>(
        &'a self,
        headers: &'a HeaderMap,
    ) -> impl Iterator<Item = Result<IpAddr, InvalidEntry>> + 'a {
        let lines = headers.get_all(self.name()).iter().rev();
        let mut bytes = 0;
        lines.flat_map(|line| self.entries(line.as_bytes())).enumerate().map(move |(index, entry)| {
            bytes += entry.len() + 1;
            let too_many = index >= MAX_HOPS || bytes > MAX_BYTES;
            if too_many { Err(InvalidEntry) } else { self.address(entry).ok_or(InvalidEntry) }
        })
    }

    pub(super) fn name(&self) -> &HeaderName {
        match self {
            ForwardingHeader::List(name) | ForwardingHeader::Single(name) => name,
            ForwardingHeader::Forwarded => &::http::header::FORWARDED,
        }
    }

    /// The entries of one header line, from the last to the first.
    fn entries<'a>(&self, line: &'a [u8]) -> FromRight<'a> {
        let last = match self {
            ForwardingHeader::List(_) => last_of,
            ForwardingHeader::Single(_) => |_: &[u8], _| None,
            ForwardingHeader::Forwarded => last_outside_quotes,
        };
        FromRight { rest: Some(line), separator: b',', last }
    }

    fn address(&self, entry: &[u8]) -> Option<IpAddr> {
        match self {
            ForwardingHeader::List(_) | ForwardingHeader::Single(_) => {
                address(std::str::from_utf8(entry.trim_ascii()).ok()?)
            }
            ForwardingHeader::Forwarded => forwarded_for(entry),
        }
    }
}

// === Pieces, from the right ===

/// The pieces between separators, from the last to the first.
pub(super) struct FromRight<'a> {
    /// What has not been parsed yet.
    rest: Option<&'a [u8]>,
    separator: u8,
    last: fn(&[u8], u8) -> Option<usize>,
}

impl<'a> Iterator for FromRight<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest.take()?;
        let Some(at) = (self.last)(rest, self.separator) else { return Some(rest) };
        self.rest = Some(&rest[..at]);
        Some(&rest[at + 1..])
    }
}

/// The pieces between separators outside of quotes, from the last to the first.
pub(super) fn outside_quotes(text: &[u8], separator: u8) -> FromRight<'_> {
    FromRight { rest: Some(text), separator, last: last_outside_quotes }
}

fn last_of(text: &[u8], separator: u8) -> Option<usize> {
    text.iter().rposition(|byte| *byte == separator)
}

fn last_outside_quotes(text: &[u8], separator: u8) -> Option<usize> {
    let mut in_quotes = false;
    for (at, byte) in text.iter().enumerate().rev() {
        match *byte {
            b'"' if in_quotes && is_escaped(text, at) => {}
            b'"' => in_quotes = !in_quotes,
            byte if byte == separator && !in_quotes => return Some(at),
            _ => {}
        }
    }
    None
}

/// Whether an odd number of backslashes precedes this position, so that it is escaped.
fn is_escaped(text: &[u8], at: usize) -> bool {
    text[..at].iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

// === Addresses ===

/// Parses an address as proxies write it.
///
/// IPv4 and bracketed IPv6 addresses may have a port. IPv6 addresses may have brackets and a zone.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, port) = rest.split_once(']')?;
        let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_number);
        return if is_port { ipv6(inside) } else { None };
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    match text.parse::<SocketAddr>() {
        Ok(SocketAddr::V4(address)) => Some(address.ip().to_owned().into()),
        _ => ipv6(text),
    }
}

/// Parses an IPv6 address without its zone, which means nothing on other machines.
fn ipv6(text: &str) -> Option<IpAddr> {
    let (address, zone) = text.split_once('%').unwrap_or((text, "0"));
    let address: Ipv6Addr = address.parse().ok().filter(|_| !zone.is_empty())?;
    Some(IpAddr::V6(address).to_canonical())
}

fn is_number(text: &str) -> bool {
    text.parse::<u16>().is_ok() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Parses the address of an element such as `for="[2001:db8::17]:4711";proto=http`.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut found = outside_quotes(element, b';').filter_map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (pair[..at].trim_ascii(), pair[at + 1..].trim_ascii());
        name.eq_ignore_ascii_case(b"for").then_some(value)
    });
    let (value, second) = (found.next()?, found.next());
    if second.is_some() {
        return None; // ambiguous: two `for` parameters
    }
    address(without_obfuscated_port(&unquoted(value)?))
}

/// The value itself, or the text between its quotes, without the backslashes that escape.
fn unquoted(value: &[u8]) -> Option<Cow<'_, str>> {
    let Some(rest) = value.strip_prefix(b"\"") else { return std::str::from_utf8(value).ok().map(Cow::from) };
    let (mut bytes, mut unescaped) = (rest.strip_suffix(b"\"")?.iter(), Vec::new());
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => unescaped.push(*bytes.next()?),
            b'"' => return None,
            byte => unescaped.push(*byte),
        }
    }
    String::from_utf8(unescaped).ok().map(Cow::from)
}

/// Removes an obfuscated port, as in `192.0.2.60:_a`.
///
/// RFC 7239 allows it beside numbers.
fn without_obfuscated_port(node: &str) -> &str {
    let is_obfuscated = |port: &str| {
        !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    match node.rsplit_once(":_") {
        Some((address, port)) if is_obfuscated(port) => address,
        _ => node,
    }
}
