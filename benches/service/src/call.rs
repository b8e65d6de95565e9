//! A client that speaks gRPC as Envoy does: a few connections, and on each of them some calls at once.
//!
//! Messages are written by hand; nothing is done twice for one server and once for the other.

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::processors::{self, CLIENT};
use crate::server::Server;

pub(crate) const CONNECTIONS: u64 = 4;
pub(crate) const AT_ONCE: u64 = 16;

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// `overall_code` is `OK`: field 1, the number 1, after the five bytes before each message.
const OK: [u8; 2] = [0x08, 0x01];

/// Calls once for each of these keys; how many answers were yes.
pub(crate) fn call(server: &Server, keys: fn(u64) -> u64, calls: u64) -> u64 {
    let runtime = Builder::new_current_thread().enable_io().build().expect("a runtime");
    let port = server.port;
    processors::on(CLIENT, || {
        let tasks = LocalSet::new();
        let share = calls / (CONNECTIONS * AT_ONCE);
        let all = async {
            let mut each = Vec::new();
            for connection in 0..CONNECTIONS {
                let client = connect(port).await;
                each.extend((0..AT_ONCE).map(|number| {
                    let start = (connection * AT_ONCE + number) * share;
                    let own: Vec<_> = (start..start + share).map(keys).collect();
                    tokio::task::spawn_local(converse(client.clone(), own))
                }));
            }
            let mut allowed = 0;
            for one in each {
                allowed += one.await.expect("no client panics");
            }
            allowed
        };
        runtime.block_on(tasks.run_until(all))
    })
}

async fn connect(port: u16) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
    stream.set_nodelay(true).expect("a setting");
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(1 << 20).initial_connection_window_size(1 << 24);
    let (client, connection) = builder.handshake(stream).await.expect("HTTP/2");
    tokio::task::spawn_local(async {
        let _ = connection.await; // it ends when nobody calls any more
    });
    client
}

async fn converse(client: SendRequest<Bytes>, keys: Vec<u64>) -> u64 {
    let mut allowed = 0;
    for key in keys {
        let answer = once(client.clone(), key).await.expect("an answer");
        allowed += u64::from(answer);
    }
    allowed
}

async fn once(client: SendRequest<Bytes>, key: u64) -> Result<bool, h2::Error> {
    let mut client = client.ready().await?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("http://127.0.0.1{METHOD}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a request");
    let (answer, mut sending) = client.send_request(request, false)?;
    sending.send_data(message(key), true)?;
    let mut body = answer.await?.into_body();
    let mut bytes = Vec::new();
    while let Some(some) = body.data().await {
        let some = some?;
        body.flow_control().release_capacity(some.len())?;
        bytes.extend_from_slice(&some);
    }
    let trailers = body.trailers().await?;
    let is_well =
        trailers.is_some_and(|trailers| trailers.get("grpc-status").is_some_and(|status| status == "0"));
    Ok(is_well && bytes.get(5..7) == Some(&OK))
}

/// `domain: "bench", descriptors: [{entries: [{key: "user", value: "key:…"}]}]`
fn message(key: u64) -> Bytes {
    let entry = [field(1, b"user"), field(2, format!("key:{key:012}").as_bytes())].concat();
    let descriptor = field(1, &entry);
    let message = [field(1, b"bench"), field(2, &descriptor)].concat();
    let length = u32::try_from(message.len()).expect("it is short");
    [&[0], &length.to_be_bytes()[..], &message].concat().into()
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).ok().filter(|length| *length < 128).expect("it is short");
    [&[number << 3 | 2, length], bytes].concat()
}
