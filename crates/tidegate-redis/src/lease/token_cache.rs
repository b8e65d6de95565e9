//! # A purse: what is spent without opening a drawer
//!
//! Of the lot that is being spent, what is ready lies in a purse, and whoever wants some takes it with one exchange of one word.
//! Only who has the drawer open fills and empties it. The word says which filling it is, so that nobody takes from one what he
//! has judged by the end of another:
//!
//! ```text
//!   spend:   read word ── read until ── exchange word, if it is still the same
//!                             ▲
//!   drawer:  empty (next filling, 0 tokens) ── write until ── fill
//! ```

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// On a cache line of its own: what stands beside is read by everybody.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct TokenCache {
    /// The number of the filling, and below it 32 bits of tokens. Who sleeps for four milliards of fillings in the middle of an
    /// exchange may take one for another.
    word: AtomicU64,
    until: AtomicU64,
    beside: AtomicU32,
    whole_at: AtomicU64,
    spent_at: AtomicU64,
}

/// What a purse is filled with; instants are in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refilling {
    pub(crate) tokens: u32,
    /// Not to be spent from then on.
    pub(crate) until: u64,
    /// How many more are ready, though not here.
    pub(crate) beside: u32,
    /// When, as far as is known, the whole limit is there again.
    pub(crate) whole_at: u64,
}

impl TokenCache {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        let beside = AtomicU32::new(0);
        TokenCache { word: zero(), until: zero(), beside, whole_at: zero(), spent_at: zero() }
    }

    /// Takes `cost` if it is there, and tells how many are left that are ready, and when the whole limit is there again.
    #[inline]
    pub(crate) fn spend(&self, cost: u32, now: u64) -> Option<(u32, u64)> {
        // An exchange of nothing, and not a load: on a hot key that would fetch the cache line twice, to read and then to write.
        let mut word = self
            .word
            .compare_exchange(0, 0, Ordering::Acquire, Ordering::Acquire)
            .unwrap_or_else(|word| word);
        loop {
            let left = tokens(word).checked_sub(cost)?;
            if now >= self.until.load(Ordering::Acquire) {
                return None;
            }
            let told = (left + self.beside.load(Ordering::Relaxed), self.whole_at.load(Ordering::Relaxed));
            let less = word - u64::from(cost);
            match self.word.compare_exchange_weak(word, less, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.spent_at.store(now, Ordering::Relaxed);
                    return Some(told);
                }
                Err(other) => word = other,
            }
        }
    }

    /// Takes everything out, and tells how much that was. Only with the drawer open.
    pub(crate) fn empty(&self) -> u32 {
        let next = |word: u64| Some((word >> 32).wrapping_add(1) << 32);
        let word = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        word.map_or(0, tokens)
    }

    /// Puts something into an empty purse. Only with the drawer open.
    pub(crate) fn fill(&self, filling: Refilling) {
        self.until.store(filling.until, Ordering::Release);
        self.beside.store(filling.beside, Ordering::Relaxed);
        self.whole_at.store(filling.whole_at, Ordering::Relaxed);
        self.word.fetch_add(filling.tokens.into(), Ordering::Release);
    }

    /// When somebody last took something.
    pub(crate) fn spent_at(&self) -> u64 {
        self.spent_at.load(Ordering::Relaxed)
    }
}

fn tokens(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0)
}
