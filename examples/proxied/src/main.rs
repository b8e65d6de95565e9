//! Serves on port 8080 of this machine, behind a proxy on the same machine.

use std::error::Error;
use std::net::SocketAddr;

use axum::serve::ListenerExt;
use example_proxied::{Proxied, app};
use tidegate::Quota;
use tidegate::http::TrustedProxies;
use tidegate::http::proxy_protocol::ProxyProtocol;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    println!(
        "try: printf 'PROXY TCP4 203.0.113.9 10.0.0.1 56324 80\\r\\nGET / HTTP/1.0\\r\\n\\r\\n' | nc 127.0.0.1 8080"
    );
    let protocol = ProxyProtocol::from(TrustedProxies::new(["127.0.0.1"])?);
    let listener = Proxied::new(listener, protocol).tap_io(|_| ()); // axum passes on the client address only for its own listeners and tapped ones
    let app = app(Quota::per_second(5))?.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
