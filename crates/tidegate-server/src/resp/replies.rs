//! # Replies in the order of their commands
//!
//! Commands that are answered by the store are sent there together, and their replies come later. They go out in the
//! order of the commands, whichever is there first:
//!
//! ```text
//!   CL.THROTTLE a     pending ─┐
//!   CL.THROTTLE b     pending  ├──► out, as soon as all before it are there
//!   CL.THROTTLE c x   -ERR … ──┘    written behind b, and waits for it
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::engine::Permit;

/// A reply that comes later.
pub type Later = Pin<Box<dyn Future<Output = Vec<u8>> + Send>>;

/// Replies that come later, in the order of their commands.
#[derive(Default)]
pub struct Replies {
    slots: VecDeque<Slot>,
    /// Bytes of replies that wait behind others.
    bytes: usize,
}

struct Slot {
    reply: Reply,
    /// Replies that were there at once, to commands that came after this one.
    behind: Vec<u8>,
}

enum Reply {
    Pending { later: Later, _permit: Option<Permit> },
    Ready(Vec<u8>),
}

/// So many replies may be pending at once.
const MOST_PENDING: usize = 256;
/// So many bytes of replies may wait behind them.
const MOST_BYTES: usize = 64 << 10;

impl Replies {
    /// Adds a reply behind all others. The permit is given back when it is there.
    pub(crate) fn push(&mut self, later: Later, permit: Option<Permit>) {
        self.bytes += self.slots.back().map_or(0, |slot| slot.behind.len());
        self.slots.push_back(Slot { reply: Reply::Pending { later, _permit: permit }, behind: Vec::new() });
    }

    /// Where replies are written that come behind those that are pending; `None` if these are to be waited for first.
    pub(crate) fn behind(&mut self) -> Option<&mut Vec<u8>> {
        if self.is_full() {
            return None;
        }
        self.slots.back_mut().map(|slot| &mut slot.behind)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn is_full(&self) -> bool {
        let last = self.slots.back().map_or(0, |slot| slot.behind.len());
        self.slots.len() >= MOST_PENDING || self.bytes + last >= MOST_BYTES
    }

    /// Polls all that are pending, in their order. The first poll of a reply sends its request.
    pub(crate) fn poll_all(&mut self, cx: &mut Context<'_>) {
        for slot in &mut self.slots {
            if let Reply::Pending { later, .. } = &mut slot.reply
                && let Poll::Ready(bytes) = later.as_mut().poll(cx)
            {
                slot.reply = Reply::Ready(bytes);
            }
        }
    }

    /// All of them, when the last one is there.
    pub async fn wait(mut self) -> Vec<u8> {
        let mut out = Vec::new();
        std::future::poll_fn(|cx| {
            self.poll_all(cx);
            self.take_ready(&mut out);
            if self.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        out
    }

    /// Moves the replies that are there to `out`, up to the first that is pending.
    pub(crate) fn take_ready(&mut self, out: &mut Vec<u8>) {
        while let Some(Slot { reply: Reply::Ready(bytes), behind }) = self.slots.front() {
            out.extend_from_slice(bytes);
            out.extend_from_slice(behind);
            self.slots.pop_front();
        }
    }
}

impl fmt::Debug for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replies").field("pending", &self.slots.len()).finish_non_exhaustive()
    }
}

impl From<Later> for Replies {
    fn from(later: Later) -> Self {
        let mut replies = Replies::default();
        replies.push(later, None);
        replies
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn replies_leave_in_the_order_of_their_commands() {
        let (mut replies, mut tell) = (Replies::default(), Vec::new());
        for number in 0..3 {
            let (sender, receiver) = oneshot::channel::<Vec<u8>>();
            tell.push(sender);
            replies.push(Box::pin(async { receiver.await.expect("a reply") }), None);
            replies.behind().expect("one is pending").push(b'a' + number);
        }
        let (mut out, cx) = (Vec::new(), &mut Context::from_waker(Waker::noop()));
        let mut step = |replies: &mut Replies| {
            replies.poll_all(cx);
            replies.take_ready(&mut out);
            String::from_utf8_lossy(&out).into_owned()
        };
        assert_eq!(step(&mut replies), "");
        tell.remove(1).send(b"1".to_vec()).expect("it is waited for");
        assert_eq!(step(&mut replies), "", "the first is not there");
        tell.remove(0).send(b"0".to_vec()).expect("it is waited for");
        assert_eq!(step(&mut replies), "0a1b");
        tell.remove(0).send(b"2".to_vec()).expect("it is waited for");
        assert_eq!(step(&mut replies), "0a1b2c");
        assert!(replies.is_empty());
    }

    #[test]
    fn they_are_bounded_by_number_and_by_bytes() {
        let mut replies = Replies::default();
        let pending = || -> Later { Box::pin(std::future::pending()) };
        (1..MOST_PENDING).for_each(|_| replies.push(pending(), None));
        assert!(!replies.is_full());
        replies.push(pending(), None);
        assert!(replies.is_full());
        let mut replies = Replies::from(pending());
        replies.behind().expect("one is pending").resize(MOST_BYTES - 1, 0);
        assert!(!replies.is_full());
        replies.push(pending(), None);
        replies.behind().expect("one is pending").push(0);
        assert!(replies.is_full());
    }
}
