//! # Limits as tower layers
//!
//! A layer limits the router, service or client that it is put in front of. The layers work with every HTTP
//! [`tower_service::Service`]: axum, tonic, hyper.
//!
//! | layer | position | excess requests are |
//! |---|---|---|
//! | [`RateLimitLayer`] | in front of a service | refused, delayed, or sent to a [fallback](RateLimitLayer::fallback) |
//! | [`ConcurrencyLayer`] | the same, with permits held until the response's body has ended | the same |
//! | [`OutboundLayer`] | in front of a client that calls other servers | delayed, or fail with an error if the wait would be too long |
//!
//! Limits are evaluated in `call`, never in `poll_ready`: a service that is polled ready but not called uses no quota. All
//! clones share the limits. A request is counted before its client can cancel it.
//!
//! | module | contents |
//! |---|---|
//! | `layer`, `service` | the layers, and their services |
//! | `future`, `on_response` | from an outcome to a response, and the work to do on that response |
//! | `body` | bodies that hold permits |
//! | `fallback` | another service for refused requests |
//! | `outbound`, `host_backoff` | calling other servers, and backing off when they request it |

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
