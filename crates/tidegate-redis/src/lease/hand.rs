//! # What is at hand
//!
//! Purses that a thread has used lately, so that it finds them without opening a drawer. One that its account has left stays
//! empty, and who finds it so goes to the drawer.

use std::cell::RefCell;
use std::sync::Arc;

use super::purse::Purse;

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
    pub(crate) purse: Purse,
}

const POCKETS: usize = 32;

thread_local! {
    static HAND: RefCell<[Option<Arc<Owned>>; POCKETS]> = const { RefCell::new([const { None }; POCKETS]) };
}

/// Takes `cost` from a purse that is at hand, as [`Purse::spend`] does.
#[inline]
pub(crate) fn spend(name: Name<'_>, cost: u32, now: u64) -> Option<(u32, u64)> {
    HAND.with_borrow(|hand| {
        let owned = hand[pocket(name.hash)].as_ref().filter(|owned| owned.is_of(name))?;
        owned.purse.spend(cost, now)
    })
}

/// Keeps a purse at hand, in the place of another.
pub(crate) fn keep(owned: &Arc<Owned>) {
    HAND.with_borrow_mut(|hand| hand[pocket(owned.hash)] = Some(owned.clone()));
}

#[inline]
fn pocket(hash: u64) -> usize {
    usize::try_from(hash >> 48).unwrap_or(0) % POCKETS
}

impl Owned {
    pub(crate) fn new(name: Name<'_>) -> Self {
        let Name { house, hash, rule, key } = name;
        Owned { house, hash, rule, key: key.into(), purse: Purse::new() }
    }

    #[inline]
    pub(crate) fn is_of(&self, name: Name<'_>) -> bool {
        self.hash == name.hash && self.house == name.house && self.rule == name.rule && *self.key == *name.key
    }
}
