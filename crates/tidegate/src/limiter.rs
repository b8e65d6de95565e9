//! # One limit for everybody
//!
//! A [`Limiter`] has one state, shared by its clones and by all threads: for what a whole program may do, such as the
//! calls it makes to another service. For a limit of its own for each user or address, see
//! [`KeyedLimiter`](crate::KeyedLimiter).

mod wait;

pub use wait::LimiterReservation;

use std::fmt;
use std::sync::Arc;

use crate::clock::{Clock, SteadyClock};
use crate::observer::{Observer, observe};
use crate::operation::{
    Answer, Check, CheckEach, Detailed, Force, Operation, Pass, Peek, Refund, Reset, Take,
};
use crate::reservation::DEFAULT_MAX_WAITING;
use crate::state_cell::{DecisionTime, StateCell};
use tidegate_core::{Algorithm, Decision, Outcome, Quota, Taken, TokenBucket};

/// One limit, shared by everybody who has a clone of it.
///
/// ```
/// use tidegate::{Limiter, Outcome, Quota};
///
/// let uploads = Limiter::new(Quota::per_second(5));
/// match uploads.check().outcome {
///     Outcome::Allowed => { /* serve */ }
///     _ => { /* refuse */ }
/// }
/// assert!(uploads.cost(4).check().is_allowed());
/// assert!(!uploads.check().is_allowed());
/// ```
pub struct Limiter<A = TokenBucket, C = SteadyClock> {
    shared: Arc<StateCell<A>>,
    clock: C,
    observer: Option<Arc<dyn Observer>>,
}

/// A verb's cost, chosen: what [`Limiter::cost`] returns.
#[derive(Debug)]
#[must_use = "a cost does nothing until a verb follows, such as `.check()`"]
pub struct LimiterCost<'a, A, C> {
    limiter: &'a Limiter<A, C>,
    cost: u32,
}

impl Limiter {
    /// A token bucket of `quota`, on the steady clock.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Limiter::with(TokenBucket::new(quota))
    }
}

impl<A: Algorithm> Limiter<A> {
    /// Any algorithm, or a tuple of them that stand or fall together, on the steady clock.
    ///
    /// ```
    /// use tidegate::{FixedWindow, Limiter, Quota, TokenBucket};
    /// let both = Limiter::with((
    ///     TokenBucket::new(Quota::per_second(10)),
    ///     FixedWindow::new(Quota::per_day(5_000)),
    /// ));
    /// assert!(both.check().is_allowed());
    /// ```
    #[must_use]
    pub fn with(algorithm: A) -> Self {
        let algorithm = algorithm.for_clock(SteadyClock::KIND);
        let shared = Arc::new(StateCell::new(algorithm, DEFAULT_MAX_WAITING));
        Limiter { shared, clock: SteadyClock::new(), observer: None }
    }
}

impl<A: Algorithm, C: Clock> Limiter<A, C> {
    /// A limiter like this one on another clock, as if never used.
    #[must_use]
    pub fn with_clock<D: Clock>(self, clock: D) -> Limiter<A, D>
    where
        A: Clone,
    {
        let algorithm = self.shared.algorithm().clone().for_clock(D::KIND);
        let shared = Arc::new(StateCell::new(algorithm, self.shared.max_waiting()));
        Limiter { shared, clock, observer: self.observer }
    }

    /// The same limiter, with somebody watching. Clones made before are not watched.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        Limiter { observer: Some(observer), ..self }
    }

    /// Decides whether one unit may pass now, and charges it if it may. Never waits.
    #[doc(alias = "try_acquire")]
    #[inline]
    pub fn check(&self) -> Decision {
        self.apply(&Check(1))
    }

    /// Decides as [`check`](Limiter::check) would, and charges nothing.
    #[inline]
    pub fn peek(&self) -> Decision {
        self.apply(&Peek(1))
    }

    /// The verbs for a cost other than 1.
    #[inline]
    pub fn cost(&self, cost: u32) -> LimiterCost<'_, A, C> {
        LimiterCost { limiter: self, cost }
    }

    /// Forgets everything that was used.
    pub fn reset(&self) {
        self.apply(&Reset);
    }

    /// Puts another setting of the same algorithm in force, for all clones.
    ///
    /// What was used stays used: a larger limit adds only the difference, and a smaller one may leave debt that is
    /// paid before anything passes. A few dozen bytes per change are kept until the limiter is dropped.
    ///
    /// ```
    /// use tidegate::{Limiter, ManualClock, Quota, TokenBucket};
    /// let limiter = Limiter::new(Quota::per_minute(10)).with_clock(ManualClock::new());
    /// assert!(limiter.cost(10).check().is_allowed());
    /// limiter.change(TokenBucket::new(Quota::per_minute(15)));
    /// assert_eq!(limiter.cost(0).peek().remaining(), 5);
    /// ```
    pub fn change(&self, algorithm: A) {
        self.shared.change(algorithm.for_clock(C::KIND), || self.when());
    }

    /// The decision if so much may pass by the short cut, and was charged. Nobody watches that.
    #[inline(always)] // then those who only want to know whether leave out the rest of it
    pub(crate) fn pass_fast(&self, cost: u32) -> Option<Decision> {
        let unwatched = self.observer.is_none().then_some(&self.shared)?;
        unwatched
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
            observe::<V>(observer.as_ref(), &answer);
        }
        answer
    }
}

impl<A: Algorithm, C: Clock> LimiterCost<'_, A, C> {
    /// Decides whether the cost may pass now, and charges it if it may. Never waits.
    #[inline]
    pub fn check(&self) -> Decision {
        self.limiter.apply(&Check(self.cost))
    }

    /// As [`check`](LimiterCost::check), with what each rule of a policy had to say. Allocates.
    pub fn check_each(&self) -> Detailed {
        self.limiter.apply(&CheckEach(self.cost))
    }

    /// Decides as [`check`](LimiterCost::check) would, and charges nothing. A cost of 0 asks what is left.
    #[inline]
    pub fn peek(&self) -> Decision {
        self.limiter.apply(&Peek(self.cost))
    }

    /// Takes as much of the cost as there is, which may be nothing.
    #[must_use]
    pub fn take(&self) -> Taken {
        self.limiter.apply(&Take(self.cost))
    }

    /// Charges the cost whether or not it fits; what does not fit is debt.
    pub fn force(&self) -> Decision {
        self.limiter.apply(&Force(self.cost))
    }

    /// Gives back what a recent charge took, never above the limit.
    pub fn refund(&self) {
        self.limiter.apply(&Refund(self.cost));
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
