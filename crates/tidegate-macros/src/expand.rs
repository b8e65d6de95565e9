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
    let Some(otherwise) = &limits.otherwise else {
        let (denied, span) = (local("denied"), function.output_span());
        let tidegate = tidegate(limits, span);
        let refused = quote_spanned!(span=> return #tidegate::attribute::FromDenied::from_denied(#denied));
        return Ok(quote!(Err(#denied) => #refused,));
    };
    let arguments = fallback::arguments(&mut function.signature)?;
    let call = quote_spanned!(otherwise.span()=> #otherwise(#(#arguments),*));
    let awaited = is_async.then(|| quote!(.await));
    Ok(quote!(Err(_) => return #call #awaited,))
}

/// The block that gives leave to go ahead.
fn entry(function: &Function, limits: &Limits, is_async: bool, refused: &Tokens) -> Tokens {
    let tidegate = tidegate(limits, Span::call_site());
    let name = function.signature.ident.to_string();
    let asked = asked(limits, is_async, &tidegate);
    let keys = keys(&limits.asks, &tidegate);
    let parts = limits.asks.iter().enumerate().map(|(index, ask)| part(index, ask, &tidegate));
    let (texts, items) = match &limits.limiter {
        Limiter::Own(own) => (texts(own, &tidegate), own_items(limits, is_async, &tidegate)),
        Limiter::Given(_) => (quote!(), import(limits, is_async, &tidegate)),
    };
    let [request, admitted, permits] = ["request", "admitted", "permits"].map(local);
    quote!({
        const __CALL: #tidegate::attribute::Call = #tidegate::attribute::Call::of(#name, &[#texts]);
        #items
        #keys
        let #request = [#(#parts),*];
        let #admitted = __CALL.#asked;
        match #admitted {
            Ok(#permits) => #permits,
            #refused
        }
    })
}

fn texts(limits: &[Limit], tidegate: &Tokens) -> Tokens {
    let texts = limits.iter().map(|limit| match limit {
        Limit::Rate { text, .. } => quote!(#tidegate::attribute::Limit::Rate(#text)),
        Limit::AtOnce(limit) => quote!(#tidegate::attribute::Limit::AtOnce(#limit)),
    });
    quote!(#(#texts),*)
}

/// The function's own limiter. A task in a queue needs a timer, and without one the compiler says so.
fn own_items(limits: &Limits, is_async: bool, tidegate: &Tokens) -> Tokens {
    let queues = is_async && limits.wait.is_none() && limits.may_queue();
    let timers = queues.then(|| quote!(const _: () = #tidegate::attribute::tasks_can_wait();));
    quote! {
        static __LIMITER: ::std::sync::LazyLock<#tidegate::Policy> =
            ::std::sync::LazyLock::new(|| __CALL.policy());
        #timers
    }
}

/// A limiter that is given may be behind any pointer, which only a method sees through: so its trait is imported.
fn import(limits: &Limits, is_async: bool, tidegate: &Tokens) -> Tokens {
    match (limits.wait, is_async) {
        (Some(_), true) => quote!(use #tidegate::attribute::Waits as _;),
        (Some(_), false) => quote!(use #tidegate::attribute::Blocks as _;),
        (None, _) => quote!(use #tidegate::Gate as _;),
    }
}

/// How the limiter is asked, and who makes sense of the answer.
fn asked(limits: &Limits, is_async: bool, tidegate: &Tokens) -> Tokens {
    match (limits.wait.map(duration), is_async) {
        (Some(within), true) => {
            let wait = verb(limits, &quote!(#tidegate::attribute::Waits), "wait_within", Some(within));
            quote!(waited(#wait.await))
        }
        (Some(within), false) => {
            let block = verb(limits, &quote!(#tidegate::attribute::Blocks), "block_within", Some(within));
            quote!(waited(#block))
        }
        (None, _) => {
            let decide = verb(limits, &quote!(#tidegate::Gate), "decide", None);
            if is_async && limits.may_queue() {
                quote!(check_later(#decide).await)
            } else {
                quote!(check(#decide))
            }
        }
    }
}

/// A verb of a limiter. What goes wrong with one that is given is said where it is given.
fn verb(limits: &Limits, of: &Tokens, verb: &str, within: Option<Tokens>) -> Tokens {
    let (request, within) = (local("request"), within.into_iter());
    match &limits.limiter {
        Limiter::Own(_) => {
            let verb = Ident::new(verb, Span::call_site());
            quote!(#of::#verb(&*__LIMITER, &#request #(, #within)*))
        }
        Limiter::Given(expression) => {
            let span = expression.span();
            let verb = Ident::new(verb, span);
            let limiter = match expression {
                Expr::Path(_) | Expr::Field(_) | Expr::Call(_) | Expr::MethodCall(_) => {
                    expression.to_token_stream()
                }
                other => quote_spanned!(span=> (#other)),
            };
            quote_spanned!(span=> #limiter.#verb(&#request #(, #within)*))
        }
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

/// The crate. What goes wrong with what follows is said at `span`.
fn tidegate(limits: &Limits, span: Span) -> Tokens {
    limits.tidegate.as_ref().map_or_else(|| quote_spanned!(span=> ::tidegate), ToTokens::to_token_stream)
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
