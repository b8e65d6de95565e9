//! Accounts, step by step.

use tidegate::Micros;

use super::account::{Account, Deal, Order, Spend};
use super::lot::Grant;

const DEAL: Deal = Deal { stock: 100, most: 32, most_if_scarce: 48, ttl: 6_400, is_window: false };

const fn at(micros: u64) -> Micros {
    Micros::new(micros)
}

fn grant(id: u8, amount: u32, there: u32, wait: u64) -> Grant {
    Grant { id: [id; 16], amount, there, wait, lasts: DEAL.ttl, ends: Micros::ZERO }
}

/// An account that was granted a lot at 1,000, for which it had asked at 900.
fn with_lot(amount: u32, there: u32, wait: u64) -> Account {
    let mut account = Account::new(at(900));
    assert_eq!(account.spend(1, at(900)), Spend::Ask);
    let order = account.order(1, &DEAL, at(900));
    account.granted(grant(1, amount, there, wait), &order, 0, at(1_000));
    account
}

#[test]
fn what_is_there_is_spent_until_it_is_over() {
    let mut account = with_lot(3, 3, 0);
    assert_eq!(account.spend(2, at(1_000)), Spend::Spent { left: 1, ask: false });
    assert_eq!(account.spend(1, at(900 + 6_299)), Spend::Spent { left: 0, ask: false });
    let mut account = with_lot(3, 3, 0);
    assert_eq!(
        account.spend(1, at(900 + 6_300)),
        Spend::Ask,
        "a 64th before the time that runs since it was asked for"
    );
}

#[test]
fn what_ends_by_its_time_is_told_once() {
    let mut account = with_lot(5, 2, 500);
    assert_eq!(account.spend(2, at(1_000)), Spend::Spent { left: 0, ask: false });
    assert_eq!(account.take_expired(), 0);
    assert_eq!(account.spend(1, at(900 + 500 + 6_300)), Spend::Ask);
    assert_eq!((account.take_expired(), account.take_expired()), (3, 0), "those that were to come, too");
    let mut account = with_lot(5, 2, 500);
    assert!(account.close(at(900 + 500 + 6_300)).is_empty(), "what is over does not go back");
    assert_eq!(account.take_expired(), 5);
}

#[test]
fn a_look_takes_nothing() {
    let account = with_lot(5, 2, 500);
    assert_eq!([account.look(2, at(1_499)), account.look(3, at(1_499))], [Some(0), None]);
    assert_eq!([account.look(3, at(1_500)), account.look(6, at(1_500))], [Some(2), None]);
    assert_eq!(account.look(1, at(900 + 500 + 6_300)), None, "it is over");
}

#[test]
fn what_comes_later_is_there_a_wait_after_the_answer_came() {
    let mut account = with_lot(5, 2, 500);
    assert_eq!(account.spend(2, at(1_100)), Spend::Spent { left: 0, ask: false });
    assert_eq!(account.spend(1, at(1_499)), Spend::NotBefore(at(1_500)));
    assert_eq!(account.spend(4, at(1_499)), Spend::Ask, "more than there will be");
    assert_eq!(account.spend(3, at(1_500)), Spend::Spent { left: 0, ask: false });
}

#[test]
fn one_asks_and_the_others_wait() {
    let mut account = Account::new(at(0));
    assert_eq!([account.spend(1, at(0)), account.spend(1, at(0))], [Spend::Ask, Spend::Wait]);
    account.failed();
    assert_eq!(account.spend(1, at(1)), Spend::Ask);
}

#[test]
fn where_nothing_is_granted_nobody_asks_for_a_while() {
    let mut account = Account::new(at(0));
    assert_eq!(account.spend(1, at(0)), Spend::Ask);
    let order = account.order(1, &DEAL, at(0));
    account.granted(grant(1, 0, 0, 700), &order, 0, at(100));
    assert_eq!(account.spend(1, at(799)), Spend::NotBefore(at(800)));
    assert_eq!(account.spend(1, at(800)), Spend::Ask);
}

#[test]
fn lots_grow_with_the_demand_and_shrink_with_it() {
    let mut account = Account::new(at(0));
    let mut wants = |times: &[u64]| -> Vec<u32> {
        times.iter().map(|time| account.order(1, &DEAL, at(*time)).want).collect()
    };
    assert_eq!(
        wants(&[100_000, 100_100, 100_200, 100_300, 100_400, 100_500, 100_600]),
        [1, 2, 4, 8, 16, 32, 32]
    );
    assert_eq!(wants(&[102_000, 110_000, 120_000]), [32, 16, 8], "slow enough, and slower");
    assert_eq!(account.order(20, &DEAL, at(120_100)).want, 20, "what is needed");
    let order = account.order(1, &DEAL, at(120_200));
    account.granted(grant(1, 32, 5, 1_000), &order, 0, at(120_300));
    assert_eq!(account.order(1, &DEAL, at(120_400)).want, 48, "where there is too little, lots are larger");
}

#[test]
fn the_next_lot_is_asked_for_before_the_last_is_spent() {
    let mut account = Account::new(at(0));
    let sizes = [1, 2, 4];
    for (n, size) in (0_u8..).zip(sizes) {
        let now = at(100_000 + u64::from(n));
        assert!(matches!(account.spend(1, now), Spend::Ask));
        let order = account.order(1, &DEAL, now);
        account.granted(grant(n, size, size, 0), &order, 0, now);
        let asks: Vec<Spend> = (0..size).map(|_| account.spend(1, now)).collect();
        let expected = size == 4;
        assert_eq!(
            asks.iter().any(|spend| matches!(spend, Spend::Spent { ask: true, .. })),
            expected,
            "{asks:?}"
        );
        if expected {
            assert!(matches!(asks[2], Spend::Spent { left: 1, ask: true }), "{asks:?}");
        }
    }
}

#[test]
fn what_redis_was_told_is_spent_is_not_put_back() {
    let mut account = with_lot(10, 10, 0);
    assert!(matches!(account.spend(4, at(1_000)), Spend::Spent { left: 6, .. }));
    account.put_back(1, at(1_000));
    assert!(matches!(account.spend(1, at(1_000)), Spend::Spent { left: 6, .. }), "it was there again");
    let Order { older, .. } = account.order(1, &DEAL, at(1_100));
    assert_eq!(older, [([1; 16], 6)]);
    account.put_back(3, at(1_100));
    assert!(matches!(account.spend(6, at(1_100)), Spend::Spent { left: 0, .. }), "and is not now");
}

#[test]
fn what_redis_has_heard_is_forgotten_and_what_it_has_not_is_told_again() {
    let mut account = with_lot(2, 2, 0);
    assert!(matches!(account.spend(2, at(1_000)), Spend::Spent { .. }));
    let lost = account.order(1, &DEAL, at(1_100));
    account.failed();
    let heard = account.order(1, &DEAL, at(1_200));
    assert_eq!((&lost.older[..], &heard.older[..]), (&[([1; 16], 0)][..], &[([1; 16], 0)][..]));
    account.granted(grant(2, 3, 3, 0), &heard, 0, at(1_300));
    assert_eq!(account.order(1, &DEAL, at(1_400)).older, [([2; 16], 3)]);
}

#[test]
fn what_is_idle_is_given_back_whole_and_not_spent_any_more() {
    let mut account = with_lot(5, 2, 500);
    assert!(account.idle(1_000, at(1_200)).is_empty(), "somebody has asked at 900");
    let lots = account.idle(1_000, at(1_900));
    assert_eq!(lots.iter().map(super::lot::Lot::left).collect::<Vec<_>>(), [5]);
    assert!(account.is_forgotten(1_000, at(1_900)));
    assert_eq!(account.spend(1, at(1_900)), Spend::Ask);
    assert!(
        account.idle(1_000, at(9_900)).is_empty() && !account.is_forgotten(1_000, at(9_900)),
        "it is asking"
    );
}
