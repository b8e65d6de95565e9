//! # The verbs that wait
//!
//! Those of a [`KeyedLimiter`] for who would rather wait than be refused. Each key has a line of its own. How a turn is
//! promised and kept is told in `reservations`; here it is given its names.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use super::{Keyed, KeyedCost, KeyedLimiter, KeyedPlan, Settings};
use crate::clock::Clock;
use crate::fingerprint::AsText;
use crate::gate::Key;
use crate::observer::Observer;
use crate::operation::Pass;
use crate::reservation::{
    AcquireRequest, Reservation, WaitRefused, Waiting, classify, observe_wait, reservation_methods,
};
use crate::state_cell::DecisionTime;
use crate::wait::{Park, Sleep};
use tidegate_core::{Algorithm, Decision, Micros, PerCallBucket, Wait};

/// A turn that a [`KeyedLimiter`] has promised: wait as long as it says, then go ahead.
///
/// It is charged, so that nobody else takes what it waits for. Dropped or [cancelled](KeyedReservation::cancel) before
/// its instant it is given back, and those who wait behind it move up; from its instant on it counts as used.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{KeyedLimiter, ManualClock, Quota};
///
/// let quota = Quota::per_second(10).burst(1);
/// let limiter = KeyedLimiter::<String>::new(quota).with_clock(ManualClock::new());
/// assert!(limiter.check("alice").is_allowed());
///
/// let turn = limiter.reserve("alice")?;
/// assert_eq!(turn.wait(), Duration::from_millis(100));
/// assert!(limiter.check("bob").is_allowed()); // another key, another line
/// turn.cancel();
/// assert_eq!(limiter.check("alice").retry_after().unwrap(), Duration::from_millis(100)); // as if never reserved
/// # Ok::<(), tidegate::WaitRefused>(())
/// ```
#[must_use = "dropped before its instant, a reservation is given back"]
pub struct KeyedReservation<'a, A: Algorithm, C: Clock>(Reservation<'a, Keyed<A>, C>);

/// What somebody asks for who would wait, whichever way it was said.
struct Wanted<'a, A, C> {
    shared: &'a Keyed<A>,
    clock: &'a C,
    observer: Option<&'a dyn Observer>,
    plan: Option<A>,
    fingerprint: u64,
    acquire_request: AcquireRequest,
}

impl<K: ?Sized, A: Algorithm, C: Clock> KeyedLimiter<K, A, C> {
    /// A limiter like this one in which at most `max_waiting` wait or have reserved for each key, as if never used.
    /// With 0 nobody waits. As made, it is 65,536.
    #[must_use]
    pub fn max_waiting(self, max_waiting: usize) -> Self
    where
        A: Clone,
    {
        let settings = Settings { max_waiting, ..self.shared.settings };
        self.with_settings(settings)
    }

    /// Waits until one unit may pass for `key`, and charges it.
    ///
    /// First come, first served: nobody overtakes, neither others who wait nor those who only
    /// [`check`](KeyedLimiter::check). If it may pass now, this does not wait. On the
    /// [`SteadyClock`](crate::SteadyClock) the timers are tokio's: this needs the feature `tokio`. A clock that can
    /// step back does not do.
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use std::time::Duration;
    /// use tidegate::{KeyedLimiter, Quota, TokioClock};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    /// # runtime.block_on(async {
    /// let clock = TokioClock::new();
    /// let wakes = KeyedLimiter::<String>::new(Quota::per_second(10).burst(1)).with_clock(clock);
    /// for _ in 0..3 {
    ///     wakes.acquire("alice").await?; // at 0, 100 and 200 ms
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
    /// gives; [`WaitRefused::TooManyKeys`] if there is no room for another key; [`WaitRefused::BeyondTime`]. Nothing
    /// was charged then.
    ///
    /// # Panics
    ///
    /// On the steady clock, if it has to wait outside a tokio runtime with timers.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point. What it was promised is given back, and those behind it move up.
    pub async fn acquire<Q: Hash + ?Sized>(&self, key: &Q) -> Result<Decision, WaitRefused>
    where
        K: Borrow<Q>,
        C: Sleep,
    {
        self.cost(1).acquire(key).await
    }

    /// Waits as [`acquire`](KeyedLimiter::acquire) does, for at most so long. A wait that would be longer is refused
    /// at once.
    ///
    /// # Errors
    ///
    /// As [`acquire`](KeyedLimiter::acquire), and [`WaitRefused::TooLong`].
    ///
    /// # Panics
    ///
    /// As [`acquire`](KeyedLimiter::acquire).
    pub async fn acquire_timeout<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        timeout: Duration,
    ) -> Result<Decision, WaitRefused>
    where
        K: Borrow<Q>,
        C: Sleep,
    {
        self.cost(1).acquire_timeout(key, timeout).await
    }

    /// Waits as [`acquire`](KeyedLimiter::acquire) does, until an instant of the limiter's clock at the latest.
    ///
    /// # Errors
    ///
    /// As [`acquire_timeout`](KeyedLimiter::acquire_timeout).
    ///
    /// # Panics
    ///
    /// As [`acquire`](KeyedLimiter::acquire).
    pub async fn acquire_until<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        deadline: Micros,
    ) -> Result<Decision, WaitRefused>
    where
        K: Borrow<Q>,
        C: Sleep,
    {
        self.cost(1).acquire_until(key, deadline).await
    }

    /// Blocks this thread until one unit may pass for `key`, and charges it. Not for tasks: see
    /// [`acquire`](KeyedLimiter::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](KeyedLimiter::acquire).
    pub fn acquire_blocking<Q: Hash + ?Sized>(&self, key: &Q) -> Result<Decision, WaitRefused>
    where
        K: Borrow<Q>,
        C: Park,
    {
        self.cost(1).acquire_blocking(key)
    }

    /// Blocks this thread for at most so long. A wait that would be longer is refused at once.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{KeyedLimiter, Quota, WaitRefused};
    ///
    /// let wakes = KeyedLimiter::<str>::new(Quota::per_hour(1));
    /// let second = Duration::from_secs(1);
    /// assert!(wakes.acquire_blocking_timeout("alice", second).is_ok()); // there was nothing to wait for
    /// let refused = wakes.acquire_blocking_timeout("alice", second); // nor is there here: an hour is too long
    /// assert!(matches!(refused, Err(WaitRefused::TooLong { .. })));
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire_timeout`](KeyedLimiter::acquire_timeout).
    pub fn acquire_blocking_timeout<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        timeout: Duration,
    ) -> Result<Decision, WaitRefused>
    where
        K: Borrow<Q>,
        C: Park,
    {
        self.cost(1).acquire_blocking_timeout(key, timeout)
    }

    /// Blocks this thread until an instant of the limiter's clock at the latest.
    ///
    /// # Errors
    ///
    /// As [`acquire_timeout`](KeyedLimiter::acquire_timeout).
    pub fn acquire_blocking_until<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        deadline: Micros,
    ) -> Result<Decision, WaitRefused>
    where
        K: Borrow<Q>,
        C: Park,
    {
        self.cost(1).acquire_blocking_until(key, deadline)
    }

    /// Promises one unit for `key` at a later instant, however late. Charged now, given back if dropped before its
    /// instant.
    ///
    /// Most callers want [`acquire`](KeyedLimiter::acquire), which also moves up when others leave; a reservation
    /// keeps the instant it was told. A clock that can step back does not compile:
    ///
    /// ```compile_fail
    /// use tidegate::{KeyedLimiter, Quota, SettableClock};
    /// let limiter = KeyedLimiter::<str>::new(Quota::per_second(5)).with_clock(SettableClock::new());
    /// let turn = limiter.reserve("alice");
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](KeyedLimiter::acquire).
    pub fn reserve<Q: Hash + ?Sized>(&self, key: &Q) -> Result<KeyedReservation<'_, A, C>, WaitRefused>
    where
        K: Borrow<Q>,
    {
        self.cost(1).reserve(key)
    }

    /// As [`reserve`](KeyedLimiter::reserve), if the wait is at most `timeout`.
    ///
    /// # Errors
    ///
    /// As [`acquire_timeout`](KeyedLimiter::acquire_timeout).
    pub fn reserve_within<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        timeout: Duration,
    ) -> Result<KeyedReservation<'_, A, C>, WaitRefused>
    where
        K: Borrow<Q>,
    {
        self.cost(1).reserve_within(key, timeout)
    }
}

/// The verbs that wait, of whatever has a cost and perhaps a plan. It says how by `wanted`.
macro_rules! waiting_verbs {
    ([$($generics:tt)*] $name:ty, $algorithm:ty) => {
        impl<'a, $($generics)*> $name {
            /// As [`KeyedLimiter::acquire`].
            ///
            /// # Errors
            ///
            /// See there.
            ///
            /// # Panics
            ///
            /// See there.
            pub async fn acquire<Q: Hash + ?Sized>(&self, key: &Q) -> Result<Decision, WaitRefused>
            where
                K: Borrow<Q>,
                C: Sleep,
            {
                self.wanted(key, Micros::MAX).acquire().await
            }

            /// As [`KeyedLimiter::acquire_timeout`].
            ///
            /// # Errors
            ///
            /// See there.
            ///
            /// # Panics
            ///
            /// See there.
            pub async fn acquire_timeout<Q: Hash + ?Sized>(
                &self,
                key: &Q,
                timeout: Duration,
            ) -> Result<Decision, WaitRefused>
            where
                K: Borrow<Q>,
                C: Sleep,
            {
                self.wanted(key, self.limiter.after(timeout)).acquire().await
            }

            /// As [`KeyedLimiter::acquire_until`].
            ///
            /// # Errors
            ///
            /// See there.
            ///
            /// # Panics
            ///
            /// See there.
            pub async fn acquire_until<Q: Hash + ?Sized>(
                &self,
                key: &Q,
                deadline: Micros,
            ) -> Result<Decision, WaitRefused>
            where
                K: Borrow<Q>,
                C: Sleep,
            {
                self.wanted(key, deadline).acquire().await
            }

            /// As [`KeyedLimiter::acquire_blocking`].
            ///
            /// # Errors
            ///
            /// See there.
            pub fn acquire_blocking<Q: Hash + ?Sized>(&self, key: &Q) -> Result<Decision, WaitRefused>
            where
                K: Borrow<Q>,
                C: Park,
            {
                self.wanted(key, Micros::MAX).acquire_blocking()
            }

            /// As [`KeyedLimiter::acquire_blocking_timeout`].
            ///
            /// # Errors
            ///
            /// See there.
            pub fn acquire_blocking_timeout<Q: Hash + ?Sized>(
                &self,
                key: &Q,
                timeout: Duration,
            ) -> Result<Decision, WaitRefused>
            where
                K: Borrow<Q>,
                C: Park,
            {
                self.wanted(key, self.limiter.after(timeout)).acquire_blocking()
            }

            /// As [`KeyedLimiter::acquire_blocking_until`].
            ///
            /// # Errors
            ///
            /// See there.
            pub fn acquire_blocking_until<Q: Hash + ?Sized>(
                &self,
                key: &Q,
                deadline: Micros,
            ) -> Result<Decision, WaitRefused>
            where
                K: Borrow<Q>,
                C: Park,
            {
                self.wanted(key, deadline).acquire_blocking()
            }

            /// As [`KeyedLimiter::reserve`].
            ///
            /// # Errors
            ///
            /// See there.
            pub fn reserve<Q: Hash + ?Sized>(
                &self,
                key: &Q,
            ) -> Result<KeyedReservation<'a, $algorithm, C>, WaitRefused>
            where
                K: Borrow<Q>,
            {
                self.wanted(key, Micros::MAX).reserve()
            }

            /// As [`KeyedLimiter::reserve_within`].
            ///
            /// # Errors
            ///
            /// See there.
            pub fn reserve_within<Q: Hash + ?Sized>(
                &self,
                key: &Q,
                timeout: Duration,
            ) -> Result<KeyedReservation<'a, $algorithm, C>, WaitRefused>
            where
                K: Borrow<Q>,
            {
                self.wanted(key, self.limiter.after(timeout)).reserve()
            }
        }
    };
}

waiting_verbs!([K: ?Sized, A: Algorithm, C: Clock] KeyedCost<'a, K, A, C>, A);
waiting_verbs!([K: ?Sized, C: Clock] KeyedPlan<'a, K, C>, PerCallBucket);

impl<'a, K: ?Sized, A: Algorithm, C: Clock> KeyedCost<'a, K, A, C> {
    fn wanted<Q: Hash + ?Sized>(&self, key: &Q, deadline: Micros) -> Wanted<'a, A, C> {
        self.limiter.wanted(None, key, AcquireRequest { cost: self.cost, deadline })
    }
}

impl<'a, K: ?Sized, C: Clock> KeyedPlan<'a, K, C> {
    fn wanted<Q: Hash + ?Sized>(&self, key: &Q, deadline: Micros) -> Wanted<'a, PerCallBucket, C> {
        self.limiter.wanted(Some(self.plan), key, AcquireRequest { cost: self.cost, deadline })
    }
}

impl<K: ?Sized, A: Algorithm, C: Clock> KeyedLimiter<K, A, C> {
    fn wanted<Q: Hash + ?Sized>(
        &self,
        plan: Option<A>,
        key: &Q,
        acquire_request: AcquireRequest,
    ) -> Wanted<'_, A, C> {
        let KeyedLimiter { shared, clock, observer, .. } = self;
        let fingerprint = shared.secrets.fingerprint(key);
        Wanted { shared, clock, observer: observer.as_deref(), plan, fingerprint, acquire_request }
    }

    /// Waits for the key of a request, which is the same as the text.
    pub(crate) async fn acquire_key(
        &self,
        key: Key<'_>,
        cost: u32,
        timeout: Duration,
    ) -> Result<Decision, WaitRefused>
    where
        C: Sleep,
    {
        let deadline = self.after(timeout);
        self.wanted(None, &AsText(key.bytes()), AcquireRequest { cost, deadline }).acquire().await
    }

    /// The same, for a thread.
    pub(crate) fn acquire_key_blocking(
        &self,
        key: Key<'_>,
        cost: u32,
        timeout: Duration,
    ) -> Result<Decision, WaitRefused>
    where
        C: Park,
    {
        let deadline = self.after(timeout);
        self.wanted(None, &AsText(key.bytes()), AcquireRequest { cost, deadline }).acquire_blocking()
    }

    fn after(&self, timeout: Duration) -> Micros {
        self.clock.now().plus(Micros::from(timeout).get())
    }
}

// === impl Wanted ===

impl<'a, A: Algorithm, C: Clock> Wanted<'a, A, C> {
    async fn acquire(self) -> Result<Decision, WaitRefused>
    where
        C: Sleep,
    {
        let observer = self.observer;
        let answer = match self.pass()? {
            Some(passed) => Ok(passed),
            None => self.waiting().wait().await,
        };
        observe_wait(observer, answer)
    }

    fn acquire_blocking(self) -> Result<Decision, WaitRefused>
    where
        C: Park,
    {
        let observer = self.observer;
        let answer = match self.pass()? {
            Some(passed) => Ok(passed),
            None => self.waiting().block(),
        };
        observe_wait(observer, answer)
    }

    fn reserve(self) -> Result<KeyedReservation<'a, A, C>, WaitRefused> {
        let passed = self.pass()?;
        let Wanted { shared, clock, observer, plan, fingerprint, acquire_request } = self;
        let promised = match passed {
            Some(passed) => Reservation::now(shared, clock, passed),
            None => Reservation::new(shared, clock, plan, fingerprint, acquire_request)?,
        };
        let _ = observe_wait(observer, Ok(promised.decision()))?;
        Ok(KeyedReservation(promised))
    }

    /// Passes now, if nothing has to be waited for; refuses at once what would be in vain.
    #[inline]
    fn pass(&self) -> Result<Option<Decision>, WaitRefused> {
        let Wanted { shared, fingerprint, acquire_request, .. } = *self;
        let fast_path = match self.plan {
            None => shared.apply_fast(fingerprint, &Pass(acquire_request.cost), || self.when()),
            Some(_) => None,
        };
        let tried = match fast_path {
            Some(tried) => tried,
            None => self.pass_slow().rebuilt(),
        };
        classify(tried, acquire_request, self.observer)
    }

    #[cold]
    #[inline(never)]
    fn pass_slow(&self) -> Decision {
        let Wanted { shared, fingerprint, acquire_request, .. } = *self;
        shared.current().table.prefetch(fingerprint); // while the clock is read
        shared.apply(self.plan.as_ref(), fingerprint, &Pass(acquire_request.cost), self.when())
    }

    #[inline]
    fn when(&self) -> DecisionTime {
        DecisionTime { now: self.clock.now(), clock: C::KIND }
    }

    fn waiting(self) -> Waiting<'a, Keyed<A>, C> {
        let Wanted { shared, clock, plan, fingerprint, acquire_request, .. } = self;
        Waiting::new(shared, clock, plan, fingerprint, acquire_request)
    }
}

reservation_methods!(KeyedReservation, KeyedLimiter);
