//! Mistakes in an attribute do not compile, and the compiler says what to do.
//!
//! The sentences of the compiler itself change with its version, so this is for one of them. To write them anew:
//! `TRYBUILD=overwrite cargo test -p tidegate --all-features --test attribute_mistakes`, and read what changed.

#![cfg(all(feature = "macros", feature = "tokio"))]

/// The version whose sentences are written down.
const VERSION: &str = "1.95.";

#[test]
fn mistakes_are_said_with_their_remedy() {
    let version = version();
    if version.starts_with(&format!("rustc {VERSION}")) {
        trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
        return;
    }
    say(&format!(
        "SKIPPED: mistakes_are_said_with_their_remedy compares the sentences of rustc {VERSION}x, and this is {version}; \
         to compare them, run it with that toolchain"
    ));
}

#[test]
fn every_mistake_has_its_sentences_written_down() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ui");
    let names = |ending: &str| {
        let files = std::fs::read_dir(folder).expect("the folder of the examples");
        let names = files.map(|file| file.expect("a file").file_name().into_string().expect("a plain name"));
        let mut names: Vec<String> =
            names.filter_map(|name| name.strip_suffix(ending).map(str::to_owned)).collect();
        names.sort();
        names
    };
    assert!(!names(".rs").is_empty());
    assert_eq!(names(".rs"), names(".stderr"));
}

fn version() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = std::process::Command::new(rustc).arg("--version").output().expect("there is a compiler");
    String::from_utf8_lossy(&version.stdout).trim().to_owned()
}

/// Past the capture of a test that passes, or nobody would see it. `scripts/test` shows such lines, too.
fn say(sentence: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{sentence}");
}
