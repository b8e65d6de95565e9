//! # From a tree to what it says
//!
//! Each type of the file's model knows how to read itself from a node. What does not fit is a fault, and reading goes
//! on: a list keeps the items that do fit, a table the fields. The macro [`table!`] writes the reader of a table
//! beside its type and its schema, so that the three cannot differ.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::fault::{Fault, Faults};
use super::near::{did_you_mean, listed, nearest};
use super::node::{Kind, Node, Scalar, shown};
use super::source::{At, Span};

/// What can be read from a node.
pub(crate) trait Decode: Sized {
    /// What is expected, for a sentence.
    fn expected() -> Cow<'static, str>;

    /// What the node says; `None`, with a fault, if it is something else.
    fn decode(node: &Node, faults: &mut Faults) -> Option<Self>;

    /// What it is if the field is not there; `None` if it has to be.
    fn absent() -> Option<Self> {
        None
    }

    /// What is gone on with where it has to be there and is not: all else that is wrong is to be said too. Whoever
    /// answers this has said already that it is missing, so nothing comes of it but faults.
    fn instead() -> Option<Self> {
        None
    }
}

/// Defines a table of the file: its type, its schema and its reader.
macro_rules! table {
    ($(#[$about:meta])* $what:literal $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, schemars::JsonSchema)]
        #[schemars(deny_unknown_fields)]
        pub(crate) struct $name { $($(#[$doc])* pub(crate) $field: $type,)* }

        impl $crate::config::decode::Decode for $name {
            fn expected() -> std::borrow::Cow<'static, str> {
                $what.into()
            }

            fn decode(
                node: &$crate::config::node::Node,
                faults: &mut $crate::config::fault::Faults,
            ) -> Option<Self> {
                const NAMES: &[&str] = &[$($crate::config::decode::field_name(stringify!($field))),*];
                let table = $crate::config::decode::Table::of(node, $what, NAMES, faults)?;
                $(let $field = table.field($crate::config::decode::field_name(stringify!($field)), faults);)*
                Some($name { $($field: $field?,)* })
            }
        }
    };
}

/// Defines a choice between words: its type, its schema and its reader.
macro_rules! choice {
    ($(#[$about:meta])* $what:literal $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, schemars::JsonSchema)]
        pub enum $name { $($(#[$doc])* #[schemars(rename = $word)] $variant,)* }

        impl $name {
            const WORDS: &[&str] = &[$($word),*];

            /// The word for it.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }

        impl $crate::config::decode::Decode for $name {
            fn expected() -> std::borrow::Cow<'static, str> {
                format!("{}: {}", $what, $crate::config::near::listed($name::WORDS.iter().copied())).into()
            }

            fn decode(
                node: &$crate::config::node::Node,
                faults: &mut $crate::config::fault::Faults,
            ) -> Option<Self> {
                let given = $crate::config::decode::scalar::<Self>(node, faults)?;
                match given.text.as_str() { $($word => return Some($name::$variant),)* _ => {} }
                faults.push($crate::config::decode::unknown_word($what, given, $name::WORDS, node.span));
                None
            }
        }
    };
}

pub(crate) use {choice, table};

/// The name of a field as it stands in a file: without what makes a word of Rust a name.
pub(crate) const fn field_name(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [b'r', b'#', ..] => name.split_at(2).1,
        _ => name,
    }
}

/// A table that is being read.
pub(crate) struct Table<'a> {
    what: &'static str,
    names: &'static [&'static str],
    span: Span,
    entries: &'a [(At<String>, Node)],
}

impl<'a> Table<'a> {
    pub(crate) fn of(
        node: &'a Node,
        what: &'static str,
        names: &'static [&'static str],
        faults: &mut Faults,
    ) -> Option<Self> {
        let entries = entries(node, what, faults)?;
        for (name, _) in entries.iter().filter(|(name, _)| !names.contains(&name.value.as_str())) {
            faults.push(unknown_field(what, name, names));
        }
        Some(Table { what, names, span: node.span, entries })
    }

    /// What a field says; `None`, with a fault, if it says something else or has to be there and is not.
    pub(crate) fn field<T: Decode>(&self, name: &str, faults: &mut Faults) -> Option<T> {
        let written = self.entries.iter().find(|(field, _)| field.value == name);
        match written.or_else(|| self.misspelt(name)) {
            Some((_, node)) => T::decode(node, faults).or_else(T::absent).or_else(T::instead),
            None => T::absent().or_else(|| {
                faults.push(self.missing(name, &T::expected()));
                T::instead()
            }),
        }
    }

    /// What stands under a name that nobody knows and that is surely meant to be this one. One fault is enough for
    /// the name, and what it says is looked at all the same.
    fn misspelt(&self, name: &str) -> Option<&(At<String>, Node)> {
        let mut unknown =
            self.entries.iter().filter(|(given, _)| !self.names.contains(&given.value.as_str()));
        unknown.find(|(given, _)| nearest(&given.value, self.names.iter().copied()) == Some(name))
    }

    fn missing(&self, name: &str, expected: &str) -> Fault {
        let span = self.entries.first().map_or(self.span, |(first, _)| first.span);
        Fault::error("missing-field", format!("{} has no `{name}`", self.what))
            .at(span)
            .label(format!("expected `{name}` beside this"))
            .help(format!("add `{name}:`, {expected}"))
    }
}

/// The entries of a table, none of them twice.
fn entries<'a>(node: &'a Node, what: &str, faults: &mut Faults) -> Option<&'a [(At<String>, Node)]> {
    let Kind::Table(entries) = &node.kind else {
        let fault = Fault::error("type", format!("{what} must be a table, and this is {}", node.describe()));
        faults.push(fault.at(node.span).label("expected a table, of names with values"));
        return None;
    };
    let mut seen = HashMap::new();
    for (name, _) in entries {
        if let Some(first) = seen.insert(&name.value, name.span) {
            faults.push(
                Fault::error("twice", format!("`{}` is said twice in {what}", name.value))
                    .at(name.span)
                    .label("again")
                    .beside(first, "first here"),
            );
        }
    }
    Some(entries)
}

fn unknown_field(what: &str, name: &At<String>, names: &[&str]) -> Fault {
    let given = name.value.as_str();
    let help = match given {
        "<<" => {
            Some("merging with `<<` is not understood; repeat the fields, or use an alias for a value".into())
        }
        _ => did_you_mean(given, names.iter().copied()),
    };
    Fault::error("unknown-field", format!("unknown field `{given}` in {what}"))
        .at(name.span)
        .label(format!("expected one of: {}", listed(names.iter().copied())))
        .maybe_help(help)
}

/// For [`choice!`].
pub(crate) fn unknown_word(what: &str, given: &Scalar, words: &[&str], span: Span) -> Fault {
    let given = shown(&given.text, &given.variables);
    Fault::error("unknown-word", format!("`{given}` is not {what}"))
        .at(span)
        .label(format!("expected one of: {}", listed(words.iter().copied())))
        .maybe_help(did_you_mean(&given, words.iter().copied()))
}

/// A node is not what it should be.
pub(crate) fn mismatch(node: &Node, expected: &str) -> Fault {
    let fault = Fault::error("type", format!("expected {expected}, found {}", node.describe()))
        .at(node.span)
        .label(format!("expected {expected}"));
    match node.kind {
        Kind::Nothing => fault.help("say something here, or leave the field out"),
        _ => fault,
    }
}

/// The scalar a node must be.
pub(crate) fn scalar<'a, T: Decode>(node: &'a Node, faults: &mut Faults) -> Option<&'a Scalar> {
    let Kind::Scalar(scalar) = &node.kind else {
        faults.push(mismatch(node, &T::expected()));
        return None;
    };
    Some(scalar)
}

/// The text a node must be.
pub(crate) fn text<'a, T: Decode>(node: &'a Node, faults: &mut Faults) -> Option<&'a str> {
    scalar::<T>(node, faults).map(|scalar| scalar.text.as_str())
}

fn wrong<T: Decode>(node: &Node, scalar: &Scalar) -> Fault {
    let expected = T::expected();
    let given = shown(&scalar.text, &scalar.variables);
    Fault::error("value", format!("`{given}` is not {expected}"))
        .at(node.span)
        .label(format!("expected {expected}"))
}

// === texts ===

impl Decode for String {
    fn expected() -> Cow<'static, str> {
        "a text".into()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        text::<Self>(node, faults).map(str::to_owned)
    }
}

/// A text, and what has to be known of it to point into it and to say where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) value: String,
    pub(crate) span: Span,
    pub(crate) variables: Vec<String>,
}

impl Text {
    /// As part of a sentence.
    pub(crate) fn shown(&self) -> String {
        shown(&self.value, &self.variables)
    }
}

impl Decode for Text {
    fn expected() -> Cow<'static, str> {
        String::expected()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        let scalar = scalar::<Self>(node, faults)?;
        let (value, variables) = (scalar.text.clone(), scalar.variables.clone());
        Some(Text { value, span: node.span, variables })
    }
}

/// A text that has to be there; `None` where it is not, which has been said.
#[derive(Clone, Debug)]
pub(crate) struct Needed(pub(crate) Option<Text>);

impl Decode for Needed {
    fn expected() -> Cow<'static, str> {
        Text::expected()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        Text::decode(node, faults).map(|text| Needed(Some(text)))
    }

    fn instead() -> Option<Self> {
        Some(Needed(None))
    }
}

// === numbers, truths, lengths of time ===

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Decode for $type {
            fn expected() -> Cow<'static, str> {
                format!("a whole number from 0 to {}", <$type>::MAX).into()
            }

            fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
                let scalar = scalar::<Self>(node, faults)?;
                let number = scalar.number().and_then(|number| <$type>::try_from(number).ok());
                if number.is_none() {
                    let quoted = scalar.is_quoted && scalar.variables.is_empty();
                    let help = quoted.then(|| "numbers have no quotes".to_owned());
                    faults.push(wrong::<Self>(node, scalar).maybe_help(help));
                }
                number
            }
        }
    )*};
}

numbers!(u8, u32, u64);

impl Scalar {
    fn number(&self) -> Option<u64> {
        let is_text = self.is_quoted && self.variables.is_empty();
        let digits = self.text.starts_with(|c: char| c.is_ascii_digit())
            && self.text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
        if is_text || !digits {
            return None;
        }
        self.text.replace('_', "").parse().ok()
    }
}

impl Decode for bool {
    fn expected() -> Cow<'static, str> {
        "true or false".into()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        let scalar = scalar::<Self>(node, faults)?;
        match scalar.text.as_str() {
            "true" => return Some(true),
            "false" => return Some(false),
            _ => {}
        }
        let help = match scalar.text.to_lowercase().as_str() {
            "yes" | "on" | "true" => Some("write `true`".to_owned()),
            "no" | "off" | "false" => Some("write `false`".to_owned()),
            _ => None,
        };
        faults.push(wrong::<Self>(node, scalar).maybe_help(help));
        None
    }
}

impl Decode for Duration {
    fn expected() -> Cow<'static, str> {
        "a length of time, as in 20ms or 1min 30s".into()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        let scalar = scalar::<Self>(node, faults)?;
        let period = super::limit::period(&scalar.text);
        if period.is_none() {
            let is_bare =
                scalar.variables.is_empty() && super::limit::period(&format!("{}s", scalar.text)).is_some();
            let help =
                is_bare.then(|| format!("add a unit: `{0}ms`, `{0}s` or `{0}min`", scalar.text.trim()));
            faults.push(wrong::<Self>(node, scalar).maybe_help(help));
        }
        period
    }
}

// === what others are made of ===

impl<T: Decode> Decode for At<T> {
    fn expected() -> Cow<'static, str> {
        T::expected()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        T::decode(node, faults).map(|value| At { value, span: node.span })
    }
}

impl<T: Decode> Decode for Option<T> {
    fn expected() -> Cow<'static, str> {
        T::expected()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        T::decode(node, faults).map(Some)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl<T: Decode> Decode for Box<T> {
    fn expected() -> Cow<'static, str> {
        T::expected()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        T::decode(node, faults).map(Box::new)
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn expected() -> Cow<'static, str> {
        format!("a list, each item {}", T::expected()).into()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        let Kind::List(items) = &node.kind else {
            faults.push(mismatch(node, &Self::expected()).help("begin each item with `- `"));
            return None;
        };
        Some(items.iter().filter_map(|item| T::decode(item, faults)).collect())
    }
}

/// One, or a list of them. A list has at least one.
#[derive(Clone, Debug)]
pub(crate) struct OneOrMany<T>(pub(crate) Vec<T>);

impl<T: Decode> Decode for OneOrMany<T> {
    fn expected() -> Cow<'static, str> {
        format!("{}, or a list of such", T::expected()).into()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        match &node.kind {
            Kind::List(items) if items.is_empty() => {
                faults.push(
                    Fault::error("empty", "the list is empty")
                        .at(node.span)
                        .label(format!("expected {}", T::expected()))
                        .help("put something into it, or leave the field out"),
                );
                None
            }
            Kind::List(_) => Vec::decode(node, faults).map(OneOrMany),
            _ => T::decode(node, faults).map(|one| OneOrMany(vec![one])),
        }
    }

    fn instead() -> Option<Self> {
        Some(OneOrMany(Vec::new()))
    }
}

/// A table whose names are the user's own.
#[derive(Clone, Debug)]
pub(crate) struct Entries<T>(pub(crate) Vec<(At<String>, T)>);

impl<T: Decode> Decode for Entries<T> {
    fn expected() -> Cow<'static, str> {
        format!("a table of names, each with {}", T::expected()).into()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        let entries = entries(node, "this table", faults)?;
        let read = |(name, node): &(At<String>, Node)| Some((name.clone(), T::decode(node, faults)?));
        Some(Entries(entries.iter().filter_map(read).collect()))
    }
}

// === the schema ===

macro_rules! schema_as {
    ($type:ty => $generator:ident: $schema:expr) => {
        fn schema_name() -> Cow<'static, str> {
            <$type>::schema_name()
        }

        fn inline_schema() -> bool {
            true
        }

        fn json_schema($generator: &mut SchemaGenerator) -> Schema {
            $schema
        }
    };
}

impl<T: JsonSchema> JsonSchema for At<T> {
    schema_as!(T => generator: generator.subschema_for::<T>());
}

impl<T: JsonSchema> JsonSchema for OneOrMany<T> {
    schema_as!(T => generator: {
        let one = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [one, { "type": "array", "items": one, "minItems": 1 }] })
    });
}

impl<T: JsonSchema> JsonSchema for Entries<T> {
    schema_as!(T => generator: {
        let one = generator.subschema_for::<T>();
        json_schema!({ "type": "object", "additionalProperties": one, "minProperties": 1 })
    });
}

/// A text in the file, but also a number or a truth value that is meant as one.
impl JsonSchema for Text {
    schema_as!(String => _generator: json_schema!({ "type": ["string", "number", "boolean"] }));
}

impl JsonSchema for Needed {
    schema_as!(Text => generator: Text::json_schema(generator));
}

/// A number, or a variable that holds one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number<T>(pub(crate) T);

impl<T: Decode> Decode for Number<T> {
    fn expected() -> Cow<'static, str> {
        T::expected()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        T::decode(node, faults).map(Number)
    }
}

impl<T: JsonSchema> JsonSchema for Number<T> {
    schema_as!(T => generator: {
        let number = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [number, { "type": "string", "pattern": r"\$\{" }] })
    });
}

/// A length of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time(pub(crate) Duration);

impl Decode for Time {
    fn expected() -> Cow<'static, str> {
        Duration::expected()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        Duration::decode(node, faults).map(Time)
    }
}

impl JsonSchema for Time {
    schema_as!(String => _generator: json_schema!({
        "type": "string",
        "pattern": r"^\s*[0-9]|\$\{",
        "examples": ["20ms", "30s", "1min 30s"],
    }));
}
