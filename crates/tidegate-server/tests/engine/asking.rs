//! A call with descriptors, and what becomes of it.

use std::time::Duration;

use tidegate_server::engine::{Fault, Verdict};
use tidegate_server::rules::{Call, Listed, Refusal};

use crate::support::{Asked, binding};

const RULES: &str = r#"
allow: [{ip: {cidr: 127.0.0.0/8}}]
deny: [{agent: "*BadBot*"}]
rules:
  - name: everybody
    quota: 10/s
  - name: per user
    match: {user: "*"}
    key: user
    quota: [5/s, fixed_window 7/day]
    overrides: [{match: {plan: gold}, quota: 8/s}]
    allow: {user: health}
    deny: {user: mallory}
  - name: bytes
    match: {path: /upload}
    key: tenant
    missing: reject
    cost: {from: bytes, per: 10}
    quota: 100/s
"#;

#[test]
fn a_request_passes_all_rules_that_match_it_or_is_charged_by_none() {
    let asked = Asked::new(RULES);
    for left in (0..5).rev() {
        let decided = asked.check(&[("user", "alice")]);
        assert_eq!(decided.decision().map(|decision| decision.remaining()), Some(left));
    }
    let refused = asked.check(&[("user", "alice")]);
    assert!(!refused.is_allowed());
    assert_eq!(binding(&asked.engine.in_force(), &refused), "per user");
    assert_eq!(asked.left("everybody", ""), 5, "the sixth cost nothing anywhere");
    assert!(asked.passes(&[("user", "bob")]));
    assert_eq!(asked.left("everybody", ""), 4);
}

#[test]
fn all_quotas_of_a_rule_count() {
    let asked = Asked::new(RULES);
    assert!((0..5).all(|_| asked.passes(&[("user", "alice")])));
    asked.clock.advance(Duration::from_secs(1));
    assert!((0..2).all(|_| asked.passes(&[("user", "alice")])));
    let refused = asked.check(&[("user", "alice")]);
    let decision = refused.decision().expect("by a limit");
    assert!(!refused.is_allowed() && decision.limit() == 7, "seven a day");
    assert_eq!(asked.engine.in_force().limit(decision.rule).expect("a limit").identity.name, "per user/2");
}

#[test]
fn an_override_counts_for_itself() {
    let asked = Asked::new(RULES);
    assert!((0..5).all(|_| asked.passes(&[("user", "alice")])));
    let gold = asked.check(&[("user", "alice"), ("plan", "gold")]);
    assert_eq!(gold.decision().map(|decision| (decision.limit(), decision.remaining())), Some((10, 4)));
    assert!((0..4).all(|_| asked.passes(&[("user", "alice"), ("plan", "gold")])));
    assert_eq!(binding(&asked.engine.in_force(), &asked.check(&[("user", "bob")])), "everybody");
}

#[test]
fn lists_decide_without_any_limit() {
    let asked = Asked::new(RULES);
    let rows: [(&[(&str, &str)], Verdict); 5] = [
        (&[("ip", "127.0.0.1"), ("user", "mallory")], Verdict::Exempt),
        (&[("ip", "127.0.0.1"), ("agent", "a BadBot 1")], Verdict::Denied),
        (&[("user", "mallory")], Verdict::Refused { rule: 1, refusal: Refusal::Denied }),
        (&[("path", "/upload"), ("bytes", "5")], Verdict::Refused { rule: 2, refusal: Refusal::KeyMissing }),
        (
            &[("path", "/upload"), ("tenant", "t")],
            Verdict::Refused { rule: 2, refusal: Refusal::CostMissing },
        ),
    ];
    for (descriptors, verdict) in rows {
        assert_eq!(asked.check(descriptors).verdict, verdict, "{descriptors:?}");
    }
    assert_eq!(asked.left("everybody", ""), 10, "nobody was charged");
    assert_eq!(binding(&asked.engine.in_force(), &asked.check(&[("user", "health")])), "everybody");
    assert_eq!(Asked::new("rules: []").check(&[("user", "alice")]).verdict, Verdict::Unlimited);
}

#[test]
fn the_cost_is_what_the_rule_says() {
    let asked = Asked::new(RULES);
    assert!(asked.passes(&[("path", "/upload"), ("tenant", "t"), ("bytes", "95")]));
    assert_eq!(asked.left("bytes", "t"), 90);
    let three = Call::of(&[("user", "alice")]).cost(3);
    assert!(asked.put(&three, |question| question.check()).expect("valid").is_allowed());
    assert_eq!([asked.left("per user", "alice"), asked.left("everybody", "")], [2, 6]);
    assert!(asked.put(&three, |question| question.refund()).expect("valid").is_allowed());
    assert_eq!([asked.left("per user", "alice"), asked.left("everybody", "")], [5, 9]);
    let told = asked.put(&three, |question| question.peek()).expect("valid").decision().expect("by a limit");
    assert_eq!((told.remaining(), asked.left("everybody", "")), (2, 9), "a look costs nothing");
}

#[test]
fn what_is_reset_is_forgotten() {
    let asked = Asked::new(RULES);
    assert!((0..5).all(|_| asked.passes(&[("user", "alice")])));
    let told = asked.put(&Call::of(&[("user", "alice")]), |question| question.reset()).expect("valid");
    assert_eq!(told.decision().map(|decision| decision.remaining()), Some(5));
    assert_eq!([asked.left("per user", "alice"), asked.left("everybody", "")], [5, 10]);
}

/// By name and by descriptors there is one count.
#[test]
fn a_rule_that_is_named_is_the_same_rule() {
    let asked = Asked::new(RULES);
    let rules = asked.engine.in_force();
    let user = rules.rule(b"per user").expect("a rule");
    let named = |key: &str, cost| {
        let question = rules.ask().rule(user, [key.as_bytes()].into_iter(), cost);
        question.check().now().expect("in memory").expect("valid")
    };
    assert!(asked.passes(&[("user", "alice")]));
    assert_eq!(named("alice", Some(2)).decision().map(|decision| decision.remaining()), Some(2));
    assert_eq!(asked.left("per user", "alice"), 2);
    assert_eq!(named("mallory", None).verdict, Verdict::Refused { rule: user, refusal: Refusal::Denied });
    assert_eq!(named("health", None).verdict, Verdict::Unlimited);
}

#[test]
fn a_key_of_several_parts_is_named_part_by_part() {
    let asked = Asked::new("rules: [{name: r, key: [tenant, {address: ip}], missing: skip, quota: 5/h}]");
    assert!(asked.passes(&[("tenant", "a"), ("ip", "::ffff:10.0.0.1")]));
    let rules = asked.engine.in_force();
    let look = |parts: [&[u8]; 2]| {
        let seen = rules.ask().rule(0, parts.into_iter(), Some(0)).peek().now().expect("in memory");
        seen.expect("valid").decision().map(|decision| decision.remaining())
    };
    assert_eq!(look([b"a", b"10.0.0.1"]), Some(4));
    assert_eq!(look([b"b", b"10.0.0.1"]), Some(5));
    assert_eq!(look([b"a", b"nonsense"]), None, "no address is none, and such requests are skipped");
    assert_eq!(look([b"\xff", b"10.0.0.1"]), Some(5));
}

#[test]
fn rules_that_only_watch_refuse_nobody_and_count_what_they_would_have_done() {
    let asked = Asked::new(
        "rules:\n  - {name: enforced, quota: 5/h}\n  - {name: watched, key: user, missing: reject, quota: 2/h, shadow: true}\n",
    );
    let told: Vec<_> = (0..4).map(|_| asked.check(&[("user", "alice")])).collect();
    assert!(told.iter().all(|decided| decided.is_allowed()));
    assert_eq!(
        told.iter().map(|decided| decided.would_refuse).collect::<Vec<_>>(),
        [None, None, Some(1), Some(1)]
    );
    assert_eq!(told[3].decision().map(|decision| decision.remaining()), Some(1), "by what is enforced");
    assert_eq!(asked.check(&[]).would_refuse, Some(1), "the key is missing");
    let refused = asked.check(&[("user", "bob")]);
    assert!(!refused.is_allowed() && refused.would_refuse.is_none());
    let rules = asked.engine.in_force();
    let watched = rules.watched(1).expect("it watches");
    assert_eq!((watched.passed(), watched.refused()), (2, 3), "who is refused is not counted");
    assert!(rules.watched(0).is_none());
    let seen = asked.put(&Call::of(&[("user", "alice")]).cost(0), |question| question.peek()).expect("valid");
    assert!(seen.is_allowed() && (watched.passed(), watched.refused()) == (2, 3), "a look is not counted");
}

const PLACES: &str = r#"
rules:
  - {name: at work, match: {path: /upload}, key: user, missing: shared, quota: 2 at once lease 30s}
  - {name: rate, key: user, missing: shared, quota: 3/h}
  - {name: watched, match: {path: /upload}, quota: 1 at once lease 5s, shadow: true}
"#;

#[test]
fn places_are_acquired_and_released() {
    let (asked, upload) = (Asked::new(PLACES), [("user", "a"), ("path", "/upload")]);
    let fault = asked.put(&Call::of(&upload), |question| question.check()).expect_err("it needs a place");
    assert_eq!(
        fault.to_string(),
        "rule \"at work\" is about places at work; acquire one, and release it when the work is done"
    );
    let first = asked.acquire(&upload);
    let (id, lease) = first.place.expect("a place");
    assert_eq!((lease, first.decided.would_refuse), (Duration::from_secs(30), None));
    assert_eq!(asked.acquire(&upload).decided.would_refuse, Some(2), "one at once would have been enough");
    let busy = asked.acquire(&upload);
    assert!(!busy.decided.is_allowed() && busy.place.is_none());
    assert_eq!(asked.left("rate", "a"), 1, "who got no place was not charged");
    assert_eq!(asked.engine.release(id).now(), Some(true));
    assert!(asked.acquire(&upload).place.is_some());
    assert_eq!(asked.engine.places(), 2);

    let elsewhere = asked.acquire(&[("user", "b")]);
    assert!(elsewhere.decided.is_allowed() && elsewhere.place.is_none(), "no rule about places is for it");
    let none = asked.put(&Call::of(&upload).cost(0), |question| question.acquire());
    assert_eq!(none.expect_err("it holds nothing"), Fault::NothingToHold);
    asked.clock.advance(Duration::from_secs(3_600));
    asked.engine.free_overdue();
    assert_eq!(asked.engine.places(), 0);
}

#[test]
fn several_calls_stand_or_fall_together_and_each_is_told() {
    let asked = Asked::new(
        "deny: [{user: mallory}]\nrules:\n  - {name: all, quota: 10/h}\n  - {name: user, match: {user: '*'}, key: user, quota: 2/h}\n",
    );
    let each = |users: &[&str]| {
        let rules = asked.engine.in_force();
        let question =
            users.iter().fold(rules.ask(), |question, user| question.call(&Call::of(&[("user", user)])));
        let told = question.check_each().now().expect("in memory").expect("valid");
        told.iter()
            .map(|decided| (decided.is_allowed(), decided.decision().map(|it| it.remaining())))
            .collect::<Vec<_>>()
    };
    assert_eq!(each(&["a", "b"]), [(true, Some(1)), (true, Some(1))]);
    assert_eq!(asked.left("all", ""), 8, "what both are counted by is charged for both");
    assert_eq!(each(&["a", "a"]), [(false, Some(1)), (false, Some(1))], "there is one left, and not two");
    assert_eq!(each(&["a", "b"]), [(true, Some(0)), (true, Some(0))]);
    assert_eq!(each(&["a", "c"]), [(false, Some(0)), (true, Some(2))], "told as it was found");
    assert_eq!(asked.left("user", "c"), 2, "and not charged");
    assert_eq!(each(&["mallory", "c"]), [(false, None), (true, Some(1))]);
    assert_eq!(asked.left("user", "c"), 2);
}

#[test]
fn more_limits_than_can_be_held_at_once_are_too_many() {
    let asked = Asked::new("rules: [{name: user, key: user, missing: shared, quota: 2/h}]");
    let rules = asked.engine.in_force();
    let users: Vec<String> = (0..257).map(|user| user.to_string()).collect();
    let question =
        users.iter().fold(rules.ask(), |question, user| question.call(&Call::of(&[("user", user)])));
    let fault = question.check_each().now().expect("in memory").expect_err("257 are too many");
    assert_eq!(fault, Fault::TooMany { parts: 257, most: 256 });
}

#[test]
fn an_explanation_tells_of_each_rule_whether_it_applies_and_what_is_left() {
    let asked = Asked::new(RULES);
    assert!(asked.passes(&[("user", "alice")]));
    let call = Call::of(&[("user", "alice"), ("path", "/")]);
    let told = asked.engine.in_force().explain(&call).now().expect("in memory");
    let rules: Vec<_> = told
        .rules
        .iter()
        .map(|rule| {
            let left = |(name, left): &(String, Option<tidegate::Decision>)| {
                format!("{name}: {}", left.map_or(0, |decision| decision.remaining()))
            };
            (
                rule.name.as_str(),
                rule.why.to_string(),
                rule.limits.iter().map(left).collect::<Vec<_>>().join(", "),
            )
        })
        .collect();
    let row = |name, why: &str, left: &str| (name, why.to_owned(), left.to_owned());
    assert_eq!(
        rules,
        [
            row("everybody", "applies, cost 1, key []", "everybody: 9"),
            row("per user", "applies, cost 1, key [user=alice]", "per user: 4, per user/2: 6"),
            row("bytes", "`path` is `/`, and not /upload", ""),
        ]
    );
    let exempt = asked.engine.in_force().explain(&Call::of(&[("ip", "127.0.0.1")])).now().expect("in memory");
    assert_eq!(exempt.listed, Some(Listed::Allowed));
}
