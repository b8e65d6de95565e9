//! `tidegate config`, as a person runs it; and the files of the book, as a person copies them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tidegate_server::config::fault::Colours;
use tidegate_server::config::{Config, Format};

fn tidegate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments).env_clear();
    command
}

fn run(arguments: &[&str]) -> Output {
    tidegate(arguments).output().expect("it can be started")
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("it is text");
    (text(&output.stdout), text(&output.stderr))
}

fn here(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path).display().to_string()
}

fn written(folder: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    fs::write(&path, text).expect("it can be written");
    path.display().to_string()
}

#[test]
fn exit_codes_tell_fine_from_wrong_from_misunderstood() {
    let (good, bad) = (here("examples/tidegate.yaml"), here("tests/faults/quota-text.yaml"));
    let code = |arguments: &[&str]| run(arguments).status.code();
    assert_eq!(code(&["config", "check", &good]), Some(0));
    assert_eq!(code(&["config", "check", &good, &bad]), Some(1));
    assert_eq!(code(&["config", "check", "/nowhere/at/all"]), Some(1));
    assert_eq!(code(&["config", "check"]), Some(2));
    assert_eq!(code(&["config", "chekc"]), Some(2));
    let warned = here("tests/faults/key-unsaid.yaml");
    assert_eq!(code(&["config", "check", &warned]), Some(0));
    assert_eq!(code(&["config", "check", "--strict", &warned]), Some(1));
}

#[test]
fn every_fault_is_said_with_its_place() {
    let bad = here("tests/faults/quota-text.yaml");
    let (out, err) = said(&run(&["config", "check", &bad]));
    assert_eq!(out, "");
    assert!(err.contains("quota-text.yaml:3:26") && err.ends_with("quota-text.yaml: 8 errors\n"), "{err}");
    let (_, err) = said(&run(&["config", "check", &here("examples/tidegate.yaml")]));
    assert!(err.ends_with("tidegate.yaml: fine, 5 rules\n"), "{err}");
    let (_, err) = said(&run(&["config", "check", "/nowhere/at/all"]));
    assert!(err.starts_with("error[unreadable]: /nowhere/at/all cannot be read: No such file"), "{err}");
    assert!(err.contains("; name a file that is there and may be read"), "{err}");
}

#[test]
fn faults_are_there_for_programs_too() {
    let bad = here("tests/faults/quota-text.yaml");
    let (out, err) =
        said(&run(&["config", "check", "--format", "json", &bad, &here("examples/tidegate.yaml")]));
    assert_eq!(err, "");
    let said: Value = serde_json::from_str(&out).expect("it is JSON");
    assert_eq!((&said["files"][0]["ok"], &said["files"][1]["ok"]), (&Value::Bool(false), &Value::Bool(true)));
    let fault = &said["files"][0]["faults"][1];
    assert_eq!(fault["code"], "quota");
    assert_eq!((&fault["start"]["line"], &fault["start"]["column"]), (&3.into(), &26.into()));
    assert_eq!(fault["found"], "f");
}

#[test]
fn flags_beat_the_environment_which_beats_the_file() {
    let file = here("examples/tidegate.yaml");
    let output = tidegate(&["config", "show", "--http", "127.0.0.1:1", "--format", "json"])
        .env("TIDEGATE_CONFIG", &file)
        .env("TIDEGATE_HTTP", "127.0.0.1:2")
        .env("TIDEGATE_GRPC", "off")
        .env("TIDEGATE_REDIS", "redis://me:hunter2@host")
        .output()
        .expect("it can be started");
    let (out, err) = said(&output);
    assert_eq!(err, "");
    assert!(!out.contains("hunter2"));
    let shown: Value = serde_json::from_str(&out).expect("it is JSON");
    let of = |path: &str| {
        let one = shown
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["path"] == path)
            .unwrap_or_else(|| panic!("{path}"));
        (one["value"].as_str().unwrap().to_owned(), one["origin"]["from"].as_str().unwrap().to_owned())
    };
    let pair = |value: &str, from: &str| (value.to_owned(), from.to_owned());
    assert_eq!(of("listeners.http.address"), pair("127.0.0.1:1", "flag"));
    assert_eq!(of("listeners.grpc"), pair("off", "environment"));
    assert_eq!(of("listeners.resp.address"), pair("127.0.0.1:6380", "file"));
    assert_eq!(of("store.redis.url"), pair("redis://…@host", "environment"));
    assert_eq!(of("store.redis.deadline"), pair("20ms", "default"));
    assert_eq!(of("rules.sign-in.when_lost"), pair("closed", "file"));
    assert_eq!(of("rules.everybody.lease"), pair("off", "default"));
}

#[test]
fn what_is_the_process_s_own_is_shown_too() {
    let output = tidegate(&["config", "show", "--threads", "3"])
        .env("TIDEGATE_IDLE", "60")
        .env("TIDEGATE_PASSWORD", "hunter2")
        .output();
    let (out, err) = said(&output.expect("it can be started"));
    assert!(!out.contains("hunter2"), "{out}");
    let lines: Vec<_> =
        out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "process.threads 3 flag, --threads",
        "process.idle 60s environment, $TIDEGATE_IDLE",
        "process.password (secret) environment, $TIDEGATE_PASSWORD",
        "process.user default default",
        "process.connections 10000 default",
        "process.notice 1s default",
        "process.log_format text default",
    ] {
        assert!(lines.iter().any(|shown| shown == line), "{line}: {out}{err}");
    }
}

/// Without a file the service runs the example, so that is what counts.
#[test]
fn without_a_file_the_example_is_shown() {
    let (out, _) = said(&run(&["config", "show"]));
    let line = out.lines().find(|line| line.starts_with("rules.user.quota")).expect("a rule of the example");
    assert!(line.contains("10/s burst 20") && line.contains("the example:"), "{line}");
}

#[test]
fn what_comes_of_a_lease_is_shown() {
    let folder = tempfile::tempdir().expect("there is room");
    let rules = "rules:
  - {name: a, quota: 300/s, lease: on}
  - {name: b, quota: [300/s, fixed_window 40/min], lease: {stock: 90, ttl: 500ms}}
  - {name: c, quota: 5/s, lease: on}
  - {name: d, quota: 5/s, lease: off}
";
    let file =
        written(&folder, "a.yaml", &format!("store: {{redis: {{url: redis://h, nodes: 2}}}}\n{rules}"));
    let (out, _) = said(&run(&["config", "show", "-c", &file]));
    for (rule, shown) in [
        ("a", "on, lots of up to 87 for 2s"),
        ("b", "on, lots of up to 30 for 500ms"),
        ("c", "on, but strict: too small"),
        ("d", "off"),
    ] {
        let line = out.lines().find(|line| line.starts_with(&format!("rules.{rule}.lease"))).expect("a line");
        assert!(line.contains(&format!(" {shown} ")), "{line}");
    }
    let (out, err) = said(&run(&["config", "check", &file]));
    let told = out + &err;
    assert_eq!(told.matches("warning[lease-small]: the rule stays strict").count(), 1, "{told}");
}

#[test]
fn a_wrong_flag_is_told_like_a_wrong_file() {
    let output = run(&["config", "show", "--http", "8080"]);
    let (_, err) = said(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(err.contains("`8080` (flag, --http) is no address to listen at"), "{err}");
}

#[test]
fn being_put_to_the_test_is_shown_and_is_off_unless_a_flag_says_so() {
    let shown = |arguments: &[&str]| {
        let output =
            tidegate(&[&["config", "show"], arguments].concat()).env("TIDEGATE_CONFORMANCE", "true").output();
        let (out, err) = said(&output.expect("it can be started"));
        let line = out.lines().find(|line| line.starts_with("conformance ")).map(str::to_owned);
        (line.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")), err)
    };
    assert_eq!(shown(&[]).0.as_deref(), Some("conformance off default"));
    assert_eq!(shown(&["--conformance"]).0.as_deref(), Some("conformance on flag, --conformance"));
    assert_eq!(shown(&["--conformance", "--resp", "unix:/run/a.sock"]).1, shown(&[]).1);
    for wrong in [["--resp", "0.0.0.0:6380"], ["--redis", "redis://h"]] {
        let (line, err) = shown(&[&["--conformance"][..], &wrong].concat());
        assert!(line.is_none() && err.contains("error[conformance]: with --conformance"), "{err}");
    }
}

#[test]
fn variables_come_from_the_environment_and_stay_hidden() {
    let folder = tempfile::tempdir().expect("there is room");
    let file = written(
        &folder,
        "a.yaml",
        "listeners: {admin: {address: '0.0.0.0:9090', auth: {token: '${TOKEN}'}}}\nrules: [{name: a, quota: 1/s}]",
    );
    let output = tidegate(&["config", "show", "-c", &file]).env("TOKEN", "hunter2").output().unwrap();
    let (out, _) = said(&output);
    assert!(
        out.contains("(secret)") && out.contains("a.yaml:1, $TOKEN") && !out.contains("hunter2"),
        "{out}"
    );
    let (_, err) = said(&run(&["config", "show", "-c", &file]));
    assert!(err.contains("the environment variable TOKEN is not set"), "{err}");
}

#[cfg(unix)]
#[test]
fn secrets_that_everybody_can_read_are_noticed() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("there is room");
    let mode = |path: &str, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let (cert, key) = (written(&folder, "cert.pem", ""), written(&folder, "key.pem", ""));
    let text = format!(
        "listeners:\n  http: {{address: '127.0.0.1:1', tls: {{cert: {cert}, key: {key}}}, auth: {{token: abc}}}}\nrules: [{{name: a, quota: 1/s}}]"
    );
    let file = written(&folder, "a.yaml", &text);
    mode(&file, 0o640);
    mode(&key, 0o600);
    let (_, err) = said(&run(&["config", "check", &file]));
    assert!(err.ends_with("fine, 1 rule\n"), "{err}");

    mode(&file, 0o644);
    let (_, err) = said(&run(&["config", "check", &file]));
    assert!(err.starts_with("warning[secret-readable]: the file holds a secret"), "{err}");

    mode(&key, 0o644);
    let output = run(&["config", "check", &file]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).1.contains("key.pem can be read by everybody"));

    fs::remove_file(&cert).unwrap();
    assert!(said(&run(&["config", "check", &file])).1.contains("cert.pem is not there now"));

    fs::create_dir(&cert).unwrap();
    let output = run(&["config", "check", &file]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).1.contains("cert.pem is a folder; name a file in PEM"));
}

#[test]
fn the_schema_is_printed() {
    let (out, _) = said(&run(&["config", "schema"]));
    let committed = fs::read_to_string(here("schema.json")).expect("it is part of the crate");
    assert_eq!(out, committed);
}

// === the book ===

/// Each block of the chapter that is a file, and the line it begins at.
fn blocks() -> Vec<(usize, Format, String)> {
    let chapter: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../docs/configuration.md"].iter().collect();
    let text = fs::read_to_string(chapter).expect("the chapter is part of the repository");
    let (mut blocks, mut open) = (Vec::new(), None);
    for (line, content) in (1..).zip(text.lines()) {
        match (content, &mut open) {
            ("```yaml", None) => open = Some((line, Format::Yaml, String::new())),
            ("```toml", None) => open = Some((line, Format::Toml, String::new())),
            ("```", Some(_)) => blocks.extend(open.take()),
            (content, Some((_, _, block))) => *block += &format!("{content}\n"),
            _ => {}
        }
    }
    blocks
}

#[test]
fn every_example_of_the_chapter_is_fine() {
    let variables = |name: &str| (name != "REDIS_URL").then(|| format!("value-of-{name}"));
    assert!(blocks().len() >= 10);
    for (line, format, text) in blocks() {
        let loaded = Config::load("example", text.as_bytes(), format, &variables);
        let mut faults = loaded.faults.text(&loaded.source, Colours::None);
        if !text.contains("rules") {
            faults = faults.split("warning[no-rules]").next().unwrap_or_default().to_owned();
        }
        assert_eq!(faults, "", "configuration.md:{line}");
        assert!(loaded.config.is_some());
    }
}

#[test]
fn the_chapter_names_every_field() {
    let chapter =
        fs::read_to_string(here("../../docs/configuration.md")).expect("it is part of the repository");
    let schema: Value = serde_json::from_str(&fs::read_to_string(here("schema.json")).unwrap()).unwrap();
    let tables = schema["$defs"].as_object().unwrap().values().chain([&schema]);
    let fields = tables.filter_map(|table| table["properties"].as_object()).flat_map(|fields| fields.keys());
    let without: Vec<_> = fields.filter(|field| !chapter.contains(&format!("`{field}`"))).collect();
    assert!(without.is_empty(), "docs/configuration.md does not say what these are: {without:?}");
}
