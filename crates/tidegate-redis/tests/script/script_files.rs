//! # The files that the script is assembled from
//!
//! `scripts/lua` concatenates `src/script/*.lua` in the order of their names, with an empty line between two of them. Tests
//! assemble variants from the same files: without the fast paths, or with another wire version.

use std::fs;
use std::path::Path;

/// One file: its name and its text.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) text: String,
}

impl Part {
    /// Whether the script works without it, only slower.
    pub(crate) fn is_fast_path(&self) -> bool {
        self.name.contains("fast_path")
    }
}

pub(crate) fn parts() -> Vec<Part> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/script");
    let entries = fs::read_dir(folder).expect("src/script is part of the repository");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    let part = |path: &std::path::PathBuf| Part {
        name: path.file_name().expect("a file").to_string_lossy().into_owned(),
        text: fs::read_to_string(path).expect("a text"),
    };
    files.iter().map(part).collect()
}

pub(crate) fn assembled<'a>(parts: impl IntoIterator<Item = &'a Part>) -> String {
    let texts: Vec<&str> = parts.into_iter().map(|part| part.text.as_str()).collect();
    texts.join("\n")
}

/// The script of another wire version, with the same algorithms.
pub(crate) fn of_version(version: &str) -> String {
    let script = assembled(&parts());
    let constant = "local VERSION = '1'";
    assert!(script.contains(constant), "the script states its version");
    script
        .replace("'1:check'", &format!("'{version}:check'"))
        .replace(constant, &format!("local VERSION = '{version}'"))
}

#[test]
fn the_script_is_the_concatenation_of_its_files() {
    let expected = assembled(&parts());
    assert!(
        expected == tidegate_redis::SCRIPT,
        "script.lua is not what src/script/*.lua give: run scripts/lua"
    );
}

/// A call that the fast paths decide creates no function: that is what makes them fast.
#[test]
fn the_fast_paths_come_before_any_function() {
    let parts = parts();
    let creates = |part: &Part| {
        let code = part.text.lines().map(|line| line.split("--").next().unwrap_or_default());
        code.into_iter().any(|line| line.contains("function"))
    };
    let first = parts.iter().position(creates).expect("a function");
    let before: Vec<_> = parts[..first].iter().map(|part| part.name.as_str()).collect();
    assert_eq!(before, ["00_header.lua", "10_fast_path.lua"]);
}
