//! # Expansion
//!
//! The generated function is the original with one statement before its body. The statement queries the limiter, and
//! holds the permits until the end of the call or returns. It contains the function's name and limits, which create the
//! limiter unless one is given. Nothing in it is visible from the body.

use proc_macro2::{Ident, Literal, Span, TokenStream as Tokens};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Error, Expr, Result, ReturnType, parse_quote, parse2};

use crate::arguments::Arguments;
use crate::fallback;
use crate::impl_block;
use crate::item::{Function, Item, Returns, arguments_of, take_rate_limit};
use crate::limits::{Limit, Limiter, Limits, RuleQuery, RuleRef, Terms};

pub(crate) fn expand(arguments: Tokens, item: Tokens) -> Result<Tokens> {
    match parse2(item)? {
        Item::ImplBlock(block) => impl_block::expand(arguments, block),
        Item::Function(function) => expand_function(parse2(arguments)?, function),
    }
}

fn expand_function(arguments: Arguments, mut function: Function) -> Result<Tokens> {
    let mut attributes = vec![arguments];
    for attribute in take_rate_limit(&mut function.attributes) {
        attributes.push(arguments_of(&attribute)?);
    }
    match Limits::new(attributes)? {
        None => Ok(function.with_body(None)),
        Some(limits) => {
            check(&function, &limits)?;
            with_limits(function, &limits)
        }
    }
}

/// Checks that this function can have these limits.
fn check(function: &Function, limits: &Limits) -> Result<()> {
    if let Some(constant) = &function.signature.constness {
        let message = "a `const fn` cannot be limited, because the compiler may run it; remove `const`";
        return Err(Error::new(constant.span, message));
    }
    if limits.otherwise.is_some() {
        return Ok(());
    }
    let message = match function.returns() {
        Returns::Nothing => "this function returns nothing, so it cannot report a denied call",
        Returns::OpaqueType => "this function returns an opaque type, which cannot report a denied call",
        Returns::Value | Returns::Future | Returns::BoxedFuture => return Ok(()),
    };
    let remedy = "return a `Result` with an error that implements `From<tidegate::attribute::CallDenied>`, \
                  or add a fallback function with the same arguments: `otherwise = …`";
    Err(Error::new(function.output_span(), format!("{message}; {remedy}")))
}

fn with_limits(mut function: Function, limits: &Limits) -> Result<Tokens> {
    let is_async = function.signature.asyncness.is_some()
        || matches!(function.returns(), Returns::Future | Returns::BoxedFuture);
    let refused = refused(&mut function, limits, is_async)?;
    let permits = local("_permits");
    let entry = entry(&function, limits, is_async, &refused);
    let body = body(&mut function, &quote!(let #permits = #entry;));
    Ok(function.with_body(Some(body)))
}

/// The entry and the body. If the body creates a future, both run when that is polled.
fn body(function: &mut Function, entry: &Tokens) -> Tokens {
    let future = local("future");
    match (function.returns(), &function.signature.output) {
        (Returns::Future, _) => {
            let inner_future = inner_future(function, &quote!());
            let body = quote!(async move { #entry let #future = #inner_future; #future.await });
            // The function now looks like an `async fn`. Its author has chosen not to write one, so the lint is
            // allowed.
            function.attributes.push(parse_quote!(#[allow(clippy::manual_async_fn)]));
            body
        }
        (Returns::BoxedFuture, ReturnType::Type(arrow, ty)) => {
            let inner_future = inner_future(function, &quote!(#arrow #ty));
            quote!(::std::boxed::Box::pin(async move { #entry let #future: #ty = #inner_future; #future.await }))
        }
        _ => {
            let body = &function.body;
            quote!(#entry #body)
        }
    }
}

/// The future that the body creates.
///
/// A `return` in the body returns that future, so a body with a `return` becomes the body of a closure.
fn inner_future(function: &Function, output: &Tokens) -> Tokens {
    let body = &function.body;
    if function.returns_early() {
        quote!({ #[allow(clippy::redundant_closure_call)] (move || #output { #body })() })
    } else {
        quote!({ #body })
    }
}

/// The match arm of a refused call.
fn refused(function: &mut Function, limits: &Limits, is_async: bool) -> Result<Tokens> {
    let Some(otherwise) = &limits.otherwise else {
        let (denied, span) = (local("denied"), function.output_span());
        let tidegate = tidegate(limits, span);
        let refused = quote_spanned!(span=> return #tidegate::attribute::FromDenied::from_denied(#denied));
        return Ok(quote!(::std::result::Result::Err(#denied) => #refused,));
    };
    let arguments = fallback::arguments(&mut function.signature)?;
    let call = quote_spanned!(otherwise.span()=> #otherwise(#(#arguments),*));
    let awaited = is_async.then(|| quote!(.await));
    Ok(quote!(::std::result::Result::Err(_) => return #call #awaited,))
}

/// The block that queries the limiter, and yields the permits or returns.
fn entry(function: &Function, limits: &Limits, is_async: bool, refused: &Tokens) -> Tokens {
    let tidegate = tidegate(limits, Span::call_site());
    let name = function.signature.ident.unraw().to_string();
    let limiter_call = limiter_call(limits, is_async, &tidegate);
    let terms = terms(&limits.terms, &tidegate);
    let parts = limits.queries.iter().map(|query| part(query, &limits.terms[query.terms], &tidegate));
    let (limit_list, items) = match &limits.limiter {
        Limiter::Own(own) => (limit_list(own, &tidegate), timer_check(limits, is_async, &tidegate)),
        Limiter::Given(_) => (quote!(), import(limits, is_async, &tidegate)),
    };
    let [request, admitted, permits] = ["request", "admitted", "permits"].map(local);
    quote!({
        static __FUNCTION: #tidegate::attribute::LimitedFunction = #tidegate::attribute::LimitedFunction::new(#name, &[#limit_list]);
        #items
        #terms
        let #request = [#(#parts),*];
        let #admitted = __FUNCTION.#limiter_call;
        match #admitted {
            ::std::result::Result::Ok(#permits) => #permits,
            #refused
        }
    })
}

fn limit_list(limits: &[Limit], tidegate: &Tokens) -> Tokens {
    let limit_list = limits.iter().map(|limit| match limit {
        Limit::Rate { text, .. } => quote!(#tidegate::attribute::CallLimit::Rate(#text)),
        Limit::Concurrency(limit) => {
            let limit = Literal::u32_unsuffixed(*limit);
            quote!(#tidegate::attribute::CallLimit::Concurrency(#limit))
        }
    });
    quote!(#(#limit_list),*)
}

/// A compile-time check for the timer that a task needs to wait in the function's queue.
fn timer_check(limits: &Limits, is_async: bool, tidegate: &Tokens) -> Tokens {
    let may_queue = is_async && limits.wait.is_none() && limits.may_queue();
    if may_queue { quote!(const _: () = #tidegate::attribute::require_async_timer();) } else { quote!() }
}

/// Imports the trait of a given limiter.
///
/// The limiter may be behind any pointer, and only method syntax dereferences it.
fn import(limits: &Limits, is_async: bool, tidegate: &Tokens) -> Tokens {
    match (limits.wait, is_async) {
        (Some(_), true) => quote!(use #tidegate::gate::WaitingGate as _;),
        (Some(_), false) => quote!(use #tidegate::gate::BlockingGate as _;),
        (None, _) => quote!(use #tidegate::gate::Gate as _;),
    }
}

/// The call of the limiter, and the method that interprets its answer.
fn limiter_call(limits: &Limits, is_async: bool, tidegate: &Tokens) -> Tokens {
    match (limits.wait.map(duration), is_async) {
        (Some(within), true) => {
            let wait =
                method_call(limits, &quote!(#tidegate::gate::WaitingGate), "wait_within", Some(within));
            quote!(check_waited(#wait.await))
        }
        (Some(within), false) => {
            let block =
                method_call(limits, &quote!(#tidegate::gate::BlockingGate), "block_within", Some(within));
            quote!(check_waited(#block))
        }
        (None, _) => {
            let decide = method_call(limits, &quote!(#tidegate::gate::Gate), "decide", None);
            if is_async && limits.may_queue() {
                quote!(check_async(#decide).await)
            } else {
                quote!(check(#decide))
            }
        }
    }
}

/// A method call on the limiter. Errors about a given limiter point to its expression.
fn method_call(limits: &Limits, gate: &Tokens, method: &str, within: Option<Tokens>) -> Tokens {
    let (request, within) = (local("request"), within.into_iter());
    match &limits.limiter {
        Limiter::Own(_) => {
            let method = Ident::new(method, Span::call_site());
            quote!(#gate::#method(__FUNCTION.limiter(), &#request #(, #within)*))
        }
        Limiter::Given(expression) => {
            let span = expression.span();
            let method = Ident::new(method, span);
            let limiter = match expression {
                Expr::Path(_) | Expr::Field(_) | Expr::Call(_) | Expr::MethodCall(_) => {
                    expression.to_token_stream()
                }
                other => quote_spanned!(span=> (#other)),
            };
            quote_spanned!(span=> #limiter.#method(&#request #(, #within)*))
        }
    }
}

fn duration(nanos: u64) -> Tokens {
    match (nanos / 1_000_000, nanos % 1_000_000) {
        (millis, 0) => {
            let millis = Literal::u64_unsuffixed(millis);
            quote!(::std::time::Duration::from_millis(#millis))
        }
        _ => {
            let nanos = Literal::u64_unsuffixed(nanos);
            quote!(::std::time::Duration::from_nanos(#nanos))
        }
    }
}

/// Keys and costs, each evaluated once and before any await, so that borrows end there.
fn terms(terms: &[Terms], tidegate: &Tokens) -> Tokens {
    let terms = terms.iter().enumerate().map(|(index, terms)| {
        let key = terms.key.as_ref().map(|key| {
            let (name, value) = (numbered("key", index), key_bytes(key, tidegate));
            quote!(let #name = #value;)
        });
        let cost = terms.cost.as_ref().map(|cost| {
            let name = numbered("cost", index);
            let value = quote_spanned!(cost.span()=> #tidegate::attribute::cost(#cost));
            quote!(let #name = #value;)
        });
        quote!(#key #cost)
    });
    quote!(#(#terms)*)
}

fn key_bytes(key: &Expr, tidegate: &Tokens) -> Tokens {
    let bytes = quote!(#tidegate::attribute::KeyBytes);
    match key {
        Expr::Tuple(tuple) => {
            let parts = tuple.elems.iter().map(|part| quote_spanned!(part.span()=> .and(&#part)));
            quote!(#bytes::empty() #(#parts)*)
        }
        key => quote_spanned!(key.span()=> #bytes::of(&#key)),
    }
}

/// The part of the request for one rule.
fn part(query: &RuleQuery, terms: &Terms, tidegate: &Tokens) -> Tokens {
    let rule = match &query.rule {
        RuleRef::Numbered(number) => {
            let number = Literal::u16_unsuffixed(*number);
            quote!(#tidegate::gate::RuleId(#number))
        }
        RuleRef::Named(expression) => expression.to_token_stream(),
    };
    let key = terms.key.as_ref().map(|_| {
        let key = numbered("key", query.terms);
        quote!(.key(&#key))
    });
    let cost = terms.cost.as_ref().filter(|_| query.with_cost).map(|_| {
        let cost = numbered("cost", query.terms);
        quote!(.cost(#cost))
    });
    quote!(#tidegate::gate::Part::of(#rule) #key #cost)
}

/// The variable name for the attribute with this index.
fn numbered(name: &str, index: usize) -> Ident {
    if index == 0 { local(name) } else { local(&format!("{name}_{index}")) }
}

/// A hygienic name, invisible to code outside the macro.
fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// The path of the crate. Compile errors in the code that follows it point to `span`.
fn tidegate(limits: &Limits, span: Span) -> Tokens {
    limits.tidegate.as_ref().map_or_else(|| quote_spanned!(span=> ::tidegate), ToTokens::to_token_stream)
}

impl Function {
    /// The function with another body, or with its own if `None`.
    fn with_body(&self, body: Option<Tokens>) -> Tokens {
        let Function { attributes, visibility, default, signature, brace, inner_attributes, .. } = self;
        let body = body.unwrap_or_else(|| self.body.clone());
        let mut tokens = quote!(#(#attributes)* #visibility #default #signature);
        brace.surround(&mut tokens, |tokens| {
            inner_attributes.iter().for_each(|attribute| attribute.to_tokens(tokens));
            tokens.extend(body);
        });
        tokens
    }
}
