//! Requests that are no requests, or hide one: `malformed_http.txt` has a line for each, and what becomes of it.

use std::io::{Read, Write};
use std::net::Shutdown;

use crate::binary::Binary;
use crate::http::{connect, serving};
use crate::metrics::scrape;

struct Case {
    kind: String,
    what: String,
    bytes: Vec<u8>,
}

fn cases() -> Vec<Case> {
    let lines = include_str!("../malformed_http.txt").lines().filter(|line| !line.starts_with('#'));
    let case = |line: &str| {
        let mut fields = line.splitn(3, '\t').map(str::to_owned);
        let mut next = || fields.next().expect("three fields");
        Case { kind: next(), what: next(), bytes: unescaped(&next()) }
    };
    lines.map(case).collect()
}

fn unescaped(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        if letter != '\\' {
            bytes.extend(letter.to_string().bytes());
            continue;
        }
        let (byte, length) = match rest.as_bytes()[0] {
            b'r' => (b'\r', 1),
            b'n' => (b'\n', 1),
            b't' => (b'\t', 1),
            b'\\' => (b'\\', 1),
            b'x' => (u8::from_str_radix(&rest[1..3], 16).expect("two digits"), 3),
            _ => {
                let (run, after) = rest[1..].split_once('}').expect("a run ends");
                let (text, count) = run.rsplit_once('*').expect("a text and a count");
                bytes.extend(unescaped(text).repeat(count.parse().expect("a count")));
                rest = after;
                continue;
            }
        };
        bytes.push(byte);
        rest = &rest[length..];
    }
    bytes
}

/// The statuses that are answered until the connection is closed.
fn answered(server: &Binary, bytes: &[u8], pieces: usize) -> Vec<u16> {
    let mut client = connect(server.http);
    client.set_nodelay(true).expect("no delay");
    let sent = bytes.chunks(pieces).try_for_each(|piece| client.write_all(piece)); // it may be closed before
    if sent.is_ok() {
        let _ = client.shutdown(Shutdown::Write);
    }
    let mut said = Vec::new();
    let _ = client.read_to_end(&mut said); // what was sent after the end is an error
    let text = String::from_utf8_lossy(&said).into_owned();
    let statuses = text.split("HTTP/1.1 ").skip(1).filter_map(|rest| rest.get(..3)?.parse().ok());
    statuses.filter(|status| *status != 100).collect()
}

fn decisions(server: &Binary) -> f64 {
    let all = scrape(server.admin);
    all.iter().filter(|(name, _)| name.starts_with("tidegate_decisions_total{")).map(|(_, count)| count).sum()
}

#[test]
fn no_request_is_hidden_in_another() {
    let (server, _file) = serving("rules: [{name: user, key: user, missing: shared, quota: 1000000/day}]");
    let cases = cases();
    assert!(cases.len() >= 150, "{} cases", cases.len());
    let mut before = decisions(&server);
    for Case { kind, what, bytes } in cases {
        for pieces in [bytes.len(), if bytes.len() > 4_000 { 1_000 } else { 1 }] {
            let statuses = answered(&server, &bytes, pieces);
            let counted = decisions(&server) - before;
            before += counted;
            let is_right = match &*kind {
                "refused" => counted == 0.0 && matches!(statuses[..], [400..500] | [400..500, 400..500]),
                "re-framed" => counted == 1.0 && matches!(statuses[..], [200] | [200, 400..500]),
                "limit of hyper" => counted <= 1.0 && statuses.len() == 1,
                other => panic!("{other:?} is no kind of case"),
            };
            assert!(is_right, "{kind}: {what}, in pieces of {pieces}: {statuses:?}, {counted} counted");
        }
    }
}
