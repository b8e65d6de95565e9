//! Calls the service over a real socket until the limit is reached.

use example_tonic_service::{GreeterClient, serve};
use tidegate::Quota;
use tokio::net::TcpListener;
use tonic::Code;
use tonic::transport::Endpoint;

#[tokio::test]
async fn callers_have_limits_of_their_own_and_learn_when_to_retry() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(serve(listener, Quota::per_hour(2)));
    let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    let mut client = GreeterClient::new(channel);
    for _ in 0..2 {
        assert_eq!(client.greet("alice", "Bob").await.unwrap(), "Good day, Bob!");
    }
    let refused = client.greet("alice", "Bob").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let pushback: u64 =
        refused.metadata().get("grpc-retry-pushback-ms").unwrap().to_str().unwrap().parse().unwrap();
    assert!((1..=1_800_000).contains(&pushback), "{pushback}");
    assert_eq!(client.greet("carol", "Bob").await.unwrap(), "Good day, Bob!", "over the same connection");
    assert_eq!(client.greet("", "Bob").await.unwrap_err().code(), Code::InvalidArgument, "no caller");
}
