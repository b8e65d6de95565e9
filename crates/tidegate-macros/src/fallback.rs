//! # Arguments for the fallback function
//!
//! The function named by `otherwise` is called with the arguments of the refused call. An argument that a pattern has
//! destructured, such as `Path(id)`, is reassembled. An argument without a name gets one.

use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, FieldPat, FnArg, Pat, Result, Signature, parse_quote_spanned};

/// The arguments for a call with the values given to `signature`.
///
/// Arguments without a name get one.
pub(crate) fn arguments(signature: &mut Signature) -> Result<Vec<Tokens>> {
    let inputs = signature.inputs.iter_mut().enumerate();
    inputs.map(|(index, input)| argument(index, input)).collect()
}

fn argument(index: usize, input: &mut FnArg) -> Result<Tokens> {
    match input {
        FnArg::Receiver(receiver) => {
            let this = &receiver.self_token;
            Ok(quote!(#this))
        }
        FnArg::Typed(typed) => {
            if let Pat::Wild(wildcard) = &*typed.pat {
                let name = format_ident!("_argument_{index}", span = wildcard.span());
                *typed.pat = parse_quote_spanned!(wildcard.span()=> #name);
            }
            reassemble(&typed.pat)
        }
    }
}

/// Reassembles the value that a pattern has destructured.
fn reassemble(pattern: &Pat) -> Result<Tokens> {
    match pattern {
        Pat::Ident(name) if name.by_ref.is_none() && name.subpat.is_none() => {
            let name = &name.ident;
            Ok(quote!(#name))
        }
        Pat::Paren(inner) => reassemble(&inner.pat),
        Pat::Tuple(tuple) => {
            let values = reassemble_all(&tuple.elems)?;
            Ok(quote!((#(#values,)*)))
        }
        Pat::TupleStruct(tuple) => {
            let (path, values) = (&tuple.path, reassemble_all(&tuple.elems)?);
            Ok(quote!(#path(#(#values),*)))
        }
        Pat::Struct(pattern) if pattern.rest.is_none() => {
            let path = &pattern.path;
            let fields = pattern.fields.iter().map(field).collect::<Result<Vec<_>>>()?;
            Ok(quote!(#path { #(#fields),* }))
        }
        other => Err(Error::new(
            other.span(),
            "`otherwise` needs the whole argument, which cannot be rebuilt from this pattern; \
             name the argument here, and destructure it in the body",
        )),
    }
}

fn reassemble_all<P>(patterns: &Punctuated<Pat, P>) -> Result<Vec<Tokens>> {
    patterns.iter().map(reassemble).collect()
}

fn field(field: &FieldPat) -> Result<Tokens> {
    let (name, value) = (&field.member, reassemble(&field.pat)?);
    Ok(quote!(#name: #value))
}
