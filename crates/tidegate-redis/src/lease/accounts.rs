//! # All accounts, by rule and key
//!
//! Accounts are divided into shards, so that requests for different keys seldom contend. No shard stays locked during a
//! round trip to Redis. Tokens that can be spent without the lock are in a [token cache](super::token_cache).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use tidegate::Micros;

use super::account::{Account, Closed, LeaseTerms};
use super::thread_cache::{self, Name, Owned};

#[derive(Debug)]
pub(crate) struct Accounts {
    drawers: Box<[Shard]>,
    hasher: RandomState,
    most: usize,
    house: u64,
}

/// A shard on cache lines of its own, because other threads lock its neighbours.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<HashTable<Entry>>);

#[derive(Debug)]
struct Entry {
    owned: Arc<Owned>,
    account: Account,
}

/// Tokens to return: the rule, the key, and what the account held.
pub(crate) type Back = (usize, Box<[u8]>, Closed);

/// The tokens to return, and how many tokens have expired.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    pub(crate) back: Vec<Back>,
    pub(crate) expired: u64,
}

const SHARDS: usize = 64;

impl Accounts {
    pub(crate) fn new(most: usize) -> Self {
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        Accounts {
            drawers: (0..SHARDS).map(|_| Shard::default()).collect(),
            hasher: RandomState::new(),
            most: most / SHARDS + 1,
            house: INSTANCES.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Takes `cost` from the account's token cache, if this thread has it at hand.
    ///
    /// See [`thread_cache::spend`].
    #[inline]
    pub(crate) fn spend_at_hand(
        &self,
        rule: usize,
        key: &[u8],
        cost: u32,
        now: Micros,
    ) -> Option<(u32, u64)> {
        thread_cache::spend(self.house, rule, key, cost, now.get())
    }

    /// Hashes a key. Clients that choose keys cannot craft collisions, because the hash is keyed.
    ///
    /// Clients cannot choose the number of a rule, so that is not hashed.
    #[inline]
    pub(crate) fn name<'a>(&self, rule: usize, key: &'a [u8]) -> Name<'a> {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        let hash = hasher.finish().wrapping_add((rule as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Name { house: self.house, hash, rule, key }
    }

    /// Runs `act` on an account, and adds its token cache to the thread's cache.
    ///
    /// Creates the account if there is none; `None` if there are too many.
    pub(crate) fn with<T>(
        &self,
        name: Name<'_>,
        now: Micros,
        act: impl FnOnce(&mut Account) -> T,
    ) -> Option<T> {
        let mut drawer = self.drawer(name.hash);
        if let Some(entry) = drawer.find_mut(name.hash, |entry| entry.owned.is_of(name)) {
            let done = entry.act(act);
            thread_cache::keep(&entry.owned);
            return Some(done);
        }
        if drawer.len() >= self.most {
            return None;
        }
        let entry = Entry { owned: Arc::new(Owned::new(name)), account: Account::new(now) };
        Some(drawer.insert_unique(name.hash, entry, |entry| entry.owned.hash).into_mut().act(act))
    }

    /// Runs `act` on an account if there is one.
    pub(crate) fn with_open<T>(&self, name: Name<'_>, act: impl FnOnce(&mut Account) -> T) -> Option<T> {
        let mut drawer = self.drawer(name.hash);
        drawer.find_mut(name.hash, |entry| entry.owned.is_of(name)).map(|entry| entry.act(act))
    }

    /// Locks the shard of a hash, chosen by bits that the hash table inside does not use.
    #[inline]
    fn drawer(&self, hash: u64) -> MutexGuard<'_, HashTable<Entry>> {
        let drawer = usize::try_from(hash >> 32).unwrap_or(0) % SHARDS;
        self.drawers[drawer].open()
    }

    /// Takes out tokens that are idle for half of their lifetime, and removes empty accounts.
    pub(crate) fn idle(&self, deals: &[Option<LeaseTerms>], now: Micros) -> Swept {
        self.each(
            |rule, account| {
                deals[rule].map_or_else(Closed::default, |terms| account.idle(terms.ttl / 2, now))
            },
            |rule, account| deals[rule].is_none_or(|terms| account.is_forgotten(terms.ttl, now)),
        )
    }

    /// Takes out everything.
    pub(crate) fn close(&self, now: Micros) -> Swept {
        self.each(|_, account| account.close(now), |_, _| true)
    }

    /// Takes out everything of one key, and removes its account.
    pub(crate) fn close_one(&self, name: Name<'_>, now: Micros) -> Swept {
        let mut drawer = self.drawer(name.hash);
        let Ok(found) = drawer.find_entry(name.hash, |entry| entry.owned.is_of(name)) else {
            return Swept::default();
        };
        let (Entry { owned, mut account }, _) = found.remove();
        account.collect(&owned.token_cache);
        let closed = account.close(now);
        Swept { back: vec![(name.rule, name.key.into(), closed)], expired: account.take_expired().into() }
    }

    fn each(
        &self,
        mut give: impl FnMut(usize, &mut Account) -> Closed,
        mut is_closed: impl FnMut(usize, &Account) -> bool,
    ) -> Swept {
        let mut swept = Swept::default();
        for drawer in &self.drawers {
            drawer.open().retain(|Entry { owned, account }| {
                account.collect(&owned.token_cache);
                let closed = give(owned.rule, account);
                swept.expired += u64::from(account.take_expired());
                if !closed.is_empty() {
                    swept.back.push((owned.rule, owned.key.clone(), closed));
                }
                let stays = !is_closed(owned.rule, account);
                if stays {
                    account.lay_out(&owned.token_cache);
                }
                stays
            });
        }
        swept
    }
}

impl Entry {
    /// Runs `act` on the account, with all tokens in the account and none in the token cache.
    fn act<T>(&mut self, act: impl FnOnce(&mut Account) -> T) -> T {
        self.account.collect(&self.owned.token_cache);
        let done = act(&mut self.account);
        self.account.lay_out(&self.owned.token_cache);
        done
    }
}

impl Shard {
    fn open(&self) -> MutexGuard<'_, HashTable<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
