//! # Limits as tower layers
//!
//! One line in front of a router, a service or a client limits it. The layers work with every
//! [`tower_service::Service`] of HTTP: axum, tonic, hyper.
//!
//! | layer | position | excess requests are |
//! |---|---|---|
//! | [`RateLimitLayer`] | in front of a service | refused, delayed, or sent to a [fallback](RateLimitLayer::fallback) |
//! | [`ConcurrencyLayer`] | the same, with permits held until the response's body has ended | the same |
//! | [`OutboundLayer`] | in front of a client that calls other servers | delayed; an error if that cannot suffice |
//!
//! Limits are evaluated in `call`, never in `poll_ready`: a service that was only made ready has used no quota. All
//! clones share the limits. A request is counted before any point at which its client could cancel it.
//!
//! | module | contents |
//! |---|---|
//! | `layer`, `service` | the layers, and their services |
//! | `future`, `on_response` | from an outcome to a response, and what is left to do then |
//! | `body` | bodies that hold permits |
//! | `fallback` | another service for refused requests |
//! | `outbound`, `host_backoff` | calling other servers, and waiting as long as they ask |

mod body;
mod fallback;
mod future;
mod host_backoff;
mod layer;
mod on_response;
mod outbound;
mod service;

pub use body::PermitBody;
pub use fallback::{Fallback, FallbackService, NoFallback};
pub use future::{ConcurrencyFuture, RateLimitFuture};
pub use layer::{ConcurrencyLayer, RateLimitLayer};
pub use outbound::{Outbound, OutboundError, OutboundFuture, OutboundLayer};
pub use service::{Concurrency, RateLimit};
