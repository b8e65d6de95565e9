//! How it ends, and what it tells systemd.

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};

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

/// Closing a listener resets the connections in its backlog, so they are accepted, and then they are answered too.
#[test]
fn connections_that_wait_at_shutdown_are_answered() {
    let server = Binary::start(&["serve", "--notice", "0"]);
    server.signal("-STOP");
    let mut waiting: Vec<_> = (0..20).map(|_| (server.connect(), connect(server.http))).collect();
    server.signal("-TERM");
    server.signal("-CONT");
    let closed = |address| std::net::TcpStream::connect(address).is_err();
    crate::shared::until("the listeners are closed", || {
        (closed(server.address) && closed(server.http)).then_some(())
    });
    for (resp, http) in &mut waiting {
        ping(resp);
        assert_eq!(exchange(http, "GET /livez", "").0, 200);
    }
}

#[test]
fn systemd_is_told_when_it_is_ready_and_when_it_reads_its_file_and_when_it_ends() {
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
    let file = folder.path().join("tidegate.yaml");
    std::fs::write(&file, "rules: [{name: a, quota: 1/s}]").expect("written");
    command.arg("--config").arg(&file).env("NOTIFY_SOCKET", &path);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Ended(command.spawn().expect("started"));
    let tell = |signal: &str| {
        let told = Command::new("kill").args([signal, &server.0.id().to_string()]).status().expect("kill");
        assert!(told.success());
    };
    assert_eq!(next(), "READY=1");
    for text in ["rules: [{name: a, quota: 2/s}]", "nonsense"] {
        std::fs::write(&file, text).expect("written");
        tell("-HUP");
        assert_eq!([next(), next()], ["RELOADING=1", "READY=1"], "a bad file changes nothing: it is ready");
    }
    tell("-INT");
    assert_eq!(next(), "STOPPING=1");
    assert_eq!(server.0.wait().expect("an end").code(), Some(0));
}

/// A program that does not outlive its test, however that ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended already
        let _ = self.0.wait();
    }
}
