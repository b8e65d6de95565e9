//! What a key keeps when its limit changes: the remaining quota is exactly the value in the table of `Keep`.

mod random;
#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod random_walk;

use std::time::Duration;

use random_walk::{Operations, fresh, policies, random_walk, rule, rules, shown};
use tidegate_core::{
    Algorithm, ClockKind, Decision, FixedWindow, Keep, LeakyQueue, Micros, PerCallBucket, Quota, Rule,
    SlidingLog, SteppedBucket, TokenBucket, Wait,
};

const NOW: Micros = Micros::new(1_760_000_000_000_000);
const KEEPS: [Keep; 3] = [Keep::Used, Keep::Remaining, Keep::Ratio];

/// The state after a change of the limit.
fn migrated<A: Algorithm + ?Sized>(keep: Keep, new: &A, old: &A, from: &[u64], now: Micros) -> Vec<u64> {
    let mut state = fresh(new);
    keep.migrate(new, old, from, &mut state[..], now);
    state
}

/// The table of `Keep`, for a key that is not idle.
fn expected(keep: Keep, before: &Decision, new_limit: u64) -> u64 {
    let (remaining, limit) = (u128::from(before.remaining()), u128::from(before.limit()));
    let expected = match keep {
        Keep::Used => (u128::from(new_limit)).saturating_sub(limit - remaining),
        Keep::Remaining => remaining.min(new_limit.into()),
        Keep::Ratio => remaining * u128::from(new_limit) / limit,
    };
    u64::try_from(expected).expect("a number of 64 bits")
}

#[test]
fn the_remaining_quota_after_a_change_is_the_documented_one() {
    // old limit, used, new limit, and what remains by Used, Remaining and Ratio
    let table = [
        (10, 6, 20, [14, 4, 8]),
        (10, 6, 5, [0, 4, 2]),
        (10, 6, 3, [0, 3, 1]),
        (10, 6, 10, [4, 4, 4]),
        (10, 10, 20, [10, 0, 0]),
        (10, 9, 5, [0, 1, 0]),
        (10, 1, 5, [4, 5, 4]),
        (10, 1, 1, [0, 1, 0]),
        (3, 1, 10, [9, 2, 6]),
        (1_000, 1, 999, [998, 999, 998]),
        (10, 0, 20, [20, 20, 20]), // idle: a key never seen has the whole new limit
        (20, 0, 10, [10, 10, 10]),
    ];
    let texts = [
        "token_bucket {}/min",
        "stepped_bucket {}/min",
        "fixed_window {}/min",
        "fixed_window {}/min from first hit",
        "sliding_log {}/min",
        "sliding_window {}/min cells 5",
        "sliding_window {}/min cells 5 interpolated",
        "sliding_window {}/min cells 5 plain",
    ];
    for (old_limit, used, new_limit, remaining) in table {
        // Also across algorithms.
        for (old, new) in texts.iter().flat_map(|old| texts.iter().map(move |new| (old, new))) {
            let with = |text: &str, limit: u64| rule(&text.replace("{}", &limit.to_string()));
            let (old, new) = (with(old, old_limit), with(new, new_limit));
            let mut from = fresh(&old);
            let _ = old.force(&mut from[..], NOW, used);
            let found =
                KEEPS.map(|keep| new.peek(&migrated(keep, &new, &old, &from, NOW)[..], NOW, 0).remaining());
            assert_eq!(found, remaining, "{used} of {old_limit} to {new_limit}, {old:?} to {new:?}");
        }
    }
}

#[test]
fn the_default_is_migrate_from() {
    assert_eq!(Keep::default(), Keep::Used);
    for rule in rules() {
        random_walk(&rule, Operations::All, |it| {
            let mut state = fresh(&rule);
            rule.migrate_from(&rule, it.state, &mut state[..], it.now);
            assert_eq!(migrated(Keep::Used, &rule, &rule, it.state, it.now), state);
        });
    }
}

#[test]
fn in_every_state_the_remaining_quota_is_the_documented_one_whatever_the_rule_becomes() {
    let rules: Vec<Rule> = rules().collect();
    for old in &rules {
        for (index, new) in rules.iter().enumerate() {
            let mut looks = 0;
            random_walk(old, Operations::All, |it| {
                looks += 1;
                // All pairs at all states would take too long.
                if looks % 20 != index % 20 {
                    return;
                }
                let before = old.peek(it.state, it.now, 0);
                for keep in [Keep::Remaining, Keep::Ratio] {
                    let state = migrated(keep, new, old, it.state, it.now);
                    let after = new.peek(&state[..], it.now, 0);
                    if old.idle_at(it.state) <= it.now {
                        assert_eq!(state, fresh(new), "an idle key is never seen: {old:?} to {new:?}");
                        continue;
                    }
                    let want = expected(keep, &before, after.limit());
                    assert_eq!(after.remaining(), want, "{keep:?}\n{old:?}\n{new:?}\n{before:?}\n{after:?}");
                    // The definition, checked by requests: this much passes, and not one more.
                    let want = u32::try_from(want).expect("a cost");
                    assert!(new.peek(&state[..], it.now, want).is_allowed(), "{keep:?} {old:?} {new:?}");
                    assert!(!new.peek(&state[..], it.now, want + 1).is_allowed(), "{keep:?} {old:?} {new:?}");
                }
            });
        }
    }
}

#[test]
fn a_change_back_and_forth_never_raises_what_remained() {
    for keep in [Keep::Remaining, Keep::Ratio] {
        for (old, new) in rules().flat_map(|old| rules().map(move |new| (old, new))) {
            let mut looks = 0;
            random_walk(&old, Operations::WithoutDebt, |it| {
                looks += 1;
                if looks % 100 != 0 || old.idle_at(it.state) <= it.now {
                    return;
                }
                let before = old.peek(it.state, it.now, 0);
                let there = migrated(keep, &new, &old, it.state, it.now);
                if new.peek(&there[..], it.now, 0).reset_after().as_micros() == 0 {
                    return; // the key is idle under the new limit, and so never seen
                }
                let back = migrated(keep, &old, &new, &there, it.now);
                let after = old.peek(&back[..], it.now, 0);
                assert!(
                    after.remaining() <= before.remaining(),
                    "{keep:?} {old:?} {new:?} {before:?} {after:?}"
                );
            });
        }
    }
}

#[test]
fn the_same_limit_keeps_its_numbers_in_every_mode() {
    for rule in rules() {
        random_walk(&rule, Operations::All, |it| {
            for keep in KEEPS {
                let state = migrated(keep, &rule, &rule, it.state, it.now);
                let [old, new] = [it.state, &state].map(|state| rule.peek(state, it.now, 0));
                assert_eq!(old.remaining(), new.remaining(), "{keep:?} {rule:?}");
                // `Ratio` rounds a part of a token against the key. Nothing else moves.
                let is_bucket = matches!(rule, Rule::TokenBucket(_));
                if keep != Keep::Ratio || !is_bucket {
                    assert_eq!(old, new, "{keep:?} {rule:?}");
                }
            }
        });
    }
}

#[test]
fn a_key_never_seen_stays_never_seen() {
    for (keep, new) in KEEPS.into_iter().flat_map(|keep| rules().map(move |new| (keep, new))) {
        for old in rules() {
            assert_eq!(migrated(keep, &new, &old, &fresh(&old), NOW), fresh(&new), "{old:?} to {new:?}");
        }
    }
}

/// How much has to be refunded until one unit passes: 1 if the limit is just used up, more in debt.
fn owed_beyond<A: Algorithm>(limit: &A, state: &[u64]) -> u32 {
    (0..1_000)
        .find(|refunded| {
            let mut state = state.to_vec();
            limit.refund(&mut state[..], NOW, *refunded);
            limit.peek(&state[..], NOW, 1).is_allowed()
        })
        .expect("a debt below 1000")
}

#[test]
fn debt_stays_as_large_as_it_was() {
    let texts = [
        "token_bucket {}/min",
        "leaky_queue 1/min queue {}",
        "leaky_queue 1/min queue {} nginx",
        "stepped_bucket {}/min",
        "fixed_window {}/min",
        "fixed_window {}/min from first hit",
        "sliding_window {}/min cells 5",
        "sliding_window {}/min cells 5 plain",
    ];
    for (text, [old, new]) in
        texts.iter().flat_map(|text| [[10, 30], [30, 10], [10, 10]].map(|it| (text, it)))
    {
        let [old, new] = [old, new].map(|limit| rule(&text.replace("{}", &limit.to_string())));
        for debt in [0, 1, 7, 100] {
            let (mut from, limit) = (fresh(&old), old.peek(&fresh(&old)[..], NOW, 0).limit());
            old.force_wide(&mut from[..], NOW, limit + debt);
            assert_eq!(u64::from(owed_beyond(&old, &from)), debt + 1);
            for keep in [Keep::Remaining, Keep::Ratio] {
                let state = migrated(keep, &new, &old, &from, NOW);
                assert_eq!(u64::from(owed_beyond(&new, &state)), debt + 1, "{keep:?} {old:?} {new:?}");
            }
        }
    }
    // A log has no room for debt, and one algorithm cannot tell how much another one owes.
    for (old, new) in [("sliding_log 5/min", "sliding_log 9/min"), ("fixed_window 5/min", "9/min")] {
        let (old, new) = (rule(old), rule(new));
        let mut from = fresh(&old);
        let _ = old.force(&mut from[..], NOW, 50);
        for keep in [Keep::Remaining, Keep::Ratio] {
            let state = migrated(keep, &new, &old, &from, NOW);
            assert_eq!(owed_beyond(&new, &state), 1, "{keep:?} {old:?} {new:?}");
        }
    }
}

#[test]
fn logs_and_windows_keep_their_instants() {
    let at = |seconds: u64| NOW.plus(seconds * 1_000_000);
    for (old, new, frees) in [
        ("sliding_log 10/min", "sliding_log 6/min", [0, 6]),
        ("sliding_window 10/min cells 60", "sliding_window 6/min cells 60", [0, 6]),
        ("fixed_window 10/min from first hit", "fixed_window 6/min from first hit", [0, 6]),
    ] {
        let (old, new) = (rule(old), rule(new));
        let mut from = fresh(&old);
        assert!(old.decide(&mut from[..], at(0), 10).is_allowed());
        for keep in [Keep::Remaining, Keep::Ratio] {
            let new = if let Rule::SlidingLog(log) = new { Rule::SlidingLog(log.room(10)) } else { new };
            let state = migrated(keep, &new, &old, &from, at(30));
            let remaining = [59, 61].map(|seconds| new.peek(&state[..], at(seconds), 0).remaining());
            assert_eq!(remaining, frees, "{keep:?} {old:?} {new:?}");
        }
    }
}

#[test]
fn every_rule_of_a_policy_keeps_its_own_remaining_quota() {
    for (old, new) in policies().flat_map(|old| policies().map(move |new| (old.clone(), new))) {
        let pairs = old.len().min(new.len());
        let (old, new) = (old[..pairs].to_vec(), new[..pairs].to_vec());
        let mut looks = 0;
        random_walk(&old[..], Operations::All, |it| {
            looks += 1;
            if looks % 10 != 0 {
                return;
            }
            for keep in [Keep::Remaining, Keep::Ratio] {
                let state = migrated(keep, &new[..], &old[..], it.state, it.now);
                let boxed = [&old, &new].map(|rules| rules.clone().into_boxed_slice());
                assert_eq!(migrated(keep, &boxed[1], &boxed[0], it.state, it.now), state, "a boxed slice");
                let before = shown(&old[..], it.state, it.now, 0);
                let after = shown(&new[..], &state, it.now, 0);
                let mut from = 0;
                for (index, (before, after)) in before.iter().zip(&after).enumerate() {
                    let words = old[index].words();
                    let idle = old[index].idle_at(&it.state[from..from + words]) <= it.now;
                    let want = if idle { after.limit() } else { expected(keep, before, after.limit()) };
                    assert_eq!(after.remaining(), want, "{keep:?} rule {index}: {before:?} {after:?}");
                    from += words;
                }
            }
        });
    }
}

#[test]
fn tuples_arrays_and_references_migrate_rule_by_rule() {
    let bucket = |limit| TokenBucket::new(Quota::per_minute(limit));
    let window = |limit| FixedWindow::new(Quota::per_minute(limit));
    let log = |limit| SlidingLog::new(Quota::per_minute(limit));
    // 5 are used: 5, 15 and 25 remain.
    let old = (bucket(10), window(20), log(30), bucket(30));
    let new = (bucket(100), window(10), log(60), bucket(90));
    let mut from = fresh(&old);
    assert!(old.decide(&mut from[..], NOW, 5).is_allowed());
    let remaining = |keep| {
        let state = migrated(keep, &new, &old, &from, NOW);
        shown(&new, &state, NOW, 0).iter().map(Decision::remaining).collect::<Vec<_>>()
    };
    assert_eq!(remaining(Keep::Used), [95, 5, 55, 85]);
    assert_eq!(remaining(Keep::Remaining), [5, 10, 25, 25]);
    assert_eq!(remaining(Keep::Ratio), [50, 7, 50, 75]);

    let (old, new) = ([bucket(10), bucket(20)], [bucket(100), bucket(10)]);
    let mut from = fresh(&old);
    assert!(old.decide(&mut from[..], NOW, 5).is_allowed());
    let state = migrated(Keep::Remaining, &new, &old, &from, NOW);
    assert_eq!(migrated(Keep::Remaining, &&new, &&old, &from, NOW), state);
    assert_eq!(shown(&new, &state, NOW, 0).iter().map(Decision::remaining).collect::<Vec<_>>(), [5, 10]);

    let (old, new) = ((bucket(10), log(20), window(30)), (bucket(100), log(10), window(60)));
    let mut from = fresh(&old);
    assert!(old.decide(&mut from[..], NOW, 5).is_allowed());
    let state = migrated(Keep::Ratio, &new, &old, &from, NOW);
    assert_eq!(shown(&new, &state, NOW, 0).iter().map(Decision::remaining).collect::<Vec<_>>(), [50, 7, 50]);
}

#[test]
fn a_per_call_bucket_keeps_its_remaining_quota() {
    let plan = |limit, clock| PerCallBucket::new(Quota::per_minute(limit)).for_clock(clock);
    for clock in [ClockKind::MayStepBack, ClockKind::Monotonic] {
        let (old, new) = (plan(10, clock), plan(20, clock));
        let mut from = fresh(&old);
        assert!(old.decide(&mut from[..], NOW, 6).is_allowed());
        let remaining =
            KEEPS.map(|keep| new.peek(&migrated(keep, &new, &old, &from, NOW)[..], NOW, 0).remaining());
        assert_eq!(remaining, [14, 4, 8]);
        let unlimited = PerCallBucket::new(Quota::unlimited()).for_clock(clock);
        let state = migrated(Keep::Remaining, &unlimited, &old, &from, NOW);
        assert_eq!(unlimited.peek(&state[..], NOW, 0).remaining(), 4);
        let back = migrated(Keep::Remaining, &old, &unlimited, &state, NOW);
        assert_eq!(old.peek(&back[..], NOW, 0).remaining(), 4);
    }
}

#[test]
fn limits_above_32_bits_are_charged_in_full() {
    let large = 1 << 40;
    let per_day = Quota::try_new(1 << 20, Duration::from_micros(1), large).expect("an exact quota");
    let window = |limit| Quota::per(limit, Duration::from_micros(limit));
    let rules: [[Rule; 2]; 5] = [
        [TokenBucket::new(Quota::per_minute(10)).into(), TokenBucket::new(per_day).into()],
        [TokenBucket::new(Quota::per_minute(10)).into(), TokenBucket::new(Quota::unlimited()).into()],
        [FixedWindow::new(Quota::per_minute(10)).into(), FixedWindow::new(window(large)).into()],
        [SteppedBucket::new(Quota::per_minute(10)).into(), SteppedBucket::new(window(large)).into()],
        [LeakyQueue::new(Quota::per_minute(10), 9).into(), LeakyQueue::new(window(large), u32::MAX).into()],
    ];
    for [old, _] in rules {
        for [_, new] in rules {
            let mut from = fresh(&old);
            assert!(old.decide(&mut from[..], NOW, 6).is_allowed());
            let limit = new.peek(&fresh(&new)[..], NOW, 0).limit();
            let found = KEEPS.map(|keep| {
                let state = migrated(keep, &new, &old, &from, NOW);
                // And back: 4 of 10 are the same share again, or what is left of it after rounding down.
                let back = migrated(keep, &old, &new, &state, NOW);
                (new.peek(&state[..], NOW, 0).remaining(), old.peek(&back[..], NOW, 0).remaining())
            });
            let share = u64::try_from(4 * u128::from(limit) / 10).expect("a share");
            let shared_back = u64::try_from(u128::from(share) * 10 / u128::from(limit)).expect("a share");
            assert_eq!(found, [(limit - 6, 4), (4, 4), (share, shared_back)], "{old:?}\n{new:?}");
        }
    }
}

#[test]
fn a_change_across_algorithms_carries_over_more_than_32_bits() {
    let quota = |limit| Quota::per(limit, Duration::from_micros(1 << 33)); // a few hours
    let old: Rule = FixedWindow::new(quota(1 << 40)).into();
    let new: Rule = SteppedBucket::new(quota(1 << 41)).into();
    let mut from = fresh(&old);
    old.force_wide(&mut from[..], NOW, 1 << 39);
    let state = migrated(Keep::Used, &new, &old, &from, NOW);
    assert_eq!(new.peek(&state[..], NOW, 0).remaining(), (1 << 41) - (1 << 39));
}

#[test]
fn a_wide_charge_equals_a_charge() {
    for rule in rules() {
        random_walk(&rule, Operations::All, |it| {
            let cost = it.random.below(20);
            let (mut wide, mut plain) = (it.state.to_vec(), it.state.to_vec());
            rule.force_wide(&mut wide[..], it.now, cost);
            let _ = rule.force(&mut plain[..], it.now, u32::try_from(cost).expect("a cost"));
            assert_eq!(wide, plain, "{rule:?}: {cost}");
        });
    }
}

#[test]
fn at_every_instant_even_after_a_clock_step_the_remaining_quota_is_the_documented_one() {
    let instants = [0, 1, 999_999, NOW.get(), (1 << 53) - 2, (1 << 53) - 1].map(Micros::new);
    let all: Vec<Rule> = rules().chain([rule("unlimited"), rule("1/week burst 10000")]).collect();
    for (old, new) in all.iter().flat_map(|old| all.iter().map(move |new| (old, new))) {
        for (written, now) in instants.iter().flat_map(|at| instants.map(move |now| (*at, now))) {
            for cost in [1, u32::MAX] {
                let mut from = fresh(old);
                let _ = old.force(&mut from[..], written, cost);
                for keep in KEEPS {
                    let state = migrated(keep, new, old, &from, now);
                    let found = new.peek(&state[..], now, 0);
                    let before = old.peek(&from[..], now, 0);
                    // At the end of the time line debts end too, and no request passes.
                    let owes = old.idle_at(&from[..]) > now && before.reset_after() > Wait::micros(0);
                    if keep != Keep::Used && owes && now <= NOW {
                        let want = expected(keep, &before, found.limit());
                        assert_eq!(
                            found.remaining(),
                            want,
                            "{keep:?} {old:?} {new:?} {written} {now} {before:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_charge_of_any_width_saturates_as_repeated_charges_do() {
    let texts = [
        "fixed_window 5/min",
        "sliding_log 5/min",
        "sliding_window 5/min cells 5",
        "stepped_bucket 5/min burst 9",
    ];
    let queues = ["9/min", "leaky_queue 5/min queue 3", "leaky_queue 5/min queue 3 nginx"];
    for text in texts.iter().chain(&queues) {
        let rule = rule(text);
        let (mut wide, mut repeated) = (fresh(&rule), fresh(&rule));
        rule.force_wide(&mut wide[..], NOW, 3 * u64::from(u32::MAX));
        for _ in 0..3 {
            let _ = rule.force(&mut repeated[..], NOW, u32::MAX);
        }
        let [wide, repeated] = [wide, repeated].map(|state| rule.peek(&state[..], NOW, 1));
        assert_eq!(wide, repeated, "{text}");
        let mut state = fresh(&rule);
        rule.force_wide(&mut state[..], NOW, u64::MAX);
        assert!(!rule.peek(&state[..], NOW, 1).is_allowed(), "{text}");
    }
}
