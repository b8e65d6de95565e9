//! # Limiter: one limit for the whole program
//!
//! A [`Limiter`] has one state, shared by its clones and by all threads: for what a whole program may do, such as the
//! calls it makes to another service. For a limit per user or address, see [`KeyedLimiter`](crate::KeyedLimiter).

use std::fmt;
use std::sync::Arc;

use crate::clock::{Clock, SteadyClock};
use crate::error::AcquireError;
use crate::observer::{Observer, observe};
use crate::operation::{Check, Operation, OperationResult, Pass};
use crate::request::{RateLimiter, Request, Target};
use crate::reservation::{self, DEFAULT_MAX_WAITING, ReservationTicket, Reserve, when};
use crate::state_cell::{DecisionTime, SOLE_KEY, StateCell};
use crate::wait::Sleep;
use tidegate_core::{Algorithm, Decision, Keep, Outcome, Quota, TokenBucket};

/// One limit, shared by all its clones.
///
/// ```
/// use tidegate::{Limiter, Outcome, Quota};
///
/// let uploads = Limiter::new(Quota::per_second(5));
/// match uploads.check().outcome {
///     Outcome::Allowed => { /* serve */ }
///     _ => { /* refuse */ }
/// }
/// assert!(uploads.request().cost(4).check().is_allowed());
/// assert!(!uploads.check().is_allowed());
/// ```
///
/// Everything beyond [`check`](Limiter::check) and [`acquire`](Limiter::acquire) begins with
/// [`request`](Limiter::request): another cost, a timeout, reservations, refunds.
pub struct Limiter<A = TokenBucket, C = SteadyClock> {
    shared: Arc<StateCell<A>>,
    clock: C,
    observer: Option<Arc<dyn Observer>>,
}

/// Builds a [`Limiter`]. Made by [`Limiter::builder`].
#[derive(Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct LimiterBuilder<A = TokenBucket, C = SteadyClock> {
    algorithm: A,
    clock: C,
    observer: Option<Arc<dyn Observer>>,
    max_waiting: usize,
}

impl Limiter {
    /// Creates a token bucket of `quota`, on the steady clock.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Limiter::builder(quota).build()
    }

    /// Starts to build a token bucket of `quota`, for another clock, an observer or another length of the queue.
    pub fn builder(quota: Quota) -> LimiterBuilder {
        Limiter::builder_with(TokenBucket::new(quota))
    }
}

impl<A: Algorithm> Limiter<A> {
    /// Creates a limiter with any algorithm, or with a tuple of algorithms that are charged all or none.
    ///
    /// ```
    /// use tidegate::algorithm::{FixedWindow, TokenBucket};
    /// use tidegate::{Limiter, Quota};
    ///
    /// let both = Limiter::with((
    ///     TokenBucket::new(Quota::per_second(10)),
    ///     FixedWindow::new(Quota::per_day(5_000)),
    /// ));
    /// assert!(both.check().is_allowed());
    /// ```
    #[must_use]
    pub fn with(algorithm: A) -> Self {
        Limiter::builder_with(algorithm).build()
    }

    /// Starts to build a limiter with any algorithm.
    pub fn builder_with(algorithm: A) -> LimiterBuilder<A> {
        let clock = SteadyClock::new();
        LimiterBuilder { algorithm, clock, observer: None, max_waiting: DEFAULT_MAX_WAITING }
    }
}

impl<A: Algorithm, C: Clock> Limiter<A, C> {
    /// Decides whether a cost of 1 may pass now, and charges it if it may. Never waits.
    #[doc(alias = "try_acquire")]
    #[inline]
    #[must_use]
    pub fn check(&self) -> Decision {
        self.apply(&Check(1))
    }

    /// Waits, as a task, until a cost of 1 may pass, and charges it. See [`Request::acquire`].
    ///
    /// # Errors
    ///
    /// [`AcquireError`] if the queue is full.
    ///
    /// # Panics
    ///
    /// On the steady clock, if it has to wait outside a tokio runtime with timers.
    #[inline]
    pub async fn acquire(&self) -> Result<Decision, AcquireError>
    where
        C: Sleep,
    {
        self.request().acquire().await
    }

    /// Begins a request, for everything beyond [`check`](Limiter::check) and [`acquire`](Limiter::acquire).
    #[inline]
    pub fn request(&self) -> Request<'_, Self> {
        Request::new(self, ())
    }

    /// Replaces the setting of the algorithm, for all clones. Used quota stays used.
    ///
    /// A larger limit adds only the difference, and a smaller one may leave debt that is paid before anything passes. A
    /// few dozen bytes per change are kept until the limiter is dropped.
    ///
    /// ```
    /// use tidegate::algorithm::TokenBucket;
    /// use tidegate::{Limiter, ManualClock, Quota};
    ///
    /// let limiter = Limiter::builder(Quota::per_minute(10)).clock(ManualClock::new()).build();
    /// assert!(limiter.request().cost(10).check().is_allowed());
    /// limiter.change(TokenBucket::new(Quota::per_minute(15)));
    /// assert_eq!(limiter.request().cost(0).peek().remaining(), 5);
    /// ```
    pub fn change(&self, algorithm: A) {
        self.change_keeping(Keep::Used, algorithm);
    }

    /// As [`change`](Limiter::change), and keeps what was used, what remains, or their ratio.
    ///
    /// ```
    /// use tidegate::algorithm::{Keep, TokenBucket};
    /// use tidegate::{Limiter, ManualClock, Quota};
    ///
    /// let limiter = Limiter::builder(Quota::per_minute(10)).clock(ManualClock::new()).build();
    /// assert!(limiter.request().cost(5).check().is_allowed());
    /// limiter.change_keeping(Keep::Ratio, TokenBucket::new(Quota::per_minute(30)));
    /// assert_eq!(limiter.request().cost(0).peek().remaining(), 15);
    /// ```
    pub fn change_keeping(&self, keep: Keep, algorithm: A) {
        self.shared.change(keep, algorithm.for_clock(C::KIND), || self.when());
    }

    /// The decision if the cost may pass on the fast path, and was charged. `None` with an observer.
    #[inline(always)] // callers that only ask whether it passed leave out the rest
    pub(crate) fn pass_fast(&self, cost: u32) -> Option<Decision> {
        let unobserved = self.observer.is_none().then_some(&self.shared)?;
        unobserved
            .apply_fast(&Pass(cost), self.clock.now())
            .filter(|decision| decision.outcome == Outcome::Allowed)
    }

    #[inline]
    fn when(&self) -> DecisionTime {
        DecisionTime { now: self.clock.now(), clock: C::KIND }
    }

    #[inline(always)]
    fn apply<V: Operation>(&self, operation: &V) -> V::Answer {
        let when = self.when();
        if self.observer.is_none()
            && let Some(answer) = self.shared.apply_fast(operation, when.now)
        {
            return answer;
        }
        self.apply_slow(operation, when).rebuilt()
    }

    #[cold]
    #[inline(never)]
    fn apply_slow<V: Operation>(&self, operation: &V, when: DecisionTime) -> V::Answer {
        let answer = self.shared.apply(operation, when);
        if let Some(observer) = &self.observer {
            observe(observer.as_ref(), operation, &answer);
        }
        answer
    }
}

// === impl LimiterBuilder ===

impl<A: Algorithm, C: Clock> LimiterBuilder<A, C> {
    /// Uses another clock.
    pub fn clock<D: Clock>(self, clock: D) -> LimiterBuilder<A, D> {
        let LimiterBuilder { algorithm, observer, max_waiting, .. } = self;
        LimiterBuilder { algorithm, clock, observer, max_waiting }
    }

    /// Shows every decision to `observer`.
    pub fn observer(self, observer: Arc<dyn Observer>) -> Self {
        LimiterBuilder { observer: Some(observer), ..self }
    }

    /// The maximum number of waiters and reservations; 65,536 by default. With 0 no request waits.
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        LimiterBuilder { max_waiting, ..self }
    }

    /// Builds the limiter.
    #[must_use]
    pub fn build(self) -> Limiter<A, C> {
        let LimiterBuilder { algorithm, clock, observer, max_waiting } = self;
        let shared = Arc::new(StateCell::new(algorithm.for_clock(C::KIND), max_waiting));
        Limiter { shared, clock, observer }
    }
}

impl<A: fmt::Debug, C: fmt::Debug> fmt::Debug for LimiterBuilder<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterBuilder")
            .field("algorithm", &self.algorithm)
            .field("clock", &self.clock)
            .field("max_waiting", &self.max_waiting)
            .finish_non_exhaustive()
    }
}

// === the limiter as the target of a request ===

impl<'a, A, C> Target<'a> for Limiter<A, C> {
    type Key = ();
}

impl<A: Algorithm, C: Clock> Reserve for Limiter<A, C> {
    type Ticket = (u64, ReservationTicket);
    type Clock = C;

    fn clock(&self) -> &C {
        &self.clock
    }

    fn cancel(&self, (key, ticket): (u64, ReservationTicket)) {
        reservation::cancel(&*self.shared, key, ticket, || when(&self.clock));
    }

    fn keep(&self, (key, ticket): (u64, ReservationTicket)) {
        reservation::keep(&*self.shared, key, ticket);
    }
}

impl<A: Algorithm, C: Clock> RateLimiter for Limiter<A, C> {
    type StateKey = ();
    type Store = StateCell<A>;

    fn store(&self) -> &StateCell<A> {
        &self.shared
    }

    fn observer(&self) -> Option<&dyn Observer> {
        self.observer.as_deref()
    }

    #[inline(always)]
    fn apply<V: Operation>(&self, (): &(), operation: &V) -> V::Answer {
        Limiter::apply(self, operation)
    }

    fn into_parts((): ()) -> (u64, Option<A>) {
        (SOLE_KEY, None)
    }
}

impl<A, C: Clone> Clone for Limiter<A, C> {
    /// Another handle on the same limit.
    fn clone(&self) -> Self {
        Limiter { shared: self.shared.clone(), clock: self.clock.clone(), observer: self.observer.clone() }
    }
}

impl<A: fmt::Debug, C: fmt::Debug> fmt::Debug for Limiter<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("shared", &self.shared)
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}
