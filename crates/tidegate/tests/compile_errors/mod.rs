//! Code that must not compile, and the compiler's messages for it.
//!
//! The compiler's own messages change with its version, so the expected files are for one version. To
//! rewrite them, run `TRYBUILD=overwrite cargo test -p tidegate --all-features --test` with the name of the
//! test, and review the diff.

use std::io::Write;

/// The compiler version of the expected messages.
const VERSION: &str = "1.95.";

/// Compares the compiler's messages for the files in this folder with the `.stderr` files beside them.
pub(crate) fn compare(folder: &str) {
    let version = version();
    if version.starts_with(&format!("rustc {VERSION}")) {
        trybuild::TestCases::new().compile_fail(format!("tests/{folder}/*.rs"));
        return;
    }
    print_uncaptured(&format!(
        "SKIPPED: the messages in {folder} are for rustc {VERSION}x, and this is {version}; \
         to compare them, run it with that toolchain"
    ));
}

/// Asserts that every source file has an expected message.
pub(crate) fn assert_expected_files_exist(folder: &str) {
    let folder = format!("{}/tests/{folder}", env!("CARGO_MANIFEST_DIR"));
    let names = |ending: &str| {
        let files = std::fs::read_dir(&folder).expect("the folder exists");
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
    let version = std::process::Command::new(rustc).arg("--version").output().expect("rustc runs");
    String::from_utf8_lossy(&version.stdout).trim().to_owned()
}

/// Writes past the output capture, which would hide the line of a passing test. `scripts/test` shows such
/// lines, too.
fn print_uncaptured(message: &str) {
    let _ = writeln!(std::io::stderr(), "{message}");
}
