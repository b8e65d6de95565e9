//! # The annotated item
//!
//! A function, with or without `self`, or an `impl` block. The body of a function stays as it was written. It is only
//! searched for a `return`.

use proc_macro2::{Span, TokenStream as Tokens, TokenTree};
use quote::ToTokens;
use syn::parse::discouraged::Speculative;
use syn::parse::{Parse, ParseStream, Parser};
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, GenericArgument, Ident, ItemImpl, Meta, Path, PathArguments, Result, ReturnType,
    Signature, Token, Type, TypeParamBound, Visibility, braced, token,
};

use crate::arguments::Arguments;

pub(crate) enum Item {
    Function(Function),
    ImplBlock(ItemImpl),
}

pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) default: Option<Ident>,
    pub(crate) signature: Signature,
    pub(crate) brace: token::Brace,
    pub(crate) inner_attributes: Vec<Attribute>,
    pub(crate) body: Tokens,
}

/// The relevant kinds of return type.
pub(crate) enum Returns {
    Nothing,
    /// A value, also that of an `async` function.
    Value,
    /// `impl Future`.
    Future,
    /// A boxed future, as `async_trait` generates them.
    BoxedFuture,
    /// Any other `impl Trait`.
    OpaqueType,
}

impl Parse for Item {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let fork = input.fork();
        if let Ok(block) = fork.parse::<ItemImpl>() {
            input.advance_to(&fork);
            return Ok(Item::ImplBlock(block));
        }
        input.parse().map(Item::Function)
    }
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attributes = Attribute::parse_outer(input)?;
        let visibility = input.parse()?;
        let default = if is_default(input) { Some(input.parse()?) } else { None };
        let start = input.span();
        let signature: Signature = input.parse().map_err(|_| Error::new(start, NOT_A_FUNCTION))?;
        if input.peek(Token![;]) {
            let message =
                "a function without a body cannot be limited; put the attribute on its implementation";
            return Err(Error::new(signature.ident.span(), message));
        }
        let content;
        let brace = braced!(content in input);
        let inner_attributes = Attribute::parse_inner(&content)?;
        let body = content.parse()?;
        Ok(Function { attributes, visibility, default, signature, brace, inner_attributes, body })
    }
}

const NOT_A_FUNCTION: &str =
    "`#[rate_limit]` applies only to a function, a method, or an `impl` block; move it to one of these";

fn is_default(input: ParseStream<'_>) -> bool {
    let fork = input.fork();
    fork.parse::<Ident>().is_ok_and(|word| word == "default")
}

impl Function {
    pub(crate) fn returns(&self) -> Returns {
        match &self.signature.output {
            ReturnType::Default => Returns::Nothing,
            ReturnType::Type(_, _) if self.signature.asyncness.is_some() => self.returns_value(),
            ReturnType::Type(_, ty) => match &**ty {
                Type::ImplTrait(opaque) if opaque.bounds.iter().any(is_future) => Returns::Future,
                Type::Path(path) if is_boxed_future(&path.path) => Returns::BoxedFuture,
                _ => self.returns_value(),
            },
        }
    }

    fn returns_value(&self) -> Returns {
        match &self.signature.output {
            ReturnType::Type(_, ty) if matches!(**ty, Type::ImplTrait(_)) => Returns::OpaqueType,
            ReturnType::Type(_, ty) if matches!(&**ty, Type::Tuple(unit) if unit.elems.is_empty()) => {
                Returns::Nothing
            }
            _ => Returns::Value,
        }
    }

    /// Whether the body contains a `return` outside of its `async` blocks.
    pub(crate) fn returns_early(&self) -> bool {
        has_return(self.body.clone())
    }

    /// The span of the return type.
    pub(crate) fn output_span(&self) -> Span {
        match &self.signature.output {
            ReturnType::Default => self.signature.ident.span(),
            ReturnType::Type(_, ty) => ty.span(),
        }
    }
}

fn has_return(body: Tokens) -> bool {
    let mut after_async = false;
    body.into_iter().any(|token| match token {
        TokenTree::Ident(word) => {
            after_async = word == "async" || (after_async && word == "move");
            word == "return"
        }
        TokenTree::Group(group) => !std::mem::take(&mut after_async) && has_return(group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

fn is_future(bound: &TypeParamBound) -> bool {
    matches!(bound, TypeParamBound::Trait(bound) if ends_with(&bound.path, &["Future"]))
}

/// `Pin<Box<dyn Future…>>`, or its aliases in the futures crate.
fn is_boxed_future(path: &Path) -> bool {
    if ends_with(path, &["BoxFuture", "LocalBoxFuture"]) {
        return true;
    }
    let Some(Type::Path(boxed)) = argument_of(path, "Pin") else { return false };
    match argument_of(&boxed.path, "Box") {
        Some(Type::TraitObject(object)) => object.bounds.iter().any(is_future),
        _ => false,
    }
}

/// The type in `Name<type>`.
fn argument_of<'a>(path: &'a Path, name: &str) -> Option<&'a Type> {
    let last = path.segments.last().filter(|segment| segment.ident == name)?;
    match &last.arguments {
        PathArguments::AngleBracketed(arguments) => match arguments.args.first()? {
            GenericArgument::Type(ty) => Some(ty),
            _ => None,
        },
        _ => None,
    }
}

fn ends_with(path: &Path, names: &[&str]) -> bool {
    path.segments.last().is_some_and(|segment| names.iter().any(|name| segment.ident == name))
}

// === `rate_limit` attributes ===

/// Whether the attribute is `#[rate_limit(…)]`, by any path.
///
/// A renamed import is not recognized.
pub(crate) fn is_rate_limit(attribute: &Attribute) -> bool {
    ends_with(attribute.path(), &["rate_limit"])
}

/// Removes and returns the `rate_limit` attributes.
pub(crate) fn take_rate_limit(attributes: &mut Vec<Attribute>) -> Vec<Attribute> {
    attributes.extract_if(.., |attribute| is_rate_limit(attribute)).collect()
}

pub(crate) fn arguments_of(attribute: &Attribute) -> Result<Arguments> {
    match &attribute.meta {
        Meta::List(list) => list.parse_args(),
        Meta::Path(_) => Ok(Arguments::default()),
        Meta::NameValue(pair) => {
            Err(Error::new(pair.eq_token.span, "expected arguments in parentheses; write `#[rate_limit(…)]`"))
        }
    }
}

/// The item without `rate_limit` attributes, so that each error is reported only once.
pub(crate) fn without_rate_limit_attributes(item: Tokens) -> Tokens {
    let strip = |input: ParseStream<'_>| {
        let mut attributes = Attribute::parse_outer(input)?;
        take_rate_limit(&mut attributes);
        let rest: Tokens = input.parse()?;
        let mut stripped = Tokens::new();
        attributes.iter().for_each(|attribute| attribute.to_tokens(&mut stripped));
        stripped.extend(rest);
        Ok(stripped)
    };
    strip.parse2(item.clone()).unwrap_or(item)
}
