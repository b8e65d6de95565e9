//! Tests of the expansion, and that no input causes a panic.

use proc_macro2::{Delimiter, Group, Ident, Literal, Punct, Spacing, Span, TokenStream as Tokens, TokenTree};
use quote::quote;

use crate::expand;

/// Formats the expansion like handwritten code.
fn pretty(expanded: Tokens) -> String {
    let file = syn::parse2(expanded).expect("the expansion is valid Rust");
    prettyplease::unparse(&file)
}

/// The Rust code block after this marker in `docs/attribute.md`.
fn documented(marker: &str) -> String {
    let book = include_str!("../../../docs/attribute.md").replace("\r\n", "\n");
    let (_, after) = book.split_once(&format!("<!-- {marker} -->\n\n```rust,ignore\n")).expect("has marker");
    after.split_once("```").expect("the block ends").0.to_owned()
}

#[test]
fn the_documented_expansion_is_current() {
    let arguments = quote!("5/s burst 10", key = user_id);
    let item = quote! {
        async fn send(user_id: UserId, mail: Mail) -> Result<(), MailError> {
            deliver(mail).await
        }
    };
    assert_eq!(pretty(expand(arguments, item)), documented("expanded"));
}

#[test]
fn the_documented_expansion_of_more_arguments_is_current() {
    let arguments = quote!("100/s", concurrency = 10, wait = "200ms", key = (ip, path), otherwise = cached);
    let item = quote! {
        fn get(ip: IpAddr, path: &str) -> Page {
            render(path)
        }
    };
    assert_eq!(pretty(expand(arguments, item)), documented("expanded, all of it"));
}

#[test]
fn an_impl_block_gives_its_attribute_to_methods_without_one() {
    let item = quote! {
        impl Shop {
            fn new() -> Self { Shop }
            fn buy(&self) -> Result<(), CallDenied> { Ok(()) }
            #[rate_limit("2/s")]
            fn sell(&self) -> Result<(), CallDenied> { Ok(()) }
        }
    };
    let expected = quote! {
        impl Shop {
            fn new() -> Self { Shop }
            #[::tidegate::rate_limit("1/s", key = self.name)]
            fn buy(&self) -> Result<(), CallDenied> { Ok(()) }
            #[rate_limit("2/s")]
            fn sell(&self) -> Result<(), CallDenied> { Ok(()) }
        }
    };
    assert_eq!(pretty(expand(quote!("1/s", key = self.name), item)), pretty(expected));
}

#[test]
fn the_crate_argument_changes_the_path_of_tidegate() {
    let item = quote!(
        fn f() -> Result<(), E> {
            Ok(())
        }
    );
    let expanded = expand(quote!("1/s", crate = my::limits), item).to_string();
    assert!(expanded.contains("my :: limits :: gate :: Gate"), "{expanded}");
    assert!(!expanded.contains(":: tidegate"), "{expanded}");
}

#[test]
fn other_attributes_and_the_signature_of_a_function_are_kept() {
    let item = quote!(
        /// What it does.
        #[cfg(feature = "x")]
        #[rate_limit("2/s")]
        #[must_use = "why"]
        pub(crate) unsafe extern "C" fn f<'a, T: Copy, const N: usize>(
            #[allow(unused)] a: &'a [T; N],
        ) -> Result<&'a T, E>
        where
            T: Send,
        {
            #![allow(x)]
            body
        }
    );
    let expanded = expand(quote!("1/s"), item).to_string();
    let before = quote!(
        /// What it does.
        #[cfg(feature = "x")]
        #[must_use = "why"]
        pub(crate) unsafe extern "C" fn f<'a, T: Copy, const N: usize>(
            #[allow(unused)] a: &'a [T; N],
        ) -> Result<&'a T, E>
        where
            T: Send,
    );
    assert!(expanded.starts_with(&before.to_string()), "{expanded}");
    assert!(
        expanded[before.to_string().len()..].starts_with(" { # ! [allow (x)] let _permits ="),
        "{expanded}"
    );
    assert!(expanded.ends_with("; body }"), "{expanded}");
}

#[test]
fn an_expansion_with_errors_keeps_the_function() {
    let item = quote!(
        #[rate_limit(nonsense)]
        #[inline]
        fn f() -> Result<(), E> {
            body
        }
    );
    let expanded = expand(quote!("1/s"), item).to_string();
    assert!(expanded.contains("unknown argument `nonsense`"), "{expanded}");
    assert!(expanded.ends_with("# [inline] fn f () -> Result < () , E > { body }"), "{expanded}");
}

// === No input causes a panic ===

/// A pseudo-random generator with a fixed sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).expect("fits a usize")
    }

    fn one_of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }
}

const WORDS: [&str; 27] = [
    "algorithm",
    "limit",
    "per",
    "burst",
    "cells",
    "queue",
    "concurrency",
    "key",
    "cost",
    "wait",
    "otherwise",
    "limiter",
    "rule",
    "unlimited",
    "crate",
    "self",
    "sliding_window",
    "leaky_queue",
    "nonsense",
    "fn",
    "impl",
    "async",
    "const",
    "pub",
    "default",
    "mut",
    "dyn",
];
const TEXTS: [&str; 14] = [
    "5/s",
    "1m",
    "0/s",
    "",
    "5/s burst 0",
    "leaky_queue 5/s queue 1",
    "at character 7: ",
    "µ",
    "200ms",
    "0s",
    "sliding_window 1/s cells 4000000000",
    "18446744073709551615/ns burst 18446744073709551615",
    "1 per 9999999999w",
    "sliding_log 16385/s",
];
const NUMBERS: [&str; 9] = [
    "0",
    "1",
    "100",
    "-1",
    "4294967296",
    "18446744073709551616",
    "1u8",
    "340282366920938463463374607431768211456",
    "0x1_f",
];

fn tree(random: &mut Random, depth: usize) -> TokenTree {
    match random.below(if depth == 0 { 5 } else { 7 }) {
        0 | 1 => Ident::new(random.one_of(&WORDS), Span::call_site()).into(),
        2 => Literal::string(random.one_of(&TEXTS)).into(),
        3 => random.one_of(&NUMBERS).parse::<Literal>().expect("a literal").into(),
        4 | 5 => Punct::new(b"=,=,.:#&<>;|!'"[random.below(13)].into(), Spacing::Alone).into(),
        _ => {
            let delimiter = [Delimiter::Parenthesis, Delimiter::Brace, Delimiter::Bracket, Delimiter::None]
                [random.below(4)];
            Group::new(delimiter, trees(random, depth - 1)).into()
        }
    }
}

fn trees(random: &mut Random, depth: usize) -> Tokens {
    (0..random.below(8)).map(|_| tree(random, depth)).collect()
}

/// An argument that is often valid.
fn argument(random: &mut Random) -> Tokens {
    let valid = [
        quote!("5/s burst 10"),
        quote!("sliding_log 5/min"),
        quote!(concurrency = 3),
        quote!(key = (a, b.c())),
        quote!(cost = 1),
        quote!(wait = "1us"),
        quote!(otherwise = Self::other),
        quote!(limiter = self.gate),
        quote!(algorithm = sliding_window),
        quote!(limit = 5),
        quote!(per = "1m"),
    ];
    let name = Ident::new(random.one_of(&WORDS[..15]), Span::call_site());
    let value = tree(random, 2);
    match random.below(8) {
        0 => quote!(#value),
        1 => quote!(#name),
        2 | 3 => quote!(#name = #value),
        _ => valid[random.below(valid.len())].clone(),
    }
}

fn item(random: &mut Random) -> Tokens {
    let items = [
        quote!(
            fn f() -> Result<(), E> {
                body
            }
        ),
        quote!(
            async fn f(&self, (a, _): (u8, u8), P { x, .. }: P) {}
        ),
        quote!(
            pub const fn f<T>(_: T) -> impl Future<Output = T> {
                #![allow(x)]
            }
        ),
        quote!(
            #[rate_limit(unlimited)]
            fn f() -> Pin<Box<dyn Future<Output = ()>>> {}
        ),
        quote!(
            #[rate_limit]
            impl<T> A for B<T> {
                fn f(self: Box<Self>);
                const X: u8 = 1;
            }
        ),
        quote!(#[rate_limit = 1] default unsafe extern "C" fn f(a: u8, ...) -> Pin<Box<()>> {}),
        quote!(
            trait T {
                fn f();
            }
        ),
    ];
    match random.below(16) {
        known @ 0..7 => items[known].clone(),
        7 | 8 => trees(random, 3),
        _ => items[0].clone(),
    }
}

#[test]
fn arbitrary_tokens_do_not_panic() {
    let mut random = Random(0x7469_6465_6761_7465);
    let mut valid = 0;
    for _ in 0..20_000 {
        let arguments = if random.below(4) == 0 {
            trees(&mut random, 3)
        } else {
            let arguments = (0..1 + random.below(3)).map(|_| argument(&mut random)).collect::<Vec<_>>();
            quote!(#(#arguments),*)
        };
        let item = item(&mut random);
        let expanded = expand(arguments, item).to_string();
        valid += usize::from(!expanded.contains("compile_error"));
    }
    assert!(valid > 500, "only {valid} inputs were valid: too few to test the expansion");
}
