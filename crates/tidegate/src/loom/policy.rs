//! Requests over two keys, two threads: all or nothing, in every interleaving.

use std::time::Duration;

use loom::sync::Arc;
use tidegate_core::{Algorithm, ClockKind, Micros, Outcome, Quota, RuleId, TokenBucket, Wait};

use super::{INTERRUPTIONS, both, model};
use crate::clock::{Clock, ManualClock};
use crate::fingerprint::{AsText, Secrets};
use crate::gate::Part;
use crate::policy::{Policy, PolicyBuilder};

/// A clock that stands still.
#[derive(Clone, Copy)]
struct Still;

impl Clock for Still {
    const KIND: ClockKind = ClockKind::Monotonic;

    fn now(&self) -> Micros {
        Micros::ZERO
    }
}

type Buckets = Policy<TokenBucket, Still>;

/// A state of one word with a burst of two, slow enough that nothing is refilled.
fn narrow() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(2))
}

/// A wide state of two words with a burst of two.
fn wide() -> TokenBucket {
    let bucket = TokenBucket::new(Quota::per_second(999_983).burst(2));
    assert_eq!(bucket.for_clock(ClockKind::Monotonic).words(), 2);
    bucket
}

const A: RuleId = RuleId(0);
const B: RuleId = RuleId(1);

/// Creates two rules with this much used.
///
/// A key of which nothing is used is not in the table yet.
fn policy(rules: [TokenBucket; 2], used: [u32; 2]) -> Arc<Buckets> {
    let built = PolicyBuilder::new().rule("a", rules[0]).rule("b", rules[1]).max_keys(4).clock(Still).build();
    let policy = built.expect("a valid policy");
    for (rule, used) in [A, B].into_iter().zip(used).filter(|(_, used)| *used > 0) {
        assert!(passes(&policy, &[Part::of(rule).cost(used)]));
    }
    Arc::new(policy)
}

fn passes(policy: &Buckets, request: &[Part<'_>]) -> bool {
    policy.check_parts(request).expect("a valid request").is_allowed()
}

fn left(policy: &Buckets) -> [u64; 2] {
    [A, B].map(|rule| policy.peek(&[Part::of(rule).cost(0)]).expect("a valid request").remaining())
}

fn there() -> [Part<'static>; 2] {
    [Part::of(A), Part::of(B)]
}

fn and_back() -> [Part<'static>; 2] {
    [Part::of(B), Part::of(A)]
}

#[test]
fn last_token_of_two_rules_goes_to_one_of_two_threads() {
    for rules in [[narrow(), narrow()], [wide(), wide()], [narrow(), wide()]] {
        model(INTERRUPTIONS, move || {
            let policy = policy(rules, [1, 1]);
            let (one, other) =
                both(&policy, |policy| passes(policy, &there()), |policy| passes(policy, &and_back()));
            assert!(one != other, "exactly one passes");
            assert_eq!(left(&policy), [0, 0]);
        });
    }
}

/// One thread requests both keys, the other only the key of which one is left.
#[test]
fn request_denied_by_one_rule_is_not_charged_by_the_other() {
    for rules in [[narrow(), narrow()], [wide(), narrow()]] {
        model(INTERRUPTIONS, move || {
            let policy = policy(rules, [0, 1]);
            let (pair, single) =
                both(&policy, |policy| passes(policy, &there()), |policy| passes(policy, &[Part::of(B)]));
            assert!(pair != single, "one is left of B, and no request is refused needlessly");
            assert_eq!(left(&policy), [if pair { 1 } else { 2 }, 0]);
        });
    }
}

#[test]
fn new_keys_of_two_requests_are_inserted_once() {
    for rules in [[narrow(), narrow()], [narrow(), wide()]] {
        model(INTERRUPTIONS, move || {
            let policy = policy(rules, [0, 0]);
            let passed =
                both(&policy, |policy| passes(policy, &there()), |policy| passes(policy, &and_back()));
            assert_eq!(passed, (true, true));
            assert_eq!(left(&policy), [0, 0]);
        });
    }
}

/// A reader sees both keys charged or neither.
#[test]
fn no_reader_sees_a_half_charged_request() {
    model(INTERRUPTIONS, || {
        let policy = policy([narrow(), narrow()], [1, 1]);
        let look = |policy: &Buckets| {
            let seen = policy.check_each_parts(&[Part::of(A).cost(2), Part::of(B).cost(2)]).expect("valid");
            assert!(!seen.is_allowed(), "one of each is used");
            [seen.rules[0].remaining(), seen.rules[1].remaining()]
        };
        let (passed, seen) = both(&policy, |policy| passes(policy, &there()), look);
        assert!(passed);
        assert!(seen == [1, 1] || seen == [0, 0], "half charged: {seen:?}");
    });
}

/// A request is never refused because of a half-made charge.
///
/// Of five, two of A and one of B are used, and two more of each are charged. A request for all of both waits for A,
/// before and after.
#[test]
fn no_request_is_denied_by_a_half_charged_one() {
    let five = TokenBucket::new(Quota::per_hour(5));
    for everything in [there(), and_back()].map(|parts| parts.map(|part| part.cost(5))) {
        model(2, move || {
            let policy = policy([five, five], [2, 1]);
            let two = there().map(|part| part.cost(2));
            let refused =
                move |policy: &Buckets| policy.check_parts(&everything).expect("a valid request").decision;
            let (passed, refused) = both(&policy, move |policy| passes(policy, &two), refused);
            assert!(passed);
            let tokens = refused.retry_after().expect("refused for now").as_micros() / (720 * 1_000_000);
            assert!(tokens == 2 || tokens == 4, "half charged: {tokens}");
            assert_eq!(refused.rule, A);
        });
    }
}

/// Like the model before, while one of the keys is not in the table yet.
#[test]
fn no_reader_sees_a_half_charged_request_with_a_new_key() {
    for rules in [[narrow(), narrow()], [wide(), narrow()], [narrow(), wide()]] {
        model(INTERRUPTIONS, move || {
            let policy = policy(rules, [1, 0]);
            let look = |policy: &Buckets| {
                let request = [Part::of(B).cost(0), Part::of(A).cost(2)];
                let seen = policy.check_each_parts(&request).expect("a valid request");
                assert!(!seen.is_allowed(), "one of A is used");
                [seen.rules[1].remaining(), seen.rules[0].remaining()]
            };
            let (passed, seen) = both(&policy, |policy| passes(policy, &there()), look);
            assert!(passed);
            assert!(seen == [1, 2] || seen == [0, 1], "half charged: {seen:?}");
        });
    }
}

/// A charge counts once while the version of a rule changes, and its table with it.
#[test]
fn request_during_a_rule_change_counts_once() {
    for (from, to) in [(narrow(), wide()), (wide(), narrow())] {
        model(INTERRUPTIONS, move || {
            let policy = policy([from, narrow()], [1, 1]);
            let (passed, ()) = both(
                &policy,
                |policy| passes(policy, &there()),
                move |policy| policy.change("a", to).expect("there is such a rule"),
            );
            assert!(passed);
            assert_eq!(left(&policy), [0, 0]);
        });
    }
}

/// The word of a key that owes nothing is the same under every quota.
///
/// A charge to it is not.
#[test]
fn no_request_is_charged_by_the_previous_quota() {
    let ways: [fn(&Buckets) -> bool; 2] = [
        |policy| passes(policy, &there()),
        |policy| policy.check_each_parts(&there()).expect("a valid request").is_allowed(),
    ];
    for way in ways {
        model(INTERRUPTIONS, move || {
            let policy = policy([narrow(), narrow()], [1, 1]);
            policy.reset(&[Part::of(A)]).expect("a valid request");
            let daily = TokenBucket::new(Quota::per_day(2));
            let change = move |policy: &Buckets| policy.change("a", daily).expect("there is such a rule");
            let (passed, ()) = both(&policy, way, change);
            assert!(passed);
            let half_a_day = 12 * 3_600 * 1_000_000;
            let owed = policy.peek(&[Part::of(A).cost(0)]).expect("a valid request").reset_after();
            assert_eq!(owed.as_micros(), half_a_day, "one of two per day is used");
        });
    }
}

/// A request is not refused because the previous quota misreads the new word.
#[test]
fn no_request_is_denied_by_the_previous_quota() {
    model(2, || {
        let policy = policy([narrow(), narrow()], [1, 1]);
        // One of two is used. The debt of that one under the slower quota would be two under the faster.
        let slower = TokenBucket::new(Quota::per_hour(1).burst(2));
        let change = move |policy: &Buckets| policy.change("a", slower).expect("there is such a rule");
        let (passed, ()) = both(&policy, |policy| passes(policy, &there()), change);
        assert!(passed, "one was left all the time");
    });
}

type Timed = Policy<TokenBucket, ManualClock>;

const TWENTY_MINUTES: Duration = Duration::from_secs(1_200);

/// Creates a policy of three per hour for each of a few keys.
fn timed(clock: &ManualClock) -> Timed {
    let built = PolicyBuilder::new().rule("a", Quota::per_hour(3)).max_keys(8).clock(clock.clone()).build();
    built.expect("a valid policy")
}

fn ask(policy: &Timed, key: &str, cost: u32) -> Outcome {
    policy.check_parts(&[Part::of(A).key(key).cost(cost)]).expect("a valid request").decision.outcome
}

/// Returns keys with the same home line as `key`, out of the 256 lines of a small table.
///
/// In a model the fingerprint of a key is always the same.
fn neighbours(key: &str) -> [String; 4] {
    let secrets = Secrets::draw();
    let line = |key: &str| secrets.fingerprint(&AsText(key.as_bytes())) % 256;
    let others = (0..).map(|n: u32| format!("another key {n}")).filter(|other| line(other) == line(key));
    others.take(4).collect::<Vec<_>>().try_into().expect("there are four")
}

/// Creates a policy in which the next new key evicts `key`.
///
/// `key` owes nothing, and the other three slots of its line belong to keys that have used their whole quota.
fn crowded(clock: &ManualClock, key: &str, crowd: &[String]) -> Timed {
    let policy = timed(clock);
    assert_eq!((ask(&policy, key, 1), ask(&policy, key, 0)), (Outcome::Allowed, Outcome::Allowed));
    clock.advance(TWENTY_MINUTES);
    assert!(crowd.iter().all(|other| ask(&policy, other, 3) == Outcome::Allowed));
    policy
}

fn evicted(policy: &Timed) -> u64 {
    policy.stats("a").expect("there is such a rule").evicted
}

/// The slot of a key goes to a key without quota left, while the first key is judged.
#[test]
fn no_key_is_denied_for_the_usage_of_a_key_that_takes_its_slot() {
    let [another, crowd @ ..] = neighbours("key");
    model(2, move || {
        let another = another.clone();
        let policy = Arc::new(crowded(&ManualClock::new(), "key", &crowd));
        let outcomes = both(&policy, |policy| ask(policy, "key", 1), move |policy| ask(policy, &another, 3));
        assert_eq!(outcomes, (Outcome::Allowed, Outcome::Allowed));
    });
}

/// The remembered slot of the global key went to another key.
///
/// That key may be evicted again meanwhile.
#[test]
fn global_key_is_not_denied_for_the_usage_of_a_key_in_its_old_slot() {
    let [another, crowd @ ..] = neighbours("");
    model(2, move || {
        let clock = ManualClock::new();
        let policy = Arc::new(crowded(&clock, "", &crowd));
        assert_eq!(ask(&policy, &another, 2), Outcome::Allowed);
        assert_eq!(evicted(&policy), 1, "the other key has taken its slot");
        let come_back = move |policy: &Timed| {
            clock.advance(2 * TWENTY_MINUTES);
            let _ = ask(policy, "", 1);
        };
        let (outcome, ()) = both(&policy, |policy| ask(policy, "", 2), come_back);
        // If this thread read the clock first and was charged after the other, it waits as long as the clock advanced.
        let late = Outcome::RetryAfter(Wait::micros(2 * 1_200_000_000));
        assert!(outcome == Outcome::Allowed || outcome == late, "{outcome:?}");
    });
}

/// A request that is refused by A and then retried ignores all earlier answers.
///
/// The new key of C is charged.
#[test]
fn retried_request_ignores_earlier_answers() {
    model(2, || {
        let rules = PolicyBuilder::new().rule("a", wide()).rule("b", wide()).rule("c", narrow()).max_keys(4);
        let policy = Arc::new(rules.clock(Still).build().expect("a valid policy"));
        let (c, request) = (Part::of(RuleId(2)), [Part::of(A), Part::of(B), Part::of(RuleId(2))]);
        assert!(passes(&policy, &[Part::of(A).cost(2), Part::of(B)]));
        let give_back = |policy: &Buckets| policy.refund(&and_back()).expect("a valid request");
        let (passed, ()) = both(&policy, move |policy| passes(policy, &request), give_back);
        let left = policy.peek(&[c.cost(0)]).expect("a valid request").remaining();
        assert_eq!(left, if passed { 1 } else { 2 });
    });
}

/// A charge by the old policy counts in the reloaded one, and the other way round.
///
/// One thread reloads the policy. If one is left, exactly one of the two requests gets it.
#[test]
fn request_by_the_old_policy_counts_in_the_reloaded_one() {
    for rules in [[narrow(), narrow()], [wide(), narrow()]] {
        model(2, move || {
            let policy = policy(rules, [1, 1]);
            let over = move |policy: &Buckets| {
                let next = PolicyBuilder::new().rule("b", rules[1]).rule("a", rules[0]).max_keys(4);
                let next = policy.reload(next).expect("a valid policy");
                (passes(&next, &there()), left(&next))
            };
            let (old, (new, seen)) = both(&policy, |policy| passes(policy, &there()), over);
            assert!(old != new, "exactly one passes");
            assert_eq!(seen, [0, 0], "whichever passed, all quota is used");
            assert_eq!(left(&policy), [0, 0]);
        });
    }
}
