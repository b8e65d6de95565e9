//! # TOML as a tree

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::fault::{Fault, Faults};
use super::node::{Kind, Node};
use super::source::{At, Source, Span};

/// The tree; `None`, with every fault, if the text is no TOML.
pub(crate) fn parse(source: &Source, faults: &mut Faults) -> Option<Node> {
    let (table, errors) = DeTable::parse_recoverable(source.text());
    for error in &errors {
        let fault = Fault::error("toml", "the text is not TOML").label(error.message());
        faults.push(match error.span() {
            Some(range) => fault.at(span(range)),
            None => fault,
        });
    }
    let whole = span(table.span());
    errors.is_empty().then(|| self::table(table.get_ref(), whole))
}

fn table(table: &DeTable<'_>, span: Span) -> Node {
    let mut entries: Vec<_> = table
        .iter()
        .map(|(name, value)| {
            let name = At { value: name.get_ref().to_string(), span: self::span(name.span()) };
            (name, node(value.get_ref(), self::span(value.span())))
        })
        .collect();
    entries.sort_by_key(|(name, _)| name.span.start); // the parser sorts by name; people do not
    Node { kind: Kind::Table(entries), span }
}

fn node(value: &DeValue<'_>, span: Span) -> Node {
    match value {
        DeValue::String(text) => Node::scalar(text.as_ref(), true, span),
        DeValue::Integer(number) => Node::scalar(number.as_str(), false, span),
        DeValue::Float(number) => Node::scalar(number.as_str(), false, span),
        DeValue::Boolean(truth) => Node::scalar(truth.to_string(), false, span),
        DeValue::Datetime(date) => Node::scalar(date.to_string(), false, span),
        DeValue::Array(items) => {
            let items = items.iter().map(|item| node(item.get_ref(), self::span(item.span())));
            Node { kind: Kind::List(items.collect()), span }
        }
        DeValue::Table(table) => self::table(table, span),
    }
}

fn span(range: Range<usize>) -> Span {
    Span::new(range.start, range.end)
}
