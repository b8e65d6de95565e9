//! # What counts, and who said so
//!
//! A value may come from a flag, from the environment, from the file or from nowhere. Whoever wonders why the service
//! listens where it does wants to see which, with the line.

use std::fmt;

use serde_json::{Value, json};

use super::Reading;
use super::decode::Text;
use super::source::Span;

/// One value, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// What it is of: `listeners.http.address`.
    pub path: String,
    /// What it is; secrets are not shown.
    pub value: String,
    /// Who said so.
    pub origin: Origin,
}

/// Who said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody.
    Default,
    /// The file.
    File {
        /// Its name.
        name: String,
        /// The line.
        line: usize,
        /// The variables that are part of the value.
        variables: Vec<String>,
    },
    /// A variable of the environment.
    Environment(String),
    /// A flag.
    Flag(String),
}

impl Reading<'_> {
    pub(super) fn show(&mut self, path: impl Into<String>, value: impl Into<String>, origin: Origin) {
        self.shown.push(Shown { path: path.into(), value: value.into(), origin });
    }

    pub(super) fn show_at(&mut self, path: impl Into<String>, value: impl Into<String>, span: Span) {
        let origin = self.origin(span, &[]);
        self.show(path, value, origin);
    }

    pub(super) fn show_text(&mut self, path: impl Into<String>, value: impl Into<String>, text: &Text) {
        let origin = self.origin(text.span, &text.variables);
        self.show(path, value, origin);
    }

    pub(super) fn origin(&self, span: Span, variables: &[String]) -> Origin {
        let line = self.source.line(span.start);
        Origin::File { name: self.source.name().to_owned(), line, variables: variables.to_vec() }
    }
}

/// All of them, for people.
pub(super) fn text(shown: &[Shown]) -> String {
    let width = |of: fn(&Shown) -> usize| shown.iter().map(of).max().unwrap_or(0);
    let (paths, values) = (width(|one| one.path.chars().count()), width(|one| one.value.chars().count()));
    let values = values.min(WIDEST);
    shown.iter().map(|one| format!("{:paths$}  {:values$}  {}\n", one.path, one.value, one.origin)).collect()
}

/// A longer value pushes only its own origin to the right.
const WIDEST: usize = 48;

/// All of them, for programs.
pub(super) fn json(shown: &[Shown]) -> Value {
    shown
        .iter()
        .map(|one| json!({ "path": one.path, "value": one.value, "origin": one.origin.json() }))
        .collect()
}

impl Origin {
    fn json(&self) -> Value {
        match self {
            Origin::Default => json!({ "from": "default" }),
            Origin::File { name, line, variables } => {
                json!({ "from": "file", "file": name, "line": line, "variables": variables })
            }
            Origin::Environment(name) => json!({ "from": "environment", "name": name }),
            Origin::Flag(name) => json!({ "from": "flag", "name": name }),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { name, line, variables } => {
                write!(f, "{name}:{line}")?;
                variables.iter().try_for_each(|variable| write!(f, ", ${variable}"))
            }
            Origin::Environment(name) => write!(f, "environment, ${name}"),
            Origin::Flag(name) => write!(f, "flag, {name}"),
        }
    }
}
