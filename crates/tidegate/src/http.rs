//! # Limits for HTTP
//!
//! Everything about limits that only HTTP knows: whose request it is, and what clients are told. The layers of
//! `tidegate::tower` put it in front of services; whoever serves requests otherwise can use the pieces.
//!
//! | room | what is in it |
//! |---|---|
//! | [`Limits`] | a gate, the rules that requests have to pass, and what becomes of those that may not |
//! | [`by`] | what requests can be limited by: address, header, route, user, and tuples of these |
//! | [`KeyPart`], [`RuleKey`] | keys that cannot be confused, and the choice for those who lack one |
//! | [`ClientAddress`], [`TrustedProxies`] | the client's address, whatever the headers say |
//! | [`proxy_protocol`] | the same, told ahead of the connection by proxies that only pass on bytes |
//! | [`Refusal`] | 429 or 503, when to come back, a few words about it |
//! | [`Fields`] | `RateLimit`, `X-RateLimit-*`, or nothing |
//! | [`retry_after_of`] | what others ask of us: `Retry-After` and `RateLimit`, read |

mod address;
mod answer;
pub mod by;
mod evaluate;
mod fast_path;
mod fields;
mod forwarded;
mod head;
mod header_buf;
mod invalid;
mod key;
mod limits;
mod negotiate;
mod network;
mod outcome;
pub mod proxy_protocol;
mod retry;
mod retry_after;
mod route;
mod rule;
mod text;
mod timer;

pub use address::{Client, ClientAddress, Forwarding, Found, Peer};
pub use answer::{Refusal, Why};
#[cfg(feature = "tower")]
pub(crate) use fast_path::FastPath;
pub use fields::{Fields, ShownRule, ShownState, Unit, is_name, partition_key};
pub use head::Head;
pub use invalid::InvalidLimits;
pub use key::{InvalidKey, KeyPart, MissingPart, OrElse, RuleKey, TotalKey, Written, key_of};
pub use limits::{Limits, LimitsBuilder};
pub use network::{InvalidProxies, Network, TrustedProxies};
pub use outcome::{Decisions, Evaluation, LimitOutcome, Passed, PendingOutcome};
pub use retry_after::retry_after_of;
pub use rule::{Expose, RuleStats};
#[doc(hidden)]
pub use text::InlineKey;
pub use text::{KeyText, KeyValue};
#[cfg(feature = "tower")]
pub(crate) use timer::{Sleeping, Timer};
