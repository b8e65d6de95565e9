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

mod command;
mod connection;
mod socket;
mod watch;
mod worker;

use std::fmt;
use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Clock, SteadyClock};
use tokio::net::{TcpListener, UnixListener, UnixStream};

use crate::resp::Service;
pub use command::Serve;
use worker::Worker;

/// How connections are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Threads that answer; 0 for half as many as there are processors.
    pub threads: usize,
    /// More connections than this are turned away.
    pub connections: usize,
    /// Who asks nothing for so long is let go.
    pub idle: Duration,
    /// Who takes no replies for so long is let go.
    pub stalled: Duration,
    /// So long is waited at the end for those who have not taken their replies.
    pub drain: Duration,
}

/// Sockets that are listened on, and the threads that answer.
#[derive(Debug)]
pub struct Server<C: Clock = SteadyClock> {
    service: Arc<Service<C>>,
    settings: Settings,
    tcp: Vec<TcpListener>,
    unix: Vec<(UnixListener, PathBuf)>,
}

/// An address that cannot be listened on.
#[derive(Debug)]
pub struct CannotListen {
    address: String,
    source: io::Error,
}

const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";

impl Default for Settings {
    fn default() -> Self {
        let (idle, stalled, drain) = (300, 30, 5);
        let [idle, stalled, drain] = [idle, stalled, drain].map(Duration::from_secs);
        Settings { threads: 0, connections: 10_000, idle, stalled, drain }
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
    /// A server that listens nowhere yet.
    pub fn new(service: Service<C>, settings: Settings) -> Self {
        Server { service: Arc::new(service), settings, tcp: Vec::new(), unix: Vec::new() }
    }

    /// Listens on an address of the network too. Inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`CannotListen`] if somebody else does, or it is not ours.
    pub async fn tcp(mut self, address: SocketAddr) -> Result<Self, CannotListen> {
        let bound = TcpListener::bind(address).await;
        self.tcp.push(bound.map_err(|source| CannotListen { address: address.to_string(), source })?);
        Ok(self)
    }

    /// Listens on a socket in the file system too. One that a server left behind is taken over; one that is still
    /// listened on is not.
    ///
    /// # Errors
    ///
    /// As [`tcp`](Server::tcp).
    pub async fn unix(mut self, path: impl Into<PathBuf>) -> Result<Self, CannotListen> {
        let path = path.into();
        let bound = bind_unix(&path).await;
        let listener =
            bound.map_err(|source| CannotListen { address: path.display().to_string(), source })?;
        self.unix.push((listener, path));
        Ok(self)
    }

    /// Where it listens: the ports, if they were left to the system.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.tcp.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Answers until `end`. Then nobody is let in any more, who is there gets the answers to what has arrived, and when all
    /// have them, or [`Settings::drain`] is over, it returns.
    ///
    /// # Errors
    ///
    /// If the system gives us no threads.
    pub async fn run(self, end: impl Future<Output = ()>) -> io::Result<()> {
        let Server { service, settings, tcp, unix } = self;
        let workers = Worker::start_all(&service, settings)?;
        let doors: Vec<_> = tcp.into_iter().map(Door::Tcp).chain(unix.into_iter().map(Door::unix)).collect();
        tokio::select! {
            () = end => {}
            () = accept_all(&doors, &workers, settings.connections) => {}
        }
        drop(doors);
        tokio::task::spawn_blocking(|| workers.into_iter().for_each(Worker::end)).await?;
        Ok(())
    }
}

/// Where clients come in. A socket in the file system is removed when it is closed.
enum Door {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// Who came in.
pub(crate) enum Guest {
    Tcp(std::net::TcpStream, SocketAddr),
    Unix(std::os::unix::net::UnixStream),
}

async fn accept_all<C>(doors: &[Door], workers: &[Worker<C>], most: usize) {
    let doors = doors.iter().map(|door| Box::pin(accept(door, workers, most)));
    let mut doors: Vec<_> = doors.collect();
    std::future::poll_fn(|cx| {
        doors.iter_mut().for_each(|door| {
            let _ = door.as_mut().poll(cx); // never ready: nobody closes a door from outside
        });
        std::task::Poll::Pending
    })
    .await
}

async fn accept<C>(door: &Door, workers: &[Worker<C>], most: usize) {
    loop {
        match door.next().await {
            Ok(guest) => hand_over(guest, workers, most),
            // No more files, most likely: those who are there may go, so wait a little and try again.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn hand_over<C>(guest: Guest, workers: &[Worker<C>], most: usize) {
    let open: usize = workers.iter().map(Worker::open).sum();
    match workers.iter().min_by_key(|worker| worker.open()) {
        Some(quietest) if open < most => quietest.take(guest),
        _ => guest.turn_away(),
    }
}

impl Guest {
    fn turn_away(self) {
        // There is room for a line in a new socket; and if it cannot be told, it will see all the same.
        let _ = match self {
            Guest::Tcp(mut stream, _) => stream.write(TOO_MANY),
            Guest::Unix(mut stream) => stream.write(TOO_MANY),
        };
    }
}

impl Door {
    fn unix((listener, path): (UnixListener, PathBuf)) -> Self {
        Door::Unix(listener, path)
    }

    /// Who comes next, taken out of this thread's runtime, for that of another.
    async fn next(&self) -> io::Result<Guest> {
        Ok(match self {
            Door::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Guest::Tcp(stream.into_std()?, peer)
            }
            Door::Unix(listener, _) => Guest::Unix(listener.accept().await?.0.into_std()?),
        })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Door::Unix(_, path) = self {
            let _ = std::fs::remove_file(path); // if it is gone already, all the better
        }
    }
}

async fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(taken) if taken.kind() == io::ErrorKind::AddrInUse => {
            // Only a socket that nobody listens on was left behind. All else is somebody's.
            let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
            let nobody = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            if !is_socket || !UnixStream::connect(path).await.is_err_and(nobody) {
                return Err(taken);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

// === impl CannotListen ===

impl fmt::Display for CannotListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = &self.address;
        match self.source.kind() {
            io::ErrorKind::AddrInUse => {
                write!(f, "{address} is in use by another program; stop that one, or choose another address")
            }
            io::ErrorKind::PermissionDenied => {
                write!(
                    f,
                    "{address} may not be listened on; choose a port above 1023, or ask for the right to"
                )
            }
            io::ErrorKind::AddrNotAvailable => {
                write!(f, "{address} is not an address of this machine; choose one that is, or 0.0.0.0")
            }
            _ => write!(f, "{address} cannot be listened on"),
        }
    }
}

impl std::error::Error for CannotListen {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
