//! # All accounts, by rule and key
//!
//! Accounts are divided into shards, so that requests for different keys seldom contend. No shard stays locked during a
//! round trip to Redis. Tokens that can be spent without the lock are in a [token cache](super::token_cache).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use tidegate::clock::Micros;

use super::account::{Account, LeaseTerms, Unspent};
use super::thread_cache::{self, AccountCache, AccountId};

#[derive(Debug)]
pub(crate) struct Accounts {
    shards: Box<[Shard]>,
    hasher: RandomState,
    max_per_shard: usize,
    instance: u64,
}

/// A shard on cache lines of its own, because other threads lock its neighbours.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<HashTable<Entry>>);

#[derive(Debug)]
struct Entry {
    cache: Arc<AccountCache>,
    account: Account,
}

/// Tokens to return to Redis: the rule, the key, and what the account held.
pub(crate) type Returned = (usize, Box<[u8]>, Unspent);

/// The tokens to return, and how many tokens have expired.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    pub(crate) unspent: Vec<Returned>,
    pub(crate) expired: u64,
}

const SHARDS: usize = 64;

impl Accounts {
    pub(crate) fn new(max_accounts: usize) -> Self {
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        Accounts {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            hasher: RandomState::new(),
            max_per_shard: max_accounts / SHARDS + 1,
            instance: INSTANCES.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Takes `cost` from the account's token cache, if that is in the thread's cache.
    ///
    /// See [`thread_cache::spend`].
    #[inline]
    pub(crate) fn spend_cached(&self, rule: usize, key: &[u8], cost: u32, now: Micros) -> Option<(u32, u64)> {
        thread_cache::spend(self.instance, rule, key, cost, now.get())
    }

    /// Hashes a key. Clients that choose keys cannot craft collisions, because the hash is keyed.
    ///
    /// Clients cannot choose the number of a rule, so that is not hashed.
    #[inline]
    pub(crate) fn id<'a>(&self, rule: usize, key: &'a [u8]) -> AccountId<'a> {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        let hash = hasher.finish().wrapping_add((rule as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        AccountId { instance: self.instance, hash, rule, key }
    }

    /// Runs `f` on an account, and adds its token cache to the thread's cache.
    ///
    /// Creates the account if there is none; `None` if there are too many.
    pub(crate) fn with<T>(
        &self,
        id: AccountId<'_>,
        now: Micros,
        f: impl FnOnce(&mut Account) -> T,
    ) -> Option<T> {
        let mut shard = self.lock_shard(id.hash);
        if let Some(entry) = shard.find_mut(id.hash, |entry| entry.cache.has_id(id)) {
            let result = entry.update(f);
            thread_cache::insert(&entry.cache);
            return Some(result);
        }
        if shard.len() >= self.max_per_shard {
            return None;
        }
        let entry = Entry { cache: Arc::new(AccountCache::new(id)), account: Account::new(now) };
        Some(shard.insert_unique(id.hash, entry, |entry| entry.cache.hash).into_mut().update(f))
    }

    /// Runs `f` on an account if there is one.
    pub(crate) fn with_existing<T>(&self, id: AccountId<'_>, f: impl FnOnce(&mut Account) -> T) -> Option<T> {
        let mut shard = self.lock_shard(id.hash);
        shard.find_mut(id.hash, |entry| entry.cache.has_id(id)).map(|entry| entry.update(f))
    }

    /// Locks the shard of a hash, chosen by bits that the hash table inside does not use.
    #[inline]
    fn lock_shard(&self, hash: u64) -> MutexGuard<'_, HashTable<Entry>> {
        let shard = usize::try_from(hash >> 32).unwrap_or(0) % SHARDS;
        self.shards[shard].lock()
    }

    /// Takes out tokens that are idle for half of their lifetime, and removes empty accounts.
    pub(crate) fn sweep_idle(&self, lease_terms: &[Option<LeaseTerms>], now: Micros) -> Swept {
        self.sweep(
            |rule, account| {
                lease_terms[rule].map_or_else(Unspent::default, |terms| account.take_idle(terms.ttl / 2, now))
            },
            |rule, account| lease_terms[rule].is_none_or(|terms| account.is_evictable(terms.ttl, now)),
        )
    }

    /// Takes out everything.
    pub(crate) fn close(&self, now: Micros) -> Swept {
        self.sweep(|_, account| account.close(now), |_, _| true)
    }

    /// Takes out everything of one key, and removes its account.
    pub(crate) fn close_one(&self, id: AccountId<'_>, now: Micros) -> Swept {
        let mut shard = self.lock_shard(id.hash);
        let Ok(found) = shard.find_entry(id.hash, |entry| entry.cache.has_id(id)) else {
            return Swept::default();
        };
        let (Entry { cache, mut account }, _) = found.remove();
        account.drain_cache(&cache.token_cache);
        let unspent = account.close(now);
        Swept { unspent: vec![(id.rule, id.key.into(), unspent)], expired: account.take_expired().into() }
    }

    fn sweep(
        &self,
        mut take_out: impl FnMut(usize, &mut Account) -> Unspent,
        mut is_removable: impl FnMut(usize, &Account) -> bool,
    ) -> Swept {
        let mut swept = Swept::default();
        for shard in &self.shards {
            shard.lock().retain(|Entry { cache, account }| {
                account.drain_cache(&cache.token_cache);
                let unspent = take_out(cache.rule, account);
                swept.expired += u64::from(account.take_expired());
                if !unspent.is_empty() {
                    swept.unspent.push((cache.rule, cache.key.clone(), unspent));
                }
                let is_kept = !is_removable(cache.rule, account);
                if is_kept {
                    account.fill_cache(&cache.token_cache);
                }
                is_kept
            });
        }
        swept
    }
}

impl Entry {
    /// Runs `f` on the account, with all tokens in the account and none in the token cache.
    fn update<T>(&mut self, f: impl FnOnce(&mut Account) -> T) -> T {
        self.account.drain_cache(&self.cache.token_cache);
        let result = f(&mut self.account);
        self.account.fill_cache(&self.cache.token_cache);
        result
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, HashTable<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
