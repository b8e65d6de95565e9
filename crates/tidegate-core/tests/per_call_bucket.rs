//! A per-call bucket, its quota given with the call, equals a bucket that changes its quota before each call.

mod random;

use random::Random;
use tidegate_core::{Algorithm, Decision, Micros, Outcome, PerCallBucket, Quota, TokenBucket};

const QUOTAS: [Quota; 5] = [
    Quota::per_second(10).burst(3),
    Quota::per_second(3).burst(7),
    Quota::per_minute(1_000),
    Quota::per_second(999_983).burst(50),
    Quota::per_second(7).burst(1),
];

fn draw_quota(random: &mut Random) -> Quota {
    QUOTAS[usize::try_from(random.below(QUOTAS.len() as u64)).expect("an index")]
}

/// A bucket that is migrated to the quota of each call, by hand.
struct Changed {
    bucket: TokenBucket,
    state: [u64; 3],
}

impl Changed {
    /// The state as it would be under `quota`. Only a charge makes the new quota permanent.
    fn under(&self, quota: Quota, now: Micros) -> Changed {
        let bucket = TokenBucket::new(quota);
        let mut state = self.state;
        if bucket != self.bucket {
            state = [0; 3];
            bucket.migrate_from(&self.bucket, &self.state, &mut state, now);
        }
        Changed { bucket, state }
    }
}

/// Compares all but the wait, which a bucket that migrates at each call computes from its new rate.
fn assert_same(per_call_bucket: Decision, changed: Decision) {
    let but_for_the_wait = |decision: Decision| match decision.outcome {
        Outcome::RetryAfter(_) => (None, decision.limit(), decision.remaining(), decision.reset_after()),
        outcome => (Some(outcome), decision.limit(), decision.remaining(), decision.reset_after()),
    };
    assert_eq!(
        but_for_the_wait(per_call_bucket),
        but_for_the_wait(changed),
        "{per_call_bucket} and {changed}"
    );
}

/// A request passes exactly at the end of its reported wait, and not a microsecond earlier.
fn assert_exact(per_call_bucket: &PerCallBucket, state: &[u64], now: Micros, cost: u32) {
    let Some(wait) = per_call_bucket.peek(state, now, cost).retry_after() else { return };
    let passes_after = |micros| per_call_bucket.peek(state, now.plus(micros), cost).is_allowed();
    assert!(
        passes_after(wait.as_micros()) && !passes_after(wait.as_micros() - 1),
        "{per_call_bucket:?} after {wait}"
    );
}

#[test]
fn a_per_call_bucket_equals_a_bucket_that_changes_its_quota() {
    for seed in 0..200 {
        let (mut random, mut now) = (Random::seeded(seed), Micros::new(1_760_000_000_000_000));
        let first = draw_quota(&mut random);
        let mut changed = Changed { bucket: TokenBucket::new(first), state: [0; 3] };
        let mut state = vec![0; PerCallBucket::new(first).words()];
        for _ in 0..200 {
            now = now.plus(random.between(0, 400_000));
            let (quota, cost) = (draw_quota(&mut random), u32::try_from(random.below(4)).expect("a cost"));
            let per_call_bucket = PerCallBucket::new(quota);
            let mut next = changed.under(quota, now);
            assert_same(
                per_call_bucket.peek(&state[..], now, cost),
                next.bucket.peek(&next.state, now, cost),
            );
            assert_exact(&per_call_bucket, &state, now, cost);
            let before = state.clone();
            if random.one_in(5) {
                per_call_bucket.refund(&mut state[..], now, cost);
                next.bucket.refund(&mut next.state, now, cost);
            } else {
                let want = next.bucket.decide(&mut next.state, now, cost);
                assert_same(per_call_bucket.decide(&mut state[..], now, cost), want);
            }
            if state != before {
                changed = next;
            }
            assert_eq!(per_call_bucket.idle_at(&state[..]), changed.bucket.idle_at(&changed.state));
        }
    }
}

/// Until the next charge, debt is paid at the rate of the quota it was charged under.
///
/// A wait computed from the rate of the refused quota would be too short, and so would the next ones.
#[test]
fn a_wait_after_a_change_of_the_quota_is_exact() {
    let (slow, fast) =
        (PerCallBucket::new(Quota::per_second(1)), PerCallBucket::new(Quota::per_second(100).burst(1)));
    for (before, after, wait) in [(slow, fast, 1_000_000), (fast, slow, 10_000)] {
        let (mut state, now) = (vec![0; slow.words()], Micros::new(60_000_000));
        assert!(before.decide(&mut state[..], now, 1).is_allowed());
        let refused = after.decide(&mut state[..], now, 1);
        assert_eq!(refused.retry_after().expect("nothing is left").as_micros(), wait);
        assert_exact(&after, &state, now, 1);
    }
}

#[test]
fn a_refusal_keeps_the_quota_of_the_last_charge() {
    let (large, small) =
        (PerCallBucket::new(Quota::per_minute(10)), PerCallBucket::new(Quota::per_minute(5)));
    let (mut state, now) = (vec![0; large.words()], Micros::new(60_000_000));
    assert!(large.decide(&mut state[..], now, 8).is_allowed());
    let before = state.clone();
    assert!(!small.decide(&mut state[..], now, 1).is_allowed());
    assert_eq!(state, before);
    assert!(small.decide(&mut state[..], now.plus(48_000_000), 1).is_allowed());
    assert_ne!(state, before);
}

#[test]
fn a_per_call_bucket_migrates_its_state_unchanged() {
    let (old, new) = (PerCallBucket::new(Quota::per_minute(10)), PerCallBucket::new(Quota::per_minute(50)));
    let now = Micros::new(1_000_000);
    let (mut from, mut state) = (vec![0; old.words()], vec![0; new.words()]);
    assert!(old.decide(&mut from[..], now, 7).is_allowed());
    new.migrate_from(&old, &from[..], &mut state[..], now);
    assert_eq!(new.peek(&state[..], now, 0).remaining(), 43);
    assert_eq!(old.peek(&state[..], now, 0).remaining(), 3);
}

#[test]
fn a_refusal_repairs_a_per_call_bucket_that_is_one_rule_of_two() {
    let (bucket, other) =
        (PerCallBucket::new(Quota::per_second(1).burst(5)), TokenBucket::new(Quota::per_hour(5)));
    let policy = (bucket, other);
    let mut state = vec![0; policy.words()];
    assert!(policy.decide(&mut state[..], Micros::new(100_000_000), 5).is_allowed());
    // The clock steps back far. Refused by both, the bucket owes five seconds from then on, and not until the
    // clock has caught up.
    let back = Micros::new(10_000_000);
    assert!(!policy.decide(&mut state[..], back, 1).is_allowed());
    assert_eq!(bucket.peek(&state[..], back, 0).reset_after().as_micros(), 5_000_000);
    // The state is kept as long as it matters in case the clock catches up.
    assert_eq!(bucket.idle_at(&state[..]), Micros::new(105_000_000));
}
