//! # A limit for each key
//!
//! A [`KeyedLimiter`] keeps a state for each user, address or API key: millions of them, in about 20 to 40 bytes each.
//! Keys are looked up by reference and never stored. For one limit on everything, see [`Limiter`](crate::Limiter).

mod change;
mod plan;
mod states;
mod step;
mod wait;

pub use plan::KeyedPlan;
pub(crate) use states::{DEFAULT_MAX_KEYS, FIRST, Keyed, Settings, Version};
pub(crate) use step::KeyedStep;
pub use wait::KeyedReservation;

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::clock::{Clock, SteadyClock};
use crate::fingerprint::AsText;
use crate::gate::Key;
use crate::observer::{Observer, observe};
use crate::operation::{
    Answer, Check, CheckEach, Detailed, Force, Operation, Pass, Peek, Refund, Reset, Take,
};
use crate::state_cell::DecisionTime;
use crate::table::{OnFull, Stats};
use tidegate_core::{Algorithm, Decision, Outcome, Quota, Taken, TokenBucket};

/// A limit of its own for each key.
///
/// ```
/// use tidegate::{KeyedLimiter, Quota};
///
/// let limiter = KeyedLimiter::<String>::new(Quota::per_second(10).burst(20));
/// assert!(limiter.check("alice").is_allowed()); // looked up by &str, nothing allocated
/// assert!(limiter.cost(20).check("bob").is_allowed());
/// assert!(!limiter.check("bob").is_allowed());
/// ```
///
/// Memory is bounded by [`max_keys`](KeyedLimiter::max_keys), four million unless said otherwise. Keys that owe nothing
/// make room for others; when none does, new keys share what memory there is or are refused, as
/// [`on_full`](KeyedLimiter::on_full) says, and everybody else goes on exactly as before.
pub struct KeyedLimiter<K: ?Sized, A = TokenBucket, C = SteadyClock> {
    shared: Arc<Keyed<A>>,
    clock: C,
    observer: Option<Arc<dyn Observer>>,
    key: PhantomData<fn(&K)>,
}

/// A verb's cost, chosen: what [`KeyedLimiter::cost`] returns.
#[derive(Debug)]
#[must_use = "a cost does nothing until a verb follows, such as `.check(key)`"]
pub struct KeyedCost<'a, K: ?Sized, A, C> {
    limiter: &'a KeyedLimiter<K, A, C>,
    cost: u32,
}

impl<K: ?Sized> KeyedLimiter<K> {
    /// A token bucket of `quota` for each key, on the steady clock.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        KeyedLimiter::with(TokenBucket::new(quota))
    }
}

impl<K: ?Sized, A: Algorithm> KeyedLimiter<K, A> {
    /// Any algorithm, or a tuple of them that stand or fall together, for each key.
    #[must_use]
    pub fn with(algorithm: A) -> Self {
        let clock = SteadyClock::new();
        let algorithm = algorithm.for_clock(SteadyClock::KIND);
        let shared = Arc::new(Keyed::new(algorithm, Settings::default()));
        KeyedLimiter { shared, clock, observer: None, key: PhantomData }
    }
}

impl<K: ?Sized, A: Algorithm, C: Clock> KeyedLimiter<K, A, C> {
    /// A limiter like this one for at most `max_keys` keys at once (at least one), as if never used.
    ///
    /// Choose as many as can *owe* at the same time. What becomes of more is said by
    /// [`on_full`](KeyedLimiter::on_full).
    #[must_use]
    pub fn max_keys(self, max_keys: usize) -> Self
    where
        A: Clone,
    {
        let settings = Settings { max_keys: max_keys.max(1), ..self.shared.settings };
        self.with_settings(settings)
    }

    /// A limiter like this one with another way to treat keys for which there is no room, as if never used.
    ///
    /// Unless told otherwise, token buckets and fixed windows by the clock let such keys share the cells of a
    /// *sketch*: a key is never allowed more than a state of its own would have allowed, and it may be refused for
    /// what others in its cells have used. Such decisions say [`Source::Sketch`](crate::Source::Sketch). Keys that
    /// have a state are not concerned. What a key used in the sketch stays used when it finds room later. There,
    /// `refund` and `reset` give nothing back: a cell belongs to others too. The cells are made when the first key
    /// finds no room, one for each key that there may be, but at least 4,096 and at most 1,048,576 (rounded up to a
    /// power of two): at most 8 MiB where a state is one word.
    ///
    /// ```
    /// use tidegate::{KeyedLimiter, OnFull, Quota, Source};
    ///
    /// let limiter = KeyedLimiter::<u64>::new(Quota::per_hour(2)).max_keys(1);
    /// let [first, second] = [1, 2].map(|key| limiter.check(&key));
    /// assert_eq!((first.is_allowed(), first.source), (true, Source::Strict));
    /// assert_eq!((second.is_allowed(), second.source), (true, Source::Sketch));
    /// assert!(limiter.check(&2).is_allowed() && !limiter.check(&2).is_allowed()); // two an hour, like everybody
    ///
    /// let strict = limiter.on_full(OnFull::Refuse);
    /// let [first, second] = [1, 2].map(|key| strict.check(&key));
    /// assert_eq!((second.is_allowed(), second.source), (false, Source::Closed));
    /// ```
    #[must_use]
    pub fn on_full(self, on_full: OnFull) -> Self
    where
        A: Clone,
    {
        let settings = Settings { on_full, ..self.shared.settings };
        self.with_settings(settings)
    }

    /// A limiter like this one, as if never used.
    fn with_settings(self, settings: Settings) -> Self
    where
        A: Clone,
    {
        let algorithm = self.shared.current().algorithm.clone();
        KeyedLimiter { shared: Arc::new(Keyed::new(algorithm, settings)), ..self }
    }

    /// A limiter like this one on another clock, as if never used.
    #[must_use]
    pub fn with_clock<D: Clock>(self, clock: D) -> KeyedLimiter<K, A, D>
    where
        A: Clone,
    {
        let algorithm = self.shared.current().algorithm.clone().for_clock(D::KIND);
        let shared = Arc::new(Keyed::new(algorithm, self.shared.settings));
        KeyedLimiter { shared, clock, observer: self.observer, key: PhantomData }
    }

    /// The same limiter, with somebody watching. Clones made before are not watched.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        KeyedLimiter { observer: Some(observer), ..self }
    }

    /// Decides whether one unit may pass for `key` now, and charges it if it may. Never waits.
    #[doc(alias = "try_acquire")]
    #[inline]
    pub fn check<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.apply(key, &Check(1))
    }

    /// Decides as [`check`](KeyedLimiter::check) would, and charges nothing.
    #[inline]
    pub fn peek<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.apply(key, &Peek(1))
    }

    /// The verbs for a cost other than 1.
    #[inline]
    pub fn cost(&self, cost: u32) -> KeyedCost<'_, K, A, C> {
        KeyedCost { limiter: self, cost }
    }

    /// Forgets everything that `key` has used.
    pub fn reset<Q: Hash + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.apply(key, &Reset);
        self.shared.allow_eviction_scan(key);
    }

    /// How many keys there are that have a state of their own: one number, read at once.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.shared.current().table.keys()
    }

    /// How many keys there are, and what became of others. Looks at every cell of the sketch, once there is one.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats(self.clock.now())
    }

    /// Puts another setting of the same algorithm in force, for all keys and all clones.
    ///
    /// What was used stays used, as with [`Limiter::change`](crate::Limiter::change). Decisions wait meanwhile: in
    /// the order of a tenth of a second for a million keys. If the new setting keeps larger or smaller states, as when a window gets
    /// more cells, the old table's memory is kept until the limiter is dropped.
    pub fn change(&self, algorithm: A) {
        self.shared.change(algorithm.for_clock(C::KIND), || self.when());
    }

    /// For the key of a request, which is the same as the text.
    pub(crate) fn check_key(&self, key: Key<'_>, cost: u32) -> Decision {
        self.apply(&AsText(key.bytes()), &Check(cost))
    }

    /// The decision if the key of a request may pass by the short cut, and was charged. Nobody watches that.
    #[inline(always)] // then those who only want to know whether leave out the rest of it
    pub(crate) fn pass_fast(&self, key: Key<'_>, cost: u32) -> Option<Decision> {
        let fingerprint = self.shared.secrets.fingerprint_of_text(key.bytes());
        let unwatched = self.observer.is_none().then_some(&self.shared)?;
        unwatched
            .apply_fast(fingerprint, &Pass(cost), || self.when())
            .filter(|decision| decision.outcome == Outcome::Allowed)
    }

    /// What is left for the key of a request.
    pub(crate) fn peek_key(&self, key: Key<'_>) -> Decision {
        self.apply(&AsText(key.bytes()), &Peek(0))
    }

    #[inline]
    fn when(&self) -> DecisionTime {
        DecisionTime { now: self.clock.now(), clock: C::KIND }
    }

    #[inline(always)]
    fn apply<Q: Hash + ?Sized, V: Operation>(&self, key: &Q, operation: &V) -> V::Answer {
        let fingerprint = self.shared.secrets.fingerprint(key);
        if self.observer.is_none()
            && let Some(answer) = self.shared.apply_fast(fingerprint, operation, || self.when())
        {
            return answer;
        }
        self.apply_slow(None, fingerprint, operation).rebuilt()
    }

    /// The long way, by `plan` if there is one, else by the algorithm in force.
    #[cold]
    #[inline(never)]
    fn apply_slow<V: Operation>(&self, plan: Option<&A>, fingerprint: u64, operation: &V) -> V::Answer {
        self.shared.current().table.prefetch(fingerprint); // while the clock is read
        let answer = self.shared.apply(plan, fingerprint, operation, self.when());
        if let Some(observer) = &self.observer {
            observe::<V>(observer.as_ref(), &answer);
        }
        answer
    }
}

impl<K: ?Sized, A: Algorithm, C: Clock> KeyedCost<'_, K, A, C> {
    /// Decides whether the cost may pass for `key` now, and charges it if it may. Never waits.
    #[inline]
    pub fn check<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.limiter.apply(key, &Check(self.cost))
    }

    /// As [`check`](KeyedCost::check), with what each rule of a policy had to say. Allocates.
    pub fn check_each<Q: Hash + ?Sized>(&self, key: &Q) -> Detailed
    where
        K: Borrow<Q>,
    {
        self.limiter.apply(key, &CheckEach(self.cost))
    }

    /// Decides as [`check`](KeyedCost::check) would, and charges nothing. A cost of 0 asks what is left.
    #[inline]
    pub fn peek<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.limiter.apply(key, &Peek(self.cost))
    }

    /// Takes as much of the cost as there is, which may be nothing.
    pub fn take<Q: Hash + ?Sized>(&self, key: &Q) -> Taken
    where
        K: Borrow<Q>,
    {
        self.limiter.apply(key, &Take(self.cost))
    }

    /// Charges the cost whether or not it fits; what does not fit is debt.
    pub fn force<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.limiter.apply(key, &Force(self.cost))
    }

    /// Gives back what a recent charge took, never above the limit.
    pub fn refund<Q: Hash + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.limiter.apply(key, &Refund(self.cost));
        self.limiter.shared.allow_eviction_scan(key);
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
