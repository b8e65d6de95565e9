//! # A limit for each key
//!
//! A [`KeyedLimiter`] keeps a state for each user, address or API key: millions of them, in about 20 to 40 bytes each.
//! Keys are looked up by reference and never stored. For one limit on everything, see [`Limiter`](crate::Limiter).

mod wait;

pub use wait::KeyedReservation;

use std::borrow::Borrow;
use std::cell::Cell;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::ahead::{self, Ahead, DEFAULT_MAX_WAITING, Home};
use crate::clock::{Clock, SteadyClock};
use crate::fingerprint::{AsText, Secrets};
use crate::gate::Key;
use crate::hold::HELD;
use crate::observer::{Observer, show};
use crate::regime::{Regimes, is_marked};
use crate::shared::{Guarded, When, run};
use crate::sync::Mutex;
use crate::table::{OnFull, Sketch, Stats, Step, Table};
use crate::verb::{Answer, Check, CheckEach, Detailed, Force, Peek, Refund, Reset, Take, Verb};
use tidegate_core::{
    Algorithm, Decision, Micros, Planned, Quota, Steadiness, Taken, TokenBucket, Wait, Words, WordsMut,
};

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

/// What the clones of a keyed limiter share.
#[derive(Debug)]
pub(crate) struct Keyed<A> {
    secrets: Secrets,
    /// The fingerprint of the empty key.
    everybodys: u64,
    pub(crate) regimes: Regimes<Regime<A>>,
    changing: Mutex<()>,
    ahead: Ahead,
    settings: Settings,
}

/// What a limiter was told about its bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) max_keys: usize,
    pub(crate) on_full: OnFull,
    pub(crate) max_waiting: usize,
}

impl Default for Settings {
    fn default() -> Self {
        let (max_keys, max_waiting) = (DEFAULT_MAX_KEYS, DEFAULT_MAX_WAITING);
        Settings { max_keys, on_full: OnFull::default(), max_waiting }
    }
}

/// An algorithm and the table of its states. Settings whose states have the same size share a table.
#[derive(Debug)]
pub(crate) struct Regime<A> {
    pub(crate) algorithm: A,
    pub(crate) table: Arc<Table>,
    /// When it was put in force. Judged at an earlier instant, a state would have owed at the pace of the wrong setting.
    pub(crate) since: Micros,
}

/// The number of the setting that a limiter was made with.
pub(crate) const FIRST: usize = 0;
/// The cap of a limiter that was not told one.
pub(crate) const DEFAULT_MAX_KEYS: usize = 1 << 22;
/// So many locks for what is promised, so that threads with different keys seldom meet while somebody waits.
const SHARDS: usize = 64;

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
        let algorithm = algorithm.suited_to(SteadyClock::STEADINESS);
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
        let algorithm = self.shared.current().algorithm.clone().suited_to(D::STEADINESS);
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
        self.shared.look_for_idle_again(key);
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
        self.shared.change(algorithm.suited_to(C::STEADINESS), || self.when());
    }

    /// For the key of a request, which is the same as the text.
    pub(crate) fn check_key(&self, key: Key<'_>, cost: u32) -> Decision {
        self.apply(&AsText(key.bytes()), &Check(cost))
    }

    #[inline]
    fn when(&self) -> When {
        When { now: self.clock.now(), clock: C::STEADINESS }
    }

    #[inline(always)]
    fn apply<Q: Hash + ?Sized, V: Verb>(&self, key: &Q, verb: &V) -> V::Answer {
        let fingerprint = self.shared.secrets.fingerprint(key);
        if self.observer.is_none()
            && let Some(answer) = self.shared.apply_at_once(fingerprint, verb, || self.when())
        {
            return answer;
        }
        self.apply_slowly(None, fingerprint, verb).rebuilt()
    }

    /// The long way, by `plan` if there is one, else by the algorithm in force.
    #[cold]
    #[inline(never)]
    fn apply_slowly<V: Verb>(&self, plan: Option<&A>, fingerprint: u64, verb: &V) -> V::Answer {
        self.shared.current().table.send_for(fingerprint); // while the clock is read
        let answer = self.shared.apply(plan, fingerprint, verb, self.when());
        if let Some(observer) = &self.observer {
            show::<V>(observer.as_ref(), &answer);
        }
        answer
    }
}

impl<K: ?Sized, C: Clock> KeyedLimiter<K, Planned, C> {
    /// The verbs for a key whose plan has this quota. It may be another at each call, even for one key: what the key
    /// has used stays used.
    ///
    /// ```
    /// use tidegate::{KeyedLimiter, Planned, Quota};
    ///
    /// const FREE: Quota = Quota::per_hour(10);
    /// const PAID: Quota = Quota::per_hour(1_000);
    /// let limiter = KeyedLimiter::<u64, _>::with(Planned::new(FREE)); // the plan of who has none
    ///
    /// assert!(limiter.cost(10).check(&7).is_allowed());
    /// assert!(!limiter.check(&7).is_allowed());
    /// assert_eq!(limiter.quota(PAID).check(&7).remaining(), 989); // upgraded
    /// assert!(!limiter.quota(FREE).check(&7).is_allowed()); // and back: eleven used of ten
    /// ```
    #[inline]
    pub fn quota(&self, quota: Quota) -> KeyedPlan<'_, K, C> {
        self.by(Planned::new(quota))
    }
}

/// A plan's verbs: what [`KeyedLimiter::quota`] and [`KeyedLimiter::by`] return.
#[derive(Debug)]
#[must_use = "a plan does nothing until a verb follows, such as `.check(key)`"]
pub struct KeyedPlan<'a, K: ?Sized, C, A = Planned> {
    limiter: &'a KeyedLimiter<K, A, C>,
    plan: A,
    cost: u32,
}

impl<K: ?Sized, C: Clock, A: Algorithm> KeyedPlan<'_, K, C, A> {
    /// The verbs for a cost other than 1.
    #[inline]
    pub fn cost(self, cost: u32) -> Self {
        KeyedPlan { cost, ..self }
    }

    /// Decides whether the cost may pass for `key` now, and charges it if it may. Never waits.
    pub fn check<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.limiter.apply_plan(&self.plan, key, &Check(self.cost))
    }

    /// Decides as [`check`](KeyedPlan::check) would, and charges nothing. A cost of 0 asks what is left.
    pub fn peek<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.limiter.apply_plan(&self.plan, key, &Peek(self.cost))
    }

    /// Takes as much of the cost as there is, which may be nothing.
    pub fn take<Q: Hash + ?Sized>(&self, key: &Q) -> Taken
    where
        K: Borrow<Q>,
    {
        self.limiter.apply_plan(&self.plan, key, &Take(self.cost))
    }

    /// Charges the cost whether or not it fits; what does not fit is debt.
    pub fn force<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.limiter.apply_plan(&self.plan, key, &Force(self.cost))
    }

    /// Gives back what a recent charge took, never above the limit.
    pub fn refund<Q: Hash + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.limiter.apply_plan(&self.plan, key, &Refund(self.cost));
        self.limiter.shared.look_for_idle_again(key);
    }
}

impl<K: ?Sized, A: Algorithm, C: Clock> KeyedLimiter<K, A, C> {
    /// The verbs by another setting of the algorithm, for this call only. For algorithms whose setting comes with the call.
    ///
    /// Unlike [`change`](KeyedLimiter::change) this carries nothing over: a state is read as it was written, by whichever
    /// setting. Most callers want [`quota`](KeyedLimiter::quota), whose states know what they were written under. All
    /// settings must have states of one size; one whose states are of another is not asked, but the limiter's own.
    ///
    /// ```
    /// use tidegate::{KeyedLimiter, Quota, TokenBucket};
    ///
    /// let limiter = KeyedLimiter::<str>::new(Quota::per_minute(60));
    /// assert!(limiter.cost(30).check("alice").is_allowed()); // owes for 30 seconds
    /// let slower = limiter.by(TokenBucket::new(Quota::per_minute(6)));
    /// assert_eq!(slower.cost(0).peek("alice").remaining(), 3); // which are 3 of these, and not 30
    /// ```
    #[inline]
    pub fn by(&self, setting: A) -> KeyedPlan<'_, K, C, A> {
        KeyedPlan { limiter: self, plan: setting.suited_to(C::STEADINESS), cost: 1 }
    }

    #[inline]
    fn apply_plan<Q: Hash + ?Sized, V: Verb>(&self, plan: &A, key: &Q, verb: &V) -> V::Answer {
        let fingerprint = self.shared.secrets.fingerprint(key);
        if self.observer.is_none()
            && let Some(answer) = self.shared.apply_plan_at_once(plan, fingerprint, verb, || self.when())
        {
            return answer;
        }
        self.apply_slowly(Some(plan), fingerprint, verb)
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
        self.limiter.shared.look_for_idle_again(key);
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
        let regime = self.shared.regimes.get(self.shared.regimes.current());
        f.debug_struct("KeyedLimiter")
            .field("algorithm", &regime.algorithm)
            .field("clock", &self.clock)
            .field("stats", &regime.table.stats())
            .finish_non_exhaustive()
    }
}

// === impl Keyed ===

impl<A: Algorithm> Keyed<A> {
    pub(crate) fn new(algorithm: A, settings: Settings) -> Self {
        let Settings { max_keys, on_full, max_waiting } = settings;
        let words = algorithm.words();
        let table = Table::new(max_keys, words).with_sketch(Sketch::new(max_keys, words, on_full));
        let regimes = Regimes::new(Regime { algorithm, table: Arc::new(table), since: Micros::ZERO });
        let secrets = Secrets::draw();
        let everybodys = secrets.fingerprint(&AsText(&[]));
        let ahead = Ahead::new(SHARDS, max_waiting);
        Keyed { secrets, everybodys, regimes, changing: Mutex::new(()), ahead, settings }
    }

    pub(crate) fn current(&self) -> &Regime<A> {
        self.regimes.get(self.regimes.current())
    }

    pub(crate) fn stats(&self, now: Micros) -> Stats {
        let Regime { algorithm, table, .. } = self.current();
        Stats { sketch: table.sketch().stats(|cell| algorithm.idle_at(cell), now), ..table.stats() }
    }

    /// The fingerprint of a request's key, for policies.
    #[inline]
    pub(crate) fn fingerprint_of(&self, key: Key<'_>) -> u64 {
        match key.bytes() {
            [] => self.everybodys,
            bytes => match <[u8; 8]>::try_from(bytes) {
                // Most likely a number, and those are permuted, which is faster and makes no two of them meet.
                Ok(eight) => self.secrets.fingerprint(&u64::from_le_bytes(eight)),
                Err(_) => self.secrets.fingerprint(&AsText(bytes)),
            },
        }
    }

    /// The short cut, for whoever may take it. The clock is read while the key's line is on its way from memory.
    ///
    /// Only by the first setting: every instruction here counts, because the fewer there are, the more of the next decision the
    /// processor begins while it waits for this one's memory.
    #[inline(always)]
    fn apply_at_once<V: Verb>(
        &self,
        fingerprint: u64,
        verb: &V,
        when: impl FnOnce() -> When,
    ) -> Option<V::Answer> {
        if self.regimes.current() != FIRST {
            return None;
        }
        let Regime { algorithm, table, .. } = self.regimes.get(FIRST);
        let (regimes, number) = (&self.regimes, FIRST);
        table.apply_at_once(fingerprint, || KeyedStep { algorithm, verb, when: when(), regimes, number })
    }

    /// The short cut by a setting that comes with the call.
    #[inline]
    fn apply_plan_at_once<V: Verb>(
        &self,
        plan: &A,
        fingerprint: u64,
        verb: &V,
        when: impl FnOnce() -> When,
    ) -> Option<V::Answer> {
        if self.regimes.current() != FIRST {
            return None;
        }
        let Regime { algorithm, table, .. } = self.regimes.get(FIRST);
        if (plan.words(), algorithm.words()) != (1, 1) {
            return None;
        }
        let (regimes, number) = (&self.regimes, FIRST);
        table.apply_at_once(fingerprint, || KeyedStep {
            algorithm: plan,
            verb,
            when: when(),
            regimes,
            number,
        })
    }

    /// The long way, for newcomers, larger states, later settings, and those who did not get through at once.
    fn apply<V: Verb>(&self, plan: Option<&A>, fingerprint: u64, verb: &V, when: When) -> V::Answer {
        loop {
            let answer = if self.is_marked() {
                ahead::apply(self, plan, fingerprint, verb, when)
            } else {
                self.apply_while(false, plan, fingerprint, verb, when)
            };
            if let Some(answer) = answer {
                return answer;
            }
        }
    }

    /// Does it to the state, as long as nobody sets the mark or takes it away.
    fn apply_while<V: Verb>(
        &self,
        marked: bool,
        plan: Option<&A>,
        fingerprint: u64,
        verb: &V,
        when: When,
    ) -> Option<V::Answer> {
        loop {
            let number = self.regimes.current();
            if is_marked(number) != marked {
                return None;
            }
            let Regime { algorithm, table, since } = self.regimes.get(number);
            let plan = plan.filter(|plan| plan.words() == algorithm.words());
            let (algorithm, when) = (plan.unwrap_or(algorithm), when.not_before(*since));
            let step = || KeyedStep { algorithm, verb, when, regimes: &self.regimes, number };
            let at_once = if number == FIRST { None } else { table.apply_at_once(fingerprint, step) };
            let answer = at_once.or_else(|| table.apply(fingerprint, &step()));
            if answer.is_some() {
                return answer;
            }
        }
    }

    /// Carries out a verb that may give back, for one key of a policy.
    pub(crate) fn apply_to<V: Verb>(&self, key: Key<'_>, verb: &V, when: When) -> V::Answer {
        let fingerprint = self.fingerprint_of(key);
        let answer = self.apply(None, fingerprint, verb, when);
        self.current().table.look_for_idle_again(fingerprint);
        answer
    }

    fn look_for_idle_again<Q: Hash + ?Sized>(&self, key: &Q) {
        self.current().table.look_for_idle_again(self.secrets.fingerprint(key));
    }

    /// The clock is read when every state is held: before, somebody could still decide at a later instant.
    pub(crate) fn change(&self, algorithm: A, when: impl FnOnce() -> When) {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // First, so that whoever holds one of these locks finds no state held for long.
        let visits = self.ahead.visit_all();
        let old = self.current();
        let when = if algorithm.words() == old.algorithm.words() {
            self.change_in_place(algorithm, old, when)
        } else {
            self.change_table(algorithm, old, when)
        };
        ahead::adopt(self, visits, &old.algorithm, when);
    }

    fn change_in_place(&self, algorithm: A, old: &Regime<A>, when: impl FnOnce() -> When) -> When {
        let (table, changed) = (&old.table, Cell::new(None));
        table.convert(
            || {
                let when = when();
                self.regimes.push(Regime { algorithm, table: table.clone(), since: when.since() });
                changed.set(Some(when));
                when
            },
            |when, found, beside| {
                let next = &self.current().algorithm;
                paste(next, &adopted(next, &old.algorithm, &copy_of(found, beside), when), beside)
            },
        );
        changed.into_inner().expect("the setting was put in force")
    }

    fn change_table(&self, algorithm: A, old: &Regime<A>, when: impl FnOnce() -> When) -> When {
        let handed_over = old.table.hand_over();
        let when = when();
        let adopted = |was: &[u64]| adopted(&algorithm, &old.algorithm, was, when);
        let table = Table::planted(old.table.max_keys(), algorithm.words(), |table| {
            handed_over.states().all(|(fingerprint, found, beside)| {
                let state = adopted(&copy_of(found, beside));
                let idle_at = algorithm.idle_at(state.as_slice());
                idle_at <= when.now || table.plant(fingerprint, &state, idle_at)
            })
        });
        let (words, is_ordered) = (algorithm.words(), algorithm.is_ordered());
        let sketch =
            old.table.sketch().taken_over(words, is_ordered, adopted, |cell| algorithm.idle_at(cell));
        let table = Arc::new(table.with_sketch(sketch));
        self.regimes.push(Regime { algorithm, table, since: when.since() });
        drop(handed_over);
        when
    }
}

impl<A: Algorithm> Home for Keyed<A> {
    type Algorithm = A;

    fn ahead(&self) -> &Ahead {
        &self.ahead
    }

    fn algorithm(&self) -> &A {
        &self.current().algorithm
    }

    fn is_marked(&self) -> bool {
        is_marked(self.regimes.current())
    }

    fn mark(&self) {
        self.regimes.mark();
    }

    fn unmark(&self) {
        self.regimes.unmark();
    }

    fn gave_back(&self, fingerprint: u64) {
        self.current().table.look_for_idle_again(fingerprint);
    }

    fn apply_under_lock<V: Verb>(
        &self,
        plan: Option<&A>,
        fingerprint: u64,
        verb: &V,
        when: When,
    ) -> V::Answer {
        loop {
            if let Some(answer) = self.apply_while(self.is_marked(), plan, fingerprint, verb, when) {
                return answer;
            }
        }
    }
}

/// The state under `next` of what was a state under `old`.
fn adopted<A: Algorithm>(next: &A, old: &A, was: &[u64], when: When) -> Vec<u64> {
    let mut state = vec![0; next.words()];
    next.adopt(old, was, state.as_mut_slice(), when.for_state(old, was));
    state
}

/// The words of a slot's state, wherever they lie.
fn copy_of(word: u64, beside: &[crate::sync::AtomicU64]) -> Vec<u64> {
    if beside.is_empty() {
        vec![word]
    } else {
        (0..beside.len()).map(|index| Guarded(beside).get(index)).collect()
    }
}

/// Writes a state back, and tells the word of its slot.
fn paste<A: Algorithm>(algorithm: &A, state: &[u64], beside: &[crate::sync::AtomicU64]) -> u64 {
    if beside.is_empty() {
        return state[0] & !HELD;
    }
    let mut words = Guarded(beside);
    state.iter().enumerate().for_each(|(index, word)| words.set(index, *word));
    algorithm.idle_at(state).get()
}

/// The state of a key never seen.
struct Unseen;

impl Words for Unseen {
    fn get(&self, _: usize) -> u64 {
        0
    }
}

// === impl KeyedStep ===

/// A verb, with all it needs to know.
#[derive(Debug)]
pub(crate) struct KeyedStep<'a, A, V> {
    pub(crate) algorithm: &'a A,
    pub(crate) verb: &'a V,
    pub(crate) when: When,
    pub(crate) regimes: &'a Regimes<Regime<A>>,
    pub(crate) number: usize,
}

impl<A: Algorithm, V: Verb> Step for KeyedStep<'_, A, V> {
    type Answer = V::Answer;

    #[inline]
    fn run<S: WordsMut + ?Sized>(&self, state: &mut S) -> V::Answer {
        run(self.algorithm, self.verb, state, self.when)
    }

    fn run_anew<S: WordsMut + ?Sized>(&self, state: &mut S, evicted_at: Micros) -> V::Answer {
        let now = match self.when.clock {
            Steadiness::Steady => self.when.now.max(evicted_at),
            Steadiness::MayStepBack => self.when.now,
        };
        run(self.algorithm, self.verb, state, When { now, ..self.when })
    }

    #[inline(always)]
    fn at_once(&self, word: u64) -> Option<(u64, V::Answer)> {
        self.verb.at_once(self.algorithm, word, self.when.now)
    }

    fn refuse(&self, room_after: Wait) -> V::Answer {
        let limit = self.algorithm.peek(&Unseen, self.when.now, 0).limit();
        Answer::refused(Decision::closed(self.when.now, room_after, limit))
    }

    #[inline]
    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        self.algorithm.idle_at(state)
    }

    #[inline]
    fn now(&self) -> Micros {
        self.when.now
    }

    #[inline]
    fn is_current(&self) -> bool {
        self.regimes.current() == self.number
    }

    fn is_ordered(&self) -> bool {
        self.algorithm.is_ordered()
    }

    fn settle(&self, state: &mut [u64]) {
        if self.when.clock == Steadiness::MayStepBack {
            self.algorithm.settle(state, self.when.now);
        }
    }

    fn passed(&self, answer: &V::Answer) -> Option<bool> {
        answer.decision().filter(|_| V::OBSERVED).map(|decision| decision.is_allowed())
    }

    fn sketched(&self, answer: V::Answer) -> V::Answer {
        answer.sketched()
    }
}
