//! # A socket of either kind

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::Guest;

#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// On the runtime of this thread, with where it comes from.
    pub(crate) fn new(guest: Guest) -> io::Result<(Self, String)> {
        Ok(match guest {
            Guest::Tcp(stream, peer) => (Socket::Tcp(TcpStream::from_std(stream)?), peer.to_string()),
            Guest::Unix(stream) => (Socket::Unix(UnixStream::from_std(stream)?), "unix".to_owned()),
        })
    }

    /// Reads what there is; 0 at the end.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(into);
        ready!(match self {
            Socket::Tcp(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Socket::Unix(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
        })?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Writes as much as the system takes.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Socket::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Socket::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }
}
