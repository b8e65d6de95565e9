//! # Holding a word
//!
//! A word of state is shared by all threads. Reading it needs no leave; changing it goes through its topmost
//! bit, which the algorithms leave clear. Whoever sets that bit holds the word, and nobody else changes it,
//! or what belongs to it, until the holder stores the word without it.
//!
//! ```text
//!    load ──► decide on the copy ──► set the bit ──► still what I read? ──► store the new word
//!      ▲                                 │ lost                │ no
//!      └───────── a moment later ────────┴─────────────────────┘
//! ```
//!
//! Where the word is the whole state, a decision is made before it is held, so it is held for a few instructions only, and a
//! refusal never holds it. Under the hold the holder can check what a plain compare-and-swap cannot: that the
//! word still belongs to the key, or to the setting, that it was read for.

use crate::sync::{AtomicU64, FIRST_SPINS, Ordering, spin, yield_now};

/// The bit that marks a word as held.
pub(crate) const LOCKED: u64 = 1 << 63;

/// Holds `word` if it is still `expected`.
#[inline]
pub(crate) fn try_lock_bit(word: &AtomicU64, expected: u64) -> bool {
    word.compare_exchange(expected, expected | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Lets go of a word and gives it its new value.
#[inline]
pub(crate) fn unlock_bit(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Release);
}

/// Holds `word` however long it takes, and tells what it was.
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

/// Waits a little longer each time: a few spins at first, and soon the rest of the time slice, since whoever holds the word
/// may have been interrupted.
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
