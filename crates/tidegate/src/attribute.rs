//! # Limits on functions
//!
//! The attribute [`#[rate_limit(…)]`](macro@crate::rate_limit) puts a limit on a function. It checks the limit before
//! each call, and runs the function only if the call is allowed:
//!
//! ```
//! use tidegate::{attribute::CallDenied, rate_limit};
//!
//! #[rate_limit("5/s burst 2", key = user)]
//! fn greet(user: &str) -> Result<String, CallDenied> {
//!     Ok(format!("hello, {user}"))
//! }
//!
//! assert!(greet("alice").is_ok() && greet("alice").is_ok());
//! assert!(greet("bob").is_ok()); // another key, another limit
//! let denied = greet("alice").unwrap_err();
//! assert!(denied.to_string().starts_with("greet is limited to 5/s burst 2: limit of 2 reached; retry after "));
//! ```
//!
//! The code that the attribute adds to a function is short. This module has everything that it calls:
//!
//! ```text
//!   arguments ──► KeyBytes ──► Part ┐
//!                                   ├─► a gate decides ──► Permits: run the function, and hold them until its end
//!   limits ─► LimitedFunction ─► Policy ┘             └──► CallDenied: FromDenied, or the fallback function `otherwise`
//! ```
//!
//! Most programs use only [`CallDenied`] of these, in the error that their functions return. [`FromDenied`] is for
//! functions that do not return a `Result`. A custom gate supports calls that wait by implementing
//! [`WaitingGate`](crate::gate::WaitingGate) and [`BlockingGate`](crate::gate::BlockingGate). The chapter on the attribute,
//! `docs/attribute.md`, describes its options, and what an annotated function looks like inside.

mod denied;
mod function;
mod key;

pub use denied::{CallDenied, FromDenied};
pub use function::{CallLimit, LimitedFunction, cost, require_async_timer};
pub use key::KeyBytes;
