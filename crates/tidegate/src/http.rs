//! # HTTP limits
//!
//! Limits requests by what they contain (address, header, route, user), and builds the responses to refused requests.
//! The layers of `tidegate::tower` put [`Limits`] in front of services. Servers without tower call them directly.
//!
//! | item | purpose |
//! |---|---|
//! | [`Limits`] | a gate, the rules that a request is checked against, and the responses to refused requests |
//! | [`by`] | what requests can be limited by: address, header, route, user, and tuples of these |
//! | [`KeyPart`], [`RuleKey`] | unambiguous keys, and the fallback for requests without the key |
//! | [`ClientAddress`], [`TrustedProxies`] | the client's address; forwarding headers count only from trusted proxies |
//! | [`proxy_protocol`] | the client's address at the start of a connection, from proxies that forward TCP |
//! | [`Refusal`] | 429 or 503, the retry time, and a short problem description |
//! | [`Fields`] | `RateLimit`, `X-RateLimit-*`, or no fields |
//! | [`retry_after_of`] | reads `Retry-After` and `RateLimit` from the responses of other servers |

mod address;
pub mod by;
mod evaluate;
mod fast_path;
mod fields;
mod forwarded;
mod head;
mod header_buf;
mod invalid;
mod jitter;
mod key;
mod key_buf;
mod limits;
mod negotiate;
mod network;
mod outcome;
pub mod proxy_protocol;
mod refusal;
mod retry_after;
mod route;
mod rule;
mod timer;

pub use address::{AddressSource, Client, ClientAddress, Forwarding, Peer};
#[cfg(feature = "tower")]
pub(crate) use fast_path::FastPath;
pub use fields::{Fields, ReportedQuota, ReportedRule, Unit, is_valid_name, partition_key};
pub use head::Head;
pub use invalid::InvalidLimits;
pub use key::{InvalidKey, KeyOutcome, KeyPart, MissingPart, OrElse, RuleKey, TotalKey, key_of};
#[doc(hidden)]
pub use key_buf::InlineKey;
pub use key_buf::{KeyBuf, KeyValue};
pub use limits::{Limits, LimitsBuilder};
pub use network::{InvalidProxies, Network, TrustedProxies};
pub use outcome::{Evaluation, LimitOutcome, Passed, PendingOutcome, QuotaReport};
pub use refusal::{Refusal, RefusalReason};
pub use retry_after::retry_after_of;
pub use rule::{Expose, RuleStats};
#[cfg(feature = "tower")]
pub(crate) use timer::{Sleeping, Timer};
