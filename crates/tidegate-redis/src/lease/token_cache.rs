//! # Token cache: tokens that are spent without a lock
//!
//! The tokens of the current grant that are ready to be spent are in a token cache, and a request takes them with one
//! compare-and-swap of one word. Only a thread that holds the shard's lock fills and empties the cache. The word
//! contains a generation, so that no thread takes tokens of one generation after checking the expiry of another:
//!
//! ```text
//!   spend:   read word ── read until ── exchange word, if it is still the same
//!                             ▲
//!   shard:   empty (next generation, 0 tokens) ── write until ── fill
//! ```
//!
//! Several grants, a request in flight and a few instants must change together, so an account is behind
//! the shard's lock. On a hot key two threads that contended for that lock decided no faster than one. But nearly every
//! decision only takes one token of one grant, and that needs one word. A thread that takes the shard's lock first
//! takes the tokens out of the cache and puts them back at the end, so everything else stays as simple as a
//! lock makes it. The cache contains only what can be spent before the next grant has to be requested; a
//! thread that finds it empty takes the shard's lock and does what is due.
//!
//! Without the generation, a thread that has read the expiry of one grant could take a token of
//! the next, which expires sooner. The loom model (`src/loom/token_cache.rs` of `tidegate`) finds that. Together
//! with the thread-local cache and the striped counters, one cache line moves between processors on a hot key,
//! and not five.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The token cache of one account.
///
/// It has a cache line of its own, because all threads read what is next to it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct TokenCache {
    /// The generation in the upper 32 bits, and the tokens in the lower 32 bits.
    ///
    /// The generation wraps around: a thread that is suspended for 2³² generations in the middle of an exchange may take
    /// one for another.
    word: AtomicU64,
    until: AtomicU64,
    uncached: AtomicU32,
    full_at: AtomicU64,
    spent_at: AtomicU64,
}

/// The content of a filled cache; instants are in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheContent {
    pub(crate) tokens: u32,
    /// When the tokens expire: they may not be spent from then on.
    pub(crate) until: u64,
    /// How many more tokens can be spent, but are not in the cache.
    pub(crate) uncached: u32,
    /// When, as far as is known, the whole limit is available again.
    pub(crate) full_at: u64,
}

impl TokenCache {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        let uncached = AtomicU32::new(0);
        TokenCache { word: zero(), until: zero(), uncached, full_at: zero(), spent_at: zero() }
    }

    /// Takes `cost` tokens if there are enough and they have not expired.
    ///
    /// Returns how many ready tokens are left, and when the whole limit is available again.
    #[inline]
    pub(crate) fn spend(&self, cost: u32, now: u64) -> Option<(u32, u64)> {
        // A no-op exchange instead of a load: on a hot key a load would fetch the cache line twice, to read and then to
        // write.
        let mut word = self
            .word
            .compare_exchange(0, 0, Ordering::Acquire, Ordering::Acquire)
            .unwrap_or_else(|word| word);
        loop {
            let left = tokens(word).checked_sub(cost)?;
            if now >= self.until.load(Ordering::Acquire) {
                return None;
            }
            let result = (left + self.uncached.load(Ordering::Relaxed), self.full_at.load(Ordering::Relaxed));
            let rest = word - u64::from(cost);
            match self.word.compare_exchange_weak(word, rest, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.spent_at.store(now, Ordering::Relaxed);
                    return Some(result);
                }
                Err(other) => word = other,
            }
        }
    }

    /// Takes all tokens out, and returns how many. Requires the shard's lock.
    pub(crate) fn empty(&self) -> u32 {
        let next = |word: u64| Some((word >> 32).wrapping_add(1) << 32);
        let word = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        word.map_or(0, tokens)
    }

    /// Fills an empty cache. Requires the shard's lock.
    pub(crate) fn fill(&self, content: CacheContent) {
        self.until.store(content.until, Ordering::Release);
        self.uncached.store(content.uncached, Ordering::Relaxed);
        self.full_at.store(content.full_at, Ordering::Relaxed);
        self.word.fetch_add(content.tokens.into(), Ordering::Release);
    }

    /// Returns when tokens were last taken.
    pub(crate) fn spent_at(&self) -> u64 {
        self.spent_at.load(Ordering::Relaxed)
    }
}

fn tokens(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0)
}
