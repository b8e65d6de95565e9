//! # HTTP limits
//!
//! Everything about limits that is specific to HTTP: how a request is mapped to keys, and what its client is sent. The
//! layers of `tidegate::tower` put limits in front of services; servers without tower can use the pieces directly.
//!
//! | item | purpose |
//! |---|---|
//! | [`Limits`] | a gate, the rules that requests must pass, and the response to refused requests |
//! | [`by`] | what requests can be limited by: address, header, route, user, and tuples of these |
//! | [`KeyPart`], [`RuleKey`] | unambiguous keys, and the fallback for requests that lack a part |
//! | [`ClientAddress`], [`TrustedProxies`] | the client's address; forwarding headers count only from trusted proxies |
//! | [`proxy_protocol`] | the client's address ahead of the connection, from proxies that only forward bytes |
//! | [`Refusal`] | 429 or 503, the retry time, and a short problem description |
//! | [`Fields`] | `RateLimit`, `X-RateLimit-*`, or no fields |
//! | [`retry_after_of`] | reads `Retry-After` and `RateLimit` from the responses of other servers |

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
