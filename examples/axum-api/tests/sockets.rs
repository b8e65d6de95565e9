//! Calls the API over real sockets, with HTTP/1.1 written by hand and HTTP/2 by hyper.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::MatchedPath;
use axum::routing::get;
use example_axum_api::{Plan, app};
use http::{Request, StatusCode};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate::http::{KeyPart, Limits, by};
use tidegate::tower::RateLimitLayer;
use tidegate::{KeyedLimiter, Quota};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PLAN: Plan = Plan {
    global: Quota::per_hour(40),
    user: Quota::per_hour(10),
    login: Quota::per_hour(2),
    concurrency: 200,
};

async fn serve(plan: Plan) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app(plan).unwrap().into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// A response: the head in lower case, and the body.
struct Reply {
    head: String,
    body: String,
}

impl Reply {
    fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Reads one response. `None` if the connection was closed instead.
async fn read(stream: &mut TcpStream) -> Option<Reply> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await.ok()?);
    }
    let mut response = Reply { head: String::from_utf8(bytes).unwrap().to_lowercase(), body: String::new() };
    let length: usize = response.field("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    response.body = String::from_utf8(body).unwrap();
    Some(response)
}

async fn write(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

async fn send(stream: &mut TcpStream, text: &str) -> Reply {
    write(stream, text).await;
    read(stream).await.expect("a response")
}

fn notes_of(user: &str) -> String {
    format!("GET /notes HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {user}\r\n\r\n")
}

fn login(more: &str, body: &str) -> String {
    format!("POST /login HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n{more}\r\n{body}", body.len())
}

#[tokio::test]
async fn users_have_limits_and_share_one() {
    let mut stream = TcpStream::connect(serve(PLAN).await).await.unwrap();
    for left in (0..10).rev() {
        let response = send(&mut stream, &notes_of("alice")).await;
        assert_eq!((response.status(), response.body.as_str()), ("200", "notes of alice\n"));
        assert!(
            response.field("ratelimit").unwrap().starts_with(&format!("\"user\";r={left};t=")),
            "{}",
            response.head
        );
        assert_eq!(response.field("ratelimit-policy"), Some("\"user\";q=10;w=3600"));
    }
    let refused = send(&mut stream, &notes_of("alice")).await;
    let retry_after: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    assert!(refused.status() == "429" && (1..=360).contains(&retry_after), "{}", refused.head);
    assert!(refused.body.contains("\"violated-policies\":[\"user\"]"), "{}", refused.body);
    for user in ["bob", "carol", "dave"] {
        for _ in 0..10 {
            assert_eq!(send(&mut stream, &notes_of(user)).await.status(), "200");
        }
    }
    let refused = send(&mut stream, &notes_of("erin")).await;
    assert_eq!(
        (refused.status(), refused.field("ratelimit")),
        ("429", Some("\"user\";r=10")),
        "nothing of erin's own limit is used, and the global limit is not exposed"
    );
    assert_eq!(send(&mut stream, "GET /notes HTTP/1.1\r\nhost: a\r\n\r\n").await.status(), "401");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_connections_at_once_exactly_40_pass() {
    let address = serve(PLAN).await;
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                send(&mut stream, &notes_of(&format!("user{n}"))).await.status() == "200"
            })
        })
        .collect();
    let mut passed = 0;
    for task in tasks {
        passed += usize::from(task.await.unwrap());
    }
    assert_eq!(passed, 40);
}

#[tokio::test]
async fn logins_are_limited_by_address_whatever_the_headers_say() {
    let mut stream = TcpStream::connect(serve(PLAN).await).await.unwrap();
    let mut statuses = Vec::new();
    for n in 0..4 {
        let spoofed =
            format!("x-forwarded-for: 9.9.9.{n}\r\nforwarded: for=9.9.9.{n}\r\nx-real-ip: 9.9.9.{n}\r\n");
        statuses.push(send(&mut stream, &login(&spoofed, "alice")).await.status().to_owned());
    }
    assert_eq!(statuses, ["200", "200", "429", "429"]);
}

#[tokio::test]
async fn a_request_that_expects_100_continue_is_refused_without_it() {
    let mut stream = TcpStream::connect(serve(PLAN).await).await.unwrap();
    let head = "POST /login HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n";
    for _ in 0..2 {
        assert_eq!(send(&mut stream, head).await.status(), "100");
        assert_eq!(send(&mut stream, "alice").await.status(), "200");
    }
    let refused = send(&mut stream, head).await; // HD-08
    assert_eq!(refused.status(), "429", "and no 100 before it");
    // A body that is sent nevertheless is drained, or the connection is closed; it is never parsed as a request.
    let sent = stream.write_all(format!("alice{}", notes_of("alice")).as_bytes()).await;
    let next = if sent.is_ok() { read(&mut stream).await } else { None };
    assert!(next.is_none_or(|response| response.status() == "200"));
}

#[tokio::test]
async fn an_unread_body_is_never_parsed_as_a_request() {
    let address = serve(PLAN).await;
    let smuggled = notes_of("mallory");
    for size in [100, 10_000_000] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let filler = " ".repeat(size);
        let mut refused = 0;
        for _ in 0..4 {
            let request = login("", &format!("{smuggled}{filler}{smuggled}"));
            if stream.write_all(request.as_bytes()).await.is_err() {
                break; // the server may close the connection after a refusal
            }
            match read(&mut stream).await {
                Some(response) => {
                    assert!(["200", "429", "413"].contains(&response.status()), "{}", response.head); // HD-09
                    assert!(
                        !response.body.contains("mallory") || response.body.starts_with("Bearer "),
                        "{}",
                        response.body
                    );
                    refused += usize::from(response.status() == "429");
                }
                None => break,
            }
        }
        assert!(refused > 0 || size > 100, "the limit was reached on this connection");
    }
    let mut stream = TcpStream::connect(address).await.unwrap();
    let response = send(&mut stream, &notes_of("mallory")).await;
    assert!(
        response.field("ratelimit").unwrap().starts_with("\"user\";r=9;"),
        "the smuggled requests were not counted: {}",
        response.head
    );
}

#[tokio::test]
async fn a_refused_body_leaves_the_connection_usable_or_closed() {
    let mut stream = TcpStream::connect(serve(PLAN).await).await.unwrap();
    for expected in ["200", "200", "429"] {
        assert_eq!(send(&mut stream, &login("", "alice")).await.status(), expected);
    }
    if stream.write_all(notes_of("alice").as_bytes()).await.is_ok() {
        let next = read(&mut stream).await;
        assert!(next.is_none_or(|response| response.status() == "200"));
    }
}

#[tokio::test]
async fn a_head_is_refused_without_a_body() {
    let mut stream =
        TcpStream::connect(serve(Plan { user: Quota::per_hour(1), ..PLAN }).await).await.unwrap();
    assert_eq!(send(&mut stream, &notes_of("alice")).await.status(), "200");
    write(&mut stream, &notes_of("alice").replacen("GET", "HEAD", 1)).await;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 429"), "{}", head.escape_ascii());
    let next = send(&mut stream, &notes_of("bob")).await;
    assert_eq!(
        (next.status(), next.body.as_str()),
        ("200", "notes of bob\n"),
        "the next response begins right after the head"
    );
}

/// The body of a request: empty, or without an end.
enum RequestBody {
    Empty,
    Endless,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match *self {
            RequestBody::Empty => Poll::Ready(None),
            RequestBody::Endless => Poll::Pending,
        }
    }
}

#[tokio::test]
async fn a_stream_that_is_reset_is_counted() {
    let address = serve(PLAN).await;
    let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = |method: &str, body| {
        let request = Request::builder().method(method).uri(format!("http://{address}/notes"));
        request.header("authorization", "Bearer alice").body(body).unwrap()
    };
    let left = |response: http::Response<Incoming>| {
        let left = response.headers()["ratelimit"].to_str().unwrap();
        left.split(";t=").next().unwrap().to_owned()
    };
    let adding = tokio::spawn(client.send_request(request("POST", RequestBody::Endless)));
    tokio::task::yield_now().await; // so that it is sent first
    let reading = client.send_request(request("GET", RequestBody::Empty)).await.unwrap();
    assert_eq!(left(reading), "\"user\";r=4", "10, less 5 for the note in progress, less 1");
    adding.abort(); // hyper resets the stream
    assert!(adding.await.unwrap_err().is_cancelled());
    let reading = client.send_request(request("GET", RequestBody::Empty)).await.unwrap();
    assert_eq!(left(reading), "\"user\";r=3", "nothing was refunded");
}

#[tokio::test]
async fn a_stream_that_is_reset_releases_its_permit() {
    let address = serve(Plan {
        concurrency: 1,
        user: Quota::per_hour(100_000),
        global: Quota::per_hour(100_000),
        ..PLAN
    });
    let address = address.await;
    let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = |method: &str, body| {
        let request = Request::builder().method(method).uri(format!("http://{address}/notes"));
        request.header("authorization", "Bearer alice").body(body).unwrap()
    };
    let adding = tokio::spawn(client.send_request(request("POST", RequestBody::Endless)));
    tokio::task::yield_now().await; // so that it is sent first
    let busy = client.send_request(request("GET", RequestBody::Empty)).await.unwrap();
    assert_eq!(
        (busy.status(), &busy.headers()["retry-after"]),
        (StatusCode::SERVICE_UNAVAILABLE, &"1".parse().unwrap())
    );
    adding.abort();
    let mut tries = 0..1_000; // the server sees the reset between two of these
    assert!(loop {
        let status = client.send_request(request("GET", RequestBody::Empty)).await.unwrap().status();
        if status == StatusCode::OK || tries.next().is_none() {
            break status == StatusCode::OK;
        }
    });
}

#[tokio::test]
async fn the_route_matched_by_axum_can_be_the_key() {
    let limiter = KeyedLimiter::<str>::new(Quota::per_hour(1));
    let limits =
        Limits::single(limiter, by::extension(|route: &MatchedPath| route.as_str()).or_skip()).unwrap();
    let app = Router::new()
        .route("/users/{id}", get(async || "a user"))
        .route("/groups/{id}", get(async || "a group"))
        .layer(RateLimitLayer::new(limits));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let mut statuses = Vec::new();
    for path in ["/users/1", "/users/2", "/groups/1", "/nothing", "/nothing"] {
        let response = send(&mut stream, &format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        statuses.push(response.status().to_owned());
    }
    assert_eq!(statuses, ["200", "429", "200", "404", "404"]);
}
