//! # Many requests on one connection
//!
//! Requests are gathered in one buffer and sent together; answers come back in the order of the requests.
//!
//! ```text
//!   task ──┐                                          ┌──► task
//!   task ──┼──► unsent ──────► Redis ──────► answers ─┼──► task
//!   task ──┘       │                                  └──► task
//!                  └─ written by whoever finds nothing under way, or has filled it; else by the driver, soon
//! ```
//!
//! Redis answers nobody before it has done all that it has read, so who sends everything at once waits while Redis works, and
//! Redis waits while the answers are dealt with. Sending part of it as soon as there is a part keeps both at work. And who is
//! alone does not wait for another task to send its request.

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

use crate::reply::{first, nonsense};

/// A connection that many share. When the last clone is gone it is closed.
#[derive(Clone)]
pub(crate) struct Pipeline(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
}

struct State {
    writer: Writer,
    unsent: Vec<u8>,
    /// How many requests are among them.
    gathered: usize,
    /// Who waits for an answer, the first in front.
    waiting: VecDeque<oneshot::Sender<Answer>>,
    /// How to wake the driver, unless that was done already.
    driver: Option<Waker>,
    /// Why nothing comes any more.
    broken: Option<RedisError>,
}

type Answer = Result<Value, RedisError>;

enum Writer {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(unix::OwnedWriteHalf),
}

/// Reads what comes, and writes what nobody else did.
struct Driver {
    shared: Weak<Shared>,
    reader: Box<dyn AsyncRead + Send + Unpin>,
    /// What has come and was not a whole answer yet.
    held: Vec<u8>,
    /// Whether those that can run have been given the time to add their requests to what is unsent.
    has_yielded: bool,
}

/// So many are sent without waiting for more.
const TOGETHER: usize = 16;
/// A server that takes nothing any more is not sent more than this.
const MOST_UNSENT: usize = 4 << 20;
const AT_ONCE: usize = 16 << 10;

impl Pipeline {
    /// Connects, says user and password, and selects the database. Only where nothing is encrypted.
    pub(crate) async fn to(info: &ConnectionInfo) -> Result<Self, RedisError> {
        let pipe = Pipeline::connected(info.addr()).await?;
        let settings = info.redis_settings();
        if let Some(password) = settings.password() {
            let mut auth = redis::cmd("AUTH");
            if let Some(user) = settings.username() {
                auth.arg(user);
            }
            pipe.ask(|unsent| auth.arg(password).write_packed_command(unsent)).await?;
        }
        if settings.db() != 0 {
            pipe.ask(|unsent| redis::cmd("SELECT").arg(settings.db()).write_packed_command(unsent)).await?;
        }
        Ok(pipe)
    }

    async fn connected(address: &ConnectionAddr) -> io::Result<Self> {
        match address {
            ConnectionAddr::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                let (reader, writer) = stream.into_split();
                Ok(Pipeline::of(Box::new(reader), Writer::Tcp(writer)))
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let (reader, writer) = UnixStream::connect(path).await?.into_split();
                Ok(Pipeline::of(Box::new(reader), Writer::Unix(writer)))
            }
            _ => Err(io::Error::new(io::ErrorKind::Unsupported, "this kind of address")),
        }
    }

    fn of(reader: Box<dyn AsyncRead + Send + Unpin>, writer: Writer) -> Self {
        let state = State {
            writer,
            unsent: Vec::new(),
            gathered: 0,
            waiting: VecDeque::new(),
            driver: None,
            broken: None,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state) });
        let driver = Driver { shared: Arc::downgrade(&shared), reader, held: Vec::new(), has_yielded: false };
        tokio::spawn(driver);
        Pipeline(shared)
    }

    /// Sends the request that `write` appends, and waits for its answer.
    pub(crate) async fn ask(&self, write: impl FnOnce(&mut Vec<u8>)) -> Answer {
        let answer = self.0.send(write)?;
        match answer.await {
            Ok(answer) => answer.and_then(Value::extract_error),
            Err(_) => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, write: impl FnOnce(&mut Vec<u8>)) -> Result<oneshot::Receiver<Answer>, RedisError> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        state.takes_more()?;
        write(&mut state.unsent);
        state.gathered += 1;
        state.waiting.push_back(sender);
        let nothing_under_way = state.waiting.len() == state.gathered;
        if nothing_under_way || state.gathered >= TOGETHER {
            state.write_now();
        }
        let driver = if state.unsent.is_empty() { None } else { state.driver.take() };
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        Ok(receiver)
    }

    /// Writes what is left, as far as the other end takes it.
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

    /// Nothing comes any more: all who wait are told why, and all who will.
    fn break_off(&self, why: &RedisError) {
        let mut state = self.lock();
        state.broken = Some(why.clone());
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waiting in waiting {
            let _ = waiting.send(Err(why.clone()));
        }
    }
}

impl State {
    fn takes_more(&self) -> Result<(), RedisError> {
        match &self.broken {
            Some(broken) => Err(broken.clone()),
            None if self.unsent.len() > MOST_UNSENT => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            None => Ok(()),
        }
    }

    /// As much as can be written at once. A failure shows when the driver tries, or reads.
    fn write_now(&mut self) {
        if let Ok(written) = self.writer.try_write(&self.unsent) {
            self.written(written);
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let written = ready!(self.writer.poll_write(cx, &self.unsent))?;
            self.written(written);
        }
        Poll::Ready(Ok(()))
    }

    fn written(&mut self, bytes: usize) {
        self.unsent.drain(..bytes);
        if self.unsent.is_empty() {
            self.gathered = 0;
        }
    }
}

/// Nobody asks any more. The driver is told, and closes its half.
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
            Err(why) => {
                shared.break_off(&why);
                Poll::Ready(())
            }
        }
    }
}

impl Driver {
    /// Reads as long as something comes.
    fn poll_read(&mut self, cx: &mut Context<'_>, shared: &Shared) -> Result<(), RedisError> {
        let mut bytes = [0; AT_ONCE];
        loop {
            let mut read = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.reader).poll_read(cx, &mut read) {
                Poll::Pending => return Ok(()),
                Poll::Ready(result) => result?,
            }
            if read.filled().is_empty() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.held.extend_from_slice(read.filled());
            self.deliver(shared)?;
        }
    }

    /// Hands each whole answer to the one who waits for it.
    fn deliver(&mut self, shared: &Shared) -> Result<(), RedisError> {
        let mut at = 0;
        while let Some((answer, length)) = first(&self.held[at..])? {
            at += length;
            let waiting = shared.lock().waiting.pop_front();
            let waiting = waiting.ok_or_else(|| nonsense("an answer that nobody has asked for"))?;
            let _ = waiting.send(Ok(answer)); // who does not wait any more needs no answer
        }
        self.held.drain(..at);
        Ok(())
    }
}
