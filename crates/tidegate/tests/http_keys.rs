//! Keys of requests: never confused, missing only with a fallback, and rejected at build time if they are
//! invalid.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::{HeaderValue, Method, Request};
use proptest::prelude::*;
use tidegate::clock::Micros;
use tidegate::gate::{Answer, Gate, Part, RuleId};
use tidegate::http::{
    ClientAddress, Evaluation, Head, InvalidKey, InvalidLimits, KeyBuf, KeyOutcome, KeyPart, LimitOutcome,
    Limits, RefusalReason, RuleKey, by, key_of,
};
use tidegate::{Admission, Decision, KeyedLimiter, Limiter, Outcome, Policy, Quota, Wait};

fn key(part: &impl KeyPart, request: &Request<()>) -> Option<Vec<u8>> {
    let mut text = KeyBuf::new();
    part.write(&Head::of(request), &mut text).ok()?;
    Some(text.bytes().to_vec())
}

fn get(uri: &str) -> Request<()> {
    Request::get(uri).body(()).expect("valid")
}

#[derive(Clone)]
struct Three([Vec<u8>; 3]);

#[test]
fn million_tuples_with_separators_have_distinct_keys() {
    let seed = RandomState::new();
    let draw = |n: u64, of: u64| seed.hash_one((n, of));
    // The letters include the likely separators between two parts.
    let letters: [&[u8]; 10] = [b"{", b"}", b"\0", b":", b",", b"|", b"a", b"e\0", b"e\x01", b"\xff"];
    let part = |n: u64, place: u64| -> Vec<u8> {
        let length = draw(n, 100 + place) % 5;
        (0..length).flat_map(|at| letters[(draw(n, 10 * place + at) % 10) as usize]).copied().collect()
    };
    let parts = (
        by::extension(|three: &Three| &three.0[0]),
        by::extension(|three: &Three| &three.0[1]),
        by::extension(|three: &Three| &three.0[2]),
    );
    let mut request = Request::new(());
    let (mut tuples, mut keys) = (HashSet::new(), HashSet::new());
    for n in 0..1_000_000 {
        let three = [part(n, 0), part(n, 1), part(n, 2)];
        request.extensions_mut().insert(Three(three.clone()));
        keys.insert(key(&parts, &request).unwrap());
        tuples.insert(three);
    }
    assert!(tuples.len() > 500_000, "the draw was too narrow: {}", tuples.len());
    assert_eq!(keys.len(), tuples.len());
}

#[test]
fn long_parts_never_collide_with_similar_parts() {
    let mut request = Request::new(());
    let mut keys = HashSet::new();
    for length in [0, 1, 2, 3, 4, 5, 6, 253, 254, 255, 256, 257, 260, 300, 600] {
        for rest in [0, 1, 254, 255, 300] {
            let three = [vec![0; length], vec![b'e'; rest], vec![]];
            request.extensions_mut().insert(Three(three.clone()));
            let two = key(
                &(by::extension(|three: &Three| &three.0[0]), by::extension(|three: &Three| &three.0[1])),
                &request,
            );
            assert!(keys.insert(two.unwrap()), "{length} and {rest}");
        }
    }
}

#[test]
fn request_is_counted_under_the_key_that_key_of_returns() {
    let client = ClientAddress::from_socket(|address: &SocketAddr| *address);
    let limiter = Arc::new(KeyedLimiter::<str>::new(Quota::per_hour(2)));
    let limits = Limits::single(limiter.clone(), by::address(client.clone())).unwrap();
    let addresses =
        ["192.0.2.1:1", "192.0.2.2:1", "0.0.0.0:1", "[::ffff:192.0.2.3]:1", "[2001:db8::1]:1", "[::1]:1"];
    for address in addresses {
        let mut request = get("/");
        request.extensions_mut().insert(address.parse::<SocketAddr>().unwrap());
        let head = Head::of(&request);
        let key = key_of(&by::address(client.clone()), &head);
        let part = [Part::of(RuleId(0)).key(&key[..])];
        let left = || match limiter.decide(&part) {
            Answer::Ready(Ok(admission)) => admission.decision,
            _ => panic!("a limiter answers immediately"),
        };
        // The first request inserts the key; the second finds it.
        for _ in 0..2 {
            assert!(matches!(limits.evaluate(&head), Evaluation::Now(LimitOutcome::Pass(_))), "{address}");
        }
        assert!(!left().is_allowed(), "{address}");
    }
}

#[test]
fn parts_of_different_kinds_have_distinct_keys() {
    let mut request = get("http://alice/alice?user=alice");
    request.headers_mut().insert("x-user", HeaderValue::from_static("alice"));
    request.extensions_mut().insert(String::from("alice"));
    let keys = [
        key(&by::text("alice"), &request),
        key(&by::header("x-user"), &request),
        key(&by::header("x-user").secret(), &request),
        key(&by::query("user"), &request),
        key(&by::param("/{user}", "user"), &request),
        key(&by::host(), &request),
        key(&by::extension(|user: &String| user.as_str()), &request),
        key(&by::value(|_| Some(Cow::from("alice"))), &request),
        key(&by::global(), &request),
    ];
    assert!(keys.iter().all(Option::is_some));
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
}

#[test]
fn secret_is_not_in_the_key_and_long_values_stay_distinct() {
    let mut request = get("/");
    request.headers_mut().insert("x-api-key", HeaderValue::from_static("sk-123456"));
    let secret = key(&by::header("x-api-key").secret(), &request).unwrap();
    assert!(!secret.windows(4).any(|window| window == b"1234"), "{}", secret.escape_ascii());

    let recorder = Recorder::default();
    let limits = Limits::single(recorder.clone(), by::header("x-user").or_refuse()).unwrap();
    let long = "a".repeat(5_000);
    for user in [format!("{long}b"), format!("{long}c"), format!("{long}b")] {
        let request = Request::get("/").header("x-user", user).body(()).unwrap();
        assert!(matches!(limits.evaluate(&Head::of(&request)), Evaluation::Now(LimitOutcome::Pass(_))));
    }
    let seen = recorder.0.lock().unwrap();
    assert!(seen.iter().all(|key| key.len() < 100), "kept short");
    assert!(seen[0] != seen[1] && seen[0] == seen[2]);
}

#[test]
fn query_parameters_path_parameters_and_routes_are_found() {
    let rows: &[(&str, Option<&str>)] = &[
        ("/?user=alice", Some("alice")),
        ("/?a=1&user=alice&b=2", Some("alice")),
        ("/?us%65r=al%69ce", Some("alice")),
        ("/?user=a+b", Some("a b")),
        ("/?user=alice&user=bob", None),
        ("/?user=", None),
        ("/?user", None),
        ("/?User=alice", None),
        ("/", None),
    ];
    for (uri, expected) in rows {
        let found = key(&by::query("user"), &get(uri));
        let found = found.as_ref().map(|key| std::str::from_utf8(&key[2..]).unwrap());
        assert_eq!(found, *expected, "{uri}");
    }
    let param = by::param("/users/{id}/{*rest}", "id");
    assert_eq!(key(&param, &get("/users/%37/x")), key(&param, &get("/users//7")));
    assert_eq!(key(&param, &get("/groups/7")), None);
    let route = by::route(["/login", "/users/{id}"]);
    assert_eq!(key(&route, &get("/users/7")), key(&route, &get("/users/8")));
    assert_ne!(key(&route, &get("/users/7")), key(&route, &get("/%6cogin")));
    assert_eq!(key(&route, &get("/other")), None);
}

#[test]
fn hosts_and_methods_have_one_spelling() {
    let host = |text: &str| key(&by::host(), &Request::get("/").header("host", text).body(()).unwrap());
    for same in ["EXAMPLE.com", "example.com.", "example.com:80", "example.com:443"] {
        assert_eq!(host(same), host("example.com"), "{same}");
    }
    assert_ne!(host("example.com:8080"), host("example.com"));
    assert_eq!(host("[::AB]:8080"), host("[::ab]:8080"));
    assert_ne!(host("[::a]"), host("[::a]:1"));
    assert_eq!(key(&by::host(), &get("http://user@example.com/")), host("example.com"));

    let method = |name: &str| {
        let request =
            Request::builder().method(Method::from_bytes(name.as_bytes()).unwrap()).body(()).unwrap();
        key(&by::method(), &request)
    };
    assert_ne!(method("GET"), method("POST"));
    assert_eq!(method("INVENTED"), method("ANOTHER"), "all unknown methods share one key");
}

#[test]
fn repeated_header_counts_as_missing() {
    let mut request = get("/");
    request.headers_mut().append("x-user", HeaderValue::from_static("alice"));
    assert!(key(&by::header("x-user"), &request).is_some());
    request.headers_mut().append("x-user", HeaderValue::from_static("bob"));
    assert_eq!(key(&by::header("x-user"), &request), None);
}

/// Allows every request, and records its keys.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Vec<u8>>>>);

impl Gate for Recorder {
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        self.0.lock().expect("valid").extend(request.iter().map(|part| part.key.bytes().to_vec()));
        let decision = Decision::counted(Outcome::Allowed, Micros::ZERO, 1, 1, Wait::micros(0));
        Answer::Ready(Ok(Admission::without_permits(decision)))
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

#[test]
fn missing_key_follows_the_chosen_fallback() {
    let without = get("/");
    let written = |key: &dyn RuleKey, request: &Request<()>| {
        let mut text = KeyBuf::new();
        (key.write_key(&Head::of(request), &mut text), text.bytes().to_vec())
    };
    let header = || by::header("x-user");
    let client = ClientAddress::from_socket(|address: &std::net::SocketAddr| *address);
    assert_eq!(written(&header().or_skip(), &without), (KeyOutcome::Skip, vec![]));
    assert_eq!(written(&header().or_refuse(), &without), (KeyOutcome::Refuse, vec![]));
    assert_eq!(written(&header().or_share(), &without).0, KeyOutcome::Key);

    let mut from = get("/");
    from.extensions_mut().insert("192.0.2.1:1".parse::<std::net::SocketAddr>().unwrap());
    let fallen_back = written(&header().or_address(client.clone()), &from);
    assert_eq!(fallen_back, written(&by::address(client), &from));
    let half = written(&(by::method(), header()).or_share(), &without);
    assert_eq!(half, written(&header().or_share(), &without), "the present parts are discarded");
}

#[test]
fn requests_skipped_or_refused_for_a_missing_key_are_counted() {
    let limits = |key: Box<dyn Fn() -> Limits>| key();
    let skip = limits(Box::new(|| {
        Limits::single(Limiter::new(Quota::per_hour(1)), by::header("x-user").or_skip()).unwrap()
    }));
    for _ in 0..3 {
        assert!(matches!(skip.evaluate(&Head::of(&get("/"))), Evaluation::Now(LimitOutcome::Pass(_))));
    }
    assert_eq!((skip.stats()[0].missing, skip.stats()[0].refused), (3, 0));

    let refuse = Limits::single(Limiter::new(Quota::per_hour(1)), by::header("x-user").or_refuse()).unwrap();
    let Evaluation::Now(LimitOutcome::Refuse(refusal)) = refuse.evaluate(&Head::of(&get("/"))) else {
        panic!("a request without a key is refused")
    };
    assert_eq!((refusal.reason, refusal.status.as_u16()), (RefusalReason::MissingKey, 400));
    assert_eq!(refuse.stats()[0].missing, 1);
}

#[test]
fn invalid_limits_are_rejected_at_build_time() {
    let limiter = || Limiter::new(Quota::per_second(1));
    let invalid = |key: Result<Limits, InvalidLimits>| key.unwrap_err();
    let header = invalid(Limits::single(limiter(), by::header("x user").or_skip()));
    let error = InvalidKey::InvalidHeaderName { name: "x user".into() };
    assert_eq!(header, InvalidLimits::InvalidKey { rule: "default".into(), error });
    assert!(header.to_string().contains("\"x user\" is not a valid header name"), "{header}");
    let inside = invalid(Limits::single(limiter(), (by::method(), by::route(["login"])).or_skip()));
    assert!(inside.to_string().contains("\"login\" is not a valid path template"), "{inside}");
    let param = invalid(Limits::single(limiter(), by::param("/users/{id}", "user").or_skip()));
    assert!(param.to_string().contains("no parameter \"user\""), "{param}");

    let policy = || Policy::builder().rule("user", Quota::per_second(1)).build().unwrap();
    let built = |name: &str| Limits::builder(policy()).rule(name, by::global()).build().map(|_| ());
    assert_eq!(built("usr"), Err(InvalidLimits::UnknownRule { rule: "usr".into() }));
    assert_eq!(built("größe"), Err(InvalidLimits::InvalidName { rule: "größe".into() }));
    assert_eq!(built("user"), Ok(()));
    assert_eq!(Limits::builder(policy()).build().unwrap_err(), InvalidLimits::NoRules);
    let twice = Limits::builder(policy()).rule("user", by::global()).rule("user", by::method()).build();
    assert_eq!(twice.unwrap_err(), InvalidLimits::DuplicateRule { rule: "user".into() });
    let two_of_one = Limits::builder(limiter()).rule("a", by::global()).rule("b", by::global()).build();
    assert_eq!(two_of_one.unwrap_err(), InvalidLimits::DuplicateRule { rule: "b".into() });
    let early = Limits::builder(limiter()).shadow().rule("a", by::global()).build();
    assert_eq!(early.unwrap_err(), InvalidLimits::SettingBeforeRule { setting: "shadow" });
    let many = (0..9).fold(Policy::builder(), |policy, n| policy.rule(n.to_string(), Quota::per_second(1)));
    let many = (0..9)
        .fold(Limits::builder(many.build().unwrap()), |limits, n| limits.rule(&n.to_string(), by::global()));
    assert_eq!(many.build().unwrap_err(), InvalidLimits::TooManyRules { rules: 9 });
    assert_eq!(limiter().rule("whatever"), Some(RuleId(0)));
}

proptest! {
    #[test]
    fn building_keys_of_arbitrary_requests_does_not_panic(
        path in "/[ -~&&[^#?<>\"`{}|\\\\^]]{0,40}",
        query in "[a-z%+=&0-9]{0,40}",
        value in prop::collection::vec(any::<u8>(), 0..700),
    ) {
        let uri = format!("{path}?{query}");
        prop_assume!(uri.parse::<http::Uri>().is_ok());
        let mut request = get(&uri);
        if let Ok(value) = HeaderValue::from_bytes(&value) {
            for name in ["x-user", "host"] {
                request.headers_mut().insert(name, value.clone());
            }
        }
        let parts = (by::header("x-user"), by::query("a"), by::host(), by::route(["/a/{b}"]), by::method());
        let recorder = Recorder::default();
        let limits = Limits::single(recorder, (parts, by::header("x-user").secret()).or_share()).unwrap();
        prop_assert!(matches!(limits.evaluate(&Head::of(&request)), Evaluation::Now(LimitOutcome::Pass(_))));
    }
}
