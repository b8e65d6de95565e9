//! The purse of a lease, which belongs to a crate that loom cannot build: somebody spends while it is emptied and filled anew.

#[allow(dead_code, reason = "not all of it is looked at here")]
#[path = "../../../tidegate-redis/src/lease/purse.rs"]
mod purse;

use loom::sync::Arc;
use purse::{Filling, Purse};

use super::{INTERRUPTIONS, both, model};

const NOW: u64 = 7;

fn filled(tokens: u32, until: u64) -> Arc<Purse> {
    let purse = Purse::new();
    purse.fill(Filling { tokens, until, ..Filling::default() });
    Arc::new(purse)
}

/// Empties it, and fills it with as many others, so that it looks the same; tells what there was.
fn fill_anew(purse: &Purse, tokens: u32, until: u64) -> u32 {
    let left = purse.empty();
    purse.fill(Filling { tokens, until, ..Filling::default() });
    left
}

#[test]
fn two_who_spend_take_no_more_than_there_is() {
    model(INTERRUPTIONS, || {
        let purse = filled(3, 10);
        let (one, other) = both(&purse, |purse| purse.spend(2, NOW), |purse| purse.spend(2, NOW));
        assert_ne!(one.is_some(), other.is_some(), "one of them finds too little");
        assert_eq!(purse.empty(), 1);
    });
}

#[test]
fn what_is_spent_is_not_found_when_it_is_emptied() {
    model(INTERRUPTIONS, || {
        let purse = filled(5, 10);
        let (spent, left) = both(&purse, |purse| purse.spend(2, NOW), Purse::empty);
        assert_eq!(left + if spent.is_some() { 2 } else { 0 }, 5);
        assert_eq!(purse.empty(), 0);
    });
}

#[test]
fn nobody_spends_from_one_filling_by_the_end_of_another() {
    for (first, second) in [(10, 5), (5, 10)] {
        model(INTERRUPTIONS, move || {
            let purse = filled(5, first);
            let (spent, left) =
                both(&purse, |purse| purse.spend(2, NOW), move |purse| fill_anew(purse, 5, second));
            let (of_first, of_second) = (5 - left, 5 - purse.empty());
            assert_eq!(of_first + of_second, if spent.is_some() { 2 } else { 0 });
            assert!(first > NOW || of_first == 0, "the first was over");
            assert!(second > NOW || of_second == 0, "the second was");
        });
    }
}
