//! The purse of a lease, which belongs to a crate that loom cannot build: somebody spends while it is emptied and filled anew.

#[allow(dead_code, reason = "not all of it is looked at here")]
#[path = "../../../tidegate-redis/src/lease/token_cache.rs"]
mod token_cache;

use loom::sync::Arc;
use token_cache::{Refilling, TokenCache};

use super::{INTERRUPTIONS, both, model};

const NOW: u64 = 7;

fn filled(tokens: u32, until: u64) -> Arc<TokenCache> {
    let token_cache = TokenCache::new();
    token_cache.fill(Refilling { tokens, until, ..Refilling::default() });
    Arc::new(token_cache)
}

/// Empties it, and fills it with as many others, so that it looks the same; tells what there was.
fn fill_anew(token_cache: &TokenCache, tokens: u32, until: u64) -> u32 {
    let left = token_cache.empty();
    token_cache.fill(Refilling { tokens, until, ..Refilling::default() });
    left
}

#[test]
fn two_who_spend_take_no_more_than_there_is() {
    model(INTERRUPTIONS, || {
        let token_cache = filled(3, 10);
        let (one, other) = both(
            &token_cache,
            |token_cache| token_cache.spend(2, NOW),
            |token_cache| token_cache.spend(2, NOW),
        );
        assert_ne!(one.is_some(), other.is_some(), "one of them finds too little");
        assert_eq!(token_cache.empty(), 1);
    });
}

#[test]
fn what_is_spent_is_not_found_when_it_is_emptied() {
    model(INTERRUPTIONS, || {
        let token_cache = filled(5, 10);
        let (spent, left) = both(&token_cache, |token_cache| token_cache.spend(2, NOW), TokenCache::empty);
        assert_eq!(left + if spent.is_some() { 2 } else { 0 }, 5);
        assert_eq!(token_cache.empty(), 0);
    });
}

#[test]
fn nobody_spends_from_one_filling_by_the_end_of_another() {
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
            assert!(first > NOW || of_first == 0, "the first was over");
            assert!(second > NOW || of_second == 0, "the second was");
        });
    }
}
