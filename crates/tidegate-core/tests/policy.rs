//! A policy stores the states of its rules one after the other. Each rule decides by its own words.

use tidegate_core::{Algorithm, FixedWindow, Micros, Quota, Rule, RuleId, SlidingLog, TokenBucket};

const BUCKET: TokenBucket = TokenBucket::new(Quota::per_second(1).burst(30));
const WINDOW: FixedWindow = FixedWindow::new(Quota::per_minute(5));
const LOG: SlidingLog = SlidingLog::new(Quota::per_hour(4));
const NOW: Micros = Micros::new(90_000_000);

fn charged<A: Algorithm + ?Sized>(policy: &A, cost: u32) -> Vec<u64> {
    let mut state = vec![0; policy.words()];
    assert!(policy.decide(&mut state[..], NOW, cost).is_allowed());
    state
}

#[test]
fn rules_are_counted_however_they_are_nested() {
    assert_eq!((BUCKET, WINDOW).rules(), 2);
    assert_eq!(((BUCKET, WINDOW), LOG).rules(), 3);
    assert_eq!((BUCKET, (WINDOW, LOG)).rules(), 3);
    assert_eq!(((BUCKET, WINDOW), (LOG, BUCKET)).rules(), 4);
    assert_eq!((BUCKET, WINDOW, LOG).rules(), 3);
    assert_eq!([BUCKET, BUCKET, BUCKET, BUCKET].as_slice().rules(), 4);
}

#[test]
fn rules_are_numbered_in_the_order_they_are_written() {
    let policy = ((BUCKET, WINDOW), (LOG, BUCKET));
    let (mut numbers, mut limits) = (Vec::new(), Vec::new());
    policy.explain(&charged(&policy, 1)[..], NOW, 0, RuleId(10), &mut |decision| {
        numbers.push(decision.rule.0);
        limits.push(decision.limit());
    });
    assert_eq!((numbers, limits), (vec![10, 11, 12, 13], vec![30, 5, 4, 30]));
}

#[test]
fn a_policy_is_idle_when_all_its_rules_are() {
    // The window ends at 120 s, the log expires after an hour, the bucket is full again after two seconds.
    let (window, log, bucket) = (120_000_000, 3_690_000_000, 92_000_000);
    let idle_at = |policy: &dyn Fn() -> Micros| policy().get();
    assert_eq!(idle_at(&|| (BUCKET, WINDOW).idle_at(&charged(&(BUCKET, WINDOW), 2)[..])), window);
    assert_eq!(idle_at(&|| (WINDOW, BUCKET).idle_at(&charged(&(WINDOW, BUCKET), 2)[..])), window);
    assert_eq!(idle_at(&|| (LOG, BUCKET).idle_at(&charged(&(LOG, BUCKET), 2)[..])), log);
    assert_eq!(idle_at(&|| (BUCKET, LOG).idle_at(&charged(&(BUCKET, LOG), 2)[..])), log);
    assert_eq!(idle_at(&|| (BUCKET, BUCKET).idle_at(&charged(&(BUCKET, BUCKET), 2)[..])), bucket);
}

#[test]
fn last_seen_of_a_policy_is_the_latest_of_its_rules() {
    // A bucket remembers no instant, a window its beginning, a log the instant itself.
    let (window, log) = (60_000_000, NOW.get());
    assert_eq!((BUCKET, WINDOW).last_seen(&charged(&(BUCKET, WINDOW), 1)[..]).get(), window);
    assert_eq!((WINDOW, BUCKET).last_seen(&charged(&(WINDOW, BUCKET), 1)[..]).get(), window);
    assert_eq!((WINDOW, LOG).last_seen(&charged(&(WINDOW, LOG), 1)[..]).get(), log);
    assert_eq!((LOG, WINDOW).last_seen(&charged(&(LOG, WINDOW), 1)[..]).get(), log);
    let windows = [WINDOW, WINDOW];
    assert_eq!(windows.as_slice().last_seen(&charged(windows.as_slice(), 1)[..]).get(), window);
}

#[test]
fn last_seen_of_a_rule_is_that_of_its_algorithm() {
    let last_seen = |text: &str| {
        let rule: Rule = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        rule.last_seen(&charged(&rule, 1)[..]).get()
    };
    assert_eq!(last_seen("1/s burst 30"), 0);
    assert_eq!(last_seen("leaky_queue 1/s queue 2"), 0);
    assert_eq!(last_seen("leaky_queue 1/s queue 2 nginx"), NOW.get());
    assert_eq!(last_seen("stepped_bucket 5/min"), 60_000_000);
    assert_eq!(last_seen("fixed_window 5/min"), 60_000_000);
    assert_eq!(last_seen("fixed_window 5/min from first hit"), NOW.get());
    assert_eq!(last_seen("sliding_log 4/h"), NOW.get());
    assert_eq!(last_seen("sliding_window 5/min cells 5"), 84_000_000);
}

fn what_is_left<A: Algorithm + ?Sized>(policy: &A, state: &[u64]) -> Vec<u64> {
    let mut left = Vec::new();
    policy.explain(state, NOW, 0, RuleId(0), &mut |decision| left.push(decision.remaining()));
    left
}

#[test]
fn every_rule_of_a_pair_migrates_its_own_words() {
    let old = (LOG, (WINDOW, BUCKET));
    let (log, window) = (SlidingLog::new(Quota::per_hour(9)), FixedWindow::new(Quota::per_minute(8)));
    let new = (log, (window, TokenBucket::new(Quota::per_second(1).burst(40))));
    let (from, mut state) = (charged(&old, 3), vec![0; new.words()]);
    new.migrate_from(&old, &from[..], &mut state[..], NOW);
    assert_eq!(what_is_left(&new, &state), [6, 5, 37]);
}

#[test]
fn every_rule_of_a_slice_migrates_its_own_words_where_sizes_differ() {
    let sizes = |limits: [u64; 3]| limits.map(|limit| SlidingLog::new(Quota::per_hour(limit)));
    let (old, new) = (sizes([4, 6, 3]), sizes([9, 5, 7]));
    let from: Vec<u64> = old.iter().zip([1, 4, 2]).flat_map(|(log, cost)| charged(log, cost)).collect();
    let mut state = vec![0; new.as_slice().words()];
    new.as_slice().migrate_from(old.as_slice(), &from[..], &mut state[..], NOW);
    assert_eq!(what_is_left(new.as_slice(), &state), [8, 1, 5]);
}
