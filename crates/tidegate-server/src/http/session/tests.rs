//! What is said to whole requests, to pieces of them, and to what only looks like some.

use proptest::prelude::*;

use super::*;
use crate::engine::{Engine, Rules};
use crate::http::Service;

fn session(token: Option<&str>) -> Session<Service> {
    let service = Service::new(Arc::new(Engine::new(Rules::new()).expect("no rules")));
    Session::new(Arc::new(match token {
        Some(token) => service.token(token),
        None => service,
    }))
}

/// What is said to bytes that come in pieces of this size, and whether the client is left then.
fn said(session: &mut Session<Service>, bytes: &[u8], piece: usize) -> (String, bool) {
    let (mut left, mut needs, mut out) = (Vec::new(), 0, Vec::new());
    for piece in bytes.chunks(piece) {
        left.extend_from_slice(piece);
        if left.len() < needs {
            continue;
        }
        let ran = session.run(&left, &mut Places::default(), &mut out);
        left.drain(..ran.consumed);
        match ran.then {
            Then::Needs(more) => needs = more,
            Then::Close => return (text(out), true),
            _ => panic!("nothing here comes later, or is long"),
        }
    }
    assert_eq!(session.has_begun(&left), !left.is_empty() || session.chunked.is_some());
    (text(out), false)
}

fn text(out: Vec<u8>) -> String {
    let text = String::from_utf8(out).expect("text");
    let lines: Vec<_> = text.split("\r\n").filter(|line| !line.starts_with("date: ")).collect();
    lines.join("|")
}

const YES: &str = "HTTP/1.1 200 OK|content-type: application/json|content-length: 15||{\"status\":\"ok\"}";
const UNLIMITED: &str = concat!(
    "HTTP/1.1 200 OK|content-type: application/json|content-length: 38||",
    "{\"allowed\":true,\"outcome\":\"unlimited\"}"
);

#[test]
fn requests_are_answered_in_their_order_however_they_are_cut() {
    let bytes = b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n\
        POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 18\r\n\r\n{\"descriptors\":{}}\
        POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
        9\r\n{\"descrip\r\n9;x=y\r\ntors\":{}}\r\n0\r\nx: y\r\n\r\n\
        HEAD /livez HTTP/1.1\r\nhost: a\r\n\r\n\
        GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n\
        GET /livez HTTP/1.1\r\nhost: a\r\n\r\n";
    let head = YES.strip_suffix("{\"status\":\"ok\"}").expect("a head");
    let last = YES.replace("||", "|connection: close||");
    let expected = format!("{YES}{UNLIMITED}{UNLIMITED}{head}{last}");
    for piece in 1..=bytes.len() {
        assert_eq!(said(&mut session(None), bytes, piece), (expected.clone(), true), "{piece}");
    }
}

#[test]
fn an_old_client_is_left_unless_it_asks_to_stay() {
    assert_eq!(
        said(&mut session(None), b"GET /livez HTTP/1.0\r\n\r\n", 99),
        (YES.replace("||", "|connection: close||"), true)
    );
    assert_eq!(
        said(&mut session(None), b"GET /livez HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", 99),
        (YES.replace("||", "|connection: keep-alive||"), false)
    );
}

#[test]
fn who_waits_to_hear_that_it_should_go_on_hears_it_once() {
    let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: 18\r\n\r\n";
    let bytes = format!("{head}{{\"descriptors\":{{}}}}");
    let go_on = format!("HTTP/1.1 100 Continue||{UNLIMITED}");
    assert_eq!(said(&mut session(None), bytes.as_bytes(), head.len()), (go_on.clone(), false));
    assert_eq!(said(&mut session(None), bytes.as_bytes(), 1), (go_on, false));
    assert_eq!(said(&mut session(None), bytes.as_bytes(), 999), (UNLIMITED.to_owned(), false));
    let (nothing, is_left) =
        said(&mut session(None), head.replace("/v1/check", "/v2").as_bytes(), head.len());
    assert!(nothing.starts_with("HTTP/1.1 404 Not Found|") && is_left, "{nothing}");
}

#[test]
fn who_may_not_ask_is_told_before_the_body_and_left_unless_it_is_there() {
    let head =
        "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 5\r\n\r\n";
    let chunked = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let whole = format!("{head}hello");
    for (bytes, is_left) in [(head, true), (chunked, true), (&*whole, false)] {
        let (told, left) = said(&mut session(Some("sesame")), bytes.as_bytes(), 999);
        assert!(told.starts_with("HTTP/1.1 401 Unauthorized|"), "{told}");
        assert!(told.contains("|www-authenticate: Bearer|"), "{told}");
        assert_eq!((left, told.contains("|connection: close|")), (is_left, is_left), "{bytes}");
    }
}

#[test]
fn at_the_end_of_the_service_the_next_answer_is_the_last() {
    let mut session = session(None);
    session.finish();
    let twice = b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n".repeat(2);
    assert_eq!(said(&mut session, &twice, 999), (YES.replace("||", "|connection: close||"), true));
}

#[test]
fn after_what_is_no_request_nothing_is_answered() {
    let rows: [(&[u8], &str); 4] = [
        (b"nonsense\r\n\r\n", "HTTP/1.1 400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 400"),
        (b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 262145\r\n\r\n", "HTTP/1.1 413"),
        (b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nx\r\n", "HTTP/1.1 400"),
    ];
    for (bytes, status) in rows {
        let bytes = [bytes, b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n"].concat();
        let (told, is_left) = said(&mut session(None), &bytes, 999);
        assert!(told.starts_with(status) && is_left && !told.contains("200 OK"), "{told}");
    }
}

/// What is sent of the answer to `bytes`, flush by flush.
fn flushes(session: &mut Session<Service>, bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut left, mut flushes) = (bytes.to_vec(), Vec::new());
    loop {
        let mut out = Vec::new();
        let ran = session.run(&left, &mut Places::default(), &mut out);
        left.drain(..ran.consumed);
        flushes.push(out);
        match ran.then {
            Then::Flush => {}
            _ => return flushes,
        }
    }
}

fn body_of_chunks(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|two| two == b"\r\n").expect("a length");
        let length = std::str::from_utf8(&bytes[..end]).expect("text");
        let length = usize::from_str_radix(length, 16).expect("a number");
        let (chunk, rest) = bytes[end + 2..].split_at(length);
        body.extend_from_slice(chunk);
        bytes = rest.strip_prefix(b"\r\n").expect("the end of a chunk");
        if length == 0 {
            assert_eq!(bytes, b"", "nothing follows the last chunk");
            return body;
        }
    }
}

#[test]
fn the_metrics_of_ten_thousand_rules_are_never_in_memory_at_once() {
    let rule = |rules: Rules, n| rules.rate(format!("rule {n}"), tidegate::Quota::per_second(100));
    let engine = Engine::new((0..10_000).fold(Rules::new(), rule)).expect("rules");
    let mut session = Session::new(Arc::new(Service::new(Arc::new(engine))));
    let sent = flushes(&mut session, b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n");
    let most = sent.iter().map(Vec::len).max().expect("an answer");
    assert!(most < 2 * ENOUGH, "{most} bytes were in memory at once");
    let sent = sent.concat();
    let end = sent.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let head = std::str::from_utf8(&sent[..end]).expect("text");
    assert!(
        head.contains("\r\ntransfer-encoding: chunked\r\n") && !head.contains("content-length"),
        "{head}"
    );
    let body = String::from_utf8(body_of_chunks(&sent[end..])).expect("text");
    for n in 0..10_000 {
        assert!(body.contains(&format!("tidegate_table_bytes{{limit=\"rule {n}\"}} ")), "rule {n}");
    }
    assert_eq!(body.matches("# TYPE tidegate_decisions_total ").count(), 1);
    let bytes =
        body.lines().filter_map(|line| line.strip_prefix("tidegate_table_bytes{")?.rsplit(' ').next());
    let bytes: usize = bytes.map(|bytes| bytes.parse::<usize>().expect("a number")).sum();
    assert!(bytes <= 40_000_000, "{bytes} bytes for 10,000 rules that were never asked");

    let after = flushes(&mut session, b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n").concat();
    assert_eq!(text(after), YES, "the connection goes on");
}

#[test]
fn metrics_for_an_old_client_are_sent_as_a_whole() {
    let whole = flushes(&mut session(None), b"GET /metrics HTTP/1.0\r\n\r\n").concat();
    let whole = text(whole);
    assert!(whole.contains("|content-length: ") && !whole.contains("transfer-encoding"), "{whole}");
    assert!(whole.contains("# TYPE tidegate_answer_duration_seconds histogram"), "to the end: {whole}");
    let head = flushes(&mut session(None), b"HEAD /metrics HTTP/1.1\r\nhost: a\r\n\r\n").concat();
    assert!(text(head).ends_with("|transfer-encoding: chunked||"), "only the head");
}

/// Requests, and what may stand between them when they are broken.
const PIECES: &[&str] = &[
    "GET /livez HTTP/1.1\r\nhost: a\r\n\r\n",
    "HEAD /livez HTTP/1.1\r\nhost: a\r\n\r\n",
    "GET /livez HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 18\r\n\r\n{\"descriptors\":{}}",
    "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: 18\r\n\r\n{\"descriptors\":{}}",
    "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n12\r\n{\"descriptors\":{}}\r\n0\r\n\r\n",
    "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n9;a=b\r\n{\"descrip\r\n9\r\ntors\":{}}\r\n0\r\nx: y\r\n\r\n",
    "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n",
    "content-length: 5\r\n",
    "transfer-encoding: chunked\r\n",
    "connection: close\r\n",
    "\r\n",
    "\n",
    "0\r\n\r\n",
    "ffffffffffffffff\r\n",
    "\0",
    " ",
];

/// Pieces one after the other, and here and there another byte. A line ends at the end, as heads are looked at by the line.
fn broken() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::collection::vec(prop::sample::select(PIECES), 1..6);
    let bytes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    (pieces, bytes).prop_map(|(pieces, bytes)| {
        let mut all = pieces.concat().into_bytes();
        for (index, byte) in bytes {
            let index = index.index(all.len());
            all[index] = byte;
        }
        all.push(b'\n');
        all
    })
}

/// Without what only those hear who wait to send a body, up to the first request that was not answered as it was asked.
/// Whether the connection goes on then depends on what had come of the body.
fn until_trouble(told: &str) -> String {
    let told = told.replace("HTTP/1.1 100 Continue||", "");
    told.split("HTTP/1.1 4").next().unwrap_or_default().to_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn whatever_comes_is_answered_alike_however_it_is_cut(bytes in broken(), piece in 1..40_usize) {
        let (whole, _) = said(&mut session(None), &bytes, bytes.len());
        let (cut, _) = said(&mut session(None), &bytes, piece);
        prop_assert_eq!(until_trouble(&whole), until_trouble(&cut));
        prop_assert_eq!(whole.contains("HTTP/1.1 4"), cut.contains("HTTP/1.1 4"));
        let answers = whole.matches("HTTP/1.1 ").count();
        prop_assert!(answers <= bytes.iter().filter(|byte| **byte == b'\n').count() + 1, "{whole}");
    }
}
