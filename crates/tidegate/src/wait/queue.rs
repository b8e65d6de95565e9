//! # Wait queue
//!
//! Holds waiters in order of arrival, and what each of them wants. The queue does not know why they wait or what they
//! receive; its owner inspects the first waiter, and calls it with a verdict.
//!
//! ```text
//!    join ──►  9:w  8:w  7:w  ──► wake_first(v) ──►  5:v   6:v   ──► ask: the waiter picks up its verdict
//!                waiting                              called
//! ```
//!
//! A called waiter leaves the queue immediately, whether or not it has noticed. Its verdict is kept until the waiter
//! asks for it or leaves. A waiter that [leaves](WaitQueue::leave) learns whether it had been called. If so, it must
//! pass on what the verdict granted, so that no grant is lost with a cancelled waiter.
//!
//! The queue is plain data and is kept behind its owner's lock. Dropping or waking a waker may run arbitrary code, so
//! the queue returns wakers to its owner, which must release the lock first.

use std::collections::BTreeMap;
use std::task::Waker;

/// A queue of waiters that each want a `W` and receive a `V`.
#[derive(Debug)]
pub(crate) struct WaitQueue<W, V> {
    /// By number: the first entry is the earliest waiter, and removal from the middle is cheap.
    waiting: BTreeMap<u64, Waiter<W>>,
    called: BTreeMap<u64, V>,
    next: u64,
    max_waiting: usize,
}

#[derive(Debug)]
struct Waiter<W> {
    wants: W,
    waker: Waker,
}

/// A position in a queue. Its holder asks until it is called, or leaves.
#[derive(Debug)]
#[must_use = "a place that nobody leaves is never given up"]
pub(crate) struct QueueTicket(u64);

/// The result when a waiter asks.
#[derive(Debug)]
pub(crate) enum QueuePoll<V> {
    /// The waiter was called. The verdict is returned only once, and uses up the ticket.
    Called(V),
    /// Not called yet. The latest waker will be woken; drop the previous one, returned here, without the lock.
    Waiting(Option<Waker>),
}

/// The result when a waiter leaves.
#[derive(Debug)]
pub(crate) enum QueueExit<V> {
    /// The waiter had been called, and must pass on what the verdict granted.
    Called(V),
    /// The waiter had not been called. Drop the waker without the lock.
    Waiting(Option<Waker>),
}

impl<W, V> WaitQueue<W, V> {
    /// Creates an empty queue for at most `max_waiting` waiters.
    pub(crate) fn new(max_waiting: usize) -> Self {
        WaitQueue { waiting: BTreeMap::new(), called: BTreeMap::new(), next: 0, max_waiting }
    }

    /// Returns the number of waiters that have not been called.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.max_waiting
    }

    pub(crate) fn max_waiting(&self) -> usize {
        self.max_waiting
    }

    /// Joins at the end; `None` if the queue is full.
    pub(crate) fn join(&mut self, wants: W, waker: Waker) -> Option<QueueTicket> {
        if self.is_full() {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, Waiter { wants, waker });
        Some(QueueTicket(number))
    }

    /// Returns what the first waiter wants.
    pub(crate) fn first(&self) -> Option<&W> {
        self.waiting.first_key_value().map(|(_, waiter)| &waiter.wants)
    }

    /// Calls the first waiter and returns its waker, to be woken without the lock.
    pub(crate) fn wake_first(&mut self, verdict: V) -> Option<Waker> {
        let (number, waiter) = self.waiting.pop_first()?;
        self.called.insert(number, verdict);
        Some(waiter.waker)
    }

    /// Returns the verdict if the holder of `ticket` was called; else registers `waker`.
    pub(crate) fn ask(&mut self, ticket: &QueueTicket, waker: &Waker) -> QueuePoll<V> {
        if let Some(verdict) = self.called.remove(&ticket.0) {
            return QueuePoll::Called(verdict);
        }
        let known = self.waiting.get_mut(&ticket.0).filter(|waiter| !waiter.waker.will_wake(waker));
        let before = known.map(|waiter| std::mem::replace(&mut waiter.waker, waker.clone()));
        QueuePoll::Waiting(before)
    }

    /// Leaves the queue.
    pub(crate) fn leave(&mut self, ticket: &QueueTicket) -> QueueExit<V> {
        match self.called.remove(&ticket.0) {
            Some(verdict) => QueueExit::Called(verdict),
            None => QueueExit::Waiting(self.waiting.remove(&ticket.0).map(|waiter| waiter.waker)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::task::Waker;

    use super::{QueueExit, QueuePoll, QueueTicket, WaitQueue};

    fn join(queue: &mut WaitQueue<char, u8>, wants: char) -> QueueTicket {
        queue.join(wants, Waker::noop().clone()).expect("there is room")
    }

    fn verdict(queue: &mut WaitQueue<char, u8>, ticket: &QueueTicket) -> Option<u8> {
        match queue.ask(ticket, Waker::noop()) {
            QueuePoll::Called(verdict) => Some(verdict),
            QueuePoll::Waiting(_) => None,
        }
    }

    #[test]
    fn waiters_are_woken_in_order() {
        let mut queue = WaitQueue::new(3);
        let tickets = ['a', 'b', 'c'].map(|wants| join(&mut queue, wants));
        assert_eq!(queue.first(), Some(&'a'));
        assert!(queue.wake_first(1).is_some() && queue.wake_first(2).is_some());
        assert_eq!(queue.first(), Some(&'c'));
        assert_eq!(tickets.map(|ticket| verdict(&mut queue, &ticket)), [Some(1), Some(2), None]);
    }

    #[test]
    fn full_queue_accepts_no_waiter_until_one_is_woken_or_leaves() {
        let mut queue = WaitQueue::new(2);
        let (first, second) = (join(&mut queue, 'a'), join(&mut queue, 'b'));
        assert!(queue.join('c', Waker::noop().clone()).is_none());
        let _ = queue.wake_first(1);
        let third = join(&mut queue, 'c');
        assert!(queue.join('d', Waker::noop().clone()).is_none());
        assert!(matches!(queue.leave(&second), QueueExit::Waiting(Some(_))));
        let _ = join(&mut queue, 'd');
        assert_eq!((verdict(&mut queue, &first), verdict(&mut queue, &third)), (Some(1), None));
    }

    #[test]
    fn leaving_reports_whether_the_waiter_was_woken_and_leaves_no_trace() {
        let mut queue = WaitQueue::new(2);
        let (called, waiting) = (join(&mut queue, 'a'), join(&mut queue, 'b'));
        let _ = queue.wake_first(7);
        assert!(matches!(queue.leave(&called), QueueExit::Called(7)));
        assert!(matches!(queue.leave(&waiting), QueueExit::Waiting(Some(_))));
        assert!(queue.waiting.is_empty() && queue.called.is_empty());
    }
}
