//! # What is the process's own
//!
//! How many threads answer, how many may come, how long is waited: nothing of it is in the file, for it belongs to one
//! process on one machine. Each is a flag and a variable of the environment, and is shown beside what the file says.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};

use super::flags::origin;
use super::show::{Origin, Shown};
use crate::engine::{MOST_PERMITS, MOST_PERMITS_OF_RULE};

/// What it is told on the command line or by the environment, and nowhere else.
#[derive(Args, Clone, Debug)]
pub struct Process {
    /// A socket in the file system where clients of Redis come in, too.
    #[arg(long, value_name = "PATH", env = "TIDEGATE_RESP_SOCKET")]
    pub resp_socket: Option<PathBuf>,
    /// What clients of Redis have to say to `AUTH`; without it, what the file says.
    #[arg(
        long,
        value_name = "PASSWORD",
        env = "TIDEGATE_PASSWORD",
        hide_env_values = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub password: Option<String>,
    /// Who they have to say they are.
    #[arg(
        long,
        value_name = "NAME",
        env = "TIDEGATE_USER",
        default_value = "default",
        requires = "password"
    )]
    pub user: String,
    /// Threads that answer, at most 1024; 0 for half as many as there are processors.
    #[arg(long, value_name = "N", env = "TIDEGATE_THREADS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1024))]
    pub threads: u32,
    /// More connections than this are turned away.
    #[arg(long, value_name = "N", env = "TIDEGATE_CONNECTIONS", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,
    /// More connections than this from one address are turned away.
    #[arg(long, value_name = "N", env = "TIDEGATE_CONNECTIONS_PER_ADDRESS", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections_per_address: u32,
    /// More permits than this are not held at once, in all rules together. Each takes about 400 bytes.
    #[arg(long, value_name = "N", env = "TIDEGATE_PERMITS", default_value_t = MOST_PERMITS as u64)]
    pub permits: u64,
    /// More permits than this are not held at once of one rule, of all its keys together.
    #[arg(long, value_name = "N", env = "TIDEGATE_PERMITS_PER_RULE", default_value_t = MOST_PERMITS_OF_RULE as u64)]
    pub permits_per_rule: u64,
    /// Seconds after which a client that asks nothing is let go.
    #[arg(long, value_name = "SECONDS", env = "TIDEGATE_IDLE", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub idle: u64,
    /// Seconds between being told to end (SIGTERM) and closing the doors. Meanwhile `/readyz` says that it ends, and
    /// all are answered, so that others can be asked instead. A second signal, or SIGINT, ends it at once.
    #[arg(long, value_name = "SECONDS", env = "TIDEGATE_NOTICE", default_value_t = 1)]
    pub notice: u64,
    /// How it says what happens to it: in lines for people, or in lines for programs, each of them an object.
    #[arg(long, value_name = "FORMAT", env = "TIDEGATE_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

/// How it says what happens to it.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// In lines for people.
    Text,
    /// In lines for programs.
    Json,
}

impl Process {
    /// Each value, and where it came from. `matches` are those of the subcommand.
    pub(super) fn shown(&self, matches: &ArgMatches) -> Vec<Shown> {
        let log_format = match self.log_format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        let socket = self.resp_socket.as_ref().map(|path| path.display().to_string());
        let has_password = self.password.is_some();
        let values = [
            ("resp_socket", socket),
            ("password", has_password.then(|| "(secret)".to_owned())),
            ("user", has_password.then(|| self.user.clone())),
            ("threads", Some(self.threads.to_string())),
            ("connections", Some(self.connections.to_string())),
            ("connections_per_address", Some(self.connections_per_address.to_string())),
            ("permits", Some(self.permits.to_string())),
            ("permits_per_rule", Some(self.permits_per_rule.to_string())),
            ("idle", Some(format!("{}s", self.idle))),
            ("notice", Some(format!("{}s", self.notice))),
            ("log_format", Some(log_format.to_owned())),
        ];
        let shown = |(name, value): (&str, Option<String>)| {
            Some(Shown { path: format!("process.{name}"), value: value?, origin: said(matches, name) })
        };
        values.into_iter().filter_map(shown).collect()
    }
}

fn said(matches: &ArgMatches, name: &str) -> Origin {
    match matches.value_source(name) {
        Some(ValueSource::DefaultValue) | None => Origin::Default,
        Some(_) => origin(matches, name),
    }
}
