//! # What proxies say
//!
//! A proxy adds on whose behalf it asks at the end of a header, after whatever the one before it has said. So the end
//! is what the nearest proxy wrote, and everything before it is only as good as the one that let it through. It is
//! read from the right, strictly, and reading ends at the first entry that is no address.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ::http::HeaderMap;
use ::http::header::{HeaderName, HeaderValue};

/// So many entries are looked at.
const MOST_HOPS: usize = 32;
/// So many bytes are looked at.
const MOST_BYTES: usize = 4 * 1024;

/// Which header proxies speak in.
#[derive(Clone, Debug)]
pub(super) enum Spoken {
    /// A list of addresses.
    List(HeaderName),
    /// The list of RFC 7239.
    Forwarded,
    /// One address, by a provider that says so.
    Single(HeaderName),
}

/// An entry that is no address, or one too many to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

impl Spoken {
    /// The addresses in the header, from the last to the first.
    pub(super) fn read_from_right<'a>(
        &'a self,
        headers: &'a HeaderMap,
    ) -> impl Iterator<Item = Result<IpAddr, Unreadable>> + 'a {
        let name = match self {
            Spoken::List(name) | Spoken::Single(name) => name,
            Spoken::Forwarded => &::http::header::FORWARDED,
        };
        let lines = headers.get_all(name).iter().rev();
        let mut bytes = 0;
        lines.flat_map(|line| self.entries(line)).enumerate().map(move |(index, entry)| {
            let entry = entry?;
            bytes += entry.len() + 1;
            let too_many = index >= MOST_HOPS || bytes > MOST_BYTES;
            if too_many { Err(Unreadable) } else { self.address(entry).ok_or(Unreadable) }
        })
    }

    /// The entries of one line, from the last to the first.
    fn entries<'a>(&self, line: &'a HeaderValue) -> Entries<'a> {
        let Ok(text) = line.to_str() else { return Entries::Unreadable(1) };
        match self {
            Spoken::List(_) => Entries::List(text.rsplit(',')),
            Spoken::Single(_) => Entries::Whole(Some(text)),
            Spoken::Forwarded => Entries::Quoted(quoted(text, b',')),
        }
    }

    fn address(&self, entry: &str) -> Option<IpAddr> {
        match self {
            Spoken::List(_) | Spoken::Single(_) => address(entry.trim_matches([' ', '\t'])),
            Spoken::Forwarded => forwarded_for(entry),
        }
    }
}

enum Entries<'a> {
    List(std::str::RSplit<'a, char>),
    Whole(Option<&'a str>),
    Quoted(Vec<&'a str>),
    /// So many entries that cannot be read.
    Unreadable(u8),
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<&'a str, Unreadable>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Entries::List(entries) => entries.next().map(Ok),
            Entries::Whole(entry) => entry.take().map(Ok),
            Entries::Quoted(entries) => entries.pop().map(Ok),
            Entries::Unreadable(left) => {
                *left = left.checked_sub(1)?;
                Some(Err(Unreadable))
            }
        }
    }
}

/// An address as proxies write it: with or without a port, of version 6 with or without brackets or a zone.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, port) = rest.split_once(']')?;
        let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_number);
        return if is_port { version_6(inside) } else { None };
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    match text.parse::<SocketAddr>() {
        Ok(SocketAddr::V4(address)) => Some(address.ip().to_owned().into()),
        _ => version_6(text),
    }
}

/// With its zone, which says nothing elsewhere, left out.
fn version_6(text: &str) -> Option<IpAddr> {
    let (address, zone) = text.split_once('%').unwrap_or((text, "0"));
    let address: Ipv6Addr = address.parse().ok().filter(|_| !zone.is_empty())?;
    Some(IpAddr::V6(address).to_canonical())
}

fn is_number(text: &str) -> bool {
    text.parse::<u16>().is_ok() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The address in an element such as `for="[2001:db8::17]:4711";proto=http`.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut found = quoted(element, b';').into_iter().filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then_some(value.trim())
    });
    let (value, none_more) = (found.next()?, found.next());
    if none_more.is_some() {
        return None; // who says it twice may mean either
    }
    match value.strip_prefix('"') {
        Some(rest) => address(rest.strip_suffix('"')?),
        None => address(value),
    }
}

/// The pieces between separators that do not stand in quotes.
pub(super) fn quoted(text: &str, separator: u8) -> Vec<&str> {
    let (mut pieces, mut from) = (Vec::new(), 0);
    let (mut inside, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if inside => escaped = true,
            b'"' => inside = !inside,
            _ if byte == separator && !inside => {
                pieces.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    pieces.push(&text[from..]);
    pieces
}
