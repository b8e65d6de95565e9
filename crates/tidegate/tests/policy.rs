//! Policies: several rules, one decision.

#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use random::Random;
use tidegate::algorithm::{FixedWindow, SlidingLog, TokenBucket};
use tidegate::builder::PolicyBuilder;
use tidegate::clock::{Micros, SettableClock};
use tidegate::gate::{Part, RuleId};
use tidegate::stats::{Charge, Observer};
use tidegate::{
    Admission, Decision, InvalidPolicy, InvalidRequest, KeyedLimiter, ManualClock, Outcome, Policy, Quota,
    Request, Rule, Source, Wait,
};

const GLOBAL: RuleId = RuleId(0);
const COMPANY: RuleId = RuleId(1);
const USER: RuleId = RuleId(2);

type Manual = Policy<Rule, ManualClock>;

/// A global bucket of ten, a window of five per company, a log of two per user; each per second.
fn rules() -> PolicyBuilder {
    Policy::builder()
        .rule("global", Quota::per_second(10))
        .rule("company", FixedWindow::new(Quota::per_second(5)))
        .rule("user", SlidingLog::new(Quota::per_second(2)))
}

fn policy(clock: &ManualClock) -> Manual {
    rules().clock(clock.clone()).build().expect("a valid policy")
}

/// A request to all three rules, by name.
fn request<'a>(policy: &'a Manual, company: &'a str, user: &'a str) -> Request<'a, Manual> {
    policy.request().rule("global").rule_for("company", company).rule_for("user", user)
}

/// Decides that request.
fn decide(policy: &Manual, company: &str, user: &str) -> Decision {
    request(policy, company, user).check().expect("a valid request")
}

/// The same request, by parts.
fn of<'a>(company: &'a str, user: &'a str) -> [Part<'a>; 3] {
    [Part::of(GLOBAL), Part::of(COMPANY).key(company), Part::of(USER).key(user)]
}

fn left(policy: &Manual, request: &[Part<'_>]) -> Vec<u64> {
    let left = |part: &Part<'_>| {
        policy.request().parts(&[part.cost(0)]).peek().expect("a valid request").remaining()
    };
    request.iter().map(left).collect()
}

fn check(policy: &Manual, request: &[Part<'_>]) -> Admission {
    policy.check_parts(request).expect("a valid request")
}

#[test]
fn allowed_request_is_charged_by_every_rule() {
    let policy = policy(&ManualClock::new());
    assert!(decide(&policy, "acme", "alice").is_allowed());
    assert_eq!(left(&policy, &of("acme", "alice")), [9, 4, 1]);
    assert_eq!(left(&policy, &of("acme", "bob")), [9, 4, 2]);
    assert_eq!(left(&policy, &of("other", "alice")), [9, 5, 1]);
}

#[test]
fn denied_request_is_charged_by_no_rule_and_names_the_denying_one() {
    let clock = ManualClock::new();
    let policy = policy(&clock);
    assert!((0..2).all(|_| decide(&policy, "acme", "alice").is_allowed()));
    clock.advance(Duration::from_millis(300));
    let refused = decide(&policy, "acme", "alice");
    assert_eq!(refused.outcome, Outcome::RetryAfter(Wait::micros(700_000)));
    assert_eq!((refused.rule, policy.name(refused.rule)), (USER, Some("user")));
    assert_eq!(left(&policy, &of("acme", "alice")), [10, 3, 0]); // the global bucket has refilled
}

#[test]
fn retry_after_is_the_longest_wait_and_exact() {
    let clock = ManualClock::new();
    let policy = policy(&clock);
    assert!((0..2).all(|_| decide(&policy, "acme", "alice").is_allowed()));
    assert!((0..3).all(|number| decide(&policy, "acme", &number.to_string()).is_allowed()));
    clock.advance(Duration::from_millis(100));
    assert!(request(&policy, "other", "alice").cost(0).check().expect("a valid request").is_allowed());
    // Both the company's rule, until its window ends, and the user's rule deny.
    let refused = decide(&policy, "acme", "alice");
    let wait = refused.retry_after().expect("denied for now");
    clock.advance(wait.duration() - Duration::from_micros(1));
    assert!(!decide(&policy, "acme", "alice").is_allowed());
    clock.advance(Duration::from_micros(1));
    assert!(decide(&policy, "acme", "alice").is_allowed());
}

#[test]
fn each_part_has_its_own_cost() {
    let policy = policy(&ManualClock::new());
    let request = [Part::of(GLOBAL).cost(7), Part::of(USER).key("alice").cost(2)];
    assert!(check(&policy, &request).is_allowed());
    assert_eq!(left(&policy, &request), [3, 0]);
    let never = check(&policy, &[Part::of(GLOBAL), Part::of(USER).key("bob").cost(3)]).decision;
    assert_eq!((never.outcome, never.rule), (Outcome::Never, USER));
    assert_eq!(left(&policy, &request), [3, 0]);
    let two_users = [Part::of(USER).key("bob"), Part::of(USER).key("carol").cost(3)];
    let never = policy.request().parts(&two_users).try_acquire().expect_err("three of two");
    assert_eq!(
        never.to_string(),
        "rule \"user\": cost 3 exceeds the limit of 2: it can never be allowed; use 2 or less"
    );
}

#[test]
fn one_rule_is_checked_for_several_keys() {
    let policy = policy(&ManualClock::new());
    let transfer = || policy.request().rule_for("user", "from").rule_for("user", "to").check();
    assert!(transfer().expect("a valid request").is_allowed());
    assert!(policy.request().rule_for("user", "to").check().expect("a valid request").is_allowed());
    assert!(!transfer().expect("a valid request").is_allowed());
    assert_eq!(left(&policy, &[Part::of(USER).key("from"), Part::of(USER).key("to")]), [1, 0]);
}

#[test]
fn check_each_reports_the_remaining_quota_of_every_rule() {
    let policy = policy(&ManualClock::new());
    let check_each = || request(&policy, "acme", "alice").check_each().expect("a valid request");
    let passed = check_each();
    assert_eq!(remaining(&passed.rules), [9, 4, 1]);
    assert_eq!(passed.rules.iter().map(|it| it.rule).collect::<Vec<_>>(), [GLOBAL, COMPANY, USER]);
    assert!(check_each().decision.is_allowed());
    let refused = check_each();
    assert_eq!(remaining(&refused.rules), [8, 3, 0]); // as found, not as if charged
    assert_eq!(refused.decision, refused.rules[2]);
}

fn remaining(rules: &[Decision]) -> Vec<u64> {
    rules.iter().map(Decision::remaining).collect()
}

/// Each new key gets its own entry, however many come with one request.
#[test]
fn every_new_key_of_a_large_request_is_charged() {
    for count in [60, 64, 65, 500, 2_000] {
        let policy = policy(&ManualClock::new());
        let keys: Vec<String> = (0..count).map(|number| number.to_string()).collect();
        let request: Vec<Part<'_>> = keys.iter().map(|key| Part::of(USER).key(key)).collect();
        assert!((0..2).all(|_| check(&policy, &request).is_allowed()), "{count} keys");
        assert_eq!(left(&policy, &request), vec![0; count]);
        assert_eq!(policy.stats("user").expect("a rate").keys, count);
    }
}

/// With a bucket, new keys that do not fit share sketch cells, and their requests are still all or nothing.
#[test]
fn new_keys_without_room_share_sketch_cells() {
    let built = Policy::builder()
        .rule("global", Quota::per_second(5))
        .rule("user", Quota::per_second(2))
        .max_keys(1)
        .clock(ManualClock::new())
        .build();
    let policy = built.expect("a valid policy");
    let of = |user| [Part::of(RuleId(0)), Part::of(RuleId(1)).key(user)];
    assert!(check(&policy, &of("alice")).is_allowed());
    let shared = check(&policy, &of("bob")).decision;
    assert!(shared.is_allowed());
    assert_eq!((shared.rule, shared.source), (RuleId(1), Source::Sketch));
    assert!(check(&policy, &of("bob")).is_allowed());
    let refused = policy.check_each_parts(&of("bob")).expect("a valid request");
    assert_eq!((refused.decision.rule, refused.decision.source), (RuleId(1), Source::Sketch));
    assert_eq!(remaining(&refused.rules), [2, 0]);
    let left_for =
        |user| policy.request().rule_for("user", user).cost(0).peek().expect("a valid request").remaining();
    assert_eq!(left_for("bob"), 0);
    // A new key that the global rule denies leaves no charge in the cells.
    assert!(check(&policy, &[of("carol")[0].cost(2), of("carol")[1]]).is_allowed());
    assert!(!check(&policy, &of("dave")).is_allowed());
    assert_eq!(left_for("dave"), 2);
}

/// Ten keys in one request take the code path for any number of parts.
#[test]
fn request_of_ten_parts_is_all_or_nothing() {
    let policy = policy(&ManualClock::new());
    let keys: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    let request: Vec<Part<'_>> = keys.iter().map(|key| Part::of(USER).key(key)).collect();
    assert!((0..2).all(|_| check(&policy, &request).is_allowed()));
    assert!(!check(&policy, &request).is_allowed());
    assert_eq!(left(&policy, &request), [0; 10]);
    assert!(check(&policy, &[Part::of(GLOBAL).cost(10)]).is_allowed());
}

#[test]
fn refund_returns_quota_and_reset_clears_usage() {
    let policy = policy(&ManualClock::new());
    assert!((0..2).all(|_| decide(&policy, "acme", "alice").is_allowed()));
    policy.request().rule("global").rule_for("company", "acme").refund().expect("a valid request");
    assert_eq!(left(&policy, &of("acme", "alice")), [9, 4, 0]);
    let both = policy.request().rule_for("company", "acme").rule_for("user", "alice");
    both.reset().expect("a valid request");
    assert_eq!(left(&policy, &of("acme", "alice")), [9, 5, 2]);
}

#[test]
fn changed_rule_keeps_what_was_used() {
    let policy = policy(&ManualClock::new());
    assert!(policy.request().rule("global").cost(8).check().expect("a valid request").is_allowed());
    policy.change("global", Quota::per_second(20)).expect("there is such a rule");
    assert_eq!(left(&policy, &[Part::of(GLOBAL)]), [12]);
    // To another algorithm, with states of another size.
    policy.change("global", SlidingLog::new(Quota::per_second(9))).expect("there is such a rule");
    assert_eq!(left(&policy, &[Part::of(GLOBAL)]), [1]);
}

/// nginx's `limit_req2.t`: a zone with an empty key is skipped, and no zone is charged unless all allow the
/// request.
#[test]
fn several_nginx_zones_with_their_own_keys() {
    let zone = |text: &str| text.parse::<Rule>().expect("a rule");
    let clock = ManualClock::new();
    let built = Policy::builder()
        .rule("fast", zone("leaky_queue 1000/s queue 0 nginx"))
        .rule("slow", zone("leaky_queue 1/min queue 0 nginx"))
        .clock(clock.clone())
        .build();
    let policy = built.expect("a valid policy");
    let mut check_keys = |keys: [&str; 2]| {
        let zones = [Part::of(RuleId(0)).key(keys[0]), Part::of(RuleId(1)).key(keys[1])];
        let request: Vec<Part<'_>> = zones.into_iter().filter(|part| !part.key.is_empty()).collect();
        let passed = check(&policy, &request).is_allowed();
        clock.advance(Duration::from_millis(100));
        passed
    };
    let keys = [["1", ""], ["1", ""], ["", "1"], ["", "1"], ["2", "2"], ["2", "2"]];
    assert_eq!(keys.map(&mut check_keys), [true, true, true, false, true, false]);
    let zones = policy.request().rule_for("fast", "2").rule_for("slow", "2").cost(0);
    assert!(zones.peek().expect("a valid request").is_allowed());
}

/// Two zones delay a request: it waits for the longer delay, and both are charged.
#[test]
fn longest_delay_wins() {
    let zone = |text: &str| text.parse::<Rule>().expect("a rule");
    let built = Policy::builder()
        .rule("a", zone("leaky_queue 1/s queue 5 nginx"))
        .rule("b", zone("leaky_queue 2/s queue 5 nginx"))
        .clock(ManualClock::new())
        .build();
    let policy = built.expect("a valid policy");
    let check = || policy.request().rule_for("a", "k").rule_for("b", "k").check().expect("a valid request");
    let after = |seconds: u64| Outcome::AllowedAfter(Wait::micros(seconds * 1_000_000));
    assert_eq!([(); 3].map(|()| check().outcome), [Outcome::Allowed, after(1), after(2)]);
    assert_eq!(left(&policy, &[0, 1].map(|rule| Part::of(RuleId(rule)).key("k"))), [3, 3]);
}

// --- concurrency

/// Three per second, and two concurrent for each key.
fn rate_and_concurrency(clock: &ManualClock) -> Manual {
    let built = Policy::builder()
        .rule("rate", Quota::per_second(3))
        .concurrency("concurrency", 2)
        .clock(clock.clone())
        .build();
    built.expect("a valid policy")
}

const BOTH_RULES: [Part<'static>; 2] = [Part::of(RuleId(0)), Part::of(RuleId(1))];

#[test]
fn permit_is_held_until_it_is_dropped() {
    let clock = ManualClock::new();
    let policy = rate_and_concurrency(&clock);
    let try_acquire = || policy.request().rule("rate").rule("concurrency").try_acquire();
    let (one, two) = (try_acquire().expect("two are free"), try_acquire().expect("one is free"));
    assert_eq!([one.permits.len(), two.permits.len()], [1, 1]);
    let busy = try_acquire().expect_err("none is free");
    assert!(busy.is_busy());
    assert_eq!((busy.rule(), busy.rule_id(), busy.retry_after()), (Some("concurrency"), RuleId(1), None));
    assert_eq!(
        busy.to_string(),
        "rule \"concurrency\": 1 of 2 permits are not available: too few are free, or earlier requests wait for them; \
         retry later or wait"
    );
    let busy = check(&policy, &BOTH_RULES);
    assert_eq!((busy.decision.outcome, busy.decision.rule), (Outcome::Busy, RuleId(1)));
    assert!(busy.permits.is_empty());
    assert_eq!(left(&policy, &BOTH_RULES), [1, 0]); // the rate was not charged for it
    drop(one);
    let three = try_acquire().expect("one was released");
    assert!(three.is_allowed());
    two.permits.succeeded();
    three.permits.overloaded();
    assert_eq!(left(&policy, &BOTH_RULES), [0, 2]);
}

#[test]
fn request_denied_by_the_rate_holds_no_permit() {
    let policy = rate_and_concurrency(&ManualClock::new());
    assert!(check(&policy, &[BOTH_RULES[0].cost(3)]).is_allowed());
    let refused = check(&policy, &BOTH_RULES);
    assert!(matches!(refused.decision.outcome, Outcome::RetryAfter(_)));
    assert!(refused.permits.is_empty());
    assert_eq!(left(&policy, &BOTH_RULES), [0, 2]);
}

/// The release of a permit cannot be predicted, so the rate's retry instant is not reported.
#[test]
fn busy_is_stricter_than_a_wait() {
    let policy = rate_and_concurrency(&ManualClock::new());
    let work: Vec<Admission> = (0..2).map(|_| check(&policy, &BOTH_RULES)).collect();
    assert!(check(&policy, &BOTH_RULES[..1]).is_allowed());
    let refused = check(&policy, &BOTH_RULES).decision;
    assert_eq!((refused.outcome, refused.retry_after()), (Outcome::Busy, None));
    drop(work);
}

/// Remaining counts are as found, not as if charged; also for a permit that was taken before another was
/// found missing.
#[test]
fn check_each_reports_rates_and_permits_uncharged_when_denied() {
    let built = Policy::builder()
        .rule("rate", Quota::per_second(3))
        .concurrency("free", 5)
        .concurrency("busy", 1)
        .clock(ManualClock::new())
        .build();
    let policy = built.expect("a valid policy");
    let request = [0, 1, 2].map(|rule| Part::of(RuleId(rule)));
    let passed = policy.check_each_parts(&request).expect("a valid request");
    assert_eq!((remaining(&passed.rules), passed.permits.len()), (vec![2, 4, 0], 2));
    let refused = policy.check_each_parts(&request).expect("a valid request");
    assert_eq!((remaining(&refused.rules), refused.permits.len()), (vec![2, 4, 0], 0));
    assert_eq!(refused.decision.outcome, Outcome::Busy);
}

#[test]
fn each_key_has_its_own_permits_and_resize_changes_their_number() {
    let policy = rate_and_concurrency(&ManualClock::new());
    let concurrent = |key: &'static str| policy.request().rule_for("concurrency", key);
    let alice = [(); 2].map(|()| concurrent("alice").try_acquire().expect("two are free"));
    assert!(concurrent("alice").try_acquire().expect_err("none is free").is_busy());
    assert!(concurrent("bob").try_acquire().is_ok());
    policy.resize("concurrency", 3).expect("there is such a rule");
    assert!(concurrent("alice").try_acquire().is_ok());
    let never = concurrent("carol").cost(4).try_acquire().expect_err("four of three");
    assert!(never.is_never());
    assert_eq!(
        never.to_string(),
        "rule \"concurrency\": cost 4 exceeds the limit of 3: it can never be allowed; use 3 or less"
    );
    let never = check(&policy, &[Part::of(RuleId(1)).key("carol").cost(4)]).decision;
    assert_eq!((never.outcome, never.limit()), (Outcome::Never, 3));
    drop(alice);
}

// --- laws

/// A policy of one rule decides as a limiter does.
#[test]
fn policy_of_one_rule_decides_as_a_limiter() {
    let mut without_room = 0;
    for rule in [
        "7/s burst 5",
        "fixed_window 5/s",
        "sliding_log 5/s",
        "sliding_window 5/s cells 5",
        "999983/s burst 9",
    ] {
        let rule: Rule = rule.parse().expect("a rule");
        let clock = ManualClock::new();
        let built = Policy::builder().rule("only", rule).max_keys(8).clock(clock.clone()).build();
        let policy = built.expect("a valid policy");
        let limiter = KeyedLimiter::<String, _>::builder_with(rule).max_keys(8).clock(clock.clone()).build();
        let mut random = Random::seeded(7);
        for _ in 0..5_000 {
            clock.advance(Duration::from_micros(random.below(200_000)));
            let key = random.below(12).to_string(); // more than there is room for
            let cost = u32::try_from(random.below(4)).expect("a small cost");
            let ours = check(&policy, &[Part::of(RuleId(0)).key(&key).cost(cost)]).decision;
            let theirs = limiter.request(key.as_str()).cost(cost).check();
            // The retry instant of a full table depends on random key positions; whether it is full does not.
            let no_room = ours.source == Source::Closed && theirs.source == Source::Closed;
            assert!(no_room || ours == theirs, "{rule:?}, {key}, {cost}: {ours:?}, {theirs:?}");
        }
        assert_eq!(policy.stats("only").expect("a rate").refused, limiter.stats().refused);
        without_room += limiter.stats().refused;
    }
    assert!(without_room > 0, "there were more keys than room");
}

/// A clock that steps back adds no quota, and even a denial repairs the state that the step made impossible.
#[test]
fn denial_repairs_a_state_left_in_the_future_by_a_clock_step() {
    let clock = SettableClock::new();
    let built = PolicyBuilder::<TokenBucket>::new()
        .rule("a", Quota::per_second(2))
        .rule("b", Quota::per_second(2))
        .clock(clock.clone())
        .build();
    let policy = built.expect("a valid policy");
    let check = || policy.request().rule("a").rule("b").check().expect("a valid request");
    clock.set(Micros::new(3_600_000_000));
    assert!((0..2).all(|_| check().is_allowed()));
    clock.set(Micros::ZERO); // an hour back
    let refused = check();
    assert_eq!(refused.outcome, Outcome::RetryAfter(Wait::micros(500_000)));
    clock.set(Micros::new(500_000));
    assert!(check().is_allowed());
}

/// With room for one key, the second new key is denied, and its request is not charged by other rules.
#[test]
fn new_key_without_room_is_denied_and_its_request_not_charged() {
    let built = Policy::builder()
        .rule("global", Quota::per_second(10))
        .rule("user", SlidingLog::new(Quota::per_second(2)))
        .max_keys(1)
        .clock(ManualClock::new())
        .build();
    let policy = built.expect("a valid policy");
    let of = |user| [Part::of(RuleId(0)), Part::of(RuleId(1)).key(user)];
    assert!(check(&policy, &of("alice")).is_allowed());
    let refused = check(&policy, &of("bob")).decision;
    assert_eq!((refused.source, refused.rule), (Source::Closed, RuleId(1)));
    assert_eq!(left(&policy, &[Part::of(RuleId(0))]), [9]);
    // With two new keys in one request the second finds no room either, and the first is not inserted alone.
    policy.request().rule_for("user", "alice").reset().expect("a valid request");
    let both = [Part::of(RuleId(1)).key("carol"), Part::of(RuleId(1)).key("dave")];
    assert_eq!(check(&policy, &both).decision.source, Source::Closed);
    assert!(check(&policy, &both[..1]).is_allowed());
}

#[derive(Default)]
struct Seen([AtomicU64; 2]);

impl Observer for Seen {
    fn allowed(&self, _: &Decision, charges: &[Charge<'_>]) {
        assert_eq!(costs(charges), [("global", 1), ("company", 1), ("user", 1)]);
        self.0[0].fetch_add(1, Ordering::Relaxed);
    }

    fn denied(&self, decision: &Decision, charges: &[Charge<'_>]) {
        assert_eq!(decision.rule, USER);
        assert_eq!(costs(charges), [("global", 1), ("company", 1), ("user", 1)]);
        self.0[1].fetch_add(1, Ordering::Relaxed);
    }
}

fn costs<'a>(charges: &[Charge<'a>]) -> Vec<(&'a str, u32)> {
    charges.iter().map(|charge| (charge.rule, charge.cost)).collect()
}

#[test]
fn observer_sees_decisions_but_not_peeks() {
    let seen = Arc::new(Seen::default());
    let rules = rules().clock(ManualClock::new()).observer(seen.clone());
    let policy = rules.build().expect("a valid policy");
    for _ in 0..3 {
        let _ = decide(&policy, "acme", "alice");
    }
    assert!(!request(&policy, "acme", "alice").peek().expect("a valid request").is_allowed()); // not observed
    assert_eq!(seen.0.each_ref().map(|count| count.load(Ordering::Relaxed)), [2, 1]);
}

// --- invalid policies and invalid requests

#[test]
fn policy_needs_rules_with_distinct_names() {
    assert_eq!(Policy::builder().build().unwrap_err(), InvalidPolicy::NoRules);
    let twice =
        Policy::builder().rule("user", Quota::per_second(1)).concurrency("user", 1).build().unwrap_err();
    assert_eq!(twice.to_string(), "two rules are named \"user\"; give each rule its own name");
    let many =
        (0..65_536).fold(Policy::builder(), |builder, n| builder.rule(n.to_string(), Quota::per_second(1)));
    assert_eq!(many.build().unwrap_err(), InvalidPolicy::TooManyRules { rules: 65_536 });
}

#[test]
fn invalid_request_is_rejected_and_charges_nothing() {
    let policy = policy(&ManualClock::new());
    let refused = |request: &[Part<'_>]| policy.check_parts(request).unwrap_err();
    assert_eq!(refused(&[]), InvalidRequest::Empty);
    assert_eq!(
        refused(&[Part::of(GLOBAL), Part::of(RuleId(3))]),
        InvalidRequest::UnknownRule { rule: RuleId(3), rules: 3 }
    );
    let twice = [Part::of(USER).key("alice"), Part::of(GLOBAL), Part::of(USER).key("alice").cost(2)];
    assert_eq!(refused(&twice), InvalidRequest::SameKeyTwice { rule: USER });
    assert_eq!(
        refused(&twice).to_string(),
        "the request names rule number 2 twice for one key; name it once, with the sum of the costs"
    );
    assert!(
        policy.request().parts(&twice).refund().is_err()
            && policy.request().parts(&[]).reset().is_err()
            && policy.request().parts(&twice).peek().is_err()
    );
    assert!(policy.change("unknown", Quota::per_second(1)).is_err() && policy.resize("user", 1).is_err());
    assert_eq!(left(&policy, &of("acme", "alice")), [10, 5, 2]);
    assert_eq!((policy.id("user"), policy.id("unknown"), policy.name(RuleId(9))), (Some(USER), None, None));
}

/// A request by name keeps its first mistake until the operation, which reports it.
#[test]
fn invalid_request_by_name_is_rejected_and_charges_nothing() {
    let policy = policy(&ManualClock::new());
    let unknown = policy.request().rule("global").rule("usr").rule("compny").check().unwrap_err();
    assert_eq!(unknown, InvalidRequest::no_rule_named("usr", ["global", "company", "user"]));
    assert_eq!(
        unknown.to_string(),
        "there is no rule \"usr\"; the rules are \"global\", \"company\", \"user\""
    );
    let refused = policy.request().rule("usr").try_acquire().unwrap_err();
    assert_eq!((refused.invalid_request(), refused.rule()), (Some(&policy_error("usr")), None));
    assert_eq!(policy.request().check().unwrap_err(), InvalidRequest::Empty);
    let twice = policy.request().rule("global").rule_for("user", "alice").rule_for("user", "alice");
    assert_eq!(twice.check_each().unwrap_err(), InvalidRequest::SameKeyTwice { rule: USER });
    let parts = [Part::of(GLOBAL)];
    let twice = policy.request().rule_for("user", "alice").parts(&parts).parts(&parts);
    assert_eq!(twice.check().unwrap_err(), InvalidRequest::PartsTwice);
    let twice = policy.request().rule("global").parts(&parts);
    assert_eq!(twice.check().unwrap_err(), InvalidRequest::SameKeyTwice { rule: GLOBAL });
    assert_eq!(policy.change("usr", Quota::per_second(1)).unwrap_err(), policy_error("usr"));
    assert_eq!(policy.resize("user", 1).unwrap_err(), InvalidRequest::WrongKind { rule: "user".into() });
    assert_eq!(left(&policy, &of("acme", "alice")), [10, 5, 2]);
}

fn policy_error(name: &str) -> InvalidRequest {
    InvalidRequest::no_rule_named(name, ["global", "company", "user"])
}

/// `check` returns no permit, so it rejects concurrency limits instead of releasing their permit.
#[test]
fn check_rejects_concurrency_limits() {
    let policy = rate_and_concurrency(&ManualClock::new());
    let both = || policy.request().rule("rate").rule("concurrency");
    let needs_permit = InvalidRequest::NeedsPermit { rule: "concurrency".into() };
    assert_eq!(both().check().unwrap_err(), needs_permit);
    assert_eq!(both().check_each().unwrap_err(), needs_permit);
    assert!(both().peek().expect("a valid request").is_allowed());
    assert_eq!(
        policy.change("concurrency", Quota::per_second(1)).unwrap_err(),
        InvalidRequest::WrongKind { rule: "concurrency".into() }
    );
    assert!(policy.stats("concurrency").is_none());
    assert_eq!(left(&policy, &BOTH_RULES), [3, 2]);
}

/// A concurrency limit without room for another key is closed, not busy, as for a request that waits.
#[test]
fn try_acquire_without_room_for_the_key_is_closed() {
    let rules = Policy::builder().concurrency("concurrency", 1).max_keys(1);
    let policy = rules.clock(ManualClock::new()).build().expect("a valid policy");
    let request = |key: &'static str| policy.request().rule_for("concurrency", key);
    let held = request("alice").try_acquire().expect("one is free");
    let no_room = request("bob").try_acquire().expect_err("another key");
    assert!(no_room.is_closed() && !no_room.is_busy());
    assert_eq!(no_room, request("bob").acquire_blocking().expect_err("another key"));
    drop(held);
}

/// Named rules take the cost of the request, however many they are; parts keep their own.
#[test]
fn named_rules_and_parts_are_decided_together() {
    for named in 0..=6 {
        let policy = policy(&ManualClock::new());
        let keys: Vec<String> = (0..named).map(|number| number.to_string()).collect();
        let parts = [Part::of(GLOBAL).cost(7), Part::of(COMPANY).key("acme")];
        let request = || {
            let request = policy.request().parts(&parts).cost(2);
            keys.iter().fold(request, |request, key| request.rule_for("user", key))
        };
        let decisions = request().check_each().expect("a valid request").rules;
        let rules: Vec<RuleId> = decisions.iter().map(|it| it.rule).collect();
        let mut want = vec![USER; named];
        want.extend([GLOBAL, COMPANY]);
        assert_eq!(rules, want, "rules by name come first");
        let users: Vec<Part<'_>> = keys.iter().map(|key| Part::of(USER).key(key)).collect();
        assert_eq!(left(&policy, &users), vec![0; named]);
        assert_eq!(left(&policy, &parts), [3, 4]);
        assert!(!request().check().expect("a valid request").is_allowed());
        assert_eq!(left(&policy, &parts), [3, 4]);
        request().refund().expect("a valid request");
        assert_eq!((left(&policy, &users), left(&policy, &parts)), (vec![2; named], vec![10, 5]));
    }
}
