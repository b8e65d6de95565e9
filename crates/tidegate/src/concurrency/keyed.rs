//! # Concurrency limits per key
//!
//! A key needs slots only while there are permits or waiters. So the entry of a key begins with its first request,
//! whether that gets a permit or waits for one, and ends with the last; an idle key takes no memory.
//!
//! ```text
//!   try_acquire("alice") ──► shard ──► entry: holders 2, slots ▓▓░     the last holder removes the entry
//!                              └────► entry: holders 1, slots ▓░░
//! ```
//!
//! Keys are looked up by reference and never stored: the table keeps fingerprints, as that of
//! [`KeyedLimiter`](crate::KeyedLimiter) does, and two keys that collide by chance would share their slots. Finding the
//! entry takes the lock of its shard for a moment; the slots themselves work as they do without keys.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Found;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::Waker;

use super::endings::{Endings, Tally};
use super::permit::{HeldPermit, PermitSource};
use super::slots::{Slots, Usage};
use super::{DEFAULT_MAX_WAITING, acquire};
use crate::clock::{Clock, SteadyClock};
use crate::error::{AcquireError, RefusalKind};
use crate::fingerprint::{AsText, Secrets};
use crate::gate::Key;
use crate::request::{Request, Target};
use crate::sync::{AtomicU32, AtomicUsize, Mutex, MutexGuard, Ordering, lock};
use tidegate_core::{Micros, Wait};

/// The default maximum number of keys in use.
const DEFAULT_MAX_KEYS: usize = 1 << 20;
/// The number of locks. With this many, threads with different keys rarely contend.
const SHARDS: u64 = 64;
/// A shard with room for more keys than this shrinks when most of them are gone.
const LARGE: usize = 256;

/// Limits how many operations are in progress for each key.
///
/// ```
/// use tidegate::KeyedConcurrencyLimiter;
///
/// let uploads = KeyedConcurrencyLimiter::<String>::new(2);
/// let one = uploads.try_acquire("alice")?; // looked up by &str; no key is stored
/// let two = uploads.try_acquire("alice")?;
/// assert!(uploads.try_acquire("alice").unwrap_err().is_busy());
/// assert!(uploads.try_acquire("bob").is_ok());
///
/// drop((one, two));
/// assert_eq!(uploads.stats().keys, 0); // an idle key takes no memory
/// # Ok::<(), tidegate::AcquireError>(())
/// ```
///
/// The operations and their guarantees are those of [`ConcurrencyLimiter`](crate::ConcurrencyLimiter); each key has its
/// own queue. At most [`max_keys`](KeyedConcurrencyLimiterBuilder::max_keys) keys are in use at once, a million by
/// default; a request for another key is refused with [`is_closed`](AcquireError::is_closed).
pub struct KeyedConcurrencyLimiter<K: ?Sized, C = SteadyClock> {
    pub(super) keys: Arc<Keys>,
    pub(super) clock: C,
    key: PhantomData<fn(&K)>,
}

/// Builds a [`KeyedConcurrencyLimiter`]. Made by [`KeyedConcurrencyLimiter::builder`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct KeyedConcurrencyLimiterBuilder<K: ?Sized, C = SteadyClock> {
    limit: u32,
    settings: Settings,
    clock: C,
    key: PhantomData<fn(&K)>,
}

/// The right to be one of the operations in progress for a key, as [`Permit`](crate::Permit). Always owned.
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct KeyedPermit(pub(super) HeldPermit<KeyGuard>);

/// A snapshot of a [`KeyedConcurrencyLimiter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyedConcurrencyStats {
    /// The maximum number of permits in use for each key.
    pub limit: u32,
    /// The number of keys with permits or waiters.
    pub keys: usize,
    /// How many operations succeeded, were overloaded, or were dropped, for all keys.
    pub endings: Endings,
}

/// The fingerprint of the key of a request.
#[derive(Debug)]
pub struct ConcurrencyKey {
    pub(super) fingerprint: u64,
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
    /// The number of permits and waiters.
    holders: usize,
    registered: Option<RegisteredWaker>,
}

/// The waker of a policy's waiter, with the waiter's number there.
///
/// It is woken when permits are released, and then competes for them.
#[derive(Debug)]
struct RegisteredWaker {
    number: u64,
    waker: Waker,
}

/// Keeps the entry of a key from being removed.
#[derive(Debug)]
pub(crate) struct KeyGuard {
    keys: Arc<Keys>,
    fingerprint: u64,
    slots: Arc<Slots>,
    /// Whether a permit was released: the registered waiter is to be woken.
    released: bool,
}

/// Returns the `u64` unchanged: a fingerprint already is a hash.
#[derive(Debug, Default)]
struct IdentityHasher(u64);

impl<K: ?Sized> KeyedConcurrencyLimiter<K> {
    /// Creates a limiter of `limit` operations for each key, on the steady clock.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        KeyedConcurrencyLimiter::builder(limit).build()
    }

    /// Starts to build a limiter with another clock or other bounds.
    pub fn builder(limit: u32) -> KeyedConcurrencyLimiterBuilder<K> {
        let settings = Settings { max_keys: DEFAULT_MAX_KEYS, max_waiting: DEFAULT_MAX_WAITING };
        KeyedConcurrencyLimiterBuilder { limit, settings, clock: SteadyClock::new(), key: PhantomData }
    }
}

impl<K: ?Sized, C: Clock> KeyedConcurrencyLimiterBuilder<K, C> {
    /// The maximum number of keys in use, at least 1; a million by default.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.settings.max_keys = max_keys.max(1);
        self
    }

    /// The maximum number of waiters of one key; 65,536 by default. With 0 no request waits.
    pub fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.settings.max_waiting = max_waiting;
        self
    }

    /// Uses another clock. It is read for timeouts only.
    pub fn clock<D: Clock>(self, clock: D) -> KeyedConcurrencyLimiterBuilder<K, D> {
        let KeyedConcurrencyLimiterBuilder { limit, settings, key, .. } = self;
        KeyedConcurrencyLimiterBuilder { limit, settings, clock, key }
    }

    /// Builds the limiter.
    #[must_use]
    pub fn build(self) -> KeyedConcurrencyLimiter<K, C> {
        let KeyedConcurrencyLimiterBuilder { limit, settings, clock, key } = self;
        KeyedConcurrencyLimiter { keys: Arc::new(Keys::new(limit, settings)), clock, key }
    }
}

impl<K: ?Sized, C: Clock> KeyedConcurrencyLimiter<K, C> {
    /// Takes a permit for `key` if one is free and no request for the same key waits. Never waits.
    ///
    /// # Errors
    ///
    /// [`AcquireError`] with [`is_busy`](AcquireError::is_busy), or with [`is_closed`](AcquireError::is_closed) if there
    /// is no room for another key.
    pub fn try_acquire<Q: Hash + ?Sized>(&self, key: &Q) -> Result<KeyedPermit, AcquireError>
    where
        K: Borrow<Q>,
    {
        self.request(key).try_acquire()
    }

    /// Waits in the queue of `key`, as a task of any runtime, for a permit. See [`Request::acquire`].
    ///
    /// # Errors
    ///
    /// [`AcquireError`] if the queue of the key is full, or there is no room for another key.
    pub async fn acquire<Q: Hash + ?Sized>(&self, key: &Q) -> Result<KeyedPermit, AcquireError>
    where
        K: Borrow<Q>,
    {
        self.request(key).acquire().await
    }

    /// Begins a request for `key`, for everything beyond [`try_acquire`](KeyedConcurrencyLimiter::try_acquire) and
    /// [`acquire`](KeyedConcurrencyLimiter::acquire).
    pub fn request<Q: Hash + ?Sized>(&self, key: &Q) -> Request<'_, Self>
    where
        K: Borrow<Q>,
    {
        Request::new(self, ConcurrencyKey { fingerprint: self.keys.secrets.fingerprint(key) })
    }

    /// Replaces the limit for all keys and all clones, as
    /// [`ConcurrencyLimiter::resize`](crate::ConcurrencyLimiter::resize) does.
    pub fn resize(&self, limit: u32) {
        self.keys.resize(limit);
    }

    /// The number of keys in use, and how many operations succeeded, were overloaded, or were dropped.
    #[must_use]
    pub fn stats(&self) -> KeyedConcurrencyStats {
        let Keys { limit, in_use, tally, .. } = &*self.keys;
        let keys = in_use.load(Ordering::Relaxed);
        KeyedConcurrencyStats { limit: limit.load(Ordering::Relaxed), keys, endings: tally.endings() }
    }

    /// Begins a request for the key of a [`Part`](crate::gate::Part).
    ///
    /// A `Part` key and a `str` with the same bytes have the same fingerprint.
    pub(crate) fn request_for(&self, key: Key<'_>) -> Request<'_, Self> {
        Request::new(self, ConcurrencyKey { fingerprint: self.keys.fingerprint_of(key) })
    }

    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }
}

impl<'a, K: ?Sized, C> Target<'a> for KeyedConcurrencyLimiter<K, C> {
    type Key = ConcurrencyKey;
}

impl KeyedPermit {
    /// Returns how many permits of the key are free.
    pub(crate) fn free(&self) -> u64 {
        self.0.source().map_or(0, |guard| guard.usage().free())
    }

    /// Takes a permit of the key that `guard` keeps, without waiting.
    pub(crate) fn try_of(guard: KeyGuard, cost: u32) -> Result<Self, RefusalKind> {
        acquire::try_acquire(guard, cost).map(KeyedPermit)
    }

    /// How much of the limit of the key this permit takes.
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
    /// Another handle on the same limiter.
    fn clone(&self) -> Self {
        KeyedConcurrencyLimiter { keys: self.keys.clone(), clock: self.clock.clone(), key: PhantomData }
    }
}

impl<K: ?Sized, C: Clock + fmt::Debug> fmt::Debug for KeyedConcurrencyLimiter<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedConcurrencyLimiter")
            .field("stats", &self.stats())
            .field("clock", &self.clock)
            .finish()
    }
}

// === impl Keys ===

impl Keys {
    /// Creates an empty table with the default length of queues.
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

    /// Returns the fingerprint of a `Part` key, which is that of a `str` with the same bytes.
    pub(crate) fn fingerprint_of(&self, key: Key<'_>) -> u64 {
        self.secrets.fingerprint(&AsText(key.bytes()))
    }

    /// Registers a holder of the key with this fingerprint, and creates its entry if there is none.
    pub(crate) fn guard(keys: &Arc<Keys>, fingerprint: u64) -> Result<KeyGuard, RefusalKind> {
        let slots = match keys.shard(fingerprint).entry(fingerprint) {
            Found::Occupied(mut found) => {
                found.get_mut().holders += 1;
                found.get().slots.clone()
            }
            Found::Vacant(vacant) => {
                keys.count_new_key()?;
                let slots = Arc::new(keys.slots());
                vacant.insert(Entry { slots: slots.clone(), holders: 1, registered: None });
                slots
            }
        };
        Ok(KeyGuard { keys: keys.clone(), fingerprint, slots, released: false })
    }

    fn slots(&self) -> Slots {
        Slots::new(self.limit(), self.settings.max_waiting)
    }

    /// Counts one more key in use, unless the maximum is reached.
    fn count_new_key(&self) -> Result<(), RefusalKind> {
        let max_keys = self.settings.max_keys;
        let one_more = |keys| if keys < max_keys { Some(keys + 1) } else { None };
        match self.in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(()),
            Err(_) => Err(RefusalKind::TooManyKeys { retry_after: Wait::default() }),
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
            // Later requests find the new limit. Waiters that are woken may release their keys, which takes the lock.
            let there: Vec<_> = lock(shard).values().map(|entry| entry.slots.clone()).collect();
            there.iter().for_each(|slots| slots.resize(limit));
            // Only now: a waiter that is woken finds the new limit.
            let registered: Vec<_> =
                lock(shard).values_mut().filter_map(|entry| entry.registered.take()).collect();
            registered.into_iter().for_each(RegisteredWaker::wake);
        }
    }

    /// Removes a holder of a key, and returns the waiter to wake if a permit was released.
    fn leave(&self, fingerprint: u64, released: bool) -> Option<RegisteredWaker> {
        let mut shard = self.shard(fingerprint);
        let Found::Occupied(mut found) = shard.entry(fingerprint) else { return None };
        let entry = found.get_mut();
        entry.holders -= 1;
        let registered = if released { entry.registered.take() } else { None };
        if entry.holders == 0 {
            found.remove();
            self.in_use.fetch_sub(1, Ordering::Relaxed);
            // Many keys in use for a moment must not take memory for ever.
            if shard.capacity() > LARGE && shard.len() < shard.capacity() / 8 {
                let room = 2 * shard.len();
                shard.shrink_to(room);
            }
        }
        registered
    }
}

impl RegisteredWaker {
    fn wake(self) {
        self.waker.wake();
    }
}

// === impl KeyGuard ===

impl KeyGuard {
    pub(crate) fn usage(&self) -> Usage {
        self.slots.usage()
    }

    /// Registers `waker` to be woken once, when a permit of this key is released or the limit changes.
    ///
    /// A waiter that reads the slots after `set_waker` misses no release: a release returns its slots before it locks the
    /// shard, and `set_waker` holds the same lock.
    ///
    /// A key stores one waker, of the waiter with the lowest number. A waiter with a higher number does not replace it,
    /// because it could not use the permit yet.
    pub(crate) fn set_waker(&self, number: u64, waker: &Waker) {
        self.put_waker(|slot| match slot {
            Some(first) if first.number < number => None,
            slot => slot.replace(RegisteredWaker { number, waker: waker.clone() }),
        });
    }

    /// Removes the registration, unless another waiter has replaced it.
    pub(crate) fn take_waker(&self, number: u64) {
        self.put_waker(|slot| slot.take_if(|slot| slot.number == number));
    }

    fn put_waker(&self, put: impl FnOnce(&mut Option<RegisteredWaker>) -> Option<RegisteredWaker>) {
        let mut shard = self.keys.shard(self.fingerprint);
        let before = shard.get_mut(&self.fingerprint).and_then(|entry| put(&mut entry.registered));
        drop(shard);
        drop(before); // without the lock: a waker may run arbitrary code
    }
}

impl PermitSource for KeyGuard {
    fn slots(&self) -> &Slots {
        &self.slots
    }

    fn tally(&self) -> &Tally {
        &self.keys.tally
    }

    fn released(&mut self) {
        self.released = true;
    }
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        if let Some(registered) = self.keys.leave(self.fingerprint, self.released) {
            registered.wake();
        }
    }
}

// === impl IdentityHasher ===

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

    use super::{KeyedConcurrencyLimiter, Keys};

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
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
        let fingerprint = limiter.keys.secrets.fingerprint("a");
        let guard = Keys::guard(&limiter.keys, fingerprint).expect("room");
        let [first, late] = [0, 1].map(|_| Arc::new(Wakes::default()));
        guard.set_waker(3, &Waker::from(first.clone()));
        guard.set_waker(5, &Waker::from(late.clone())); // it was overtaken, and has not noticed yet
        guard.take_waker(5);
        drop(permit);
        assert_eq!([&first, &late].map(|wakes| wakes.0.load(Ordering::Relaxed)), [1, 0]);
        guard.set_waker(5, &Waker::from(late.clone()));
        guard.set_waker(3, &Waker::from(first.clone())); // a lower number replaces it
        drop(limiter.try_acquire("a").expect("free"));
        assert_eq!([&first, &late].map(|wakes| wakes.0.load(Ordering::Relaxed)), [2, 0]);
    }
}
