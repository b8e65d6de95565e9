//! Arbitrary bytes in the headers of requests and responses never cause a panic.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Request, StatusCode};
use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::http::{
    Evaluation, Fields, Forwarding, Head, KeyPart, LimitOutcome, Limits, ReportedQuota, ReportedRule,
    TrustedProxies, Unit, by, retry_after_of,
};
use tidegate::{Limiter, ManualClock, Quota};

/// Bytes that are valid in a header, with a bias towards bytes that have a meaning there.
fn bytes() -> impl Strategy<Value = HeaderValue> {
    let meaning = prop::sample::select(&b"\",;=:-/.%[]\\ \t0123456789rtawGMTunSo"[..]);
    let byte = prop_oneof![2 => b' '..=b'~', 1 => 0x80..=0xffu8, 4 => meaning];
    vec(byte, 0..60).prop_map(|bytes| HeaderValue::from_bytes(&bytes).expect("valid header bytes"))
}

/// Headers of these names with any values.
fn headers(names: &'static [&'static str]) -> impl Strategy<Value = HeaderMap> {
    vec((prop::sample::select(names), bytes()), 0..12).prop_map(|lines| {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), value);
        }
        headers
    })
}

const REQUEST_HEADERS: &[&str] =
    &["accept", "content-type", "cookie", "forwarded", "host", "x-forwarded-for", "x-real-ip", "x-user"];
const RESPONSE_HEADERS: &[&str] = &[
    "date",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-remaining",
    "retry-after",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
];

proptest! {
    #[test]
    fn refusing_a_request_with_arbitrary_headers_does_not_panic(headers in headers(REQUEST_HEADERS)) {
        let mut request = Request::new(());
        *request.headers_mut() = headers;
        request.extensions_mut().insert(std::net::SocketAddr::from(([10, 0, 0, 1], 1)));
        let ours = TrustedProxies::new(["10.0.0.0/8"]).unwrap();
        let client = tidegate::http::ClientAddress::from_socket(|address: &std::net::SocketAddr| *address)
            .behind(ours, Forwarding::Forwarded);
        let key = (by::host(), by::header("x-user"), by::header("cookie").secret());
        let limits = Limits::builder(Limiter::builder(Quota::per_hour(1)).clock(ManualClock::new()).build())
            .rule("hourly", key.or_address(client.clone()))
            .fields(Fields::Draft11)
            .page("<p>Later.</p>")
            .build()
            .unwrap();
        let _ = limits.evaluate(&Head::of(&request));
        let Evaluation::Now(LimitOutcome::Refuse(refusal)) = limits.evaluate(&Head::of(&request)) else {
            return Err(TestCaseError::fail("the second request is refused"));
        };
        let response = limits.refusal_response(&Head::of(&request), &refusal);
        prop_assert!([429, 200].contains(&response.status().as_u16()));
        client.write_forwarding(&mut request);
        prop_assert!(request.headers()["forwarded"].as_bytes().ends_with(b"for=10.0.0.1"));
    }

    #[test]
    fn reading_a_response_with_arbitrary_headers_does_not_panic(mut headers in headers(RESPONSE_HEADERS)) {
        for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
            let _ = retry_after_of(status, &headers);
        }
        let rule = ReportedRule { name: "a", quota: 5, window: Some(60), unit: Unit::Requests };
        for fields in [Fields::Draft11, Fields::Draft06, Fields::XRateLimit] {
            fields.add(&mut headers, &[rule], &[ReportedQuota { rule, remaining: 3, reset_secs: 9 }]);
        }
        prop_assert_eq!(headers.get_all("ratelimit").iter().next_back().unwrap(), "\"a\";r=3;t=9");
    }
}
