//! Mistakes in an attribute do not compile, and the compiler says what to do.
//!
//! The sentences of the compiler itself change with its version, so this is for one of them. To write them anew:
//! `TRYBUILD=overwrite cargo test -p tidegate --all-features --test attribute_mistakes`, and read what changed.

#![cfg(all(feature = "macros", feature = "tokio"))]

/// The version whose sentences are written down.
const VERSION: &str = "1.95.";

#[test]
fn mistakes_are_said_with_their_remedy() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = std::process::Command::new(rustc).arg("--version").output().expect("there is a compiler");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if !version.starts_with(&format!("rustc {VERSION}")) {
        eprintln!("not compared: these are the sentences of rustc {VERSION}x, and this is {version}");
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
