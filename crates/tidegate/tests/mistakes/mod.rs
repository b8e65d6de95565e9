//! Mistakes that do not compile, and what the compiler says of them.
//!
//! The sentences of the compiler itself change with its version, so this is for one of them. To write them anew:
//! `TRYBUILD=overwrite cargo test -p tidegate --all-features --test` and the name of the test, and read what changed.

use std::io::Write;

/// The version whose sentences are written down.
const VERSION: &str = "1.95.";

/// Compares what the compiler says of the files in this folder of the tests with what is written down beside them.
pub(crate) fn compare(folder: &str) {
    let version = version();
    if version.starts_with(&format!("rustc {VERSION}")) {
        trybuild::TestCases::new().compile_fail(format!("tests/{folder}/*.rs"));
        return;
    }
    say(&format!(
        "SKIPPED: the mistakes in {folder} are told in the sentences of rustc {VERSION}x, and this is {version}; \
         to compare them, run it with that toolchain"
    ));
}

/// Whether there is something to compare with.
pub(crate) fn are_written_down(folder: &str) {
    let folder = format!("{}/tests/{folder}", env!("CARGO_MANIFEST_DIR"));
    let names = |ending: &str| {
        let files = std::fs::read_dir(&folder).expect("the folder of the mistakes");
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
    let _ = writeln!(std::io::stderr(), "{sentence}");
}
