//! # So many at once, for each key
//!
//! A key needs slots only while somebody uses them. So the entry of a key begins with the first visitor, whether it
//! gets a permit or waits for one, and ends with the last; a key at rest takes up nothing.
//!
//! ```text
//!   try_acquire("alice") ──► shard ──► entry: holders 2, slots ▓▓░     the last visitor takes the entry along
//!                              └────► entry: holders 1, slots ▓░░
//! ```
//!
//! Keys are looked up by reference and never stored: the table keeps fingerprints, as that of
//! [`KeyedLimiter`](crate::KeyedLimiter) does, and two keys that met by chance would share their slots. Finding the
//! entry takes the lock of its shard for a moment; the slots themselves work as they do without keys.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Found;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::endings::{Endings, Tally};
use super::permit::{HeldPermit, PermitSource};
use super::refused::Refused;
use super::slots::{Slots, Usage};
use super::{DEFAULT_MAX_WAITING, acquire};
use crate::clock::{Clock, SteadyClock};
use crate::fingerprint::{AsText, Secrets};
use crate::gate::Key;
use crate::sync::{AtomicU32, AtomicUsize, Mutex, MutexGuard, Ordering, lock};
use crate::wait::{Park, Sleep};
use tidegate_core::Micros;

/// The cap of a limiter that was not told one.
const DEFAULT_MAX_KEYS: usize = 1 << 20;
/// So many locks, so that threads with different keys seldom meet.
const SHARDS: u64 = 64;
/// A shard with room for more keys than this gives memory back when most of them have gone.
const LARGE: usize = 256;

/// At most so many at once for each key.
///
/// ```
/// use tidegate::{KeyedConcurrencyLimiter, Refused};
///
/// let uploads = KeyedConcurrencyLimiter::<String>::new(2);
/// let one = uploads.try_acquire("alice")?; // looked up by &str; no key is stored
/// let two = uploads.try_acquire("alice")?;
/// assert_eq!(uploads.try_acquire("alice").unwrap_err(), Refused::Busy { cost: 1, limit: 2 });
/// assert!(uploads.try_acquire("bob").is_ok());
///
/// drop((one, two));
/// assert_eq!(uploads.stats().keys, 0); // nobody is at work, so nothing is kept
/// # Ok::<(), Refused>(())
/// ```
///
/// The verbs are those of [`ConcurrencyLimiter`](crate::ConcurrencyLimiter), and so is what they promise; each key
/// has a line of its own. At most [`max_keys`](KeyedConcurrencyLimiter::max_keys) keys are in use at once, a million
/// unless said otherwise; another is refused with [`Refused::TooManyKeys`].
pub struct KeyedConcurrencyLimiter<K: ?Sized, C = SteadyClock> {
    keys: Arc<Keys>,
    clock: C,
    key: PhantomData<fn(&K)>,
}

/// A permit's cost, chosen: what [`KeyedConcurrencyLimiter::cost`] returns.
#[derive(Debug)]
#[must_use = "a cost does nothing until a verb follows, such as `.try_acquire(key)`"]
pub struct KeyedConcurrencyCost<'a, K: ?Sized, C = SteadyClock> {
    limiter: &'a KeyedConcurrencyLimiter<K, C>,
    cost: u32,
}

/// Leave to be one of those at work for a key; dropping it makes room for the next. Always owned.
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct KeyedPermit(HeldPermit<KeyGuard>);

/// A [`KeyedConcurrencyLimiter`] as it was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyedConcurrencyStats {
    /// How many may be in use for each key.
    pub limit: u32,
    /// How many keys have somebody at work or waiting.
    pub keys: usize,
    /// What became of the permits that are no more, of all keys.
    pub endings: Endings,
}

/// The keys that are in use.
#[derive(Debug)]
pub(crate) struct Keys {
    secrets: Secrets,
    shards: Box<[Shard]>,
    settings: Settings,
    limit: AtomicU32,
    resizing: Mutex<()>,
    in_use: AtomicUsize,
    tally: Tally,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    max_keys: usize,
    max_waiting: usize,
}

type Shard = Mutex<HashMap<u64, Entry, BuildHasherDefault<IdentityHasher>>>;

#[derive(Debug)]
struct Entry {
    slots: Arc<Slots>,
    /// Permits, and those who wait for one.
    holders: usize,
    bell: Option<WakeSlot>,
}

/// Who is to be woken when permits come back, without being given any: somebody who waits elsewhere, in a policy's line,
/// and by its number there.
#[derive(Debug)]
struct WakeSlot {
    number: u64,
    waker: Waker,
}

/// Keeps the entry of a key from vanishing.
#[derive(Debug)]
pub(crate) struct KeyGuard {
    keys: Arc<Keys>,
    fingerprint: u64,
    slots: Arc<Slots>,
    /// It was a permit, which has come back: the bell is to be rung.
    refunded: bool,
}

/// A fingerprint is a hash already.
#[derive(Debug, Default)]
struct IdentityHasher(u64);

impl<K: ?Sized> KeyedConcurrencyLimiter<K> {
    /// So many at once for each key, on the steady clock; up to 65,536 may wait for each.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        let settings = Settings { max_keys: DEFAULT_MAX_KEYS, max_waiting: DEFAULT_MAX_WAITING };
        let keys = Arc::new(Keys::new(limit, settings));
        KeyedConcurrencyLimiter { keys, clock: SteadyClock::new(), key: PhantomData }
    }
}

impl<K: ?Sized, C> KeyedConcurrencyLimiter<K, C> {
    /// A limiter like this one for at most `max_keys` keys at once (at least one), as if never used.
    #[must_use]
    pub fn max_keys(self, max_keys: usize) -> Self {
        let settings = Settings { max_keys: max_keys.max(1), ..self.keys.settings };
        KeyedConcurrencyLimiter { keys: self.keys.like(settings), ..self }
    }

    /// A limiter like this one in which at most `max_waiting` wait for each key, as if never used. With 0 nobody waits.
    #[must_use]
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        let settings = Settings { max_waiting, ..self.keys.settings };
        KeyedConcurrencyLimiter { keys: self.keys.like(settings), ..self }
    }

    /// A limiter like this one on another clock, as if never used. The clock is for time-outs only.
    #[must_use]
    pub fn with_clock<D: Clock>(self, clock: D) -> KeyedConcurrencyLimiter<K, D> {
        KeyedConcurrencyLimiter { keys: self.keys.like(self.keys.settings), clock, key: PhantomData }
    }

    /// The verbs for a permit that takes up more than one of the limit.
    #[inline]
    pub fn cost(&self, cost: u32) -> KeyedConcurrencyCost<'_, K, C> {
        KeyedConcurrencyCost { limiter: self, cost }
    }

    /// A permit for `key`, if one is free and nobody waits for the same key. Never waits.
    ///
    /// # Errors
    ///
    /// [`Refused::Busy`]; [`Refused::TooManyKeys`]; [`Refused::Never`] if the cost exceeds the limit.
    pub fn try_acquire<Q: Hash + ?Sized>(&self, key: &Q) -> Result<KeyedPermit, Refused>
    where
        K: Borrow<Q>,
    {
        self.cost(1).try_acquire(key)
    }

    /// A permit for `key`, waiting in the key's line until it is there.
    ///
    /// # Errors
    ///
    /// [`Refused::LineFull`]; [`Refused::TooManyKeys`]; [`Refused::Never`] if the cost exceeds the limit.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point, as that of
    /// [`ConcurrencyLimiter::acquire`](crate::ConcurrencyLimiter::acquire).
    pub async fn acquire<Q: Hash + ?Sized>(&self, key: &Q) -> Result<KeyedPermit, Refused>
    where
        K: Borrow<Q>,
    {
        self.cost(1).acquire(key).await
    }

    /// A permit for `key`, waiting for at most so long. On the [`SteadyClock`] this needs the feature `tokio`.
    ///
    /// # Errors
    ///
    /// As [`acquire`](KeyedConcurrencyLimiter::acquire), and [`Refused::TimedOut`].
    ///
    /// # Panics
    ///
    /// On the steady clock, if it has to wait outside a tokio runtime with timers.
    pub async fn acquire_timeout<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        timeout: Duration,
    ) -> Result<KeyedPermit, Refused>
    where
        K: Borrow<Q>,
        C: Sleep,
    {
        self.cost(1).acquire_timeout(key, timeout).await
    }

    /// A permit for `key`, blocking this thread until it is there.
    ///
    /// # Errors
    ///
    /// As [`acquire`](KeyedConcurrencyLimiter::acquire).
    pub fn acquire_blocking<Q: Hash + ?Sized>(&self, key: &Q) -> Result<KeyedPermit, Refused>
    where
        K: Borrow<Q>,
    {
        self.cost(1).acquire_blocking(key)
    }

    /// A permit for `key`, blocking this thread for at most so long.
    ///
    /// # Errors
    ///
    /// As [`acquire`](KeyedConcurrencyLimiter::acquire), and [`Refused::TimedOut`].
    pub fn acquire_blocking_timeout<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        timeout: Duration,
    ) -> Result<KeyedPermit, Refused>
    where
        K: Borrow<Q>,
        C: Park,
    {
        self.cost(1).acquire_blocking_timeout(key, timeout)
    }

    /// Puts another limit in force for all keys and all clones, as
    /// [`ConcurrencyLimiter::resize`](crate::ConcurrencyLimiter::resize) does.
    pub fn resize(&self, limit: u32) {
        self.keys.resize(limit);
    }

    /// How many keys are in use, and how the work under permits has ended.
    #[must_use]
    pub fn stats(&self) -> KeyedConcurrencyStats {
        let Keys { limit, in_use, tally, .. } = &*self.keys;
        let keys = in_use.load(Ordering::Relaxed);
        KeyedConcurrencyStats { limit: limit.load(Ordering::Relaxed), keys, endings: tally.endings() }
    }
}

impl<K: ?Sized, C> KeyedConcurrencyCost<'_, K, C> {
    /// As [`KeyedConcurrencyLimiter::try_acquire`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn try_acquire<Q: Hash + ?Sized>(self, key: &Q) -> Result<KeyedPermit, Refused>
    where
        K: Borrow<Q>,
    {
        acquire::try_acquire(self.guard(key)?, self.cost).map(KeyedPermit)
    }

    /// As [`KeyedConcurrencyLimiter::acquire`].
    ///
    /// # Errors
    ///
    /// See there.
    pub async fn acquire<Q: Hash + ?Sized>(self, key: &Q) -> Result<KeyedPermit, Refused>
    where
        K: Borrow<Q>,
    {
        acquire::wait(self.guard(key)?, self.cost).await.map(KeyedPermit)
    }

    /// As [`KeyedConcurrencyLimiter::acquire_timeout`].
    ///
    /// # Errors
    ///
    /// See there.
    ///
    /// # Panics
    ///
    /// See there.
    pub async fn acquire_timeout<Q: Hash + ?Sized>(
        self,
        key: &Q,
        timeout: Duration,
    ) -> Result<KeyedPermit, Refused>
    where
        K: Borrow<Q>,
        C: Sleep,
    {
        let guard = self.guard(key)?;
        acquire::wait_timeout(guard, self.cost, &self.limiter.clock, timeout).await.map(KeyedPermit)
    }

    /// As [`KeyedConcurrencyLimiter::acquire_blocking`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn acquire_blocking<Q: Hash + ?Sized>(self, key: &Q) -> Result<KeyedPermit, Refused>
    where
        K: Borrow<Q>,
    {
        acquire::wait_blocking(self.guard(key)?, self.cost).map(KeyedPermit)
    }

    /// As [`KeyedConcurrencyLimiter::acquire_blocking_timeout`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn acquire_blocking_timeout<Q: Hash + ?Sized>(
        self,
        key: &Q,
        timeout: Duration,
    ) -> Result<KeyedPermit, Refused>
    where
        K: Borrow<Q>,
        C: Park,
    {
        let guard = self.guard(key)?;
        acquire::wait_blocking_timeout(guard, self.cost, &self.limiter.clock, timeout).map(KeyedPermit)
    }

    fn guard<Q: Hash + ?Sized>(&self, key: &Q) -> Result<KeyGuard, Refused>
    where
        K: Borrow<Q>,
    {
        Keys::guard(&self.limiter.keys, self.limiter.keys.secrets.fingerprint(key))
    }
}

impl<K: ?Sized + Borrow<str>, C: Clock> KeyedConcurrencyLimiter<K, C> {
    /// For the key of a request, which is the same as the text.
    pub(crate) fn try_acquire_key(&self, key: Key<'_>, cost: u32) -> Result<KeyedPermit, Refused> {
        KeyedPermit::try_of(Keys::guard(&self.keys, self.keys.fingerprint_of(key))?, cost)
    }

    /// The same, waiting as a task for at most so long.
    pub(crate) async fn acquire_key(
        &self,
        key: Key<'_>,
        cost: u32,
        timeout: Duration,
    ) -> Result<KeyedPermit, Refused>
    where
        C: Sleep,
    {
        let guard = Keys::guard(&self.keys, self.keys.fingerprint_of(key))?;
        acquire::wait_timeout(guard, cost, &self.clock, timeout).await.map(KeyedPermit)
    }

    /// The same, for a thread.
    pub(crate) fn acquire_key_blocking(
        &self,
        key: Key<'_>,
        cost: u32,
        timeout: Duration,
    ) -> Result<KeyedPermit, Refused>
    where
        C: Park,
    {
        let guard = Keys::guard(&self.keys, self.keys.fingerprint_of(key))?;
        acquire::wait_blocking_timeout(guard, cost, &self.clock, timeout).map(KeyedPermit)
    }

    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }
}

impl KeyedPermit {
    /// How many of the key's limit are free.
    pub(crate) fn free(&self) -> u64 {
        self.0.source().map_or(0, |guard| guard.usage().free())
    }

    /// For one who has come to the key.
    pub(crate) fn try_of(guard: KeyGuard, cost: u32) -> Result<Self, Refused> {
        acquire::try_acquire(guard, cost).map(KeyedPermit)
    }

    /// How many of the key's limit this permit takes up.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.0.cost()
    }

    /// As [`Permit::succeeded`](crate::Permit::succeeded).
    pub fn succeeded(self) {
        self.0.succeeded();
    }

    /// As [`Permit::overloaded`](crate::Permit::overloaded).
    pub fn overloaded(self) {
        self.0.overloaded();
    }
}

impl fmt::Debug for KeyedPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedPermit").field("cost", &self.cost()).finish_non_exhaustive()
    }
}

impl<K: ?Sized, C: Clone> Clone for KeyedConcurrencyLimiter<K, C> {
    /// Another handle on the same slots.
    fn clone(&self) -> Self {
        KeyedConcurrencyLimiter { keys: self.keys.clone(), clock: self.clock.clone(), key: PhantomData }
    }
}

impl<K: ?Sized, C: fmt::Debug> fmt::Debug for KeyedConcurrencyLimiter<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedConcurrencyLimiter")
            .field("stats", &self.stats())
            .field("clock", &self.clock)
            .finish()
    }
}

// === impl Keys ===

impl Keys {
    /// With the usual settings.
    pub(crate) fn with_limit(limit: u32, max_keys: usize) -> Self {
        Keys::new(limit, Settings { max_keys, max_waiting: DEFAULT_MAX_WAITING })
    }

    fn new(limit: u32, settings: Settings) -> Self {
        Keys {
            secrets: Secrets::draw(),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            settings,
            limit: AtomicU32::new(limit),
            resizing: Mutex::new(()),
            in_use: AtomicUsize::new(0),
            tally: Tally::default(),
        }
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Nobody's yet, with other settings.
    fn like(&self, settings: Settings) -> Arc<Self> {
        Arc::new(Keys::new(self.limit(), settings))
    }

    /// The fingerprint of a request's key, the same as that of a text.
    pub(crate) fn fingerprint_of(&self, key: Key<'_>) -> u64 {
        self.secrets.fingerprint(&AsText(key.bytes()))
    }

    /// Comes to the key with this fingerprint, and opens its entry if nobody is there.
    pub(crate) fn guard(keys: &Arc<Keys>, fingerprint: u64) -> Result<KeyGuard, Refused> {
        let slots = match keys.shard(fingerprint).entry(fingerprint) {
            Found::Occupied(mut found) => {
                found.get_mut().holders += 1;
                found.get().slots.clone()
            }
            Found::Vacant(vacant) => {
                keys.make_room()?;
                let slots = Arc::new(keys.slots());
                vacant.insert(Entry { slots: slots.clone(), holders: 1, bell: None });
                slots
            }
        };
        Ok(KeyGuard { keys: keys.clone(), fingerprint, slots, refunded: false })
    }

    fn slots(&self) -> Slots {
        Slots::new(self.limit(), self.settings.max_waiting)
    }

    fn make_room(&self) -> Result<(), Refused> {
        let max_keys = self.settings.max_keys;
        let one_more = |keys| if keys < max_keys { Some(keys + 1) } else { None };
        match self.in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(()),
            Err(_) => Err(Refused::TooManyKeys { max_keys }),
        }
    }

    fn shard(
        &self,
        fingerprint: u64,
    ) -> MutexGuard<'_, HashMap<u64, Entry, BuildHasherDefault<IdentityHasher>>> {
        // From the middle of the fingerprint: the map itself looks at both ends of it.
        let number = usize::try_from((fingerprint >> 32) % SHARDS).expect("there are few shards");
        lock(&self.shards[number])
    }

    pub(crate) fn resize(&self, limit: u32) {
        let _one_at_a_time = lock(&self.resizing);
        self.limit.store(limit, Ordering::Relaxed);
        for shard in &self.shards {
            // Whoever comes later finds the new limit. Those who are woken may leave their keys, and need the lock
            // for it.
            let there: Vec<_> = lock(shard).values().map(|entry| entry.slots.clone()).collect();
            there.iter().for_each(|slots| slots.resize(limit));
            // Only now: whoever is woken finds the new limit.
            let bells: Vec<_> = lock(shard).values_mut().filter_map(|entry| entry.bell.take()).collect();
            bells.into_iter().for_each(WakeSlot::ring);
        }
    }

    /// Lets a visitor of a key go, and tells whom to wake if a permit has come back with it.
    fn leave(&self, fingerprint: u64, refunded: bool) -> Option<WakeSlot> {
        let mut shard = self.shard(fingerprint);
        let Found::Occupied(mut found) = shard.entry(fingerprint) else { return None };
        let entry = found.get_mut();
        entry.holders -= 1;
        let bell = if refunded { entry.bell.take() } else { None };
        if entry.holders == 0 {
            found.remove();
            self.in_use.fetch_sub(1, Ordering::Relaxed);
            // Many keys at once must not take memory for ever.
            if shard.capacity() > LARGE && shard.len() < shard.capacity() / 8 {
                let room = 2 * shard.len();
                shard.shrink_to(room);
            }
        }
        bell
    }
}

impl WakeSlot {
    fn ring(self) {
        self.waker.wake();
    }
}

// === impl Visit ===

impl KeyGuard {
    pub(crate) fn usage(&self) -> Usage {
        self.slots.usage()
    }

    /// Has `waker` woken once when a permit of this key comes back, or the limit changes. Who looks at the slots after
    /// this has not missed it: who gives back does so before it takes the lock that this takes.
    ///
    /// There is one bell, for the first in line. Who has believed to be the first, and has been overtaken by somebody with
    /// a lower number before it came here, leaves that one's bell alone: it could not use the permit it would be woken for.
    pub(crate) fn set_waker(&self, number: u64, waker: &Waker) {
        self.put_waker(|bell| match bell {
            Some(first) if first.number < number => None,
            bell => bell.replace(WakeSlot { number, waker: waker.clone() }),
        });
    }

    /// Takes the bell away again, unless it is somebody else's by now.
    pub(crate) fn take_waker(&self, number: u64) {
        self.put_waker(|bell| bell.take_if(|bell| bell.number == number));
    }

    fn put_waker(&self, put: impl FnOnce(&mut Option<WakeSlot>) -> Option<WakeSlot>) {
        let mut shard = self.keys.shard(self.fingerprint);
        let before = shard.get_mut(&self.fingerprint).and_then(|entry| put(&mut entry.bell));
        drop(shard);
        drop(before); // without the lock: a waker may run anything
    }
}

impl PermitSource for KeyGuard {
    fn slots(&self) -> &Slots {
        &self.slots
    }

    fn tally(&self) -> &Tally {
        &self.keys.tally
    }

    fn refunded(&mut self) {
        self.refunded = true;
    }
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        if let Some(bell) = self.keys.leave(self.fingerprint, self.refunded) {
            bell.ring();
        }
    }
}

// === impl AsItIs ===

impl Hasher for IdentityHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a fingerprint is a u64");
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use super::KeyedConcurrencyLimiter;

    #[derive(Default)]
    struct Rung(AtomicUsize);

    impl Wake for Rung {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn memory_shrinks_when_many_keys_are_released() {
        let limiter = KeyedConcurrencyLimiter::<u64>::new(1);
        let permits: Vec<_> = (0..100_000).map(|key| limiter.try_acquire(&key).expect("room")).collect();
        let room =
            || -> usize { limiter.keys.shards.iter().map(|shard| super::lock(shard).capacity()).sum() };
        assert!(room() >= 100_000);
        drop(permits);
        assert!(room() <= 64 * 2 * super::LARGE, "room for {} keys", room());
    }

    #[test]
    fn waker_of_the_lowest_number_is_kept() {
        let limiter = KeyedConcurrencyLimiter::<str>::new(1);
        let permit = limiter.try_acquire("a").expect("free");
        let guard = limiter.cost(1).guard("a").expect("room");
        let [first, late] = [0, 1].map(|_| Arc::new(Rung::default()));
        guard.set_waker(3, &Waker::from(first.clone()));
        guard.set_waker(5, &Waker::from(late.clone())); // it was overtaken, and does not know it yet
        guard.take_waker(5);
        drop(permit);
        assert_eq!([&first, &late].map(|rung| rung.0.load(Ordering::Relaxed)), [1, 0]);
        guard.set_waker(5, &Waker::from(late.clone()));
        guard.set_waker(3, &Waker::from(first.clone())); // who comes before takes it over
        drop(limiter.try_acquire("a").expect("free"));
        assert_eq!([&first, &late].map(|rung| rung.0.load(Ordering::Relaxed)), [2, 0]);
    }
}
