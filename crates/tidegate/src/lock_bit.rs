//! # Lock bit of a word
//!
//! A word of state is shared by all threads. Reading it needs no lock. Changing it goes through its topmost bit, which
//! the algorithms leave clear. The thread that sets this bit has locked the word: no other thread changes the word, or
//! the data that belongs to it, until the holder stores the word without the bit.
//!
//! ```text
//!    load ──► decide on the copy ──► set the bit ──► still what was read? ──► store the new word
//!      ▲                                 │ failed              │ no
//!      └───────── retry later ───────────┴─────────────────────┘
//! ```
//!
//! Where the word is the whole state, the decision is made before the word is locked. So it is locked for a few
//! instructions only, and a refusal never locks it. While the word is locked, the holder can check what a plain
//! compare-and-swap cannot: that the word still belongs to the key, or to the version, for which it was read.
//!
//! That check is needed because an equal word is no proof (the ABA problem): between the load and the swap the key may
//! have been evicted, and its slot given to another key with an equal word, which would then be charged instead. Owners
//! change only while the word is locked, so the check under the lock is final. A refusal writes nothing and takes no
//! lock; it checks a version number that changes with the owners.

use crate::sync::{AtomicU64, FIRST_SPINS, Ordering, spin, yield_now};

/// The bit that marks a word as locked.
pub(crate) const LOCKED: u64 = 1 << 63;

/// Locks `word` if it still equals `expected`.
#[inline]
pub(crate) fn try_lock_bit(word: &AtomicU64, expected: u64) -> bool {
    word.compare_exchange(expected, expected | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Unlocks a word and stores its new value.
#[inline]
pub(crate) fn unlock_bit(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Release);
}

/// Locks `word`, waiting as long as necessary, and returns its previous value.
pub(crate) fn lock_bit(word: &AtomicU64) -> u64 {
    let mut backoff = Backoff::new();
    loop {
        let found = word.load(Ordering::Relaxed);
        if found & LOCKED == 0 && try_lock_bit(word, found) {
            return found;
        }
        backoff.wait();
    }
}

/// Waits a little longer each time: a few spins, then the rest of the time slice.
///
/// Spinning alone is not enough, because the holder of the word may have been preempted.
#[derive(Debug)]
pub(crate) struct Backoff {
    spins: u32,
}

impl Backoff {
    #[inline]
    pub(crate) fn new() -> Self {
        Backoff { spins: FIRST_SPINS }
    }

    #[inline]
    pub(crate) fn wait(&mut self) {
        if self.spins > 128 {
            return yield_now();
        }
        for _ in 0..self.spins {
            spin();
        }
        self.spins *= 2;
    }
}
