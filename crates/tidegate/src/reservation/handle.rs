//! # Reservation: the handle of a scheduled charge
//!
//! A reservation has a fixed instant, and its charge is made in advance. The holder waits until the instant and then
//! goes ahead. Dropping the handle earlier refunds the charge.

use std::fmt;

use crate::clock::Clock;
use crate::wait::{Park, Sleep};
use tidegate_core::{Decision, Micros, Wait};

/// A request that is charged already and may go ahead at a later instant: wait as long as it says.
///
/// Dropped or [cancelled](Reservation::cancel) before its instant, it is refunded, and requests that wait behind it move
/// up. From its instant on it counts as used.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{KeyedLimiter, ManualClock, Quota};
///
/// let clock = ManualClock::new();
/// let quota = Quota::per_second(10).burst(1);
/// let limiter = KeyedLimiter::<String>::builder(quota).clock(clock.clone()).build();
/// assert!(limiter.check("alice").is_allowed());
///
/// let reservation = limiter.request("alice").reserve()?;
/// assert_eq!(reservation.wait(), Duration::from_millis(100));
/// assert!(limiter.check("bob").is_allowed()); // another key is not affected
///
/// clock.advance(Duration::from_millis(100));
/// assert!(!limiter.check("alice").is_allowed()); // the quota belongs to the reservation
/// reservation.keep();
/// # Ok::<(), tidegate::AcquireError>(())
/// ```
///
/// On a [`Pacer`](crate::Pacer) only the last reservation can be refunded: later ones were promised instants after it.
#[must_use = "a reservation that is dropped before its instant is refunded"]
pub struct Reservation<'a, L: Reserve> {
    limiter: &'a L,
    /// Present until the reservation is kept or cancelled. `None` if the request passed immediately.
    ticket: Option<L::Ticket>,
    asked: Micros,
    ready: Micros,
    decision: Decision,
}

/// A limiter that can charge in advance: [`Limiter`](crate::Limiter), [`KeyedLimiter`](crate::KeyedLimiter) and
/// [`Pacer`](crate::Pacer).
pub trait Reserve {
    /// Identifies the charge.
    type Ticket;
    /// The clock of the limiter.
    type Clock: Clock;

    /// The clock of the limiter.
    fn clock(&self) -> &Self::Clock;
    /// Refunds the charge, as far as that cannot admit too much.
    fn cancel(&self, ticket: Self::Ticket);
    /// Makes the charge count even though the handle is gone.
    fn keep(&self, ticket: Self::Ticket);
    /// Refunds the charge of a dropped handle, which may have been used at its very instant.
    fn release(&self, ticket: Self::Ticket) {
        self.cancel(ticket);
    }
}

impl<'a, L: Reserve> Reservation<'a, L> {
    pub(crate) fn later(
        limiter: &'a L,
        ticket: L::Ticket,
        [asked, ready]: [Micros; 2],
        decision: Decision,
    ) -> Self {
        Reservation { limiter, ticket: Some(ticket), asked, ready, decision }
    }

    /// Wraps a request that passed immediately: nothing to wait for, and nothing to refund.
    pub(crate) fn now(limiter: &'a L, decision: Decision) -> Self {
        let at = decision.at();
        Reservation { limiter, ticket: None, asked: at, ready: at, decision }
    }

    /// How long to wait, from the instant of the request. Zero means no wait.
    #[must_use]
    pub fn wait(&self) -> Wait {
        Wait::micros(self.ready.since(self.asked))
    }

    /// The reserved instant, on the limiter's clock.
    #[must_use]
    pub fn ready_at(&self) -> Micros {
        self.ready
    }

    /// The decision that will hold at the reserved instant.
    #[must_use]
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// Waits for the reserved instant. Dropping the future earlier refunds the charge.
    ///
    /// # Panics
    ///
    /// On the steady clock, if it has to wait outside a tokio runtime with timers.
    pub async fn ready(self) -> Decision
    where
        L::Clock: Sleep,
    {
        let clock = self.limiter.clock();
        while clock.now() < self.ready {
            clock.sleep_until(self.ready).await;
        }
        self.keep()
    }

    /// Blocks this thread until the reserved instant.
    pub fn ready_blocking(self) -> Decision
    where
        L::Clock: Park,
    {
        let clock = self.limiter.clock();
        while clock.now() < self.ready {
            clock.park_until(self.ready);
        }
        self.keep()
    }

    /// Makes the reservation count even though the handle is gone.
    pub fn keep(mut self) -> Decision {
        if let Some(ticket) = self.ticket.take() {
            self.limiter.keep(ticket);
        }
        self.decision
    }

    /// Refunds the reservation, unless its instant has passed.
    pub fn cancel(mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.limiter.cancel(ticket);
        }
    }
}

impl<L: Reserve> Drop for Reservation<'_, L> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.limiter.release(ticket);
        }
    }
}

impl<L: Reserve> fmt::Debug for Reservation<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("wait", &self.wait())
            .field("ready_at", &self.ready)
            .finish_non_exhaustive()
    }
}
