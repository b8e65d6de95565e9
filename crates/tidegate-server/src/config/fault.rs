//! # What is wrong with a file, and what would be right
//!
//! The simplest reader stops at the first mistake. Then somebody with five of them edits and runs five times. So
//! faults are collected, all of them, and each says four things: where, what stands there, what was expected, and
//! what to write instead.
//!
//! ```text
//!   error[unknown-field]: unknown field `quotas` in a rule
//!     --> tidegate.yaml:7:5
//!      |
//!    7 |     quotas: 10/s
//!      |     ^^^^^^ expected one of: name, match, key, quota, …
//!      |
//!      = help: did you mean `quota`?
//! ```

use std::fmt;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use serde_json::{Value, json};

use super::source::{Source, Span};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Whether the file can be used all the same.
    pub severity: Severity,
    /// A name for this kind of fault that does not change.
    pub code: &'static str,
    /// What is wrong, in a sentence.
    pub message: String,
    /// Where; `None` if it is the file as a whole.
    pub span: Option<Span>,
    /// What is said at that place.
    pub label: String,
    /// Other places that have to do with it, and what is said there.
    pub beside: Vec<(Span, String)>,
    /// What to do about it.
    pub help: Option<String>,
}

/// How bad a fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// It can, but hardly says what was meant.
    Warning,
}

/// Everything that is wrong with one file.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    found: Vec<Fault>,
    beyond: usize,
    /// Those beyond counted, too.
    errors: usize,
}

/// So many faults are shown; the rest is counted. A file that has more is no configuration.
const MOST: usize = 100;
/// The code of a variable that is not there.
pub(crate) const VARIABLE: &str = "variable";

impl Fault {
    /// An error.
    pub fn error(code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        let (label, beside) = (String::new(), Vec::new());
        Fault { severity: Severity::Error, code, message, span: None, label, beside, help: None }
    }

    /// A warning.
    pub fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Fault { severity: Severity::Warning, ..Fault::error(code, message) }
    }

    /// At this place.
    #[must_use]
    pub fn at(self, span: Span) -> Self {
        Fault { span: Some(span), ..self }
    }

    /// With this said at its place.
    #[must_use]
    pub fn label(self, label: impl Into<String>) -> Self {
        Fault { label: label.into(), ..self }
    }

    /// With another place shown beside it.
    #[must_use]
    pub fn beside(mut self, span: Span, label: impl Into<String>) -> Self {
        self.beside.push((span, label.into()));
        self
    }

    /// With a remedy.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        Fault { help: Some(help.into()), ..self }
    }

    /// With a remedy, if there is one.
    #[must_use]
    pub fn maybe_help(self, help: Option<String>) -> Self {
        Fault { help: help.or(self.help), ..self }
    }

    fn group<'a>(&'a self, source: &'a Source) -> Group<'a> {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let title = level.primary_title(self.message.as_str()).id(self.code);
        let mut group = match self.span {
            Some(span) => title.element(self.snippet(source, span)),
            None => Group::with_title(title).element(annotate_snippets::Origin::path(source.name())),
        };
        if let Some(help) = &self.help {
            group = group.element(Level::HELP.message(annotate_snippets::normalize_untrusted_str(help)));
        }
        group
    }

    fn snippet<'a>(
        &'a self,
        source: &'a Source,
        span: Span,
    ) -> Snippet<'a, annotate_snippets::Annotation<'a>> {
        let range = |span: Span| {
            let Span { start, end } = source.clamped(span);
            start..end
        };
        let primary = AnnotationKind::Primary.span(range(span)).label(self.label.as_str());
        let beside = self
            .beside
            .iter()
            .map(|(span, label)| AnnotationKind::Context.span(range(*span)).label(label.as_str()));
        Snippet::source(source.text()).path(source.name()).annotation(primary).annotations(beside)
    }

    fn json(&self, source: &Source) -> Value {
        let place = |byte| {
            let place = source.place(byte);
            json!({ "line": place.line, "column": place.column })
        };
        let beside = self.beside.iter().map(
            |(span, label)| json!({ "start": place(span.start), "end": place(span.end), "label": label }),
        );
        json!({
            "file": source.name(),
            "severity": self.severity.to_string(),
            "code": self.code,
            "message": self.message,
            "start": self.span.map(|span| place(span.start)),
            "end": self.span.map(|span| place(span.end)),
            "found": self.span.map(|span| source.slice(span)),
            "label": self.label,
            "beside": beside.collect::<Value>(),
            "help": self.help,
        })
    }
}

impl Faults {
    /// Takes these secrets out of everything that is said. Short ones only where they are quoted: they are parts of words, too.
    pub(crate) fn hide(&mut self, secrets: &[String]) {
        const SHORT: usize = 4;
        let hide = |text: &mut String| {
            for secret in secrets {
                let (found, instead) = if secret.len() < SHORT {
                    (format!("`{secret}`"), "`(secret)`")
                } else {
                    (secret.clone(), "(secret)")
                };
                if text.contains(&found) {
                    *text = text.replace(&found, instead);
                }
            }
        };
        for fault in &mut self.found {
            hide(&mut fault.message);
            hide(&mut fault.label);
            fault.help.iter_mut().for_each(hide);
            fault.beside.iter_mut().for_each(|(_, label)| hide(label));
        }
    }

    /// Adds one. The same one twice is one, and what lacks its variable is not also told that it is no number.
    pub fn push(&mut self, fault: Fault) {
        let is_known = |one: &Fault| *one == fault || (one.code == VARIABLE && one.span == fault.span);
        if self.found.iter().any(is_known) {
            return;
        }
        self.errors += usize::from(fault.severity == Severity::Error);
        if self.found.len() < MOST {
            self.found.push(fault);
        } else {
            self.beyond += 1;
        }
    }

    /// Whether none of them is an error.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.errors == 0
    }

    /// How many there are of one severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        self.found.iter().filter(|fault| fault.severity == severity).count()
    }

    /// Each of them, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.found.iter()
    }

    /// In the order of the file; those about the whole of it come first.
    pub(crate) fn sort(&mut self) {
        self.found.sort_by_key(|fault| fault.span.map(|span| span.start));
    }

    /// For people, with colours or without.
    #[must_use]
    pub fn text(&self, source: &Source, colours: Colours) -> String {
        let renderer = match colours {
            Colours::None => Renderer::plain(),
            Colours::Ansi => Renderer::styled(),
        };
        let renderer = renderer.decor_style(DecorStyle::Ascii).term_width(WIDTH);
        let mut text = String::new();
        for fault in &self.found {
            text.push_str(&renderer.render(&[fault.group(source)]));
            text.push_str("\n\n");
        }
        if self.beyond > 0 {
            text.push_str(&format!("and {} more\n\n", self.beyond));
        }
        text
    }

    /// For programs.
    #[must_use]
    pub fn json(&self, source: &Source) -> Value {
        self.found.iter().map(|fault| fault.json(source)).collect()
    }
}

/// Lines are not cut short: a label may be long, and who reads it may have a wide window.
const WIDTH: usize = 400;

/// Whether a text for people has colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// It has none.
    None,
    /// Those of a terminal.
    Ansi,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        })
    }
}
