//! A network between a client and a server that fails in the way a test selects.
//!
//! ```text
//!              ┌──────────────── Mode ────────────────┐
//!   client ──► │ requests:  on, swallowed or answered │ ──► server
//!          ◄── │ replies:   on, late or lost          │ ◄──
//!              └──────────────────────────────────────┘
//! ```
//!
//! A [`Mode`] applies from the moment [`Proxy::set`] returns, to existing and to future connections.
//!
//! The proxy fails only as networks do. A network never loses the middle of a connection: if one reply were
//! swallowed and the next one passed, the client would match it to the wrong request, and a test would report
//! a bug that does not exist. So a connection that has lost data is reset as soon as the network recovers. A
//! slow network behaves the same way: replies are late but keep their spacing, and no reply waits for the one
//! before it.
//!
//! The proxy runs on threads of its own, so a test may block, or pause tokio's clock.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, TcpListener as StdListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc as blocking};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::port;
use super::request::Requests;

/// What the network does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The network is healthy and passes everything on.
    Pass,
    /// No listener. Existing connections are reset.
    Refuse,
    /// Everything that is sent is swallowed. Connecting works, but no reply ever arrives.
    Blackhole,
    /// Every reply is delayed by this much.
    Slow(Duration),
    /// Every request is answered with these bytes, such as `-LOADING …\r\n`, and never reaches the server.
    Answer(Vec<u8>),
    /// The proxy closes its sending side towards the client. Everything the client sends is swallowed.
    HalfClose,
    /// Requests arrive and are executed; the replies are lost.
    LoseReplies,
}

impl Mode {
    /// Whether the server's replies reach the client.
    fn has_replies(&self) -> bool {
        matches!(self, Mode::Pass | Mode::Slow(_))
    }
}

/// A proxy in front of a server on this machine. It stops when dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    mode_changes: mpsc::UnboundedSender<ModeChange>,
    counts: Arc<Counts>,
    runtime: Option<Runtime>,
}

/// A requested mode, and the channel that confirms that it applies.
type ModeChange = (Mode, blocking::Sender<io::Result<()>>);

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicU64,
    requests: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
}

impl Proxy {
    /// Starts a proxy that passes everything on to a port of this machine. It connects there once a client
    /// has sent something; if nothing listens there, the client's connection is closed.
    pub(crate) fn start(upstream: u16) -> Self {
        let (listener, port) = bind_any();
        let counts = Arc::new(Counts::default());
        let (mode_changes, changes) = mpsc::unbounded_channel();
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a thread can be started");
        let entered = runtime.enter();
        let listener = Some(TcpListener::from_std(listener).expect("the runtime does i/o"));
        drop(entered);
        let acceptor = Acceptor {
            listener,
            port,
            upstream,
            mode: watch::Sender::new(Mode::Pass),
            counts: counts.clone(),
        };
        runtime.spawn(acceptor.run(changes));
        Proxy { port, mode_changes, counts, runtime: Some(runtime) }
    }

    /// The URL that clients connect to.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Changes what the network does. Everything sent, connected or answered after this returns meets the new
    /// mode.
    pub(crate) fn set(&self, mode: Mode) {
        let (done, wait) = blocking::channel();
        self.mode_changes.send((mode, done)).expect("the acceptor runs while there is a proxy");
        wait.recv().expect("the acceptor runs while there is a proxy").expect("the port is free again");
    }

    /// The number of accepted connections.
    pub(crate) fn connections(&self) -> u64 {
        self.counts.connections.load(Ordering::SeqCst)
    }

    /// The number of complete requests that clients sent, whatever became of them.
    pub(crate) fn requests(&self) -> u64 {
        self.counts.requests.load(Ordering::SeqCst)
    }

    /// The number of bytes passed on to the server.
    pub(crate) fn bytes_to_server(&self) -> u64 {
        self.counts.to_server.load(Ordering::SeqCst)
    }

    /// The number of bytes passed on from the server to clients.
    pub(crate) fn bytes_to_client(&self) -> u64 {
        self.counts.to_client.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(Mode::Refuse);
        // In the background, because a test that itself runs on tokio must not block here.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

// === impl Acceptor ===

/// Accepts clients, or is closed in [`Mode::Refuse`].
struct Acceptor {
    listener: Option<TcpListener>,
    port: u16,
    upstream: u16,
    mode: watch::Sender<Mode>,
    counts: Arc<Counts>,
}

impl Acceptor {
    async fn run(mut self, mut changes: mpsc::UnboundedReceiver<ModeChange>) {
        loop {
            tokio::select! {
                biased;
                change = changes.recv() => match change {
                    Some((mode, done)) => drop(done.send(self.set_mode(mode).await)),
                    None => return,
                },
                client = accept(self.listener.as_ref()) => drop(client.and_then(|client| self.relay(client))),
            }
        }
    }

    async fn set_mode(&mut self, mode: Mode) -> io::Result<()> {
        if mode == Mode::Refuse {
            self.listener = None;
        } else if self.listener.is_none() {
            self.listener = Some(bind_again(self.port).await?);
        }
        self.mode.send_replace(mode);
        Ok(())
    }

    fn relay(&self, client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        self.counts.connections.fetch_add(1, Ordering::SeqCst);
        let relay = Relay {
            server: None,
            upstream: self.upstream,
            requests: Requests::default(),
            late: VecDeque::new(),
            has_lost: false,
            counts: self.counts.clone(),
        };
        tokio::spawn(relay.serve(client, self.mode.subscribe()));
        Ok(())
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => Ok(listener.accept().await?.0),
        None => pending().await,
    }
}

fn bind_any() -> (StdListener, u16) {
    let bound = (0..20).find_map(|_| {
        let port = port::free();
        Some((StdListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?, port))
    });
    let (listener, port) = bound.expect("some port is free");
    listener.set_nonblocking(true).expect("a listener can be made not to block");
    (listener, port)
}

async fn bind_again(port: u16) -> io::Result<TcpListener> {
    for _ in 0..100 {
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            return Ok(listener);
        }
        sleep(Duration::from_millis(10)).await;
    }
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await
}

// === impl Relay ===

/// One client's connection, and its connection to the server once something was passed on.
struct Relay {
    server: Option<TcpStream>,
    upstream: u16,
    requests: Requests,
    late: VecDeque<(Instant, Vec<u8>)>,
    has_lost: bool,
    counts: Arc<Counts>,
}

/// How a connection ends: closed by the server or the client, or broken by the network.
enum Ending {
    Closed,
    Reset,
}

impl Relay {
    async fn serve(mut self, mut client: TcpStream, mode: watch::Receiver<Mode>) {
        // A refusal is watched separately: it must also reach a relay that is stuck because its peer does not
        // read.
        let mut refusal = mode.clone();
        let ending = tokio::select! {
            biased;
            _ = refusal.wait_for(|mode| *mode == Mode::Refuse) => Ending::Reset,
            ending = self.carry(&mut client, mode) => ending.unwrap_or(Ending::Closed),
        };
        if let Ending::Reset = ending {
            let _ = client.set_zero_linger();
        }
    }

    async fn carry(&mut self, client: &mut TcpStream, mut mode: watch::Receiver<Mode>) -> io::Result<Ending> {
        let (mut request, mut reply) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        mode.mark_changed();
        loop {
            tokio::select! {
                biased;
                Ok(()) = mode.changed() => {
                    let now = mode.borrow_and_update().clone();
                    if self.is_beyond_repair_in(&now) {
                        return Ok(Ending::Reset);
                    }
                    self.set_mode(client, &now).await?;
                }
                () = until_due(self.late.front()) => self.deliver(client).await?,
                length = client.read(&mut request) => match length? {
                    0 => return Ok(Ending::Closed),
                    length => {
                        let now = mode.borrow().clone();
                        self.on_request(client, &request[..length], &now).await?;
                    }
                },
                length = read(self.server.as_mut(), &mut reply) => match length {
                    0 if mode.borrow().has_replies() => return self.drain_and_close(client).await,
                    0 => self.drop_server(),
                    length => {
                        let now = mode.borrow().clone();
                        self.on_reply(&reply[..length], &now);
                    }
                },
            }
        }
    }

    /// Whether client and server would mismatch requests and replies if this connection worked again.
    fn is_beyond_repair_in(&self, mode: &Mode) -> bool {
        self.has_lost && mode.has_replies()
    }

    /// Switches to a new mode: replies on their way are lost if the new mode loses replies.
    async fn set_mode(&mut self, client: &mut TcpStream, mode: &Mode) -> io::Result<()> {
        if !mode.has_replies() && !self.late.is_empty() {
            self.late.clear();
            self.has_lost = true;
        }
        if *mode == Mode::HalfClose {
            self.has_lost = true;
            client.shutdown().await?;
        }
        Ok(())
    }

    async fn on_request(&mut self, client: &mut TcpStream, request: &[u8], mode: &Mode) -> io::Result<()> {
        let whole = self.requests.completed_by(request);
        self.counts.requests.fetch_add(whole as u64, Ordering::SeqCst);
        match mode {
            Mode::Pass | Mode::Slow(_) | Mode::LoseReplies => self.pass_on(request).await,
            Mode::Answer(bytes) => {
                self.has_lost |= self.requests.has_part_of_one();
                client.write_all(&bytes.repeat(whole)).await
            }
            Mode::Refuse | Mode::Blackhole | Mode::HalfClose => {
                self.has_lost = true;
                Ok(())
            }
        }
    }

    async fn pass_on(&mut self, request: &[u8]) -> io::Result<()> {
        if self.server.is_none() {
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.upstream)).await?;
            server.set_nodelay(true)?;
            self.server = Some(server);
        }
        if let Some(server) = &mut self.server {
            self.counts.to_server.fetch_add(request.len() as u64, Ordering::SeqCst);
            server.write_all(request).await?;
        }
        Ok(())
    }

    fn on_reply(&mut self, reply: &[u8], mode: &Mode) {
        match mode {
            Mode::Pass => self.late.push_back((Instant::now(), reply.to_vec())),
            Mode::Slow(delay) => self.late.push_back((Instant::now() + *delay, reply.to_vec())),
            _ => self.has_lost = true,
        }
    }

    /// Sends the client the next reply, after its delay.
    async fn deliver(&mut self, client: &mut TcpStream) -> io::Result<()> {
        let Some((_, reply)) = self.late.pop_front() else { return Ok(()) };
        // Counted first: a client that has the reply may read the count.
        self.counts.to_client.fetch_add(reply.len() as u64, Ordering::SeqCst);
        client.write_all(&reply).await
    }

    /// The server has closed the connection: delivers all pending replies, then closes the client's side.
    async fn drain_and_close(&mut self, client: &mut TcpStream) -> io::Result<Ending> {
        while !self.late.is_empty() {
            until_due(self.late.front()).await;
            self.deliver(client).await?;
        }
        Ok(Ending::Closed)
    }

    /// The server has closed the connection, but the client must not notice.
    fn drop_server(&mut self) {
        self.server = None;
        self.has_lost = true;
    }
}

/// The number of bytes read from the server; 0 if it has closed the connection, cleanly or not.
async fn read(server: Option<&mut TcpStream>, into: &mut [u8]) -> usize {
    match server {
        Some(server) => server.read(into).await.unwrap_or(0),
        None => pending().await,
    }
}

async fn until_due(late: Option<&(Instant, Vec<u8>)>) {
    match late {
        Some((due, _)) => sleep_until(*due).await,
        None => pending().await,
    }
}
