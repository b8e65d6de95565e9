//! # All accounts, by rule and key
//!
//! In drawers, so that those who ask for different keys seldom meet. Nobody holds a drawer open while Redis is asked.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use tidegate::Micros;
use tokio::sync::futures::OwnedNotified;

use super::account::{Account, Deal};
use super::lot::Lot;

#[derive(Debug)]
pub(crate) struct Accounts {
    drawers: Box<[Mutex<Drawer>]>,
    hasher: RandomState,
    most: usize,
}

type Drawer = HashTable<Entry>;

#[derive(Debug)]
struct Entry {
    hash: u64,
    rule: usize,
    key: Box<[u8]>,
    account: Account,
}

/// What is to be given back, of which key.
pub(crate) type Back = (usize, Box<[u8]>, Vec<Lot>);

/// What was held when everything was closed.
pub(crate) struct Closed {
    pub(crate) back: Vec<Back>,
    /// Rings when a lot that was on its way has gone back.
    pub(crate) asking: Vec<OwnedNotified>,
}

const DRAWERS: usize = 64;

impl Accounts {
    pub(crate) fn new(most: usize) -> Self {
        Accounts {
            drawers: (0..DRAWERS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            most: most / DRAWERS + 1,
        }
    }

    /// Does something with the account of a key, which is opened if there is none. `None` if there are too many.
    #[inline]
    pub(crate) fn with<T>(
        &self,
        rule: usize,
        key: &[u8],
        now: Micros,
        act: impl FnOnce(&mut Account) -> T,
    ) -> Option<T> {
        let hash = self.hash(rule, key);
        let mut drawer = self.drawer(hash);
        if let Some(entry) = drawer.find_mut(hash, |entry| entry.is_of(rule, key)) {
            return Some(act(&mut entry.account));
        }
        if drawer.len() >= self.most {
            return None;
        }
        let entry = Entry { hash, rule, key: key.into(), account: Account::new(now) };
        Some(act(&mut drawer.insert_unique(hash, entry, |entry| entry.hash).into_mut().account))
    }

    /// Does something with an account if there is one.
    pub(crate) fn with_open<T>(
        &self,
        rule: usize,
        key: &[u8],
        act: impl FnOnce(&mut Account) -> T,
    ) -> Option<T> {
        let hash = self.hash(rule, key);
        self.drawer(hash).find_mut(hash, |entry| entry.is_of(rule, key)).map(|entry| act(&mut entry.account))
    }

    /// Nobody who chooses keys can aim it: they go through a keyed hash. The number of a rule nobody chooses.
    #[inline]
    fn hash(&self, rule: usize, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish().wrapping_add((rule as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// By bits that the table inside does not go by.
    #[inline]
    fn drawer(&self, hash: u64) -> MutexGuard<'_, Drawer> {
        let drawer = usize::try_from(hash >> 32).unwrap_or(0) % DRAWERS;
        open(&self.drawers[drawer])
    }

    /// What nobody has asked for since half of its time; accounts that hold nothing are closed.
    pub(crate) fn idle(&self, deals: &[Option<Deal>], now: Micros) -> Vec<Back> {
        self.each(
            |rule, account| deals[rule].map_or_else(Vec::new, |deal| account.idle(deal.ttl / 2, now)),
            |rule, account| deals[rule].is_none_or(|deal| account.is_forgotten(deal.ttl, now)),
        )
    }

    /// Everything.
    pub(crate) fn close(&self) -> Closed {
        let mut asking = Vec::new();
        let give = |_, account: &mut Account| {
            asking.extend(account.is_asking().then(|| account.bell.clone().notified_owned()));
            account.close()
        };
        let back = self.each(give, |_, _| true);
        Closed { back, asking }
    }

    fn each(
        &self,
        mut give: impl FnMut(usize, &mut Account) -> Vec<Lot>,
        mut is_closed: impl FnMut(usize, &Account) -> bool,
    ) -> Vec<Back> {
        let mut back = Vec::new();
        for drawer in &self.drawers {
            open(drawer).retain(|entry| {
                let lots = give(entry.rule, &mut entry.account);
                if !lots.is_empty() {
                    back.push((entry.rule, entry.key.clone(), lots));
                }
                !is_closed(entry.rule, &entry.account)
            });
        }
        back
    }
}

impl Entry {
    #[inline]
    fn is_of(&self, rule: usize, key: &[u8]) -> bool {
        self.rule == rule && *self.key == *key
    }
}

fn open(drawer: &Mutex<Drawer>) -> MutexGuard<'_, Drawer> {
    drawer.lock().unwrap_or_else(PoisonError::into_inner)
}
