//! How the service starts with its counts in Redis: it connects before its listeners open.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::binary::Binary;
use crate::http::{file, post};
use crate::shared::Redis;

fn config(url: &str, settings: &str) -> tempfile::NamedTempFile {
    let rules = "rules: [{name: user, key: user, missing: shared, quota: 1000/s}]";
    file(&format!("store: {{redis: {{url: \"{url}\", {settings}}}}}\n{rules}\n"))
}

fn start(file: &tempfile::NamedTempFile) -> Binary {
    Binary::start(&["serve", "--config", file.path().to_str().expect("a name")])
}

#[test]
fn the_first_answer_of_a_fresh_service_is_strict() {
    let redis = Redis::start();
    // A busy machine is not taken for a Redis that does not answer.
    let file = config(&redis.url(), "deadline: 20s, connect_timeout: 60s");
    for round in 0..20 {
        let server = start(&file);
        let told = post(server.http, "/v1/check", &json!({"descriptors": {"user": "alice"}}));
        let told = (&told["source"], &told["allowed"]);
        assert_eq!(told, (&json!("strict"), &json!(true)), "round {round}");
    }
}

#[test]
fn without_redis_the_listeners_open_after_the_connect_timeout_and_one_warning() {
    let timeout = Duration::from_millis(700);
    let (file, started) = (config("redis://127.0.0.1:1", "connect_timeout: 700ms"), Instant::now());
    let mut server = start(&file);
    assert!(started.elapsed() >= timeout, "{:?}", started.elapsed());
    let told = post(server.http, "/v1/check", &json!({"descriptors": {"user": "alice"}}));
    assert_eq!(told["source"], json!("local"));
    std::thread::sleep(Duration::from_secs(2)); // the task that looks twice a second has nothing to add
    let errors = server.child.stderr.take().expect("a pipe");
    drop(server);
    let lines: Vec<String> = BufReader::new(errors).lines().map(|line| line.expect("text")).collect();
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    let (start, end) = ("tidegate: Redis unavailable (", "); each rule follows its `when_lost` setting");
    assert!(line.starts_with(start) && line.ends_with(end) && line.contains("refused"), "{line}");
}
