//! # The verbs that wait
//!
//! Those of a [`Limiter`] for who would rather wait than be refused. How a turn is promised and kept is told in
//! `reservations`; here it is given its names.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Limiter, LimiterCost};
use crate::clock::Clock;
use crate::operation::Pass;
use crate::reservation::{
    AcquireRequest, Reservation, WaitRefused, Waiting, classify, observe_wait, reservation_methods,
};
use crate::state_cell::{SOLE_KEY, StateCell};
use crate::wait::{Park, Sleep};
use tidegate_core::{Algorithm, Decision, Micros, Wait};

/// A turn that a [`Limiter`] has promised: wait as long as it says, then go ahead.
///
/// It is charged, so that nobody else takes what it waits for. Dropped or [cancelled](LimiterReservation::cancel)
/// before its instant it is given back, and those who wait behind it move up; from its instant on it counts as used.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limiter, ManualClock, Quota};
///
/// let clock = ManualClock::new();
/// let limiter = Limiter::new(Quota::per_second(10).burst(1)).with_clock(clock.clone());
/// assert!(limiter.check().is_allowed());
///
/// let turn = limiter.reserve()?;
/// assert_eq!(turn.wait(), Duration::from_millis(100));
/// clock.advance(Duration::from_millis(100));
/// assert!(!limiter.check().is_allowed()); // it is the reservation's
/// turn.keep();
/// # Ok::<(), tidegate::WaitRefused>(())
/// ```
#[must_use = "dropped before its instant, a reservation is given back"]
pub struct LimiterReservation<'a, A: Algorithm, C: Clock>(Reservation<'a, StateCell<A>, C>);

impl<A: Algorithm, C: Clock> Limiter<A, C> {
    /// A limiter like this one in which at most `max_waiting` wait or have reserved, as if never used. With 0 nobody
    /// waits. As made, it is 65,536.
    #[must_use]
    pub fn max_waiting(self, max_waiting: usize) -> Self
    where
        A: Clone,
    {
        let shared = Arc::new(StateCell::new(self.shared.algorithm().clone(), max_waiting));
        Limiter { shared, ..self }
    }

    /// Waits until one unit may pass, and charges it.
    ///
    /// First come, first served: nobody overtakes, neither others who wait nor those who only
    /// [`check`](Limiter::check). If it may pass now, this does not wait. On the [`SteadyClock`](crate::SteadyClock)
    /// the timers are tokio's: this needs the feature `tokio`. A clock that can step back does not do.
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use std::time::Duration;
    /// use tidegate::{Limiter, Quota, TokioClock};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    /// # runtime.block_on(async {
    /// let clock = TokioClock::new();
    /// let wakes = Limiter::new(Quota::per_second(10).burst(1)).with_clock(clock);
    /// for _ in 0..3 {
    ///     wakes.acquire().await?; // at 0, 100 and 200 ms
    /// }
    /// # use tidegate::Clock;
    /// # assert_eq!(clock.now().get(), 200_000);
    /// # Ok::<(), tidegate::WaitRefused>(())
    /// # }).unwrap();
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WaitRefused::LineFull`] if too many wait; [`WaitRefused::Never`] if the cost is more than the limit ever
    /// gives; [`WaitRefused::BeyondTime`]. Nothing was charged then.
    ///
    /// # Panics
    ///
    /// On the steady clock, if it has to wait outside a tokio runtime with timers.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point. What it was promised is given back, and those behind it move up.
    pub async fn acquire(&self) -> Result<Decision, WaitRefused>
    where
        C: Sleep,
    {
        self.cost(1).acquire().await
    }

    /// Waits as [`acquire`](Limiter::acquire) does, for at most so long. A wait that would be longer is refused at
    /// once.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Limiter::acquire), and [`WaitRefused::TooLong`].
    ///
    /// # Panics
    ///
    /// As [`acquire`](Limiter::acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Decision, WaitRefused>
    where
        C: Sleep,
    {
        self.cost(1).acquire_timeout(timeout).await
    }

    /// Waits as [`acquire`](Limiter::acquire) does, until an instant of the limiter's clock at the latest.
    ///
    /// # Errors
    ///
    /// As [`acquire_timeout`](Limiter::acquire_timeout).
    ///
    /// # Panics
    ///
    /// As [`acquire`](Limiter::acquire).
    pub async fn acquire_until(&self, deadline: Micros) -> Result<Decision, WaitRefused>
    where
        C: Sleep,
    {
        self.cost(1).acquire_until(deadline).await
    }

    /// Blocks this thread until one unit may pass, and charges it. Not for tasks: see [`acquire`](Limiter::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Limiter::acquire).
    pub fn acquire_blocking(&self) -> Result<Decision, WaitRefused>
    where
        C: Park,
    {
        self.cost(1).acquire_blocking()
    }

    /// Blocks this thread for at most so long. A wait that would be longer is refused at once.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limiter, Quota, WaitRefused};
    ///
    /// let wakes = Limiter::new(Quota::per_hour(1));
    /// assert!(wakes.acquire_blocking_timeout(Duration::from_secs(1)).is_ok()); // there was nothing to wait for
    /// let refused = wakes.acquire_blocking_timeout(Duration::from_secs(1)); // nor is there here: an hour is too long
    /// assert!(matches!(refused, Err(WaitRefused::TooLong { .. })));
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire_timeout`](Limiter::acquire_timeout).
    pub fn acquire_blocking_timeout(&self, timeout: Duration) -> Result<Decision, WaitRefused>
    where
        C: Park,
    {
        self.cost(1).acquire_blocking_timeout(timeout)
    }

    /// Blocks this thread until an instant of the limiter's clock at the latest.
    ///
    /// # Errors
    ///
    /// As [`acquire_timeout`](Limiter::acquire_timeout).
    pub fn acquire_blocking_until(&self, deadline: Micros) -> Result<Decision, WaitRefused>
    where
        C: Park,
    {
        self.cost(1).acquire_blocking_until(deadline)
    }

    /// Promises one unit at a later instant, however late. Charged now, given back if dropped before its instant.
    ///
    /// Most callers want [`acquire`](Limiter::acquire), which also moves up when others leave; a reservation keeps the
    /// instant it was told. A clock that can step back does not compile:
    ///
    /// ```compile_fail
    /// use tidegate::{Limiter, Quota, SettableClock};
    /// let limiter = Limiter::new(Quota::per_second(5)).with_clock(SettableClock::new());
    /// let turn = limiter.reserve();
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Limiter::acquire).
    pub fn reserve(&self) -> Result<LimiterReservation<'_, A, C>, WaitRefused> {
        self.cost(1).reserve()
    }

    /// As [`reserve`](Limiter::reserve), if the wait is at most `timeout`.
    ///
    /// # Errors
    ///
    /// As [`acquire_timeout`](Limiter::acquire_timeout).
    pub fn reserve_within(&self, timeout: Duration) -> Result<LimiterReservation<'_, A, C>, WaitRefused> {
        self.cost(1).reserve_within(timeout)
    }
}

impl<'a, A: Algorithm, C: Clock> LimiterCost<'a, A, C> {
    /// As [`Limiter::acquire`].
    ///
    /// # Errors
    ///
    /// See there.
    ///
    /// # Panics
    ///
    /// See there.
    pub async fn acquire(&self) -> Result<Decision, WaitRefused>
    where
        C: Sleep,
    {
        self.acquire_until(Micros::MAX).await
    }

    /// As [`Limiter::acquire_timeout`].
    ///
    /// # Errors
    ///
    /// See there.
    ///
    /// # Panics
    ///
    /// See there.
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Decision, WaitRefused>
    where
        C: Sleep,
    {
        self.acquire_until(self.after(timeout)).await
    }

    /// As [`Limiter::acquire_until`].
    ///
    /// # Errors
    ///
    /// See there.
    ///
    /// # Panics
    ///
    /// See there.
    pub async fn acquire_until(&self, deadline: Micros) -> Result<Decision, WaitRefused>
    where
        C: Sleep,
    {
        match self.pass(deadline)? {
            Some(passed) => self.shown(Ok(passed)),
            None => self.shown(self.waiting(deadline).wait().await),
        }
    }

    /// As [`Limiter::acquire_blocking`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn acquire_blocking(&self) -> Result<Decision, WaitRefused>
    where
        C: Park,
    {
        self.acquire_blocking_until(Micros::MAX)
    }

    /// As [`Limiter::acquire_blocking_timeout`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn acquire_blocking_timeout(&self, timeout: Duration) -> Result<Decision, WaitRefused>
    where
        C: Park,
    {
        self.acquire_blocking_until(self.after(timeout))
    }

    /// As [`Limiter::acquire_blocking_until`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn acquire_blocking_until(&self, deadline: Micros) -> Result<Decision, WaitRefused>
    where
        C: Park,
    {
        match self.pass(deadline)? {
            Some(passed) => self.shown(Ok(passed)),
            None => self.shown(self.waiting(deadline).block()),
        }
    }

    /// As [`Limiter::reserve`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn reserve(&self) -> Result<LimiterReservation<'a, A, C>, WaitRefused> {
        self.reserve_until(Micros::MAX)
    }

    /// As [`Limiter::reserve_within`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn reserve_within(&self, timeout: Duration) -> Result<LimiterReservation<'a, A, C>, WaitRefused> {
        self.reserve_until(self.after(timeout))
    }

    fn reserve_until(&self, deadline: Micros) -> Result<LimiterReservation<'a, A, C>, WaitRefused> {
        let Limiter { shared, clock, .. } = self.limiter;
        let promised = match self.pass(deadline)? {
            Some(passed) => Reservation::now(&**shared, clock, passed),
            None => Reservation::new(&**shared, clock, None, SOLE_KEY, self.acquire_request(deadline))?,
        };
        let _ = self.shown(Ok(promised.decision()))?;
        Ok(LimiterReservation(promised))
    }

    /// Passes now, if nothing has to be waited for; refuses at once what would be in vain.
    fn pass(&self, deadline: Micros) -> Result<Option<Decision>, WaitRefused> {
        let decision = self.limiter.apply(&Pass(self.cost));
        classify(decision, self.acquire_request(deadline), self.limiter.observer.as_deref())
    }

    fn waiting(&self, deadline: Micros) -> Waiting<'a, StateCell<A>, C> {
        let Limiter { shared, clock, .. } = self.limiter;
        Waiting::new(&**shared, clock, None, SOLE_KEY, self.acquire_request(deadline))
    }

    fn acquire_request(&self, deadline: Micros) -> AcquireRequest {
        AcquireRequest { cost: self.cost, deadline }
    }

    fn after(&self, timeout: Duration) -> Micros {
        self.limiter.clock.now().plus(Micros::from(timeout).get())
    }

    fn shown(&self, answer: Result<Decision, WaitRefused>) -> Result<Decision, WaitRefused> {
        observe_wait(self.limiter.observer.as_deref(), answer)
    }
}

reservation_methods!(LimiterReservation, Limiter);
