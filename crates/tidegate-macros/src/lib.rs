//! # The attribute `#[rate_limit(…)]`
//!
//! Use it through the `tidegate` crate, with the feature `macros`. How it is made, from the outside in:
//!
//! ```text
//!   #[rate_limit("5/s burst 10", key = user)]  fn send(user: &str) …
//!                  │                                  │
//!              arguments ── what is written       item ── what it is written on: a function, or an impl block
//!                  │                                  │
//!               limits ─── what is meant; text: a limit, read by the parser that reads it at run time
//!                  └───────────────┬──────────────────┘
//!                               expand ── the function, with a few lines before its body
//! ```
//!
//! Every mistake is an error with a sentence that names the remedy, at the place where it was made; nothing panics.

mod arguments;
mod expand;
mod fallback;
mod group;
mod item;
mod limits;
mod suggest;
#[cfg(test)]
mod tests;
mod text;

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;

/// Limits how often, or by how many at once, a function is called.
///
/// ```text
/// #[rate_limit("5/s burst 10", key = user_id)]
/// #[rate_limit(algorithm = sliding_window, limit = 100, per = "1m", key = (ip, path))]
/// #[rate_limit("10/s", "5000/day", concurrency = 10)]
/// ```
///
/// On a function, a method, or an `impl` block, for all whose methods it is then the default. A call that may not pass
/// does not run the function: it returns `Err`, of any error that is `From<tidegate::attribute::Denied>`.
///
/// | argument | what it says |
/// |---|---|
/// | `"5/s burst 10"` | a limit, as text: a quota, or any rule such as `"sliding_log 5/min"`; several are all or nothing |
/// | `algorithm`, `limit`, `per`, `burst`, `cells`, `queue` | the same, in parts; `algorithm` is `token_bucket` unless said |
/// | `concurrency = 10` | at most so many calls at once |
/// | `key = EXPR`, `key = (A, B)` | whose limit it is: anything that can be hashed; without it, everybody's |
/// | `cost = EXPR` | what a call takes, 1 unless said |
/// | `wait = "200ms"` | wait that long at most, instead of being refused at once |
/// | `otherwise = path` | what to call instead, with the same arguments |
/// | `limiter = EXPR`, `rule = 1` | a limiter of your own, any `Gate`, and which of its rules |
/// | `unlimited` | on a method: the default of the `impl` block is not for it |
/// | `crate = path` | where `tidegate` is, if not at `::tidegate` |
///
/// Several of the attribute on one function are all or nothing, too, each with a key and cost of its own.
#[proc_macro_attribute]
pub fn rate_limit(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(arguments.into(), item.into()).into()
}

/// The item with its limits; or as it was and the mistakes, so that nothing else is complained about.
fn expand(arguments: Tokens, item: Tokens) -> Tokens {
    match expand::expand(arguments, item.clone()) {
        Ok(expanded) => expanded,
        Err(mistakes) => {
            let mistakes = mistakes.into_compile_error();
            let item = item::without_attributes_of_ours(item);
            quote::quote!(#mistakes #item)
        }
    }
}
