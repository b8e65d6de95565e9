//! # What nobody is to read
//!
//! A fault is shown with the line it is about, and that line may hold a password. A log is read by many. So the text
//! that faults are shown in has its secrets blotted out before anything else is looked at, and a secret that was read
//! shows itself to nobody but who asks for it by name.

use std::fmt;

use super::node::{Kind, Node};
use super::source::{Source, Span};

/// A password or a token.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// The fields that hold secrets.
const FIELDS: [&str; 2] = ["token", "password"];

impl Secret {
    /// Takes a text into hiding.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// What it is.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// An address without the password in it.
pub(crate) fn without_password(url: &str) -> String {
    match credentials(url) {
        Some((start, end)) => format!("{}…{}", &url[..start], &url[end..]),
        None => url.to_owned(),
    }
}

/// The text with every secret blotted out, as long as before: places in it stay what they are.
pub(crate) fn hidden(source: Source, tree: Option<&Node>) -> Source {
    let mut spans = Vec::new();
    match tree {
        Some(tree) => find(tree, &source, &mut spans),
        None => find_in_lines(source.text(), &mut spans),
    }
    if spans.is_empty() {
        return source;
    }
    let mut bytes = source.text().as_bytes().to_vec();
    for Span { start, end } in spans.into_iter().map(|span| source.clamped(span)) {
        bytes[start..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b'*');
    }
    let text = String::from_utf8(bytes).expect("whole characters were replaced");
    source.blotted(text)
}

fn find(node: &Node, source: &Source, spans: &mut Vec<Span>) {
    match &node.kind {
        Kind::Nothing => {}
        Kind::Scalar(_) => find_credentials(source.slice(node.span), node.span.start, spans),
        Kind::List(items) => items.iter().for_each(|item| find(item, source, spans)),
        Kind::Table(entries) => entries.iter().for_each(|(name, value)| {
            find(value, source, spans);
            let is_secret = FIELDS.contains(&name.value.as_str()) && matches!(value.kind, Kind::Scalar(_));
            if is_secret && !is_variable(source.slice(value.span)) {
                spans.push(value.span);
            }
        }),
    }
}

/// Where there is no tree to go by: whatever follows the name of such a field, to the end of the line.
fn find_in_lines(text: &str, spans: &mut Vec<Span>) {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let end = start + line.trim_end().len();
        let after = FIELDS.iter().filter_map(|field| line.find(field).map(|at| at + field.len())).min();
        if let Some(at) = after.filter(|at| line[*at..].contains([':', '='])) {
            spans.push(Span::new(start + at + 1, end));
        }
        find_credentials(line, start, spans);
        start += line.len();
    }
}

fn find_credentials(text: &str, offset: usize, spans: &mut Vec<Span>) {
    if let Some((start, end)) = credentials(text).filter(|(start, end)| !is_variable(&text[*start..*end])) {
        spans.push(Span::new(offset + start, offset + end));
    }
}

/// Where in an address its user and password are.
fn credentials(text: &str) -> Option<(usize, usize)> {
    let start = text.find("://")? + 3;
    let end = start + text[start..].rfind('@')?;
    (end > start).then_some((start, end))
}

/// Whether all of it is in the environment.
fn is_variable(text: &str) -> bool {
    let text = text.trim_matches(['"', '\'']);
    text.starts_with("${") && text.ends_with('}') && !text.contains(":-") && text.matches("${").count() == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Format};

    fn shown(text: &str) -> String {
        Config::load("x", text.as_bytes(), Format::Yaml, &|_| None).source.text().to_owned()
    }

    #[test]
    fn secrets_are_blotted_out_and_places_stay() {
        assert_eq!(shown("a: {token: sésame, b: 1}"), "a: {token: *******, b: 1}");
        assert_eq!(shown("password: \"x y\"\nurl: redis://u:p@h/0"), "password: *****\nurl: redis://***@h/0");
        assert_eq!(shown("token: ${TOKEN}"), "token: ${TOKEN}", "that is no secret");
        assert_eq!(shown("token: ${TOKEN:-abc}"), "token: *************");
    }

    #[test]
    fn secrets_are_blotted_out_of_what_is_no_yaml() {
        assert_eq!(
            shown("a: [\ntoken: abc\n\"password\" : \"x\"\n"),
            "a: [\ntoken:****\n\"password\"******\n"
        );
        assert!(!shown("b: ]\nurl: 'redis://:hunter2@host'").contains("hunter2"));
    }

    #[test]
    fn an_address_is_shown_without_its_password() {
        assert_eq!(without_password("redis://me:secret@host:1/0"), "redis://…@host:1/0");
        assert_eq!(without_password("redis://:p@ss@host"), "redis://…@host");
        assert_eq!(without_password("redis://host"), "redis://host");
        assert_eq!(format!("{:?}", Secret::new("x")), "Secret(..)");
    }
}
