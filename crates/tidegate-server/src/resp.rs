//! # The Redis protocol
//!
//! Every language has a client for Redis, with pools, time-outs and pipelines that work. So Tidegate speaks its protocol:
//! a client connects as to a Redis, and asks.
//!
//! ```text
//!   bytes ──► parse: where the arguments lie ──► session: who is it, what is asked ──► engine
//!                                                     │
//!   bytes ◄── one buffer ◄── reply: one dialect or the other
//! ```
//!
//! Nothing here reads a socket: a [`Session`] is given bytes and writes bytes, so that a test is a conversation written
//! down. Sockets are next door, in [`serve`](crate::serve).

mod account;
mod call;
mod case;
mod client;
mod handshake;
mod keys;
mod lease;
mod parse;
mod replies;
mod reply;
mod rules;
mod server;
mod session;
mod throttle;
mod transaction;

pub use account::Account;
pub use parse::{Bounds, Malformed, Parsed, Places, Request, parse};
pub use replies::{Later, Replies};
pub use reply::{Dialect, Reply};
pub(crate) use rules::source as source_name;
pub use session::{Ran, Service, Session, Then};

/// The version of Redis that clients are told of: what they do with older ones is not needed, and not tested.
pub(crate) const REDIS_VERSION: &str = "7.2.4";
