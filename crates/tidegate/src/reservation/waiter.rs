//! # Waiter: waiting for a scheduled instant, and cancellation of the wait
//!
//! A waiter has an instant, and sleeps until then. The instant may move closer when other waiters leave: then the
//! waiter is woken, polls again, and sleeps for less. A wait that is dropped is cancelled, and its charge is refunded.

use std::task::Waker;

use super::{AcquireRequest, Joined, Progress, ReservationTicket, StateStore, cancel, join, poll};
use crate::clock::Clock;
use crate::error::RefusalKind;
use crate::state_cell::DecisionTime;
use crate::wait::{Park, Sleep, block_on, monotonic_now, wait_on};
use tidegate_core::Decision;

/// A waiter. Dropping it cancels the wait.
#[derive(Debug)]
pub(crate) struct Waiting<'a, H: StateStore, C: Clock> {
    store: &'a H,
    clock: &'a C,
    /// The algorithm to charge by, if not the current one.
    ///
    /// Moves into the schedule with the charge.
    per_call: Option<H::Algorithm>,
    fingerprint: u64,
    acquire_request: AcquireRequest,
    ticket: Option<ReservationTicket>,
}

pub(crate) fn when<C: Clock>(clock: &C) -> DecisionTime {
    DecisionTime { now: monotonic_now(clock), clock: C::KIND }
}

// === impl Waiting ===

impl<'a, H: StateStore, C: Clock> Waiting<'a, H, C> {
    /// Creates a waiter that is not in the queue yet. The first poll enqueues it.
    pub(crate) fn new(
        store: &'a H,
        clock: &'a C,
        per_call: Option<H::Algorithm>,
        fingerprint: u64,
        acquire_request: AcquireRequest,
    ) -> Self {
        Waiting { store, clock, per_call, fingerprint, acquire_request, ticket: None }
    }

    fn poll(&mut self, waker: &Waker) -> Progress {
        let Waiting { store, clock, fingerprint, acquire_request, .. } = *self;
        let Some(ticket) = self.ticket else {
            let (per_call, waker) = (self.per_call.take(), Some(waker.clone()));
            return match join(store, per_call, fingerprint, acquire_request, waker, || when(clock)) {
                Ok(Joined::Now(decision)) => Progress::Done(Ok(decision)),
                Ok(Joined::Later(ticket)) => {
                    self.ticket = Some(ticket);
                    Progress::Until(ticket.ready())
                }
                Err(refused) => Progress::Done(Err(refused)),
            };
        };
        let poll = poll(store, fingerprint, ticket, waker, || when(clock));
        if let Progress::Done(_) = poll {
            self.ticket = None;
        }
        poll
    }

    /// Blocks this thread until the request passes.
    pub(crate) fn block(mut self) -> Result<Decision, RefusalKind>
    where
        C: Park,
    {
        block_on(self.clock, |waker| self.poll(waker))
    }

    /// Waits, as a task, until the request passes.
    pub(crate) async fn wait(mut self) -> Result<Decision, RefusalKind>
    where
        C: Sleep,
    {
        wait_on(self.clock, |waker| self.poll(waker)).await
    }
}

impl<H: StateStore, C: Clock> Drop for Waiting<'_, H, C> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            cancel(self.store, self.fingerprint, ticket, || when(self.clock));
        }
    }
}
