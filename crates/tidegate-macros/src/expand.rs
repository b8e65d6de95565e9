//! # What comes of it
//!
//! The function as it was, with one statement before its body: ask, and hold the permits until the end; or return. In it
//! are the function's name and limits as a constant, and a limiter made of them, unless one is given. Nothing of it can
//! be seen from the body.

use proc_macro2::{Ident, Span, TokenStream as Tokens};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, Expr, Result, parse2};

use crate::arguments::Arguments;
use crate::fallback;
use crate::group;
use crate::item::{Function, Item, Returns, arguments_of, take_ours};
use crate::limits::{Ask, Limit, Limiter, Limits, RuleOf};

pub(crate) fn expand(arguments: Tokens, item: Tokens) -> Result<Tokens> {
    match parse2(item)? {
        Item::Group(group) => group::expand(arguments, group),
        Item::Function(function) => on_function(parse2(arguments)?, function),
    }
}

fn on_function(arguments: Arguments, mut function: Function) -> Result<Tokens> {
    let mut attributes = vec![arguments];
    for attribute in take_ours(&mut function.attributes) {
        attributes.push(arguments_of(&attribute)?);
    }
    match Limits::new(attributes)? {
        None => Ok(function.with_body(None)),
        Some(limits) => {
            check(&function, &limits)?;
            limited(function, &limits)
        }
    }
}

/// Whether such a function can be limited like this.
fn check(function: &Function, limits: &Limits) -> Result<()> {
    if let Some(constant) = &function.signature.constness {
        let why = "a `const fn` is run by the compiler, which has no clock; make it a `fn` to limit it";
        return Err(Error::new(constant.span, why));
    }
    if limits.otherwise.is_some() {
        return Ok(());
    }
    let why = match function.returns() {
        Returns::Nothing => "nothing is returned that could say that a call was refused",
        Returns::Hidden => "what is returned is hidden, so it cannot say that a call was refused",
        Returns::Value | Returns::Future | Returns::BoxedFuture => return Ok(()),
    };
    let remedy = "return a `Result` with an error that is `From<tidegate::attribute::Denied>`, \
                  or name a function that is called instead, with the same arguments: `otherwise = …`";
    Err(Error::new(function.output_span(), format!("{why}; {remedy}")))
}

fn limited(mut function: Function, limits: &Limits) -> Result<Tokens> {
    let is_async = function.signature.asyncness.is_some()
        || matches!(function.returns(), Returns::Future | Returns::BoxedFuture);
    let refused = refused(&mut function, limits, is_async)?;
    let [permits, future] = ["_permits", "future"].map(local);
    let entry = entry(&function, limits, is_async, &refused);
    let entry = quote!(let #permits = #entry;);
    let body = &function.body;
    let body = match function.returns() {
        Returns::Future => quote!(async move { #entry let #future = { #body }; #future.await }),
        Returns::BoxedFuture => {
            let ty = match &function.signature.output {
                syn::ReturnType::Type(_, ty) => ty.to_token_stream(),
                syn::ReturnType::Default => quote!(_),
            };
            quote!(::std::boxed::Box::pin(async move { #entry let #future: #ty = { #body }; #future.await }))
        }
        Returns::Nothing | Returns::Value | Returns::Hidden => quote!(#entry #body),
    };
    Ok(function.with_body(Some(body)))
}

/// What a refused call does.
fn refused(function: &mut Function, limits: &Limits, is_async: bool) -> Result<Tokens> {
    let tidegate = tidegate(limits);
    let Some(otherwise) = &limits.otherwise else {
        let from = quote_spanned!(function.output_span()=> #tidegate::attribute::FromDenied::from_denied);
        let denied = local("denied");
        return Ok(quote!(Err(#denied) => return #from(#denied),));
    };
    let arguments = fallback::arguments(&mut function.signature)?;
    let call = quote_spanned!(otherwise.span()=> #otherwise(#(#arguments),*));
    let awaited = is_async.then(|| quote!(.await));
    Ok(quote!(Err(_) => return #call #awaited,))
}

/// The block that gives leave to go ahead.
fn entry(function: &Function, limits: &Limits, is_async: bool, refused: &Tokens) -> Tokens {
    let tidegate = tidegate(limits);
    let name = function.signature.ident.to_string();
    let (own, limiter) = limiter(limits, &tidegate);
    let (imported, asked) = asked(limits, is_async, &tidegate, &limiter);
    let keys = keys(&limits.asks, &tidegate);
    let parts = limits.asks.iter().enumerate().map(|(index, ask)| part(index, ask, &tidegate));
    let texts = match &limits.limiter {
        Limiter::Own(own) => own.iter().map(|limit| limit.tokens(&tidegate)).collect(),
        Limiter::Given(_) => Vec::new(),
    };
    let [request, admitted, permits] = ["request", "admitted", "permits"].map(local);
    quote!({
        use #imported as _;
        const __CALL: #tidegate::attribute::Call = #tidegate::attribute::Call::of(#name, &[#(#texts),*]);
        #own
        #keys
        let #request = [#(#parts),*];
        let #admitted = __CALL.#asked;
        match #admitted {
            Ok(#permits) => #permits,
            #refused
        }
    })
}

/// Who is asked, made here if it is the function's own.
fn limiter(limits: &Limits, tidegate: &Tokens) -> (Option<Tokens>, Tokens) {
    match &limits.limiter {
        Limiter::Own(_) => {
            let own = quote! {
                static __LIMITER: ::std::sync::LazyLock<#tidegate::Policy> =
                    ::std::sync::LazyLock::new(|| __CALL.policy());
            };
            (Some(own), quote!(__LIMITER))
        }
        Limiter::Given(Expr::Path(path)) => (None, path.to_token_stream()),
        Limiter::Given(expression) => (None, quote_spanned!(expression.span()=> (#expression))),
    }
}

/// The trait by which it is asked, and how.
fn asked(limits: &Limits, is_async: bool, tidegate: &Tokens, limiter: &Tokens) -> (Tokens, Tokens) {
    let (within, request) = (limits.wait.map(duration), local("request"));
    match (within, is_async) {
        (Some(within), true) => (
            quote!(#tidegate::attribute::Waits),
            quote!(waited(#limiter.wait_within(&#request, #within).await)),
        ),
        (Some(within), false) => {
            (quote!(#tidegate::attribute::Blocks), quote!(waited(#limiter.block_within(&#request, #within))))
        }
        (None, true) if limits.may_queue() => {
            (quote!(#tidegate::Gate), quote!(check_later(#limiter.decide(&#request)).await))
        }
        (None, _) => (quote!(#tidegate::Gate), quote!(check(#limiter.decide(&#request)))),
    }
}

fn duration(nanos: u64) -> Tokens {
    match nanos {
        whole if whole.is_multiple_of(1_000_000) => {
            let millis = whole / 1_000_000;
            quote!(::std::time::Duration::from_millis(#millis))
        }
        nanos => quote!(::std::time::Duration::from_nanos(#nanos)),
    }
}

/// The keys, made before anything is awaited: what they are made of need not live longer.
fn keys(asks: &[Ask], tidegate: &Tokens) -> Tokens {
    let keys = asks.iter().enumerate().filter_map(|(index, ask)| {
        let (name, key) = (key_name(index), ask.key.as_ref()?);
        let bytes = quote!(#tidegate::attribute::KeyBytes);
        let made = match key {
            Expr::Tuple(tuple) => {
                let parts = tuple.elems.iter().map(|part| quote_spanned!(part.span()=> .and(&#part)));
                quote!(#bytes::joined() #(#parts)*)
            }
            key => quote_spanned!(key.span()=> #bytes::of(&#key)),
        };
        Some(quote!(let #name = #made;))
    });
    quote!(#(#keys)*)
}

fn key_name(index: usize) -> Ident {
    local(&format!("key_{index}"))
}

/// A name that nothing written by others can see.
fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

fn part(index: usize, ask: &Ask, tidegate: &Tokens) -> Tokens {
    let rule = match &ask.rule {
        RuleOf::Numbered(number) => quote!(#tidegate::RuleId(#number)),
        RuleOf::Named(expression) => expression.to_token_stream(),
    };
    let key = ask.key.as_ref().map(|_| {
        let name = key_name(index);
        quote!(.key(&#name))
    });
    let cost = ask.cost.as_ref().map(|cost| {
        let cost = quote_spanned!(cost.span()=> #tidegate::attribute::cost(#cost));
        quote!(.cost(#cost))
    });
    quote!(#tidegate::Part::of(#rule) #key #cost)
}

fn tidegate(limits: &Limits) -> Tokens {
    limits.tidegate.as_ref().map_or_else(|| quote!(::tidegate), ToTokens::to_token_stream)
}

impl Limit {
    fn tokens(&self, tidegate: &Tokens) -> Tokens {
        match self {
            Limit::Rate { text, .. } => quote!(#tidegate::attribute::Limit::Rate(#text)),
            Limit::AtOnce(limit) => quote!(#tidegate::attribute::Limit::AtOnce(#limit)),
        }
    }
}

impl Function {
    /// The function with another body, or with its own.
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
