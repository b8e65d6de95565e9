//! # Sockets and threads
//!
//! The simplest server gives each connection a task and lets the runtime move tasks between threads. Then every request
//! may wake another thread, and every connection keeps buffers for the moment it has something to say. Here a
//! connection belongs to one thread for as long as it lives:
//!
//! ```text
//!   listen ──► accept ──► the thread with the fewest connections
//!                            │  epoll: who has something?
//!                            │  read ─► answer all of it ─► one write          one buffer of each kind per thread
//!                            └─ once a second or so: who has been silent?      no timer per request
//! ```
//!
//! One read and one write per turn, however many requests are in it. A connection that has nothing under way has no buffer:
//! ten thousand idle clients cost their sockets and little else.
//!
//! A client that never reads its replies is not read from either, as soon as the system takes no more of them; what waits for it is bounded by
//! [`Session::run`](crate::resp::Session::run), and after [`Settings::stalled`] it is let go.

mod addresses;
mod attend;
mod command;
mod connection;
mod farewell;
mod files;
mod notify;
mod outage;
mod reload;
pub(crate) mod socket;
mod talk;
mod tls;
mod turns;
pub(crate) mod unfinished;
pub(crate) mod watch;
mod worker;

use std::fmt;
use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustls::ServerConfig;
use tidegate::SteadyClock;
use tidegate::clock::Clock;
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::admin;
use crate::config::{Address, Protocol};
use crate::engine::meter::Meter;
use crate::grpc;
use crate::http;
use crate::resp::Service;
use addresses::{Addresses, Counted};
pub use command::Serve;
pub use reload::{Reloader, Unread};
pub(crate) use talk::Talk;
pub use tls::{Certificates, Unusable};
use worker::Worker;

/// How connections are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Threads that answer; 0 for half as many as there are processors.
    pub threads: usize,
    /// More connections than this are turned away.
    pub connections: usize,
    /// More connections than this from one address are turned away.
    pub connections_per_address: usize,
    /// So many bytes of requests that are not whole, and of replies that are not taken, are kept for all clients together. Who
    /// would need more is let go.
    pub unfinished: usize,
    /// Who asks nothing for so long is let go.
    pub idle: Duration,
    /// Who takes no replies for so long is let go.
    pub stalled: Duration,
    /// So long is waited at the end for those who have not taken their replies.
    pub drain: Duration,
}

/// Sockets that are listened on, and the threads that answer.
#[derive(Debug)]
pub struct Server<C = SteadyClock> {
    settings: Settings,
    doors: Vec<Door<C>>,
    /// What is spoken where nothing else is said.
    service: Option<Arc<Service<C>>>,
}

/// What is spoken at a door. Others will be at home here: add what they speak, and to the worker how they are welcomed.
#[derive(Debug)]
pub enum Speaks<C = SteadyClock> {
    /// The Redis protocol.
    Resp(Arc<Service<C>>),
    /// HTTP with JSON.
    Http(Arc<http::Service<C>>),
    /// gRPC, for Envoy.
    Grpc(Arc<grpc::Service<C>>),
    /// Administration, by HTTP.
    Admin(Arc<admin::Service<C>>),
}

/// An address that cannot be listened on.
#[derive(Debug)]
pub struct CannotListen {
    address: Address,
    why: Why,
}

/// Why it cannot.
#[derive(Debug)]
enum Why {
    /// It is administration, for anybody.
    Open,
    /// The path leads to something that is no socket.
    NoSocket,
    /// The system says so.
    System(io::Error),
}

const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";

impl Default for Settings {
    fn default() -> Self {
        let (idle, stalled, drain) = (300, 30, 5);
        let [idle, stalled, drain] = [idle, stalled, drain].map(Duration::from_secs);
        Settings {
            threads: 0,
            connections: 10_000,
            connections_per_address: 5_000,
            unfinished: 64 << 20,
            idle,
            stalled,
            drain,
        }
    }
}

impl Settings {
    /// Half of the processors, because the system has as much to do for a request as we have, and more; and because a thread
    /// with twice the connections sleeps half as often between them.
    fn threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, |processors| processors.get().div_ceil(2)),
            threads => threads,
        }
    }
}

impl<C: Clock + Send + Sync + 'static> Server<C> {
    /// A server that listens nowhere yet, for clients of Redis unless something else is said.
    pub fn new(service: Service<C>, settings: Settings) -> Self {
        Server { settings, doors: Vec::new(), service: Some(Arc::new(service)) }
    }

    /// A server that listens nowhere yet.
    #[must_use]
    pub fn with(settings: Settings) -> Self {
        Server { settings, doors: Vec::new(), service: None }
    }

    /// Listens on an address of the network too, for clients of Redis. Inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// As [`listen`](Server::listen).
    pub async fn tcp(self, address: SocketAddr) -> Result<Self, CannotListen> {
        self.listen_for_redis(Address::Tcp(address)).await
    }

    /// Listens on a socket in the file system too, for clients of Redis.
    ///
    /// # Errors
    ///
    /// As [`listen`](Server::listen).
    pub async fn unix(self, path: impl Into<PathBuf>) -> Result<Self, CannotListen> {
        self.listen_for_redis(Address::Unix(path.into())).await
    }

    async fn listen_for_redis(self, address: Address) -> Result<Self, CannotListen> {
        match self.service.clone() {
            Some(service) => self.listen(Speaks::Resp(service), &address).await,
            None => Ok(self),
        }
    }

    /// Listens at an address too. A socket in the file system that a server left behind is taken over; one that is still
    /// listened on is not.
    ///
    /// # Errors
    ///
    /// [`CannotListen`] if somebody else does, or it is not ours.
    pub async fn listen(self, speaks: Speaks<C>, address: &Address) -> Result<Self, CannotListen> {
        self.listen_with(speaks, address, None).await
    }

    /// The same, encrypted if there are certificates.
    ///
    /// # Errors
    ///
    /// As [`listen`](Server::listen).
    pub async fn listen_with(
        mut self,
        speaks: Speaks<C>,
        address: &Address,
        tls: Option<Arc<Certificates>>,
    ) -> Result<Self, CannotListen> {
        let asks_for_certificates = tls.as_ref().is_some_and(|tls| tls.asks_for_certificates());
        if speaks.is_open_administration() && !address.is_local() && !asks_for_certificates {
            return Err(CannotListen { address: address.clone(), why: Why::Open });
        }
        let bound = match address {
            Address::Tcp(address) => bind_tcp(*address).map(Listening::Tcp).map_err(Why::System),
            Address::Unix(path) => {
                bind_unix(path).await.map(|listener| Listening::Unix(listener, path.clone()))
            }
        };
        let listening = bound.map_err(|why| CannotListen { address: address.clone(), why })?;
        self.doors.push(Door { listening, speaks, tls });
        Ok(self)
    }

    /// Where it listens: the ports, if they were left to the system.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.doors.iter().filter_map(|door| door.address()).collect()
    }

    /// Where it listens, in words, and what is spoken there.
    pub fn places(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.doors.iter().map(|door| (door.speaks.protocol().name(), door.name()))
    }

    /// Answers until `end`. Then nobody is let in any more, who is there gets the answers to what has arrived, and when all
    /// have them, or [`Settings::drain`] is over, it returns.
    ///
    /// # Errors
    ///
    /// If the system gives us no threads.
    pub async fn run(self, end: impl Future<Output = ()>) -> io::Result<()> {
        let Server { settings, doors, .. } = self;
        let hall = Hall {
            workers: Worker::start_all(settings)?,
            most: settings.connections,
            addresses: Addresses::new(settings.connections_per_address),
            arriving: Arc::new(Semaphore::new(doors.len() + ARRIVING)),
        };
        tokio::select! {
            () = end => {}
            () = accept_all(&doors, &hall) => {}
        }
        // Closing a listener resets the connections in its backlog, so those are accepted first.
        let _ = tokio::time::timeout(LAST, accept_all(&doors, &hall)).await;
        drop(doors);
        let workers = hall.workers;
        tokio::task::spawn_blocking(|| workers.into_iter().for_each(Worker::end)).await?;
        Ok(())
    }
}

/// Where clients come in.
#[derive(Debug)]
struct Door<C> {
    listening: Listening,
    speaks: Speaks<C>,
    tls: Option<Arc<Certificates>>,
}

/// A socket in the file system is removed when it is closed.
#[derive(Debug)]
enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// Who came in.
pub(crate) struct Guest<C> {
    pub(crate) stream: Stream,
    pub(crate) speaks: Speaks<C>,
    /// What it is shown, if it is to be encrypted.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// Counts it among those of its address.
    pub(crate) counted: Option<Counted>,
    /// Released when a worker takes it.
    _room: Option<OwnedSemaphorePermit>,
}

/// Where guests are taken to, and how many may come.
struct Hall<C> {
    workers: Vec<Worker<C>>,
    most: usize,
    addresses: Addresses,
    /// Room for connections that wait for a worker. While the workers are behind no more are accepted, so a flood fills the backlog of
    /// its own listener and no other.
    arriving: Arc<Semaphore>,
}

pub(crate) enum Stream {
    Tcp(std::net::TcpStream, SocketAddr),
    Unix(std::os::unix::net::UnixStream),
}

/// So many connections wait until they are accepted.
const BACKLOG: u32 = 1_024;
/// How long connections are still accepted when the service shuts down.
const LAST: Duration = Duration::from_millis(50);
/// Accepted connections that wait for a worker, at most.
const ARRIVING: usize = 32;

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?; // also while connections of a server before it linger
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept_all<C: Clock>(doors: &[Door<C>], hall: &Hall<C>) {
    let doors = doors.iter().map(|door| Box::pin(accept(door, hall)));
    let mut doors: Vec<_> = doors.collect();
    std::future::poll_fn(|cx| {
        doors.iter_mut().for_each(|door| {
            let _ = door.as_mut().poll(cx); // never ready: nobody closes a door from outside
        });
        std::task::Poll::Pending
    })
    .await
}

async fn accept<C: Clock>(door: &Door<C>, hall: &Hall<C>) {
    loop {
        // Before the connection is accepted: what waits here may be dropped, and no connection with it.
        let _room = hall.arriving.clone().acquire_owned().await.ok();
        match door.next().await {
            Ok(guest) => hall.hand_over(Guest { _room, ..guest }),
            // No more files, most likely: those who are there may go, so wait a little and try again.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

impl<C: Clock> Hall<C> {
    fn hand_over(&self, mut guest: Guest<C>) {
        let open: usize = self.workers.iter().map(Worker::open).sum();
        let most = self.most.saturating_add(guest.speaks.beyond());
        if let Stream::Tcp(_, address) = &guest.stream {
            match self.addresses.count(address.ip()) {
                Some(counted) => guest.counted = Some(counted),
                None => return guest.turn_away(),
            }
        }
        match self.workers.iter().min_by_key(|worker| worker.open()) {
            Some(quietest) if open < most => quietest.take(guest),
            _ => guest.turn_away(),
        }
    }
}

impl<C: Clock> Guest<C> {
    fn turn_away(self) {
        let door = self.speaks.meter().door(self.speaks.protocol());
        door.turned_away.fetch_add(1, Ordering::Relaxed);
        let sentence = match self.speaks {
            Speaks::Resp(_) => TOO_MANY,
            Speaks::Http(_) | Speaks::Admin(_) => http::TOO_MANY,
            Speaks::Grpc(_) => grpc::TOO_MANY,
        };
        if self.tls.is_some() {
            return; // a line in the clear is nothing that it would understand
        }
        // There is room for a line in a new socket; and if it cannot be told, it will see all the same.
        let _ = match self.stream {
            Stream::Tcp(mut stream, _) => stream.write(sentence),
            Stream::Unix(mut stream) => stream.write(sentence),
        };
    }
}

impl<C> Door<C> {
    fn address(&self) -> Option<SocketAddr> {
        match &self.listening {
            Listening::Tcp(listener) => listener.local_addr().ok(),
            Listening::Unix(..) => None,
        }
    }

    fn name(&self) -> String {
        match &self.listening {
            Listening::Tcp(_) => self.address().map(|address| address.to_string()).unwrap_or_default(),
            Listening::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }

    /// Who comes next, taken out of this thread's runtime, for that of another.
    async fn next(&self) -> io::Result<Guest<C>> {
        let stream = match &self.listening {
            Listening::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream.into_std()?, peer)
            }
            Listening::Unix(listener, _) => Stream::Unix(listener.accept().await?.0.into_std()?),
        };
        let tls = self.tls.as_ref().map(|certificates| certificates.config());
        Ok(Guest { stream, speaks: self.speaks.clone(), tls, counted: None, _room: None })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Listening::Unix(_, path) = self {
            let _ = std::fs::remove_file(path); // if it is gone already, all the better
        }
    }
}

// === impl Speaks ===

impl<C> Speaks<C> {
    pub(crate) fn protocol(&self) -> Protocol {
        match self {
            Speaks::Resp(_) => Protocol::Resp,
            Speaks::Http(_) => Protocol::Http,
            Speaks::Grpc(_) => Protocol::Grpc,
            Speaks::Admin(_) => Protocol::Admin,
        }
    }

    /// So many more are let in here than elsewhere: whoever has come to put an end to a crowd must not stand outside.
    fn beyond(&self) -> usize {
        match self {
            Speaks::Admin(_) => 8,
            Speaks::Resp(_) | Speaks::Http(_) | Speaks::Grpc(_) => 0,
        }
    }

    fn is_open_administration(&self) -> bool {
        matches!(self, Speaks::Admin(service) if service.is_open())
    }
}

impl<C: Clock> Speaks<C> {
    pub(crate) fn meter(&self) -> &Arc<Meter> {
        match self {
            Speaks::Resp(service) => service.engine.meter(),
            Speaks::Http(service) => service.engine.meter(),
            Speaks::Grpc(service) => service.engine.meter(),
            Speaks::Admin(service) => service.engine.meter(),
        }
    }
}

impl<C> Clone for Speaks<C> {
    fn clone(&self) -> Self {
        match self {
            Speaks::Resp(service) => Speaks::Resp(service.clone()),
            Speaks::Http(service) => Speaks::Http(service.clone()),
            Speaks::Grpc(service) => Speaks::Grpc(service.clone()),
            Speaks::Admin(service) => Speaks::Admin(service.clone()),
        }
    }
}

async fn bind_unix(path: &Path) -> Result<UnixListener, Why> {
    match UnixListener::bind(path) {
        Err(taken) if taken.kind() == io::ErrorKind::AddrInUse => {
            // Only a socket that nobody listens on was left behind. All else is somebody's.
            if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(Why::NoSocket);
            }
            let nobody = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            if !UnixStream::connect(path).await.is_err_and(nobody) {
                return Err(taken.into());
            }
            std::fs::remove_file(path)?;
            Ok(UnixListener::bind(path)?)
        }
        bound => Ok(bound?),
    }
}

// === impl CannotListen ===

impl fmt::Display for CannotListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, what) = (&self.address, self.why.sentence(&self.address));
        match &self.why {
            Why::System(error) if what.is_empty() => {
                write!(f, "{address} cannot be listened on: {error}; choose another address")
            }
            _ => write!(f, "{address} {what}"),
        }
    }
}

impl std::error::Error for CannotListen {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.why {
            Why::System(error) => Some(error),
            Why::Open | Why::NoSocket => None,
        }
    }
}

// === impl Why ===

impl Why {
    /// What is wrong with the address and what to do about it; empty if there is nothing to add to what the system says.
    fn sentence(&self, address: &Address) -> &'static str {
        let kind = match self {
            Why::Open => return "would let anybody administer; add a token, or listen at 127.0.0.1",
            Why::NoSocket => {
                return "is there, and is no socket; choose another path, or remove what is there";
            }
            Why::System(error) => error.kind(),
        };
        match (address, kind) {
            (_, io::ErrorKind::AddrInUse) => {
                "is in use by another program; stop that one, or choose another address"
            }
            (Address::Tcp(_), io::ErrorKind::PermissionDenied) => {
                "may not be listened on; choose a port above 1023, or ask for the right to"
            }
            (Address::Tcp(_), io::ErrorKind::AddrNotAvailable) => {
                "is not an address of this machine; choose one that is, or 0.0.0.0"
            }
            (Address::Unix(_), io::ErrorKind::PermissionDenied) => {
                "may not be made: the folder cannot be written to; choose another, or ask for the right to"
            }
            (Address::Unix(_), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                "cannot be made: there is no such folder; make it, or choose another"
            }
            (Address::Unix(_), io::ErrorKind::InvalidInput) => {
                "is no path for a socket: it has at most 107 bytes, and none of them is 0; choose a shorter one"
            }
            _ => "",
        }
    }
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
        Why::System(error)
    }
}
