//! # `tidegate conformance`
//!
//! Runs vector files, whose format `conformance/README.md` describes, and prints a table of what differs. The
//! runner is that of the library, file by file: there is one that decides what a vector means.
//!
//! Ends with 0 if everything is as the files say, 1 if something differs, 2 if a file cannot be read or holds a mistake.

#[path = "../../tidegate/examples/conformance/format.rs"]
mod format;
#[path = "../../tidegate/examples/conformance/line.rs"]
mod line;
#[path = "../../tidegate/examples/conformance/mistake.rs"]
mod mistake;
#[path = "../../tidegate/examples/conformance/pace.rs"]
mod pace;
#[path = "../../tidegate/examples/conformance/pacers.rs"]
mod pacers;
#[path = "../../tidegate/examples/conformance/report.rs"]
mod report;
#[path = "../../tidegate/examples/conformance/row.rs"]
mod row;
#[path = "../../tidegate/examples/conformance/run.rs"]
mod run;
#[path = "../../tidegate/examples/conformance/subject.rs"]
mod subject;
#[path = "../../tidegate/examples/conformance/table.rs"]
mod table;
#[path = "../../tidegate/examples/conformance/time.rs"]
mod time;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;

use report::Report;

/// `tidegate conformance`
#[derive(Args, Clone, Debug)]
pub struct Conformance {
    /// The vector files.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Who is put to the test.
    #[arg(long, value_enum, default_value_t)]
    engine: Engine,
}

/// Who is put to the test.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Engine {
    /// The algorithms and the limiters of this program, by a clock that the vectors set
    #[default]
    Memory,
}

impl Conformance {
    /// Runs them, and tells.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let subjects = match self.engine {
            Engine::Memory => subject::SUBJECTS,
        };
        let mut report = Report::default();
        for file in &self.files {
            report.file(file, subjects);
        }
        report.summary();
        let _ = io::stdout().write_all(report.text.as_bytes()); // whoever reads may go away: that is no error
        ExitCode::from(report.status() as u8)
    }
}
