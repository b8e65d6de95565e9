//! Envoy's rate limit service, by a real client on a real socket.

use std::collections::HashSet;

use tonic::Code;

use crate::binary::Binary;
use crate::grpc_client::{
    Asked, Client, Descriptor, LIMIT, Name, Number, OK, OVER, Override, Reflected, Told, Wondered,
    descriptor, edge,
};

const RULES: &str = r#"
deny: {user: mallory}
allow: {user: root}
rules:
  - {name: user, match: {user: "*"}, key: user, quota: 5/h}
  - {name: path, match: {path: "*"}, key: path, quota: fixed_window 2/day}
  - {name: elsewhere, domain: other, match: {user: "*"}, quota: 1/day}
  - {name: heavy, match: {heavy: "*"}, quota: 10/day, cost: 4}
  - {name: watched, match: {seen: "*"}, quota: 1/day, shadow: true}
  - {name: at work, match: {job: "*"}, key: job, quota: 1 at once lease 30s}
  - {name: odd, match: {odd: "*"}, quota: fixed_window 5 per 7s}
"#;

fn serving(rules: &str) -> (Binary, tempfile::NamedTempFile) {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("there is room");
    std::fs::write(file.path(), rules).expect("written");
    let path = file.path().to_str().expect("a name");
    (Binary::start(&["serve", "--config", path]), file)
}

fn with(rules: &str, test: impl FnOnce(&mut Client)) {
    let (server, _file) = serving(rules);
    test(&mut Client::new(server.grpc));
}

#[test]
fn each_descriptor_has_its_status_in_order() {
    with(RULES, |client| {
        let told = client.check(&["user=alice", "nobody=limits this", "path=/"]);
        assert_eq!((told.overall_code, told.each()), (OK, vec![(OK, 4), (OK, 0), (OK, 1)]));
        assert_eq!(told.statuses[0].limit(), (5, 3, "user"), "an hour");
        assert_eq!(told.statuses[2].limit(), (2, 4, "path"), "a day");
        assert_eq!(told.statuses[1].current_limit, None);
        assert_eq!(told.statuses[0].reset(), 720, "until all five are there again");
        assert!((1..=86_400).contains(&told.statuses[2].reset()));
        assert_eq!(told.dynamic_metadata, None);
        assert_eq!(told.response_headers_to_add, []);
    });
}

#[test]
fn all_are_charged_or_none() {
    with(RULES, |client| {
        assert_eq!(client.check(&["path=/", "user=alice"]).each(), [(OK, 1), (OK, 4)]);
        assert_eq!(client.check(&["path=/", "user=alice"]).each(), [(OK, 0), (OK, 3)]);
        for _ in 0..3 {
            let told = client.check(&["path=/", "user=alice"]);
            assert_eq!(told.overall_code, OVER);
            assert_eq!(told.each()[0], (OVER, 0), "and the other one is as it was found");
            assert_eq!(told.each()[1].0, OK);
        }
        assert_eq!(client.check(&["user=alice"]).each(), [(OK, 2)], "not charged for what did not pass");
    });
}

#[test]
fn how_much_is_taken_is_said_by_the_descriptor_or_by_the_request() {
    with(RULES, |client| {
        let of = |hits: Option<u64>| Descriptor { hits_addend: hits, ..descriptor("user=alice") };
        let asked = Asked { hits_addend: 3, ..edge(vec![of(None)]) };
        assert_eq!(client.ask(asked).expect("an answer").each(), [(OK, 2)]);
        let asked = Asked { hits_addend: 3, ..edge(vec![of(Some(1))]) };
        assert_eq!(client.ask(asked.clone()).expect("an answer").each(), [(OK, 1)], "its own is stronger");
        let peek = Asked { hits_addend: 3, ..edge(vec![of(Some(0))]) };
        assert_eq!(client.ask(peek.clone()).expect("an answer").each(), [(OK, 1)]);
        assert_eq!(client.ask(peek.clone()).expect("an answer").each(), [(OK, 1)], "0 only looks");
        assert_eq!(client.ask(asked).expect("an answer").each(), [(OK, 0)]);
        assert_eq!(client.ask(peek).expect("an answer").each(), [(OK, 0)], "at the limit, and not over it");
        let refused = client.ask(edge(vec![of(None)])).expect("an answer");
        assert_eq!((refused.overall_code, refused.each()), (OVER, vec![(OVER, 0)]));
        assert!((1..=720).contains(&refused.statuses[0].reset()), "until one is there again");
        let never = client.ask(edge(vec![of(Some(6))])).expect("an answer");
        assert_eq!(never.each(), [(OVER, 0)], "more than there ever is");
    });
}

#[test]
fn looking_costs_nothing_whatever_the_rule_takes() {
    with(RULES, |client| {
        let look = || edge(vec![Descriptor { hits_addend: Some(0), ..descriptor("heavy=1") }]);
        assert_eq!(client.check(&["heavy=1"]).each(), [(OK, 6)]);
        assert_eq!(client.ask(look()).expect("an answer").each(), [(OK, 6)]);
        assert_eq!(client.ask(look()).expect("an answer").each(), [(OK, 6)]);
    });
}

#[test]
fn what_is_given_back_is_there_again() {
    with(RULES, |client| {
        let of = |hits, is_negative_hits| {
            edge(vec![Descriptor { hits_addend: Some(hits), is_negative_hits, ..descriptor("user=alice") }])
        };
        assert_eq!(client.ask(of(5, false)).expect("an answer").each(), [(OK, 0)]);
        assert_eq!(client.ask(of(2, true)).expect("an answer").each(), [(OK, 2)]);
        assert_eq!(
            client.ask(of(100, true)).expect("an answer").each(),
            [(OK, 5)],
            "and never more than all"
        );
    });
}

#[test]
fn domains_lists_and_rules_that_watch() {
    with(RULES, |client| {
        let other = || Asked { domain: "other".into(), ..edge(vec![descriptor("user=alice")]) };
        assert_eq!(client.ask(other()).expect("an answer").each(), [(OK, 0)], "one a day there");
        assert_eq!(client.ask(other()).expect("an answer").overall_code, OVER);
        assert_eq!(client.check(&["user=alice"]).each(), [(OK, 3)], "the rule without a domain is in both");

        let told = client.check(&["user=root"]);
        assert_eq!((told.each(), &told.statuses[0].current_limit), (vec![(OK, u32::MAX)], &None));
        let told = client.check(&["user=mallory", "user=bob"]);
        assert_eq!((told.overall_code, told.each()[0]), (OVER, (OVER, 0)));

        assert_eq!(client.check(&["seen=x"]).dynamic_metadata, None);
        let told = client.check(&["seen=x"]);
        assert_eq!((told.overall_code, told.each()), (OK, vec![(OK, 0)]));
        let ours = told.dynamic_metadata.expect("metadata").fields["tidegate"].struct_value.clone();
        let names = ours.expect("ours").fields["would_refuse"].list_value.clone().expect("a list").values;
        assert_eq!(names[0].string_value.as_deref(), Some("watched"));

        assert_eq!(
            client.check(&["odd=1"]).statuses[0].limit(),
            (5, 0, "odd"),
            "5 in 7 seconds have no unit"
        );
    });
}

#[test]
fn a_limit_that_is_brought_along_counts_in_the_place_of_the_rules() {
    with(RULES, |client| {
        let own = |user: &str, requests_per_unit, unit, hits| Descriptor {
            limit: Some(Override { requests_per_unit, unit }),
            hits_addend: hits,
            ..descriptor(&format!("user={user}"))
        };
        let mut each = |descriptors: Vec<Descriptor>| client.ask(edge(descriptors)).expect("an answer");
        let told = each(vec![own("alice", 10, 4, Some(8))]);
        assert_eq!((told.each(), told.statuses[0].limit()), (vec![(OK, 2)], (10, 4, "")));
        assert_eq!(each(vec![own("alice", 10, 4, Some(0))]).each(), [(OK, 2)]);
        let told = each(vec![own("alice", 10, 4, Some(3)), descriptor("user=bob")]);
        assert_eq!((told.overall_code, told.each()), (OVER, vec![(OVER, 0), (OK, 4)]));
        assert_eq!(told.statuses[0].reset(), 8_640, "one more is there in a tenth of a day");
        assert_eq!(each(vec![descriptor("user=bob")]).each(), [(OK, 4)], "and nothing was charged");
        let told = each(vec![own("alice", 10, 4, None), descriptor("user=bob")]);
        assert_eq!(told.each(), [(OK, 1), (OK, 3)]);
        let broke =
            vec![own("alice", 10, 4, None), Descriptor { hits_addend: Some(4), ..descriptor("user=bob") }];
        assert_eq!(each(broke).each(), [(OK, 1), (OVER, 0)], "refused by a rule: looked at, and no more");
        assert_eq!(each(vec![own("alice", 10, 4, Some(0))]).each(), [(OK, 1)]);
        let back = Descriptor { is_negative_hits: true, ..own("alice", 10, 4, Some(5)) };
        assert_eq!(each(vec![back]).each(), [(OK, 6)]);

        assert_eq!(each(vec![own("carol", 0, 1, None)]).each(), [(OVER, 0)], "nothing ever passes");
        assert_eq!(each(vec![own("carol", 0, 1, Some(0))]).each(), [(OK, 0)]);
        assert_eq!(each(vec![own("carol", u32::MAX, 6, Some(u64::from(u32::MAX)))]).each(), [(OK, 0)]);
        assert_eq!(each(vec![own("dave", 1, 6, Some(u64::from(u32::MAX)))]).each(), [(OVER, 0)]);
    });
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    with(RULES, |client| {
        let of = |hits| Descriptor { hits_addend: Some(hits), ..descriptor("user=alice") };
        let own = |requests_per_unit, unit| Descriptor {
            limit: Some(Override { requests_per_unit, unit }),
            ..descriptor("user=alice")
        };
        let wrong = [
            (Asked::default(), Code::Unknown, "rate limit domain must not be empty"),
            (edge(vec![]), Code::Unknown, "rate limit descriptor list must not be empty"),
            (
                edge(vec![of(1), Descriptor::default()]),
                Code::InvalidArgument,
                "descriptors[1] has no entries",
            ),
            (
                edge(vec![descriptor("user=a,=b")]),
                Code::InvalidArgument,
                "descriptors[0].entries[1].key is empty",
            ),
            (edge(vec![of(1 << 32)]), Code::InvalidArgument, "descriptors[0].hits_addend is 4294967296"),
            (edge(vec![own(1, 0)]), Code::InvalidArgument, "descriptors[0].limit.unit is 0"),
            (edge(vec![own(1, 7)]), Code::InvalidArgument, "descriptors[0].limit.unit is 7"),
            (
                edge(vec![own(u32::MAX, 1)]),
                Code::InvalidArgument,
                "descriptors[0].limit is 4294967295 a second",
            ),
            (edge(vec![descriptor("job=x")]), Code::FailedPrecondition, "about places at work"),
            (edge(vec![descriptor("user=a"); 257]), Code::InvalidArgument, "257 descriptors"),
            (edge(vec![descriptor(&vec!["k=v"; 129].join(","))]), Code::InvalidArgument, "129 entries"),
        ];
        for (asked, code, sentence) in wrong {
            let status = client.ask(asked).expect_err(sentence);
            assert_eq!(status.code(), code, "{status}");
            assert!(status.message().contains(sentence), "{status}");
        }
        assert_eq!(client.check(&["user=alice"]).each(), [(OK, 4)], "nothing was charged");
    });
}

/// What either side does not know is no reason to fail.
#[test]
fn fields_of_a_newer_envoy_are_skipped() {
    with(RULES, |client| {
        let asked = Asked { unheard_of: "?".into(), ..edge(vec![descriptor("user=alice")]) };
        assert_eq!(client.ask(asked).expect("an answer").each(), [(OK, 4)]);
    });
}

#[test]
fn health_is_told_until_the_end() {
    let (server, _file) = serving(RULES);
    let mut client = Client::new(server.grpc);
    let health = |name: &str| Name { name: name.into() };
    for known in ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"] {
        let told: Number = client.call("/grpc.health.v1.Health/Check", health(known)).expect("an answer");
        assert_eq!(told.number, 1, "serving");
    }
    let unknown = client.call::<_, Number>("/grpc.health.v1.Health/Check", health("else")).expect_err("none");
    assert_eq!(unknown.code(), Code::NotFound);

    let path = "/grpc.health.v1.Health/Watch";
    let mut watching = client.stream::<_, Number>(path, vec![health("ratelimit")]).expect("a stream");
    let mut next = |client: &Client| {
        let next = client.runtime.block_on(watching.message()).expect("a message");
        next.map(|told| told.number)
    };
    assert_eq!(next(&client), Some(1));
    server.signal("-TERM");
    assert_eq!(next(&client), Some(2), "no longer serving");
    assert_eq!(next(&client), None);
    let mut server = server;
    assert_eq!(server.child.wait().expect("an end").code(), Some(0));
}

/// Load balancers are to send nobody new, before the connections go.
#[test]
fn health_says_while_draining_that_it_does_not_serve() {
    let file = crate::http::file(RULES);
    let server =
        Binary::start(&["serve", "--notice", "600", "--config", file.path().to_str().expect("a name")]);
    let mut client = Client::new(server.grpc);
    let path = "/grpc.health.v1.Health/Watch";
    let mut watching = client.stream::<_, Number>(path, vec![Name::default()]).expect("a stream");
    let mut next = |client: &Client| client.runtime.block_on(watching.message()).expect("a message");
    assert_eq!(next(&client).map(|told| told.number), Some(1));
    server.signal("-TERM");
    assert_eq!(next(&client).map(|told| told.number), Some(2));
    let told: Number = client.call("/grpc.health.v1.Health/Check", Name::default()).expect("an answer");
    assert_eq!(told.number, 2);
    assert_eq!(client.check(&["user=alice"]).overall_code, OK, "who is there is answered");
}

#[test]
fn reflection_tells_every_file_there_is() {
    with(RULES, |client| {
        for path in [
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        ] {
            let symbol = |name: &str| Wondered { symbol: Some(name.into()), ..Wondered::default() };
            let file = |name: &str| Wondered { file: Some(name.into()), ..Wondered::default() };
            let asked = vec![
                Wondered { services: Some(String::new()), ..Wondered::default() },
                symbol("envoy.service.ratelimit.v3.RateLimitService"),
                symbol("envoy.service.ratelimit.v3.RateLimitResponse.Code"),
                file("envoy/extensions/common/ratelimit/v3/ratelimit.proto"),
                file("google/protobuf/struct.proto"),
                symbol("no.such.Thing"),
                Wondered::default(),
            ];
            let mut told = client.stream::<_, Reflected>(path, asked).expect("a stream");
            let mut next = || client.runtime.block_on(told.message()).expect("a message");
            let services = next().and_then(|told| told.services).expect("services").names;
            let services: HashSet<_> = services.into_iter().map(|one| one.name).collect();
            assert!(services.contains("envoy.service.ratelimit.v3.RateLimitService"), "{services:?}");
            assert!(services.contains("grpc.health.v1.Health"), "{services:?}");
            for _ in 0..4 {
                let files = next().and_then(|told| told.files).expect("a file").files;
                assert!(files.iter().all(|file| !file.is_empty()) && files.len() == 1);
            }
            assert_eq!(next().and_then(|told| told.error).expect("an error").number, 5);
            assert_eq!(next().and_then(|told| told.error).expect("an error").number, 3);
            assert_eq!(next(), None);
        }
    });
}

#[test]
fn a_method_that_is_not_there_is_said() {
    with(RULES, |client| {
        let status = client
            .call::<_, Told>("/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit", edge(vec![]));
        assert_eq!(status.expect_err("none").code(), Code::Unimplemented);
        assert_eq!(client.check(&["user=alice"]).each(), [(OK, 4)]);
        assert!(LIMIT.starts_with("/envoy"));
    });
}
