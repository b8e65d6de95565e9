//! # What nobody is to read
//!
//! A fault is shown with the line it is about, and that line may hold a password. A log is read by many. So the text
//! that faults are shown in has its secrets blotted out before anything else is looked at, and a secret that was read
//! shows itself to nobody but who asks for it by name.

use std::fmt;

use super::near::nearest;
use super::node::{Kind, Node};
use super::source::{Source, Span};

/// A password or a token.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

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

/// An address without what may be a password in it.
pub(crate) fn without_password(url: &str) -> String {
    let mut shown = url.to_owned();
    for (start, end) in credentials(url, true).into_iter().rev() {
        shown.replace_range(start..end, "…");
    }
    shown
}

/// The text with every secret replaced by stars, as long as before: places in it stay what they are. And the secrets, for
/// [`Faults::hide`](super::fault::Faults::hide).
pub(crate) fn hidden(source: Source, tree: Option<&Node>) -> (Source, Vec<String>) {
    let mut found = Found { source: &source, spans: Vec::new(), texts: Vec::new() };
    match tree {
        Some(tree) => found.in_node(tree, Inside::default()),
        None => found.in_lines(),
    }
    let Found { spans, texts, .. } = found;
    if spans.is_empty() {
        return (source, texts);
    }
    let mut bytes = source.text().as_bytes().to_vec();
    for Span { start, end } in spans.into_iter().map(|span| source.clamped(span)) {
        bytes[start..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b'*');
    }
    let text = String::from_utf8(bytes).expect("whole characters were replaced");
    (source.blotted(text), texts)
}

/// The secrets of a file: where they are, and what they are.
struct Found<'a> {
    source: &'a Source,
    spans: Vec<Span>,
    texts: Vec<String>,
}

/// What the names above a value say it is.
#[derive(Clone, Copy, Default)]
struct Inside {
    secret: bool,
    url: bool,
}

impl Found<'_> {
    fn in_node(&mut self, node: &Node, inside: Inside) {
        match &node.kind {
            Kind::Nothing => {}
            Kind::Scalar(_) if inside.secret => self.take(node.span),
            Kind::Scalar(_) => self.in_text(node.span, inside.url),
            Kind::List(items) => items.iter().for_each(|item| self.in_node(item, inside)),
            Kind::Table(entries) => entries.iter().for_each(|(name, value)| {
                let known = nearest(&name.value, BESIDE_SECRETS);
                if inside.secret && known.is_none_or(|known| name.value.len() > known.len() + 2) {
                    self.take(name.span); // a secret where a name should be
                }
                let inside = Inside {
                    secret: (inside.secret && name.value != "user") || is_secret(&name.value),
                    url: inside.url || is_url(&name.value),
                };
                self.in_node(value, inside);
            }),
        }
    }

    /// Where there is no tree to go by: what follows the name of such a field, and lines that lie deeper.
    fn in_lines(&mut self) {
        let (mut start, mut deeper_than) = (0, None);
        for line in self.source.text().split_inclusive('\n') {
            let (indent, end) = (line.len() - line.trim_start().len(), start + line.trim_end().len());
            let is_blank = line.trim().is_empty();
            let is_deeper = deeper_than.is_some_and(|above| is_blank || indent > above);
            let words = line.split(|letter: char| !(letter.is_alphanumeric() || matches!(letter, '_' | '-')));
            let at = |word: &str| word.as_ptr() as usize - line.as_ptr() as usize + word.len();
            let after = words.clone().find(|word| is_secret(word)).map(at);
            if is_deeper {
                self.take(Span::new(start + indent.min(end - start), end));
            } else if let Some(at) = after {
                deeper_than = Some(indent);
                self.take(Span::new((start + at + 1).min(end), end));
            } else {
                deeper_than = deeper_than.filter(|_| is_blank);
                self.in_text(Span::new(start, end), words.clone().any(is_url));
            }
            start += line.len();
        }
    }

    /// The credentials in an address.
    fn in_text(&mut self, span: Span, is_url: bool) {
        for (start, end) in credentials(self.source.slice(span), is_url) {
            self.take(Span::new(span.start + start, span.start + end));
        }
    }

    fn take(&mut self, span: Span) {
        let text = self.source.slice(span);
        if is_variable(text) {
            return;
        }
        let trimmed = text.trim().trim_matches(['"', '\'']);
        self.texts.extend((!trimmed.is_empty()).then(|| trimmed.to_owned()));
        self.spans.push(span);
    }
}

/// What may stand beside a secret, and is none.
const BESIDE_SECRETS: [&str; 6] = ["token", "change_token", "password", "change_password", "user", "auth"];

/// Whether a field of this name holds a secret, or was meant to.
fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    ["token", "passw", "pwd", "secret", "auth", "cred"].iter().any(|word| name.contains(word))
        || nearest(&name, ["token", "password", "auth"]).is_some()
}

/// Whether a field of this name holds addresses of servers.
fn is_url(name: &str) -> bool {
    let name = name.to_lowercase();
    ["url", "uri", "redis", "cluster", "store"].iter().any(|word| name.contains(word))
}

/// Where in an address its user and password are, and what comes after a `?`.
fn credentials(text: &str, is_url: bool) -> Vec<(usize, usize)> {
    let scheme = text.find("://").map(|at| at + 3);
    if scheme.is_none() && !is_url {
        return Vec::new();
    }
    let from = scheme.unwrap_or_else(|| text.find(|letter| letter != '"' && letter != '\'').unwrap_or(0));
    let to = text.trim_end_matches(['"', '\'']).len().max(from);
    let at = text[from..to].rfind('@').map(|at| (from, from + at));
    let after = at.map_or(from, |(_, at)| at);
    let query = text[after..to].find('?').map(|mark| (after + mark + 1, to));
    let all = at.into_iter().chain(query);
    all.filter(|(start, end)| end > start && !is_variable(&text[*start..*end])).collect()
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
        assert_eq!(without_password("redis://host?password=x"), "redis://host?…");
        assert_eq!(without_password(":x@host:6379"), "…@host:6379");
        assert_eq!(format!("{:?}", Secret::new("x")), "Secret(..)");
    }

    const LISTENERS: &[&str] = &[
        "auth: {tokn: hunter2}",
        "auth: {Token: hunter2}",
        "auth: {TOKEN: hunter2}",
        "auth: hunter2",
        "auth: [hunter2]",
        "auth: {token: [hunter2]}",
        "auth: {token: {value: hunter2}}",
        "auth: {token: [{a: [hunter2]}]}",
        "auth: {hunter2}",
        "auth: {hunter2: token}",
        "auth: {bearer: hunter2}",
        "auth: {token hunter2}",
        "auth: {passwrod: hunter2}",
        "auth: {user: me, pass: hunter2}",
        "Auth: {token: hunter2}",
        "auht: {token: hunter2}",
        "token: hunter2",
        "tokne: hunter2",
        "api_token: hunter2",
        "change-token: hunter2",
        "auth: {token: \"hunter2\", token: \"hunter2\"}",
        "auth: {token: hunter2, token: hunter2",
        "auth:\n      token: |\n        hunter2\n      nonsense: 1",
        "auth:\n      tokn:\n        - hunter2\n  ]",
        "auth: {token: 'hunter2}",
        "auth: {token: !!int hunter2}",
        "auth: {token: &a hunter2, password: *a}",
        "auth: {token: ${X:-hunter2}, nonsense: 1}",
    ];
    const STORES: &[&str] = &[
        "redis: {url: ':hunter2@localhost:6379'}",
        "redis: {url: 'me:hunter2@localhost'}",
        "redis: {url: '//me:hunter2@localhost'}",
        "redis: {url: 'http://me:hunter2@localhost'}",
        "redis: {url: 'redis://localhost?password=hunter2', nonsense: 1}",
        "redis: {url: 'redis://me:hunter2@localhost:x'}",
        "redis: {ulr: 'redis://me:hunter2@localhost'}",
        "redis: {urls: [':hunter2@localhost']}",
        "redis: {cluster: [':hunter2@a', 'x']}",
        "redis: {password: hunter2}",
        "redis: ':hunter2@localhost'",
        "redis: [':hunter2@localhost'",
    ];

    /// However a credential is written, no fault shows it, and neither does the line that is shown beside it.
    #[test]
    fn nothing_near_a_credential_is_shown() {
        const SECRET: &str = "hunter2";
        let listener = |auth: &str| {
            format!(
                "listeners:\n  http:\n    address: 127.0.0.1:1\n    {auth}\nrules: [{{name: a, quota: 1/s}}]\n"
            )
        };
        let store = |text: &str| format!("store:\n  {text}\nrules: [{{name: a, quota: 1/s}}]\n");
        let texts = LISTENERS.iter().map(|text| listener(text)).chain(STORES.iter().map(|text| store(text)));
        let mut faulty = 0;
        for text in texts {
            let loaded = Config::load("x", text.as_bytes(), Format::Yaml, &|_| None);
            let said = loaded.faults.text(&loaded.source, crate::config::fault::Colours::None);
            faulty += usize::from(!said.is_empty());
            for shown in
                [&said, &loaded.faults.json(&loaded.source).to_string(), &loaded.source.text().to_owned()]
            {
                assert!(!shown.contains(SECRET), "{text}\nis shown as\n{shown}");
            }
        }
        assert!(faulty >= 35, "{faulty} have faults");
    }
}
