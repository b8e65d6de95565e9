//! # Wait queues of one process
//!
//! Many requests of one process may wait for the same limit. If each retried after its `retry_after`, all would retry at
//! the same time, and the fastest would pass instead of the earliest. So they queue for the state that refused them,
//! and only the first waiter of a queue retries.
//!
//! ```text
//!   global      ● ─ ○ ─ ○        ● retries after `retry_after`        ○ sends nothing
//!   alice       ●
//! ```
//!
//! A request waits in at most one queue, so there are no deadlocks between waiters. An empty queue is removed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

type QueueLock = tokio::sync::Mutex<()>; // hands out the lock in order of arrival

/// The queues of one gate, by the names of the states.
#[derive(Debug, Default)]
pub(crate) struct WaitQueues(Mutex<HashMap<Vec<u8>, Arc<QueueLock>>>);

/// A waiter in a queue. The caller receives it once it is first.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    queues: &'a WaitQueues,
    name: Vec<u8>,
    lock: Option<Arc<QueueLock>>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl WaitQueues {
    /// Whether there are waiters at this state.
    pub(crate) fn has(&self, name: &[u8]) -> bool {
        self.lock().contains_key(name)
    }

    /// Joins the queue, and returns as soon as the waiter is first.
    pub(crate) async fn join(&self, name: Vec<u8>) -> Waiter<'_> {
        let (mut waiter, lock) = self.enqueue(name);
        waiter.guard = Some(lock.lock_owned().await);
        waiter
    }

    /// Joins the queue if it is empty.
    pub(crate) fn join_if_empty(&self, name: &[u8]) -> Option<Waiter<'_>> {
        let (mut waiter, lock) = self.enqueue(name.to_vec());
        waiter.guard = lock.try_lock_owned().ok();
        waiter.guard.is_some().then_some(waiter)
    }

    fn enqueue(&self, name: Vec<u8>) -> (Waiter<'_>, Arc<QueueLock>) {
        let lock = self.lock().entry(name.clone()).or_default().clone();
        (Waiter { queues: self, name, lock: Some(lock.clone()), guard: None }, lock)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Arc<QueueLock>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter<'_> {
    pub(crate) fn is_in(&self, name: &[u8]) -> bool {
        self.name == name
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.guard = None;
        let mut queues = self.queues.lock();
        self.lock = None;
        if queues.get(&self.name).is_some_and(|lock| Arc::strong_count(lock) == 1) {
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
        let first = queues.join_if_empty(b"a").expect("the queue was empty");
        assert!(queues.join_if_empty(b"a").is_none() && queues.join_if_empty(b"b").is_some());
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
        let first = queues.join_if_empty(b"a").expect("the queue was empty");
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
