//! What Prometheus is told.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::SocketAddr;

use serde_json::json;

use crate::grpc_client::{Asked, Client, OK};
use crate::http::{connect, exchange, post, serving};

/// Each line by its name and labels. Everything that Prometheus would not read fails.
pub(crate) fn scrape(address: SocketAddr) -> HashMap<String, f64> {
    let (status, head, text) = exchange(&mut connect(address), "GET /metrics", "");
    assert!(status == 200 && head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    let (mut lines, mut families) = (HashMap::new(), Vec::new());
    for line in text.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            families.push(family.split(' ').next().expect("a name").to_owned());
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').expect("a number");
            let family = families.last().expect("a family first");
            assert!(name.starts_with(family.as_str()), "{line} among {family}");
            let before = lines.insert(name.to_owned(), value.parse().expect("a number"));
            assert_eq!(before, None, "{line} is there twice");
        }
    }
    let mut once = families.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), families.len(), "each family is there once");
    lines
}

const RULES: &str = r#"
allow: [{user: root}]
rules:
  - {name: user, match: {user: "*"}, key: user, quota: 2/day, deny: {user: mallory}}
  - {name: watched, match: {user: "*"}, quota: 1/day, shadow: true}
"#;

#[test]
fn what_was_decided_is_counted_by_rule_and_source_and_outcome() {
    let (server, file) = serving(RULES);
    for user in ["alice", "alice", "alice", "bob", "mallory", "root"] {
        let _ = post(server.http, "/v1/check", &json!({"descriptors": {"user": user}}));
    }
    let _ = post(server.http, "/v1/check", &json!({"descriptors": {"x": "y"}}));
    let _ = post(server.http, "/v1/peek", &json!({"descriptors": {"user": "alice"}}));
    let mut redis = server.connect();
    redis.write_all(b"CL.THROTTLE k 0 1 3600\r\nCL.THROTTLE k 0 1 3600\r\n").expect("sent");
    let mut replies = [0; 50];
    redis.read_exact(&mut replies).expect("replies");

    let mut envoy = Client::new(server.grpc);
    assert_eq!(envoy.check(&["user=carol"]).each(), [(OK, 1)]);
    assert!(envoy.ask(Asked::default()).is_err(), "a call that fails is one, too");

    std::fs::write(file.path(), "rules: [{name: b, qouta: 5/day}]").expect("written");
    let (status, _, _) = exchange(&mut connect(server.admin), "POST /admin/reload", "");
    assert_eq!(status, 422);
    let told = scrape(server.admin);
    let rows = [
        ("tidegate_decisions_total{rule=\"user\",source=\"strict\",outcome=\"allowed\"}", 4.0),
        ("tidegate_decisions_total{rule=\"user\",source=\"strict\",outcome=\"refused\"}", 1.0),
        ("tidegate_denied_total{rule=\"user\"}", 1.0),
        ("tidegate_unruled_total{outcome=\"unlimited\"}", 1.0),
        ("tidegate_unruled_total{outcome=\"exempt\"}", 1.0),
        ("tidegate_shadow_decisions_total{rule=\"watched\",outcome=\"allowed\"}", 1.0),
        ("tidegate_shadow_decisions_total{rule=\"watched\",outcome=\"refused\"}", 3.0),
        ("tidegate_throttle_decisions_total{source=\"strict\",outcome=\"allowed\"}", 1.0),
        ("tidegate_throttle_decisions_total{source=\"strict\",outcome=\"refused\"}", 1.0),
        ("tidegate_throttle_keys", 1.0),
        ("tidegate_reloads_total{result=\"in_force\"}", 0.0),
        ("tidegate_reloads_total{result=\"rejected\"}", 1.0),
        ("tidegate_reload_last_rejected", 1.0),
        ("tidegate_protection_ratio", 1.0),
        ("tidegate_connections{protocol=\"resp\"}", 1.0),
        ("tidegate_connections_total{protocol=\"resp\"}", 1.0),
        ("tidegate_connections{protocol=\"grpc\"}", 1.0),
        ("tidegate_answer_duration_seconds_count{protocol=\"grpc\"}", 2.0),
        ("tidegate_answer_duration_seconds_count{protocol=\"http\"}", 8.0),
        ("tidegate_answer_duration_seconds_bucket{protocol=\"http\",le=\"+Inf\"}", 8.0),
    ];
    for (name, value) in rows {
        assert_eq!(told.get(name), Some(&value), "{name}");
    }
    let keys: Vec<_> = told.iter().filter(|(name, _)| name.starts_with("tidegate_keys{")).collect();
    assert_eq!(keys.len(), 2, "{keys:?}");
    let by_http = scrape(server.http);
    assert_eq!(by_http.len(), told.len(), "the same at both doors");

    std::fs::write(file.path(), RULES.replace("2/day", "3/day")).expect("written");
    let _ = post(server.admin, "/admin/reload", &json!({}));
    let name = "tidegate_decisions_total{rule=\"user\",source=\"strict\",outcome=\"allowed\"}";
    assert_eq!(scrape(server.admin).get(name), Some(&4.0), "numbers only grow, over reloads too");
}

#[test]
fn there_are_no_more_lines_however_many_keys_there_are() {
    let (server, _file) = serving("rules: [{name: user, key: user, missing: shared, quota: 1/day}]");
    let many = |from: u32, to: u32| {
        let mut pipeline = String::new();
        for key in from..to {
            let _ = write!(
                pipeline,
                "TG.CHECK user {key}\r\nTG.CHECK user {key}\r\nCL.THROTTLE {key} 0 1 60\r\n"
            );
        }
        let mut client = server.connect();
        client.write_all(pipeline.as_bytes()).expect("sent");
        client.shutdown(std::net::Shutdown::Write).expect("no more");
        let mut replies = Vec::new();
        client.read_to_end(&mut replies).expect("replies");
        let refusals = String::from_utf8_lossy(&replies).matches("$7\r\nrefused").count();
        assert_eq!(refusals, (to - from) as usize);
    };
    many(0, 10);
    let before = scrape(server.admin).len();
    many(10, 3_000);
    let told = scrape(server.admin);
    assert_eq!(told.len(), before);
    let refused = "tidegate_decisions_total{rule=\"user\",source=\"strict\",outcome=\"refused\"}";
    assert_eq!(told.get(refused), Some(&3_000.0));
}
