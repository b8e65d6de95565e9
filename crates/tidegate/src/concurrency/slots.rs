//! # Slots: an atomic word and a wait queue
//!
//! Nearly always there is a free slot, or there is none and the caller does not wait. For these cases a number
//! suffices: taking subtracts, returning adds, and neither needs a lock. Only waiters need a queue, and a queue needs a
//! lock.
//!
//! One bit of the word ties the two together. It is set while there are waiters. While it is set, slots are taken from
//! the word only under the lock, on behalf of the first waiter.
//!
//! ```text
//!     63                                    1      0
//!    ┌─────────────────────────────────────┬────────┐   not waiting: take and return by one atomic step each
//!    │ how many are free (may be negative) │ waits? │   waiting:     return, then lock and wake the first waiter
//!    └─────────────────────────────────────┴────────┘
//! ```
//!
//! The bit is changed only under the lock, and it is set by a compare-and-swap that has seen too few free slots. So
//! when one thread starts to wait while another returns slots, one of the two comes second and sees what the other did:
//! the waiter sees the free slot, or the returning thread sees the bit. No wake-up is lost between them.
//!
//! A slot is handed over to a waiter, not merely announced: the woken waiter owns the slot from then on, and a waiter
//! that is dropped after being woken returns it. Lowering the limit subtracts, so the number may be negative for a
//! while. Work in progress is not stopped; returned slots make up the deficit first.
//!
//! A waiter that is only told to try again can lose the slot to a new request, or be cancelled together with
//! the notification. A waiter that owns its slots can only return them.

use std::task::{Context, Poll, Waker};

use super::endings::Tally;
use crate::error::RefusalKind;
use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, lock};
use crate::wait::{QueueExit, QueuePoll, QueueTicket, WaitQueue};

/// A limited number of slots, and the waiters for them.
#[derive(Debug)]
pub(crate) struct Slots {
    hot: Hot,
    /// Changed only under the lock of the queue.
    limit: AtomicU32,
    queue: Mutex<WaitQueue<u32, Verdict>>,
}

/// The fields that every permit touches, in a cache line of their own.
///
/// Threads that use the same limiter contend for one cache line only, and do not slow down its neighbours.
#[derive(Debug)]
#[repr(align(128))]
struct Hot {
    word: AtomicU64,
    tally: Tally,
}

/// The result that a waiter receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The waiter owns the slots.
    Granted,
    /// The waiter's cost exceeds the limit, which has changed meanwhile.
    Never { limit: u32 },
}

/// A wait for `cost` slots. Dropping it cancels the wait.
#[derive(Debug)]
pub(crate) struct Acquiring<'a> {
    slots: &'a Slots,
    cost: u32,
    ticket: Option<QueueTicket>,
}

/// A snapshot of the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) limit: u32,
    pub(crate) in_use: u64,
    pub(crate) waiting: usize,
}

impl Usage {
    pub(crate) fn free(&self) -> u64 {
        u64::from(self.limit).saturating_sub(self.in_use)
    }

    /// Why a request for `cost` slots would be refused without waiting; `None` if it would not.
    pub(crate) fn refusal(&self, cost: u32) -> Option<RefusalKind> {
        let Usage { limit, waiting, .. } = *self;
        if !can_ever(cost, limit) {
            return Some(RefusalKind::Never { cost, limit: limit.into() });
        }
        let there = cost == 0 || waiting == 0 && self.free() >= u64::from(cost);
        (!there).then_some(RefusalKind::Busy { cost, limit })
    }
}

const WAITING: u64 = 1;

/// Converts a number of slots to a difference between words.
#[inline]
fn units(slots: u32) -> u64 {
    u64::from(slots) << 1
}

/// How many slots are free in `word`. Negative while more are in use than a lowered limit allows.
#[inline]
fn free(word: u64) -> i64 {
    word.cast_signed() >> 1
}

impl Slots {
    pub(crate) fn new(limit: u32, max_waiting: usize) -> Self {
        Slots {
            hot: Hot { word: AtomicU64::new(units(limit)), tally: Tally::default() },
            limit: AtomicU32::new(limit),
            queue: Mutex::new(WaitQueue::new(max_waiting)),
        }
    }

    #[inline]
    pub(crate) fn tally(&self) -> &Tally {
        &self.hot.tally
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Takes `cost` slots if they are free and there are no waiters.
    #[inline]
    pub(crate) fn try_take(&self, cost: u32) -> bool {
        let mut word = self.hot.word.load(Ordering::Relaxed);
        while word & WAITING == 0 && free(word) >= i64::from(cost) {
            match self.swap(word, word - units(cost)) {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
        cost == 0 // a cost of 0 always succeeds, however long the queue
    }

    /// Returns `cost` slots, and wakes the waiters that can now proceed.
    #[inline]
    pub(crate) fn give_back(&self, cost: u32) {
        if self.hot.word.fetch_add(units(cost), Ordering::Release) & WAITING != 0 {
            self.serve();
        }
    }

    /// Applies another limit, and wakes the waiters that can now proceed.
    pub(crate) fn resize(&self, limit: u32) {
        {
            let _queue = self.lock();
            let before = self.limit.swap(limit, Ordering::Relaxed);
            // One step, so that no thread sees the old limit removed before the new one is added. Wrapping is intended.
            let difference = units(limit).wrapping_sub(units(before));
            self.hot.word.fetch_add(difference, Ordering::Release);
        }
        self.serve();
    }

    pub(crate) fn usage(&self) -> Usage {
        let queue = self.lock();
        let limit = self.limit();
        let in_use = i64::from(limit) - free(self.hot.word.load(Ordering::Relaxed));
        Usage { limit, in_use: in_use.unsigned_abs(), waiting: queue.len() }
    }

    /// Why a request for `cost` slots was refused without waiting.
    #[cold]
    pub(crate) fn refusal(&self, cost: u32) -> RefusalKind {
        let limit = self.limit();
        if can_ever(cost, limit) {
            RefusalKind::Busy { cost, limit }
        } else {
            RefusalKind::Never { cost, limit: limit.into() }
        }
    }

    #[inline]
    fn swap(&self, word: u64, next: u64) -> Result<u64, u64> {
        self.hot.word.compare_exchange(word, next, Ordering::Acquire, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, WaitQueue<u32, Verdict>> {
        lock(&self.queue)
    }

    /// Wakes every waiter that can proceed.
    #[cold]
    fn serve(&self) {
        // One at a time, and woken without the lock: a waker may run arbitrary code, which may need the lock.
        while let Some(waker) = self.call_next() {
            waker.wake();
        }
    }

    /// Dequeues the first waiter if enough slots are free by now.
    fn call_next(&self) -> Option<Waker> {
        let mut queue = self.lock();
        let (cost, limit) = (*queue.first()?, self.limit());
        let verdict = if !can_ever(cost, limit) {
            Verdict::Never { limit }
        } else if free(self.hot.word.load(Ordering::Acquire)) >= i64::from(cost) {
            // While the bit is set, other threads only add slots, so the slots just seen are still free.
            self.hot.word.fetch_sub(units(cost), Ordering::AcqRel);
            Verdict::Granted
        } else {
            return None;
        };
        let waker = queue.wake_first(verdict);
        self.clear_waiting_bit_if_empty(&queue);
        waker
    }

    /// Clears the bit if there are no waiters any more. Call under the lock.
    fn clear_waiting_bit_if_empty(&self, queue: &WaitQueue<u32, Verdict>) {
        if queue.len() == 0 {
            self.hot.word.fetch_and(!WAITING, Ordering::AcqRel);
        }
    }

    /// Takes `cost` slots or joins the queue; `None` if the slots were taken.
    fn take_or_join(&self, cost: u32, waker: Waker) -> Result<Option<QueueTicket>, RefusalKind> {
        let mut queue = self.lock();
        let limit = self.limit();
        if !can_ever(cost, limit) {
            return Err(RefusalKind::Never { cost, limit: limit.into() });
        }
        let max_waiting = queue.max_waiting();
        if self.try_take(cost) {
            return Ok(None);
        }
        if queue.is_full() {
            return Err(RefusalKind::QueueFull { max_waiting });
        }
        if !self.set_waiting(cost) {
            return Ok(None);
        }
        let ticket = queue.join(cost, waker);
        ticket.map(Some).ok_or(RefusalKind::QueueFull { max_waiting })
    }

    /// Sets the bit; if `cost` slots come free meanwhile, takes them and returns `false`.
    ///
    /// Call under the lock.
    fn set_waiting(&self, cost: u32) -> bool {
        let mut word = self.hot.word.load(Ordering::Relaxed);
        while word & WAITING == 0 {
            let enough = free(word) >= i64::from(cost);
            let next = if enough { word - units(cost) } else { word | WAITING };
            match self.swap(word, next) {
                Ok(_) => return !enough,
                Err(found) => word = found,
            }
        }
        true
    }

    /// Leaves the queue. The waiter behind may then be able to proceed.
    #[cold]
    fn leave(&self, ticket: &QueueTicket, cost: u32) {
        let left = {
            let mut queue = self.lock();
            let left = queue.leave(ticket);
            self.clear_waiting_bit_if_empty(&queue);
            left
        };
        match left {
            QueueExit::Called(Verdict::Granted) => self.give_back(cost),
            QueueExit::Called(Verdict::Never { .. }) => {}
            QueueExit::Waiting(waker) => {
                drop(waker);
                self.serve();
            }
        }
    }
}

/// Whether `cost` slots can ever be free under this limit.
///
/// A limit of 0 is a pause and not a size: it makes no request impossible.
fn can_ever(cost: u32, limit: u32) -> bool {
    cost <= limit || limit == 0
}

// === impl Acquiring ===

impl<'a> Acquiring<'a> {
    /// Creates a wait that is not in the queue yet; the first poll joins it.
    pub(crate) fn new(slots: &'a Slots, cost: u32) -> Self {
        Acquiring { slots, cost, ticket: None }
    }

    /// Ready when the slots are taken, or can never be.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RefusalKind>> {
        match &self.ticket {
            None => self.join(cx.waker().clone()),
            Some(ticket) => {
                let asked = self.slots.lock().ask(ticket, cx.waker());
                self.answer(asked)
            }
        }
    }

    fn join(&mut self, waker: Waker) -> Poll<Result<(), RefusalKind>> {
        self.ticket = match self.slots.take_or_join(self.cost, waker) {
            Ok(None) => return Poll::Ready(Ok(())),
            Err(refused) => return Poll::Ready(Err(refused)),
            Ok(ticket) => ticket,
        };
        Poll::Pending
    }

    fn answer(&mut self, asked: QueuePoll<Verdict>) -> Poll<Result<(), RefusalKind>> {
        let verdict = match asked {
            QueuePoll::Called(verdict) => verdict,
            QueuePoll::Waiting(before) => {
                drop(before);
                return Poll::Pending;
            }
        };
        self.ticket = None;
        Poll::Ready(match verdict {
            Verdict::Granted => Ok(()),
            Verdict::Never { limit } => Err(RefusalKind::Never { cost: self.cost, limit: limit.into() }),
        })
    }
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.slots.leave(&ticket, self.cost);
        }
    }
}
