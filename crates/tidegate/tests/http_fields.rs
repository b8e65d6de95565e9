//! Rate limit header fields: the test vectors, and how they combine with fields set by the service.

use http::{HeaderMap, HeaderValue};
use tidegate::http::{Fields, ReportedQuota, ReportedRule, Unit, is_valid_name, partition_key};

const DEFAULT: ReportedRule<'static> = rule("default", 100, Some(60));
const DAILY: ReportedRule<'static> = rule("daily", 1_000, Some(86_400));

const fn rule(name: &str, quota: u64, window: Option<u64>) -> ReportedRule<'_> {
    ReportedRule { name, quota, window, unit: Unit::Requests }
}

const fn remaining(rule: ReportedRule<'_>, remaining: u64, reset_secs: u64) -> ReportedQuota<'_> {
    ReportedQuota { rule, remaining, reset_secs }
}

fn fields(fields: Fields, rules: &[ReportedRule<'_>], states: &[ReportedQuota<'_>]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    fields.add(&mut headers, rules, states);
    headers
}

#[test]
fn draft_fields_match_the_vectors() {
    let one = fields(Fields::Draft11, &[DEFAULT], &[remaining(DEFAULT, 50, 30)]);
    assert_eq!(one["ratelimit-policy"], "\"default\";q=100;w=60"); // HD-01
    assert_eq!(one["ratelimit"], "\"default\";r=50;t=30");

    let two = fields(
        Fields::Draft11,
        &[DEFAULT, DAILY],
        &[remaining(DEFAULT, 50, 30), remaining(DAILY, 812, 3_600)],
    );
    assert_eq!(two["ratelimit-policy"], "\"default\";q=100;w=60, \"daily\";q=1000;w=86400"); // HD-02
    assert_eq!(two["ratelimit"], "\"default\";r=50;t=30, \"daily\";r=812;t=3600");

    let next = fields(Fields::DraftNext, &[DEFAULT], &[remaining(DEFAULT, 99, 60)]);
    assert_eq!(next["ratelimit"], "\"default\";a=99;w=60");

    let bytes = ReportedRule { unit: Unit::ContentBytes, ..rule("peruser", 65_535, Some(10)) };
    let concurrent = ReportedRule { unit: Unit::ConcurrentRequests, ..rule("concurrency", 200, None) };
    let units = fields(Fields::Draft11, &[bytes, concurrent], &[remaining(concurrent, 3, 0)]);
    assert_eq!(
        units["ratelimit-policy"],
        "\"peruser\";q=65535;qu=\"content-bytes\";w=10, \"concurrency\";q=200;qu=\"concurrent-requests\""
    );
    assert_eq!(units["ratelimit"], "\"concurrency\";r=3");
}

#[test]
fn names_are_quoted_and_invalid_names_rejected() {
    let odd = rule("a \"b\" \\c", 1, None); // HD-07
    assert_eq!(fields(Fields::Draft11, &[odd], &[])["ratelimit-policy"], "\"a \\\"b\\\" \\\\c\";q=1");
    assert!(
        is_valid_name("a \"b\" \\c")
            && !is_valid_name("größe")
            && !is_valid_name("a\nb")
            && !is_valid_name("")
    );
}

#[test]
fn partition_keys_are_sorted_by_name() {
    assert_eq!(partition_key(&mut [("user_id", b"alice"), ("method", b"GET")]), ":R0VUH2FsaWNl:"); // HD-06
    assert_eq!(partition_key(&mut []), "::");
    assert_eq!(partition_key(&mut [("a", b"sdfjLJUOUH")]), ":c2RmakxKVU9VSA==:");
}

#[test]
fn single_rule_fields_report_the_rule_with_the_least_remaining() {
    let states = [remaining(DAILY, 812, 3_600), remaining(DEFAULT, 50, 30)];
    let x = fields(Fields::XRateLimit, &[], &states);
    assert_eq!(
        (&x["x-ratelimit-limit"], &x["x-ratelimit-remaining"], &x["x-ratelimit-reset"]),
        (&HeaderValue::from(100), &HeaderValue::from(50), &HeaderValue::from(30))
    );
    let old = fields(Fields::Draft06, &[], &states);
    assert_eq!(
        (&old["ratelimit-limit"], &old["ratelimit-reset"]),
        (&HeaderValue::from(100), &HeaderValue::from(30))
    );
    let epoch: u64 =
        fields(Fields::XRateLimitEpoch, &[], &states)["x-ratelimit-reset"].to_str().unwrap().parse().unwrap();
    assert!(epoch > 1_700_000_000, "{epoch}");
    assert!(fields(Fields::None, &[DEFAULT], &states).is_empty());
}

#[test]
fn fields_of_the_service_are_never_replaced_by_larger_numbers() {
    let mut headers = HeaderMap::new();
    headers.insert("ratelimit", HeaderValue::from_static("\"behind\";r=3;t=5"));
    headers.insert("x-ratelimit-remaining", HeaderValue::from_static("3"));
    headers.insert("x-ratelimit-limit", HeaderValue::from_static("7"));
    Fields::Draft11.add(&mut headers, &[], &[remaining(DEFAULT, 50, 30)]); // HD-10
    let both: Vec<_> = headers.get_all("ratelimit").iter().collect();
    assert_eq!(both, ["\"behind\";r=3;t=5", "\"default\";r=50;t=30"]);
    Fields::XRateLimit.add(&mut headers, &[], &[remaining(DEFAULT, 50, 30)]);
    assert_eq!(
        (&headers["x-ratelimit-remaining"], &headers["x-ratelimit-limit"]),
        (&HeaderValue::from(3), &HeaderValue::from(7))
    );
    headers.append("x-ratelimit-remaining", HeaderValue::from_static("1"));
    Fields::XRateLimit.add(&mut headers, &[], &[remaining(DEFAULT, 2, 30)]);
    assert_eq!(headers["x-ratelimit-limit"], "7", "another field already says 1");
    headers.insert("x-ratelimit-remaining", HeaderValue::from_static("3"));
    Fields::XRateLimit.add(&mut headers, &[], &[remaining(DEFAULT, 2, 30)]);
    assert_eq!(
        (&headers["x-ratelimit-remaining"], &headers["x-ratelimit-limit"]),
        (&HeaderValue::from(2), &HeaderValue::from(100))
    );
}
