//! # A client that keeps to the rate limits of a server
//!
//! A partner allows 30 requests per second. This client sends its requests evenly at that rate, whatever the number of
//! tasks; a request waits at most ten seconds for its turn. When a response of the partner has `Retry-After`, all
//! requests wait that long.

use std::error::Error;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tidegate::http::{KeyPart, Limits, by};
use tidegate::tower::{Outbound, OutboundLayer};
use tidegate::{KeyedLimiter, Quota};
use tower_layer::Layer;

/// The rate that the partner allows. The burst is 1, so requests are spread evenly.
pub const PARTNER: Quota = Quota::per_second(30).burst(1);

/// The client of hyper.
pub type Plain = Client<HttpConnector, Empty<Bytes>>;

/// Returns a client without limits.
#[must_use]
pub fn plain() -> Plain {
    Client::builder(TokioExecutor::new()).build_http()
}

/// Returns a client with this quota for each host.
///
/// # Errors
///
/// If the limits cannot be built.
pub fn client(quota: Quota) -> Result<Outbound<Plain>, Box<dyn Error>> {
    let limits = Limits::builder(KeyedLimiter::<str>::new(quota))
        .rule("partner", by::host().or_share())
        .wait_at_most(Duration::from_secs(10))
        .build()?;
    Ok(OutboundLayer::new(limits).layer(plain()))
}
