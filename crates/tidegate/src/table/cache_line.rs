//! # Cache line: four keys in 64 bytes
//!
//! ```text
//!   │ fingerprint │ fingerprint │ fingerprint │ fingerprint │ word │ word │ word │ word │   64 bytes
//! ```
//!
//! One cache miss loads everything a decision needs. The four fingerprints are compared without a branch, because
//! the matching slot cannot be predicted.

use crate::lock_bit::{LOCKED, try_lock_bit, unlock_bit};
use crate::sync::{AtomicU64, Ordering};

/// The number of keys in one line.
pub(crate) const SLOTS: usize = 4;
/// The fingerprint of an empty slot.
pub(crate) const EMPTY: u64 = 0;

/// The number of words in one line.
pub(crate) const WORDS: usize = 2 * SLOTS;

#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct CacheLine([AtomicU64; WORDS]);

impl CacheLine {
    pub(crate) fn new() -> Self {
        CacheLine(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Returns all words of a line that stores states instead of keys.
    pub(crate) fn words(&self) -> &[AtomicU64; WORDS] {
        &self.0
    }

    /// Returns the slot of `fingerprint`, if this line contains it.
    #[inline(always)]
    pub(crate) fn find(&self, fingerprint: u64) -> Option<usize> {
        let mut matches = 0u32;
        for (slot, found) in self.0[..SLOTS].iter().enumerate() {
            matches |= u32::from(found.load(Ordering::Acquire) == fingerprint) << slot;
        }
        (matches != 0).then(|| matches.trailing_zeros() as usize)
    }

    #[inline]
    pub(crate) fn fingerprint(&self, slot: usize) -> u64 {
        self.0[slot % SLOTS].load(Ordering::Acquire)
    }

    /// Changes the owner of `slot`. Requires the segment's lock and the lock bit of the word.
    pub(crate) fn set_fingerprint(&self, slot: usize, fingerprint: u64) {
        self.0[slot % SLOTS].store(fingerprint, Ordering::Release);
    }

    #[inline]
    pub(crate) fn word(&self, slot: usize) -> &AtomicU64 {
        &self.0[SLOTS + slot % SLOTS]
    }

    /// Locks the word of `slot` and returns its previous value.
    ///
    /// Returns `None` if the word is already locked, or if the slot no longer belongs to `fingerprint`.
    ///
    /// Does not wait: the words of a table that was migrated stay locked for ever, so the caller must check whether its
    /// version is still current.
    #[inline]
    pub(crate) fn try_lock_bit(&self, slot: usize, fingerprint: u64) -> Option<u64> {
        let word = self.word(slot);
        let found = word.load(Ordering::Relaxed);
        if found & LOCKED != 0 || !try_lock_bit(word, found) {
            return None;
        }
        if self.fingerprint(slot) == fingerprint {
            return Some(found);
        }
        unlock_bit(word, found);
        None
    }
}
