//! Who may ask, and how: what keeps web pages out, and what passwords and tokens let callers do.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::binary::Binary;
use crate::http::{answer, connect, file, serving};
use crate::running::rest;

/// Everything that is replied to these commands.
fn told(server: &Binary, commands: &str) -> String {
    let mut client = server.connect();
    client.write_all(format!("{commands}QUIT\r\n").as_bytes()).expect("sent");
    rest(&mut client)
}

/// Says what a page of another site could have a browser send, and returns the status.
fn sent_by_a_page(address: SocketAddr, request: &str, headers: &str) -> u16 {
    let body = r#"{"rule": "user", "key": "alice", "for": 60}"#;
    let text = format!("{request} HTTP/1.1\r\n{headers}content-length: {}\r\n\r\n{body}", body.len());
    let mut client = connect(address);
    client.write_all(text.as_bytes()).expect("sent");
    answer(&mut client).0
}

#[test]
fn a_web_page_cannot_administrate() {
    let (server, _file) = serving("rules: [{name: user, key: user, missing: shared, quota: 10/s}]");
    let page = |address: SocketAddr, request: &str, host: &str, origin: &str, kind: &str| {
        let headers = format!("host: {host}\r\n{origin}content-type: {kind}\r\n");
        sent_by_a_page(address, request, &headers)
    };
    let json = "application/json";
    for (address, path) in [
        (server.admin, "/admin/block"),
        (server.admin, "/admin/reload"),
        (server.http, "/v1/reset"),
        (server.http, "/v1/check"),
    ] {
        let post = format!("POST {path}");
        assert_eq!(page(address, &post, "localhost", "", "text/plain"), 403, "{path}");
        assert_eq!(page(address, &post, "localhost", "origin: https://evil.com\r\n", json), 403, "{path}");
        assert_eq!(page(address, &post, "evil.com", "", json), 403, "{path}");
    }
    assert_eq!(page(server.admin, "GET /admin/rules", "evil.com", "", json), 403, "DNS rebinding");
    assert_eq!(page(server.admin, "GET /admin/rules", "localhost:9090", "", json), 200);
    assert_eq!(page(server.admin, "GET /metrics", "192.0.2.1:9090", "", json), 200);
    assert_eq!(page(server.http, "GET /readyz", "evil.com", "", json), 200);
    assert_eq!(page(server.admin, "POST /admin/block", "127.0.0.1", "", json), 200);
}

#[test]
fn names_that_are_listed_may_be_used_without_a_token() {
    let (server, _file) = serving(
        "listeners: {http: {address: '127.0.0.1:0', hosts: [limits.internal]}}\n\
         rules: [{name: user, key: user, missing: shared, quota: 10/s}]",
    );
    let json = "content-type: application/json\r\n";
    let check = |host: &str| sent_by_a_page(server.http, "POST /v1/peek", &format!("host: {host}\r\n{json}"));
    assert_eq!([check("limits.internal:8080"), check("other.internal:8080")], [400, 403]); // the body is not what it asks for
}

#[test]
fn the_redis_protocol_does_not_execute_what_is_in_a_body_of_http() {
    let (server, _file) = serving("rules: [{name: user, key: user, missing: shared, quota: 10/day}]");
    told(&server, "TG.CHECK user alice COST 10\r\n");
    for head in ["POST / HTTP/1.1", "GET / HTTP/1.1", "PUT /x HTTP/1.1", "Host: 127.0.0.1:6380"] {
        let mut client = server.connect();
        client.write_all(format!("{head}\r\n\r\nTG.RESET user alice\r\n").as_bytes()).expect("sent");
        let said = rest(&mut client);
        assert!(said.starts_with("-ERR this is HTTP") && said.lines().count() == 1, "{head}: {said}");
    }
    let said = told(&server, "TG.CHECK user alice\r\n");
    assert!(said.contains(":0\r\n") && said.contains("refused"), "nothing was reset: {said}");
}

#[test]
fn checks_and_changes_have_credentials_of_their_own() {
    let (server, _file) = serving(
        "listeners:\n\
         \x20 http: {address: '127.0.0.1:0', auth: {token: sesame, change_token: simsim}}\n\
         \x20 resp: {address: '127.0.0.1:0', auth: {password: sesame, change_password: simsim}}\n\
         rules: [{name: user, key: user, missing: shared, quota: 10/day}]",
    );
    let asked = |token: &str, path: &str| {
        let body = r#"{"descriptors": {"user": "alice"}}"#;
        let mut client = connect(server.http);
        let head = format!("POST {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\n");
        client
            .write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())
            .expect("sent");
        answer(&mut client).0
    };
    assert_eq!(
        [asked("sesame", "/v1/check"), asked("sesame", "/v1/reset"), asked("x", "/v1/reset")],
        [200, 403, 401]
    );
    assert_eq!([asked("simsim", "/v1/check"), asked("simsim", "/v1/reset")], [200, 200]);
    assert_eq!(asked("x", "/no/such/path"), 401, "the token comes first");
    for (password, command, expected) in [
        ("sesame", "TG.CHECK user alice", "*8"),
        ("sesame", "TG.RESET user alice", "-NOPERM"),
        ("sesame", "DEL k", "-NOPERM"),
        ("simsim", "TG.RESET user alice", "*8"),
        ("simsim", "DEL k", ":0"),
    ] {
        let said = told(&server, &format!("AUTH {password}\r\n{command}\r\n"));
        assert!(said.starts_with(&format!("+OK\r\n{expected}")), "{password} {command}: {said}");
    }
}

#[test]
fn a_socket_beside_the_file_asks_for_the_password_of_the_file() {
    let folder = tempfile::tempdir().expect("there is room");
    let socket = folder.path().join("resp.sock");
    let rules = file(
        "listeners: {resp: {address: '127.0.0.1:0', auth: {password: sesame}}}\nrules: [{name: a, quota: 5/s}]",
    );
    let path = rules.path().to_str().expect("a name");
    let _server =
        Binary::start(&["serve", "--config", path, "--resp-socket", socket.to_str().expect("a name")]);
    let mut client = UnixStream::connect(&socket).expect("a connection");
    client.write_all(b"TG.CHECK a k\r\nQUIT\r\n").expect("sent");
    let mut said = String::new();
    client.read_to_string(&mut said).expect("replies");
    assert!(said.starts_with("-NOAUTH"), "{said}");
}

/// The reply to a wrong password comes later each time, so a guess takes longer than the one before.
#[test]
fn guessing_passwords_takes_its_time() {
    let server = Binary::start(&["serve", "--password", "sesame"]);
    let mut client = server.connect();
    let began = Instant::now();
    for _ in 0..3 {
        client.write_all(b"AUTH wrong\r\n").expect("sent");
    }
    client.write_all(b"AUTH sesame\r\nQUIT\r\n").expect("sent");
    let said = rest(&mut client);
    assert!(began.elapsed() >= Duration::from_millis(100 + 200 + 400));
    assert!(said.matches("-WRONGPASS").count() == 3 && said.ends_with("+OK\r\n+OK\r\n"), "{said}");
}
