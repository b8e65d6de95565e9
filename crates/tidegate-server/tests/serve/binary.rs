//! The binary, as people start it.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::running::{PATIENCE, ask, ping};

/// Killed when it is dropped.
pub(crate) struct Binary {
    /// Where clients of Redis are answered.
    pub(crate) address: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) child: Child,
    pub(crate) said: BufReader<ChildStdout>,
}

impl Binary {
    /// With these arguments, on a port that is free.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Binary::run(Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments))
    }

    /// The same, where no more than so many files may be open.
    pub(crate) fn start_with_files(files: usize, arguments: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        let bounded = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
        Binary::run(shell.args(["-c", &bounded, env!("CARGO_BIN_EXE_tidegate")]).args(arguments))
    }

    fn run(command: &mut Command) -> Self {
        for protocol in ["HTTP", "GRPC", "RESP", "ADMIN"] {
            command.env(format!("TIDEGATE_{protocol}"), "127.0.0.1:0");
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary");
        let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut address = |protocol: &str| -> SocketAddr {
            let start = format!("tidegate: {protocol} on ");
            loop {
                let mut line = String::new();
                assert!(
                    said.read_line(&mut line).expect("a line") > 0,
                    "it does not say where {protocol} is"
                );
                if let Some(address) = line.strip_prefix(&start) {
                    return address.trim_end().parse().expect("an address");
                }
            }
        };
        let (http, grpc, address, admin) =
            (address("http"), address("grpc"), address("resp"), address("admin"));
        Binary { address, http, grpc, admin, child, said }
    }

    /// The next line that it says.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("a line");
        line
    }

    pub(crate) fn signal(&self, signal: &str) {
        let told = Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill");
        assert!(told.success());
    }

    pub(crate) fn connect(&self) -> TcpStream {
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
    binary.signal("-TERM");
    assert_eq!(crate::running::rest(&mut client), "");
    assert_eq!(binary.child.wait().expect("an end").code(), Some(0));
}

/// The lines it suggests, up to the next thing that it says.
fn suggested(binary: &mut Binary) -> Vec<String> {
    binary.signal("-INT");
    let lines = std::iter::repeat_with(|| binary.line());
    lines.take_while(|line| !line.starts_with("tidegate: told to end")).collect()
}

#[test]
fn what_can_be_tried_at_once_is_suggested_and_nothing_else() {
    let mut binary = Binary::start(&[]);
    let (http, port) = (binary.http, binary.address.port());
    let ask = |verb: &str| {
        format!("  curl --json '{{\"descriptors\": {{\"user\": \"alice\"}}}}' http://{http}/v1/{verb}\n")
    };
    let redis = format!("  redis-cli -p {port} TG.CHECK user alice\n");
    assert_eq!(suggested(&mut binary), ["tidegate: try\n", &ask("check"), &ask("explain"), &redis]);

    let file = tempfile::NamedTempFile::new().expect("there is room");
    let text =
        "listeners: {http: {address: '127.0.0.1:0', auth: {token: sesame}}}\nrules: [{name: a, quota: 1/s}]";
    std::fs::write(&file, text).expect("written");
    let config = file.path().to_str().expect("text");
    let mut binary = Binary::start(&["serve", "--config", config, "--password", "sesame"]);
    assert_eq!(suggested(&mut binary), [""; 0], "they would be refused");
}

#[test]
fn a_port_in_use_is_a_sentence_and_exit_code_1() {
    let binary = Binary::start(&[]); // told nothing, it serves
    let address = binary.address.to_string();
    let second = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--http", "off", "--resp", &address])
        .output();
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
    assert!(said.contains("'nonsense'") && said.contains("as in `127.0.0.1:8080`"), "{said}");
}

#[test]
fn what_nothing_could_be_done_with_is_a_sentence() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.arg("serve").args(arguments).output().expect("the binary");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "it has not begun");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let off = ["--http", "off", "--grpc", "off", "--resp", "off", "--admin", "off"];
    let (code, said) = run(&off);
    assert!(
        code == Some(1) && said.contains("every listener is off, so nobody could ask anything"),
        "{said}"
    );
    let rows = [
        (["--threads", "1000000"], "invalid value '1000000' for '--threads <N>': 1000000 is not in 0..=1024"),
        (["--connections", "0"], "invalid value '0' for '--connections <N>': 0 is not in 1..=4294967295"),
        (["--password", ""], "a value is required for '--password <PASSWORD>' but none was supplied"),
    ];
    for (arguments, sentence) in rows {
        let (code, said) = run(&[&off[..], &arguments].concat());
        assert!(code == Some(2) && said.contains(sentence), "{said}");
    }
}

#[test]
fn a_file_that_is_wrong_is_told_and_does_not_start() {
    let folder = tempfile::tempdir().expect("there is room");
    let file = folder.path().join("bad.yaml");
    std::fs::write(&file, "rules:\n  - {name: a, quota: 5/x}\n  - {name: b, qouta: 5/s}\n").expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["serve", "--config"]).arg(&file).output();
    let output = output.expect("the binary");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("bad.yaml:2:") && said.contains("bad.yaml:3:") && said.contains("`quota`"),
        "{said}"
    );
}

#[test]
fn a_password_is_asked_for() {
    let binary = Binary::start(&["serve", "--password", "sesame"]);
    let mut client = binary.connect();
    assert_eq!(ask(&mut client, b"PING\r\n", 34), "-NOAUTH Authentication required.\r\n");
    assert_eq!(ask(&mut client, b"AUTH sesame\r\n", 5), "+OK\r\n");
    ping(&mut client);
}
