//! # PROXY protocol: the client's address ahead of the connection
//!
//! A proxy that forwards bytes, not requests, cannot add a header to a request. Such proxies name the client before
//! anything else, in a header of HAProxy's PROXY protocol:
//!
//! ```text
//!   PROXY TCP4 203.0.113.9 10.0.0.1 56324 443\r\n        GET / HTTP/1.1 …
//!   └─ header: names the client ─────────────┘           └─ what the client sends
//! ```
//!
//! Whether there is a header cannot be guessed: if the header were optional, every client could send one and claim any
//! address. So either all connections of a listener begin with a header, or none. Headers are read only from trusted
//! proxies, and no other peer can connect. Bytes that are not a header, a header that is too long, and one that takes
//! too long end the connection.
//!
//! Detecting the header for trusted addresses only would not help where the proxy and its clients share an
//! address, as on one machine. So no setting detects it.
//!
//! [`read`] parses bytes and does no I/O. [`ProxyProtocol`] reads a header from a tokio stream, and not one byte more.

#[cfg(feature = "tokio")]
mod accept;
mod v1;
mod v2;

#[cfg(feature = "tokio")]
pub use accept::{NotAccepted, ProxyProtocol};

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;

/// The longest header of version 1, in bytes.
pub const MOST_V1: usize = 107;
/// The longest header of version 2 that is accepted, in bytes.
///
/// The protocol allows up to 65,551 bytes.
pub const MOST_V2: usize = 4_096;

/// The result of parsing the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The header is incomplete.
    Incomplete {
        /// The minimum number of bytes still to come; never 0.
        missing: usize,
    },
    /// The header is complete. What the client sends comes after it.
    Complete {
        /// The client that the header names.
        of: Announced,
        /// The length of the header, in bytes.
        length: usize,
    },
}

/// The client that a proxy names in its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// No client: the proxy connects for itself, or does not know the client.
    ///
    /// Proxies connect for themselves for health checks, for instance. The address is that of the connection.
    Nobody,
    /// This address.
    Client(SocketAddr),
}

/// Why bytes are not a header of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidHeader {
    /// They do not begin like a header.
    NotAHeader,
    /// A line of version 1 is longer than 107 bytes.
    LineTooLong,
    /// A line of version 1 is not a family, two addresses of that family and two ports.
    NotALine,
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

/// Parses the first bytes of a connection.
///
/// ```
/// use tidegate::http::proxy_protocol::{Announced, Header, read};
///
/// let said = b"PROXY TCP4 192.0.2.1 192.0.2.2 123 5678\r\nGET / HTTP/1.1\r\n";
/// let of = Announced::Client("192.0.2.1:123".parse().unwrap());
/// assert_eq!(read(said), Ok(Header::Complete { of, length: 41 }));
/// assert_eq!(read(b"PROXY TCP4"), Ok(Header::Incomplete { missing: 5 }));
/// assert!(read(b"GET / HTTP/1.1\r\n").is_err());
/// ```
///
/// # Errors
///
/// [`InvalidHeader`], as soon as the bytes cannot be the beginning of a header.
pub fn read(bytes: &[u8]) -> Result<Header, InvalidHeader> {
    match bytes.first() {
        None => Ok(Header::Incomplete { missing: v1::SHORTEST }),
        Some(first) if *first == v2::SIGNATURE[0] => v2::read(bytes),
        Some(_) => v1::read(bytes),
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
                "the connection does not begin with a header of the PROXY protocol; have the proxy send one, or \
                 do not require it",
            ),
            InvalidHeader::LineTooLong => write!(f, "the header's line is longer than {MOST_V1} bytes"),
            InvalidHeader::NotALine => f.write_str(
                "the header's line is not a family, two addresses and two ports, as in \"PROXY TCP4 192.0.2.1 \
                 192.0.2.2 123 5678\"",
            ),
            InvalidHeader::Version { version } => {
                write!(f, "the header has version {version}; have the proxy send version 1 or 2")
            }
            InvalidHeader::Command { command } => write!(f, "the header has command {command}, which is none"),
            InvalidHeader::Family { family } => {
                write!(f, "the header has family {family:#04x}, which is not one of connections")
            }
            InvalidHeader::Length { length } => {
                write!(f, "the header says that {length} bytes follow, which is too few or too many")
            }
        }
    }
}

impl Error for InvalidHeader {}
