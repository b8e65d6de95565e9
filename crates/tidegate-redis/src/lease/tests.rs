//! Tests of the state transitions of accounts.

use tidegate::clock::Micros;

use super::account::{Account, GrantRequest, LeaseTerms, Spend};
use super::grant::GrantReply;

const TERMS: LeaseTerms =
    LeaseTerms { stock: 100, max_grant: 32, max_fast_grant: 48, ttl: 6_400, is_window: false };

const fn at(micros: u64) -> Micros {
    Micros::new(micros)
}

fn grant(id: u8, amount: u32) -> GrantReply {
    GrantReply { id: [id; 16], amount, ttl: TERMS.ttl, ..GrantReply::default() }
}

fn reserve(id: u8, reserved: u32, wait: u64) -> GrantReply {
    GrantReply { reserved, wait, ..grant(id, 0) }
}

/// Returns an account that sent a request at 900 and got the reply at 1,000.
fn with(grant: GrantReply) -> Account {
    let mut account = Account::new(at(900));
    assert_eq!(account.spend(1, at(900)), Spend::Fetch);
    let request = account.request(1, &TERMS, at(900));
    account.granted(grant, &request, 0, at(1_000));
    account
}

#[test]
fn granted_tokens_are_spent_until_they_expire() {
    let mut account = with(grant(1, 3));
    assert_eq!(account.spend(2, at(1_000)), Spend::Spent { left: 1, fetch: false });
    assert_eq!(account.spend(1, at(900 + 6_299)), Spend::Spent { left: 0, fetch: false });
    let mut account = with(grant(1, 3));
    assert_eq!(account.spend(1, at(900 + 6_300)), Spend::Fetch, "a 64th early, counted from the request");
}

#[test]
fn expired_tokens_are_counted_once() {
    let mut account = with(grant(1, 5));
    assert_eq!(account.spend(2, at(1_000)), Spend::Spent { left: 3, fetch: false });
    assert_eq!(account.take_expired(), 0);
    assert_eq!(account.spend(1, at(900 + 6_300)), Spend::Fetch);
    assert_eq!((account.take_expired(), account.take_expired()), (3, 0));
    let mut account = with(grant(1, 5));
    assert!(account.close(at(900 + 6_300)).is_empty(), "expired tokens are not returned");
    assert_eq!(account.take_expired(), 5);
}

#[test]
fn a_peek_takes_nothing() {
    let account = with(grant(1, 5));
    assert_eq!([account.peek(2, at(1_000)), account.peek(6, at(1_000))], [Some(3), None]);
    assert_eq!(account.peek(1, at(900 + 6_300)), None, "expired");
}

#[test]
fn reserved_tokens_are_claimed_before_they_are_spent() {
    let mut account = with(reserve(1, 5, 500));
    assert_eq!(account.peek(1, at(2_000)), None);
    assert_eq!(account.spend(1, at(1_499)), Spend::NotBefore(at(1_500)), "counted from the reply");
    assert_eq!(account.spend(1, at(1_500)), Spend::Fetch, "the wait is over, but Redis has to confirm");
    let request = account.request(1, &TERMS, at(1_500));
    assert_eq!(request.claim.map(|claim| (claim.id, claim.amount)), Some(([1; 16], 5)));
    assert_eq!(account.spend(1, at(1_500)), Spend::Wait);
    account.granted(GrantReply { claimed: 4, ..reserve(2, 6, 700) }, &request, 0, at(1_600));
    assert_eq!(account.spend(4, at(1_600)), Spend::Spent { left: 0, fetch: false });
    assert_eq!(
        account.spend(1, at(1_600)),
        Spend::NotBefore(at(2_300)),
        "the next tokens are reserved already"
    );
}

#[test]
fn a_claim_without_a_reply_grants_nothing() {
    let mut account = with(reserve(1, 5, 500));
    assert_eq!(account.spend(1, at(1_500)), Spend::Fetch);
    let request = account.request(1, &TERMS, at(1_500));
    assert!(request.claim.is_some());
    account.failed();
    assert_eq!(account.spend(1, at(1_600)), Spend::Fetch);
    assert_eq!(account.request(1, &TERMS, at(1_600)).claim, None, "a reservation is not claimed twice");
}

#[test]
fn one_caller_requests_a_grant_and_the_others_wait() {
    let mut account = Account::new(at(0));
    assert_eq!([account.spend(1, at(0)), account.spend(1, at(0))], [Spend::Fetch, Spend::Wait]);
    account.failed();
    assert_eq!(account.spend(1, at(1)), Spend::Fetch);
}

#[test]
fn after_an_empty_grant_requests_pause_for_the_reported_wait() {
    let mut account = Account::new(at(0));
    assert_eq!(account.spend(1, at(0)), Spend::Fetch);
    let request = account.request(1, &TERMS, at(0));
    account.granted(GrantReply { wait: 700, ..grant(1, 0) }, &request, 0, at(100));
    assert_eq!(account.spend(1, at(799)), Spend::NotBefore(at(800)));
    assert_eq!(account.spend(1, at(800)), Spend::Fetch);
}

#[test]
fn while_other_nodes_hold_the_whole_stock_redis_decides() {
    let mut account = Account::new(at(0));
    assert_eq!(account.spend(1, at(0)), Spend::Fetch);
    let request = account.request(1, &TERMS, at(0));
    account.granted(GrantReply { wait: 200, is_out_of_stock: true, ..grant(1, 0) }, &request, 0, at(100));
    assert_eq!(account.spend(1, at(299)), Spend::Strict);
    assert_eq!(account.spend(1, at(300)), Spend::Fetch);
}

#[test]
fn grants_grow_and_shrink_with_the_demand() {
    let mut account = Account::new(at(0));
    let mut wants = |times: &[u64]| -> Vec<u32> {
        times.iter().map(|time| account.request(1, &TERMS, at(*time)).want).collect()
    };
    assert_eq!(
        wants(&[100_000, 100_100, 100_200, 100_300, 100_400, 100_500, 100_600]),
        [1, 2, 4, 8, 16, 32, 32]
    );
    assert_eq!(wants(&[102_000, 110_000, 120_000]), [32, 16, 8], "slow enough, and slower");
    assert_eq!(account.request(20, &TERMS, at(120_100)).want, 20, "what is needed");
}

#[test]
fn a_grant_spent_quickly_makes_the_next_lease_shorter() {
    let claims = |empty_at: u64| {
        let mut account = with(reserve(1, 32, 500));
        let request = account.request(1, &TERMS, at(2_500));
        account.granted(GrantReply { claimed: 32, ..reserve(2, 32, 1_000) }, &request, 0, at(2_500));
        assert!(matches!(account.spend(32, at(empty_at)), Spend::Spent { left: 0, .. }));
        assert!(matches!(account.spend(1, at(empty_at)), Spend::NotBefore(_)));
        let request = account.request(40, &TERMS, at(3_500));
        (request.want, request.ttl)
    };
    assert_eq!(claims(3_001), (40, TERMS.ttl), "the grant lasted for more than half of the time");
    assert_eq!(claims(2_999), (40, 666), "and here for less");
}

#[test]
fn the_next_grant_is_requested_before_the_last_one_is_spent() {
    let mut account = Account::new(at(0));
    let sizes = [1, 2, 4];
    for (n, size) in (0_u8..).zip(sizes) {
        let now = at(100_000 + u64::from(n));
        assert!(matches!(account.spend(1, now), Spend::Fetch));
        let request = account.request(1, &TERMS, now);
        account.granted(grant(n, size), &request, 0, now);
        let spends: Vec<Spend> = (0..size).map(|_| account.spend(1, now)).collect();
        let expected = size == 4;
        assert_eq!(
            spends.iter().any(|spend| matches!(spend, Spend::Spent { fetch: true, .. })),
            expected,
            "{spends:?}"
        );
        if expected {
            assert!(matches!(spends[2], Spend::Spent { left: 1, fetch: true }), "{spends:?}");
        }
    }
}

#[test]
fn tokens_that_were_reported_spent_are_not_put_back() {
    let mut account = with(grant(1, 10));
    assert!(matches!(account.spend(4, at(1_000)), Spend::Spent { left: 6, .. }));
    account.put_back(1, at(1_000));
    assert!(matches!(account.spend(1, at(1_000)), Spend::Spent { left: 6, .. }), "the token was put back");
    let GrantRequest { older, .. } = account.request(1, &TERMS, at(1_100));
    assert_eq!(older, [([1; 16], 6)]);
    account.put_back(3, at(1_100));
    assert!(
        matches!(account.spend(6, at(1_100)), Spend::Spent { left: 0, .. }),
        "reported tokens are not put back"
    );
}

#[test]
fn a_spent_grant_is_reported_until_redis_has_replied() {
    let mut account = with(grant(1, 2));
    assert!(matches!(account.spend(2, at(1_000)), Spend::Spent { .. }));
    let unanswered = account.request(1, &TERMS, at(1_100));
    account.failed();
    let answered = account.request(1, &TERMS, at(1_200));
    assert_eq!((&unanswered.older[..], &answered.older[..]), (&[([1; 16], 0)][..], &[([1; 16], 0)][..]));
    account.granted(grant(2, 3), &answered, 0, at(1_300));
    assert_eq!(account.request(1, &TERMS, at(1_400)).older, [([2; 16], 3)]);
}

#[test]
fn idle_tokens_and_reservations_are_returned() {
    let mut account = with(GrantReply { amount: 5, ..reserve(1, 7, 500) });
    assert!(account.take_idle(1_000, at(1_200)).is_empty(), "a request came at 900");
    let unspent = account.take_idle(1_000, at(1_900));
    assert_eq!(unspent.grants.iter().map(super::grant::Grant::left).collect::<Vec<_>>(), [5]);
    assert_eq!(unspent.reservation.map(|reservation| reservation.amount), Some(7));
    assert!(account.is_evictable(1_000, at(1_900)));
    assert_eq!(account.spend(1, at(1_900)), Spend::Fetch);
    assert!(
        account.take_idle(1_000, at(9_900)).is_empty() && !account.is_evictable(1_000, at(9_900)),
        "a request is in flight"
    );
}

#[test]
fn the_stock_of_the_largest_limits_is_divided_among_the_nodes() {
    use super::{Lease, MAX_STOCK};
    for lease in [Lease::new(), Lease::new().stock(u32::MAX)] {
        let terms = lease.terms(b'b', 1 << 52, 3).expect("it can be leased");
        assert_eq!((u64::from(terms.stock), u64::from(terms.max_grant)), (MAX_STOCK, MAX_STOCK / 4));
    }
}
