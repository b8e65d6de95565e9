//! # What the service is told
//!
//! One file says where the service listens, where it keeps its counts, and which limits it enforces. It is YAML; JSON
//! is YAML; and a name that ends in `.toml` is TOML. The way from bytes to a [`Config`]:
//!
//! ```text
//!   bytes ──► tree ──► variables ──► tables ──► meaning ──► Config
//!            yaml.rs   ${NAME}       file.rs    listeners.rs, store.rs, rules.rs
//!            toml.rs   variables.rs  decode.rs
//!               │          │            │          │
//!               └──────────┴────────────┴──────────┴──► Faults: all of them, each with its place
//! ```
//!
//! Nothing stops at the first mistake, except text that is no YAML at all. No bytes make it panic, and none make it
//! large: a file, the values in it and how deep they lie are bounded.
//!
//! ```
//! use tidegate_server::config::{Config, Format};
//!
//! let file = "rules: [{name: everybody, quota: 100/s burst 200}]";
//! let loaded = Config::load("tidegate.yaml", file.as_bytes(), Format::Yaml, &|_| None);
//! assert_eq!(loaded.config.unwrap().rules.rules[0].name, "everybody");
//!
//! let loaded = Config::load("tidegate.yaml", b"rules: [{name: everybody, qouta: 100/x}]", Format::Yaml, &|_| None);
//! let faults: Vec<_> = loaded.faults.iter().map(|fault| fault.message.as_str()).collect();
//! assert_eq!(faults, ["unknown field `qouta` in a rule", "`100/x` is no quota"]); // did you mean `quota`?
//! ```

pub mod command;
mod conformance;
mod decode;
pub mod fault;
mod file;
pub mod flags;
mod limit;
mod listeners;
mod near;
mod node;
pub mod process;
mod rules;
mod schema;
mod secret;
mod show;
pub mod source;
mod store;
#[cfg(test)]
mod tests;
mod toml;
mod variables;
mod yaml;

use std::path::Path;

pub use limit::LEASE;
pub use listeners::{Address, Auth, Listener, Protocol, Tls};
pub use schema::schema;
pub use secret::Secret;
pub use show::{Origin, Shown};
pub use store::{Redis, Servers, Store};
pub use variables::Variables;

use crate::rules::RuleSet;
use decode::{Decode, Text};
use fault::{Fault, Faults};
use file::{File, WhenLostWord};
use flags::Given;
use node::Node;
use source::{At, Source, Span};

/// Everything the service is told, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens.
    pub listeners: Vec<Listener>,
    /// Where it keeps its counts.
    pub store: Store,
    /// What it limits.
    pub rules: RuleSet,
    /// Each value that counts, and where it came from.
    pub shown: Vec<Shown>,
}

/// What came of reading a file.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration, if there is no error.
    pub config: Option<Config>,
    /// What is wrong, errors and warnings, in the order of the file.
    pub faults: Faults,
    /// The text, for showing the faults in; without its secrets.
    pub source: Source,
}

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML or JSON.
    Yaml,
    /// TOML.
    Toml,
}

/// The longest a file may be, in bytes. A hundred thousand rules are shorter.
const LONGEST: usize = 16 << 20;
/// What is in force if there is no file.
const EXAMPLE: &str = include_str!("../examples/small.yaml");

impl Format {
    /// By the name of a file.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => Format::Toml,
            _ => Format::Yaml,
        }
    }
}

impl Config {
    /// Reads a configuration from bytes. Never panics, whatever they are.
    ///
    /// Reads no other file and no environment: what `${NAME}` stands for is asked of `variables`.
    pub fn load(name: &str, bytes: &[u8], format: Format, variables: &Variables<'_>) -> Loaded {
        Config::load_with(name, bytes, format, variables, &Given::default())
    }

    /// The same, with what was said elsewhere, which is stronger than what the file says.
    pub fn load_with(
        name: &str,
        bytes: &[u8],
        format: Format,
        variables: &Variables<'_>,
        given: &Given,
    ) -> Loaded {
        let mut faults = Faults::default();
        let source = text_of(name, bytes, &mut faults);
        let tree = faults.is_usable().then(|| parse(&source, format, &mut faults)).flatten();
        let (source, secrets) = secret::hidden(source, tree.as_ref());
        let mut reading = Reading { source: &source, faults, shown: Vec::new(), when_lost: None };
        let config = tree.and_then(|tree| reading.config(tree, variables, given));
        let Reading { mut faults, .. } = reading;
        faults.hide(&secrets);
        faults.sort();
        let config = config.filter(|_| faults.is_usable());
        Loaded { config, faults, source }
    }

    /// What the service does if it is told nothing: a small example.
    #[must_use]
    pub fn example(given: &Given) -> Loaded {
        Config::load_with("the example", EXAMPLE.as_bytes(), Format::Yaml, &|_| None, given)
    }
}

/// A file that is being read.
struct Reading<'a> {
    source: &'a Source,
    faults: Faults,
    shown: Vec<Shown>,
    /// What rules do without the store that say nothing of it, if the store says it.
    when_lost: Option<At<WhenLostWord>>,
}

impl Reading<'_> {
    fn config(&mut self, mut tree: Node, variables: &Variables<'_>, given: &Given) -> Option<Config> {
        variables::fill(&mut tree, variables, &mut self.faults);
        let file = File::decode(&tree, &mut self.faults)?;
        let listeners = self.listeners(file.listeners.as_ref(), given);
        let store = self.store(file.store.as_ref(), given);
        self.conformance(&listeners, &store, given);
        let rules = self.rules(&file, &store);
        Some(Config { listeners, store, rules, shown: std::mem::take(&mut self.shown) })
    }

    fn fault(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// The place of one character of a text, if the text stands in the file as it is; else the place of all of it.
    fn inside(&self, text: &Text, character: Option<usize>) -> Span {
        let written = self.source.slice(text.span);
        let quote = usize::from(written.starts_with(['"', '\'']));
        let is_as_written = written.get(quote..).is_some_and(|written| written.starts_with(&text.value));
        let Some(character) = character.filter(|_| is_as_written && text.variables.is_empty()) else {
            return text.span;
        };
        let mut rest = text.value.char_indices().skip(character);
        let start = rest.next().map_or(text.value.len(), |(at, _)| at);
        let end = rest.next().map_or(text.value.len(), |(at, _)| at).max(start + 1);
        let begin = text.span.start + quote;
        Span::new(begin + start, begin + end)
    }
}

fn text_of(name: &str, bytes: &[u8], faults: &mut Faults) -> Source {
    if bytes.len() > LONGEST {
        let message = format!("the file has {} bytes; at most {LONGEST} are read", bytes.len());
        faults.push(Fault::error("too-large", message));
        return Source::new(name, "");
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Source::new(name, text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(error) => {
            let at = error.valid_up_to();
            faults.push(
                Fault::error("utf-8", "the file is not UTF-8")
                    .at(Span::new(at, at + 1))
                    .label(format!("the byte 0x{:02x} begins no character", bytes[at]))
                    .help("save it as UTF-8"),
            );
            Source::new(name, String::from_utf8_lossy(bytes))
        }
    }
}

fn parse(source: &Source, format: Format, faults: &mut Faults) -> Option<Node> {
    match format {
        Format::Yaml => yaml::parse(source, faults),
        Format::Toml => toml::parse(source, faults),
    }
}
