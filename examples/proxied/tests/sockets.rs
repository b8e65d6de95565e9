//! Connects to the listener over real sockets. The test acts as the proxy.

use std::net::SocketAddr;

use axum::serve::ListenerExt;
use example_proxied::{Proxied, app};
use tidegate::Quota;
use tidegate::http::TrustedProxies;
use tidegate::http::proxy_protocol::ProxyProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn serve(trusted: &str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let protocol = ProxyProtocol::from(TrustedProxies::new([trusted]).unwrap());
    let listener = Proxied::new(listener, protocol).tap_io(|_| ());
    let app = app(Quota::per_hour(1)).unwrap().into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Sends bytes on a new connection. Returns the first and the last line of the response, if there is one.
async fn send(address: SocketAddr, bytes: &[u8]) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut response = String::new();
    let _ = stream.read_to_string(&mut response).await; // an error means that the connection was closed
    Some((response.lines().next()?.to_owned(), response.lines().last()?.to_owned()))
}

async fn status(address: SocketAddr, bytes: &[u8]) -> Option<String> {
    send(address, bytes).await.map(|(first, _)| first)
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
const FIRST: &[u8] = b"PROXY TCP4 203.0.113.9 10.0.0.1 56324 80\r\n";
/// For 203.0.113.10, in version 2.
const SECOND: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x0a\x0a\0\0\x01\xdc\x04\0\x50";

#[tokio::test]
async fn each_client_behind_one_proxy_has_its_own_limit() {
    let address = serve("127.0.0.1").await;
    let first = send(address, &[FIRST, GET].concat()).await.unwrap();
    assert_eq!(first, ("HTTP/1.1 200 OK".into(), "203.0.113.9:56324".into()));
    let second = send(address, &[SECOND, GET].concat()).await.unwrap();
    assert_eq!(second, ("HTTP/1.1 200 OK".into(), "203.0.113.10:56324".into()));
    assert_eq!(status(address, &[FIRST, GET].concat()).await.unwrap(), "HTTP/1.1 429 Too Many Requests");
}

#[tokio::test]
async fn connections_without_a_header_or_from_untrusted_peers_are_closed() {
    let address = serve("127.0.0.1").await;
    assert_eq!(send(address, GET).await, None);
    assert_eq!(send(address, &[&b"PROXY TCP4 nonsense\r\n"[..], GET].concat()).await, None);
    let untrusting = serve("10.0.0.0/8").await;
    assert_eq!(send(untrusting, &[FIRST, GET].concat()).await, None);
}

#[tokio::test]
async fn a_slow_header_delays_no_other_connection() {
    let address = serve("127.0.0.1").await;
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(&FIRST[..10]).await.unwrap();
    assert_eq!(status(address, &[SECOND, GET].concat()).await.unwrap(), "HTTP/1.1 200 OK");
    slow.write_all(&[&FIRST[10..], GET].concat()).await.unwrap(); // the slow one is served, too
    let mut response = String::new();
    slow.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");
}
