//! # `tidegate config`
//!
//! Three things to do with a configuration without running it: check it, show what counts, and print the schema. Exit
//! code 0 is fine, 1 is an error in a file, 2 is a command that was not understood.

use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::{ArgMatches, Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::fault::{Colours, Fault, Severity};
use super::flags::{Flags, Given};
use super::process::Process;
use super::source::Source;
use super::{Config, Format, LONGEST, Loaded, schema, show};

/// What can be done with a configuration.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Check files, and say everything that is wrong with them
    Check(Check),
    /// Show the configuration that counts, and where each value came from
    Show(Box<Show>),
    /// Print the JSON schema of the file, for editors
    Schema,
}

/// `tidegate config check`
#[derive(Args, Clone, Debug)]
pub struct Check {
    /// The files, each a configuration of its own; `-` is the standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// How to say it
    #[arg(long, value_enum, default_value_t)]
    format: Output,
    /// Count warnings as errors
    #[arg(long)]
    strict: bool,
}

/// `tidegate config show`
#[derive(Args, Clone, Debug)]
pub struct Show {
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    process: Process,
    /// How to show it
    #[arg(long, value_enum, default_value_t)]
    format: Output,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Output {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

impl Command {
    /// Does it. `matches` are those of the subcommand under `config`.
    #[must_use]
    pub fn run(&self, matches: &ArgMatches) -> ExitCode {
        match self {
            Command::Check(check) => check.run(),
            Command::Show(show) => show.run(matches),
            Command::Schema => {
                say(&format!("{:#}", schema()));
                ExitCode::SUCCESS
            }
        }
    }
}

impl Check {
    fn run(&self) -> ExitCode {
        let read: Vec<_> = self.files.iter().map(|file| read(file, &Given::default())).collect();
        match self.format {
            Output::Text => read.iter().for_each(report),
            Output::Json => say(&format!("{:#}", reported(&read))),
        }
        let wrong = |loaded: &Loaded| {
            loaded.config.is_none() || (self.strict && loaded.faults.count(Severity::Warning) > 0)
        };
        if read.iter().any(wrong) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

impl Show {
    fn run(&self, matches: &ArgMatches) -> ExitCode {
        let given = self.flags.given(matches);
        let loaded = match &self.flags.config {
            Some(path) => read(path, &given),
            None => Config::example(&given),
        };
        let Some(config) = &loaded.config else {
            report(&loaded);
            return ExitCode::FAILURE;
        };
        let shown = [self.process.shown(matches), config.shown.clone()].concat();
        match self.format {
            Output::Text => say(show::text(&shown).trim_end()),
            Output::Json => say(&format!("{:#}", show::json(&shown))),
        }
        ExitCode::SUCCESS
    }
}

/// A file that takes longer to read cannot be used.
const LONGEST_READ: Duration = Duration::from_secs(5);

/// Reads a file as the service would, with the environment of this process.
///
/// Beside what the file says, it looks at who may read the file and the keys that it names.
#[must_use]
pub fn read(path: &Path, given: &Given) -> Loaded {
    let (name, path, given) = (path.display().to_string(), path.to_owned(), given.clone());
    if path.as_os_str() == "-" {
        return load(&path, &given).unwrap_or_else(|error| unreadable(name, &error));
    }
    in_time(move || load(&path, &given)).unwrap_or_else(|error| unreadable(name, &error))
}

fn load(path: &Path, given: &Given) -> io::Result<Loaded> {
    let (name, bytes) = (path.display().to_string(), bytes_of(path)?);
    let environment = |name: &str| std::env::var(name).ok();
    let mut loaded = Config::load_with(&name, &bytes, Format::of(path), &environment, given);
    check_files(path, &mut loaded);
    Ok(loaded)
}

/// The bytes of a file, and no more than it takes to see that they are too many.
fn bytes_of(path: &Path) -> io::Result<Vec<u8>> {
    let most = LONGEST as u64 + 1;
    let mut bytes = Vec::new();
    if path.as_os_str() == "-" {
        io::stdin().take(most).read_to_end(&mut bytes)?;
    } else if fs::metadata(path)?.is_file() {
        fs::File::open(path)?.take(most).read_to_end(&mut bytes)?;
    } else {
        return Err(io::Error::other("it is no regular file"));
    }
    Ok(bytes)
}

/// Reads on a separate thread, with a time limit: a file system may hang. The thread then stays until the read ends.
pub(crate) fn in_time<T: Send + 'static>(
    read: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (tell, told) = mpsc::sync_channel(1);
    thread::Builder::new().name("file".to_owned()).spawn(move || tell.send(read()))?;
    told.recv_timeout(LONGEST_READ).unwrap_or_else(|_| {
        let sentence = format!("it takes longer than {} s", LONGEST_READ.as_secs());
        Err(io::Error::new(io::ErrorKind::TimedOut, sentence))
    })
}

fn unreadable(name: String, error: &io::Error) -> Loaded {
    let mut faults = super::Faults::default();
    faults.push(Fault::error(
        "unreadable",
        format!("{name} cannot be read: {error}; name a file that is there and may be read"),
    ));
    Loaded { config: None, faults, source: Source::new(name, "") }
}

// === who may read what ===

fn check_files(path: &Path, loaded: &mut Loaded) {
    let Some(config) = &loaded.config else { return };
    let mut faults = Vec::new();
    if loaded.source.has_secrets() && is_readable_by_all(path) {
        faults.push(
            Fault::warning(
                "secret-readable",
                "the file holds a secret and can be read by everybody on this machine",
            )
            .help("put the secret into the environment, as `${NAME}`, or run `chmod 640` on the file"),
        );
    }
    for tls in config.listeners.iter().filter_map(|listener| listener.tls.as_ref()) {
        let key = tls.key.display();
        if is_readable_by_all(&tls.key) {
            faults.push(
                Fault::error(
                    "secret-readable",
                    format!("the private key {key} can be read by everybody on this machine"),
                )
                .help(format!("run `chmod 600 {key}`")),
            );
        }
        for file in [Some(&tls.cert), Some(&tls.key), tls.client_ca.as_ref()].into_iter().flatten() {
            let name = file.display();
            if fs::metadata(file).is_ok_and(|file| !file.is_file() && !file.is_dir()) {
                faults
                    .push(Fault::error("no-file", format!("{name} is no regular file; name a file in PEM")));
            } else if !file.exists() {
                let message = format!("{name} is not there now; the service needs it to start");
                faults.push(Fault::warning("no-file", message));
            } else if file.is_dir() {
                faults.push(Fault::error("no-file", format!("{name} is a folder; name a file in PEM")));
            }
        }
    }
    faults.into_iter().for_each(|fault| loaded.faults.push(fault));
    loaded.config = loaded.config.take().filter(|_| loaded.faults.is_usable());
}

#[cfg(unix)]
fn is_readable_by_all(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o004 != 0)
}

#[cfg(not(unix))]
fn is_readable_by_all(_: &Path) -> bool {
    false
}

// === what is said ===

fn report(loaded: &Loaded) {
    let _ = io::stderr().write_all(told(loaded).as_bytes());
}

/// What is wrong with a file, in the lines it is about, and how many errors that are.
pub(crate) fn told(loaded: &Loaded) -> String {
    let colours = if io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        Colours::Ansi
    } else {
        Colours::None
    };
    format!("{}{}\n", loaded.faults.text(&loaded.source, colours), summary(loaded))
}

fn summary(loaded: &Loaded) -> String {
    let (errors, warnings) = (loaded.faults.count(Severity::Error), loaded.faults.count(Severity::Warning));
    let name = loaded.source.name();
    let warned = match warnings {
        0 => String::new(),
        1 => ", 1 warning".into(),
        many => format!(", {many} warnings"),
    };
    match (&loaded.config, errors) {
        (Some(config), _) => {
            let rules = config.rules.rules.len();
            let rules = if rules == 1 { "1 rule".to_owned() } else { format!("{rules} rules") };
            format!("{name}: fine, {rules}{warned}")
        }
        (None, 1) => format!("{name}: 1 error{warned}"),
        (None, errors) => format!("{name}: {errors} errors{warned}"),
    }
}

fn reported(read: &[Loaded]) -> Value {
    let files = read.iter().map(|loaded| {
        json!({
            "file": loaded.source.name(),
            "ok": loaded.config.is_some(),
            "errors": loaded.faults.count(Severity::Error),
            "warnings": loaded.faults.count(Severity::Warning),
            "faults": loaded.faults.json(&loaded.source),
        })
    });
    json!({ "files": files.collect::<Value>() })
}

/// Whoever reads may go away in the middle, as `head` does; that is no error.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}
