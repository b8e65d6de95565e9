//! HTTP, by bytes on a socket.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::binary::Binary;
use crate::running::{PATIENCE, Running, rest, settings};

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream
}

/// Sends a request and reads the answer: its status, its head, and its body.
pub(crate) fn exchange(stream: &mut TcpStream, head: &str, body: &str) -> (u16, String, String) {
    let request = format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("sent");
    answer(stream)
}

pub(crate) fn answer(stream: &mut TcpStream) -> (u16, String, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("text").to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let mut body = vec![0; length.and_then(|length| length.parse().ok()).unwrap_or(0)];
    stream.read_exact(&mut body).expect("a body");
    if head.contains("transfer-encoding: chunked") {
        while let Some(chunk) = chunk(stream) {
            body.extend(chunk);
        }
    }
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, head, String::from_utf8(body).expect("text"))
}

/// The next chunk of a body, unless it was the last.
fn chunk(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = Vec::new();
    while !length.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("the length of a chunk");
        length.push(byte[0]);
    }
    let length = std::str::from_utf8(&length).expect("text").trim_end();
    let mut chunk = vec![0; usize::from_str_radix(length, 16).expect("a number") + 2];
    stream.read_exact(&mut chunk).expect("a chunk");
    assert!(chunk.ends_with(b"\r\n"), "a chunk ends where it says");
    chunk.truncate(chunk.len() - 2);
    (!chunk.is_empty()).then_some(chunk)
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Value {
    let (status, head, said) = exchange(&mut connect(address), &format!("POST {path}"), &body.to_string());
    assert!(status == 200 && head.contains("content-type: application/json"), "{status} {said}");
    serde_json::from_str(&said).expect("JSON")
}

pub(crate) fn file(rules: &str) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("there is room");
    std::fs::write(file.path(), rules).expect("written");
    file
}

pub(crate) fn serving(rules: &str) -> (Binary, tempfile::NamedTempFile) {
    let file = file(rules);
    let path = file.path().to_str().expect("a name");
    (Binary::start(&["serve", "--config", path]), file)
}

const RULES: &str = r#"
rules:
  - {name: user, match: {user: "*"}, key: user, quota: 5/h, deny: {user: mallory}}
  - {name: at work, match: {job: "*"}, key: job, quota: 1 at once lease 30s}
  - {name: watched, match: {user: "*"}, quota: 1/h, shadow: true}
"#;

#[test]
fn every_verb_is_answered() {
    let (server, _file) = serving(RULES);
    let alice = json!({"descriptors": {"user": "alice"}});
    let told = post(server.http, "/v1/check", &json!({"descriptors": {"user": "alice"}, "cost": 4}));
    let expected = [
        ("allowed", json!(true)),
        ("outcome", json!("allowed")),
        ("limit", json!(5)),
        ("remaining", json!(1)),
    ];
    for (name, value) in expected {
        assert_eq!(told[name], value, "{told}");
    }
    assert_eq!((&told["rule"], &told["source"]), (&json!("user"), &json!("strict")));
    assert_eq!(told["would_refuse"], json!("watched"), "four are more than one an hour");
    assert_eq!(
        post(server.http, "/v1/peek", &json!({"rule": "user", "key": "alice"}))["remaining"],
        json!(0)
    );
    let refused = post(server.http, "/v1/check", &json!({"descriptors": {"user": "alice"}, "cost": 2}));
    assert_eq!((&refused["allowed"], &refused["outcome"]), (&json!(false), &json!("refused")));
    assert!(refused["wait"].as_f64().is_some_and(|wait| wait > 0.0), "{refused}");
    assert_eq!(post(server.http, "/v1/refund", &alice)["remaining"], json!(2));
    assert_eq!(post(server.http, "/v1/reset", &alice)["remaining"], json!(5));
    let never = post(server.http, "/v1/check", &json!({"descriptors": {"user": "alice"}, "cost": 6}));
    assert_eq!(never["outcome"], json!("never"));
    let denied = post(server.http, "/v1/check", &json!({"descriptors": {"user": "mallory"}}));
    assert_eq!((&denied["outcome"], &denied["rule"]), (&json!("denied"), &json!("user")));
    assert_eq!(
        post(server.http, "/v1/check", &json!({"descriptors": {}})),
        json!({"allowed": true, "outcome": "unlimited"})
    );

    let held = post(server.http, "/v1/acquire", &json!({"descriptors": {"job": ["x", "y"]}}));
    assert_eq!((&held["allowed"], &held["lease"]), (&json!(true), &json!(30)));
    let place = json!({"place": held["place"]});
    assert_eq!(
        post(server.http, "/v1/acquire", &json!({"descriptors": {"job": "x"}}))["outcome"],
        json!("busy")
    );
    assert_eq!(post(server.http, "/v1/renew", &place), json!({"renewed": true, "lease": 30}));
    assert_eq!(post(server.http, "/v1/release", &place), json!({"released": true}));
    assert_eq!(post(server.http, "/v1/release", &place), json!({"released": false}));
    assert_eq!(post(server.http, "/v1/renew", &place), json!({"renewed": false}));

    let told = post(server.http, "/v1/explain", &alice);
    let rules: Vec<_> = told["rules"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|rule| (&rule["name"], &rule["applies"]))
        .collect();
    assert_eq!(
        rules,
        [
            (&json!("user"), &json!(true)),
            (&json!("at work"), &json!(false)),
            (&json!("watched"), &json!(true))
        ]
    );
    assert_eq!(told["rules"][0]["limits"][0]["remaining"], json!(5));
    assert_eq!(told["rules"][1]["why"], json!("there is no `job`, and it should be *"));
}

#[test]
fn a_batch_is_answered_in_order_each_for_itself() {
    let (server, _file) = serving(RULES);
    let call = |user: &str, cost: u32| json!({"descriptors": {"user": user}, "cost": cost});
    let told = post(
        server.http,
        "/v1/check",
        &json!([call("a", 5), call("a", 1), call("b", 1), {"rule": "user", "key": ["b"]}]),
    );
    let told: Vec<_> =
        told.as_array().expect("a list").iter().map(|one| (&one["allowed"], &one["remaining"])).collect();
    let (yes, no) = (json!(true), json!(false));
    assert_eq!(told, [(&yes, &json!(0)), (&no, &json!(0)), (&yes, &json!(4)), (&yes, &json!(3))]);
    assert_eq!(post(server.http, "/v1/check", &json!([])), json!([]));
    let needs = post(server.http, "/v1/check", &json!([call("c", 1), {"descriptors": {"job": "x"}}]));
    assert_eq!((&needs[0]["allowed"], &needs[1]["status"]), (&yes, &json!(409)));
}

#[test]
fn what_cannot_be_answered_is_a_problem() {
    let (server, _file) = serving(RULES);
    let many = json!(vec![json!({"descriptors": {}}); 257]).to_string();
    let values = json!({"descriptors": {"a": vec!["x"; 129]}}).to_string();
    let deep = "[".repeat(100_000);
    let rows: [(&str, &str, u16, &str); 17] = [
        ("POST /v1/check", "", 400, "the body is empty; send JSON"),
        ("POST /v1/check", "nonsense", 400, "expected ident at line 1 column 2"),
        (
            "POST /v1/check",
            "{\"descriptors\": 5}",
            400,
            "names, each with a text or a list of texts at line 1 column 17",
        ),
        ("POST /v1/check", "{\"descriptors\": {\"a\": 5}}", 400, "a text, or a list of texts"),
        ("POST /v1/check", "{\"descriptors\": {}, \"cots\": 5}", 400, "unknown field `cots`"),
        ("POST /v1/check", "{}", 400, "neither `descriptors` nor a `rule`; send one of them"),
        (
            "POST /v1/check",
            "{\"rule\": \"nobody\"}",
            400,
            "there is no rule \"nobody\"; the configuration has the names",
        ),
        (
            "POST /v1/check",
            "{\"rule\": \"user\"}",
            400,
            "`key` has 0 parts, and the key of rule \"user\" has 1",
        ),
        ("POST /v1/check", "[{\"descriptors\": {}}, {}]", 400, "[1]: neither"),
        (
            "POST /v1/check",
            "{\"descriptors\": {\"job\": \"x\"}}",
            409,
            "rule \"at work\" is about places at work; acquire one",
        ),
        ("POST /v1/check", &many, 400, "a batch has at most 256 requests"),
        ("POST /v1/check", &values, 400, "a request has at most 128 values"),
        ("POST /v1/check", &deep, 400, "the body is not what was expected"),
        (
            "POST /v1/release",
            "{\"place\": \"x\"}",
            400,
            "place \"x\": this is no id of a place; use the 32 letters",
        ),
        ("POST /v1/explain", "{\"rule\": \"user\", \"key\": \"a\"}", 400, "no `descriptors`"),
        ("GET /v1/check", "", 405, "GET is not for /v1/check; use POST"),
        ("POST /v2/check", "", 404, "there is nothing at \"/v2/check\"; use one of /v1/check, "),
    ];
    are_problems(&mut connect(server.http), &rows);
}

#[test]
fn a_number_that_is_none_is_told_what_it_should_be() {
    let (server, _file) = serving(RULES);
    for wrong in ["-1", "4294967296", "1.5"] {
        let body = format!("{{\"descriptors\": {{}}, \"cost\": {wrong}}}");
        let sentence = format!("`{wrong}`, expected a whole number from 0 to 4294967295 at line 1 column ");
        are_problems(&mut connect(server.http), &[("POST /v1/check", &body, 400, &sentence)]);
    }
}

/// On one connection: a problem is not the end of it.
fn are_problems(client: &mut TcpStream, rows: &[(&str, &str, u16, &str)]) {
    for (head, body, status, sentence) in rows {
        let (said, head, body) = exchange(client, head, body);
        assert_eq!(said, *status, "{body}");
        assert!(
            head.contains("content-type: application/problem+json") && head.contains("no-store"),
            "{head}"
        );
        let problem: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(problem["status"], json!(status));
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(sentence)), "{problem}");
    }
    assert_eq!(exchange(client, "GET /livez", "").0, 200);
    assert_eq!(exchange(client, "GET /readyz", "").0, 200);
}

#[test]
fn a_body_that_is_too_long_is_not_read() {
    let (server, _file) = serving(RULES);
    let mut client = connect(server.http);
    client
        .write_all(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99999999999\r\n\r\n")
        .expect("sent");
    let (status, _, body) = answer(&mut client);
    assert!(status == 413 && body.contains("send at most 262144 bytes"), "{status} {body}");
    let mut client = connect(server.http);
    client
        .write_all(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        .expect("sent");
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    while client.write_all(&chunk).is_ok() {} // until nobody reads any more
    let mut client = connect(server.http);
    client.write_all(&[b'x'; 100_000]).expect("sent");
    assert!(rest(&mut client).starts_with("HTTP/1.1 4"), "what is no request is told so");
}

#[test]
fn who_does_not_finish_a_request_is_let_go_and_the_others_are_not() {
    let server = Running::new(settings(|settings| {
        settings.stalled = Duration::from_millis(100);
        settings.idle = Duration::from_secs(60);
    }));
    let (mut other, mut head, mut body) = (connect(server.http), connect(server.http), connect(server.http));
    assert_eq!(exchange(&mut other, "GET /livez", "").0, 200);
    head.write_all(b"POST /v1/check HTTP/1.1\r\nhost").expect("sent");
    body.write_all(
        b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: Bearer sesame\r\ncontent-length: 9\r\n\r\n{",
    )
    .expect("sent");
    assert_eq!((rest(&mut head), rest(&mut body)), (String::new(), String::new()));
    assert_eq!(exchange(&mut other, "GET /livez", "").0, 200, "who has nothing under way may be silent");
}

#[test]
fn a_token_is_asked_for_where_there_is_one() {
    let server = Running::new(settings(|_| {}));
    let mut client = connect(server.http);
    let rows = [
        ("", 401),
        ("authorization: Bearer nonsense\r\n", 401),
        ("authorization: bearer sesame\r\n", 200),
        ("authorization: Basic sesame\r\n", 401),
    ];
    for (header, expected) in rows {
        let body = "{\"descriptors\":{}}";
        let request = format!(
            "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{header}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        client.write_all(request.as_bytes()).expect("sent");
        assert_eq!(answer(&mut client).0, expected, "{header}");
    }
    for (method, path) in tidegate_server::http::routes() {
        let (status, head, _) = exchange(&mut client, &format!("{method} {path}"), "{}");
        let is_open = path.ends_with('z') || path == "/openapi.json";
        assert_eq!(status, if is_open { 200 } else { 401 }, "{path}");
        assert_eq!(head.contains("www-authenticate: bearer"), !is_open);
    }
}

#[test]
fn a_hundred_requests_in_one_piece_and_an_end_that_answers_them() {
    let mut server = Running::new(settings(|_| {}));
    let mut client = connect(server.http);
    client.write_all(&b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n".repeat(100)).expect("sent");
    for _ in 0..100 {
        assert_eq!(answer(&mut client).0, 200);
    }
    server.tell_to_end();
    assert_eq!(rest(&mut client), "", "closed, and not reset");
}

/// Ten by HTTP and ten by the protocol of Redis, of fifteen.
#[test]
fn there_is_one_count_for_all_protocols() {
    let (server, _file) = serving("rules: [{name: user, key: user, missing: shared, quota: 15/h}]");
    let mut redis = server.connect();
    let mut passed = 0;
    for _ in 0..10 {
        let told = post(server.http, "/v1/check", &json!({"descriptors": {"user": "alice"}}));
        passed += u32::from(told["allowed"] == json!(true));
        redis.write_all(b"TG.CHECK user alice\r\n").expect("sent");
        let mut said = Vec::new();
        while !said.ends_with(b"strict\r\n") {
            let mut byte = [0];
            redis.read_exact(&mut byte).expect("a reply");
            said.push(byte[0]);
        }
        passed += u32::from(said.starts_with(b"*8\r\n:1\r\n"));
    }
    assert_eq!(passed, 15);
}
