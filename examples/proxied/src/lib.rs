//! # A service behind a TCP proxy
//!
//! HAProxy in TCP mode, or a load balancer in a cloud, cannot add a header to an HTTP request. It sends the address of
//! the client at the beginning of the connection, in the PROXY protocol. [`Proxied`] is a listener for axum that reads
//! this address, so the limit is by the address of the client and not by that of the proxy.

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

/// The maximum number of connections whose PROXY header is being read.
const MAX_READING: usize = 1_024;

/// A listener for connections from proxies, with the addresses of the clients.
#[derive(Debug)]
pub struct Proxied {
    listener: TcpListener,
    protocol: ProxyProtocol,
    /// The connections whose header is being read, concurrently: a slow one does not delay the others.
    reading: JoinSet<Option<(TcpStream, SocketAddr)>>,
}

impl Proxied {
    /// Wraps a listener. Every connection must begin with a PROXY header.
    #[must_use]
    pub fn new(listener: TcpListener, protocol: ProxyProtocol) -> Self {
        Proxied { listener, protocol, reading: JoinSet::new() }
    }

    fn read(&mut self, mut stream: TcpStream, peer: SocketAddr) {
        let protocol = self.protocol.clone();
        self.reading.spawn(async move {
            match protocol.accept(&mut stream, peer).await {
                Ok(client) => Some((stream, client)),
                Err(error) => {
                    eprintln!("closing a connection from {peer}: {error}");
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
                accepted = self.listener.accept(), if self.reading.len() < MAX_READING => match accepted {
                    Ok((stream, peer)) => self.read(stream, peer),
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await, // usually, no file descriptors are left
                },
                Some(Ok(Some(connection))) = self.reading.join_next() => return connection,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Builds a service that returns the address of the client, with this quota for each address.
///
/// # Errors
///
/// If the limits cannot be built.
pub fn app(quota: Quota) -> Result<Router, Box<dyn Error>> {
    let client = ClientAddress::from_socket(|ConnectInfo(address): &ConnectInfo<SocketAddr>| *address);
    let limits = Limits::single(KeyedLimiter::<str>::new(quota), by::address(client))?;
    let router = Router::new()
        .route("/", get(|ConnectInfo(client): ConnectInfo<SocketAddr>| async move { client.to_string() }));
    Ok(router.layer(RateLimitLayer::new(limits)))
}
