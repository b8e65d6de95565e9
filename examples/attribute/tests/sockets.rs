//! Calls the functions over real sockets. All tests share the limits of the program, so each has keys of its own.

use std::net::SocketAddr;

use example_attribute::app;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app()).await });
    address
}

/// Sends a request on a new connection, and returns the status, the head and the body.
async fn send(address: SocketAddr, line: &str, body: &str) -> (String, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{line} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().to_owned(), head.to_lowercase(), body.to_owned())
}

#[tokio::test]
async fn a_function_is_limited_for_every_caller() {
    let address = serve().await;
    for _ in 0..2 {
        let (status, _, body) = send(address, "POST /texts/555-1", "hello").await;
        assert_eq!((status.as_str(), body.as_str()), ("200", "10 letters sent"));
    }
    let (status, head, body) = send(address, "POST /texts/555-1", "hello").await;
    assert_eq!(status, "429");
    assert!(body.starts_with("text is limited to 2/day: limit of 2 reached"), "{body}");
    let seconds: u64 =
        head.lines().find_map(|line| line.strip_prefix("retry-after: ")).unwrap().parse().unwrap();
    assert!((1..=43_200).contains(&seconds), "{seconds}");
    assert_eq!(send(address, "POST /texts/555-2", "hello").await.0, "200");
}

#[tokio::test]
async fn a_function_has_a_fallback() {
    let address = serve().await;
    assert_eq!(send(address, "GET /weather/Oslo", "").await.2, "Oslo as measured");
    assert_eq!(send(address, "GET /weather/Oslo", "").await.2, "Oslo as usual");
}

#[tokio::test]
async fn a_handler_is_a_function_like_any_other() {
    let address = serve().await;
    assert_eq!(send(address, "GET /reports/alice", "").await.2, "report of alice");
    let (status, _, body) = send(address, "GET /reports/alice", "").await;
    assert!(status == "429" && body.starts_with("report is limited to 1/day"), "{status} {body}");
    assert_eq!(send(address, "GET /reports/bob", "").await.2, "report of bob");
}
