//! # A line: four keys in one cache line
//!
//! ```text
//!   │ fingerprint │ fingerprint │ fingerprint │ fingerprint │ word │ word │ word │ word │   64 bytes
//! ```
//!
//! One miss brings in everything a decision needs. The four fingerprints are compared without a branch, since
//! which of them matches cannot be predicted.

use crate::lock_bit::{LOCKED, try_lock_bit, unlock_bit};
use crate::sync::{AtomicU64, Ordering};

/// How many keys share a line.
pub(crate) const SLOTS: usize = 4;
/// The fingerprint of a place where no key lives.
pub(crate) const EMPTY: u64 = 0;

/// How many words make a line.
pub(crate) const WORDS: usize = 2 * SLOTS;

#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct CacheLine([AtomicU64; WORDS]);

impl CacheLine {
    pub(crate) fn new() -> Self {
        CacheLine(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// All of it, for a line that holds states instead of keys.
    pub(crate) fn words(&self) -> &[AtomicU64; WORDS] {
        &self.0
    }

    /// The slot where `fingerprint` lives, if it lives in this line.
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

    /// Changes who lives in `slot`. Only under the segment's lock and while the word is held.
    pub(crate) fn set_fingerprint(&self, slot: usize, fingerprint: u64) {
        self.0[slot % SLOTS].store(fingerprint, Ordering::Release);
    }

    #[inline]
    pub(crate) fn word(&self, slot: usize) -> &AtomicU64 {
        &self.0[SLOTS + slot % SLOTS]
    }

    /// Holds the word of `slot` and tells what it was; `None` if somebody else holds it, or the slot has another owner
    /// than `fingerprint` by now.
    ///
    /// Does not wait: the words of a table that was handed over stay held for ever, and callers must look at the setting.
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
