//! Files that are wrong, and what is said about them. Beside each file in `faults/` stands what is expected, word for word.
//!
//! After a change of words: `TIDEGATE_WRITE=1 cargo test -p tidegate-server --test faults`, and read what has changed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tidegate_server::config::fault::{Colours, Fault};
use tidegate_server::config::{Config, Format, Loaded};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults")
}

fn files() -> Vec<PathBuf> {
    let all = fs::read_dir(folder()).expect("the folder is part of the repository");
    let mut files: Vec<_> = all.map(|entry| entry.expect("it can be listed").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension != "txt"));
    files.sort();
    files
}

fn load(path: &Path) -> Loaded {
    let name = path.file_name().expect("it is a file").to_string_lossy();
    let bytes = fs::read(path).expect("it can be read");
    Config::load(&name, &bytes, Format::of(path), &|_| None)
}

#[test]
fn every_file_is_told_what_is_wrong_with_it() {
    let write = std::env::var_os("TIDEGATE_WRITE").is_some();
    let mut wrong = Vec::new();
    for path in files() {
        let loaded = load(&path);
        let said = loaded.faults.text(&loaded.source, Colours::None);
        let expected = path.with_extension(format!("{}.txt", path.extension().unwrap().to_string_lossy()));
        if write {
            fs::write(&expected, &said).expect("it can be written");
        } else if fs::read_to_string(&expected).unwrap_or_default() != said {
            wrong.push(format!("{}:\n{said}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "other than expected:\n\n{}", wrong.join("\n"));
}

#[test]
fn there_is_a_file_for_each_fault() {
    let found: BTreeSet<&str> = files()
        .iter()
        .flat_map(|path| load(path).faults.iter().map(|fault| fault.code).collect::<Vec<_>>())
        .collect();
    let known = codes_in_source();
    // Those need a disk, a flag, or a file too large to keep; they have tests of their own.
    let elsewhere =
        ["secret-readable", "no-file", "unreadable", "too-large", "too-deep", "too-many", "conformance"];
    let without: Vec<_> = known
        .iter()
        .filter(|code| !found.contains(code.as_str()) && !elsewhere.contains(&code.as_str()))
        .collect();
    assert!(without.is_empty(), "no file in tests/faults shows {without:?}");
    assert!(files().len() >= 30 && known.len() > 20);
}

/// The codes as they stand in the source: whoever adds one has to add a file.
fn codes_in_source() -> BTreeSet<String> {
    let mut codes = BTreeSet::new();
    for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config")) {
        let text = fs::read_to_string(path).expect("it can be read");
        for start in ["Fault::error(", "Fault::warning("] {
            for after in text.split(start).skip(1) {
                let code = after.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next());
                codes.extend(code.map(str::to_owned));
            }
        }
    }
    codes
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("it can be listed").path());
    all.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

#[test]
fn a_fault_has_a_place_and_says_what_was_expected() {
    let whole = ["empty", "no-rules"];
    for path in files() {
        for Fault { code, span, label, message, .. } in load(&path).faults.iter() {
            assert!(
                span.is_some() || whole.contains(code) || message.contains("listen"),
                "{path:?}: {message}"
            );
            assert!(span.is_none() || !label.is_empty(), "{path:?}: {message}");
            assert!(!message.ends_with('.') && !message.contains("{:?}"), "{message}");
        }
    }
}

#[test]
fn no_secret_is_ever_shown() {
    for path in files() {
        let loaded = load(&path);
        let said = loaded.faults.text(&loaded.source, Colours::Ansi)
            + &loaded.faults.json(&loaded.source).to_string();
        assert!(!said.contains("hunter2") && !said.contains("s3cret"), "{path:?}");
    }
}

#[test]
fn what_the_environment_holds_is_never_shown() {
    let text =
        "listeners: {http: '${X}', admin: {address: '127.0.0.1:1', auth: {token: '${X}', user: '${X}'}}}
store: {redis: {url: '${X}', nodes: '${X}', deadline: '${X}'}}
rules: [{name: a, quota: '${X}', shadow: '${X}', when_lost: '${X}', cost: '${X}', key: b, missing: '${X}'}]";
    let loaded = Config::load("x", text.as_bytes(), Format::Yaml, &|_| Some("hunter2".to_owned()));
    let said =
        loaded.faults.text(&loaded.source, Colours::None) + &loaded.faults.json(&loaded.source).to_string();
    assert!(loaded.faults.iter().count() >= 9 && !said.contains("hunter2"), "{said}");
}
