//! How it ends, and what it tells systemd.

use std::os::unix::net::UnixDatagram;
use std::process::Command;

use serde_json::json;

use crate::binary::Binary;
use crate::http::{connect, exchange, post};
use crate::running::{PATIENCE, ping};

#[test]
fn readiness_goes_first_and_all_are_answered_meanwhile() {
    let mut server = Binary::start(&["serve", "--notice", "3600"]);
    let mut redis = server.connect();
    ping(&mut redis);
    assert_eq!(exchange(&mut connect(server.http), "GET /readyz", "").2, "{\"status\":\"ok\"}");
    server.signal("-TERM");
    while server.line() != "tidegate: told to end; who is there is answered\n" {}
    let (status, _, body) = exchange(&mut connect(server.http), "GET /readyz", "");
    assert_eq!((status, body.as_str()), (503, "{\"status\":\"draining\"}"));
    assert_eq!(exchange(&mut connect(server.http), "GET /livez", "").0, 200);
    assert_eq!(post(server.http, "/v1/check", &json!({"descriptors": {}}))["allowed"], json!(true));
    ping(&mut redis);
    server.signal("-TERM");
    assert_eq!(crate::running::rest(&mut redis), "");
    assert_eq!(server.line(), "tidegate: ended\n");
    assert_eq!(server.child.wait().expect("an end").code(), Some(0));
}

#[test]
fn systemd_is_told_when_it_is_ready_and_when_it_ends() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let next = || {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).expect("a word");
        String::from_utf8(buffer[..length].to_vec()).expect("text")
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["serve", "--http", "off", "--grpc", "off", "--admin", "off", "--resp", "127.0.0.1:0"]);
    let mut child =
        command.env("NOTIFY_SOCKET", &path).stdout(std::process::Stdio::null()).spawn().expect("started");
    assert_eq!(next(), "READY=1");
    let told = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    assert!(told.success());
    assert_eq!(next(), "STOPPING=1");
    assert_eq!(child.wait().expect("an end").code(), Some(0));
}
