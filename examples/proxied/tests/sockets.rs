//! The listener over real sockets. The test is the proxy.

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

/// What a connection that says this gets: the first line and the last, or nothing.
async fn say(address: SocketAddr, said: &[u8]) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(said).await.unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await; // an error is a connection that was closed, too
    Some((answer.lines().next()?.to_owned(), answer.lines().last()?.to_owned()))
}

async fn status(address: SocketAddr, said: &[u8]) -> Option<String> {
    say(address, said).await.map(|(first, _)| first)
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
const FIRST: &[u8] = b"PROXY TCP4 203.0.113.9 10.0.0.1 56324 80\r\n";
/// For 203.0.113.10, by version 2.
const SECOND: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x0a\x0a\0\0\x01\xdc\x04\0\x50";

#[tokio::test]
async fn each_client_has_its_limit_though_all_come_from_one_proxy() {
    let address = serve("127.0.0.1").await;
    let first = say(address, &[FIRST, GET].concat()).await.unwrap();
    assert_eq!(first, ("HTTP/1.1 200 OK".into(), "203.0.113.9:56324".into()));
    let second = say(address, &[SECOND, GET].concat()).await.unwrap();
    assert_eq!(second, ("HTTP/1.1 200 OK".into(), "203.0.113.10:56324".into()));
    assert_eq!(status(address, &[FIRST, GET].concat()).await.unwrap(), "HTTP/1.1 429 Too Many Requests");
}

#[tokio::test]
async fn who_sends_no_header_or_is_not_trusted_is_not_served() {
    let address = serve("127.0.0.1").await;
    assert_eq!(say(address, GET).await, None);
    assert_eq!(say(address, &[&b"PROXY TCP4 nonsense\r\n"[..], GET].concat()).await, None);
    let strangers = serve("10.0.0.0/8").await;
    assert_eq!(say(strangers, &[FIRST, GET].concat()).await, None);
}

#[tokio::test]
async fn nobody_waits_for_somebody_elses_header() {
    let address = serve("127.0.0.1").await;
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(&FIRST[..10]).await.unwrap();
    assert_eq!(status(address, &[SECOND, GET].concat()).await.unwrap(), "HTTP/1.1 200 OK");
    slow.write_all(&[&FIRST[10..], GET].concat()).await.unwrap(); // and the slow one is served, too
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}
