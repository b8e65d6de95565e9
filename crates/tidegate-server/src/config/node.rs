//! # A file as a tree
//!
//! YAML, JSON and TOML become one and the same: scalars, lists and tables, each with its place. A scalar stays the
//! text that was written. What it means, a number or a name, is decided by whoever asks for it; so `code: 007` and
//! `country: no` are the texts they look like.

use super::source::{At, Span};

/// A part of a file.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Nothing: a name with no value after it, `null` or `~`.
    Nothing,
    Scalar(Scalar),
    List(Vec<Node>),
    Table(Vec<(At<String>, Node)>),
}

#[derive(Clone, Debug)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    /// In quotes it is a text for certain; without, it may be a number or a truth value.
    pub(crate) is_quoted: bool,
    /// The variables that are part of it, as `${NAME}`.
    pub(crate) variables: Vec<String>,
}

impl Node {
    pub(crate) fn scalar(text: impl Into<String>, is_quoted: bool, span: Span) -> Self {
        let scalar = Scalar { text: text.into(), is_quoted, variables: Vec::new() };
        Node { kind: Kind::Scalar(scalar), span }
    }

    /// Whether it is a list or a table with nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        match &self.kind {
            Kind::Nothing | Kind::Scalar(_) => false,
            Kind::List(items) => items.is_empty(),
            Kind::Table(entries) => entries.is_empty(),
        }
    }

    /// What it is, for a sentence.
    pub(crate) fn describe(&self) -> &'static str {
        match self.kind {
            Kind::Nothing => "nothing",
            Kind::Scalar(_) => "a single value",
            Kind::List(_) => "a list",
            Kind::Table(_) => "a table",
        }
    }
}

/// A value as part of a sentence. What came from the environment stays there: it may be a secret.
pub(crate) fn shown(value: &str, variables: &[String]) -> String {
    if variables.is_empty() {
        return value.to_owned();
    }
    variables.iter().map(|name| format!("${{{name}}}")).collect::<Vec<_>>().join(" ")
}
