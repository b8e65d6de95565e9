//! # Keys that an administrator has blocked
//!
//! A block holds for one key of one rule, for a time. It is looked at by every request, and almost always there is
//! none: so the first look is at one number, and only if it is not zero are the blocks looked at, in a list that
//! nobody ever changes. Whoever blocks a key puts another list in its place.
//!
//! Blocks belong to this process. They stay when the rules are read again, by the name of the rule.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate::clock::Micros;

/// Which keys are blocked, until when.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    count: AtomicUsize,
    rules: ArcSwap<ByRule>,
    /// One at a time.
    changing: Mutex<()>,
}

type ByRule = HashMap<Box<str>, HashMap<Box<[u8]>, Micros>>;

/// A key that is blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The name of the rule.
    pub rule: String,
    /// The key, as [`InForce::key`](super::InForce::key) makes it.
    pub key: Box<[u8]>,
    /// For how long still.
    pub left: Duration,
}

/// There are as many blocks as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyBlocks;

/// So many keys can be blocked at a time.
pub(crate) const MOST_BLOCKS: usize = 10_000;

impl Blocks {
    /// Whether no key is.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// For how long a key is still blocked.
    pub(crate) fn left(&self, rule: &str, key: &[u8], now: impl FnOnce() -> Micros) -> Option<Duration> {
        let until = *self.rules.load().get(rule)?.get(key)?;
        left(until, now())
    }

    /// Blocks a key until then, also if it was blocked before.
    pub(crate) fn block(
        &self,
        rule: &str,
        key: &[u8],
        until: Micros,
        now: Micros,
    ) -> Result<(), TooManyBlocks> {
        self.change(now, |rules| {
            let is_known = rules.get(rule).is_some_and(|keys| keys.contains_key(key));
            if !is_known && count(rules) >= MOST_BLOCKS {
                return Err(TooManyBlocks);
            }
            rules.entry(rule.into()).or_default().insert(key.into(), until);
            Ok(())
        })
    }

    /// Whether it was blocked.
    pub(crate) fn unblock(&self, rule: &str, key: &[u8], now: Micros) -> bool {
        self.change(now, |rules| rules.get_mut(rule).is_some_and(|keys| keys.remove(key).is_some()))
    }

    /// Forgets those whose time is over.
    pub(crate) fn forget_overdue(&self, now: Micros) {
        if !self.is_empty() {
            self.change(now, |_| ());
        }
    }

    pub(crate) fn all(&self, now: Micros) -> Vec<Block> {
        let rules = self.rules.load();
        let blocks = rules.iter().flat_map(|(rule, keys)| {
            keys.iter().filter_map(move |(key, until)| {
                Some(Block { rule: rule.to_string(), key: key.clone(), left: left(*until, now)? })
            })
        });
        let mut blocks: Vec<_> = blocks.collect();
        blocks.sort_by(|one, other| (&one.rule, &one.key).cmp(&(&other.rule, &other.key)));
        blocks
    }

    fn change<R>(&self, now: Micros, change: impl FnOnce(&mut ByRule) -> R) -> R {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rules = ByRule::clone(&self.rules.load());
        for keys in rules.values_mut() {
            keys.retain(|_, until| left(*until, now).is_some());
        }
        let changed = change(&mut rules);
        rules.retain(|_, keys| !keys.is_empty());
        self.count.store(count(&rules), Ordering::Relaxed);
        self.rules.store(rules.into());
        changed
    }
}

fn left(until: Micros, now: Micros) -> Option<Duration> {
    let left = until.since(now);
    (left > 0).then(|| Duration::from_micros(left))
}

fn count(rules: &ByRule) -> usize {
    rules.values().map(HashMap::len).sum()
}

impl fmt::Display for TooManyBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MOST_BLOCKS} keys are blocked, and no more can be; unblock one, or deny them in the file")
    }
}

impl std::error::Error for TooManyBlocks {}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Micros = Micros::new(1_000_000);

    #[test]
    fn a_block_ends_with_its_time() {
        let blocks = Blocks::default();
        assert_eq!(blocks.left("user", b"alice", || NOON), None);
        blocks.block("user", b"alice", NOON.plus(10), NOON).expect("room");
        assert_eq!(blocks.left("user", b"alice", || NOON.plus(9)), Some(Duration::from_micros(1)));
        assert_eq!(blocks.left("user", b"alice", || NOON.plus(10)), None);
        assert_eq!(blocks.left("ip", b"alice", || NOON), None);
        blocks.forget_overdue(NOON.plus(10));
        assert!(blocks.is_empty());
    }

    #[test]
    fn there_are_only_so_many() {
        let blocks = Blocks::default();
        let many: HashMap<Box<[u8]>, Micros> =
            (0..MOST_BLOCKS).map(|number| (number.to_string().as_bytes().into(), NOON.plus(5))).collect();
        blocks.change(NOON, |rules| rules.insert("user".into(), many));
        assert_eq!(blocks.block("user", b"alice", NOON.plus(9), NOON), Err(TooManyBlocks));
        assert_eq!(blocks.block("user", b"7", NOON.plus(9), NOON), Ok(()), "it is blocked already");
        assert!(blocks.unblock("user", b"8", NOON) && !blocks.unblock("user", b"8", NOON));
        assert_eq!(blocks.block("user", b"alice", NOON.plus(9), NOON), Ok(()));
        assert_eq!(blocks.all(NOON.plus(5)).len(), 2, "the time of the others is over");
        assert_eq!(blocks.block("ip", b"bob", NOON.plus(9), NOON.plus(5)), Ok(()), "so there is room");
    }
}
