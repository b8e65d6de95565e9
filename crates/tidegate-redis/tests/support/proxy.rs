//! A network between a client and a server that fails in the way a test asks for.
//!
//! ```text
//!              ┌──────────────── Mode ────────────────┐
//!   client ──► │ requests:  on, swallowed or answered │ ──► server
//!          ◄── │ replies:   on, late or lost          │ ◄──
//!              └──────────────────────────────────────┘
//! ```
//!
//! A [`Mode`] is in force from the moment [`Proxy::set`] returns, for the connections there are and for those to
//! come.
//!
//! It fails as networks do and in no other way. A network never loses the middle of a connection: had a reply been
//! swallowed and the next one passed, the client would take it for the answer to the wrong question, and a test would
//! find a bug that is none. So a connection on which something was lost is reset when the network is well again. It
//! is the same if it is slow: replies are late, but keep their distance, and none waits for the one before.
//!
//! It runs on threads of its own, so a test may block, or hold tokio's clock.

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
    /// Nothing: it is well.
    Pass,
    /// Nobody listens. Connections that there are, are reset.
    Refuse,
    /// Whatever is sent is swallowed. One can connect, but nobody ever answers.
    Blackhole,
    /// Every reply is so late.
    Slow(Duration),
    /// Every request is answered with these bytes, such as `-LOADING …\r\n`, and the server hears nothing of it.
    Answer(Vec<u8>),
    /// The client is told that nothing more will be said to it. What it says is swallowed.
    HalfClose,
    /// Requests arrive and are executed; the replies are lost.
    LoseReplies,
}

impl Mode {
    /// Whether what the server says reaches the client.
    fn has_replies(&self) -> bool {
        matches!(self, Mode::Pass | Mode::Slow(_))
    }
}

/// A proxy in front of a server on this machine. It ends when dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    wishes: mpsc::UnboundedSender<Wish>,
    counts: Arc<Counts>,
    runtime: Option<Runtime>,
}

/// A mode that is asked for, and whom to tell when it is in force.
type Wish = (Mode, blocking::Sender<io::Result<()>>);

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicU64,
    requests: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
}

impl Proxy {
    /// A proxy that passes everything on to a port of this machine. It connects there when a client has sent
    /// something; if nobody listens, the client's connection is closed.
    pub(crate) fn start(upstream: u16) -> Self {
        let (listener, port) = bind_any();
        let counts = Arc::new(Counts::default());
        let (wishes, asked) = mpsc::unbounded_channel();
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a thread can be started");
        let entered = runtime.enter();
        let listener = Some(TcpListener::from_std(listener).expect("the runtime does i/o"));
        drop(entered);
        let door =
            Door { listener, port, upstream, mode: watch::Sender::new(Mode::Pass), counts: counts.clone() };
        runtime.spawn(door.keep(asked));
        Proxy { port, wishes, counts, runtime: Some(runtime) }
    }

    /// Where clients connect to.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Changes what the network does. Whatever is sent, connected or answered after this returns, meets the new mode.
    pub(crate) fn set(&self, mode: Mode) {
        let (done, wait) = blocking::channel();
        self.wishes.send((mode, done)).expect("the door is kept while there is a proxy");
        wait.recv().expect("the door is kept while there is a proxy").expect("the port is free again");
    }

    /// How often somebody connected.
    pub(crate) fn connections(&self) -> u64 {
        self.counts.connections.load(Ordering::SeqCst)
    }

    /// How many whole requests clients sent, whatever became of them.
    pub(crate) fn requests(&self) -> u64 {
        self.counts.requests.load(Ordering::SeqCst)
    }

    /// How many bytes were passed on to the server.
    pub(crate) fn bytes_to_server(&self) -> u64 {
        self.counts.to_server.load(Ordering::SeqCst)
    }

    /// How many bytes of the server's were passed on to clients.
    pub(crate) fn bytes_to_client(&self) -> u64 {
        self.counts.to_client.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(Mode::Refuse);
        // In the background, for a test that is itself run by tokio must not block here.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

// === impl Door ===

/// Lets clients in, or is shut.
struct Door {
    listener: Option<TcpListener>,
    port: u16,
    upstream: u16,
    mode: watch::Sender<Mode>,
    counts: Arc<Counts>,
}

impl Door {
    async fn keep(mut self, mut asked: mpsc::UnboundedReceiver<Wish>) {
        loop {
            tokio::select! {
                biased;
                wish = asked.recv() => match wish {
                    Some((mode, done)) => drop(done.send(self.turn(mode).await)),
                    None => return,
                },
                client = accept(self.listener.as_ref()) => drop(client.and_then(|client| self.let_in(client))),
            }
        }
    }

    async fn turn(&mut self, mode: Mode) -> io::Result<()> {
        if mode == Mode::Refuse {
            self.listener = None;
        } else if self.listener.is_none() {
            self.listener = Some(bind_again(self.port).await?);
        }
        self.mode.send_replace(mode);
        Ok(())
    }

    fn let_in(&self, client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        self.counts.connections.fetch_add(1, Ordering::SeqCst);
        let line = Line {
            server: None,
            upstream: self.upstream,
            requests: Requests::default(),
            late: VecDeque::new(),
            has_lost: false,
            counts: self.counts.clone(),
        };
        tokio::spawn(line.serve(client, self.mode.subscribe()));
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

// === impl Line ===

/// One client's connection, and the one to the server that belongs to it once something was passed on.
struct Line {
    server: Option<TcpStream>,
    upstream: u16,
    requests: Requests,
    late: VecDeque<(Instant, Vec<u8>)>,
    has_lost: bool,
    counts: Arc<Counts>,
}

/// How a connection ends: as the server or the client wishes, or broken by the network.
enum Ending {
    Closed,
    Reset,
}

impl Line {
    async fn serve(mut self, mut client: TcpStream, mode: watch::Receiver<Mode>) {
        // Refusing comes from outside: it must reach a line that is stuck because nobody reads, too.
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
                    self.turn(client, &now).await?;
                }
                () = until_due(self.late.front()) => self.deliver(client).await?,
                length = client.read(&mut request) => match length? {
                    0 => return Ok(Ending::Closed),
                    length => {
                        let now = mode.borrow().clone();
                        self.hear(client, &request[..length], &now).await?;
                    }
                },
                length = read(self.server.as_mut(), &mut reply) => match length {
                    0 if mode.borrow().has_replies() => return self.say_goodbye(client).await,
                    0 => self.forget_server(),
                    length => {
                        let now = mode.borrow().clone();
                        self.answer(&reply[..length], &now);
                    }
                },
            }
        }
    }

    /// Whether the client and the server would misunderstand one another, were this line well again.
    fn is_beyond_repair_in(&self, mode: &Mode) -> bool {
        self.has_lost && mode.has_replies()
    }

    /// A new mode: replies that are on their way are lost with those to come, if those are.
    async fn turn(&mut self, client: &mut TcpStream, mode: &Mode) -> io::Result<()> {
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

    async fn hear(&mut self, client: &mut TcpStream, request: &[u8], mode: &Mode) -> io::Result<()> {
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

    fn answer(&mut self, reply: &[u8], mode: &Mode) {
        match mode {
            Mode::Pass => self.late.push_back((Instant::now(), reply.to_vec())),
            Mode::Slow(delay) => self.late.push_back((Instant::now() + *delay, reply.to_vec())),
            _ => self.has_lost = true,
        }
    }

    /// Gives the client the reply that has been late for long enough.
    async fn deliver(&mut self, client: &mut TcpStream) -> io::Result<()> {
        let Some((_, reply)) = self.late.pop_front() else { return Ok(()) };
        // Counted first: who has the reply may look at the count.
        self.counts.to_client.fetch_add(reply.len() as u64, Ordering::SeqCst);
        client.write_all(&reply).await
    }

    /// The server has closed the connection: so does the line, after all that it had to say.
    async fn say_goodbye(&mut self, client: &mut TcpStream) -> io::Result<Ending> {
        while !self.late.is_empty() {
            until_due(self.late.front()).await;
            self.deliver(client).await?;
        }
        Ok(Ending::Closed)
    }

    /// The server has closed the connection, but the client is not to know.
    fn forget_server(&mut self) {
        self.server = None;
        self.has_lost = true;
    }
}

/// How much the server said; nothing if it has closed the connection, in good order or not.
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
