//! Batches and pipelines with their counts in a real Redis: their requests are sent together, and everything keeps its
//! order. Redis is stopped meanwhile, so what the service has sent was sent without waiting for a reply.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::thread;

use serde_json::{Value, json};

use crate::binary::Binary;
use crate::grpc_client::{Asked, Client as Envoy, Descriptor, OK, OVER, Override, descriptor};
use crate::http::{file, post};
use crate::metrics::scrape;
use crate::shared::{Redis, until};

const MANY: usize = 256;

fn serving(redis: &Redis, deadline: &str) -> Binary {
    serving_rules(redis, deadline, "quota: 100/day")
}

fn serving_rules(redis: &Redis, deadline: &str, limit: &str) -> Binary {
    let rules = format!("rules: [{{name: user, key: user, missing: shared, {limit}}}]");
    let store = format!(
        "{{url: \"{}\", deadline: {deadline}, connect_timeout: 60s, when_lost: closed}}",
        redis.url()
    );
    let file = file(&format!("store: {{redis: {store}}}\n{rules}\n"));
    let server = Binary::start(&["serve", "--config", file.path().to_str().expect("a name")]);
    drop(file); // it was read
    server
}

fn commands(server: &Binary) -> f64 {
    scrape(server.admin)["tidegate_redis_commands_total"]
}

/// Runs `ask` while Redis is stopped, lets Redis go on once so many requests were sent to it, and returns what was told.
fn stopped<T: Send>(redis: &Redis, server: &Binary, sent: usize, ask: impl FnOnce() -> T + Send) -> T {
    let before = commands(server);
    redis.signal("-STOP");
    thread::scope(|scope| {
        let asking = scope.spawn(ask);
        until("all of them were sent", || (commands(server) >= before + sent as f64).then_some(()));
        redis.signal("-CONT");
        asking.join().expect("an answer")
    })
}

fn batch(server: &Binary) -> Vec<Value> {
    let asked = json!(vec![json!({"descriptors": {"user": "alice"}}); MANY]);
    post(server.http, "/v1/check", &asked).as_array().expect("a list").clone()
}

/// The replies to so many commands, the values of an array with spaces between them.
fn replies(stream: TcpStream, count: usize) -> Vec<String> {
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
    let mut value = move || match lines.next().expect("a reply") {
        length if length.starts_with('$') => lines.next().expect("a text"),
        line => line,
    };
    let mut reply = move || match value() {
        array if array.starts_with('*') => {
            let count: usize = array[1..].parse().expect("a number of values");
            (0..count).map(|_| value()).collect::<Vec<_>>().join(" ")
        }
        line => line,
    };
    (0..count).map(|_| reply()).collect()
}

#[test]
fn a_batch_is_sent_together_and_decided_in_its_order() {
    let redis = Redis::start();
    let server = serving(&redis, "60s");
    let told = stopped(&redis, &server, MANY, || batch(&server));
    let passed: Vec<bool> = told.iter().map(|told| told["allowed"] == json!(true)).collect();
    let expected: Vec<bool> = (0..MANY).map(|number| number < 100).collect();
    assert_eq!(passed, expected, "the first hundred pass");
    let left: Vec<_> = told[..100].iter().map(|told| told["remaining"].as_u64().expect("a number")).collect();
    assert_eq!(left, (0..100).rev().collect::<Vec<u64>>());
    assert!(told.iter().all(|told| told["source"] == json!("strict")));
}

#[test]
fn a_pipeline_is_sent_together_and_answered_in_its_order() {
    let redis = Redis::start();
    let server = serving(&redis, "60s");
    for (command, limited) in [("CL.THROTTLE k 99 1 36000", ":1 "), ("TG.CHECK user bob", ":0 ")] {
        let mut client = server.connect();
        let reader = client.try_clone().expect("the same socket");
        let lines = format!("{command}\r\n").repeat(MANY);
        let told = stopped(&redis, &server, MANY, move || {
            client.write_all(lines.as_bytes()).expect("sent");
            replies(reader, MANY)
        });
        let is_limited: Vec<bool> = told.iter().map(|told| told.starts_with(limited)).collect();
        let expected: Vec<bool> = (0..MANY).map(|number| number >= 100).collect();
        assert_eq!(is_limited, expected, "{command}: the first hundred pass: {told:?}");
    }
}

/// Commands that are answered at once come between those that are not, and those that change the session wait for them.
#[test]
fn replies_of_all_kinds_keep_the_order_of_their_commands() {
    let redis = Redis::start();
    let server = serving(&redis, "60s");
    let mut client = server.connect();
    let (mut sent, mut expected) = (String::new(), Vec::new());
    for number in 0..200 {
        let _ = write!(
            sent,
            "CL.THROTTLE k{number} {number} 1 36000\r\nCL.THROTTLE k x 1 1\r\nECHO {number}\r\n"
        );
        expected.push(format!(":0 :{} :{number} :-1 :36000", number + 1));
        expected.push("-ERR value is not an integer or out of range".to_owned());
        expected.push(number.to_string());
    }
    sent.push_str("MULTI\r\nCL.THROTTLE m 4 1 36000\r\nCL.THROTTLE m 4 1 36000\r\nDEL m\r\nCL.THROTTLE m 4 1 36000\r\nEXEC\r\n");
    expected.extend(["+OK", "+QUEUED", "+QUEUED", "+QUEUED", "+QUEUED"].map(str::to_owned));
    client.write_all(sent.as_bytes()).expect("sent");
    let mut told = replies(client.try_clone().expect("the same socket"), expected.len());
    told.iter_mut().for_each(|told| *told = told.replace(":35999", ":36000")); // a moment has passed
    assert_eq!(told, expected);
}

#[test]
fn the_commands_of_a_transaction_are_executed_in_their_order() {
    let redis = Redis::start();
    let server = serving(&redis, "60s");
    let mut client = server.connect();
    let throttle = "CL.THROTTLE n 4 1 36000\r\n";
    let lines = format!("MULTI\r\n{throttle}{throttle}DEL n\r\n{throttle}EXEC\r\n");
    client.write_all(lines.as_bytes()).expect("sent");
    let mut lines = BufReader::new(client).lines().map(|line| line.expect("a line"));
    let head: Vec<String> = lines.by_ref().take(6).collect();
    assert_eq!(head, ["+OK", "+QUEUED", "+QUEUED", "+QUEUED", "+QUEUED", "*4"]);
    let told: Vec<String> = lines.take(6 + 6 + 1 + 6).collect();
    assert_eq!(
        [&told[3], &told[9], &told[12], &told[16]],
        [":4", ":3", ":1", ":4"],
        "what is left: {told:?}"
    );
}

#[test]
fn descriptors_with_their_own_limits_are_sent_together() {
    let redis = Redis::start();
    let server = serving(&redis, "60s");
    let of = |number: usize| {
        let limit = Some(Override { requests_per_unit: 2, unit: 4 }); // a day
        Descriptor { limit, ..descriptor(&format!("user={}", number / 2)) }
    };
    let descriptors: Vec<_> = (0..20).map(of).collect();
    let asked = Asked { domain: "edge".into(), descriptors, ..Asked::default() };
    let mut envoy = Envoy::new(server.grpc);
    let told = stopped(&redis, &server, 20, || envoy.ask(asked.clone()).expect("an answer").each());
    assert_eq!(told, [(OK, 1), (OK, 0)].repeat(10));
    assert!(envoy.ask(asked).expect("an answer").each().iter().all(|told| *told == (OVER, 0)));
}

/// A rule that is leased does not make the requests for other rules wait for each other.
#[test]
fn strict_rules_beside_a_leased_one_are_sent_together() {
    let redis = Redis::start();
    let server = serving_rules(
        &redis,
        "60s",
        "quota: 100/day}, {name: api, key: api, match: {api: \"*\"}, quota: 1000/s, lease: on",
    );
    let told = stopped(&redis, &server, MANY, || batch(&server));
    assert_eq!(told.iter().filter(|told| told["allowed"] == json!(true)).count(), 100);
}

/// Each tells what is left after it, and the next one has not given back yet.
#[test]
fn refunds_are_sent_together_and_told_in_their_order() {
    let redis = Redis::start();
    let server = serving(&redis, "60s");
    let descriptors = json!({"user": "alice"});
    post(server.http, "/v1/check", &json!({"descriptors": descriptors, "cost": 100}));
    let asked = json!(vec![json!({"descriptors": descriptors}); 30]);
    let told = stopped(&redis, &server, 60, || post(server.http, "/v1/refund", &asked));
    let left = |told: &Value| told["remaining"].as_u64().expect("a number");
    assert_eq!(told.as_array().expect("a list").iter().map(left).collect::<Vec<_>>(), Vec::from_iter(1..=30));
    let mut client = server.connect();
    let reader = client.try_clone().expect("the same socket");
    let told = stopped(&redis, &server, 60 + 1, move || {
        client
            .write_all(format!("{}TG.RESET user alice\r\n", "TG.REFUND user alice\r\n".repeat(30)).as_bytes())
            .expect("sent");
        replies(reader, 31)
    });
    let left: Vec<_> = told.iter().map(|told| told.split(' ').nth(4).expect("what is left")).collect();
    assert_eq!(left[..30], (31..=60).map(|left| format!(":{left}")).collect::<Vec<_>>());
    assert_eq!(left[30], ":100");
}

/// All of them were under way when the deadline was over: none waited for another.
#[test]
fn one_deadline_holds_for_a_whole_batch() {
    for limit in ["quota: 100/day", "quota: 1000/day, lease: on"] {
        one_deadline_holds_for_many(limit, |server| {
            assert!(batch(server).iter().all(|told| told["source"] == json!("closed")));
        });
    }
}

#[test]
fn one_deadline_holds_for_a_whole_pipeline() {
    for limit in ["quota: 100/day", "quota: 1000/day, lease: on"] {
        one_deadline_holds_for_many(limit, |server| {
            let mut client = server.connect();
            client.write_all("TG.CHECK user alice\r\n".repeat(MANY).as_bytes()).expect("sent");
            replies(client, MANY);
        });
    }
}

fn one_deadline_holds_for_many(limit: &str, ask: impl FnOnce(&Binary)) {
    let redis = Redis::start();
    let server = serving_rules(&redis, "300ms", limit);
    redis.signal("-STOP");
    ask(&server);
    redis.signal("-CONT");
    let late = scrape(server.admin)["tidegate_fallback_decisions_total{reason=\"deadline\"}"];
    assert!(late >= 256.0, "{limit}: {late} were late, and the others were not sent");
}
