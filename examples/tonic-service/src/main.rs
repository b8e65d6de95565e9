//! Serves on port 50051 of this machine.

use std::error::Error;

use example_tonic_service::serve;
use tidegate::Quota;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    serve(TcpListener::bind("127.0.0.1:50051").await?, Quota::per_second(10).burst(20)).await
}
