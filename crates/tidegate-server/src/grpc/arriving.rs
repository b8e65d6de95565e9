//! # What arrives
//!
//! A socket that notes when a client has begun something and not gone on with it, by [`Frames`]. That counts as a call
//! that is under way: it has to be there in time.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::{Call, UnderWay};
use super::frames::Frames;
use crate::serve::socket::Socket;

/// A socket that is looked at.
pub(super) struct Arriving<N: Fn() -> u64> {
    socket: Socket,
    frames: Frames,
    under_way: Arc<UnderWay>,
    now: N,
    /// Until what has begun is whole.
    begun: Option<Call<N>>,
}

impl<N: Fn() -> u64 + Clone> Arriving<N> {
    pub(super) fn new(socket: Socket, under_way: Arc<UnderWay>, now: N) -> Self {
        Arriving { socket, frames: Frames::new(), under_way, now, begun: None }
    }

    fn saw(&mut self, bytes: &[u8]) {
        self.frames.saw(bytes);
        if !self.frames.has_begun() {
            self.begun = None;
        } else if self.begun.is_none() {
            self.begun = Some(UnderWay::begin(&self.under_way, self.now.clone()));
        }
    }
}

impl<N: Fn() -> u64 + Clone + Unpin> AsyncRead for Arriving<N> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (this, before) = (self.get_mut(), buffer.filled().len());
        ready!(AsyncRead::poll_read(Pin::new(&mut this.socket), cx, buffer))?;
        this.saw(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<N: Fn() -> u64 + Unpin> AsyncWrite for Arriving<N> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().socket.poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().socket.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().socket.poll_end(cx)
    }
}
