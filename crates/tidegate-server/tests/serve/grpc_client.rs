//! A gRPC client that somebody else wrote, with messages written down by hand: what the service sends is read by other
//! code than wrote it.

use std::net::SocketAddr;

use hyper::http::uri::PathAndQuery;
use prost::Message;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;

use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::running::PATIENCE;

pub(crate) const LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
pub(crate) const OK: i32 = 1;
pub(crate) const OVER: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Asked {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
    /// Of a newer Envoy, for all we know.
    #[prost(string, tag = "77")]
    pub(crate) unheard_of: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<Override>,
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    pub(crate) is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Override {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Told {
    #[prost(int32, tag = "1")]
    pub(crate) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) response_headers_to_add: Vec<Entry>,
    #[prost(message, optional, tag = "6")]
    pub(crate) dynamic_metadata: Option<Struct>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    pub(crate) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Duration {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Struct {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) fields: std::collections::BTreeMap<String, Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Value {
    #[prost(bool, optional, tag = "4")]
    pub(crate) bool_value: Option<bool>,
    #[prost(string, optional, tag = "3")]
    pub(crate) string_value: Option<String>,
    #[prost(message, optional, tag = "5")]
    pub(crate) struct_value: Option<Struct>,
    #[prost(message, optional, tag = "6")]
    pub(crate) list_value: Option<List>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct List {
    #[prost(message, repeated, tag = "1")]
    pub(crate) values: Vec<Value>,
}

/// One text, as many small messages have it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Name {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// One number likewise.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Number {
    #[prost(int32, tag = "1")]
    pub(crate) number: i32,
}

/// What one asks by reflection.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Wondered {
    #[prost(string, optional, tag = "3")]
    pub(crate) file: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(crate) symbol: Option<String>,
    #[prost(string, optional, tag = "7")]
    pub(crate) services: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Reflected {
    #[prost(message, optional, tag = "4")]
    pub(crate) files: Option<Files>,
    #[prost(message, optional, tag = "6")]
    pub(crate) services: Option<Names>,
    #[prost(message, optional, tag = "7")]
    pub(crate) error: Option<Number>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Files {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(crate) files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Names {
    #[prost(message, repeated, tag = "1")]
    pub(crate) names: Vec<Name>,
}

/// A connection, and the thread that it is used on.
pub(crate) struct Client {
    pub(crate) runtime: Runtime,
    grpc: Grpc<Channel>,
    token: Option<String>,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Client::at(format!("http://{address}"))
    }

    pub(crate) fn at(uri: String) -> Self {
        Client::of(Endpoint::from_shared(uri).expect("an address")).expect("a connection")
    }

    /// Encrypted, if the server shows a certificate of this root.
    pub(crate) fn encrypted(address: SocketAddr, root: &[u8]) -> Result<Self, tonic::transport::Error> {
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(root)).domain_name("localhost");
        let endpoint = Endpoint::from_shared(format!("https://{address}")).expect("an address");
        Client::of(endpoint.tls_config(tls)?)
    }

    fn of(endpoint: Endpoint) -> Result<Self, tonic::transport::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let channel = runtime.block_on(endpoint.timeout(PATIENCE).connect())?;
        Ok(Client { runtime, grpc: Grpc::new(channel), token: None })
    }

    pub(crate) fn token(self, token: &str) -> Self {
        Client { token: Some(format!("Bearer {token}")), ..self }
    }

    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            let token = MetadataValue::try_from(token.as_str()).expect("a header");
            request.metadata_mut().insert("authorization", token);
        }
        request
    }

    pub(crate) fn call<A, T>(&mut self, path: &'static str, message: A) -> Result<T, Status>
    where
        A: Message + Default + 'static,
        T: Message + Default + 'static,
    {
        let request = self.request(message);
        let Client { runtime, grpc, .. } = self;
        runtime.block_on(async {
            grpc.ready().await.expect("a connection");
            let answer =
                grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<A, T>::default()).await;
            answer.map(tonic::Response::into_inner)
        })
    }

    /// Sends all of these, and reads what comes.
    pub(crate) fn stream<A, T>(
        &mut self,
        path: &'static str,
        messages: Vec<A>,
    ) -> Result<Streaming<T>, Status>
    where
        A: Message + Default + 'static,
        T: Message + Default + 'static,
    {
        let (send, sent) = mpsc::channel(messages.len().max(1));
        messages.into_iter().for_each(|message| send.try_send(message).expect("there is room"));
        drop(send);
        self.converse(path, sent)
    }

    /// Sends what comes, and reads what comes.
    pub(crate) fn converse<A, T>(
        &mut self,
        path: &'static str,
        messages: mpsc::Receiver<A>,
    ) -> Result<Streaming<T>, Status>
    where
        A: Message + Default + 'static,
        T: Message + Default + 'static,
    {
        let request = self.request(ReceiverStream::new(messages));
        let Client { runtime, grpc, .. } = self;
        runtime.block_on(async {
            grpc.ready().await.expect("a connection");
            let path = PathAndQuery::from_static(path);
            let answer = grpc.streaming(request, path, ProstCodec::<A, T>::default()).await;
            answer.map(tonic::Response::into_inner)
        })
    }

    pub(crate) fn ask(&mut self, asked: Asked) -> Result<Told, Status> {
        self.call(LIMIT, asked)
    }

    /// One descriptor for each text such as `user=alice,path=/`.
    pub(crate) fn check(&mut self, descriptors: &[&str]) -> Told {
        let descriptors = descriptors.iter().map(|text| descriptor(text)).collect();
        self.ask(Asked { domain: "edge".into(), descriptors, ..Asked::default() }).expect("an answer")
    }
}

pub(crate) fn descriptor(text: &str) -> Descriptor {
    let entry = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Entry { key: key.into(), value: value.into() }
    };
    Descriptor { entries: text.split(',').map(entry).collect(), ..Descriptor::default() }
}

pub(crate) fn edge(descriptors: Vec<Descriptor>) -> Asked {
    Asked { domain: "edge".into(), descriptors, ..Asked::default() }
}

impl Told {
    /// The code and what is left, of each.
    pub(crate) fn each(&self) -> Vec<(i32, u32)> {
        self.statuses.iter().map(|status| (status.code, status.limit_remaining)).collect()
    }
}

impl DescriptorStatus {
    pub(crate) fn limit(&self) -> (u32, i32, &str) {
        let limit = self.current_limit.as_ref().expect("a limit");
        (limit.requests_per_unit, limit.unit, &limit.name)
    }

    pub(crate) fn reset(&self) -> i64 {
        self.duration_until_reset.as_ref().map_or(0, |reset| reset.seconds)
    }
}
