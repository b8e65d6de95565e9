//! # Limits as layers
//!
//! One line in front of a router, a service or a client, and it is limited. The layers work with whatever is a
//! [`tower_service::Service`] of HTTP: axum, tonic, hyper.
//!
//! | layer | where | what becomes of the excess |
//! |---|---|---|
//! | [`RateLimitLayer`] | in front of what we serve | refused, delayed, or sent [elsewhere](RateLimitLayer::fallback) |
//! | [`ConcurrencyLayer`] | the same, where permits are held until the response's body has ended | the same |
//! | [`OutboundLayer`] | in front of those we call | waits; an error if that cannot suffice |
//!
//! Limits are decided on in `call`, never in `poll_ready`: a service that was only made ready has used nothing. They
//! are shared by every clone. A request is counted before anything that its client could cancel.
//!
//! | room | what is in it |
//! |---|---|
//! | `layer`, `service` | the layers, and the services they make |
//! | `future`, `on_response` | from a ruling to a response, and what is still to be done then |
//! | `body` | permits that last as long as a body |
//! | `fallback` | another service for those who are refused |
//! | `outbound`, `hold` | calling others, and obeying them |

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
