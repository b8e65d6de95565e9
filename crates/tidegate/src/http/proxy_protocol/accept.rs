//! # Reading a PROXY header from a connection
//!
//! Each read asks for no more bytes than the header is certain to need. The length of a version 1 line is not known in
//! advance, so its end is read one or two bytes at a time. So the bytes of the client stay in the stream, and none
//! have to be put back.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};

use super::{InvalidHeader, MAX_V2_BYTES, ParsedHeader, ProxiedClient, parse};
use crate::http::TrustedProxies;

/// The default timeout for a header.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

/// Accepts connections from trusted proxies that begin with a PROXY header.
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
    timeout: Duration,
}

/// Why a connection was not accepted. It must be closed.
#[derive(Debug)]
#[non_exhaustive]
pub enum AcceptError {
    /// The peer is not a trusted proxy.
    UntrustedProxy {
        /// The address of the peer.
        peer: SocketAddr,
    },
    /// The connection does not begin with a valid header.
    InvalidHeader(InvalidHeader),
    /// The header did not arrive before the timeout.
    Timeout {
        /// The timeout.
        timeout: Duration,
    },
    /// The connection ended before the header was complete.
    UnexpectedEof,
    /// Reading from the connection failed.
    Io(io::Error),
}

impl From<TrustedProxies> for ProxyProtocol {
    /// Trusts these proxies.
    fn from(trusted: TrustedProxies) -> Self {
        ProxyProtocol { trusted, timeout: DEFAULT_TIMEOUT }
    }
}

impl ProxyProtocol {
    /// Sets the timeout for a header; 2 seconds by default.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        ProxyProtocol { timeout, ..self }
    }

    /// Reads the header of a connection from `peer`, and returns the client's address.
    ///
    /// If the header names no client, that is the address of `peer`. What follows the header is still in the stream.
    ///
    /// # Errors
    ///
    /// [`AcceptError`]. The connection must then be closed: part of the header may have been read from the stream.
    pub async fn accept<S>(&self, stream: &mut S, peer: SocketAddr) -> Result<SocketAddr, AcceptError>
    where
        S: AsyncRead + Unpin,
    {
        if !self.trusted.contains(peer.ip()) {
            return Err(AcceptError::UntrustedProxy { peer });
        }
        let read = tokio::time::timeout(self.timeout, read_header(stream)).await;
        match read.map_err(|_| AcceptError::Timeout { timeout: self.timeout })?? {
            ProxiedClient::Address(client) => Ok(client),
            ProxiedClient::Unspecified => Ok(SocketAddr::new(peer.ip().to_canonical(), peer.port())),
        }
    }
}

async fn read_header<S: AsyncRead + Unpin>(stream: &mut S) -> Result<ProxiedClient, AcceptError> {
    let mut bytes = [0; MAX_V2_BYTES];
    let mut len = 0;
    loop {
        match parse(&bytes[..len]).map_err(AcceptError::InvalidHeader)? {
            ParsedHeader::Complete { client, .. } => return Ok(client),
            ParsedHeader::Incomplete { missing } => {
                let end = MAX_V2_BYTES.min(len + missing);
                len += read_some(stream, &mut bytes[len..end]).await?;
            }
        }
    }
}

/// Reads the bytes that are available, at least one.
async fn read_some<S: AsyncRead + Unpin>(stream: &mut S, buf: &mut [u8]) -> Result<usize, AcceptError> {
    let mut buf = ReadBuf::new(buf);
    poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, &mut buf)).await.map_err(AcceptError::Io)?;
    match buf.filled().len() {
        0 => Err(AcceptError::UnexpectedEof),
        read => Ok(read),
    }
}

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcceptError::UntrustedProxy { peer } => {
                write!(
                    f,
                    "{peer} is not a trusted proxy; add it to the trusted proxies, or block it from this listener"
                )
            }
            AcceptError::InvalidHeader(_) => f.write_str("invalid PROXY header"),
            AcceptError::Timeout { timeout } => {
                write!(f, "no complete PROXY header within {timeout:?}; check that the proxy sends one")
            }
            AcceptError::UnexpectedEof => {
                f.write_str("the connection ended before the PROXY header was complete")
            }
            AcceptError::Io(_) => f.write_str("reading the PROXY header failed"),
        }
    }
}

impl Error for AcceptError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            AcceptError::InvalidHeader(error) => Some(error),
            AcceptError::Io(error) => Some(error),
            AcceptError::UntrustedProxy { .. } | AcceptError::Timeout { .. } | AcceptError::UnexpectedEof => {
                None
            }
        }
    }
}
