//! # Turns: fair scheduling of busy connections
//!
//! A client that sends without pause always has requests to be answered. If a hundred such connections got a turn whenever their
//! socket is ready, every other client would wait for a hundred turns. So busy connections wait in a queue of their own, one
//! queue per worker, and one of them goes on after each look at the sockets:
//!
//! ```text
//!   poll sockets ──► all connections that became ready ──► one busy connection ──► poll sockets ──► …
//! ```

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

thread_local! {
    static QUEUE: RefCell<Queue> = RefCell::default();
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Arc<AtomicBool>, Waker)>,
    /// Wakes [`give`] when the queue is no longer empty.
    giver: Option<Waker>,
}

/// Whether a connection is busy, and then whether its turn has come.
#[derive(Debug, Default)]
pub(super) struct Turn {
    is_busy: bool,
    /// Set by [`give`]. `None` while the connection is not in the queue.
    queued: Option<Arc<AtomicBool>>,
}

impl Turn {
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// The connection waits for a turn from now on, before it reads or answers more.
    pub(super) fn busy(&mut self) {
        self.is_busy = true;
    }

    /// The connection has answered everything that arrived: it needs no turn when more arrives.
    pub(super) fn caught_up(&mut self) {
        *self = Turn::default();
    }

    /// Ready if the connection may go on. A busy connection joins the queue, and a wake-up from another source does not let it
    /// overtake.
    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let has_turn = self.queued.as_ref().is_some_and(|granted| granted.load(Ordering::Relaxed));
        if has_turn || !self.is_busy {
            self.queued = None;
            return Poll::Ready(());
        }
        self.wait(cx);
        Poll::Pending
    }

    /// Ends the turn of a connection that has more to do: it is busy, and is woken when its next turn comes.
    pub(super) fn yield_now(&mut self, cx: &Context<'_>) {
        self.is_busy = true;
        self.queued.take_if(|granted| granted.load(Ordering::Relaxed));
        self.wait(cx);
    }

    fn wait(&mut self, cx: &Context<'_>) {
        if self.queued.is_some() {
            return;
        }
        let granted = self.queued.insert(Arc::default()).clone();
        QUEUE.with_borrow_mut(|queue| {
            queue.waiting.push_back((granted, cx.waker().clone()));
            if let Some(giver) = queue.giver.take() {
                giver.wake();
            }
        });
    }
}

/// Gives the busy connections of this thread their turns, one after the other. Never ends.
pub(super) async fn give() {
    loop {
        poll_fn(|cx| {
            QUEUE.with_borrow_mut(|queue| match queue.waiting.pop_front() {
                Some((granted, waker)) => {
                    granted.store(true, Ordering::Relaxed);
                    waker.wake();
                    Poll::Ready(())
                }
                None => {
                    queue.giver = Some(cx.waker().clone());
                    Poll::Pending
                }
            })
        })
        .await;
        tokio::task::yield_now().await; // resumes after the runtime has polled the sockets
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Takes this many turns and records each. Wakes itself all the time, as a socket does that is always ready.
    async fn greedy(name: char, turns: usize, seen: Arc<Mutex<String>>) {
        let mut turn = Turn::default();
        turn.busy();
        for _ in 0..turns {
            poll_fn(|cx| {
                cx.waker().wake_by_ref();
                turn.poll(cx)
            })
            .await;
            seen.lock().expect("no panic").push(name);
        }
    }

    #[tokio::test]
    async fn one_busy_connection_goes_on_at_a_time_and_others_in_between() {
        let (seen, rounds) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicUsize::new(0)));
        tokio::spawn(give());
        let greedy: Vec<_> = "abc".chars().map(|name| tokio::spawn(greedy(name, 50, seen.clone()))).collect();
        let counting = rounds.clone();
        let modest = tokio::spawn(async move {
            loop {
                tokio::task::yield_now().await;
                counting.fetch_add(1, Ordering::Relaxed);
            }
        });
        for task in greedy {
            task.await.expect("no panic");
        }
        modest.abort();
        assert_eq!(*seen.lock().expect("no panic"), "abc".repeat(50));
        assert!(rounds.load(Ordering::Relaxed) >= 140, "{rounds:?} rounds for 150 turns of others");
    }
}
