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
//! | [`asked_to_wait`] | what others ask of us: `Retry-After` and `RateLimit`, read |

mod address;
mod answer;
mod ask;
pub mod by;
mod fields;
mod forwarded;
mod head;
mod invalid;
mod key;
mod limits;
mod line;
mod network;
pub mod proxy_protocol;
mod retry;
mod route;
mod rule;
mod ruling;
mod text;
mod timer;
mod told;
mod wanted;
mod way;

pub use address::{Client, ClientAddress, Forwarding, Found, Peer};
pub use answer::{Refusal, Why};
pub use fields::{Fields, ShownRule, ShownState, Unit, is_name, partition_key};
pub use head::Head;
pub use invalid::InvalidLimits;
pub use key::{AlwaysThere, Chosen, InvalidKey, KeyPart, MissingPart, RuleKey, Written, key_of};
pub use limits::{Limits, LimitsBuilder};
pub use network::{InvalidProxies, Network, TrustedProxies};
pub use rule::{Expose, RuleStats};
pub use ruling::{Asked, Decisions, Later, Passed, Ruling};
#[doc(hidden)]
pub use text::Brief;
pub use text::{KeyText, KeyValue};
#[cfg(feature = "tower")]
pub(crate) use timer::{Sleeping, Timer};
pub use told::asked_to_wait;
#[cfg(feature = "tower")]
pub(crate) use way::Way;
