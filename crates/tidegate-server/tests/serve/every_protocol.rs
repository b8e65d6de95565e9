//! One count, whichever way one comes.

use std::net::TcpStream;

use serde_json::json;

use crate::binary::Binary;
use crate::grpc_client::{Client, OK};
use crate::http::post;
use crate::running::ask;

const RULES: &str =
    "rules: [{name: user, match: {user: '*'}, key: user, quota: fixed_window 25/day from first hit}]";

/// Of a reply: how many there are, eight values, and three of them are texts, with their lengths before them.
const LINES: usize = 1 + 8 + 3;

/// In turn, so that each of them meets what the others have left.
#[test]
fn thirty_by_three_protocols_against_a_limit_of_25_are_25() {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("there is room");
    std::fs::write(file.path(), RULES).expect("written");
    let server = Binary::start(&["serve", "--config", file.path().to_str().expect("a name")]);
    let (mut grpc, mut redis) = (Client::new(server.grpc), server.connect());
    let alice = json!({"descriptors": {"user": "alice"}});
    let by_http = || post(server.http, "/v1/check", &alice)["allowed"] == json!(true);
    let mut passed = [0; 3];
    for _ in 0..10 {
        passed[0] += u32::from(by_http());
        passed[1] += u32::from(grpc.check(&["user=alice"]).overall_code == OK);
        passed[2] += u32::from(by_redis(&mut redis));
    }
    assert_eq!(passed.iter().sum::<u32>(), 25, "{passed:?}");
}

/// The first of the eight values.
fn by_redis(stream: &mut TcpStream) -> bool {
    let mut told = ask(stream, b"TG.CHECK user alice\r\n", 8);
    let is_allowed = told.starts_with("*8\r\n:1");
    while told.matches("\r\n").count() < LINES {
        told.push_str(&ask(stream, b"", 1));
    }
    is_allowed
}
