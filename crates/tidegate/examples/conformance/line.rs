//! # One line, split into tokens
//!
//! Authors align columns with blanks and tabs, and write `100ms` or `100 ms`, `x3` or `x 3`. The tokenizer
//! splits a line where the kind of character changes, and not only at blanks. That makes all spellings
//! equal, so the rest of the parser can ignore white space.

use std::fmt;

use super::mistake::Mistake;

/// A line without its comment, and how far it has been read.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    number: usize,
    text: &'a str,
    tokens: Vec<Token<'a>>,
    at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    /// In bytes from the start of the line.
    start: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Digits, perhaps with a decimal point: `1_000`, `99.999`.
    Number,
    /// Letters, then anything a name may hold: `allow`, `ms`, `x16`, `per_second`.
    Word,
    /// Anything else; one character, or `..`.
    Symbol,
}

impl<'a> Line<'a> {
    /// The line `number` of a file, counted from 1.
    pub(crate) fn new(number: usize, text: &'a str) -> Self {
        let text = text.split_once('#').map_or(text, |(before, _)| before).trim_end();
        Line { number, text, tokens: tokens(text), at: 0 }
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// The line as a table shows it: without comment, one blank between the columns.
    pub(crate) fn squeezed(&self) -> String {
        self.text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn is_done(&self) -> bool {
        self.at == self.tokens.len()
    }

    pub(crate) fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    /// The token after the next, and whether it touches it.
    pub(crate) fn second(&self) -> Option<(Token<'a>, bool)> {
        let (next, second) = (self.peek()?, self.tokens.get(self.at + 1)?);
        Some((*second, next.start + next.text.len() == second.start))
    }

    pub(crate) fn next_of(&mut self, kind: Kind) -> Option<Token<'a>> {
        let token = self.peek().filter(|token| token.kind == kind)?;
        self.at += 1;
        Some(token)
    }

    /// Consumes the next token if it equals `text`.
    pub(crate) fn takes(&mut self, text: &str) -> bool {
        let there = self.peek().is_some_and(|token| token.text == text);
        self.at += usize::from(there);
        there
    }

    /// The unread rest of the line, and the column where it starts.
    pub(crate) fn rest(&mut self) -> (&'a str, usize) {
        let start = self.peek().map_or(self.text.len(), |token| token.start);
        self.at = self.tokens.len();
        (&self.text[start..], self.column(start))
    }

    /// Continues after the column that contains `mistake`.
    pub(crate) fn skip_past(&mut self, mistake: &Mistake) {
        let wrong = self.tokens.iter().position(|token| self.column(token.start) == mistake.column);
        self.at = self.bracket_end(wrong.unwrap_or(self.tokens.len()));
        while let Some((_, touches)) = self.second() {
            self.at += 1;
            if !touches {
                return;
            }
        }
        self.at = self.tokens.len();
    }

    /// The end of the bracket that `index` lies in, or `index` itself.
    fn bracket_end(&self, index: usize) -> usize {
        let before = &self.tokens[..self.tokens.len().min(index + 1)];
        let bracket = |token: &&Token<'_>| matches!(token.text, "[" | "]");
        let opened = before.iter().rev().find(bracket).is_some_and(|token| token.text == "[");
        let end = self.tokens[index..].iter().position(|token| token.text == "]");
        if opened { index + end.unwrap_or(0) } else { index }
    }

    /// How far the line has been read, for [`Line::mistake_at`].
    pub(crate) fn mark(&self) -> usize {
        self.at
    }

    /// A mistake at the current position.
    pub(crate) fn mistake(&self, expected: impl fmt::Display) -> Mistake {
        self.mistake_at(self.at, expected)
    }

    /// A mistake at the position `mark`.
    pub(crate) fn mistake_at(&self, mark: usize, expected: impl fmt::Display) -> Mistake {
        let start = self.tokens.get(mark).map_or(self.text.len(), |token| token.start);
        let found = self.text[start..].split_whitespace().next().unwrap_or("").to_owned();
        let says = format!("expected {expected}");
        Mistake { line: self.number, column: self.column(start), found, says }
    }

    fn column(&self, byte: usize) -> usize {
        self.text[..byte].chars().count() + 1
    }
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let (mut found, mut start) = (Vec::new(), 0);
    while start < text.len() {
        let rest = &text[start..];
        let blanks = rest.len() - rest.trim_start().len();
        if blanks > 0 {
            start += blanks;
            continue;
        }
        let (kind, length) = first_token(rest);
        found.push(Token { kind, text: &rest[..length], start });
        start += length;
    }
    found
}

/// The kind and the length of the token that `rest`, which is not empty, starts with.
fn first_token(rest: &str) -> (Kind, usize) {
    let first = rest.chars().next().unwrap_or(' ');
    if first.is_ascii_digit() {
        (Kind::Number, number_length(rest))
    } else if first.is_alphabetic() || first == '_' {
        (Kind::Word, word_length(rest))
    } else if rest.starts_with("..") {
        (Kind::Symbol, 2)
    } else {
        (Kind::Symbol, first.len_utf8())
    }
}

fn number_length(rest: &str) -> usize {
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let whole = digits(rest);
    match rest[whole..].strip_prefix('.') {
        Some(fraction) if fraction.starts_with(|c: char| c.is_ascii_digit()) => whole + 1 + digits(fraction),
        _ => whole,
    }
}

fn word_length(rest: &str) -> usize {
    rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
}
