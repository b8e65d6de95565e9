//! Properties at extreme values: no instant, no cost and no debt is so large that anything panics, wraps or passes for
//! free.

mod random;
#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod random_walk;

use std::fmt::Debug;

use random::Random;
use random_walk::{fresh, policies, rule, rules};
use tidegate_core::{Algorithm, Micros, Rule};

/// Rules at the edge of what can be counted, in addition to the ordinary ones.
const EDGES: [&str; 8] = [
    "1 per 100000day",
    "9000000000000000/s",
    "stepped_bucket 1 per 100000day burst 1",
    "stepped_bucket 1/us burst 511",
    "fixed_window 9000000000000000/s",
    "fixed_window 511/us",
    "sliding_window 4294967295/s cells 1000",
    "sliding_window 1 per 100000day cells 1000 interpolated",
];

const INSTANTS: [u64; 7] = [0, 1, 1_000_000, (1 << 53) - 2, (1 << 53) - 1, 1 << 53, u64::MAX];
const COSTS: [u32; 6] = [0, 1, 2, 511, u32::MAX - 1, u32::MAX];

fn survives<A: Algorithm + ?Sized + Debug>(limit: &A, random: &mut Random) {
    let mut state = fresh(limit);
    for _ in 0..200 {
        let now = Micros::new(INSTANTS[usize::try_from(random.below(7)).expect("an index")]);
        let cost = COSTS[usize::try_from(random.below(6)).expect("an index")];
        let decision = match random.below(5) {
            0 => limit.decide(&mut state[..], now, cost),
            1 => limit.force(&mut state[..], now, cost),
            2 => limit.take(&mut state[..], now, cost).decision,
            3 => {
                limit.refund(&mut state[..], now, cost);
                limit.peek(&state[..], now, cost)
            }
            _ => limit.peek(&state[..], now, cost),
        };
        assert!(decision.remaining() <= decision.limit(), "{limit:?}: {decision:?}");
        assert!(state.len() > 1 || state[0] >> 63 == 0, "{limit:?} used the topmost bit");
        assert!(limit.idle_at(&state[..]) <= Micros::MAX && limit.last_seen(&state[..]) <= Micros::MAX);
    }
}

#[test]
fn no_instant_and_no_cost_makes_anything_panic_or_wrap() {
    let mut random = Random::seeded(33);
    for rule in rules().chain(EDGES.iter().map(|text| rule(text))) {
        (0..50).for_each(|_| survives(&rule, &mut random));
    }
    for policy in policies() {
        (0..50).for_each(|_| survives(policy.as_slice(), &mut random));
    }
}

#[test]
fn no_instant_makes_a_migration_panic() {
    let rules: Vec<Rule> = rules().chain(EDGES.iter().map(|text| rule(text))).collect();
    for old in &rules {
        for new in &rules {
            for then in INSTANTS.map(Micros::new) {
                let mut state = fresh(old);
                let _ = old.force(&mut state[..], then, 3);
                for now in INSTANTS.map(Micros::new) {
                    let mut migrated = fresh(new);
                    new.migrate_from(old, &state[..], &mut migrated[..], now);
                    let found = new.peek(&migrated[..], now, 0);
                    assert!(found.remaining() <= found.limit(), "{old:?} to {new:?} at {now}");
                }
            }
        }
    }
}

#[test]
fn nothing_beyond_the_limit_passes_at_the_end_of_time() {
    for rule in rules() {
        let mut state = fresh(&rule);
        let most = rule.peek(&state[..], Micros::ZERO, 0).limit();
        for instant in [Micros::MAX, Micros::new(1 << 53), Micros::new(u64::MAX)] {
            let _ = rule.take(&mut state[..], instant, u32::MAX);
            let more = (0..10).filter(|_| rule.decide(&mut state[..], instant, 1).is_allowed()).count();
            assert_eq!(more, 0, "{rule:?}, of which {most} may pass, at {instant}");
        }
    }
}

#[test]
fn a_debt_beyond_the_time_line_is_still_refused() {
    for rule in rules() {
        let mut state = fresh(&rule);
        let now = Micros::new(1_760_000_000_000_000);
        for _ in 0..20 {
            let _ = rule.force(&mut state[..], now, u32::MAX);
        }
        let refused = rule.decide(&mut state[..], now, 1);
        assert!(refused.retry_after().is_some_and(|wait| wait.as_micros() > 0), "{rule:?}: {refused:?}");
        assert_eq!(refused.remaining(), 0, "{rule:?}");
    }
}
