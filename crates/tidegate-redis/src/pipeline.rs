//! # Pipelining: many requests on one connection
//!
//! Requests are gathered in one buffer and sent together; replies come back in the order of the requests.
//!
//! ```text
//!   task ──┐                                          ┌──► task
//!   task ──┼──► unsent ──────► Redis ──────► replies ─┼──► task
//!   task ──┘       │                                  └──► task
//!                  └─ written by a task that finds nothing in flight or fills the buffer; else by the driver, soon
//! ```
//!
//! Redis sends no reply before it has processed all that it has read. If everything were sent together, the client
//! would wait while Redis works, and Redis would wait while the client handles the replies. Sending each batch as soon
//! as it is complete keeps both busy. And a single request does not wait for another task to send it.
//!
//! The client library's shared connection hands 64 requests to a task that writes them together. Measured
//! with it, a check took 1.33 times as long as `redis-benchmark` with a minimal script, with a third of both
//! processors idle, and nearly all of the client's 6 µs were the library's. This pipeline writes in the task
//! that has the request, and reads arrays of integers without a general parser: 1.00 in the same measurement.
//! Sixteen requests per write keep the server busy and still share a system call.
//!
//! The library still parses addresses and every reply that is not an array of integers, and handles TLS and
//! clusters. With TLS or a cluster the ratio of 1.33 still applies.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};

use redis::{ConnectionAddr, ConnectionInfo, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, tcp};
#[cfg(unix)]
use tokio::net::{UnixStream, unix};
use tokio::sync::oneshot;

use crate::reply::{parse_first, protocol_error};

/// A connection shared by many tasks. Dropping the last clone closes it.
#[derive(Clone)]
pub(crate) struct Pipeline(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
}

struct State {
    writer: Writer,
    unsent: Vec<u8>,
    /// The number of requests added since `unsent` was last empty.
    unsent_requests: usize,
    /// The requests that wait for a reply, oldest first.
    waiting: VecDeque<oneshot::Sender<Response>>,
    /// Wakes the driver; `None` if that was done already.
    driver: Option<Waker>,
    /// Why the connection is broken.
    broken: Option<RedisError>,
}

type Response = Result<Value, RedisError>;

enum Writer {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(unix::OwnedWriteHalf),
}

/// Reads replies, and writes what no requesting task has written.
struct Driver {
    shared: Weak<Shared>,
    reader: Box<dyn AsyncRead + Send + Unpin>,
    /// Bytes received that are not a complete reply yet.
    received: Vec<u8>,
    /// Whether the driver has yielded once, to let runnable tasks add requests to `unsent`.
    has_yielded: bool,
}

/// The number of requests that is sent without waiting for more.
const BATCH_SIZE: usize = 16;
/// The number of unsent bytes above which new requests fail.
///
/// That happens only if the server has stopped reading.
const MAX_UNSENT_BYTES: usize = 4 << 20;
const FULL: &str = "send buffer full (4 MiB): Redis is not reading";
/// The size of the read buffer.
const READ_BUFFER_BYTES: usize = 16 << 10;

impl Pipeline {
    /// Connects, authenticates, and selects the database. For unencrypted connections only.
    pub(crate) async fn connect(info: &ConnectionInfo) -> Result<Self, RedisError> {
        let pipeline = Pipeline::open(info.addr()).await?;
        let settings = info.redis_settings();
        if let Some(password) = settings.password() {
            let mut auth = redis::cmd("AUTH");
            if let Some(user) = settings.username() {
                auth.arg(user);
            }
            pipeline.request(|unsent| auth.arg(password).write_packed_command(unsent)).await?;
        }
        if settings.db() != 0 {
            pipeline
                .request(|unsent| redis::cmd("SELECT").arg(settings.db()).write_packed_command(unsent))
                .await?;
        }
        Ok(pipeline)
    }

    async fn open(address: &ConnectionAddr) -> io::Result<Self> {
        match address {
            ConnectionAddr::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                let (reader, writer) = stream.into_split();
                Ok(Pipeline::new(Box::new(reader), Writer::Tcp(writer)))
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let (reader, writer) = UnixStream::connect(path).await?.into_split();
                Ok(Pipeline::new(Box::new(reader), Writer::Unix(writer)))
            }
            _ => Err(io::Error::new(io::ErrorKind::Unsupported, "unsupported kind of address")),
        }
    }

    fn new(reader: Box<dyn AsyncRead + Send + Unpin>, writer: Writer) -> Self {
        let state = State {
            writer,
            unsent: Vec::new(),
            unsent_requests: 0,
            waiting: VecDeque::new(),
            driver: None,
            broken: None,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state) });
        let driver =
            Driver { shared: Arc::downgrade(&shared), reader, received: Vec::new(), has_yielded: false };
        tokio::spawn(driver);
        Pipeline(shared)
    }

    /// Sends the request that `write` appends, and waits for its reply.
    pub(crate) async fn request(&self, write: impl FnOnce(&mut Vec<u8>)) -> Response {
        let response = self.0.send(write)?;
        match response.await {
            Ok(response) => response.and_then(Value::extract_error),
            Err(_) => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, write: impl FnOnce(&mut Vec<u8>)) -> Result<oneshot::Receiver<Response>, RedisError> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        state.check_capacity()?;
        write(&mut state.unsent);
        state.unsent_requests += 1;
        state.waiting.push_back(sender);
        let is_idle = state.waiting.len() == state.unsent_requests;
        if is_idle || state.unsent_requests >= BATCH_SIZE {
            state.write_now();
        }
        let driver = if state.unsent.is_empty() { None } else { state.driver.take() };
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        Ok(receiver)
    }

    /// Yields once so that other tasks can add requests, then writes what the server accepts.
    ///
    /// The first call with unsent bytes only wakes its own task.
    fn poll_flush(&self, cx: &mut Context<'_>, has_yielded: &mut bool) -> io::Result<()> {
        let mut state = self.lock();
        if state.unsent.is_empty() || *has_yielded {
            *has_yielded = false;
            let _ = state.poll_write(cx)?;
        } else {
            *has_yielded = true;
            cx.waker().wake_by_ref();
        }
        if !state.driver.as_ref().is_some_and(|driver| driver.will_wake(cx.waker())) {
            state.driver = Some(cx.waker().clone());
        }
        Ok(())
    }

    /// Marks the connection as broken, and fails all current and future requests with the reason.
    fn fail_all(&self, error: &RedisError) {
        let mut state = self.lock();
        state.broken = Some(error.clone());
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waiting in waiting {
            let _ = waiting.send(Err(error.clone()));
        }
    }
}

impl State {
    fn check_capacity(&self) -> Result<(), RedisError> {
        match &self.broken {
            Some(broken) => Err(broken.clone()),
            None if self.unsent.len() > MAX_UNSENT_BYTES => {
                Err(io::Error::new(io::ErrorKind::TimedOut, FULL).into())
            }
            None => Ok(()),
        }
    }

    /// Writes as much as possible without blocking. A failure shows when the driver writes or reads.
    fn write_now(&mut self) {
        if let Ok(written) = self.writer.try_write(&self.unsent) {
            self.remove_sent(written);
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let written = ready!(self.writer.poll_write(cx, &self.unsent))?;
            self.remove_sent(written);
        }
        Poll::Ready(Ok(()))
    }

    fn remove_sent(&mut self, bytes: usize) {
        self.unsent.drain(..bytes);
        if self.unsent.is_empty() {
            self.unsent_requests = 0;
        }
    }
}

/// Wakes the driver when the last clone is dropped, so that it closes its half.
impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(driver) = self.lock().driver.take() {
            driver.wake();
        }
    }
}

impl Writer {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Writer::Tcp(writer) => writer.try_write(bytes),
            #[cfg(unix)]
            Writer::Unix(writer) => writer.try_write(bytes),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Writer::Tcp(writer) => Pin::new(writer).poll_write(cx, bytes),
            #[cfg(unix)]
            Writer::Unix(writer) => Pin::new(writer).poll_write(cx, bytes),
        }
    }
}

// === impl Driver ===

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(shared) = self.shared.upgrade() else { return Poll::Ready(()) };
        let driver = &mut *self;
        let flushed = driver
            .poll_read(cx, &shared)
            .and_then(|()| shared.poll_flush(cx, &mut driver.has_yielded).map_err(RedisError::from));
        match flushed {
            Ok(()) => Poll::Pending,
            Err(error) => {
                shared.fail_all(&error);
                Poll::Ready(())
            }
        }
    }
}

impl Driver {
    /// Reads as long as data arrives.
    fn poll_read(&mut self, cx: &mut Context<'_>, shared: &Shared) -> Result<(), RedisError> {
        let mut bytes = [0; READ_BUFFER_BYTES];
        loop {
            let mut read = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.reader).poll_read(cx, &mut read) {
                Poll::Pending => return Ok(()),
                Poll::Ready(result) => result?,
            }
            if read.filled().is_empty() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.received.extend_from_slice(read.filled());
            self.deliver(shared)?;
        }
    }

    /// Hands each complete reply to the request that waits for it.
    fn deliver(&mut self, shared: &Shared) -> Result<(), RedisError> {
        let mut at = 0;
        while let Some((response, length)) = parse_first(&self.received[at..])? {
            at += length;
            let waiting = shared.lock().waiting.pop_front();
            let waiting = waiting.ok_or_else(|| protocol_error("reply without a request"))?;
            let _ = waiting.send(Ok(response)); // a cancelled request needs no reply
        }
        self.received.drain(..at);
        Ok(())
    }
}
