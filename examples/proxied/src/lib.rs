//! # A service behind a proxy that only passes on bytes
//!
//! HAProxy in TCP mode, or a load balancer of a cloud, cannot add a header to a request. It announces the client at the
//! beginning of the connection, by the PROXY protocol. [`Proxied`] is a listener for axum that reads that, and so the
//! limit is by the client's address and not by the proxy's.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use axum::serve::Listener;
use tidegate::http::proxy_protocol::ProxyProtocol;
use tidegate::http::{ClientAddress, Limits, by};
use tidegate::tower::RateLimitLayer;
use tidegate::{KeyedLimiter, Quota};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Of so many connections the header is read at the same time.
const MOST: usize = 1_024;

/// Connections from proxies, with the addresses of the clients.
#[derive(Debug)]
pub struct Proxied {
    listener: TcpListener,
    protocol: ProxyProtocol,
    /// Those whose header is being read. Nobody waits for the slowest of them.
    reading: JoinSet<Option<(TcpStream, SocketAddr)>>,
}

impl Proxied {
    /// The connections of a listener, each of which has to begin with a header.
    #[must_use]
    pub fn new(listener: TcpListener, protocol: ProxyProtocol) -> Self {
        Proxied { listener, protocol, reading: JoinSet::new() }
    }

    fn read(&mut self, mut stream: TcpStream, peer: SocketAddr) {
        let protocol = self.protocol.clone();
        self.reading.spawn(async move {
            match protocol.accept(&mut stream, peer).await {
                Ok(client) => Some((stream, client)),
                Err(why) => {
                    eprintln!("closing a connection from {peer}: {why}");
                    None
                }
            }
        });
    }
}

impl Listener for Proxied {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if self.reading.len() < MOST => match accepted {
                    Ok((stream, peer)) => self.read(stream, peer),
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await, // no file descriptors left, mostly
                },
                Some(Ok(Some(connection))) = self.reading.join_next() => return connection,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Tells everybody their address, but not too often.
///
/// # Errors
///
/// If the limits cannot be built.
pub fn app(quota: Quota) -> Result<Router, Box<dyn Error>> {
    let client = ClientAddress::from_socket(|ConnectInfo(address): &ConnectInfo<SocketAddr>| *address);
    let limits = Limits::on(KeyedLimiter::<str>::new(quota), by::address(client))?;
    let router = Router::new()
        .route("/", get(|ConnectInfo(client): ConnectInfo<SocketAddr>| async move { client.to_string() }));
    Ok(router.layer(RateLimitLayer::new(limits)))
}
