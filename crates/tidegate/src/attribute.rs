//! # Limits on functions
//!
//! A limit is easiest to see where the work is: on the function that does it. The attribute
//! [`#[rate_limit(…)]`](macro@crate::rate_limit) checks the limit before each call and runs the function only if the
//! call is allowed:
//!
//! ```
//! use tidegate::{attribute::Denied, rate_limit};
//!
//! #[rate_limit("5/s burst 2", key = user)]
//! fn greet(user: &str) -> Result<String, Denied> {
//!     Ok(format!("hello, {user}"))
//! }
//!
//! assert!(greet("alice").is_ok() && greet("alice").is_ok());
//! assert!(greet("bob").is_ok()); // another key, another limit
//! let denied = greet("alice").unwrap_err();
//! assert!(denied.to_string().starts_with("greet is limited to 5/s burst 2: limit of 2 reached; retry after "));
//! ```
//!
//! The code that it adds to the function is short, and everything that code calls is here:
//!
//! ```text
//!   arguments ──► KeyBytes ──► Part ┐
//!                                   ├─► a gate decides ──► Permits: run the function, and hold them until its end
//!   limits ─────► Call ──► Policy ──┘                 └──► Denied: FromDenied, or the function named `otherwise`
//! ```
//!
//! Most programs use only [`Denied`] of these, in the error that their functions return. [`FromDenied`] is for
//! functions that do not return a `Result`. A custom gate supports calls that wait by implementing
//! [`WaitingGate`](crate::WaitingGate) and [`BlockingGate`](crate::BlockingGate). The chapter on the attribute,
//! `docs/attribute.md`, describes its options, and what an annotated function looks like inside.

mod call;
mod denied;
mod key;

pub use call::{Call, Limit, cost, tasks_can_wait};
pub use denied::{Denied, FromDenied};
pub use key::KeyBytes;
