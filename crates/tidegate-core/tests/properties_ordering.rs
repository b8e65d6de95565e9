//! Properties of the order of states and of decisions: one of two is stricter, for every request, in any order.

mod random;
#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod random_walk;

use random::Random;
use random_walk::{
    Operations, RULES, draw_cost, fresh, policies, random_walk, rule, rules, shown, steady_rules,
};
use tidegate_core::{Algorithm, Decision, Keep, Micros, Outcome, Quota, Rule, RuleId, TokenBucket, Wait};

// === Larger is stricter ===

/// Passes pairs of states to `look`, the smaller first, and whether the repair changed one of them.
///
/// Both states occurred earlier on the walk and are repaired at the same instant. For a bucket on a monotonic clock that
/// instant is never earlier than the walk has reached; for all other rules it may be.
fn ordered_pairs(limit: &Rule, mut look: impl FnMut(&[u64], &[u64], bool, Micros, &mut Random)) {
    let may_step_back =
        !steady_rules().any(|steady| steady == *limit && matches!(limit, Rule::TokenBucket(_)));
    let mut met: Vec<Vec<u64>> = vec![fresh(limit)];
    random_walk(limit, Operations::All, |it| {
        let back = if may_step_back && it.random.one_in(3) { it.random.below(2_000_000) } else { 0 };
        let now = it.now.minus(back).plus(it.random.below(3) * it.random.below(500_000));
        // One of the last few, or the first of all.
        let before = (0..8).filter(|_| it.random.one_in(2)).count();
        let mut pair = [it.state.to_vec(), met[met.len().saturating_sub(1 + before)].clone()];
        let as_met = pair.clone();
        pair.iter_mut().for_each(|state| limit.repair(&mut state[..], now));
        let pulled = pair != as_met;
        pair.sort_unstable();
        look(&pair[0], &pair[1], pulled, now, it.random);
        met.push(it.state.to_vec());
    });
}

fn ordered_rules() -> impl Iterator<Item = Rule> {
    rules().filter(Algorithm::is_ordered)
}

#[test]
fn buckets_and_windows_by_the_clock_are_ordered_and_nothing_else_is() {
    let ordered = |text: &&str| rule(text).is_ordered();
    let (yes, no): (Vec<&str>, Vec<&str>) = RULES.iter().map(|(text, _)| *text).partition(ordered);
    assert!(yes.iter().all(|text| text.starts_with("token") || text.starts_with("fixed")), "{yes:?}");
    assert_eq!((yes.len(), no.len()), (7, 18));
    assert!(policies().all(|policy| !policy.as_slice().is_ordered()));
}

#[test]
fn of_ordered_states_the_larger_is_never_more_generous() {
    for limit in ordered_rules() {
        let mut stricter = 0;
        ordered_pairs(&limit, |less, more, pulled, now, random| {
            let cost = u32::try_from(random.below(6)).expect("a small cost");
            let [first, second] = [less, more].map(|state| limit.peek(state, now, cost));
            assert!(first.is_allowed() || !second.is_allowed(), "{limit:?} {less:?} {more:?}: {first:?}");
            let [left, left_of_more] = [less, more].map(|state| limit.peek(state, now, 0));
            assert!(left.remaining() >= left_of_more.remaining(), "{limit:?} {less:?} {more:?}");
            // A bucket that remembers a far step back may have to wait longer than one that owes more.
            if !pulled {
                assert!(first.outcome <= second.outcome, "{limit:?} {less:?} {more:?}: {first:?} {second:?}");
                assert!(left.reset_after() <= left_of_more.reset_after(), "{limit:?} {less:?} {more:?}");
            }
            stricter += u32::from(first.outcome < second.outcome);
            let [mut less, mut more] = [less.to_vec(), more.to_vec()];
            if second.is_allowed() {
                let _ = [&mut less, &mut more].map(|state| limit.force(&mut state[..], now, cost));
                assert!(cost == 0 || less <= more, "{limit:?}: {less:?} {more:?} after {cost} at {now}");
            }
        });
        assert!(stricter > 20, "{limit:?} was stricter {stricter} times only");
    }
}

#[test]
fn of_ordered_states_the_larger_stays_larger_under_another_quota() {
    let settings = || ordered_rules().filter(|rule| rule.words() < 3);
    for (old, new) in settings().flat_map(|old| settings().map(move |new| (old, new))) {
        ordered_pairs(&old, |less, more, _, now, _| {
            for keep in [Keep::Used, Keep::Remaining, Keep::Ratio] {
                let [less, more] = [less, more].map(|state| {
                    let mut migrated = fresh(&new);
                    keep.migrate(&new, &old, state, &mut migrated[..], now);
                    migrated
                });
                assert!(less <= more, "{keep:?}, {old:?} became {new:?}: {less:?} {more:?} at {now}");
            }
        });
    }
}

// === Decisions combine ===

#[test]
fn the_stricter_of_decisions_does_not_depend_on_their_order() {
    let mut decisions = Vec::new();
    for rule in rules() {
        let mut looks = 0;
        random_walk(&rule, Operations::All, |mut it| {
            looks += 1;
            if looks % 600 == 0 {
                let cost = draw_cost(&rule, &mut it);
                let number = u16::try_from(decisions.len()).expect("a rule");
                decisions.push(rule.peek(it.state, it.now, cost).of_rule(RuleId(number)));
            }
        });
    }
    for a in &decisions {
        for b in &decisions {
            assert_eq!(a.and(*b), b.and(*a));
            for c in &decisions {
                assert_eq!(a.and(*b).and(*c), a.and(b.and(*c)));
            }
        }
    }
}

#[test]
fn a_refusal_is_stricter_than_a_pass_and_a_longer_wait_than_a_shorter() {
    let bucket = TokenBucket::new(Quota::per_second(1).burst(2));
    let mut state = [0; 3];
    let pass = bucket.decide(&mut state, Micros::ZERO, 2);
    let soon = bucket.peek(&state, Micros::ZERO, 1);
    let later = bucket.peek(&state, Micros::ZERO, 2);
    let never = bucket.peek(&state, Micros::ZERO, 3);
    for (kind, strict) in [(pass, soon), (soon, later), (later, never)] {
        assert_eq!(kind.and(strict), strict);
        assert_eq!(strict.and(kind), strict);
    }
}

#[test]
fn a_refused_request_charges_no_rule() {
    // Nothing refills within the test, so what is left of each rule is its limit less what passed.
    let rules = ["20/day", "fixed_window 25/day", "sliding_log 30/day", "sliding_window 35/day cells 4"];
    let rules: Vec<Rule> = rules.iter().map(|text| rule(text)).collect();
    let (policy, mut state) = (rules.as_slice(), fresh(rules.as_slice()));
    let (mut random, mut passed, mut refused) = (Random::seeded(14), 0, 0);
    for _ in 0..500 {
        let cost = random.between(1, 36);
        match policy.decide(&mut state[..], Micros::ZERO, u32::try_from(cost).unwrap()).is_allowed() {
            true => passed += cost,
            false => refused += 1,
        }
        let left: Vec<u64> = shown(policy, &state, Micros::ZERO, 0).iter().map(Decision::remaining).collect();
        assert_eq!(left, [20, 25, 30, 35].map(|limit| limit - passed));
    }
    assert!(passed > 0 && refused > 400, "{passed} passed, {refused} were refused");
}

#[test]
fn a_policy_explains_each_rule_before_the_charge() {
    let policy = [rule("5/day"), rule("fixed_window 3/day")];
    let mut state = fresh(policy.as_slice());
    assert!(policy.decide(&mut state[..], Micros::ZERO, 2).is_allowed());
    let each = shown(policy.as_slice(), &state, Micros::ZERO, 2);
    assert_eq!(each[0].outcome, Outcome::Allowed);
    assert_eq!(each[0].remaining(), 3); // not as if it had been charged
    assert_eq!(each[1].retry_after(), Some(Wait::micros(86_400_000_000)));
    assert_eq!((each[0].rule, each[1].rule), (RuleId(0), RuleId(1)));
}
