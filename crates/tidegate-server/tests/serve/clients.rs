//! Real clients: what `scripts/clients.sh` fetches, against the binary.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binary::Binary;

const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");

/// Where what was fetched lies: beside what is built.
fn fetched(name: &str) -> PathBuf {
    let binary = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let target = binary.ancestors().nth(2).expect("a folder of what is built");
    target.join("clients").join(name)
}

/// What every client sends, and what has to come back.
fn table() -> String {
    format!("{CLIENTS}/throttle.table")
}

fn server() -> Binary {
    Binary::start(&["serve", "--user", "alice", "--password", "wonder"])
}

/// A client that says "fine" when it is.
fn is_fine(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; scripts/clients.sh fetches it"));
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.trim_end() == "fine", "{command:?}: {said}{complained}");
}

#[test]
fn redis_py() {
    let server = server();
    let (host, port) = (server.address.ip().to_string(), server.address.port().to_string());
    let script = format!("{CLIENTS}/client.py");
    is_fine(Command::new(fetched("python/bin/python")).args([script, host, port, table()]));
}

#[test]
fn phpredis() {
    let server = server();
    let (host, port) = (server.address.ip().to_string(), server.address.port().to_string());
    is_fine(Command::new("php").args([format!("{CLIENTS}/client.php"), host, port, table()]));
}

#[test]
fn go_redis() {
    let server = server();
    is_fine(Command::new(fetched("go-client")).args([server.address.to_string(), table()]));
}

#[test]
fn jedis() {
    let server = server();
    let (host, port) = (server.address.ip().to_string(), server.address.port().to_string());
    let libraries = format!("{}/*", fetched("java").display());
    is_fine(Command::new("java").args([
        "-cp",
        &libraries,
        &format!("{CLIENTS}/java/Client.java"),
        &host,
        &port,
        &table(),
    ]));
}

/// A row of the table: what is sent, and what comes back.
pub(crate) fn rows() -> Vec<(Vec<String>, String)> {
    let table = std::fs::read_to_string(table()).expect("the table");
    let rows = table.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (words, reply) = line.split_once("->").expect("an arrow in each row");
        (words.split_whitespace().map(str::to_owned).collect(), reply.trim().to_owned())
    });
    rows.collect()
}

/// Whether these are the same, but for seconds that have passed.
pub(crate) fn fits(got: &str, want: &str) -> bool {
    let same = |(got, want): (&str, &str)| match want.strip_prefix('~') {
        None => got == want,
        Some(most) => {
            let (got, most): (i64, i64) = (got.parse().unwrap_or(-1), most.parse().expect("a number"));
            (most - 60..=most).contains(&got)
        }
    };
    let [got, want] = [got, want].map(|text| text.split_whitespace().collect::<Vec<_>>());
    got.len() == want.len() && got.into_iter().zip(want).all(same)
}

#[test]
fn redis_cli() {
    let server = server();
    let port = server.address.port().to_string();
    for dialect in ["-2", "-3"] {
        let say = |words: &[String]| {
            let mut command = Command::new("redis-cli");
            command.args(["-p", &port, dialect, "--user", "alice", "--pass", "wonder", "--no-auth-warning"]);
            let output = command.args(words).output().expect("redis-cli; scripts/clients.sh fetches it");
            String::from_utf8_lossy(&output.stdout).trim().replace('\n', " ")
        };
        for (mut words, want) in rows() {
            words[0] = format!("cli{dialect}:{}", words[0]);
            words.insert(0, "CL.THROTTLE".to_owned());
            let got = say(&words);
            assert!(fits(&got, &want), "{words:?}: {got}, and not {want}");
        }
        assert_eq!(say(&["PING".to_owned()]), "PONG");
        assert_eq!(say(&["NOTHING".to_owned()]), "ERR unknown command 'NOTHING', with args beginning with:");
    }
}
