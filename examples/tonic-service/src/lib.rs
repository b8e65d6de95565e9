//! # A gRPC service with a limit for each caller
//!
//! Callers identify themselves in the metadata `x-caller`, and each has its own limit. A refused call gets the status
//! `RESOURCE_EXHAUSTED` and the number of milliseconds after which to retry.
//!
//! The code in `greeter` is usually generated. It is written by hand here, so that the example needs no protobuf
//! compiler.

mod greeter;

use std::error::Error;

use http_body_util::Full;
use tidegate::http::{KeyPart, Limits, by};
use tidegate::tower::RateLimitLayer;
use tidegate::{KeyedLimiter, Quota};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::transport::Server;

pub use greeter::{Greeter, GreeterClient, Greeting, Name};

/// Serves on this listener, with this quota for each caller, until the future is dropped.
///
/// # Errors
///
/// If the limits cannot be built, or the listener fails.
pub async fn serve(listener: TcpListener, quota: Quota) -> Result<(), Box<dyn Error + Send + Sync>> {
    let limits = Limits::single(KeyedLimiter::<str>::new(quota), by::header("x-caller").or_refuse())?;
    let layer = RateLimitLayer::with_body(limits, |bytes| Body::new(Full::from(bytes)));
    let server = Server::builder().layer(layer).add_service(Greeter);
    server.serve_with_incoming(TcpListenerStream::new(listener)).await?;
    Ok(())
}
