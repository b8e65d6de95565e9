//! What is said to somebody who asks before an instant up to which others have reserved: the decision of that instant,
//! seen from now.

use tidegate_core::{Algorithm, LeakyQueue, Micros, Outcome, Quota, RuleId, TokenBucket, Wait};

const BUCKET: TokenBucket = TokenBucket::new(Quota::per_second(10).burst(2));
const NOW: Micros = Micros::new(30_000);
const LATER: Micros = Micros::new(100_000);

/// Outcome, instant, limit, what is left, and when all is there again.
fn told(outcome: Outcome) -> (Outcome, Micros, u64, u64, u64) {
    let mut state = [0; 3];
    let _ = BUCKET.force(&mut state, LATER, 1); // one of two is left, and all after 100 ms
    let cost = match outcome {
        Outcome::Allowed => 1,
        Outcome::RetryAfter(_) => 2,
        _ => 3,
    };
    let decision = BUCKET.peek(&state, LATER, cost);
    assert_eq!(decision.outcome, outcome);
    let told = decision.of_rule(RuleId(7)).held_back(NOW);
    assert_eq!(told.rule, RuleId(7), "it is still that rule's");
    (told.outcome, told.at(), told.limit(), told.remaining(), told.reset_after().as_micros())
}

#[test]
fn what_would_pass_then_is_to_be_tried_then() {
    let wait = Wait::micros(70_000);
    assert_eq!(told(Outcome::Allowed), (Outcome::RetryAfter(wait), NOW, 2, 0, 270_000));
}

#[test]
fn what_would_be_refused_then_waits_longer() {
    let (wait_then, wait) = (Wait::micros(100_000), Wait::micros(170_000));
    assert_eq!(told(Outcome::RetryAfter(wait_then)), (Outcome::RetryAfter(wait), NOW, 2, 0, 170_000));
}

#[test]
fn what_would_never_pass_never_does() {
    assert_eq!(told(Outcome::Never), (Outcome::Never, NOW, 2, 0, 170_000));
}

/// Not when its turn would be: that is told when it is charged.
#[test]
fn what_would_have_a_turn_after_then_is_to_be_tried_then() {
    let queue = LeakyQueue::new(Quota::per_second(10), 2);
    let mut state = [0; 3];
    let _ = queue.force(&mut state, LATER, 1);
    let decision = queue.peek(&state, LATER, 1);
    assert_eq!(decision.outcome, Outcome::AllowedAfter(Wait::micros(100_000)));
    assert_eq!(decision.held_back(NOW).outcome, Outcome::RetryAfter(Wait::micros(70_000)));
}
