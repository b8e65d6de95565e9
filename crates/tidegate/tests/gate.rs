//! Every limiter is a gate, and decides as it does when called directly.

use std::time::Duration;

use tidegate::algorithm::LeakyQueue;
use tidegate::gate::{Answer, Gate, Part, Remaining, RuleId};
use tidegate::{
    Admission, ConcurrencyLimiter, InvalidRequest, KeyedConcurrencyLimiter, KeyedLimiter, Limiter,
    ManualClock, Outcome, Pacer, Policy, Quota, Wait,
};

const ALICE: &[Part<'static>] = &[Part::of(RuleId(0))];

fn decide(gate: &dyn Gate, request: &[Part<'_>]) -> Admission {
    match gate.decide(request) {
        Answer::Ready(answer) => answer.expect("a valid request"),
        Answer::Pending(_) => panic!("the gate did not decide immediately"),
    }
}

fn outcomes(gate: &dyn Gate, request: &[Part<'_>], times: usize) -> Vec<Outcome> {
    (0..times).map(|_| decide(gate, request).decision.outcome).collect()
}

#[test]
fn limiter_as_a_gate_ignores_the_key() {
    let limiter = Limiter::builder(Quota::per_second(2)).clock(ManualClock::new()).build();
    assert_eq!(outcomes(&limiter, ALICE, 1), [Outcome::Allowed]);
    assert!(limiter.check().is_allowed());
    let other = [ALICE[0].key("bob")];
    assert_eq!(outcomes(&limiter, &other, 1), [Outcome::RetryAfter(Wait::micros(500_000))]);
}

#[test]
fn fast_path_charges_exactly_the_requests_it_allows() {
    let limiter = KeyedLimiter::<str>::builder(Quota::per_second(3)).clock(ManualClock::new()).build();
    let alice = [ALICE[0].key("alice")];
    assert!(decide(&limiter, &alice).is_allowed()); // inserts the key; the first check takes the slow path
    assert_eq!([(); 4].map(|()| limiter.passes(&alice)), [true, true, false, false]);
    assert_eq!(decide(&limiter, &alice).decision.outcome, Outcome::RetryAfter(Wait::micros(333_334)));
    assert!(!limiter.passes(&[]) && !limiter.passes(&[alice[0], alice[0]]));

    // `pass_with` takes the same path and reports the remaining quota.
    let bob = [ALICE[0].key("bob")];
    assert!(decide(&limiter, &bob).is_allowed());
    let passes = [(); 3].map(|()| limiter.pass_with(&bob));
    let left = |remaining, reset_after| Some(Remaining { limit: 3, remaining, reset_after });
    assert_eq!(passes, [left(1, Wait::micros(666_667)), left(0, Wait::micros(1_000_000)), None]);
    assert_eq!(limiter.pass_with(&[]), None);

    // A delayed request needs the slow path, which reports the delay; the fast path must not charge it as
    // well.
    let queue = LeakyQueue::new(Quota::per_second(10), 5);
    let one: &dyn Gate = &Limiter::builder_with(queue).clock(ManualClock::new()).build();
    let keyed: &dyn Gate = &KeyedLimiter::<str, _>::builder_with(queue).clock(ManualClock::new()).build();
    for gate in [one, keyed] {
        assert_eq!(outcomes(gate, &alice, 1), [Outcome::Allowed]);
        assert!(!gate.passes(&alice) && gate.pass_with(&alice).is_none());
        assert_eq!(outcomes(gate, &alice, 1), [Outcome::AllowedAfter(Wait::micros(100_000))]);
    }
}

#[test]
fn keyed_limiter_reads_the_key_of_a_request_as_text() {
    let limiter = KeyedLimiter::<String>::builder(Quota::per_second(3)).clock(ManualClock::new()).build();
    let alice = [ALICE[0].key("alice").cost(2)];
    assert!(decide(&limiter, &alice).is_allowed());
    assert_eq!(limiter.request("alice").peek().remaining(), 0);
    assert_eq!(limiter.request("bob").peek().remaining(), 2);
    assert!(!decide(&limiter, &alice).is_allowed());
    let bytes = [ALICE[0].key(b"alice").cost(1)];
    assert!(decide(&limiter, &bytes).is_allowed()); // the same text, given as bytes
    assert_eq!(limiter.request("alice").cost(0).peek().remaining(), 0);
}

#[test]
fn concurrency_limiter_returns_its_permit_with_the_admission() {
    let limiter = ConcurrencyLimiter::new(2);
    let (one, two) = (decide(&limiter, ALICE), decide(&limiter, ALICE));
    assert_eq!([one.decision.remaining(), two.decision.remaining()], [1, 0]);
    assert_eq!(outcomes(&limiter, ALICE, 1), [Outcome::Busy]);
    assert_eq!(outcomes(&limiter, &[ALICE[0].cost(3)], 1), [Outcome::Never]);
    one.permits.succeeded();
    drop(two);
    assert_eq!((limiter.stats().in_use, limiter.stats().endings.succeeded), (0, 1));
}

#[test]
fn keyed_concurrency_limiter_returns_its_permit_with_the_admission() {
    let limiter = KeyedConcurrencyLimiter::<str>::builder(1).max_keys(2).build();
    let alice = decide(&limiter, &[ALICE[0].key("alice")]);
    assert_eq!((alice.decision.limit(), alice.decision.remaining()), (1, 0));
    assert!(limiter.try_acquire("alice").is_err());
    let bob = decide(&limiter, &[ALICE[0].key("bob")]);
    assert_eq!(outcomes(&limiter, &[ALICE[0].key("carol")], 1), [Outcome::Busy]); // no room for another key
    drop((alice, bob));
    assert_eq!(limiter.stats().keys, 0);
}

#[test]
fn pacer_allows_every_request_after_a_delay() {
    let pacer = Pacer::builder(Quota::per_second(5)).clock(ManualClock::new()).build();
    let after = |millis: u64| Outcome::AllowedAfter(Wait::micros(millis * 1_000));
    assert_eq!(outcomes(&pacer, ALICE, 3), [Outcome::Allowed, after(200), after(400)]);
    assert_eq!(
        pacer.request().peek().retry_after().expect("three requests are ahead"),
        Duration::from_millis(600)
    );
}

/// The queue reaches beyond the end of the time line: every operation gives the same answer.
#[test]
fn pacer_refuses_for_good_what_passes_only_after_the_end_of_the_clock() {
    let quota = Quota::per(1, Duration::from_secs(86_400));
    let pacer = Pacer::builder(quota).clock(ManualClock::new()).build();
    assert!(pacer.request().cost(u32::MAX).check().is_allowed());
    assert_eq!(pacer.check().outcome, Outcome::Never);
    assert_eq!(pacer.request().peek().outcome, Outcome::Never);
    assert_eq!(outcomes(&pacer, ALICE, 1), [Outcome::Never]);
    assert!(pacer.request().reserve().expect_err("no instant is left").is_never());
}

#[test]
fn policy_is_a_gate() {
    let rules = Policy::builder().rule("user", Quota::per_second(1)).concurrency("in progress", 1);
    let policy = rules.clock(ManualClock::new()).build().expect("a valid policy");
    let request = [ALICE[0].key("alice"), Part::of(RuleId(1))];
    let admission = decide(&policy, &request);
    assert_eq!((admission.is_allowed(), admission.permits.len()), (true, 1));
    assert_eq!(decide(&policy, &request).decision.outcome, Outcome::Busy);
}

#[test]
fn gate_with_one_rule_accepts_exactly_one_part() {
    let limiter = KeyedLimiter::<str>::new(Quota::per_second(1));
    let refused = |request: &[Part<'_>]| match limiter.decide(request) {
        Answer::Ready(answer) => answer.unwrap_err(),
        Answer::Pending(_) => panic!("the limiter did not decide immediately"),
    };
    assert_eq!(refused(&[]), InvalidRequest::Empty);
    assert_eq!(
        refused(&[Part::of(RuleId(1))]).to_string(),
        "there is no rule number 1 among 1 rules, counted from 0; find it by its name"
    );
    assert_eq!(
        refused(&[ALICE[0].key("a"), ALICE[0].key("b")]),
        InvalidRequest::TooManyParts { parts: 2, most: 1 }
    );
}

#[tokio::test]
async fn answer_of_any_gate_can_be_awaited() {
    let gates: [Box<dyn Gate>; 2] =
        [Box::new(Limiter::new(Quota::per_second(1))), Box::new(ConcurrencyLimiter::new(1))];
    for gate in &gates {
        assert!(gate.decide(ALICE).wait().await.expect("a valid request").into_result().is_ok());
    }
}
