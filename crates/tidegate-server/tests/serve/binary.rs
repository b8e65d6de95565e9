//! The binary, as people start it.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::running::{PATIENCE, ask, ping};

/// Killed when it is dropped.
pub(crate) struct Binary {
    pub(crate) address: SocketAddr,
    child: Child,
}

impl Binary {
    /// With these arguments, on a port that is free.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.env("TIDEGATE_RESP", "127.0.0.1:0").args(arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let address = line.split_whitespace().find_map(|word| word.trim_end_matches(';').parse().ok());
        Binary { address: address.unwrap_or_else(|| panic!("no address in {line:?}")), child }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream
    }
}

impl Drop for Binary {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
    }
}

#[test]
fn it_serves_until_it_is_told_to_end() {
    let mut binary = Binary::start(&["serve"]);
    let mut client = binary.connect();
    ping(&mut client);
    let told = Command::new("kill").args(["-TERM", &binary.child.id().to_string()]).status().expect("kill");
    assert!(told.success());
    assert_eq!(crate::running::rest(&mut client), "");
    assert_eq!(binary.child.wait().expect("an end").code(), Some(0));
}

#[test]
fn a_port_in_use_is_a_sentence_and_exit_code_1() {
    let binary = Binary::start(&[]); // told nothing, it serves
    let address = binary.address.to_string();
    let second = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["serve", "--resp", &address]).output();
    let second = second.expect("the binary");
    assert_eq!(second.status.code(), Some(1));
    let sentence = format!(
        "tidegate: {address} is in use by another program; stop that one, or choose another address\n"
    );
    assert_eq!(String::from_utf8_lossy(&second.stderr), sentence);
}

#[test]
fn an_address_that_is_none_is_a_sentence_and_exit_code_2() {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["serve", "--resp", "nonsense"]).output();
    let output = output.expect("the binary");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("'nonsense'") && said.contains("as in 127.0.0.1:6380"), "{said}");
}

#[test]
fn a_password_is_asked_for() {
    let binary = Binary::start(&["serve", "--password", "sesame"]);
    let mut client = binary.connect();
    assert_eq!(ask(&mut client, b"PING\r\n", 34), "-NOAUTH Authentication required.\r\n");
    assert_eq!(ask(&mut client, b"AUTH sesame\r\n", 5), "+OK\r\n");
    ping(&mut client);
}
