//! A day in the life of a policy: several limits, one answer.

#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use random::Random;
use tidegate::{
    Admission, Decision, FixedWindow, InvalidPolicy, InvalidRequest, KeyedLimiter, ManualClock, Observer,
    Outcome, Part, Policy, PolicyBuilder, Quota, Rule, RuleId, SettableClock, SlidingLog, Source,
    TokenBucket, Wait,
};

const EVERYBODY: RuleId = RuleId(0);
const COMPANY: RuleId = RuleId(1);
const USER: RuleId = RuleId(2);

/// A bucket of ten for everybody, a window of five per company, a log of two per user; each in a second.
fn policy(clock: &ManualClock) -> Policy<Rule, ManualClock> {
    let built = Policy::builder()
        .rule("everybody", Quota::per_second(10))
        .rule("company", FixedWindow::new(Quota::per_second(5)))
        .rule("user", SlidingLog::new(Quota::per_second(2)))
        .build();
    built.expect("a valid policy").with_clock(clock.clone())
}

fn of<'a>(company: &'a str, user: &'a str) -> [Part<'a>; 3] {
    [Part::of(EVERYBODY), Part::of(COMPANY).key(company), Part::of(USER).key(user)]
}

fn left<C: tidegate::Clock>(policy: &Policy<Rule, C>, request: &[Part<'_>]) -> Vec<u64> {
    let left = |part: &Part<'_>| policy.peek(&[part.cost(0)]).expect("a valid request").remaining();
    request.iter().map(left).collect()
}

fn ask(policy: &Policy<Rule, ManualClock>, request: &[Part<'_>]) -> Admission {
    policy.check(request).expect("a valid request")
}

#[test]
fn who_passes_is_charged_by_every_rule() {
    let policy = policy(&ManualClock::new());
    assert!(ask(&policy, &of("acme", "alice")).is_allowed());
    assert_eq!(left(&policy, &of("acme", "alice")), [9, 4, 1]);
    assert_eq!(left(&policy, &of("acme", "bob")), [9, 4, 2]);
    assert_eq!(left(&policy, &of("other", "alice")), [9, 5, 1]);
}

#[test]
fn who_is_refused_is_charged_by_none_and_told_by_whom() {
    let clock = ManualClock::new();
    let policy = policy(&clock);
    assert!((0..2).all(|_| ask(&policy, &of("acme", "alice")).is_allowed()));
    clock.advance(Duration::from_millis(300));
    let refused = ask(&policy, &of("acme", "alice")).decision;
    assert_eq!(refused.outcome, Outcome::RetryAfter(Wait::micros(700_000)));
    assert_eq!((refused.rule, policy.name(refused.rule)), (USER, Some("user")));
    assert_eq!(left(&policy, &of("acme", "alice")), [10, 3, 0]); // everybody's has filled up meanwhile
}

#[test]
fn the_longest_wait_is_the_answer_and_is_exact() {
    let clock = ManualClock::new();
    let policy = policy(&clock);
    assert!((0..2).all(|_| ask(&policy, &of("acme", "alice")).is_allowed()));
    assert!((0..3).all(|number| ask(&policy, &of("acme", &number.to_string())).is_allowed()));
    clock.advance(Duration::from_millis(100));
    assert!(ask(&policy, &of("other", "alice").map(|part| part.cost(0))).is_allowed());
    // Both the company, until its window ends, and the user refuse.
    let refused = ask(&policy, &of("acme", "alice")).decision;
    let wait = refused.retry_after().expect("refused for now");
    clock.advance(wait.duration() - Duration::from_micros(1));
    assert!(!ask(&policy, &of("acme", "alice")).is_allowed());
    clock.advance(Duration::from_micros(1));
    assert!(ask(&policy, &of("acme", "alice")).is_allowed());
}

#[test]
fn each_part_has_its_own_cost() {
    let policy = policy(&ManualClock::new());
    let request = [Part::of(EVERYBODY).cost(7), Part::of(USER).key("alice").cost(2)];
    assert!(ask(&policy, &request).is_allowed());
    assert_eq!(left(&policy, &request), [3, 0]);
    let never = ask(&policy, &[Part::of(EVERYBODY), Part::of(USER).key("bob").cost(3)]).decision;
    assert_eq!((never.outcome, never.rule), (Outcome::Never, USER));
    assert_eq!(left(&policy, &request), [3, 0]);
}

#[test]
fn a_rule_may_be_asked_for_several_keys() {
    let policy = policy(&ManualClock::new());
    let transfer = [Part::of(USER).key("from"), Part::of(USER).key("to")];
    assert!(ask(&policy, &transfer).is_allowed());
    assert!(ask(&policy, &transfer[1..]).is_allowed());
    assert!(!ask(&policy, &transfer).is_allowed());
    assert_eq!(left(&policy, &transfer), [1, 0]);
}

#[test]
fn each_part_says_what_it_found() {
    let policy = policy(&ManualClock::new());
    let passed = policy.check_each(&of("acme", "alice")).expect("a valid request");
    assert_eq!(remaining(&passed), [9, 4, 1]);
    assert_eq!(passed.rules.iter().map(|it| it.rule).collect::<Vec<_>>(), [EVERYBODY, COMPANY, USER]);
    assert!(policy.check_each(&of("acme", "alice")).expect("a valid request").is_allowed());
    let refused = policy.check_each(&of("acme", "alice")).expect("a valid request");
    assert_eq!(remaining(&refused), [8, 3, 0]); // as found, not as if charged
    assert_eq!(refused.decision, refused.rules[2]);
}

fn remaining(admission: &Admission) -> Vec<u64> {
    admission.rules.iter().map(Decision::remaining).collect()
}

/// Each newcomer finds a place of its own, however many come with one request.
#[test]
fn a_crowd_of_newcomers_is_charged_each() {
    for crowd in [60, 64, 65, 500, 2_000] {
        let policy = policy(&ManualClock::new());
        let keys: Vec<String> = (0..crowd).map(|number| number.to_string()).collect();
        let request: Vec<Part<'_>> = keys.iter().map(|key| Part::of(USER).key(key)).collect();
        assert!((0..2).all(|_| ask(&policy, &request).is_allowed()), "of {crowd}");
        assert_eq!(left(&policy, &request), vec![0; crowd]);
        assert_eq!(policy.stats(USER).expect("a rate").keys, crowd);
    }
}

/// With a bucket, newcomers without room share cells, and their requests are all or nothing still.
#[test]
fn newcomers_without_room_share() {
    let built = Policy::builder()
        .rule("everybody", Quota::per_second(5))
        .rule("user", Quota::per_second(2))
        .max_keys(1)
        .build();
    let policy = built.expect("a valid policy").with_clock(ManualClock::new());
    let of = |user| [Part::of(RuleId(0)), Part::of(RuleId(1)).key(user)];
    assert!(ask(&policy, &of("alice")).is_allowed());
    let shared = ask(&policy, &of("bob")).decision;
    assert!(shared.is_allowed());
    assert_eq!((shared.rule, shared.source), (RuleId(1), Source::Sketch));
    assert!(ask(&policy, &of("bob")).is_allowed());
    let refused = policy.check_each(&of("bob")).expect("a valid request");
    assert_eq!((refused.decision.rule, refused.decision.source), (RuleId(1), Source::Sketch));
    assert_eq!(remaining(&refused), [2, 0]);
    assert_eq!(policy.peek(&[of("bob")[1].cost(0)]).expect("a valid request").remaining(), 0);
    // Refused by everybody's limit, a newcomer leaves nothing in the cells.
    assert!(ask(&policy, &[of("carol")[0].cost(2), of("carol")[1]]).is_allowed());
    assert!(!ask(&policy, &of("dave")).is_allowed());
    assert_eq!(policy.peek(&[of("dave")[1].cost(0)]).expect("a valid request").remaining(), 2);
}

/// Ten keys at once go the way of any number.
#[test]
fn many_parts_are_one_request() {
    let policy = policy(&ManualClock::new());
    let keys: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    let request: Vec<Part<'_>> = keys.iter().map(|key| Part::of(USER).key(key)).collect();
    assert!((0..2).all(|_| ask(&policy, &request).is_allowed()));
    assert!(!ask(&policy, &request).is_allowed());
    assert_eq!(left(&policy, &request), [0; 10]);
    assert!(ask(&policy, &[Part::of(EVERYBODY).cost(10)]).is_allowed());
}

#[test]
fn what_is_refunded_is_there_again_and_what_is_reset_is_forgotten() {
    let policy = policy(&ManualClock::new());
    assert!((0..2).all(|_| ask(&policy, &of("acme", "alice")).is_allowed()));
    policy.refund(&of("acme", "alice")[..2]).expect("a valid request");
    assert_eq!(left(&policy, &of("acme", "alice")), [9, 4, 0]);
    policy.reset(&of("acme", "alice")[1..]).expect("a valid request");
    assert_eq!(left(&policy, &of("acme", "alice")), [9, 5, 2]);
}

#[test]
fn a_changed_rule_keeps_what_was_used() {
    let policy = policy(&ManualClock::new());
    assert!(ask(&policy, &[Part::of(EVERYBODY).cost(8)]).is_allowed());
    policy.change(EVERYBODY, Quota::per_second(20)).expect("there is such a rule");
    assert_eq!(left(&policy, &[Part::of(EVERYBODY)]), [12]);
    // To another algorithm, with states of another size.
    policy.change(EVERYBODY, SlidingLog::new(Quota::per_second(9))).expect("there is such a rule");
    assert_eq!(left(&policy, &[Part::of(EVERYBODY)]), [1]);
}

/// nginx's `limit_req2.t`: a zone whose key is empty is not asked, and none is charged unless all let the request pass.
#[test]
fn several_zones_of_nginx_with_keys_of_their_own() {
    let zone = |text: &str| text.parse::<Rule>().expect("a rule");
    let clock = ManualClock::new();
    let built = Policy::builder()
        .rule("fast", zone("leaky_queue 1000/s queue 0 nginx"))
        .rule("slow", zone("leaky_queue 1/min queue 0 nginx"))
        .build();
    let policy = built.expect("a valid policy").with_clock(clock.clone());
    let mut ask_for = |keys: [&str; 2]| {
        let zones = [Part::of(RuleId(0)).key(keys[0]), Part::of(RuleId(1)).key(keys[1])];
        let request: Vec<Part<'_>> = zones.into_iter().filter(|part| !part.key.is_empty()).collect();
        let passed = ask(&policy, &request).is_allowed();
        clock.advance(Duration::from_millis(100));
        passed
    };
    let keys = [["1", ""], ["1", ""], ["", "1"], ["", "1"], ["2", "2"], ["2", "2"]];
    assert_eq!(keys.map(&mut ask_for), [true, true, true, false, true, false]);
    let zones = [Part::of(RuleId(0)).key("2").cost(0), Part::of(RuleId(1)).key("2").cost(0)];
    assert!(policy.peek(&zones).expect("a valid request").is_allowed());
}

/// Two zones let a request wait: it waits for the longer, and both are charged.
#[test]
fn the_longest_delay_wins() {
    let zone = |text: &str| text.parse::<Rule>().expect("a rule");
    let built = Policy::builder()
        .rule("a", zone("leaky_queue 1/s queue 5 nginx"))
        .rule("b", zone("leaky_queue 2/s queue 5 nginx"))
        .build();
    let policy = built.expect("a valid policy").with_clock(ManualClock::new());
    let request = [Part::of(RuleId(0)).key("k"), Part::of(RuleId(1)).key("k")];
    let after = |seconds: u64| Outcome::AllowedAfter(Wait::micros(seconds * 1_000_000));
    let outcomes: Vec<Outcome> = (0..3).map(|_| ask(&policy, &request).decision.outcome).collect();
    assert_eq!(outcomes, [Outcome::Allowed, after(1), after(2)]);
    assert_eq!(left(&policy, &request), [3, 3]);
}

// --- how many are at work

/// Three a second, and two at work for each.
fn with_work(clock: &ManualClock) -> Policy<Rule, ManualClock> {
    let built = Policy::builder().rule("rate", Quota::per_second(3)).concurrency("at work", 2).build();
    built.expect("a valid policy").with_clock(clock.clone())
}

const WORK: [Part<'static>; 2] = [Part::of(RuleId(0)), Part::of(RuleId(1))];

#[test]
fn a_permit_is_held_until_it_is_dropped() {
    let clock = ManualClock::new();
    let policy = with_work(&clock);
    let (one, two) = (ask(&policy, &WORK), ask(&policy, &WORK));
    assert_eq!([one.permits.len(), two.permits.len()], [1, 1]);
    let busy = ask(&policy, &WORK);
    assert_eq!((busy.decision.outcome, policy.name(busy.decision.rule)), (Outcome::Busy, Some("at work")));
    assert!(busy.permits.is_empty());
    assert_eq!(left(&policy, &WORK), [1, 0]); // the rate was not charged for it
    drop(one);
    let three = ask(&policy, &WORK);
    assert!(three.is_allowed());
    two.permits.succeeded();
    three.permits.overloaded();
    assert_eq!(left(&policy, &WORK), [0, 2]);
}

#[test]
fn who_is_refused_by_the_rate_holds_no_permit() {
    let policy = with_work(&ManualClock::new());
    assert!(ask(&policy, &[WORK[0].cost(3)]).is_allowed());
    let refused = ask(&policy, &WORK);
    assert!(matches!(refused.decision.outcome, Outcome::RetryAfter(_)));
    assert!(refused.permits.is_empty());
    assert_eq!(left(&policy, &WORK), [0, 2]);
}

/// Nobody can say when a permit is free, so what the rate promises cannot be promised.
#[test]
fn busy_is_stricter_than_a_wait() {
    let policy = with_work(&ManualClock::new());
    let work: Vec<Admission> = (0..2).map(|_| ask(&policy, &WORK)).collect();
    assert!(ask(&policy, &WORK[..1]).is_allowed());
    let refused = ask(&policy, &WORK).decision;
    assert_eq!((refused.outcome, refused.retry_after()), (Outcome::Busy, None));
    drop(work);
}

/// As found, not as if charged; also what a permit was taken of before another was found missing.
#[test]
fn each_part_says_what_it_found_beside_permits() {
    let built = Policy::builder()
        .rule("rate", Quota::per_second(3))
        .concurrency("free", 5)
        .concurrency("busy", 1)
        .build();
    let policy = built.expect("a valid policy").with_clock(ManualClock::new());
    let request = [0, 1, 2].map(|rule| Part::of(RuleId(rule)));
    let passed = policy.check_each(&request).expect("a valid request");
    assert_eq!((remaining(&passed), passed.permits.len()), (vec![2, 4, 0], 2));
    let refused = policy.check_each(&request).expect("a valid request");
    assert_eq!((remaining(&refused), refused.permits.len()), (vec![2, 4, 0], 0));
    assert_eq!(refused.decision.outcome, Outcome::Busy);
}

#[test]
fn each_key_has_permits_of_its_own_and_they_can_be_more_or_fewer() {
    let policy = with_work(&ManualClock::new());
    let at_work = |key: &'static str| [Part::of(RuleId(1)).key(key)];
    let alice: Vec<Admission> = (0..2).map(|_| ask(&policy, &at_work("alice"))).collect();
    assert_eq!(ask(&policy, &at_work("alice")).decision.outcome, Outcome::Busy);
    assert!(ask(&policy, &at_work("bob")).is_allowed());
    policy.resize(RuleId(1), 3).expect("there is such a rule");
    assert!(ask(&policy, &at_work("alice")).is_allowed());
    let never = ask(&policy, &[Part::of(RuleId(1)).key("carol").cost(4)]).decision;
    assert_eq!((never.outcome, never.limit()), (Outcome::Never, 3));
    drop(alice);
}

// --- laws

/// What a policy of one rule decides is what a limiter decides.
#[test]
fn a_policy_of_one_rule_is_a_limiter() {
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
        let built = Policy::builder().rule("only", rule).max_keys(8).build();
        let policy = built.expect("a valid policy").with_clock(clock.clone());
        let limiter = KeyedLimiter::<String, _>::with(rule).max_keys(8).with_clock(clock.clone());
        let mut random = Random::seeded(7);
        for _ in 0..5_000 {
            clock.advance(Duration::from_micros(random.below(200_000)));
            let key = random.below(12).to_string(); // more than there is room for
            let cost = u32::try_from(random.below(4)).expect("a small cost");
            let ours = ask(&policy, &[Part::of(RuleId(0)).key(&key).cost(cost)]).decision;
            let theirs = limiter.cost(cost).check(key.as_str());
            // When there will be room depends on where keys live by chance; whether there is does not.
            let no_room = ours.source == Source::Closed && theirs.source == Source::Closed;
            assert!(no_room || ours == theirs, "{rule:?}, {key}, {cost}: {ours:?}, {theirs:?}");
        }
        assert_eq!(policy.stats(RuleId(0)).expect("a rate").refused, limiter.stats().refused);
        without_room += limiter.stats().refused;
    }
    assert!(without_room > 0, "there were more keys than room");
}

/// A clock that steps back mints nothing, and the state that it makes impossible is pulled back even by a refusal.
#[test]
fn a_refusal_pulls_back_what_a_step_back_left_behind() {
    let clock = SettableClock::new();
    let built = PolicyBuilder::<TokenBucket>::new()
        .rule("a", Quota::per_second(2))
        .rule("b", Quota::per_second(2))
        .build();
    let policy = built.expect("a valid policy").with_clock(clock.clone());
    let request = [Part::of(RuleId(0)), Part::of(RuleId(1))];
    clock.set(tidegate::Micros::new(3_600_000_000));
    assert!((0..2).all(|_| policy.check(&request).expect("valid").is_allowed()));
    clock.set(tidegate::Micros::ZERO); // an hour back
    let refused = policy.check(&request).expect("valid").decision;
    assert_eq!(refused.outcome, Outcome::RetryAfter(Wait::micros(500_000)));
    clock.set(tidegate::Micros::new(500_000));
    assert!(policy.check(&request).expect("valid").is_allowed());
}

/// With room for one key, the second newcomer is refused for want of it, and its request spends nothing elsewhere.
#[test]
fn a_newcomer_without_room_is_refused_and_spends_nothing() {
    let built = Policy::builder()
        .rule("everybody", Quota::per_second(10))
        .rule("user", SlidingLog::new(Quota::per_second(2)))
        .max_keys(1)
        .build();
    let policy = built.expect("a valid policy").with_clock(ManualClock::new());
    let of = |user| [Part::of(RuleId(0)), Part::of(RuleId(1)).key(user)];
    assert!(ask(&policy, &of("alice")).is_allowed());
    let refused = ask(&policy, &of("bob")).decision;
    assert_eq!((refused.source, refused.rule), (Source::Closed, RuleId(1)));
    assert_eq!(left(&policy, &[Part::of(RuleId(0))]), [9]);
    // Both at once find no room for the second either, and the first is not let in alone.
    policy.reset(&[of("alice")[1]]).expect("a valid request");
    let both = [Part::of(RuleId(1)).key("carol"), Part::of(RuleId(1)).key("dave")];
    assert_eq!(ask(&policy, &both).decision.source, Source::Closed);
    assert!(ask(&policy, &both[..1]).is_allowed());
}

#[derive(Default)]
struct Seen([AtomicU64; 2]);

impl Observer for Seen {
    fn allowed(&self, _: &Decision) {
        self.0[0].fetch_add(1, Ordering::Relaxed);
    }

    fn denied(&self, decision: &Decision) {
        assert_eq!(decision.rule, USER);
        self.0[1].fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn an_observer_sees_what_is_decided() {
    let seen = Arc::new(Seen::default());
    let policy = policy(&ManualClock::new()).with_observer(seen.clone());
    for _ in 0..3 {
        let _ = ask(&policy, &of("acme", "alice"));
    }
    assert!(!policy.peek(&of("acme", "alice")).expect("valid").is_allowed()); // not seen: nothing was decided
    assert_eq!(seen.0.each_ref().map(|count| count.load(Ordering::Relaxed)), [2, 1]);
}

// --- what is no policy, and what is no request

#[test]
fn names_must_differ_and_there_must_be_some() {
    assert_eq!(Policy::builder().build().unwrap_err(), InvalidPolicy::NoRules);
    let twice =
        Policy::builder().rule("user", Quota::per_second(1)).concurrency("user", 1).build().unwrap_err();
    assert_eq!(
        twice.to_string(),
        "two rules are named \"user\"; decisions could not tell them apart, so rename one"
    );
    let many =
        (0..65_536).fold(Policy::builder(), |builder, n| builder.rule(n.to_string(), Quota::per_second(1)));
    assert_eq!(many.build().unwrap_err(), InvalidPolicy::TooManyRules { rules: 65_536 });
}

#[test]
fn what_is_no_request_is_told_so_and_charges_nothing() {
    let policy = policy(&ManualClock::new());
    let refused = |request: &[Part<'_>]| policy.check(request).unwrap_err();
    assert_eq!(refused(&[]), InvalidRequest::Empty);
    assert_eq!(
        refused(&[Part::of(EVERYBODY), Part::of(RuleId(3))]),
        InvalidRequest::UnknownRule { rule: RuleId(3), rules: 3 }
    );
    let twice = [Part::of(USER).key("alice"), Part::of(EVERYBODY), Part::of(USER).key("alice").cost(2)];
    assert_eq!(refused(&twice), InvalidRequest::SameKeyTwice { rule: USER });
    assert_eq!(
        refused(&twice).to_string(),
        "rule 2 is asked twice for one key; ask once, with the sum of the costs"
    );
    assert!(policy.refund(&twice).is_err() && policy.reset(&[]).is_err() && policy.peek(&twice).is_err());
    assert!(policy.change(RuleId(9), Quota::per_second(1)).is_err() && policy.resize(USER, 1).is_err());
    assert_eq!(left(&policy, &of("acme", "alice")), [10, 5, 2]);
    assert_eq!((policy.id("user"), policy.id("nobody"), policy.name(RuleId(9))), (Some(USER), None, None));
}
