//! The display and debug text of decisions, waits and their parts.

use std::time::Duration;

use tidegate_core::{Algorithm, Decision, Micros, Outcome, Quota, RuleId, Source, TokenBucket, Wait};

fn bucket() -> (TokenBucket, [u64; 3]) {
    (TokenBucket::new(Quota::per_second(10).burst(3)), [0; 3])
}

fn with_outcome(mut decision: Decision, outcome: Outcome) -> Decision {
    decision.outcome = outcome;
    decision
}

#[test]
fn a_decision_displays_what_to_do() {
    let (bucket, mut state) = bucket();
    assert_eq!(bucket.decide(&mut state, Micros::ZERO, 2).to_string(), "allowed; 1 of 3 left");
    let refused = bucket.decide(&mut state, Micros::ZERO, 2);
    assert_eq!(refused.to_string(), "limit of 3 reached; retry after 100ms");
    let never = bucket.decide(&mut state, Micros::ZERO, 4);
    assert_eq!(never.to_string(), "cost exceeds the limit of 3; it can never be allowed");
    let later = with_outcome(refused, Outcome::AllowedAfter(Wait::micros(1_500)));
    assert_eq!(later.to_string(), "allowed after 1.5ms");
    let busy = Decision::counted(Outcome::Busy, Micros::ZERO, 5, 0, Wait::micros(0));
    assert_eq!(busy.to_string(), "all 5 permits are in use; retry when one is free");
}

#[test]
fn the_debug_text_of_a_decision_has_the_numbers_of_its_methods() {
    let bucket = TokenBucket::new(Quota::per_second(10).burst(20));
    let mut state = [0; 3];
    assert_eq!(
        format!("{:?}", bucket.decide(&mut state, Micros::ZERO, 20)),
        "Decision { outcome: Allowed, rule: 0, source: Strict, limit: 20, remaining: 0, reset_after: 2s }"
    );
    assert_eq!(
        format!("{:?}", bucket.decide(&mut state, Micros::ZERO, 1)),
        "Decision { outcome: RetryAfter(100ms), rule: 0, source: Strict, limit: 20, remaining: 0, reset_after: 2s }"
    );
    let counted = Decision::counted(Outcome::Never, Micros::ZERO, 5, 3, Wait::micros(1_500));
    assert_eq!(
        format!("{:?}", counted.of_rule(RuleId(7))),
        "Decision { outcome: Never, rule: 7, source: Strict, limit: 5, remaining: 3, reset_after: 1.5ms }"
    );
    let closed = Decision::closed(Micros::ZERO, Wait::micros(5), 3);
    assert_eq!(
        format!("{closed:#?}").lines().map(str::trim).collect::<String>(),
        "Decision {outcome: RetryAfter(5µs,),rule: 0,source: Closed,limit: 3,remaining: 0,reset_after: 0ns,}"
    );
}

#[test]
fn a_denial_displays_its_decision() {
    let (bucket, mut state) = bucket();
    assert!(bucket.decide(&mut state, Micros::ZERO, 3).into_result().is_ok());
    let denied = bucket.decide(&mut state, Micros::ZERO, 1).into_result().unwrap_err();
    assert_eq!(denied.to_string(), denied.decision.to_string());
}

#[test]
fn a_refusal_for_lack_of_room_displays_the_reason() {
    let closed = Decision::closed(Micros::new(7), Wait::micros(5), 3);
    assert_eq!(
        (closed.source, closed.at(), closed.limit(), closed.remaining()),
        (Source::Closed, Micros::new(7), 3, 0)
    );
    assert_eq!((closed.retry_after(), closed.reset_after()), (Some(Wait::micros(5)), Wait::default()));
    assert_eq!(closed.rule, RuleId(0));
}

#[test]
fn sources_rules_and_instants_have_names() {
    let sources =
        [Source::Strict, Source::Lease, Source::Local, Source::Open, Source::Sketch, Source::Closed];
    let names = ["strict", "lease", "local", "open", "sketch", "closed"];
    assert_eq!(sources.map(|source| source.to_string()), names);
    assert_eq!(RuleId(3).to_string(), "3");
    assert_eq!(Micros::new(12).to_string(), "12us");
}

#[test]
fn a_wait_is_microseconds_and_converts_to_a_duration() {
    let wait = Wait::micros(1_000_001);
    assert_eq!(
        (wait.as_micros(), wait.as_secs_up(), Wait::micros(1_000_000).as_secs_up()),
        (1_000_001, 2, 1)
    );
    assert_eq!(Duration::from(wait), Duration::from_micros(1_000_001));
    assert_eq!(wait, Duration::from_micros(1_000_001));
    assert_ne!(wait, Duration::from_micros(1_000_000));
    assert_eq!(format!("{wait} {wait:?}"), "1.000001s 1.000001s");
}

#[test]
fn instants_saturate_at_both_ends_of_the_time_line() {
    let (five, seven) = (Micros::new(5), Micros::new(7));
    assert_eq!((seven.since(five), five.since(seven)), (2, 0));
    assert_eq!((five.minus(2).get(), five.minus(9)), (3, Micros::ZERO));
    assert_eq!(
        (Micros::MAX.plus(1), Micros::new(1 << 53), Micros::MAX.get()),
        (Micros::MAX, Micros::MAX, (1 << 53) - 1)
    );
    assert_eq!(Micros::from(Duration::from_nanos(2_999)).get(), 2);
    assert_eq!(Micros::from(Duration::MAX), Micros::MAX);
}

#[test]
fn only_allowed_outcomes_are_allowed_and_outcomes_are_ordered() {
    let (bucket, mut state) = bucket();
    let allowed = bucket.decide(&mut state, Micros::ZERO, 3);
    let refused = bucket.decide(&mut state, Micros::ZERO, 1);
    let later = with_outcome(refused, Outcome::AllowedAfter(Wait::micros(1)));
    let [busy, never] = [Outcome::Busy, Outcome::Never].map(|outcome| with_outcome(refused, outcome));
    assert_eq!(
        [allowed, later, refused, busy, never].map(|decision| decision.is_allowed()),
        [true, true, false, false, false]
    );
    assert_eq!([allowed, later, busy, never].map(|decision| decision.retry_after()), [None; 4]);
    // From the most lenient to the strictest.
    let order = [allowed, later, refused, busy, never].map(|decision| decision.outcome);
    assert!(order.is_sorted() && order.windows(2).all(|pair| pair[0] != pair[1]));
}
