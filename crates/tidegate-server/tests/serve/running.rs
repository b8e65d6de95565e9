//! A server in this process, and a client that knows nothing but bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate::Quota;
use tidegate_server::config::Address;
use tidegate_server::engine::{Engine, Rules};
use tidegate_server::grpc;
use tidegate_server::http;
use tidegate_server::resp::Service;
use tidegate_server::serve::{Server, Settings, Speaks};
use tokio::sync::oneshot;

/// Ends when it is dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) http: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Longer than anything takes, so that a test that would hang fails instead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

impl Running {
    pub(crate) fn new(settings: Settings) -> Self {
        Running::listening_at(settings, None, None)
    }

    pub(crate) fn listening_at(settings: Settings, socket: Option<PathBuf>, grpc: Option<PathBuf>) -> Self {
        let ((end, ended), (tell, told)) = (oneshot::channel(), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let engine = Engine::new(Rules::new().rate("user", Quota::per_hour(10))).expect("rules");
                let engine = Arc::new(engine);
                let server = Server::new(Service::new(engine.clone()), settings);
                let mut server =
                    server.tcp("127.0.0.1:0".parse().expect("an address")).await.expect("a port");
                if let Some(path) = socket {
                    server = server.unix(path).await.expect("a socket");
                }
                let http = Speaks::Http(Arc::new(http::Service::new(engine.clone()).token("sesame")));
                let address = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
                server = server.listen(http, &address).await.expect("a port");
                if let Some(path) = grpc {
                    let grpc = Speaks::Grpc(Arc::new(grpc::Service::new(engine)));
                    server = server.listen(grpc, &Address::Unix(path)).await.expect("a socket");
                }
                let addresses = server.addresses();
                tell.send((addresses[0], addresses[1])).expect("somebody who waits");
                let ended = async { drop(ended.await) };
                server.run(ended).await.expect("an end");
            });
        });
        let (address, http) = told.recv_timeout(PATIENCE).expect("an address");
        Running { address, http, end: Some(end), thread: Some(thread) }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream.set_nodelay(true).expect("no delay");
        stream
    }

    /// Tells it to end, without waiting for that.
    pub(crate) fn tell_to_end(&mut self) {
        drop(self.end.take());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tell_to_end();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking(), "the server panicked");
    }
}

pub(crate) fn settings(change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = Settings::default();
    settings.threads = 2;
    change(&mut settings);
    settings
}

/// Sends these bytes and reads so many.
pub(crate) fn ask(stream: &mut (impl Read + Write), bytes: &[u8], length: usize) -> String {
    stream.write_all(bytes).expect("sent");
    let mut reply = vec![0; length];
    stream.read_exact(&mut reply).expect("a reply");
    String::from_utf8(reply).expect("text")
}

/// Everything until the other side closes.
pub(crate) fn rest(stream: &mut impl Read) -> String {
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).expect("the end");
    String::from_utf8(reply).expect("text")
}

pub(crate) fn ping(stream: &mut (impl Read + Write)) {
    assert_eq!(ask(stream, b"PING\r\n", 7), "+PONG\r\n");
}
