//! # `tidegate conformance`
//!
//! Runs vector files, whose format `conformance/README.md` describes, and prints a table of what differs. The
//! runner is that of the library, file by file: there is one that decides what a vector means.
//!
//! | engine | who is put to the test |
//! |---|---|
//! | `memory` | the algorithms and limiters of this program, by a clock that the vectors set |
//! | `redis://…` | the script, on the Redis at this address; what it cannot know is skipped, and counted |
//! | `resp://…` | a server that runs at this address; what cannot be said to it is skipped, and counted |
//!
//! A service decides by its own clock and its own rules, and both are the vectors' to set. So the last is for servers
//! that were started to be put to the test, by `tidegate serve --conformance`.
//!
//! Ends with 0 if everything is as the files say, 1 if something differs or there is no such server, 2 if a file cannot
//! be read or holds a mistake.

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
#[path = "../../tidegate/examples/conformance/scripted.rs"]
mod scripted;
mod served;
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
use wire::{Target, Who};

/// `tidegate conformance`
#[derive(Args, Clone, Debug)]
pub struct Conformance {
    /// The vector files.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Who is put to the test: `memory`; the script on a Redis, `redis://[user:password@]host[:port][/db]`; or a server
    /// that was started by `tidegate serve --conformance`, `resp://[user:password@]host[:port]`.
    #[arg(long, default_value = "memory")]
    engine: Engine,
}

/// Who is put to the test.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Engine {
    Memory,
    Redis(Target),
    Server(Target),
}

impl Conformance {
    /// Runs them, and tells.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let tested = match &self.engine {
            Engine::Memory => Ok(self.in_memory()),
            Engine::Redis(target) => script::test(target, &self.files),
            Engine::Server(target) => served::test(target, &self.files),
        };
        let mut report = match tested {
            Ok(report) => report,
            Err(sentence) => {
                eprintln!("tidegate: {sentence}");
                return ExitCode::FAILURE;
            }
        };
        report.summary();
        let _ = io::stdout().write_all(report.text.as_bytes()); // whoever reads may go away: that is no error
        ExitCode::from(report.status() as u8)
    }

    fn in_memory(&self) -> Report {
        let mut report = Report::default();
        self.files.iter().for_each(|file| report.file(file, subject::SUBJECTS));
        report
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once("://") {
            None if text == "memory" => Ok(Engine::Memory),
            Some(("redis", target)) => Target::parse(Who::Redis, target).map(Engine::Redis),
            Some(("resp", target)) => Target::parse(Who::Tidegate, target).map(Engine::Server),
            _ => Err(
                "use `memory`, `redis://host:port` for the script on a Redis, or `resp://host:port` for a \
                      server that is put to the test"
                    .to_owned(),
            ),
        }
    }
}
