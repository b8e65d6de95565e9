//! # The slots: a word and a line
//!
//! Nearly always there is a free slot, or there is none and nobody wants to wait. For that a number suffices: taking
//! subtracts, giving back adds, and neither needs a lock. Only who waits needs a line, and a line needs a lock.
//!
//! The two are tied together by one bit of the word. It is set while somebody waits, and then the rules change:
//! nobody takes from the word any more but those who hold the lock, on behalf of whoever is first in the line.
//!
//! ```text
//!     63                                    1      0
//!    ┌─────────────────────────────────────┬────────┐   not waiting: take and give back by one atomic step each
//!    │  how many are free (may be negative) │ waits? │   waiting:     give back, then lock and call who is first
//!    └─────────────────────────────────────┴────────┘
//! ```
//!
//! The bit is only changed under the lock, and it is set by a compare-and-swap that has seen too few free. So of a
//! taker who goes to wait and a giver who gives back, one comes second and sees what the other did: the taker sees
//! the slot, or the giver sees the bit. No wake-up is lost between them.
//!
//! A slot is handed over and not merely announced: who is called owns it from then on, and a waiter that is dropped
//! after being called gives it back. Lowering the limit subtracts, so that the number may be negative for a while;
//! nobody is stopped, and whoever gives back fills the hole first.

use std::task::{Context, Poll, Waker};

use super::endings::Tally;
use super::refused::Refused;
use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, lock};
use crate::wait::{QueueExit, QueuePoll, Ticket, WaitQueue};

/// So many slots, and those who wait for some.
#[derive(Debug)]
pub(crate) struct Slots {
    hot: Hot,
    /// Changed under the lock of the line only.
    limit: AtomicU32,
    line: Mutex<WaitQueue<u32, Verdict>>,
}

/// What every permit touches, in a cache line of its own, so that threads at one limiter wait for one line only, and
/// do not slow down their neighbours.
#[derive(Debug)]
#[repr(align(128))]
struct Hot {
    word: AtomicU64,
    tally: Tally,
}

/// What a waiter is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The slots are its own.
    Granted,
    /// It wants more than there is by now.
    Never { limit: u32 },
}

/// A wait for `cost` slots, which is given up by being dropped.
#[derive(Debug)]
pub(crate) struct Acquiring<'a> {
    slots: &'a Slots,
    cost: u32,
    ticket: Option<Ticket>,
}

/// The slots as they are at one moment.
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

    /// Why somebody who wanted `cost` at once would not get it.
    pub(crate) fn refusal(&self, cost: u32) -> Option<Refused> {
        let Usage { limit, waiting, .. } = *self;
        if !can_ever(cost, limit) {
            return Some(Refused::Never { cost, limit });
        }
        let there = cost == 0 || waiting == 0 && self.free() >= u64::from(cost);
        (!there).then_some(Refused::Busy { cost, limit })
    }
}

const WAITING: u64 = 1;

/// So many slots as a difference between words.
#[inline]
fn units(slots: u32) -> u64 {
    u64::from(slots) << 1
}

/// How many are free by `word`. Negative while more are in use than the limit, after it was lowered.
#[inline]
fn free(word: u64) -> i64 {
    word.cast_signed() >> 1
}

impl Slots {
    pub(crate) fn new(limit: u32, max_waiting: usize) -> Self {
        Slots {
            hot: Hot { word: AtomicU64::new(units(limit)), tally: Tally::default() },
            limit: AtomicU32::new(limit),
            line: Mutex::new(WaitQueue::new(max_waiting)),
        }
    }

    #[inline]
    pub(crate) fn tally(&self) -> &Tally {
        &self.hot.tally
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn max_waiting(&self) -> usize {
        self.lock().max_waiting()
    }

    /// Takes `cost` slots if they are free and nobody waits.
    #[inline]
    pub(crate) fn try_take(&self, cost: u32) -> bool {
        let mut word = self.hot.word.load(Ordering::Relaxed);
        while word & WAITING == 0 && free(word) >= i64::from(cost) {
            match self.swap(word, word - units(cost)) {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
        cost == 0 // nothing is there for everybody, however long the line
    }

    /// Gives `cost` slots back, and calls those whose turn it then is.
    #[inline]
    pub(crate) fn give_back(&self, cost: u32) {
        if self.hot.word.fetch_add(units(cost), Ordering::Release) & WAITING != 0 {
            self.serve();
        }
    }

    /// Puts another limit in force, and calls those whose turn it then is.
    pub(crate) fn resize(&self, limit: u32) {
        {
            let _line = self.lock();
            let before = self.limit.swap(limit, Ordering::Relaxed);
            // In one step, so that nobody sees the old limit gone and the new one not there; that it may wrap is meant.
            let difference = units(limit).wrapping_sub(units(before));
            self.hot.word.fetch_add(difference, Ordering::Release);
        }
        self.serve();
    }

    pub(crate) fn usage(&self) -> Usage {
        let line = self.lock();
        let limit = self.limit();
        let in_use = i64::from(limit) - free(self.hot.word.load(Ordering::Relaxed));
        Usage { limit, in_use: in_use.unsigned_abs(), waiting: line.len() }
    }

    /// Why somebody who wanted `cost` at once did not get it.
    #[cold]
    pub(crate) fn refusal(&self, cost: u32) -> Refused {
        let limit = self.limit();
        if can_ever(cost, limit) { Refused::Busy { cost, limit } } else { Refused::Never { cost, limit } }
    }

    #[inline]
    fn swap(&self, word: u64, next: u64) -> Result<u64, u64> {
        self.hot.word.compare_exchange(word, next, Ordering::Acquire, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, WaitQueue<u32, Verdict>> {
        lock(&self.line)
    }

    /// Calls everybody whose turn it is.
    #[cold]
    fn serve(&self) {
        // One at a time, and woken without the lock: a waker may run anything, also what needs the lock.
        while let Some(waker) = self.call_next() {
            waker.wake();
        }
    }

    /// Calls who is first in the line, if there is enough for it by now.
    fn call_next(&self) -> Option<Waker> {
        let mut line = self.lock();
        let (cost, limit) = (*line.first()?, self.limit());
        let verdict = if !can_ever(cost, limit) {
            Verdict::Never { limit }
        } else if free(self.hot.word.load(Ordering::Acquire)) >= i64::from(cost) {
            // While the bit is set others only add, so that what was there still is.
            self.hot.word.fetch_sub(units(cost), Ordering::AcqRel);
            Verdict::Granted
        } else {
            return None;
        };
        let waker = line.wake_first(verdict);
        self.note_who_waits(&line);
        waker
    }

    /// Clears the bit if nobody waits any more. Under the lock.
    fn note_who_waits(&self, line: &WaitQueue<u32, Verdict>) {
        if line.len() == 0 {
            self.hot.word.fetch_and(!WAITING, Ordering::AcqRel);
        }
    }

    /// Takes `cost` slots or a place in the line, which is `None` if the slots were taken.
    fn take_or_join(&self, cost: u32, waker: Waker) -> Result<Option<Ticket>, Refused> {
        let mut line = self.lock();
        let limit = self.limit();
        if !can_ever(cost, limit) {
            return Err(Refused::Never { cost, limit });
        }
        let max_waiting = line.max_waiting();
        if self.try_take(cost) {
            return Ok(None);
        }
        if line.is_full() {
            return Err(Refused::LineFull { max_waiting });
        }
        if !self.set_waiting(cost) {
            return Ok(None);
        }
        let ticket = line.join(cost, waker);
        ticket.map(Some).ok_or(Refused::LineFull { max_waiting })
    }

    /// Sets the bit, unless `cost` slots come free meanwhile: then takes them, and says false. Under the lock.
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

    /// Gives up a place in the line. Whoever is behind it may then be next.
    #[cold]
    fn leave(&self, ticket: &Ticket, cost: u32) {
        let left = {
            let mut line = self.lock();
            let left = line.leave(ticket);
            self.note_who_waits(&line);
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

/// Whether `cost` slots can come free under this limit. A limit of 0 is a pause, not a size: nobody is judged by it.
fn can_ever(cost: u32, limit: u32) -> bool {
    cost <= limit || limit == 0
}

// === impl Place ===

impl<'a> Acquiring<'a> {
    /// Not in the line yet; the first poll joins it.
    pub(crate) fn new(slots: &'a Slots, cost: u32) -> Self {
        Acquiring { slots, cost, ticket: None }
    }

    /// Ready when the slots are taken, or never will be.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Refused>> {
        match &self.ticket {
            None => self.join(cx.waker().clone()),
            Some(ticket) => {
                let asked = self.slots.lock().ask(ticket, cx.waker());
                self.answer(asked)
            }
        }
    }

    fn join(&mut self, waker: Waker) -> Poll<Result<(), Refused>> {
        self.ticket = match self.slots.take_or_join(self.cost, waker) {
            Ok(None) => return Poll::Ready(Ok(())),
            Err(refused) => return Poll::Ready(Err(refused)),
            Ok(ticket) => ticket,
        };
        Poll::Pending
    }

    fn answer(&mut self, asked: QueuePoll<Verdict>) -> Poll<Result<(), Refused>> {
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
            Verdict::Never { limit } => Err(Refused::Never { cost: self.cost, limit }),
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
