//! Asking from a shell: what is printed, and how it ends.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use crate::binary::Binary;
use crate::http::{file, serving};
use crate::running::ask;
use crate::shared::Redis;

/// How a command ends, and what it says.
pub(crate) fn shell(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let Output { status, stdout, stderr } = command.args(arguments).output().expect("the binary");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn a_shell_is_told_by_the_exit_code() {
    let (server, _file) = serving(
        "rules: [{name: user, key: [team, user], missing: shared, quota: 2/day}, {name: all, quota: 1/day}]",
    );
    let url = format!("http://{}", server.http);
    let check = |arguments: &[&str]| shell(&[&["check", "--url", &url], arguments].concat());
    assert_eq!(check(&["user", "ops", "alice"]), (Some(0), "allowed, 1 of 2 left\n".into(), String::new()));
    let (code, said, _) = check(&["user", "ops", "alice", "--cost", "2"]);
    assert!(
        code == Some(3) && said.starts_with("refused, wait ") && said.ends_with("1 of 2 left\n"),
        "{said}"
    );
    assert_eq!(check(&["all"]).0, Some(0));
    let (code, said, _) = check(&["all", "--json"]);
    assert!(code == Some(3) && said.starts_with("{\"allowed\":false,"), "{said}");
    let (code, _, said) = check(&["usr", "alice"]);
    assert!(code == Some(1) && said.contains("there is no rule \"usr\""), "{said}");
    let (code, _, said) = check(&["user", "alice"]);
    assert!(code == Some(1) && said.contains("`key` has 1 parts"), "{said}");
    assert_eq!(check(&["user", "ops", "alice", "--cost", "-1"]).0, Some(2));
    assert_eq!(shell(&["check"]).0, Some(2));
    assert_eq!(shell(&["health", "--url", &url]), (Some(0), "ok\n".into(), String::new()));
}

#[test]
fn a_token_is_said_and_an_end_is_told() {
    let rules = file(
        "listeners: {http: {address: 127.0.0.1:0, auth: {token: sesame}}}\nrules: [{name: all, quota: 1/day}]",
    );
    let mut server =
        Binary::start(&["serve", "--notice", "600", "--config", rules.path().to_str().expect("a name")]);
    let url = server.http.to_string();
    let (code, _, said) = shell(&["check", "all", "--url", &url]);
    assert!(code == Some(1) && said.contains("invalid bearer token"), "{said}");
    assert_eq!(shell(&["check", "all", "--url", &url, "--token", "sesame"]).0, Some(0));
    server.signal("-TERM");
    while !server.line().contains("told to end") {}
    assert_eq!(shell(&["health", "--url", &url]), (Some(3), "draining\n".into(), String::new()));
}

#[test]
fn who_is_not_there_and_who_is_somebody_else_is_a_sentence() {
    let nobody =
        TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its number").to_string();
    let (code, _, said) = shell(&["health", "--url", &nobody]);
    assert!(code == Some(1) && said.contains("does not answer") && said.contains("--url"), "{said}");
    for (url, sentence, wanted) in [
        ("https://127.0.0.1:1", "by --ca FILE", 2),
        ("http://", "that is no address", 2),
        ("not an address", "that is no address", 2),
        ("unix:/nonexistent/socket", "does not answer", 1),
    ] {
        let (code, _, said) = shell(&["check", "user", "alice", "--url", url]);
        assert!(code == Some(wanted) && said.contains(sentence), "{url}: {said}");
    }
    let (server, _file) = serving("rules: [{name: all, quota: 1/day}]");
    let (code, _, said) = shell(&["health", "--url", &server.address.to_string()]);
    assert!(code == Some(1) && said.contains("somebody else answers there"), "{said}");
}

#[test]
fn vectors_hold_and_what_differs_is_printed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let bucket = folder.join("token_bucket.vectors");
    let (code, said, _) = shell(&["conformance", bucket.to_str().expect("a name")]);
    assert!(code == Some(0) && said.contains("0 differences"), "{said}");
    let wrong = tempfile::NamedTempFile::new().expect("there is room");
    std::fs::write(wrong.path(), "quota 10/s burst 3\n  0ms  1  allow  1\n").expect("written");
    let (code, said, _) = shell(&["conformance", wrong.path().to_str().expect("a name")]);
    assert!(code == Some(1) && said.contains("remaining") && said.contains("1 difference"), "{said}");
    std::fs::write(wrong.path(), "quota nonsense\n").expect("written");
    assert_eq!(shell(&["conformance", wrong.path().to_str().expect("a name")]).0, Some(2));
    assert_eq!(shell(&["conformance"]).0, Some(2));
}

/// Every vector of the repository, on a Redis: what the script cannot know is counted, and nothing else is left there.
#[test]
fn vectors_run_on_a_redis() {
    let redis = Redis::start();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let files = std::fs::read_dir(folder).expect("part of the repository").flatten();
    let files: Vec<String> = files
        .map(|file| file.path().to_str().expect("a name").to_owned())
        .filter(|file| file.ends_with(".vectors"))
        .collect();
    let engine = redis.url();
    let on_redis = |files: &[&str]| shell(&[&["conformance", "--engine", &engine], files].concat());
    let (code, said, wrong) = on_redis(&files.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!((code, &*wrong), (Some(0), ""), "{said}");
    let cases: usize = said.split(' ').next().and_then(|count| count.parse().ok()).expect("how many");
    assert!(cases > 100 && said.contains(", 0 differences\n"), "{said}");
    assert!(said.contains("3 cases skipped: the script does not know"), "{said}");
    assert!(said.contains("cases skipped: a pacer holds promises in its process"), "{said}");
    let mut stream = redis.connect();
    assert_eq!(ask(&mut stream, b"DBSIZE\r\n", 4), ":0\r\n", "nothing is left there");

    let vectors = tempfile::NamedTempFile::new().expect("there is room");
    let path = vectors.path().to_str().expect("a name");
    std::fs::write(path, "quota 10/s burst 3\n  0ms 1 allow 2 100ms\n  0ms 1 allow 2 100ms\n")
        .expect("written");
    let (code, said, _) = on_redis(&[path]);
    assert!(code == Some(1) && said.contains("script") && said.contains("1 case, 2 rows, "), "{said}");
    std::fs::write(path, "quota 10/s brust 3\n").expect("written");
    assert_eq!(on_redis(&[path]).0, Some(2));
    let (code, _, wrong) = shell(&["conformance", "--engine", "redis://127.0.0.1:1", path]);
    assert!(code == Some(1) && wrong.contains("start a Redis there, or name another"), "{wrong}");
    for (engine, said) in [("disk", "use `memory`, `redis://"), ("redis://:1", "names no host")] {
        let (code, _, wrong) = shell(&["conformance", "--engine", engine, path]);
        assert!(code == Some(2) && wrong.contains(said), "{wrong}");
    }
}

#[test]
fn the_manual_and_completions_name_every_command() {
    let commands = ["serve", "config", "check", "health", "conformance", "man", "completions"];
    let (code, page, _) = shell(&["man"]);
    assert!(code == Some(0) && page.contains(".TH tidegate 1"), "{page}");
    assert!(
        page.contains("EXIT STATUS") && page.contains("\\-\\-notice") && page.contains("\\-\\-conformance")
    );
    for option in ["tidegate config check", "\\-\\-strict", "tidegate config show", "tidegate config schema"]
    {
        assert!(page.contains(option), "{option} is not in the manual");
    }
    for shell_name in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, _) = shell(&["completions", shell_name]);
        assert_eq!(code, Some(0));
        for command in commands {
            assert!(script.contains(command) && page.contains(command), "{command} for {shell_name}");
        }
    }
    assert_eq!(shell(&["completions", "nonsense"]).0, Some(2));
}
