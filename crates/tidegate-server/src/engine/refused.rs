//! # The most refused keys
//!
//! Tables keep fingerprints and no texts, so nobody could say whose requests are refused. The few who are refused most
//! are remembered here, by *space saving*: there is room for so many keys, and a key that finds none takes the place
//! of the one that was refused least, with its number. So a number is never too small, and is at most as much too
//! large as is said beside it; who is refused often is in the list, however many others are refused now and then.
//!
//! Each thread has a list of its own. It is only ever locked for somebody who reads, and whoever would have to wait
//! for that does not count instead. Nothing is allocated once the list is full: a key has so many bytes, and what is
//! beyond them is cut.

use std::hash::BuildHasher;
use std::hash::RandomState;
use std::sync::{Arc, Mutex, PoisonError};

use super::tally::{SHARDS, Tally, shard};

/// Who was refused, by thread.
#[derive(Debug)]
pub(crate) struct RefusedKeys {
    hashing: RandomState,
    shards: [Mutex<Vec<Entry>>; SHARDS],
}

/// A key that was refused often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedKey {
    /// The name of the rule.
    pub rule: String,
    /// The key, as [`InForce::key`](super::InForce::key) makes it, or its beginning.
    pub key: Box<[u8]>,
    /// Whether that is all of it.
    pub is_whole: bool,
    /// How often it was refused, at most.
    pub refused: u64,
    /// How much too large that may be.
    pub too_many: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    hash: u64,
    rule: Arc<Tally>,
    refused: u64,
    too_many: u64,
    key: [u8; LONGEST],
    length: usize,
}

/// So many keys are remembered by each thread.
const ROOM: usize = 64;
/// So many bytes of a key.
const LONGEST: usize = 128;

impl Default for RefusedKeys {
    fn default() -> Self {
        RefusedKeys { hashing: RandomState::new(), shards: Default::default() }
    }
}

impl RefusedKeys {
    /// Counts a refusal, unless somebody is just reading.
    pub(super) fn saw(&self, rule: &Arc<Tally>, key: &[u8]) {
        let hash = self.hashing.hash_one((&*rule.name, key));
        let Ok(mut entries) = self.shards[shard()].try_lock() else { return };
        if let Some(entry) = entries.iter_mut().find(|entry| entry.hash == hash) {
            entry.refused += 1;
        } else if entries.len() < ROOM {
            entries.push(Entry::new(hash, rule, key, 0));
        } else if let Some(least) = entries.iter_mut().min_by_key(|entry| entry.refused) {
            *least = Entry::new(hash, rule, key, least.refused);
        }
    }

    /// The most refused first, no more than so many.
    pub(crate) fn most(&self, most: usize) -> Vec<RefusedKey> {
        let mut all: Vec<Entry> = Vec::new();
        for shard in &self.shards {
            for entry in shard.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                match all.iter_mut().find(|other| other.hash == entry.hash) {
                    Some(other) => {
                        other.refused += entry.refused;
                        other.too_many += entry.too_many;
                    }
                    None => all.push(entry.clone()),
                }
            }
        }
        all.sort_by_key(|entry| std::cmp::Reverse(entry.refused));
        all.iter().take(most).map(Entry::told).collect()
    }
}

impl Entry {
    fn new(hash: u64, rule: &Arc<Tally>, key: &[u8], before: u64) -> Self {
        let mut kept = [0; LONGEST];
        let length = key.len().min(LONGEST);
        kept[..length].copy_from_slice(&key[..length]);
        let length = key.len();
        Entry { hash, rule: rule.clone(), refused: before + 1, too_many: before, key: kept, length }
    }

    fn told(&self) -> RefusedKey {
        RefusedKey {
            rule: self.rule.name.to_string(),
            key: self.key[..self.length.min(LONGEST)].into(),
            is_whole: self.length <= LONGEST,
            refused: self.refused,
            too_many: self.too_many,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_often_is_found_among_many() {
        let (keys, rule) = (RefusedKeys::default(), Arc::new(Tally::new("user", 1)));
        for number in 0..10_000_u32 {
            keys.saw(&rule, &number.to_be_bytes());
            if number % 10 == 0 {
                keys.saw(&rule, b"mallory");
            }
        }
        let most = keys.most(3);
        let mallory = &most[0];
        assert_eq!((&*mallory.key, most.len()), (b"mallory".as_slice(), 3));
        assert!(mallory.refused >= 1_000 && mallory.refused - mallory.too_many <= 1_000, "{mallory:?}");
        assert!(keys.most(usize::MAX).len() <= ROOM);
    }

    #[test]
    fn a_key_that_is_too_long_is_cut_and_no_other() {
        let (keys, rule) = (RefusedKeys::default(), Arc::new(Tally::new("user", 1)));
        let (one, other) = ([7; LONGEST + 1], [7; LONGEST]);
        keys.saw(&rule, &one);
        keys.saw(&rule, &other);
        keys.saw(&rule, &other);
        let told: Vec<_> = keys.most(9).into_iter().map(|key| (key.is_whole, key.refused)).collect();
        assert_eq!(told, [(true, 2), (false, 1)]);
    }
}
