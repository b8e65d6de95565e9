//! Laws of finding: the quick way finds what the slow and obvious way finds, and nothing is allocated for it.

use ipnet::IpNet;
use proptest::prelude::*;

use super::*;

fn limit(text: &str) -> Limit {
    Limit::Rate(text.parse().unwrap())
}

fn compiled(rules: Vec<Rule>) -> Compiled {
    Compiled::new(RuleSet { rules, ..RuleSet::default() })
}

fn is(name: &str, value: &str) -> Condition {
    Condition::new(name, Test::text(value))
}

/// What was found: rule, override, key and cost, or why it is refused.
type Found = (u32, Option<u32>, Vec<u8>, u32, Option<Refusal>);

fn found(compiled: &Compiled, call: &Call<'_>) -> Vec<Found> {
    let mut scratch = Scratch::default();
    let matched = compiled.find(call, &mut scratch);
    let of = |hit: &Hit| (hit.rule, hit.by_override, matched.key(hit).to_vec(), hit.cost, hit.refusal);
    matched.hits().iter().map(of).collect()
}

// === the story ===

#[test]
fn rules_of_another_domain_are_left_alone() {
    let (mut shop, mut blog) = (Rule::new("shop", [limit("1/s")]), Rule::new("blog", [limit("1/s")]));
    (shop.domain, blog.domain) = (Some("shop".into()), Some("blog".into()));
    let compiled = compiled(vec![shop, Rule::new("all", [limit("1/s")]), blog]);
    let rules =
        |domain| found(&compiled, &Call::of(&[]).domain(domain)).iter().map(|one| one.0).collect::<Vec<_>>();
    assert_eq!(
        [rules("shop"), rules("blog"), rules("other"), rules("")],
        [vec![0, 1], vec![1, 2], vec![1], vec![1]]
    );
    assert_eq!(
        compiled.explain(&Call::of(&[]).domain("blog")).rules[0].to_string(),
        "is for the domain `shop`"
    );
}

#[test]
fn a_missing_part_is_shared_skipped_or_refused() {
    let rule = |missing| {
        let mut rule = Rule::new("user", [limit("1/s")]);
        (rule.key, rule.missing) = (vec![KeyPart::Value("user".into())], missing);
        rule
    };
    let compiled = compiled(vec![rule(Missing::Shared), rule(Missing::Skip), rule(Missing::Reject)]);
    let nobody = found(&compiled, &Call::of(&[]));
    assert_eq!(nobody, [(0, None, vec![0], 1, None), (2, None, vec![], 0, Some(Refusal::KeyMissing))]);
    assert_eq!(found(&compiled, &Call::of(&[("user", "")])).len(), 3, "an empty value is a value");
    let said: Vec<_> = compiled.explain(&Call::of(&[])).rules.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "applies, cost 1, key [user=(missing)]",
            "skips requests without `user`",
            "refuses: there is no `user` for the key",
        ]
    );
}

#[test]
fn a_cost_is_asked_fixed_or_found() {
    let rule = |cost| Rule { cost, ..Rule::new("x", [limit("1/s")]) };
    let from = |per, missing| Cost::From { name: "bytes".into(), per, missing };
    let compiled = compiled(vec![
        rule(Cost::Asked),
        rule(Cost::Fixed(7)),
        rule(from(1024, Some(3))),
        rule(from(1, None)),
    ]);
    let costs = |call: &Call<'_>| found(&compiled, call).iter().map(|one| (one.3, one.4)).collect::<Vec<_>>();
    let refused = (0, Some(Refusal::CostMissing));
    assert_eq!(costs(&Call::of(&[]).cost(5)), [(5, None), (7, None), (3, None), refused]);
    assert_eq!(costs(&Call::of(&[("bytes", "1025")])), [(1, None), (7, None), (2, None), (1025, None)]);
    assert_eq!(costs(&Call::of(&[("bytes", "0")])), [(1, None), (7, None), (0, None), (0, None)]);
    for nonsense in ["", "-5", "+5", "1e3", " 5", "5.0", "٥"] {
        assert_eq!(
            costs(&Call::of(&[("bytes", nonsense)])),
            [(1, None), (7, None), (3, None), refused],
            "{nonsense}"
        );
    }
    let huge = [("bytes", "99999999999999999999999999")];
    assert_eq!(costs(&Call::of(&huge))[3], (u32::MAX, None), "too large is not missing");
}

#[test]
fn lists_come_first_and_refusing_is_stronger() {
    let mut rule = Rule::new("x", [limit("1/s")]);
    (rule.allow, rule.deny) = (vec![vec![is("user", "root")]], vec![vec![is("ip", "6.6.6.6")]]);
    let set = RuleSet {
        allow: vec![vec![is("team", "ops")]],
        deny: vec![vec![is("agent", "*Bot*")]],
        rules: vec![rule],
    };
    let compiled = Compiled::new(set);
    let mut scratch = Scratch::default();
    let mut listed = |descriptors: &[Descriptor<'_>]| {
        let matched = compiled.find(&Call::of(descriptors), &mut scratch);
        (matched.listed, matched.hits().len(), matched.refusal().map(|(_, refusal)| refusal))
    };
    assert_eq!(listed(&[("user", "alice")]), (None, 1, None));
    assert_eq!(listed(&[("user", "root")]), (None, 0, None));
    assert_eq!(listed(&[("user", "root"), ("ip", "6.6.6.6")]), (None, 1, Some(Refusal::Denied)));
    assert_eq!(listed(&[("team", "ops")]), (Some(Listed::Allowed), 0, None));
    assert_eq!(listed(&[("team", "ops"), ("agent", "a Bot")]), (Some(Listed::Denied), 0, None));
}

#[test]
fn parts_are_what_a_gate_is_asked_for() {
    let mut user = Rule::new("user", [limit("10/s"), limit("fixed_window 5/min")]);
    user.key = vec![KeyPart::Value("user".into())];
    let gold =
        Override { label: "gold".into(), conditions: vec![is("plan", "gold")], limits: vec![limit("99/s")] };
    user.overrides = vec![gold];
    user.overrides[0].limits.push(limit("fixed_window 9/s"));
    let watched = Rule { shadow: true, ..Rule::new("watched", [limit("1/s")]) };
    let compiled = compiled(vec![Rule::new("all", [limit("1000/s")]), user, watched]);
    let names: Vec<_> = compiled.limits().iter().map(|limit| limit.identity.name.as_str()).collect();
    assert_eq!(names, ["all", "user", "user/2", "user@gold", "user/2@gold", "watched"]);

    let mut scratch = Scratch::default();
    let mut parts = |descriptors: &[Descriptor<'_>]| {
        let matched = compiled.find(&Call::of(descriptors).cost(2), &mut scratch);
        assert_eq!(matched.shadow_parts().map(|part| part.rule.0).collect::<Vec<_>>(), [5]);
        matched.parts().map(|part| (part.rule.0, part.key.bytes().to_vec(), part.cost)).collect::<Vec<_>>()
    };
    let al = b"\x03al".to_vec();
    assert_eq!(parts(&[("user", "al")]), [(0, vec![], 2), (1, al.clone(), 2), (2, al.clone(), 2)]);
    assert_eq!(parts(&[("user", "al"), ("plan", "gold")]), [(0, vec![], 2), (3, al.clone(), 2), (4, al, 2)]);
}

#[test]
fn a_scratch_that_has_grown_grows_no_more() {
    let mut rule = Rule::new("user", [limit("10/s")]);
    (rule.conditions, rule.key) = (vec![is("path", "/api")], vec![KeyPart::Value("user".into())]);
    rule.overrides =
        vec![Override { label: "x".into(), conditions: vec![is("user", "b")], limits: vec![limit("1/s")] }];
    let compiled = compiled(vec![Rule::new("all", [limit("1/s")]), rule]);
    let mut scratch = Scratch::default();
    let call = [("path", "/api"), ("user", "alice")];
    let _ = compiled.find(&Call::of(&call), &mut scratch);
    let before = scratch.capacities();
    for _ in 0..100 {
        assert_eq!(compiled.find(&Call::of(&call), &mut scratch).hits().len(), 2);
        assert_eq!(scratch.capacities(), before);
    }
}

// === what stays over a reload ===

#[test]
fn counts_stay_with_name_key_and_algorithm() {
    let keyed = |name: &str, quota: &str, key: &str| {
        let mut rule = Rule::new(name, [limit(quota)]);
        rule.key = vec![KeyPart::Value(key.into())];
        rule
    };
    let old = compiled(vec![
        keyed("same", "1/s", "a"),
        keyed("faster", "1/s", "a"),
        keyed("other key", "1/s", "a"),
        keyed("other algorithm", "1/s", "a"),
        keyed("gone", "1/s", "a"),
    ]);
    let new = compiled(vec![
        keyed("new", "1/s", "a"),
        keyed("other algorithm", "fixed_window 1/s", "a"),
        keyed("other key", "1/s", "b"),
        keyed("faster", "2/s", "a"),
        keyed("same", "1/s", "a"),
    ]);
    let diff = new.diff(&old);
    let expected =
        Diff { kept: vec![(0, 4)], changed: vec![(1, 3)], added: vec![0, 1, 2], removed: vec![2, 3, 4] };
    assert_eq!(diff, expected);
    assert_eq!(diff.to_string(), "1 kept, 1 changed, 3 added, 3 removed");
    assert_eq!(old.diff(&old).kept.len(), 5);
}

#[test]
fn overrides_are_known_by_whom_they_are_for_and_not_by_their_place() {
    let rule = |labels: &[&str]| {
        let mut rule = Rule::new("x", [limit("1/s")]);
        let of = |label: &&str| Override {
            label: (*label).into(),
            conditions: vec![is("plan", label)],
            limits: vec![limit("2/s")],
        };
        rule.overrides = labels.iter().map(of).collect();
        compiled(vec![rule])
    };
    let diff = rule(&["gold", "silver"]).diff(&rule(&["silver", "gold"]));
    assert_eq!(diff.kept, [(0, 0), (2, 1), (1, 2)]);
    let long = ["a".repeat(60) + "1", "a".repeat(60) + "2"];
    let long = rule(&[&long[0], &long[1]]);
    let names: Vec<_> = long.limits().iter().map(|limit| &limit.identity.name).collect();
    assert!(names[1] != names[2] && names[1].len() <= 64, "{names:?}");
}

/// How many rules a call is held against.
fn tried(compiled: &Compiled, call: &Call<'_>) -> usize {
    let mut numbers = Vec::new();
    compiled.candidates(call.domain, call.descriptors, &mut numbers);
    numbers.len()
}

#[test]
fn of_ten_thousand_rules_with_exact_values_those_are_tried_that_can_match() {
    let rules = (0..10_000).map(|n| {
        let mut rule = Rule::new(format!("rule {n}"), [limit("1/s")]);
        let user = is("user", &format!("u{n}"));
        // All of them are for one service, and by it alone all of them would be tried.
        rule.conditions =
            vec![is("service", "api"), user, is("plan", if n % 2 == 0 { "free" } else { "paid" })];
        rule.domain = (n % 3 == 0).then(|| format!("domain {n}"));
        rule
    });
    let compiled = compiled(rules.collect());
    for (user, domain, expected) in
        [("u17", "", 1), ("u17", "domain 18", 1), ("u18", "domain 18", 1), ("u18", "", 0)]
    {
        let descriptors = [("service", "api"), ("user", user), ("plan", "free"), ("plan", "paid")];
        let call = Call::of(&descriptors).domain(domain);
        assert!(tried(&compiled, &call) <= 2, "one without a domain and one of the domain: {user} {domain}");
        assert_eq!(found(&compiled, &call).len(), expected, "{user} {domain}");
    }
}

// === the slow and obvious way ===

fn slowly(set: &RuleSet, call: &Call<'_>) -> Vec<Found> {
    let any = |lists: &[Vec<Condition>]| lists.iter().any(|list| all(list, call));
    if any(&set.deny) || any(&set.allow) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, rule) in (0..).zip(&set.rules) {
        let is_here = rule.domain.is_none() || rule.domain.as_deref() == Some(call.domain);
        if !is_here || !all(&rule.conditions, call) {
            continue;
        }
        if any(&rule.deny) {
            found.push((number, None, vec![], 0, Some(Refusal::Denied)));
            continue;
        }
        if any(&rule.allow) {
            continue;
        }
        let values: Vec<_> = rule.key.iter().map(|part| key_value(part, call)).collect();
        let is_whole = values.iter().all(Option::is_some);
        if !is_whole && rule.missing == Missing::Skip {
            continue;
        }
        if !is_whole && rule.missing == Missing::Reject {
            found.push((number, None, vec![], 0, Some(Refusal::KeyMissing)));
            continue;
        }
        let by_override = rule.overrides.iter().position(|one| all(&one.conditions, call));
        let cost = match rule.cost {
            Cost::Fixed(cost) => cost,
            _ => call.cost.unwrap_or(1),
        };
        let by_override = by_override.map(|place| u32::try_from(place).unwrap());
        found.push((number, by_override, key(&values), cost, None));
    }
    found
}

fn all(conditions: &[Condition], call: &Call<'_>) -> bool {
    conditions.iter().all(|condition| holds(&condition.test, &condition.name, call))
}

fn holds(test: &Test, name: &str, call: &Call<'_>) -> bool {
    let values: Vec<&str> =
        call.descriptors.iter().filter(|(given, _)| *given == name).map(|(_, value)| *value).collect();
    match test {
        Test::Any => !values.is_empty(),
        Test::OneOf(some) => values.iter().any(|value| some.iter().any(|one| one == *value)),
        Test::Prefix(prefix) => values.iter().any(|value| value.starts_with(&**prefix)),
        Test::Like(pattern) => values.iter().any(|value| is_like(&pattern.to_string(), value)),
        Test::In(_) => values.iter().any(|value| is_in(test, value)),
        Test::Or(tests) => tests.iter().any(|test| holds(test, name, call)),
        Test::And(tests) => tests.iter().all(|test| holds(test, name, call)),
        Test::Not(test) => !holds(test, name, call),
    }
}

/// By trying every length for the first star.
fn is_like(pattern: &str, value: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == value,
        Some((before, after)) => value.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.is_char_boundary(at) && is_like(after, &rest[at..]))
        }),
    }
}

/// By the text of the networks.
fn is_in(test: &Test, value: &str) -> bool {
    let text = test.to_string();
    let networks =
        text.trim_matches(['{', '}']).trim_start_matches("cidr: ").trim_matches(['[', ']']).to_owned();
    let Ok(address) = value.parse::<std::net::IpAddr>() else { return false };
    networks.split(", ").any(|network| network.parse::<IpNet>().unwrap().contains(&address.to_canonical()))
}

fn key_value(part: &KeyPart, call: &Call<'_>) -> Option<Vec<u8>> {
    let (_, value) = call.descriptors.iter().find(|(name, _)| *name == part.name())?;
    match part {
        KeyPart::Value(_) => Some(value.as_bytes().to_vec()),
        KeyPart::Network { v4, v6, .. } => {
            let address = value.parse::<std::net::IpAddr>().ok()?.to_canonical();
            let bits = if address.is_ipv4() { *v4 } else { *v6 };
            Some(match IpNet::new(address, bits).unwrap().network() {
                std::net::IpAddr::V4(network) => [&[4, bits][..], &network.octets()].concat(),
                std::net::IpAddr::V6(network) => [&[6, bits][..], &network.octets()].concat(),
            })
        }
    }
}

fn key(values: &[Option<Vec<u8>>]) -> Vec<u8> {
    let one = |value: &Option<Vec<u8>>| match value {
        Some(bytes) => [&[u8::try_from(bytes.len() + 1).unwrap()], &bytes[..]].concat(),
        None => vec![0],
    };
    values.iter().flat_map(one).collect()
}

// === random rules and requests ===

const NAMES: [&str; 3] = ["path", "user", "ip"];
const VALUES: [&str; 10] =
    ["", "a", "ab", "abab", "/api/a", "/api/b", "10.0.0.1", "::ffff:10.0.0.1", "10.9.9.9", "2001:db8::1"];

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(NAMES.to_vec())
}

fn value() -> impl Strategy<Value = &'static str> {
    prop::sample::select(VALUES.to_vec())
}

fn test() -> impl Strategy<Value = Test> {
    let networks =
        prop::sample::select(vec!["10.0.0.0/8", "10.0.0.0/16", "2001:db8::/32", "::ffff:10.0.0.0/112"]);
    let leaf = prop_oneof![
        3 => value().prop_map(Test::is),
        1 => Just(Test::Any),
        1 => prop::sample::select(vec!["a*", "*b", "a*b", "/api/*", "*a*a*", "**"]).prop_map(Test::text),
        1 => value().prop_map(|value| Test::Prefix(value.into())),
        1 => prop::collection::vec(networks, 1..3)
            .prop_map(|nets| Test::In(Networks::new(nets.into_iter().map(|net| net.parse().unwrap())))),
    ];
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..3).prop_map(Test::any_of),
            prop::collection::vec(inner.clone(), 1..3).prop_map(Test::all_of),
            inner.prop_map(|test| Test::Not(Box::new(test))),
        ]
    })
}

fn conditions() -> impl Strategy<Value = Vec<Condition>> {
    prop::collection::vec((name(), test()).prop_map(|(name, test)| Condition::new(name, test)), 0..3)
}

fn lists() -> impl Strategy<Value = Vec<Vec<Condition>>> {
    let rarely = conditions().prop_filter("an empty list holds always", |conditions| !conditions.is_empty());
    prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec(rarely, 1..3)]
}

fn part() -> impl Strategy<Value = KeyPart> {
    prop_oneof![
        3 => name().prop_map(|name| KeyPart::Value(name.into())),
        1 => (0u8..=32, 0u8..=128).prop_map(|(v4, v6)| KeyPart::Network { name: "ip".into(), v4, v6 }),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    let domain = prop::sample::select(vec![None, None, Some("shop"), Some("blog")]);
    let missing = prop::sample::select(vec![Missing::Shared, Missing::Skip, Missing::Reject]);
    let overrides = prop::collection::vec(conditions(), 0..4);
    let cost = prop_oneof![Just(Cost::Asked), (1u32..9).prop_map(Cost::Fixed)];
    (domain, conditions(), prop::collection::vec(part(), 0..3), missing, cost, overrides, lists(), lists())
        .prop_map(|(domain, conditions, key, missing, cost, overrides, allow, deny)| Rule {
            domain: domain.map(Into::into),
            conditions,
            key,
            missing,
            cost,
            overrides: (0..)
                .zip(overrides)
                .map(|(n, conditions): (u32, _)| Override {
                    label: n.to_string(),
                    conditions,
                    limits: vec![limit("1/s")],
                })
                .collect(),
            allow,
            deny,
            ..Rule::new("x", [limit("1/s")])
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_quick_way_finds_what_the_slow_way_finds(
        rules in prop::collection::vec(rule(), 0..8),
        (allow, deny) in (lists(), lists()),
        calls in prop::collection::vec(
            (prop::collection::vec((name(), value()), 0..5), prop::sample::select(vec!["", "shop"]), prop::option::of(0u32..9)),
            1..6,
        ),
    ) {
        let set = RuleSet { allow, deny, rules };
        let compiled = Compiled::new(set.clone());
        for (descriptors, domain, cost) in &calls {
            let call = Call { domain, descriptors, cost: *cost };
            prop_assert_eq!(found(&compiled, &call), slowly(&set, &call));
            explanation_agrees(&compiled, &call);
        }
    }

    #[test]
    fn what_is_implied_holds(one in test(), other in test(), descriptors in prop::collection::vec((name(), value()), 0..5)) {
        let (one, other) = (Condition::new("ip", one), Condition::new("ip", other));
        if one.implies(&other) && one.holds(&descriptors) {
            prop_assert!(other.holds(&descriptors), "{} => {}", one, other);
        }
        if one.needs_presence() && one.holds(&descriptors) {
            prop_assert!(descriptors.iter().any(|(name, _)| *name == "ip"));
        }
    }
}

/// Whoever explains names the same rules as whoever finds.
fn explanation_agrees(compiled: &Compiled, call: &Call<'_>) {
    let explained = compiled.explain(call);
    if explained.listed.is_some() {
        return;
    }
    let found: Vec<_> = found(compiled, call).iter().map(|one| (one.0, one.4.is_some())).collect();
    let applied = (0..).zip(&explained.rules).filter_map(|(number, why)| match why {
        Why::Applies { .. } => Some((number, false)),
        Why::Refused { .. } => Some((number, true)),
        _ => None,
    });
    assert_eq!(applied.collect::<Vec<_>>(), found);
}
