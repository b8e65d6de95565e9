//! # Request: one builder for every limiter
//!
//! A request says what it takes ([`cost`](Request::cost)), how long it may wait ([`timeout`](Request::timeout)), and
//! ends in an operation: `check`, `acquire`, `reserve`, … Every limiter, pacer and policy has `request`, with the same
//! words.
//!
//! ```text
//!   limiter.request(key) ─► .cost(3) ─► .timeout(50 ms) ─► .acquire().await     Decision or AcquireError
//!                                   └─────────────────────► .check()            Decision
//! ```
//!
//! How long a request may wait is part of its type: [`()`](Deadline) if for ever, a `Duration` or an instant otherwise.
//! So `check` is offered only where no timeout would be ignored, and only a timeout needs the timers of a runtime.
//!
//! The operations of rate limiters are here. Those of permits, pacers and policies are in `concurrency/request.rs`,
//! `pacer/request.rs` and `policy/request.rs`.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::clock::Clock;
use crate::error::{AcquireError, RefusalKind};
use crate::observer::{Observer, charge};
use crate::operation::{Check, CheckEach, Detailed, Force, Operation, Pass, Peek, Refund, Reset, Take};
use crate::reservation::{
    AcquireRequest, Joined, Reservation, ReservationTicket, Reserve, StateStore, Waiting, classify, join,
    when,
};
use crate::wait::{Park, Sleep, until};
use tidegate_core::{Decision, Micros, Taken};

/// A request to a limiter, pacer or policy, before it is made.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{KeyedLimiter, Quota};
///
/// let limiter = KeyedLimiter::<String>::new(Quota::per_second(10).burst(20));
/// assert!(limiter.request("alice").cost(5).check().is_allowed());
/// limiter.request("alice").cost(5).timeout(Duration::from_millis(50)).acquire_blocking()?;
/// assert_eq!(limiter.request("alice").peek().limit(), 20);
/// # Ok::<(), tidegate::AcquireError>(())
/// ```
#[must_use = "a request does nothing until an operation such as `check` or `acquire`"]
pub struct Request<'a, L: Target<'a>, D = ()> {
    pub(crate) limiter: &'a L,
    pub(crate) key: L::Key,
    pub(crate) cost: u32,
    pub(crate) deadline: D,
}

/// Anything that takes a [`Request`].
pub trait Target<'a> {
    /// What identifies the state: nothing, a key, or the rules of a policy with their keys.
    type Key;
}

/// How long a request may wait: `()` for ever, a [`Duration`], or until an instant of the limiter's clock.
pub trait Deadline: Copy {
    /// Returns the instant at which the wait ends.
    fn instant<C: Clock>(self, clock: &C) -> Micros;
}

impl Deadline for () {
    #[inline]
    fn instant<C: Clock>(self, _: &C) -> Micros {
        Micros::MAX
    }
}

impl Deadline for Duration {
    fn instant<C: Clock>(self, clock: &C) -> Micros {
        clock.now().plus(Micros::from(self).get())
    }
}

impl Deadline for Micros {
    fn instant<C: Clock>(self, _: &C) -> Micros {
        self
    }
}

/// A [`Deadline`] for tasks. Only a deadline that ends needs a clock with timers.
pub trait TaskDeadline<C>: Deadline {
    /// Runs `future` until it is ready; `None` if the clock reaches `deadline` first.
    #[doc(hidden)]
    fn race<F: Future + Unpin>(
        self,
        future: F,
        clock: &C,
        deadline: Micros,
    ) -> impl Future<Output = Option<F::Output>>;
}

impl<C> TaskDeadline<C> for () {
    async fn race<F: Future + Unpin>(self, future: F, _: &C, _: Micros) -> Option<F::Output> {
        Some(future.await)
    }
}

impl<C: Sleep> TaskDeadline<C> for Duration {
    async fn race<F: Future + Unpin>(self, future: F, clock: &C, deadline: Micros) -> Option<F::Output> {
        until(future, clock, deadline).await
    }
}

impl<C: Sleep> TaskDeadline<C> for Micros {
    async fn race<F: Future + Unpin>(self, future: F, clock: &C, deadline: Micros) -> Option<F::Output> {
        until(future, clock, deadline).await
    }
}

impl<'a, L: Target<'a>> Request<'a, L> {
    #[inline]
    pub(crate) fn new(limiter: &'a L, key: L::Key) -> Self {
        Request { limiter, key, cost: 1, deadline: () }
    }

    /// Waits at most this long. A wait that would be longer is refused at once, where that can be predicted.
    #[inline]
    pub fn timeout(self, timeout: Duration) -> Request<'a, L, Duration> {
        self.with_deadline(timeout)
    }

    /// Waits at most until this instant of the limiter's clock, like [`timeout`](Request::timeout).
    #[inline]
    pub fn deadline(self, deadline: Micros) -> Request<'a, L, Micros> {
        self.with_deadline(deadline)
    }

    #[inline]
    fn with_deadline<D>(self, deadline: D) -> Request<'a, L, D> {
        let Request { limiter, key, cost, .. } = self;
        Request { limiter, key, cost, deadline }
    }
}

impl<'a, L: Target<'a>, D> Request<'a, L, D> {
    /// What the request takes of the limit: 1 unless set.
    ///
    /// In a request to a policy, it is taken of every rule that is named by `rule` or `rule_for`.
    #[inline]
    pub fn cost(self, cost: u32) -> Self {
        Request { cost, ..self }
    }
}

/// A rate limiter, as the operations of a request see it.
pub(crate) trait RateLimiter:
    for<'a> Target<'a, Key = Self::StateKey> + Reserve<Ticket = (u64, ReservationTicket)>
{
    type StateKey;
    type Store: StateStore;

    fn store(&self) -> &Self::Store;
    fn observer(&self) -> Option<&dyn Observer>;
    /// Executes an operation that does not wait. The observer is told.
    fn apply<V: Operation>(&self, key: &Self::StateKey, operation: &V) -> V::Answer;
    /// Returns the fingerprint of the key, and the algorithm that comes with the request.
    fn into_parts(key: Self::StateKey) -> (u64, Option<<Self::Store as StateStore>::Algorithm>);
    /// Called after a refund: the state may be idle now.
    fn refunded(&self, _: &Self::StateKey) {}
}

/// Operations of rate limiters that never wait.
#[expect(private_bounds, reason = "only for the limiters of this crate")]
impl<L: RateLimiter> Request<'_, L> {
    /// Decides whether the cost may pass now, and charges it if it may. Never waits.
    #[inline]
    #[must_use]
    pub fn check(self) -> Decision {
        self.limiter.apply(&self.key, &Check(self.cost))
    }

    /// As [`check`](Request::check), with the decision of each algorithm of a tuple or slice. Allocates.
    #[must_use]
    pub fn check_each(self) -> Detailed {
        self.limiter.apply(&self.key, &CheckEach(self.cost))
    }

    /// Decides as [`check`](Request::check) would, and charges nothing. A cost of 0 queries the remaining quota.
    #[inline]
    #[must_use]
    pub fn peek(self) -> Decision {
        self.limiter.apply(&self.key, &Peek(self.cost))
    }

    /// Takes as much of the cost as is left, possibly nothing.
    #[must_use]
    pub fn take(self) -> Taken {
        self.limiter.apply(&self.key, &Take(self.cost))
    }

    /// Charges the cost whether or not it fits. The part that does not fit is debt.
    ///
    /// For costs that are known only afterwards, such as the bytes of a response.
    pub fn force(self) -> Decision {
        self.limiter.apply(&self.key, &Force(self.cost))
    }

    /// Refunds what a recent charge took, never above the limit.
    pub fn refund(self) {
        self.limiter.apply(&self.key, &Refund(self.cost));
        self.limiter.refunded(&self.key);
    }

    /// Forgets all recorded usage. The cost plays no part.
    pub fn reset(self) {
        self.limiter.apply(&self.key, &Reset);
        self.limiter.refunded(&self.key);
    }
}

/// Operations of rate limiters that wait.
///
/// First come, first served: no later request overtakes one that waits, nor does a `check`. A request that may pass now
/// does not wait. Waiting requires a monotonic clock; on the [`SteadyClock`](crate::SteadyClock) tasks use the timers of
/// tokio, which takes the feature `tokio`.
#[expect(private_bounds, reason = "only for the limiters of this crate")]
impl<'a, L: RateLimiter, D: Deadline> Request<'a, L, D> {
    /// Waits, as a task, until the cost may pass, and charges it.
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use tidegate::{KeyedLimiter, Quota, TokioClock};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    /// # runtime.block_on(async {
    /// let clock = TokioClock::new();
    /// let calls = KeyedLimiter::<String>::builder(Quota::per_second(10).burst(2)).clock(clock).build();
    /// for _ in 0..3 {
    ///     calls.request("alice").cost(2).acquire().await?; // at 0, 200 and 400 ms
    /// }
    /// # use tidegate::clock::Clock;
    /// # assert_eq!(clock.now().get(), 400_000);
    /// # Ok::<(), tidegate::AcquireError>(())
    /// # }).unwrap();
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`AcquireError`] with nothing charged: the timeout cannot suffice, the queue is full, the cost exceeds what the
    /// limit can ever allow, or there is no room for another key.
    ///
    /// # Panics
    ///
    /// On the steady clock, if it has to wait outside a tokio runtime with timers.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point. Its charge is refunded, and requests behind it move up.
    #[inline]
    pub async fn acquire(self) -> Result<Decision, AcquireError>
    where
        L::Clock: Sleep,
    {
        let (limiter, acquire_request) = (self.limiter, self.acquire_request());
        match self.pass(acquire_request)? {
            Some(passed) => Ok(passed),
            None => observe_wait(limiter, acquire_request.cost, self.waiting(acquire_request).wait().await),
        }
    }

    /// Blocks this thread until the cost may pass, and charges it. For tasks see [`acquire`](Request::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Request::acquire).
    #[inline]
    pub fn acquire_blocking(self) -> Result<Decision, AcquireError>
    where
        L::Clock: Park,
    {
        let (limiter, acquire_request) = (self.limiter, self.acquire_request());
        match self.pass(acquire_request)? {
            Some(passed) => Ok(passed),
            None => observe_wait(limiter, acquire_request.cost, self.waiting(acquire_request).block()),
        }
    }

    /// Charges the cost now for the first instant at which it may pass, and does not wait.
    ///
    /// Most callers want [`acquire`](Request::acquire), which also moves up when other requests leave the queue; a
    /// reservation keeps its instant. A clock that can step back does not compile:
    ///
    /// ```compile_fail
    /// use tidegate::{Limiter, Quota, clock::SettableClock};
    /// let limiter = Limiter::builder(Quota::per_second(5)).clock(SettableClock::new()).build();
    /// let reservation = limiter.request().reserve();
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Request::acquire).
    pub fn reserve(self) -> Result<Reservation<'a, L>, AcquireError> {
        let (limiter, acquire_request) = (self.limiter, self.acquire_request());
        if let Some(passed) = self.pass(acquire_request)? {
            return Ok(Reservation::now(limiter, passed));
        }
        let (fingerprint, per_call) = L::into_parts(self.key);
        let when = || when(limiter.clock());
        let (decision, ticket) =
            match join(limiter.store(), per_call, fingerprint, acquire_request, None, when)? {
                Joined::Now(decision) => (decision, None),
                Joined::Later(ticket) => (ticket.decision(), Some(ticket)),
            };
        let decision = observe_wait(limiter, acquire_request.cost, Ok(decision))?;
        Ok(match ticket {
            None => Reservation::now(limiter, decision),
            Some(ticket) => {
                let instants = [ticket.asked(), ticket.ready()];
                Reservation::later(limiter, (fingerprint, ticket), instants, decision)
            }
        })
    }

    #[inline]
    fn acquire_request(&self) -> AcquireRequest {
        AcquireRequest { cost: self.cost, deadline: self.deadline.instant(self.limiter.clock()) }
    }

    /// Passes now, if there is nothing to wait for; refuses at once what cannot pass in time.
    #[inline]
    fn pass(&self, acquire_request: AcquireRequest) -> Result<Option<Decision>, AcquireError> {
        let tried = self.limiter.apply(&self.key, &Pass(self.cost));
        let passed = classify(tried, acquire_request);
        if let Some(observer) = self.limiter.observer() {
            match passed {
                Ok(Some(passed)) => observer.allowed(&passed, &charge(self.cost)),
                Ok(None) => {}
                Err(_) => observer.denied(&tried, &charge(self.cost)),
            }
        }
        Ok(passed?)
    }

    fn waiting(self, acquire_request: AcquireRequest) -> Waiting<'a, L::Store, L::Clock> {
        let (fingerprint, per_call) = L::into_parts(self.key);
        Waiting::new(self.limiter.store(), self.limiter.clock(), per_call, fingerprint, acquire_request)
    }
}

/// Tells the observer of a wait that has ended.
fn observe_wait<L: RateLimiter>(
    limiter: &L,
    cost: u32,
    waited: Result<Decision, RefusalKind>,
) -> Result<Decision, AcquireError> {
    if let (Some(observer), Ok(decision)) = (limiter.observer(), &waited) {
        observer.allowed(decision, &charge(cost));
    }
    Ok(waited?)
}

impl<'a, L: Target<'a>, D> fmt::Debug for Request<'a, L, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("cost", &self.cost).finish_non_exhaustive()
    }
}
