//! # Going without slamming the door
//!
//! A socket that is closed while something has arrived that nobody has read is *reset*: the system tells the other
//! side that all is lost, and replies that were on their way are thrown away there unread. Whoever had just asked
//! something when the server ended, or was told what was wrong with a request of which more was coming, would see an
//! error and no reply.
//!
//! So we first say that nothing more will come from us, and then read and drop what still arrives, until the other
//! side has seen it and goes too, or a moment has passed.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use super::socket::Socket;

/// A connection that is being left.
pub(crate) struct Farewell {
    /// No longer than until then.
    until: Pin<Box<Sleep>>,
    /// No more than this.
    bytes: usize,
}

/// So long is waited for the other side.
const MOMENT: Duration = Duration::from_millis(250);
/// So much is read for it.
const MOST: usize = 4 << 20;

impl Farewell {
    pub(crate) fn new() -> Self {
        Farewell { until: Box::pin(sleep(MOMENT)), bytes: MOST }
    }

    /// Ready when it can be closed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, socket: &mut Socket, buffer: &mut [u8]) -> Poll<()> {
        if self.until.as_mut().poll(cx).is_ready() || buffer.is_empty() {
            return Poll::Ready(());
        }
        while self.bytes > 0 {
            match socket.poll_read(cx, buffer) {
                Poll::Ready(Ok(length)) if length > 0 => self.bytes = self.bytes.saturating_sub(length),
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }
}
