//! # The client's address, told ahead of the connection
//!
//! A proxy that passes on bytes, and not requests, cannot add a header. Such proxies say on whose behalf they connect
//! before anything else, in a header of HAProxy's PROXY protocol:
//!
//! ```text
//!   PROXY TCP4 203.0.113.9 10.0.0.1 56324 443\r\n        GET / HTTP/1.1 …
//!   └─ header: who it is for ────────────────┘           └─ what the client sends
//! ```
//!
//! Whether there is one cannot be guessed: to a listener that takes it if it comes, everybody can send one and be whoever
//! they like. So a listener has either all of its connections begin with a header or none. It is read from proxies that are
//! trusted, and nobody else can connect; and whatever is not a header, is too long or takes too long ends the connection.
//!
//! [`read`] looks at bytes and nothing else, for whoever reads them in some other way. [`ProxyProtocol`] reads a header from
//! a stream of tokio's, and not one byte more.

#[cfg(feature = "tokio")]
mod accept;
mod v1;
mod v2;

#[cfg(feature = "tokio")]
pub use accept::{NotAccepted, ProxyProtocol};

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;

/// The longest header of version 1.
pub const MOST_V1: usize = 107;
/// The longest header of version 2 that is taken. The protocol would have up to 65,551 bytes.
pub const MOST_V2: usize = 4_096;

/// What the first bytes of a connection say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The header is not complete: it has at least so many bytes more.
    Incomplete {
        /// How many, and never 0.
        missing: usize,
    },
    /// The header is these many bytes long. What the client sends comes after it.
    Complete {
        /// On whose behalf the connection is.
        of: Announced,
        /// How many bytes.
        length: usize,
    },
}

/// On whose behalf a proxy connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// On its own, as for a health check, or it does not know: the address is that of the connection.
    Nobody,
    /// For this address.
    Client(SocketAddr),
}

/// Why bytes are no header of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidHeader {
    /// They do not begin as one.
    NotAHeader,
    /// A line of version 1 is longer than 107 bytes.
    LineTooLong,
    /// A line of version 1 does not name a family, two addresses of it and two ports.
    NotALine,
    /// A header of version 2 has another version.
    Version {
        /// Which.
        version: u8,
    },
    /// A header of version 2 has a command that is not `LOCAL` or `PROXY`.
    Command {
        /// Which.
        command: u8,
    },
    /// A header of version 2 has a family that no connection can have.
    Family {
        /// Which: the family and the transport.
        family: u8,
    },
    /// A header of version 2 has another length than it may have.
    Length {
        /// How many bytes it says will follow its first 16.
        length: usize,
    },
}

/// What the first bytes of a connection say.
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
/// [`InvalidHeader`], as soon as the bytes cannot become a header any more.
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
