//! # Wait queues of one process
//!
//! Many requests of one process may wait for the same limit. If each retried when it was told to, all would retry at
//! the same time, and the fastest would pass instead of the earliest. So they queue for the state that refused them,
//! and only the first waiter of a queue retries.
//!
//! ```text
//!   global      ● ─ ○ ─ ○        ● retries when it was told to        ○ sends nothing
//!   alice       ●
//! ```
//!
//! A request waits in at most one queue, so there are no deadlocks between waiters. An empty queue is removed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

type Turn = tokio::sync::Mutex<()>; // hands out the lock in order of arrival

/// The queues of one gate, by the names of the states.
#[derive(Debug, Default)]
pub(crate) struct WaitQueues(Mutex<HashMap<Vec<u8>, Arc<Turn>>>);

/// A waiter in a queue. The caller receives it once it is first.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    queues: &'a WaitQueues,
    name: Vec<u8>,
    turn: Option<Arc<Turn>>,
    first: Option<OwnedMutexGuard<()>>,
}

impl WaitQueues {
    /// Whether there are waiters at this state.
    pub(crate) fn has(&self, name: &[u8]) -> bool {
        self.lock().contains_key(name)
    }

    /// Joins the queue, and returns as soon as the waiter is first.
    pub(crate) async fn join(&self, name: Vec<u8>) -> Waiter<'_> {
        let (mut standing, turn) = self.stand(name);
        standing.first = Some(turn.lock_owned().await);
        standing
    }

    /// Joins the queue if it is empty.
    pub(crate) fn begin(&self, name: &[u8]) -> Option<Waiter<'_>> {
        let (mut standing, turn) = self.stand(name.to_vec());
        standing.first = turn.try_lock_owned().ok();
        standing.first.is_some().then_some(standing)
    }

    fn stand(&self, name: Vec<u8>) -> (Waiter<'_>, Arc<Turn>) {
        let turn = self.lock().entry(name.clone()).or_default().clone();
        (Waiter { queues: self, name, turn: Some(turn.clone()), first: None }, turn)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Arc<Turn>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter<'_> {
    pub(crate) fn is_at(&self, name: &[u8]) -> bool {
        self.name == name
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.first = None;
        let mut queues = self.queues.lock();
        self.turn = None;
        if queues.get(&self.name).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            queues.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::WaitQueues;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    #[tokio::test]
    async fn waiters_are_served_in_order_and_the_last_one_removes_the_queue() {
        let queues = WaitQueues::default();
        let first = queues.begin(b"a").expect("the queue was empty");
        assert!(queues.begin(b"a").is_none() && queues.begin(b"b").is_some());
        assert!(queues.has(b"a") && !queues.has(b"b"));
        let (mut second, mut third) = (pin!(queues.join(b"a".to_vec())), pin!(queues.join(b"a".to_vec())));
        poll_fn(|cx| {
            assert!(second.as_mut().poll(cx).is_pending() && third.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(first);
        poll_fn(|cx| {
            assert!(third.as_mut().poll(cx).is_pending(), "the second waiter is first now");
            Poll::Ready(())
        })
        .await;
        drop(second.await);
        assert!(queues.has(b"a"));
        drop(third.await);
        assert!(!queues.has(b"a"));
    }

    #[tokio::test]
    async fn a_waiter_that_gives_up_leaves_the_queue() {
        let queues = WaitQueues::default();
        let first = queues.begin(b"a").expect("the queue was empty");
        {
            let mut second = pin!(queues.join(b"a".to_vec()));
            poll_fn(|cx| {
                assert!(second.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        drop(first);
        assert!(!queues.has(b"a"));
    }
}
