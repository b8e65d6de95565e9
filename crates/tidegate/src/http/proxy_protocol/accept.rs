//! # Reading a header from a connection
//!
//! As many bytes are read as there must be still, and then the rest of the header, byte by byte where nobody can say how
//! long a line is. So what the client sends stays in the stream, and nothing has to be put back.

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

/// A header has to be there within this time, unless said otherwise.
const WITHIN: Duration = Duration::from_secs(2);

/// For listeners whose connections come from proxies, each with a header of the PROXY protocol first.
///
/// ```
/// use tidegate::http::TrustedProxies;
/// use tidegate::http::proxy_protocol::ProxyProtocol;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
/// # runtime.block_on(async {
/// let protocol = ProxyProtocol::from(TrustedProxies::new(["10.0.0.0/8"])?);
/// let mut stream = &b"PROXY TCP4 203.0.113.9 10.0.0.1 56324 443\r\nGET / HTTP/1.1\r\n"[..]; // a TcpStream, in earnest
/// let client = protocol.accept(&mut stream, "10.0.0.7:4711".parse()?).await?;
/// assert_eq!(client, "203.0.113.9:56324".parse()?);
/// assert!(stream.starts_with(b"GET"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Read the headers of several connections at the same time: a listener that waits for one of them before it accepts the
/// next lets everybody wait for the slowest.
#[derive(Clone, Debug)]
pub struct ProxyProtocol {
    trusted: TrustedProxies,
    within: Duration,
}

/// Why a connection is to be closed.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotAccepted {
    /// It is not from one of the proxies.
    NotTrusted {
        /// From whom it is.
        peer: SocketAddr,
    },
    /// It does not begin with a header.
    Invalid(InvalidHeader),
    /// The header was not there in time.
    TooLate {
        /// How long it may take.
        within: Duration,
    },
    /// The connection ended before the header did.
    Ended,
    /// The connection failed.
    Failed(io::Error),
}

impl From<TrustedProxies> for ProxyProtocol {
    /// Believes these proxies.
    fn from(trusted: TrustedProxies) -> Self {
        ProxyProtocol { trusted, within: WITHIN }
    }
}

impl ProxyProtocol {
    /// How long a header may take; 2 seconds unless said otherwise.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        ProxyProtocol { within, ..self }
    }

    /// Reads the header of a connection from `peer`, and tells whose connection it is. What follows is still in the stream.
    ///
    /// # Errors
    ///
    /// [`NotAccepted`]. The connection is then to be closed: what is in the stream is anybody's guess.
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

/// As many bytes as come at once, and at least one.
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
