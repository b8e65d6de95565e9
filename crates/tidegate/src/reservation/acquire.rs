//! # Waiting for a scheduled instant
//!
//! A waiter has an instant, and sleeps until then. The instant may move closer when other waiters leave: then the
//! waiter is woken, polls again, and sleeps for less. A wait that is dropped is cancelled, and its charge is refunded.

use std::task::Waker;

use super::{AcquireRequest, Joined, Progress, StateStore, Ticket, WaitRefused, cancel, join, keep, poll};
use crate::clock::Clock;
use crate::state_cell::DecisionTime;
use crate::wait::{Park, Sleep, block_on, steady_now, wait_on};
use tidegate_core::{Decision, Micros, Wait};

/// A waiter. Dropping it cancels the wait.
#[derive(Debug)]
pub(crate) struct Waiting<'a, H: StateStore, C: Clock> {
    store: &'a H,
    clock: &'a C,
    /// The algorithm to charge by, if not the current one.
    ///
    /// Moves into the schedule with the charge.
    plan: Option<H::Algorithm>,
    fingerprint: u64,
    acquire_request: AcquireRequest,
    ticket: Option<Ticket>,
}

/// A fixed instant, charged in advance.
///
/// Dropping it before that instant refunds the charge.
#[derive(Debug)]
pub(crate) struct Reservation<'a, H: StateStore, C: Clock> {
    store: &'a H,
    clock: &'a C,
    fingerprint: u64,
    /// Present until the reservation is kept or cancelled.
    ///
    /// `None` if the request passed immediately.
    ticket: Option<Ticket>,
    asked: Micros,
    ready: Micros,
    decision: Decision,
}

fn when<C: Clock>(clock: &C) -> DecisionTime {
    DecisionTime { now: steady_now(clock), clock: C::KIND }
}

// === impl Waiting ===

impl<'a, H: StateStore, C: Clock> Waiting<'a, H, C> {
    /// Creates a waiter that is not in the queue yet. The first poll enqueues it.
    pub(crate) fn new(
        store: &'a H,
        clock: &'a C,
        plan: Option<H::Algorithm>,
        fingerprint: u64,
        acquire_request: AcquireRequest,
    ) -> Self {
        Waiting { store, clock, plan, fingerprint, acquire_request, ticket: None }
    }

    fn poll(&mut self, waker: &Waker) -> Progress {
        let Waiting { store, clock, fingerprint, acquire_request, .. } = *self;
        let Some(ticket) = self.ticket else {
            let (plan, waker) = (self.plan.take(), Some(waker.clone()));
            return match join(store, plan, fingerprint, acquire_request, waker, || when(clock)) {
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
    pub(crate) fn block(mut self) -> Result<Decision, WaitRefused>
    where
        C: Park,
    {
        block_on(self.clock, |waker| self.poll(waker))
    }

    /// Waits, as a task, until the request passes.
    pub(crate) async fn wait(mut self) -> Result<Decision, WaitRefused>
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

// === impl Reservation ===

impl<'a, H: StateStore, C: Clock> Reservation<'a, H, C> {
    /// Reserves the first possible instant for `acquire_request`.
    pub(crate) fn new(
        store: &'a H,
        clock: &'a C,
        plan: Option<H::Algorithm>,
        fingerprint: u64,
        acquire_request: AcquireRequest,
    ) -> Result<Self, WaitRefused> {
        match join(store, plan, fingerprint, acquire_request, None, || when(clock))? {
            Joined::Now(decision) => Ok(Reservation::now(store, clock, decision)),
            Joined::Later(ticket) => {
                let Ticket { asked, ready, decision, .. } = ticket;
                Ok(Reservation { store, clock, fingerprint, ticket: Some(ticket), asked, ready, decision })
            }
        }
    }

    /// Wraps a request that passed immediately.
    ///
    /// There is nothing to wait for, and nothing to refund.
    pub(crate) fn now(store: &'a H, clock: &'a C, decision: Decision) -> Self {
        let (asked, ready) = (decision.at(), decision.at());
        Reservation { store, clock, fingerprint: 0, ticket: None, asked, ready, decision }
    }

    pub(crate) fn ready_at(&self) -> Micros {
        self.ready
    }

    pub(crate) fn wait(&self) -> Wait {
        Wait::micros(self.ready.since(self.asked))
    }

    pub(crate) fn decision(&self) -> Decision {
        self.decision
    }

    /// Makes the reservation count even when the handle is dropped.
    pub(crate) fn keep(mut self) -> Decision {
        if let Some(ticket) = self.ticket.take() {
            keep(self.store, self.fingerprint, ticket);
        }
        self.decision
    }

    /// Sleeps until the reserved instant, and keeps the reservation.
    pub(crate) async fn sleep(self) -> Decision
    where
        C: Sleep,
    {
        while self.clock.now() < self.ready {
            self.clock.sleep_until(self.ready).await;
        }
        self.keep()
    }

    /// Blocks this thread until the reserved instant, and keeps the reservation.
    pub(crate) fn block(self) -> Decision
    where
        C: Park,
    {
        while self.clock.now() < self.ready {
            self.clock.park_until(self.ready);
        }
        self.keep()
    }
}

impl<H: StateStore, C: Clock> Drop for Reservation<'_, H, C> {
    /// Refunds the charge, unless the reserved instant has passed.
    ///
    /// Then the schedule counts it as used.
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            cancel(self.store, self.fingerprint, ticket, || when(self.clock));
        }
    }
}

/// Defines the methods of a reservation.
///
/// They are the same for limiters with one state and with many.
macro_rules! reservation_methods {
    ($name:ident, $limiter:ident) => {
        impl<A: Algorithm, C: Clock> $name<'_, A, C> {
            /// Returns how long to wait, from the instant of the call to reserve. Zero means no wait.
            #[must_use]
            pub fn wait(&self) -> Wait {
                self.0.wait()
            }

            /// Returns the reserved instant, on the limiter's clock.
            #[must_use]
            pub fn ready_at(&self) -> Micros {
                self.0.ready_at()
            }

            /// Returns the decision that will hold at the reserved instant.
            pub fn decision(&self) -> Decision {
                self.0.decision()
            }

            /// Waits for the reserved instant. Dropping the future earlier refunds the charge.
            ///
            /// # Panics
            ///
            #[doc = concat!("As [`", stringify!($limiter), "::acquire`].")]
            pub async fn ready(self) -> Decision
            where
                C: Sleep,
            {
                self.0.sleep().await
            }

            /// Blocks this thread until the reserved instant.
            pub fn ready_blocking(self) -> Decision
            where
                C: Park,
            {
                self.0.block()
            }

            /// Makes the reservation count even when the handle is dropped.
            pub fn keep(self) {
                let _ = self.0.keep();
            }

            #[doc = concat!("Gives it back: see [`", stringify!($name), "`].")]
            pub fn cancel(self) {
                drop(self);
            }
        }

        impl<A: Algorithm, C: Clock> fmt::Debug for $name<'_, A, C> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("ready_at", &self.ready_at()).finish_non_exhaustive()
            }
        }
    };
}

pub(crate) use reservation_methods;
