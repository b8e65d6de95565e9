//! # KeyedLimiter: a limit per key
//!
//! A [`KeyedLimiter`] keeps a state for each user, address or API key: millions of them, in about 20 to 40 bytes each.
//! Keys are looked up by reference and never stored. For one limit on everything, see [`Limiter`](crate::Limiter).

mod change;
mod states;
mod step;

pub(crate) use states::{DEFAULT_MAX_KEYS, FIRST, Keyed, Settings, Version};
pub(crate) use step::KeyedStep;

use std::borrow::Borrow;
use std::error::Error;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::clock::{Clock, SteadyClock};
use crate::error::AcquireError;
use crate::fingerprint::AsText;
use crate::gate::Key;
use crate::observer::{Observer, observe};
use crate::operation::{Check, Operation, OperationResult, Pass, Peek};
use crate::request::{RateLimiter, Request, Target};
use crate::reservation::{self, ReservationTicket, Reserve, when};
use crate::state_cell::DecisionTime;
use crate::table::{OnFull, Stats};
use crate::wait::Sleep;
use tidegate_core::{Algorithm, Decision, Keep, Outcome, PerCallBucket, Quota, TokenBucket};

/// A limit for each key.
///
/// ```
/// use tidegate::{KeyedLimiter, Quota};
///
/// let limiter = KeyedLimiter::<String>::new(Quota::per_second(10).burst(20));
/// assert!(limiter.check("alice").is_allowed()); // looked up by &str, nothing allocated
/// assert!(limiter.request("bob").cost(20).check().is_allowed());
/// assert!(!limiter.check("bob").is_allowed());
/// ```
///
/// Everything beyond [`check`](KeyedLimiter::check) and [`acquire`](KeyedLimiter::acquire) begins with
/// [`request`](KeyedLimiter::request): another cost, a timeout, a quota of its own, reservations, refunds.
///
/// Memory is bounded by [`max_keys`](KeyedLimiterBuilder::max_keys), four million by default. Idle keys make room for
/// new ones. If no key is idle, new keys share memory or are refused, as [`on_full`](KeyedLimiterBuilder::on_full) says,
/// and keys that have a state are not affected.
pub struct KeyedLimiter<K: ?Sized, A = TokenBucket, C = SteadyClock> {
    shared: Arc<Keyed<A>>,
    clock: C,
    observer: Option<Arc<dyn Observer>>,
    key: PhantomData<fn(&K)>,
}

/// Builds a [`KeyedLimiter`]. Made by [`KeyedLimiter::builder`].
#[derive(Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct KeyedLimiterBuilder<K: ?Sized, A = TokenBucket, C = SteadyClock> {
    algorithm: A,
    clock: C,
    observer: Option<Arc<dyn Observer>>,
    settings: Settings,
    key: PhantomData<fn(&K)>,
}

/// The fingerprint of the key of a request, and the algorithm that comes with the request.
#[derive(Debug)]
pub struct RequestKey<A> {
    fingerprint: u64,
    /// Overrides the limiter's algorithm for this request.
    per_call: Option<A>,
}

/// The error for an algorithm whose state size differs from the limiter's. See [`Request::by`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WrongStateSize {
    /// The number of words in a state of the algorithm.
    pub words: usize,
    /// The number of words in a state of the limiter.
    pub expected: usize,
}

impl<K: ?Sized> KeyedLimiter<K> {
    /// Creates a token bucket of `quota` for each key, on the steady clock.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        KeyedLimiter::builder(quota).build()
    }

    /// Starts to build a token bucket of `quota` for each key: another clock, an observer, bounds on memory.
    pub fn builder(quota: Quota) -> KeyedLimiterBuilder<K> {
        KeyedLimiter::builder_with(TokenBucket::new(quota))
    }
}

impl<K: ?Sized, A: Algorithm> KeyedLimiter<K, A> {
    /// Creates a limiter with any algorithm, or with a tuple of algorithms that are charged all or none.
    #[must_use]
    pub fn with(algorithm: A) -> Self {
        KeyedLimiter::builder_with(algorithm).build()
    }

    /// Starts to build a limiter with any algorithm.
    pub fn builder_with(algorithm: A) -> KeyedLimiterBuilder<K, A> {
        KeyedLimiterBuilder {
            algorithm,
            clock: SteadyClock::new(),
            observer: None,
            settings: Settings::default(),
            key: PhantomData,
        }
    }
}

impl<K: ?Sized, A: Algorithm, C: Clock> KeyedLimiter<K, A, C> {
    /// Decides whether a cost of 1 may pass for `key` now, and charges it if it may. Never waits.
    #[doc(alias = "try_acquire")]
    #[inline]
    #[must_use]
    pub fn check<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.apply(self.shared.secrets.fingerprint(key), None, &Check(1))
    }

    /// Waits, as a task, until a cost of 1 may pass for `key`, and charges it. See [`Request::acquire`].
    ///
    /// Each key has its own queue.
    ///
    /// # Errors
    ///
    /// [`AcquireError`] if the queue of the key is full, or there is no room for another key.
    ///
    /// # Panics
    ///
    /// On the steady clock, if it has to wait outside a tokio runtime with timers.
    #[inline]
    pub async fn acquire<Q: Hash + ?Sized>(&self, key: &Q) -> Result<Decision, AcquireError>
    where
        K: Borrow<Q>,
        C: Sleep,
    {
        self.request(key).acquire().await
    }

    /// Begins a request for `key`, for everything beyond [`check`](KeyedLimiter::check) and
    /// [`acquire`](KeyedLimiter::acquire).
    #[inline]
    pub fn request<Q: Hash + ?Sized>(&self, key: &Q) -> Request<'_, Self>
    where
        K: Borrow<Q>,
    {
        Request::new(self, RequestKey { fingerprint: self.shared.secrets.fingerprint(key), per_call: None })
    }

    /// The number of keys that have a state of their own. Reads one atomic counter.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.shared.current().table.keys()
    }

    /// The number of keys, of evictions, and of decisions for keys that found no room.
    ///
    /// Reads every cell of the sketch, once there is one.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats(self.clock.now())
    }

    /// Replaces the parameters of the algorithm, for all keys and all clones. Used quota stays used.
    ///
    /// As [`Limiter::change`](crate::Limiter::change). Decisions wait meanwhile: in the order of a tenth of a second for
    /// a million keys. If states have another size under the new parameters, as when a window gets more cells, the memory
    /// of the old table is kept until the limiter is dropped.
    pub fn change(&self, algorithm: A) {
        self.change_keeping(Keep::Used, algorithm);
    }

    /// As [`change`](KeyedLimiter::change), and keeps what was used, what remains, or their ratio.
    pub fn change_keeping(&self, keep: Keep, algorithm: A) {
        self.shared.change(keep, algorithm.for_clock(C::KIND), || self.decision_time());
    }

    /// Begins a request for the key of a [`Part`](crate::gate::Part).
    ///
    /// A `Part` key and a `str` with the same bytes have the same fingerprint.
    pub(crate) fn request_for(&self, key: Key<'_>) -> Request<'_, Self> {
        let fingerprint = self.shared.secrets.fingerprint(&AsText(key.bytes()));
        Request::new(self, RequestKey { fingerprint, per_call: None })
    }

    /// Checks the key of a [`Part`](crate::gate::Part).
    pub(crate) fn check_key(&self, key: Key<'_>, cost: u32) -> Decision {
        self.apply(self.shared.secrets.fingerprint(&AsText(key.bytes())), None, &Check(cost))
    }

    /// Allows and charges a request on the fast path.
    ///
    /// `None` if it must take the slow path: it may be refused, its key is new, or there is an observer.
    #[inline(always)] // so that the compiler drops the parts of the decision that a caller does not read
    pub(crate) fn pass_fast(&self, key: Key<'_>, cost: u32) -> Option<Decision> {
        let fingerprint = self.shared.secrets.fingerprint_of_text(key.bytes());
        let unobserved = self.observer.is_none().then_some(&self.shared)?;
        unobserved
            .apply_fast(fingerprint, &Pass(cost), || self.decision_time())
            .filter(|decision| decision.outcome == Outcome::Allowed)
    }

    /// The remaining quota of the key of a [`Part`](crate::gate::Part).
    pub(crate) fn peek_key(&self, key: Key<'_>) -> Decision {
        self.apply(self.shared.secrets.fingerprint(&AsText(key.bytes())), None, &Peek(0))
    }

    #[inline]
    fn decision_time(&self) -> DecisionTime {
        DecisionTime { now: self.clock.now(), clock: C::KIND }
    }

    #[inline(always)]
    fn apply<V: Operation>(&self, fingerprint: u64, per_call: Option<&A>, operation: &V) -> V::Answer {
        if self.observer.is_none() {
            let answer = match per_call {
                None => self.shared.apply_fast(fingerprint, operation, || self.decision_time()),
                Some(per_call) => {
                    self.shared.apply_per_call_fast(per_call, fingerprint, operation, || self.decision_time())
                }
            };
            if let Some(answer) = answer {
                return answer;
            }
        }
        self.apply_slow(per_call, fingerprint, operation).rebuilt()
    }

    /// The slow path, by `per_call` if there is one, else by the current algorithm.
    #[cold]
    #[inline(never)]
    fn apply_slow<V: Operation>(&self, per_call: Option<&A>, fingerprint: u64, operation: &V) -> V::Answer {
        self.shared.current().table.prefetch(fingerprint); // while the clock is read
        let answer = self.shared.apply(per_call, fingerprint, operation, self.decision_time());
        if let Some(observer) = &self.observer {
            observe(observer.as_ref(), operation, &answer);
        }
        answer
    }
}

impl<K: ?Sized, C: Clock, D> Request<'_, KeyedLimiter<K, PerCallBucket, C>, D> {
    /// Decides by this quota. It may differ from request to request, even for one key: used quota stays used.
    ///
    /// Waiters of one key share a queue, whatever their quotas. A reservation keeps the quota it was made with.
    ///
    /// ```
    /// use tidegate::algorithm::PerCallBucket;
    /// use tidegate::{KeyedLimiter, Quota};
    ///
    /// const FREE: Quota = Quota::per_hour(10);
    /// const PAID: Quota = Quota::per_hour(1_000);
    /// let limiter = KeyedLimiter::<u64, _>::with(PerCallBucket::new(FREE)); // the quota of requests without one
    ///
    /// assert!(limiter.request(&7).cost(10).check().is_allowed());
    /// assert!(!limiter.check(&7).is_allowed());
    /// assert_eq!(limiter.request(&7).quota(PAID).check().remaining(), 989); // upgraded
    /// assert!(!limiter.request(&7).quota(FREE).check().is_allowed()); // and back: eleven used of ten
    /// ```
    #[inline]
    pub fn quota(self, quota: Quota) -> Self {
        self.with_per_call(PerCallBucket::new(quota).for_clock(C::KIND))
    }
}

impl<K: ?Sized, A: Algorithm, C: Clock, D> Request<'_, KeyedLimiter<K, A, C>, D> {
    /// Decides with other parameters of the algorithm, for this request only. For algorithms of your own.
    ///
    /// Unlike [`change`](KeyedLimiter::change) this migrates nothing: the words of the state are interpreted by the new
    /// parameters, whichever parameters wrote them. Most callers want [`quota`](Request::quota), with states that store
    /// the quota they were written with.
    ///
    /// ```
    /// use tidegate::algorithm::TokenBucket;
    /// use tidegate::{KeyedLimiter, Quota};
    ///
    /// let limiter = KeyedLimiter::<str>::new(Quota::per_minute(60));
    /// assert!(limiter.request("alice").cost(30).check().is_allowed()); // owes for 30 seconds
    /// let slower = limiter.request("alice").by(TokenBucket::new(Quota::per_minute(6)))?;
    /// assert_eq!(slower.cost(0).peek().remaining(), 3); // 30 seconds are 3 of these, and not 30
    /// # Ok::<(), tidegate::algorithm::WrongStateSize>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`WrongStateSize`] if the states of the algorithm have another size than those of the limiter.
    #[inline]
    pub fn by(self, algorithm: A) -> Result<Self, WrongStateSize> {
        let algorithm = algorithm.for_clock(C::KIND);
        let (words, expected) = (algorithm.words(), self.limiter.shared.current().algorithm.words());
        if words != expected {
            return Err(WrongStateSize { words, expected });
        }
        Ok(self.with_per_call(algorithm))
    }

    #[inline]
    fn with_per_call(mut self, algorithm: A) -> Self {
        self.key.per_call = Some(algorithm);
        self
    }
}

// === impl KeyedLimiterBuilder ===

impl<K: ?Sized, A: Algorithm, C: Clock> KeyedLimiterBuilder<K, A, C> {
    /// Uses another clock.
    pub fn clock<D: Clock>(self, clock: D) -> KeyedLimiterBuilder<K, A, D> {
        let KeyedLimiterBuilder { algorithm, observer, settings, key, .. } = self;
        KeyedLimiterBuilder { algorithm, clock, observer, settings, key }
    }

    /// Shows every decision to `observer`.
    pub fn observer(self, observer: Arc<dyn Observer>) -> Self {
        KeyedLimiterBuilder { observer: Some(observer), ..self }
    }

    /// The maximum number of keys with a state, at least 1; four million by default.
    ///
    /// Choose the number of keys that can have used quota at the same time; idle keys are evicted.
    /// [`on_full`](KeyedLimiterBuilder::on_full) says what happens to more.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.settings.max_keys = max_keys.max(1);
        self
    }

    /// What happens to new keys when there is no room.
    ///
    /// By default, token buckets and clock-aligned fixed windows let such keys share the cells of a *sketch*: a key is
    /// never allowed more than a state of its own would have allowed, and it may be refused for what other keys in its
    /// cells have used. Such decisions say [`Source::Sketch`](crate::Source::Sketch). Keys that have a state are not
    /// affected. What a key used in the sketch stays used when it finds room later. In the sketch, `refund` and `reset`
    /// give nothing back, because other keys share the cell. The cells are allocated when the first key finds no room:
    /// as many as `max_keys`, rounded up to a power of two, from 4,096 to 1,048,576. With one-word states that is at most
    /// 8 MiB. With other algorithms, new keys are refused.
    ///
    /// ```
    /// use tidegate::{KeyedLimiter, OnFull, Quota, Source};
    ///
    /// let limiter = KeyedLimiter::<u64>::builder(Quota::per_hour(2)).max_keys(1).build();
    /// let [first, second] = [1, 2].map(|key| limiter.check(&key));
    /// assert_eq!((first.is_allowed(), first.source), (true, Source::Strict));
    /// assert_eq!((second.is_allowed(), second.source), (true, Source::Sketch));
    /// assert!(limiter.check(&2).is_allowed() && !limiter.check(&2).is_allowed()); // two an hour, like any key
    ///
    /// let strict = KeyedLimiter::<u64>::builder(Quota::per_hour(2)).max_keys(1).on_full(OnFull::Refuse).build();
    /// let [first, second] = [1, 2].map(|key| strict.check(&key));
    /// assert_eq!((second.is_allowed(), second.source), (false, Source::Closed));
    /// ```
    pub fn on_full(mut self, on_full: OnFull) -> Self {
        self.settings.on_full = on_full;
        self
    }

    /// The maximum number of waiters and reservations of one key; 65,536 by default. With 0 no request waits.
    pub fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.settings.max_waiting = max_waiting;
        self
    }

    /// Builds the limiter.
    #[must_use]
    pub fn build(self) -> KeyedLimiter<K, A, C> {
        let KeyedLimiterBuilder { algorithm, clock, observer, settings, key } = self;
        let shared = Arc::new(Keyed::new(algorithm.for_clock(C::KIND), settings));
        KeyedLimiter { shared, clock, observer, key }
    }
}

impl<K: ?Sized, A: fmt::Debug, C: fmt::Debug> fmt::Debug for KeyedLimiterBuilder<K, A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLimiterBuilder")
            .field("algorithm", &self.algorithm)
            .field("clock", &self.clock)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

// === the limiter as the target of a request ===

impl<'a, K: ?Sized, A, C> Target<'a> for KeyedLimiter<K, A, C> {
    type Key = RequestKey<A>;
}

impl<K: ?Sized, A: Algorithm, C: Clock> Reserve for KeyedLimiter<K, A, C> {
    type Ticket = (u64, ReservationTicket);
    type Clock = C;

    fn clock(&self) -> &C {
        &self.clock
    }

    fn cancel(&self, (fingerprint, ticket): (u64, ReservationTicket)) {
        reservation::cancel(&*self.shared, fingerprint, ticket, || when(&self.clock));
    }

    fn keep(&self, (fingerprint, ticket): (u64, ReservationTicket)) {
        reservation::keep(&*self.shared, fingerprint, ticket);
    }
}

impl<K: ?Sized, A: Algorithm, C: Clock> RateLimiter for KeyedLimiter<K, A, C> {
    type StateKey = RequestKey<A>;
    type Store = Keyed<A>;

    fn store(&self) -> &Keyed<A> {
        &self.shared
    }

    fn observer(&self) -> Option<&dyn Observer> {
        self.observer.as_deref()
    }

    #[inline(always)]
    fn apply<V: Operation>(&self, key: &RequestKey<A>, operation: &V) -> V::Answer {
        KeyedLimiter::apply(self, key.fingerprint, key.per_call.as_ref(), operation)
    }

    fn into_parts(key: RequestKey<A>) -> (u64, Option<A>) {
        (key.fingerprint, key.per_call)
    }

    fn refunded(&self, key: &RequestKey<A>) {
        self.shared.current().table.allow_eviction_scan(key.fingerprint);
    }
}

impl<K: ?Sized, A, C: Clone> Clone for KeyedLimiter<K, A, C> {
    /// Another handle on the same limits.
    fn clone(&self) -> Self {
        let (shared, clock, observer) = (self.shared.clone(), self.clock.clone(), self.observer.clone());
        KeyedLimiter { shared, clock, observer, key: PhantomData }
    }
}

impl<K: ?Sized, A: fmt::Debug, C: fmt::Debug> fmt::Debug for KeyedLimiter<K, A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.shared.versions.get(self.shared.versions.current());
        f.debug_struct("KeyedLimiter")
            .field("algorithm", &version.algorithm)
            .field("clock", &self.clock)
            .field("stats", &version.table.stats())
            .finish_non_exhaustive()
    }
}

// === impl WrongStateSize ===

impl fmt::Display for WrongStateSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrongStateSize { words, expected } = self;
        write!(
            f,
            "the algorithm needs states of {words} words, but the limiter stores {expected}; \
             use parameters of the same size, or `change`"
        )
    }
}

impl Error for WrongStateSize {}
