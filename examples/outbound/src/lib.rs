//! # A client that keeps to the limits of those it calls
//!
//! A partner lets us send 30 requests a second. The calls of this client leave one after the other at that pace,
//! however many tasks make them, and wait up to ten seconds for it. When the partner asks for more time, with
//! `Retry-After`, all of them wait.

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

/// What the partner allows. A burst of one: the calls are spread evenly.
pub const PARTNER: Quota = Quota::per_second(30).burst(1);

/// A client of hyper's.
pub type Plain = Client<HttpConnector, Empty<Bytes>>;

/// A client without limits.
#[must_use]
pub fn plain() -> Plain {
    Client::builder(TokioExecutor::new()).build_http()
}

/// The client, with this quota for each host.
///
/// # Errors
///
/// If the limits cannot be built.
pub fn client(quota: Quota) -> Result<Outbound<Plain>, Box<dyn Error>> {
    let limits = Limits::over(KeyedLimiter::<str>::new(quota))
        .rule("partner", by::host().or_share())
        .wait_at_most(Duration::from_secs(10))
        .build()?;
    Ok(OutboundLayer::new(limits).layer(plain()))
}
