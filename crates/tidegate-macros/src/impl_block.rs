//! # The attribute on an `impl` block
//!
//! On an `impl` block the attribute is a default: it applies as if it were written on each method without the
//! attribute. So each of these methods has its own limit. Functions without `self`, such as `new`, are not
//! limited.

use proc_macro2::TokenStream as Tokens;
use quote::{ToTokens, quote};
use syn::{Attribute, Error, ImplItem, ImplItemFn, ItemImpl, Result, parse_quote};

use crate::item::{arguments_of, is_rate_limit, take_rate_limit};
use crate::limits::Limits;

/// Adds the attribute to every method that has none.
pub(crate) fn expand(arguments: Tokens, mut block: ItemImpl) -> Result<Tokens> {
    let first: Attribute = parse_quote!(#[rate_limit(#arguments)]);
    let attributes: Vec<Attribute> =
        std::iter::once(first).chain(take_rate_limit(&mut block.attrs)).collect();
    // Parsed here as well, so that an error is reported once and not for each method.
    let parsed = attributes.iter().map(arguments_of).collect::<Result<Vec<_>>>()?;
    let Some(limits) = Limits::new(parsed)? else { return Ok(block.into_token_stream()) };

    let tidegate = limits.tidegate.map_or_else(|| quote!(::tidegate), ToTokens::into_token_stream);
    let attributes: Vec<Attribute> =
        attributes.iter().map(|attribute| with_path(attribute, &tidegate)).collect();
    let span = block.impl_token.span;
    let mut methods = methods(&mut block).peekable();
    if methods.peek().is_none() {
        let message =
            "this `impl` block has no method with `self` to limit; put the attribute on a function instead";
        return Err(Error::new(span, message));
    }
    methods.filter(|method| !method.attrs.iter().any(is_rate_limit)).for_each(|method| {
        method.attrs.splice(0..0, attributes.iter().cloned());
    });
    Ok(block.into_token_stream())
}

fn methods(block: &mut ItemImpl) -> impl Iterator<Item = &mut ImplItemFn> {
    block.items.iter_mut().filter_map(|item| match item {
        ImplItem::Fn(function) if function.sig.receiver().is_some() => Some(function),
        _ => None,
    })
}

/// The same attribute, with the path that is known to resolve.
fn with_path(attribute: &Attribute, tidegate: &Tokens) -> Attribute {
    let arguments = attribute.meta.require_list().map(|list| list.tokens.clone()).unwrap_or_default();
    parse_quote!(#[#tidegate::rate_limit(#arguments)])
}
