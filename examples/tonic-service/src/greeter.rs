//! The messages, server and client of the greeter, as a protobuf compiler would generate them.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use http::uri::PathAndQuery;
use http::{Request, Response};
use tonic::body::Body;
use tonic::server::{NamedService, UnaryService};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

/// The request: a name to greet.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Name {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// The response: a greeting.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Greeting {
    /// The text of the greeting.
    #[prost(string, tag = "1")]
    pub words: String,
}

/// The service.
#[derive(Clone, Copy, Debug, Default)]
pub struct Greeter;

const GREET: &str = "/example.Greeter/Greet";

impl NamedService for Greeter {
    const NAME: &'static str = "example.Greeter";
}

impl UnaryService<Name> for Greeter {
    type Response = Greeting;
    type Future = Ready<Result<tonic::Response<Greeting>, Status>>;

    fn call(&mut self, request: tonic::Request<Name>) -> Self::Future {
        let words = format!("Good day, {}!", request.into_inner().name);
        ready(Ok(tonic::Response::new(Greeting { words })))
    }
}

impl Service<Request<Body>> for Greeter {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(async move {
            if request.uri().path() != GREET {
                return Ok(Status::new(Code::Unimplemented, "only Greet").into_http());
            }
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<Greeting, Name>::default());
            Ok(grpc.unary(Greeter, request).await)
        })
    }
}

/// A client of the service.
#[derive(Clone, Debug)]
pub struct GreeterClient(tonic::client::Grpc<Channel>);

impl GreeterClient {
    /// Creates a client that uses this channel.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        GreeterClient(tonic::client::Grpc::new(channel))
    }

    /// Requests a greeting, as this caller.
    ///
    /// # Errors
    ///
    /// The status of a failed call.
    pub async fn greet(&mut self, caller: &'static str, name: &str) -> Result<String, Status> {
        let mut request = tonic::Request::new(Name { name: name.to_owned() });
        request
            .metadata_mut()
            .insert("x-caller", caller.parse().map_err(|_| Status::internal("invalid caller"))?);
        self.0.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        let codec = ProstCodec::<Name, Greeting>::default();
        let greeting = self.0.unary(request, PathAndQuery::from_static(GREET), codec).await?;
        Ok(greeting.into_inner().words)
    }
}
