//! # Conformance
//!
//! ```text
//!   cargo run -p tidegate --example conformance -- FILE…
//! ```
//!
//! Runs vector files against the library and prints a table of what differs. The format of the files is
//! described in `conformance/README.md`.
//!
//! Exits with 0 if all results match the files, 1 if something differs, 2 if a file cannot be read or
//! contains a mistake.

#[expect(dead_code, reason = "only other users of this module need the text of a rule")]
mod format;
mod line;
mod mistake;
mod pace;
mod pacers;
mod report;
mod row;
mod run;
mod subject;
mod table;
mod time;

use std::io::{self, Write};
use std::process::ExitCode;

use report::{Report, Status};

const USAGE: &str = "usage: conformance FILE...\n\nThe format is described in conformance/README.md.\n";

fn main() -> ExitCode {
    let files: Vec<String> =
        std::env::args_os().skip(1).map(|file| file.to_string_lossy().into_owned()).collect();
    if files.is_empty() {
        return ended(USAGE, Status::Malformed);
    }
    let mut report = Report::default();
    for file in &files {
        report.file(file, subject::SUBJECTS);
    }
    report.summary();
    ended(&report.text, report.status())
}

/// Prints the text and returns the exit code. A closed pipe, as after `| head`, does not change the status.
fn ended(text: &str, status: Status) -> ExitCode {
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::from(status as u8)
}
