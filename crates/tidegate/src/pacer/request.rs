//! # Requests to a pacer
//!
//! A pacer charges a request at once and tells it how long to wait. `reserve` returns that promise, `acquire` waits for
//! it. A wait that is dropped is a reservation that is dropped: it is refunded if no later request has reserved.

use super::{Charged, Pacer, Purpose};
use crate::clock::Clock;
use crate::error::{AcquireError, RefusalKind};
use crate::request::{Deadline, Request};
use crate::reservation::Reservation;
use crate::wait::{Park, Sleep};
use tidegate_core::{Decision, Micros, Outcome, Wait};

impl<C: Clock> Request<'_, Pacer<C>> {
    /// Lets the request pass if it need not wait; otherwise refuses it and charges nothing.
    #[inline]
    #[must_use]
    pub fn check(self) -> Decision {
        let Charged { now, limit, ticket } = self.limiter.charge(self.cost, Purpose::Check);
        match ticket {
            Ok(_) => Decision::counted(Outcome::Allowed, now, limit, 0, Wait::default()),
            Err(wait) => Decision::counted(refusal(now, wait), now, limit, 0, wait),
        }
    }

    /// Decides as [`check`](Request::check) would, and charges nothing. The cost plays no part.
    #[must_use]
    pub fn peek(self) -> Decision {
        let now = self.limiter.clock.now();
        let queue = self.limiter.queue();
        let (outcome, wait) = match queue.pacing.peek(&queue.state, now) {
            Ok(wait) if wait == Wait::default() => (Outcome::Allowed, wait),
            Ok(wait) | Err(wait) => (refusal(now, wait), wait),
        };
        Decision::counted(outcome, now, queue.pacing.quota().max_burst(), 0, wait)
    }
}

/// Returns the refusal of a request that would have to wait: never, if the wait reaches the end of the time line.
fn refusal(now: Micros, wait: Wait) -> Outcome {
    if now.plus(wait.as_micros()) == Micros::MAX { Outcome::Never } else { Outcome::RetryAfter(wait) }
}

/// A charged request: it passes now, or later.
enum Promise<'a, C: Clock> {
    /// Without a reservation, which would have to be dropped.
    Now(Decision),
    Later(Reservation<'a, Pacer<C>>),
}

impl<'a, C: Clock, D: Deadline> Request<'a, Pacer<C>, D> {
    /// Waits, as a task, until the request may pass.
    ///
    /// The first request does not wait, whatever its cost: the next one does.
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use tidegate::clock::Clock;
    /// use tidegate::{Pacer, Quota, TokioClock};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    /// # runtime.block_on(async {
    /// let clock = TokioClock::new();
    /// let pacer = Pacer::builder(Quota::per_second(5)).clock(clock).build();
    /// pacer.request().cost(5).acquire().await?; // passes at once
    /// pacer.acquire().await?; // waits one second for the five
    /// pacer.acquire().await?; // 200 ms later
    /// assert_eq!(clock.now().get(), 1_200_000);
    /// # Ok::<(), tidegate::AcquireError>(())
    /// # }).unwrap();
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`AcquireError`], at once and with nothing charged, if the wait would be longer than the timeout, or would end
    /// after the end of the time line.
    ///
    /// # Panics
    ///
    /// On the steady clock, if it has to wait outside a tokio runtime with timers.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point. The charge is refunded if no later request has reserved.
    #[inline]
    pub async fn acquire(self) -> Result<Decision, AcquireError>
    where
        C: Sleep,
    {
        match self.charge(Purpose::Acquire)? {
            Promise::Now(decision) => Ok(decision),
            Promise::Later(reservation) => Ok(reservation.ready().await),
        }
    }

    /// Blocks this thread until the request may pass. For tasks see [`acquire`](Request::acquire).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Pacer, Quota};
    ///
    /// let clock = ManualClock::new();
    /// let pacer = Pacer::builder(Quota::per_second(5)).clock(clock.clone()).build();
    /// pacer.request().acquire_blocking()?; // passes at once
    /// std::thread::scope(|scope| {
    ///     let waiter = scope.spawn(|| pacer.request().acquire_blocking());
    ///     while pacer.request().peek().retry_after().is_none_or(|wait| wait != Duration::from_millis(400)) {
    ///         std::thread::yield_now(); // until the other thread has reserved
    ///     }
    ///     clock.advance(Duration::from_millis(200));
    ///     assert_eq!(waiter.join().unwrap()?.at().get(), 200_000);
    ///     # Ok::<(), tidegate::AcquireError>(())
    /// })?;
    /// # Ok::<(), tidegate::AcquireError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Request::acquire).
    #[inline]
    pub fn acquire_blocking(self) -> Result<Decision, AcquireError>
    where
        C: Park,
    {
        match self.charge(Purpose::Acquire)? {
            Promise::Now(decision) => Ok(decision),
            Promise::Later(reservation) => Ok(reservation.ready_blocking()),
        }
    }

    /// Charges the request now for the instant at which it may pass, and does not wait.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Pacer, Quota};
    ///
    /// let pacer = Pacer::builder(Quota::per_second(5)).clock(ManualClock::new()).build();
    /// assert!(pacer.check().is_allowed());
    /// let reservation = pacer.request().cost(10).reserve()?;
    /// assert_eq!(reservation.wait(), Duration::from_millis(200));
    /// assert_eq!(pacer.request().peek().retry_after().unwrap(), Duration::from_millis(2_200));
    /// reservation.cancel();
    /// assert_eq!(pacer.request().peek().retry_after().unwrap(), Duration::from_millis(200));
    /// # Ok::<(), tidegate::AcquireError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Request::acquire).
    #[inline]
    pub fn reserve(self) -> Result<Reservation<'a, Pacer<C>>, AcquireError> {
        let limiter = self.limiter;
        Ok(match self.charge(Purpose::Reserve)? {
            Promise::Now(decision) => Reservation::now(limiter, decision),
            Promise::Later(reservation) => reservation,
        })
    }

    #[inline]
    fn charge(self, purpose: impl FnOnce(Micros) -> Purpose) -> Result<Promise<'a, C>, AcquireError> {
        let Request { limiter, cost, .. } = self;
        let deadline = self.deadline.instant(&limiter.clock);
        let Charged { now, limit, ticket } = limiter.charge(cost, purpose(deadline));
        let allowed = |at| Decision::counted(Outcome::Allowed, at, limit, 0, Wait::default());
        match ticket {
            Ok(None) => Ok(Promise::Now(allowed(now))),
            Ok(Some(ticket)) => {
                let ready = ticket.reserved.from();
                Ok(Promise::Later(Reservation::later(limiter, ticket, [now, ready], allowed(ready))))
            }
            Err(_) if deadline == Micros::MAX => Err(RefusalKind::BeyondTime { cost }.into()),
            Err(wait) => Err(RefusalKind::too_long(now, now.plus(wait.as_micros()), deadline).into()),
        }
    }
}
