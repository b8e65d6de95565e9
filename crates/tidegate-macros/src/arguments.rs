//! # Arguments of the attribute
//!
//! String literals and `name = value`, in any order, each name once. This module checks that each value has the type
//! that its name requires. `limits` checks the arguments together.

use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Expr, Ident, LitInt, LitStr, Path, Result, Token};

use crate::suggest::nearest;

/// The arguments of one attribute.
#[derive(Default)]
pub(crate) struct Arguments {
    pub(crate) texts: Vec<LitStr>,
    pub(crate) algorithm: Option<Named<Ident>>,
    pub(crate) limit: Option<Named<LitInt>>,
    pub(crate) per: Option<Named<LitStr>>,
    pub(crate) burst: Option<Named<LitInt>>,
    pub(crate) cells: Option<Named<LitInt>>,
    pub(crate) queue: Option<Named<LitInt>>,
    pub(crate) concurrency: Option<Named<LitInt>>,
    pub(crate) key: Option<Named<Expr>>,
    pub(crate) cost: Option<Named<Expr>>,
    pub(crate) wait: Option<Named<LitStr>>,
    pub(crate) otherwise: Option<Named<Path>>,
    pub(crate) limiter: Option<Named<Expr>>,
    pub(crate) rule: Option<Named<Expr>>,
    pub(crate) unlimited: Option<Ident>,
    pub(crate) tidegate: Option<Named<Path>>,
}

/// An argument with a name.
pub(crate) struct Named<T> {
    pub(crate) name: Ident,
    pub(crate) value: T,
}

/// The name of every argument, with an example.
const ARGUMENTS: [(&str, &str); 15] = [
    ("algorithm", "algorithm = sliding_window"),
    ("limit", "limit = 100"),
    ("per", "per = \"1m\""),
    ("burst", "burst = 20"),
    ("cells", "cells = 10"),
    ("queue", "queue = 5"),
    ("concurrency", "concurrency = 10"),
    ("key", "key = user_id"),
    ("cost", "cost = 5"),
    ("wait", "wait = \"200ms\""),
    ("otherwise", "otherwise = fallback_function"),
    ("limiter", "limiter = LIMITER"),
    ("rule", "rule = 1"),
    ("unlimited", "unlimited"),
    ("crate", "crate = path::to::tidegate"),
];

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut arguments = Arguments::default();
        while !input.is_empty() {
            arguments.parse_one(input)?;
            if !input.is_empty() {
                input
                    .parse::<Token![,]>()
                    .map_err(|error| with_message(&error, "expected a comma between arguments"))?;
            }
        }
        Ok(arguments)
    }
}

impl Arguments {
    fn parse_one(&mut self, input: ParseStream<'_>) -> Result<()> {
        if input.peek(LitStr) {
            self.texts.push(input.parse()?);
            return Ok(());
        }
        let name = Ident::parse_any(input).map_err(|error| {
            with_message(&error, "expected a limit such as \"5/s burst 10\", or `name = value`")
        })?;
        let Some((_, usage)) = ARGUMENTS.iter().find(|(known, _)| name == known) else {
            return Err(unknown(&name));
        };
        let argument = Argument { name, usage, input };
        match argument.name.to_string().as_str() {
            "algorithm" => argument.parse_value(&mut self.algorithm),
            "limit" => argument.parse_value(&mut self.limit),
            "per" => argument.parse_value(&mut self.per),
            "burst" => argument.parse_value(&mut self.burst),
            "cells" => argument.parse_value(&mut self.cells),
            "queue" => argument.parse_value(&mut self.queue),
            "concurrency" => argument.parse_value(&mut self.concurrency),
            "key" => argument.parse_value(&mut self.key),
            "cost" => argument.parse_value(&mut self.cost),
            "wait" => argument.parse_value(&mut self.wait),
            "otherwise" => argument.parse_value(&mut self.otherwise),
            "limiter" => argument.parse_value(&mut self.limiter),
            "rule" => argument.parse_value(&mut self.rule),
            "crate" => argument.parse_value(&mut self.tidegate),
            _ => argument.parse_flag(&mut self.unlimited),
        }
    }

    /// The first argument that contradicts `unlimited`, for an error message.
    pub(crate) fn first_limiting_argument(&self) -> Option<String> {
        let text = self.texts.first().map(|text| format!("\"{}\"", text.value()));
        let names = [
            name_of(&self.concurrency),
            name_of(&self.key),
            name_of(&self.cost),
            name_of(&self.wait),
            name_of(&self.otherwise),
            name_of(&self.limiter),
            name_of(&self.rule),
        ];
        text.or_else(|| self.parts().chain(names.into_iter().flatten()).next().map(Ident::to_string))
    }

    /// The names of the arguments present that describe a limit.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Ident> {
        let numbers = [&self.limit, &self.burst, &self.cells, &self.queue];
        let numbers = numbers.into_iter().flatten().map(|named| &named.name);
        let algorithm = self.algorithm.iter().map(|named| &named.name);
        algorithm.chain(numbers).chain(self.per.iter().map(|named| &named.name))
    }
}

/// An argument after its name has been parsed.
struct Argument<'a> {
    name: Ident,
    usage: &'static str,
    input: ParseStream<'a>,
}

fn name_of<T>(named: &Option<Named<T>>) -> Option<&Ident> {
    named.as_ref().map(|named| &named.name)
}

impl Argument<'_> {
    /// Parses an argument without a value.
    fn parse_flag(self, into: &mut Option<Ident>) -> Result<()> {
        match into.replace(self.name) {
            None => Ok(()),
            Some(name) => Err(duplicate(&name)),
        }
    }

    fn parse_value<T: Parse>(self, into: &mut Option<Named<T>>) -> Result<()> {
        let Argument { name, usage, input } = self;
        if into.is_some() {
            return Err(duplicate(&name));
        }
        if !input.peek(Token![=]) {
            return Err(Error::new(name.span(), format!("`{name}` needs a value, as in `{usage}`")));
        }
        input.parse::<Token![=]>()?;
        let value = input.parse::<T>().map_err(|error| {
            with_message(&error, &format!("invalid value of `{name}`: {error}; write it as in `{usage}`"))
        })?;
        *into = Some(Named { name, value });
        Ok(())
    }
}

fn duplicate(name: &Ident) -> Error {
    Error::new(name.span(), format!("duplicate argument `{name}`; remove one of them"))
}

/// An error at the same span with another message.
fn with_message(error: &Error, message: &str) -> Error {
    Error::new(error.span(), message)
}

fn unknown(name: &Ident) -> Error {
    let known: Vec<&str> = ARGUMENTS.iter().map(|(known, _)| *known).collect();
    let remedy = match nearest(&name.to_string(), &known) {
        Some(suggestion) => format!("did you mean `{suggestion}`?"),
        None => format!("expected one of {}", known.join(", ")),
    };
    Error::new(name.span(), format!("unknown argument `{name}`; {remedy}"))
}
