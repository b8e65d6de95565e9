//! # What is at hand
//!
//! Purses that a thread has used lately, so that it finds them without opening a drawer. One that its account has left stays
//! empty, and who finds it so goes to the drawer.

use std::cell::RefCell;
use std::sync::Arc;

use super::token_cache::TokenCache;

/// Whose account it is. Keys go through the secret hash of the house, the accounts it belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a> {
    pub(crate) house: u64,
    pub(crate) hash: u64,
    pub(crate) rule: usize,
    pub(crate) key: &'a [u8],
}

/// A purse, and whose it is.
#[derive(Debug)]
pub(crate) struct Owned {
    house: u64,
    pub(crate) hash: u64,
    pub(crate) rule: usize,
    pub(crate) key: Box<[u8]>,
    pub(crate) token_cache: TokenCache,
}

const SLOTS: usize = 32;

thread_local! {
    static THREAD_CACHE: RefCell<[Option<Arc<Owned>>; SLOTS]> = const { RefCell::new([const { None }; SLOTS]) };
}

/// Takes `cost` from a purse that is at hand, as [`TokenCache::spend`] does.
#[inline]
pub(crate) fn spend(house: u64, rule: usize, key: &[u8], cost: u32, now: u64) -> Option<(u32, u64)> {
    THREAD_CACHE.with_borrow(|thread_cache| {
        let owned = thread_cache[pocket(rule, key)].as_ref();
        let owned = owned.filter(|owned| owned.house == house && owned.rule == rule && *owned.key == *key)?;
        owned.token_cache.spend(cost, now)
    })
}

/// Keeps a purse at hand, in the place of another.
pub(crate) fn keep(owned: &Arc<Owned>) {
    THREAD_CACHE
        .with_borrow_mut(|thread_cache| thread_cache[pocket(owned.rule, &owned.key)] = Some(owned.clone()));
}

/// By both ends of the key, quickly. Who aims at a pocket sends others to the drawer, and that is all.
#[inline]
fn pocket(rule: usize, key: &[u8]) -> usize {
    let (mut first, mut last, eight) = ([0; 8], [0; 8], key.len().min(8));
    first[..eight].copy_from_slice(&key[..eight]);
    last[..eight].copy_from_slice(&key[key.len() - eight..]);
    let ends = u64::from_le_bytes(first) ^ u64::from_le_bytes(last).rotate_left(32);
    let mixed = (ends ^ (key.len() ^ rule << 8) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    usize::try_from(mixed >> 32).unwrap_or(0) % SLOTS
}

impl Owned {
    pub(crate) fn new(name: Name<'_>) -> Self {
        let Name { house, hash, rule, key } = name;
        Owned { house, hash, rule, key: key.into(), token_cache: TokenCache::new() }
    }

    #[inline]
    pub(crate) fn is_of(&self, name: Name<'_>) -> bool {
        self.hash == name.hash && self.house == name.house && self.rule == name.rule && *self.key == *name.key
    }
}
