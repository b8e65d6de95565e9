//! # The attribute on an `impl` block
//!
//! On an `impl` block the attribute is a default: it applies as if it were written on each method without the
//! attribute. So each of these methods has a limit of its own. Functions without `self` are not methods and stay
//! unlimited: `new` is rarely meant.

use proc_macro2::TokenStream as Tokens;
use quote::{ToTokens, quote};
use syn::{Attribute, Error, ImplItem, ImplItemFn, ItemImpl, Result, parse_quote};

use crate::item::{arguments_of, is_ours, take_ours};
use crate::limits::Limits;

/// Adds the attribute to every method that has none.
pub(crate) fn expand(arguments: Tokens, mut group: ItemImpl) -> Result<Tokens> {
    let first: Attribute = parse_quote!(#[rate_limit(#arguments)]);
    let attributes: Vec<Attribute> = std::iter::once(first).chain(take_ours(&mut group.attrs)).collect();
    // Parsed here as well, so that a mistake is reported once and not once for each method.
    let read = attributes.iter().map(arguments_of).collect::<Result<Vec<_>>>()?;
    let Some(limits) = Limits::new(read)? else { return Ok(group.into_token_stream()) };

    let tidegate = limits.tidegate.map_or_else(|| quote!(::tidegate), ToTokens::into_token_stream);
    let attributes: Vec<Attribute> =
        attributes.iter().map(|attribute| with_path(attribute, &tidegate)).collect();
    let span = group.impl_token.span;
    let mut methods = methods(&mut group).peekable();
    if methods.peek().is_none() {
        let why = "no method with `self` is in here to be limited; put the attribute on a function";
        return Err(Error::new(span, why));
    }
    methods.filter(|method| !method.attrs.iter().any(is_ours)).for_each(|method| {
        method.attrs.splice(0..0, attributes.iter().cloned());
    });
    Ok(group.into_token_stream())
}

fn methods(group: &mut ItemImpl) -> impl Iterator<Item = &mut ImplItemFn> {
    group.items.iter_mut().filter_map(|item| match item {
        ImplItem::Fn(function) if function.sig.receiver().is_some() => Some(function),
        _ => None,
    })
}

/// The same attribute, with the path that is known to resolve.
fn with_path(attribute: &Attribute, tidegate: &Tokens) -> Attribute {
    let arguments = attribute.meta.require_list().map(|list| list.tokens.clone()).unwrap_or_default();
    parse_quote!(#[#tidegate::rate_limit(#arguments)])
}
