//! # Thread-local cache of token caches
//!
//! Each thread keeps the token caches that it has used recently, so that it finds them without locking a shard. A token
//! cache that its account has abandoned stays empty, and a thread that finds it empty falls back to the shard.

use std::cell::RefCell;
use std::sync::Arc;

use super::token_cache::TokenCache;

/// Identifies an account. The hash of the key is secret, and differs for each instance of `Accounts`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccountId<'a> {
    pub(crate) instance: u64,
    pub(crate) hash: u64,
    pub(crate) rule: usize,
    pub(crate) key: &'a [u8],
}

/// A token cache, and the account that it belongs to.
#[derive(Debug)]
pub(crate) struct AccountCache {
    instance: u64,
    pub(crate) hash: u64,
    pub(crate) rule: usize,
    pub(crate) key: Box<[u8]>,
    pub(crate) token_cache: TokenCache,
}

const SLOTS: usize = 32;

thread_local! {
    static THREAD_CACHE: RefCell<[Option<Arc<AccountCache>>; SLOTS]> = const { RefCell::new([const { None }; SLOTS]) };
}

/// Takes `cost` from a token cache of this thread, as [`TokenCache::spend`] does.
#[inline]
pub(crate) fn spend(instance: u64, rule: usize, key: &[u8], cost: u32, now: u64) -> Option<(u32, u64)> {
    THREAD_CACHE.with_borrow(|thread_cache| {
        let cache = thread_cache[slot(rule, key)].as_ref();
        let cache =
            cache.filter(|cache| cache.instance == instance && cache.rule == rule && *cache.key == *key)?;
        cache.token_cache.spend(cost, now)
    })
}

/// Adds a token cache to the cache of this thread, replacing another one.
pub(crate) fn insert(cache: &Arc<AccountCache>) {
    THREAD_CACHE
        .with_borrow_mut(|thread_cache| thread_cache[slot(cache.rule, &cache.key)] = Some(cache.clone()));
}

/// Chooses a slot by a fast hash of both ends of the key. A crafted collision only causes thread-cache misses.
#[inline]
fn slot(rule: usize, key: &[u8]) -> usize {
    let (mut first, mut last, eight) = ([0; 8], [0; 8], key.len().min(8));
    first[..eight].copy_from_slice(&key[..eight]);
    last[..eight].copy_from_slice(&key[key.len() - eight..]);
    let ends = u64::from_le_bytes(first) ^ u64::from_le_bytes(last).rotate_left(32);
    let mixed = (ends ^ (key.len() ^ rule << 8) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    usize::try_from(mixed >> 32).unwrap_or(0) % SLOTS
}

impl AccountCache {
    pub(crate) fn new(id: AccountId<'_>) -> Self {
        let AccountId { instance, hash, rule, key } = id;
        AccountCache { instance, hash, rule, key: key.into(), token_cache: TokenCache::new() }
    }

    #[inline]
    pub(crate) fn has_id(&self, id: AccountId<'_>) -> bool {
        self.hash == id.hash && self.instance == id.instance && self.rule == id.rule && *self.key == *id.key
    }
}
