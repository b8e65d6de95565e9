//! # All accounts, by rule and key
//!
//! In drawers, so that those who ask for different keys seldom meet. Nobody holds a drawer open while Redis is asked.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate::Micros;

use super::account::{Account, Deal};
use super::lot::Lot;

#[derive(Debug)]
pub(crate) struct Accounts {
    drawers: Box<[Mutex<Drawer>]>,
    hasher: RandomState,
    most: usize,
}

/// One map for each rule.
type Drawer = Vec<HashMap<Box<[u8]>, Account>>;

/// What is to be given back, of which key.
pub(crate) type Back = (usize, Box<[u8]>, Vec<Lot>);

/// What is to be given back, and how many tokens ended by their time.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    pub(crate) back: Vec<Back>,
    pub(crate) expired: u64,
}

const DRAWERS: usize = 64;

impl Accounts {
    pub(crate) fn new(rules: usize, most: usize) -> Self {
        let drawer = || Mutex::new((0..rules).map(|_| HashMap::new()).collect());
        Accounts {
            drawers: (0..DRAWERS).map(|_| drawer()).collect(),
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
        let mut drawer = self.drawer(rule, key);
        if let Some(account) = drawer[rule].get_mut(key) {
            return Some(act(account));
        }
        if drawer[rule].len() >= self.most {
            return None;
        }
        Some(act(drawer[rule].entry(key.into()).or_insert_with(|| Account::new(now))))
    }

    /// Does something with an account if there is one.
    pub(crate) fn with_open<T>(
        &self,
        rule: usize,
        key: &[u8],
        act: impl FnOnce(&mut Account) -> T,
    ) -> Option<T> {
        self.drawer(rule, key)[rule].get_mut(key).map(act)
    }

    fn drawer(&self, rule: usize, key: &[u8]) -> MutexGuard<'_, Drawer> {
        let drawer = self.hasher.hash_one((rule, key)) % DRAWERS as u64;
        open(&self.drawers[usize::try_from(drawer).unwrap_or(0)])
    }

    /// What nobody has asked for since half of its time; accounts that hold nothing are closed.
    pub(crate) fn idle(&self, deals: &[Option<Deal>], now: Micros) -> Swept {
        self.each(
            |rule, account| deals[rule].map_or_else(Vec::new, |deal| account.idle(deal.ttl / 2, now)),
            |rule, account| deals[rule].is_none_or(|deal| account.is_forgotten(deal.ttl, now)),
        )
    }

    /// Everything.
    pub(crate) fn close(&self, now: Micros) -> Swept {
        self.each(|_, account| account.close(now), |_, _| true)
    }

    /// Everything of one key, which is forgotten.
    pub(crate) fn close_one(&self, rule: usize, key: &[u8], now: Micros) -> Swept {
        let Some(mut account) = self.drawer(rule, key)[rule].remove(key) else { return Swept::default() };
        let lots = account.close(now);
        Swept { back: vec![(rule, key.into(), lots)], expired: account.take_expired().into() }
    }

    fn each(
        &self,
        mut give: impl FnMut(usize, &mut Account) -> Vec<Lot>,
        mut is_closed: impl FnMut(usize, &Account) -> bool,
    ) -> Swept {
        let mut swept = Swept::default();
        for drawer in &self.drawers {
            for (rule, accounts) in open(drawer).iter_mut().enumerate() {
                accounts.retain(|key, account| {
                    let lots = give(rule, account);
                    swept.expired += u64::from(account.take_expired());
                    if !lots.is_empty() {
                        swept.back.push((rule, key.clone(), lots));
                    }
                    !is_closed(rule, account)
                });
            }
        }
        swept
    }
}

fn open(drawer: &Mutex<Drawer>) -> MutexGuard<'_, Drawer> {
    drawer.lock().unwrap_or_else(PoisonError::into_inner)
}
