//! The file changes while the service runs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::binary::Binary;
use crate::http::{connect, exchange, post};
use crate::metrics::scrape;

fn rules(limit: u32) -> String {
    format!("rules: [{{name: user, key: user, missing: shared, quota: {limit}/day}}]\n")
}

fn serving(path: &Path) -> Binary {
    let mut server = Binary::start(&["serve", "--config", path.to_str().expect("a name")]);
    while !server.line().contains("redis-cli") {} // the last of what it says at first
    server
}

fn check(server: &Binary) -> (bool, u64) {
    let told = post(server.http, "/v1/check", &json!({"descriptors": {"user": "alice"}}));
    (told["allowed"] == json!(true), told["limit"].as_u64().expect("a limit"))
}

#[test]
fn a_file_that_changes_is_put_in_force_and_what_was_used_stays_used() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("tidegate.yaml");
    fs::write(&path, rules(2)).expect("written");
    let mut server = serving(&path);
    assert_eq!([check(&server), check(&server), check(&server)], [(true, 2), (true, 2), (false, 2)]);
    fs::write(&path, rules(3)).expect("written");
    assert!(server.line().ends_with("is in force: 0 kept, 1 changed, 0 added, 0 removed\n"));
    assert_eq!([check(&server), check(&server)], [(true, 3), (false, 3)], "one more, and no fresh burst");
}

/// As Kubernetes does it: the file is a link into a folder that is a link, and that one is exchanged.
#[test]
fn a_swap_of_links_is_a_change() {
    let folder = tempfile::tempdir().expect("there is room");
    let at = |name: &str| folder.path().join(name);
    let version = |name: &str, limit| {
        fs::create_dir(at(name)).expect("a folder");
        fs::write(at(name).join("tidegate.yaml"), rules(limit)).expect("written");
        std::os::unix::fs::symlink(name, at("..new")).expect("a link");
        fs::rename(at("..new"), at("..data")).expect("exchanged");
    };
    version("..1", 2);
    std::os::unix::fs::symlink("..data/tidegate.yaml", at("tidegate.yaml")).expect("a link");
    let mut server = serving(&at("tidegate.yaml"));
    assert_eq!(check(&server), (true, 2));
    version("..2", 7);
    assert!(server.line().contains("1 changed"));
    assert_eq!(check(&server), (true, 7));
}

#[test]
fn a_broken_file_changes_nothing_and_says_all_that_is_wrong() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("tidegate.yaml");
    fs::write(&path, rules(2)).expect("written");
    let mut server = serving(&path);
    let mut complaints = BufReader::new(server.child.stderr.take().expect("a pipe")).lines();
    assert_eq!(check(&server), (true, 2));
    fs::write(&path, "rules:\n  - {name: user, quota: 5/x}\n  - {name: other, qouta: 1/s}\n")
        .expect("written");
    server.signal("-HUP");
    let mut said = String::new();
    while !said.contains("is not in force; the rules before it are") {
        said.push_str(&complaints.next().expect("a complaint").expect("text"));
        said.push('\n');
    }
    assert!(said.contains("tidegate.yaml:2:") && said.contains("tidegate.yaml:3:"), "{said}");
    assert_eq!([check(&server), check(&server)], [(true, 2), (false, 2)]);
    fs::write(&path, rules(9)).expect("written");
    server.signal("-HUP");
    assert!(server.line().contains("1 changed"));
    assert_eq!(check(&server), (true, 9));
}

/// Somebody asks all the time, the file is read again a hundred times, and every request is answered.
#[test]
fn a_hundred_reloads_under_load() {
    const LIMIT: u32 = 500;
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("tidegate.yaml");
    fs::write(&path, rules(LIMIT)).expect("written");
    let mut server = serving(&path);
    let (http, done) = (server.http, AtomicBool::new(false));
    let (asked, passed) = thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let (mut client, mut asked, mut passed) = (connect(http), 0, 0);
            while !done.load(Ordering::Relaxed) || asked < 2 * LIMIT {
                let body = "{\"descriptors\": {\"user\": \"alice\"}}";
                let (status, _, said) = exchange(&mut client, "POST /v1/check", body);
                assert_eq!(status, 200, "{said}");
                let told: Value = serde_json::from_str(&said).expect("JSON");
                asked += 1;
                passed += u32::from(told["allowed"] == json!(true));
            }
            (asked, passed)
        });
        for number in 0..100 {
            let more = format!("  - {{name: other {number}, quota: 1000000/s}}\n");
            let same =
                format!("rules:\n  - {{name: user, key: user, missing: shared, quota: {LIMIT}/day}}\n{more}");
            fs::write(folder.path().join("next"), same).expect("written");
            fs::rename(folder.path().join("next"), &path).expect("exchanged");
            server.signal("-HUP");
            let line = server.line();
            assert!(line.contains("1 kept"), "{line}");
        }
        done.store(true, Ordering::Relaxed);
        asking.join().expect("every request is answered")
    });
    assert_eq!(passed, LIMIT, "of {asked}");
}

#[test]
fn a_file_that_is_gone_is_said_once_and_the_rules_stay() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("tidegate.yaml");
    fs::write(&path, rules(2)).expect("written");
    let mut server = serving(&path);
    let mut said = BufReader::new(server.child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    fs::remove_file(&path).expect("removed");
    said.read_line(&mut line).expect("a line");
    assert!(line.ends_with("is gone; the rules in force stay\n"), "{line}");
    assert_eq!(scrape(server.admin)["tidegate_config_file_missing"], 1.0);
    assert_eq!(check(&server), (true, 2));
    fs::write(&path, rules(3)).expect("written");
    assert!(server.line().ends_with("is there again\n"));
    assert!(server.line().contains("is in force: 0 kept, 1 changed"));
    assert_eq!(scrape(server.admin)["tidegate_config_file_missing"], 0.0);
}

/// Whoever opens a pipe without a writer waits for one.
#[test]
fn a_path_that_blocks_is_a_sentence_and_holds_up_nothing() {
    let folder = tempfile::tempdir().expect("there is room");
    let (path, pipe) = (folder.path().join("tidegate.yaml"), folder.path().join("pipe"));
    fs::write(&path, rules(2)).expect("written");
    let mut server = serving(&path);
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    fs::rename(&pipe, &path).expect("exchanged");
    let (status, _, told) = exchange(&mut connect(server.admin), "POST /admin/reload", "");
    assert!(status == 422 && told.contains("no regular file"), "{status} {told}");
    assert_eq!(check(&server), (true, 2));
    server.signal("-INT");
    assert_eq!(server.child.wait().expect("an end").code(), Some(0));
}

/// What `config check` lets pass the service does, too, and the other way round.
#[test]
fn a_file_without_listeners_is_refused_by_the_check_and_by_the_service() {
    let file = crate::http::file(
        "listeners: {http: off, grpc: off, resp: off, admin: off}\nrules: [{name: a, quota: 1/s}]",
    );
    let path = file.path().to_str().expect("a name");
    for command in [&["config", "check", path][..], &["serve", "--config", path]] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(command)
            .output()
            .expect("the binary");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("every listener is off"), "{said}");
    }
}
