//! # Reading a PROXY header from a connection
//!
//! Each read asks for no more bytes than the header is certain to need. The length of a version 1 line is not known in
//! advance, so its end is read one or two bytes at a time. What the client sends thus stays in the stream, and nothing
//! has to be put back.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};

use super::{Announced, Header, InvalidHeader, MOST_V2, read};
use crate::http::TrustedProxies;

/// The default time limit for a header.
const WITHIN: Duration = Duration::from_secs(2);

/// Reads the PROXY header of each connection to a listener behind proxies.
///
/// ```
/// use tidegate::http::TrustedProxies;
/// use tidegate::http::proxy_protocol::ProxyProtocol;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
/// # runtime.block_on(async {
/// let protocol = ProxyProtocol::from(TrustedProxies::new(["10.0.0.0/8"])?);
/// let mut stream = &b"PROXY TCP4 203.0.113.9 10.0.0.1 56324 443\r\nGET / HTTP/1.1\r\n"[..]; // usually a TcpStream
/// let client = protocol.accept(&mut stream, "10.0.0.7:4711".parse()?).await?;
/// assert_eq!(client, "203.0.113.9:56324".parse()?);
/// assert!(stream.starts_with(b"GET"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Read the headers of several connections at the same time. A listener that waits for one header before it accepts the
/// next connection makes all clients wait for the slowest.
#[derive(Clone, Debug)]
pub struct ProxyProtocol {
    trusted: TrustedProxies,
    within: Duration,
}

/// Why a connection must be closed.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotAccepted {
    /// The peer is not a trusted proxy.
    NotTrusted {
        /// The address of the peer.
        peer: SocketAddr,
    },
    /// The connection does not begin with a valid header.
    Invalid(InvalidHeader),
    /// The header did not arrive in time.
    TooLate {
        /// The time limit.
        within: Duration,
    },
    /// The connection ended before the header was complete.
    Ended,
    /// Reading from the connection failed.
    Failed(io::Error),
}

impl From<TrustedProxies> for ProxyProtocol {
    /// Trusts these proxies.
    fn from(trusted: TrustedProxies) -> Self {
        ProxyProtocol { trusted, within: WITHIN }
    }
}

impl ProxyProtocol {
    /// Sets the time limit for a header; 2 seconds by default.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        ProxyProtocol { within, ..self }
    }

    /// Reads the header of a connection from `peer`, and returns the client's address.
    ///
    /// If the header names no client, that is the address of `peer`. What follows the header is still in the stream.
    ///
    /// # Errors
    ///
    /// [`NotAccepted`]. The connection must then be closed: part of the header may have been read from the stream.
    pub async fn accept<S>(&self, stream: &mut S, peer: SocketAddr) -> Result<SocketAddr, NotAccepted>
    where
        S: AsyncRead + Unpin,
    {
        if !self.trusted.contains(peer.ip()) {
            return Err(NotAccepted::NotTrusted { peer });
        }
        let read = tokio::time::timeout(self.within, header(stream)).await;
        match read.map_err(|_| NotAccepted::TooLate { within: self.within })?? {
            Announced::Client(client) => Ok(client),
            Announced::Nobody => Ok(SocketAddr::new(peer.ip().to_canonical(), peer.port())),
        }
    }
}

async fn header<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Announced, NotAccepted> {
    let mut bytes = [0; MOST_V2];
    let mut there = 0;
    loop {
        match read(&bytes[..there]).map_err(NotAccepted::Invalid)? {
            Header::Complete { of, .. } => return Ok(of),
            Header::Incomplete { missing } => {
                let end = MOST_V2.min(there + missing);
                there += some(stream, &mut bytes[there..end]).await?;
            }
        }
    }
}

/// Reads the bytes that are available, at least one.
async fn some<S: AsyncRead + Unpin>(stream: &mut S, place: &mut [u8]) -> Result<usize, NotAccepted> {
    let mut place = ReadBuf::new(place);
    poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, &mut place)).await.map_err(NotAccepted::Failed)?;
    match place.filled().len() {
        0 => Err(NotAccepted::Ended),
        read => Ok(read),
    }
}

impl fmt::Display for NotAccepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotAccepted::NotTrusted { peer } => {
                write!(f, "{peer} is not one of the proxies that are trusted; add it to them, or keep it out")
            }
            NotAccepted::Invalid(_) => f.write_str("the connection has no header that could be read"),
            NotAccepted::TooLate { within } => {
                write!(f, "the header was not there within {within:?}; have the proxy send it at once")
            }
            NotAccepted::Ended => f.write_str("the connection ended before its header did"),
            NotAccepted::Failed(_) => f.write_str("the connection failed while its header was read"),
        }
    }
}

impl Error for NotAccepted {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            NotAccepted::Invalid(why) => Some(why),
            NotAccepted::Failed(why) => Some(why),
            NotAccepted::NotTrusted { .. } | NotAccepted::TooLate { .. } | NotAccepted::Ended => None,
        }
    }
}
