//! # PROXY protocol
//!
//! A proxy that forwards TCP connections, not requests, cannot add a header to a request. Such a proxy sends the address
//! of the client at the start of the connection, in a header of HAProxy's PROXY protocol:
//!
//! ```text
//!   PROXY TCP4 203.0.113.9 10.0.0.1 56324 443\r\n        GET / HTTP/1.1 …
//!   └─ header: names the client ─────────────┘           └─ what the client sends
//! ```
//!
//! Whether there is a header cannot be guessed: if the header were optional, every client could send one and claim any
//! address. So either all connections of a listener begin with a header, or none. Headers are read only from trusted
//! proxies, and no other peer can connect. The connection is closed if it does
//! not begin with a header, or if the header is too long or arrives too late.
//!
//! There is no setting to detect whether a header is present, not even for trusted addresses only: where the proxy and
//! its clients share an address, as on one machine, clients could still send a header.
//!
//! [`parse`] parses bytes and does no I/O. [`ProxyProtocol`] reads a header from a tokio stream, and not one byte more.

#[cfg(feature = "tokio")]
mod accept;
mod v1;
mod v2;

#[cfg(feature = "tokio")]
pub use accept::{AcceptError, ProxyProtocol};

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;

/// The longest header of version 1, in bytes.
pub const MAX_V1_BYTES: usize = 107;
/// The longest header of version 2 that is accepted, in bytes.
///
/// The protocol allows up to 65,551 bytes.
pub const MAX_V2_BYTES: usize = 4_096;

/// The result of parsing the start of a connection: see [`parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParsedHeader {
    /// The header is incomplete.
    Incomplete {
        /// The minimum number of bytes still to come; never 0.
        missing: usize,
    },
    /// The header is complete. What the client sends comes after it.
    Complete {
        /// The client that the header names.
        client: ProxiedClient,
        /// The length of the header, in bytes.
        length: usize,
    },
}

/// The client address in a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxiedClient {
    /// No address: `LOCAL`, `UNKNOWN`, or a family without IP addresses.
    ///
    /// The proxy sends it for connections of its own, such as health checks. Use the address of the socket.
    Unspecified,
    /// The address and the port of the client.
    Address(SocketAddr),
}

/// Why bytes are not a header of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidHeader {
    /// The connection does not begin with a header.
    NotAHeader,
    /// A line of version 1 is longer than 107 bytes.
    LineTooLong,
    /// A line of version 1 does not consist of a family, two addresses of it and two ports.
    MalformedLine,
    /// A binary header has a version other than 2.
    Version {
        /// The version.
        version: u8,
    },
    /// A header of version 2 has a command other than `LOCAL` and `PROXY`.
    Command {
        /// The command.
        command: u8,
    },
    /// A header of version 2 has a family that no connection can have.
    Family {
        /// The byte of the family and the transport.
        family: u8,
    },
    /// A header of version 2 has a length that is too small or too large.
    Length {
        /// The number of bytes after the first 16, as the header states it.
        length: usize,
    },
}

/// Parses a PROXY header, of version 1 or 2, from the first bytes of a connection.
///
/// ```
/// use tidegate::http::proxy_protocol::{ProxiedClient, ParsedHeader, parse};
///
/// let bytes = b"PROXY TCP4 192.0.2.1 192.0.2.2 123 5678\r\nGET / HTTP/1.1\r\n";
/// let client = ProxiedClient::Address("192.0.2.1:123".parse().unwrap());
/// assert_eq!(parse(bytes), Ok(ParsedHeader::Complete { client, length: 41 }));
/// assert_eq!(parse(b"PROXY TCP4"), Ok(ParsedHeader::Incomplete { missing: 5 }));
/// assert!(parse(b"GET / HTTP/1.1\r\n").is_err());
/// ```
///
/// # Errors
///
/// [`InvalidHeader`], as soon as the bytes cannot be the beginning of a header.
pub fn parse(bytes: &[u8]) -> Result<ParsedHeader, InvalidHeader> {
    match bytes.first() {
        None => Ok(ParsedHeader::Incomplete { missing: v1::MIN_BYTES }),
        Some(first) if *first == v2::SIGNATURE[0] => v2::parse(bytes),
        Some(_) => v1::parse(bytes),
    }
}

/// Whether `bytes` begin with `start`, as far as they go.
fn begins(bytes: &[u8], start: &[u8]) -> bool {
    bytes.iter().zip(start).all(|(byte, start)| byte == start)
}

impl fmt::Display for InvalidHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidHeader::NotAHeader => f.write_str(
                "the connection does not begin with a PROXY header; enable the PROXY protocol on the proxy, or disable \
                 it on this listener",
            ),
            InvalidHeader::LineTooLong => write!(f, "the PROXY header (version 1) is longer than {MAX_V1_BYTES} bytes"),
            InvalidHeader::MalformedLine => f.write_str(
                "malformed PROXY header (version 1): expected a family, two addresses and two ports, as in \"PROXY TCP4 \
                 192.0.2.1 192.0.2.2 123 5678\"",
            ),
            InvalidHeader::Version { version } => {
                write!(f, "unsupported PROXY protocol version {version}; configure the proxy to send version 1 or 2")
            }
            InvalidHeader::Command { command } => {
                write!(f, "unknown command {command} in the PROXY header; expected 0 (LOCAL) or 1 (PROXY)")
            },
            InvalidHeader::Family { family } => {
                write!(f, "unsupported address family {family:#04x} in the PROXY header; expected TCP over IPv4 or IPv6")
            }
            InvalidHeader::Length { length } => {
                write!(f, "invalid length {length} in the PROXY header: too small for its addresses, or too large")
            }
        }
    }
}

impl Error for InvalidHeader {}
