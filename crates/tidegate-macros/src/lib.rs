//! # The attribute `#[rate_limit(…)]`
//!
//! Use it through the `tidegate` crate, with the feature `macros`. The modules, from the outside in:
//!
//! ```text
//!   #[rate_limit("5/s burst 10", key = user)]  fn send(user: &str) …
//!                  │                                  │
//!              arguments ── parsed arguments      item ── the annotated item: a function, or an impl block
//!                  │                                  │
//!               limits ─── validated limits; rule_text: parses a limit as at run time
//!                  └───────────────┬──────────────────┘
//!                               expand ── the function, with a few lines before its body
//! ```
//!
//! Every invalid use is a compile error at the span of the mistake, with a remedy. The macro never panics.

mod arguments;
mod expand;
mod fallback;
mod impl_block;
mod item;
mod limits;
mod rule_text;
mod suggest;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;

/// Limits the rate of calls to a function, or the number of concurrent calls.
///
/// ```text
/// #[rate_limit("5/s burst 10", key = user_id)]
/// #[rate_limit(algorithm = sliding_window, limit = 100, per = "1m", key = (ip, path))]
/// #[rate_limit("10/s", "5000/day", concurrency = 10)]
/// ```
///
/// Applies to a function, a method, or an `impl` block, where it is the default of all methods. A refused call does
/// not run the function: it returns `Err`, with any error type that is `From<tidegate::attribute::CallDenied>`.
///
/// | argument | meaning |
/// |---|---|
/// | `"5/s burst 10"` | a limit as text: a quota, or a rule such as `"sliding_log 5/min"`; several are all or nothing |
/// | `algorithm`, `limit`, `per`, `burst`, `cells`, `queue` | a limit given by arguments; `token_bucket` is the default |
/// | `concurrency = 10` | at most this many concurrent calls |
/// | `key = EXPR`, `key = (A, B)` | the key of the limit, any hashable value; without it all calls share one limit |
/// | `cost = EXPR` | the cost of a call; the default is 1 |
/// | `wait = "200ms"` | wait up to this long instead of refusing the call immediately |
/// | `otherwise = path` | the fallback: a function that is called instead, with the same arguments |
/// | `limiter = EXPR`, `rule = 1` | a limiter to use instead, any `Gate`, and which of its rules |
/// | `unlimited` | on a method: exempt from the default of the `impl` block |
/// | `crate = path` | the path of `tidegate`, if not `::tidegate` |
///
/// Several of these attributes on one function are also decided together, all or nothing, each with its own key and
/// cost.
#[proc_macro_attribute]
pub fn rate_limit(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(arguments.into(), item.into()).into()
}

/// Expands the attribute. On an error, keeps the item, so that its uses do not fail, too.
fn expand(arguments: Tokens, item: Tokens) -> Tokens {
    match expand::expand(arguments, item.clone()) {
        Ok(expanded) => expanded,
        Err(errors) => {
            let errors = errors.into_compile_error();
            let item = item::without_rate_limit_attributes(item);
            quote::quote!(#errors #item)
        }
    }
}
