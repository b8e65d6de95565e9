//! # `tidegate conformance`
//!
//! Runs vector files, whose format `conformance/README.md` describes, and prints a table of what differs. The
//! runner is that of the library, file by file: there is one that decides what a vector means.
//!
//! | engine | who is put to the test |
//! |---|---|
//! | `memory` | the algorithms and limiters of this program, by a clock that the vectors set |
//! | `redis://…` | the script, on the Redis at this address; what it cannot know is skipped, and counted |
//!
//! A service that runs is none of them: it decides by its own clock and its own rules, and both are the vectors' to set.
//!
//! Ends with 0 if everything is as the files say, 1 if something differs or there is no such Redis, 2 if a file cannot be
//! read or holds a mistake.

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
mod script;
#[path = "../../tidegate/examples/conformance/subject.rs"]
mod subject;
#[path = "../../tidegate/examples/conformance/table.rs"]
mod table;
#[path = "../../tidegate/examples/conformance/time.rs"]
mod time;
mod wire;

use std::io::{self, Write};
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;

use report::Report;

/// `tidegate conformance`
#[derive(Args, Clone, Debug)]
pub struct Conformance {
    /// The vector files.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Who is put to the test: `memory`, or the script on a Redis, `redis://[user:password@]host[:port][/db]`.
    #[arg(long, default_value = "memory")]
    engine: Engine,
}

/// Who is put to the test.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Engine {
    Memory,
    Redis(String),
}

impl Conformance {
    /// Runs them, and tells.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let (text, status) = match &self.engine {
            Engine::Memory => self.in_memory(),
            Engine::Redis(url) => match script::test(url, &self.files) {
                Ok(told) => told,
                Err(sentence) => {
                    eprintln!("tidegate: {sentence}");
                    return ExitCode::FAILURE;
                }
            },
        };
        let _ = io::stdout().write_all(text.as_bytes()); // whoever reads may go away: that is no error
        ExitCode::from(status as u8)
    }

    fn in_memory(&self) -> (String, report::Status) {
        let mut report = Report::default();
        for file in &self.files {
            report.file(file, subject::SUBJECTS);
        }
        report.summary();
        let status = report.status();
        (report.text, status)
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once("://") {
            None if text == "memory" => Ok(Engine::Memory),
            Some(("redis", host)) if !host.is_empty() => Ok(Engine::Redis(text.to_owned())),
            Some(("resp", _)) => {
                Err("a service that runs has its own clock and its own rules, and vectors set both; \
                                      use `memory` for the program, or `redis://…` for its store"
                    .to_owned())
            }
            _ => Err("use `memory`, or `redis://host:port` for the script on a Redis".to_owned()),
        }
    }
}
