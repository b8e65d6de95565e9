//! Those who mean no good, by HTTP: what they send is bounded, and everybody else is answered.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::binary::Binary;
use crate::http::{answer, connect, exchange, post, serving};
use crate::running::{Running, ping, settings};

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

/// Who has begun a command of the Redis protocol has to finish it in time, and all that has begun takes a bounded amount of memory.
#[test]
fn commands_that_are_never_finished_are_bounded_in_time_and_memory() {
    let brief = settings(|it| it.stalled = Duration::from_millis(200));
    let running = Running::new(brief);
    for begun in [&b"*2\r\n$4\r\nECHO\r\n$100\r\nab"[..], b"PIN", b"MULTI\r\nPING\r\n"] {
        let mut client = running.connect();
        client.write_all(begun).expect("sent");
        let mut said = Vec::new();
        client.read_to_end(&mut said).expect("it is let go");
    }
    let server = Binary::start(&["serve"]);
    let before = memory(&server);
    let mut clients = Vec::new();
    for _ in 0..300 {
        let mut client = server.connect();
        let head =
            format!("*200\r\n$4\r\nECHO\r\n{}", format!("$4000\r\n{}\r\n", "x".repeat(4_000)).repeat(150));
        let _ = client.write_all(head.as_bytes()); // some are let go
        clients.push(client);
    }
    ping(&mut server.connect());
    let more = memory(&server) - before;
    assert!(more < 150 << 10, "{more} kB more for 180 MB that were begun");
}

#[test]
fn held_permits_are_bounded_and_the_bound_is_told() {
    let rules = crate::http::file(
        "rules:\n  - {name: a, key: user, missing: shared, quota: 1000000 at once}\n  - {name: b, key: job, missing: shared, quota: 10 at once}\n",
    );
    let config = rules.path().to_str().expect("a name");
    let server = Binary::start(&["serve", "--config", config, "--permits", "60", "--permits-per-rule", "50"]);
    let mut client = server.connect();
    client.write_all(format!("{}QUIT\r\n", "TG.ACQUIRE a x\r\n".repeat(60)).as_bytes()).expect("sent");
    let said = crate::running::rest(&mut client);
    assert_eq!(said.matches("*10\r\n").count(), 50, "{said}");
    assert_eq!(said.matches("-ERR 50 permits of rule \"a\" are held").count(), 10, "{said}");
    let mut client = server.connect();
    let commands: String = (0..15).map(|number| format!("TG.ACQUIRE b {number}\r\n")).collect();
    client.write_all(format!("{commands}QUIT\r\n").as_bytes()).expect("sent");
    let said = crate::running::rest(&mut client);
    assert_eq!(said.matches("*10\r\n").count(), 10, "{said}");
    assert_eq!(said.matches("-ERR 60 permits are held").count(), 5, "{said}");
    let told = crate::metrics::scrape(server.admin);
    assert_eq!((told["tidegate_places"], told["tidegate_permits_refused_total"]), (60.0, 15.0));
    let asked = json!({"rule": "a", "key": "x"});
    let (status, _, told) = exchange(&mut connect(server.http), "POST /v1/acquire", &asked.to_string());
    assert!(status == 503 && told.contains("raise --permits"), "{status} {told}");
}

#[test]
fn a_key_is_as_long_as_it_may_be_in_every_protocol() {
    let (server, _file) = serving("rules: [{name: user, key: user, missing: shared, quota: 10/s}]");
    for (length, fits) in [(4_096, true), (4_097, false)] {
        let key = "k".repeat(length);
        let asked = json!({"descriptors": {"user": key}});
        let (status, _, told) = exchange(&mut connect(server.http), "POST /v1/check", &asked.to_string());
        assert_eq!(status == 200, fits, "{told}");
        let mut client = server.connect();
        let command =
            format!("*3\r\n$8\r\nTG.CHECK\r\n$4\r\nuser\r\n${length}\r\n{key}\r\n*1\r\n$4\r\nQUIT\r\n");
        client.write_all(command.as_bytes()).expect("sent");
        assert_eq!(crate::running::rest(&mut client).starts_with("*8"), fits);
        let asked = crate::grpc_client::Asked {
            domain: "edge".into(),
            descriptors: vec![crate::grpc_client::descriptor(&format!("user={key}"))],
            ..Default::default()
        };
        assert_eq!(crate::grpc_client::Client::new(server.grpc).ask(asked).is_ok(), fits);
    }
}

#[test]
fn one_address_does_not_take_the_room_of_all() {
    let server = Binary::start(&["serve", "--connections-per-address", "5"]);
    let mut clients: Vec<_> = (0..5).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(ping);
    let mut one_more = server.connect();
    assert!(crate::running::rest(&mut one_more).starts_with("-ERR max number of clients"));
    clients.pop();
    let room = || {
        let mut client = server.connect();
        let _ = client.write_all(b"PING\r\n");
        let mut said = [0; 7];
        (client.read_exact(&mut said).is_ok() && said == *b"+PONG\r\n").then_some(())
    };
    crate::shared::until("there is room again", room);
}

/// While the service does not get to run, nobody who connects is lost.
#[test]
fn many_may_wait_to_be_accepted() {
    let server = Binary::start(&["serve"]);
    server.signal("-STOP");
    let connect = |_| TcpStream::connect_timeout(&server.address, Duration::from_secs(5));
    let waiting: Result<Vec<_>, _> = (0..800).map(connect).collect();
    server.signal("-CONT");
    let mut waiting = waiting.expect("all of them wait");
    ping(waiting.last_mut().expect("somebody"));
}
