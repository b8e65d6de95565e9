//! Decisions before the horizon, the last reserved instant.
//!
//! Nothing passes before the horizon. So a request is decided at the horizon, and the decision restated for now.

use tidegate_core::{Algorithm, LeakyQueue, Micros, Outcome, Quota, RuleId, TokenBucket, Wait};

const BUCKET: TokenBucket = TokenBucket::new(Quota::per_second(10).burst(2));
const NOW: Micros = Micros::new(30_000);
const LATER: Micros = Micros::new(100_000);

/// Outcome, instant, limit, what is left, and when the quota is full again.
fn held_back(outcome: Outcome) -> (Outcome, Micros, u64, u64, u64) {
    let mut state = [0; 3];
    let _ = BUCKET.force(&mut state, LATER, 1); // one of two is left, and the bucket is full after 100 ms
    let cost = match outcome {
        Outcome::Allowed => 1,
        Outcome::RetryAfter(_) => 2,
        _ => 3,
    };
    let decision = BUCKET.peek(&state, LATER, cost);
    assert_eq!(decision.outcome, outcome);
    let decision = decision.of_rule(RuleId(7)).held_back(NOW);
    assert_eq!(decision.rule, RuleId(7), "the rule is kept");
    (
        decision.outcome,
        decision.at(),
        decision.limit(),
        decision.remaining(),
        decision.reset_after().as_micros(),
    )
}

#[test]
fn a_request_allowed_at_the_horizon_retries_then() {
    let wait = Wait::micros(70_000);
    assert_eq!(held_back(Outcome::Allowed), (Outcome::RetryAfter(wait), NOW, 2, 0, 270_000));
}

#[test]
fn a_request_refused_at_the_horizon_waits_longer() {
    let (wait_then, wait) = (Wait::micros(100_000), Wait::micros(170_000));
    assert_eq!(held_back(Outcome::RetryAfter(wait_then)), (Outcome::RetryAfter(wait), NOW, 2, 0, 170_000));
}

#[test]
fn a_request_that_never_passes_is_never_allowed() {
    assert_eq!(held_back(Outcome::Never), (Outcome::Never, NOW, 2, 0, 170_000));
}

/// The wait in the queue is not included: it is reported with the charge.
#[test]
fn a_request_queued_at_the_horizon_retries_at_the_horizon() {
    let queue = LeakyQueue::new(Quota::per_second(10), 2);
    let mut state = [0; 3];
    let _ = queue.force(&mut state, LATER, 1);
    let decision = queue.peek(&state, LATER, 1);
    assert_eq!(decision.outcome, Outcome::AllowedAfter(Wait::micros(100_000)));
    assert_eq!(decision.held_back(NOW).outcome, Outcome::RetryAfter(Wait::micros(70_000)));
}
