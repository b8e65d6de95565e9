//! # A service of gRPC with a limit for each caller
//!
//! Callers say who they are in `x-caller`, and each may greet so often. Who is refused gets `RESOURCE_EXHAUSTED`, and
//! in how many milliseconds to try again.
//!
//! The service is written by hand, so that the example needs no compiler of protocols: what is in `greeter` is usually
//! generated.

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

/// Serves on this listener, with this quota for each caller, until it is dropped.
///
/// # Errors
///
/// If the limits cannot be built, or the listener fails.
pub async fn serve(listener: TcpListener, quota: Quota) -> Result<(), Box<dyn Error + Send + Sync>> {
    let limits = Limits::on(KeyedLimiter::<str>::new(quota), by::header("x-caller").or_refuse())?;
    let layer = RateLimitLayer::with_body(limits, |bytes| Body::new(Full::from(bytes)));
    let server = Server::builder().layer(layer).add_service(Greeter);
    server.serve_with_incoming(TcpListenerStream::new(listener)).await?;
    Ok(())
}
