//! Those who mean no good, by HTTP: what they send is bounded, and everybody else is answered.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::binary::Binary;
use crate::http::{answer, connect, exchange, post, serving};
use crate::running::{Running, settings};

fn honest(address: SocketAddr) {
    assert_eq!(exchange(&mut connect(address), "GET /livez", "").0, 200, "an honest client is answered");
}

/// Kilobytes of memory that a process has.
pub(crate) fn memory(server: &Binary) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn what_is_too_much_is_told_before_it_is_read() {
    let server = Binary::start(&["serve"]);
    let rows = [
        ("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 999999999999\r\n\r\n".to_owned(), 413),
        (
            "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99999999999999999999999\r\n\r\n"
                .to_owned(),
            400,
        ),
        ("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: -1\r\n\r\n".to_owned(), 400),
        (format!("GET /livez HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "y".repeat(64 << 10)), 431),
        (format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "y".repeat(64 << 10)), 431),
        (format!("GET /livez HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(1_000)), 431),
        ("nonsense\r\n\r\n".to_owned(), 400),
    ];
    for (request, status) in rows {
        let mut client = connect(server.http);
        let _ = client.write_all(request.as_bytes()); // it may be closed before all is sent
        let told = answer(&mut client).0;
        assert!(
            told == status || (status == 431 && told == 414),
            "{told} for {}",
            &request[..request.len().min(60)]
        );
    }
    honest(server.http);
}

#[test]
fn a_body_without_an_end_is_cut_off() {
    let server = Binary::start(&["serve"]);
    let mut client = connect(server.http);
    client
        .write_all(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        .expect("sent");
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
    // Far more than is taken: the service stops reading, and says why.
    for _ in 0..10_000 {
        if client.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    let mut said = Vec::new();
    let _ = client.read_to_end(&mut said); // what was said may be lost with the connection
    assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&said));
    honest(server.http);
}

#[test]
fn depth_is_no_way_to_the_end_of_the_stack() {
    let server = Binary::start(&["serve"]);
    let deep = 60_000;
    let bodies = [
        "[".repeat(deep),
        "{\"descriptors\":".repeat(deep / 4),
        format!("{{\"descriptors\":{{\"a\":{}", "[".repeat(deep)),
        format!("{{\"key\":{}{}}}", "[".repeat(deep), "]".repeat(deep)),
    ];
    for (body, path) in bodies.iter().flat_map(|body| [(body, "/v1/check"), (body, "/v1/release")]) {
        let (status, _, said) = exchange(&mut connect(server.http), &format!("POST {path}"), body);
        assert!(status == 400 && said.contains("the body is not what was expected"), "{status} {said}");
    }
    honest(server.http);
}

/// A hundred clients ask for large answers and take none of them.
#[test]
fn who_never_reads_is_not_read_from_and_takes_no_memory() {
    let server = Binary::start(&["serve"]);
    honest(server.http);
    let before = memory(&server);
    let requests = b"GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n".repeat(2_000);
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let mut client = connect(server.http);
            client.set_write_timeout(Some(Duration::from_millis(200))).expect("a time-out");
            let _ = client.write_all(&requests); // until the service takes no more
            client
        })
        .collect();
    honest(server.http);
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 32 << 10, "{grown} kB more for {} clients", clients.len());
}

/// Asks about so many keys by the name of a rule and by limits that come with the call, a thousand in one piece.
fn ask_about(server: &Binary, keys: std::ops::Range<u32>) {
    let mut client = BufReader::new(server.connect());
    let keys: Vec<_> = keys.collect();
    for some in keys.chunks(1_000) {
        let asked = |key: &u32| format!("TG.CHECK user {key}\r\nCL.THROTTLE {key} 0 1 86400\r\n");
        let asked: String = some.iter().map(asked).collect();
        client.get_mut().write_all(format!("{asked}PING\r\n").as_bytes()).expect("sent");
        let mut reply = String::new();
        while reply != "+PONG\r\n" {
            reply.clear();
            assert!(client.read_line(&mut reply).expect("a reply") > 0, "it has gone");
        }
    }
}

/// Far more keys than there is room for, each of them new: who has its place keeps it, and what is left is shared.
#[test]
fn a_million_keys_take_no_more_memory_than_there_is_room_for() {
    let (server, _file) = serving(
        "store: {memory: {max_keys: 10_000}}\n\
         rules: [{name: user, key: user, missing: shared, quota: 1/day}]",
    );
    let mine = || post(server.http, "/v1/check", &json!({"rule": "user", "key": "mine"}))["allowed"].clone();
    assert_eq!(mine(), json!(true));
    ask_about(&server, 0..20_000);
    let before = memory(&server);
    std::thread::scope(|threads| {
        for part in 1..5 {
            let server = &server;
            threads.spawn(move || ask_about(server, part * 250_000..(part + 1) * 250_000));
        }
        honest(server.http);
    });
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 8 << 10, "{grown} kB more for a million keys");
    assert_eq!(mine(), json!(false), "nobody is pushed out to begin anew");
    honest(server.http);
}

#[test]
fn who_is_slow_is_let_go_and_nobody_waits_for_it() {
    let server = Running::new(settings(|settings| settings.stalled = Duration::from_millis(100)));
    let starts: [&[u8]; 3] = [
        b"G",
        b"GET /livez HTTP/1.1\r\nhost",
        b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
    ];
    let slow = starts.map(|start| {
        let mut client = connect(server.http);
        client.write_all(start).expect("sent");
        client
    });
    honest(server.http);
    for mut client in slow {
        let mut said = Vec::new();
        // It ends, by a close or by a reset; a read that waits for ever would be told by its time-out.
        if let Err(error) = client.read_to_end(&mut said) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        assert!(!said.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&said));
    }
    honest(server.http);
}

#[test]
fn whatever_bytes_come_others_are_answered() {
    let server = Binary::start(&["serve"]);
    let pieces = prop_oneof![
        4 => prop::sample::select(vec![
            "GET ", "POST ", "/v1/check", "/v1/acquire", " HTTP/1.1\r\n", "host: localhost\r\n", "\r\n", "\r\n\r\n", "\n",
            "content-length: ", "transfer-encoding: chunked\r\n", "7", "fffffffffffffffff\r\n", "0\r\n\r\n",
            "{\"descriptors\":{\"user\":\"a\"}}", "{\"rule\":\"user\",\"key\":[", "]}", "\"\\ud800\"", "connection: close\r\n",
            "expect: 100-continue\r\n", "upgrade: h2c\r\n", "\0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ]).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ];
    let streams = prop::collection::vec(pieces, 0..14).prop_map(|pieces| pieces.concat());
    let mut runner = TestRunner::new(Config { cases: 400, failure_persistence: None, ..Config::default() });
    let ran = runner.run(&streams, |bytes| {
        let mut client = connect(server.http);
        let _ = client.write_all(&bytes); // it may be closed in the middle
        let _ = client.shutdown(Shutdown::Write);
        let mut said = Vec::new();
        let _ = client.read_to_end(&mut said);
        prop_assert!(
            said.is_empty() || said.starts_with(b"HTTP/1.1 "),
            "{:?}",
            String::from_utf8_lossy(&said)
        );
        Ok(())
    });
    ran.expect("an answer, or an end");
    honest(server.http);
}
