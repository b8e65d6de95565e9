//! # Waiting for one's turn
//!
//! Who waits has an instant, and sleeps until then. The instant may move closer when others leave: then the sleeper is
//! woken, looks again, and sleeps for less. A wait that is dropped gives its turn back.

use std::task::Waker;

use super::{AcquireRequest, Joined, Progress, StateStore, Ticket, WaitRefused, cancel, join, keep, poll};
use crate::clock::Clock;
use crate::state_cell::DecisionTime;
use crate::wait::{Park, Sleep, block_on, steady_now, wait_on};
use tidegate_core::{Decision, Micros, Wait};

/// Somebody who waits, and gives up by being dropped.
#[derive(Debug)]
pub(crate) struct Waiting<'a, H: StateStore, C: Clock> {
    store: &'a H,
    clock: &'a C,
    /// What it is promised by, if not by the algorithm in force. In line it goes with the promise.
    plan: Option<H::Algorithm>,
    fingerprint: u64,
    acquire_request: AcquireRequest,
    ticket: Option<Ticket>,
}

/// An instant that was promised for good, and is given back by being dropped before.
#[derive(Debug)]
pub(crate) struct Reservation<'a, H: StateStore, C: Clock> {
    store: &'a H,
    clock: &'a C,
    fingerprint: u64,
    /// Until it is kept or given back; there is none if its instant was there at once.
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
    /// Not in line yet; that comes with the first look.
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

    /// Blocks this thread until it is its turn.
    pub(crate) fn block(mut self) -> Result<Decision, WaitRefused>
    where
        C: Park,
    {
        block_on(self.clock, |waker| self.poll(waker))
    }

    /// Waits, as a task, until it is its turn.
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

// === impl Promised ===

impl<'a, H: StateStore, C: Clock> Reservation<'a, H, C> {
    /// Promises the first turn for `acquire_request`.
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

    /// What passed at once: there is nothing to wait for, and nothing to give back.
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

    /// Makes it count, whenever the handle goes.
    pub(crate) fn keep(mut self) -> Decision {
        if let Some(ticket) = self.ticket.take() {
            keep(self.store, self.fingerprint, ticket);
        }
        self.decision
    }

    /// Sleeps until its instant, and keeps it.
    pub(crate) async fn sleep(self) -> Decision
    where
        C: Sleep,
    {
        while self.clock.now() < self.ready {
            self.clock.sleep_until(self.ready).await;
        }
        self.keep()
    }

    /// Blocks this thread until its instant, and keeps it.
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
    /// From its instant on it counts as used, and the agenda says so.
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            cancel(self.store, self.fingerprint, ticket, || when(self.clock));
        }
    }
}

/// The verbs of a reservation, the same for that of a limiter with one state and with many.
macro_rules! reservation_methods {
    ($name:ident, $limiter:ident) => {
        impl<A: Algorithm, C: Clock> $name<'_, A, C> {
            /// How long to wait, from when it was reserved. Zero: not at all.
            #[must_use]
            pub fn wait(&self) -> Wait {
                self.0.wait()
            }

            /// Its instant, on the limiter's clock.
            #[must_use]
            pub fn ready_at(&self) -> Micros {
                self.0.ready_at()
            }

            /// The decision that will hold at its instant.
            pub fn decision(&self) -> Decision {
                self.0.decision()
            }

            /// Waits for its instant. Dropped before, it is given back.
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

            /// Blocks this thread until its instant.
            pub fn ready_blocking(self) -> Decision
            where
                C: Park,
            {
                self.0.block()
            }

            /// Makes it count, whenever the handle goes.
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
