//! The token cache of a lease, two threads: one spends while the other empties and refills it.
//!
//! It belongs to a crate that loom cannot build, so its file is included here.

#[allow(dead_code, reason = "the models do not use all of it")]
#[path = "../../../tidegate-redis/src/lease/token_cache.rs"]
mod token_cache;

use loom::sync::Arc;
use token_cache::{CacheContent, TokenCache};

use super::{INTERRUPTIONS, both, model};

const NOW: u64 = 7;

fn filled(tokens: u32, until: u64) -> Arc<TokenCache> {
    let token_cache = TokenCache::new();
    token_cache.fill(CacheContent { tokens, until, ..CacheContent::default() });
    Arc::new(token_cache)
}

/// Empties the cache, and refills it with as many tokens, so that it looks the same.
///
/// Returns what was left.
fn fill_anew(token_cache: &TokenCache, tokens: u32, until: u64) -> u32 {
    let left = token_cache.empty();
    token_cache.fill(CacheContent { tokens, until, ..CacheContent::default() });
    left
}

#[test]
fn two_spenders_take_no_more_than_the_cached_tokens() {
    model(INTERRUPTIONS, || {
        let token_cache = filled(3, 10);
        let (one, other) = both(
            &token_cache,
            |token_cache| token_cache.spend(2, NOW),
            |token_cache| token_cache.spend(2, NOW),
        );
        assert_ne!(one.is_some(), other.is_some(), "one of them finds too few tokens");
        assert_eq!(token_cache.empty(), 1);
    });
}

#[test]
fn spent_tokens_are_not_returned_by_empty() {
    model(INTERRUPTIONS, || {
        let token_cache = filled(5, 10);
        let (spent, left) = both(&token_cache, |token_cache| token_cache.spend(2, NOW), TokenCache::empty);
        assert_eq!(left + if spent.is_some() { 2 } else { 0 }, 5);
        assert_eq!(token_cache.empty(), 0);
    });
}

#[test]
fn tokens_of_one_grant_are_not_spent_by_the_expiry_of_another() {
    for (first, second) in [(10, 5), (5, 10)] {
        model(INTERRUPTIONS, move || {
            let token_cache = filled(5, first);
            let (spent, left) = both(
                &token_cache,
                |token_cache| token_cache.spend(2, NOW),
                move |token_cache| fill_anew(token_cache, 5, second),
            );
            let (of_first, of_second) = (5 - left, 5 - token_cache.empty());
            assert_eq!(of_first + of_second, if spent.is_some() { 2 } else { 0 });
            assert!(first > NOW || of_first == 0, "the first grant was expired");
            assert!(second > NOW || of_second == 0, "the second grant was expired");
        });
    }
}
