//! # Version 1: a line of text
//!
//! ```text
//!   PROXY TCP4 192.0.2.1 192.0.2.2 123 5678\r\n
//!   PROXY TCP6 2001:db8::1 2001:db8::2 123 5678\r\n
//!   PROXY UNKNOWN …\r\n                               the rest of the line is ignored
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{InvalidHeader, MAX_V1_BYTES, ParsedHeader, ProxiedClient, begins};

const START: &[u8] = b"PROXY ";
const END: &[u8] = b"\r\n";
/// The length of the shortest line: `PROXY UNKNOWN` and the line end.
pub(super) const MIN_BYTES: usize = 15;

pub(super) fn parse(bytes: &[u8]) -> Result<ParsedHeader, InvalidHeader> {
    if !begins(bytes, START) {
        return Err(InvalidHeader::NotAHeader);
    }
    let start = &bytes[..bytes.len().min(MAX_V1_BYTES)];
    match start.windows(END.len()).position(|two| two == END) {
        Some(end) => {
            let client = parse_line(&start[..end])?;
            Ok(ParsedHeader::Complete { client, length: end + END.len() })
        }
        None if start.len() == MAX_V1_BYTES => Err(InvalidHeader::LineTooLong),
        None => Ok(ParsedHeader::Incomplete { missing: missing(start) }),
    }
}

/// The minimum number of bytes still to come of an incomplete line.
fn missing(bytes: &[u8]) -> usize {
    let end = if bytes.ends_with(b"\r") { 1 } else { END.len() };
    MIN_BYTES.saturating_sub(bytes.len()).max(end)
}

fn parse_line(line: &[u8]) -> Result<ProxiedClient, InvalidHeader> {
    if let Some([] | [b' ', ..]) = line.strip_prefix(b"PROXY UNKNOWN") {
        return Ok(ProxiedClient::Unspecified); // the rest is ignored, even if it is not UTF-8
    }
    let text = std::str::from_utf8(line).map_err(|_| InvalidHeader::MalformedLine)?;
    let mut words = text.split(' ').skip(1);
    let source = match words.next() {
        Some("TCP4") => parse_source::<Ipv4Addr>(words),
        Some("TCP6") => parse_source::<Ipv6Addr>(words),
        _ => None,
    };
    source.map(ProxiedClient::Address).ok_or(InvalidHeader::MalformedLine)
}

/// Parses two addresses and two ports, and returns the source.
fn parse_source<'a, A>(mut words: impl Iterator<Item = &'a str>) -> Option<SocketAddr>
where
    A: std::str::FromStr + Into<IpAddr>,
{
    let mut address = || words.next()?.parse::<A>().ok();
    let (source, _destination) = (address()?, address()?);
    let mut port = || port(words.next()?);
    let (source_port, _destination_port) = (port()?, port()?);
    words.next().is_none().then(|| SocketAddr::new(source.into().to_canonical(), source_port))
}

/// Parses a decimal number without a sign and without leading zeros.
fn port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}
