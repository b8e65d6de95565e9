//! # One connection
//!
//! hyper reads and writes; here is who watches it. A client that has begun a request has to finish it in time, and
//! one that is answered has to take the answer in time. There is no timer per request: a connection notes when
//! something begins and ends, and the thread compares now and then, as it does for all its connections.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::reply::Sent;
use crate::engine::meter::DoorMeter;
use crate::serve::socket::Socket;
use crate::serve::watch::{Told, Watched};

/// The longest head of a request, and how much is read at once.
const HEAD: usize = 16 << 10;

/// Whoever is asked by HTTP.
pub(crate) trait Answers: Send + Sync + 'static {
    /// Answers a request, whatever it is.
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Sent> + Send;

    /// What is counted here.
    fn door(&self) -> &DoorMeter;
}

/// Answers until the client goes, or is told to.
pub(crate) async fn serve<S: Answers>(
    service: Arc<S>,
    socket: Socket,
    watched: Arc<Watched>,
    now: impl Fn() -> u64 + Clone + Send + Sync + Unpin + 'static,
) {
    let io = TokioIo::new(Noting { socket, watched: watched.clone(), now: now.clone() });
    let noted = watched.clone();
    let answering = service_fn(move |request| {
        let (service, noted, now) = (service.clone(), noted.clone(), now.clone());
        async move {
            let started = Instant::now();
            let answer = service.answer(request).await;
            service.door().answers.saw(started.elapsed());
            noted.moved(now());
            noted.active(now());
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new().max_buf_size(HEAD).serve_connection(io, answering);
    let (mut connection, mut is_finishing) = (pin!(connection), false);
    poll_fn(|cx| {
        match watched.poll_told(cx) {
            Told::Leave => return Poll::Ready(()),
            Told::Finish if !is_finishing => {
                is_finishing = true;
                connection.as_mut().graceful_shutdown();
            }
            _ => {}
        }
        connection.as_mut().poll(cx).map(|_| ()) // an error of the socket is the end, and nobody is there to be told
    })
    .await;
}

/// A socket that notes when a request begins, and when an answer is not taken.
struct Noting<N> {
    socket: Socket,
    watched: Arc<Watched>,
    now: N,
}

impl<N: Fn() -> u64 + Unpin> AsyncRead for Noting<N> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let it = self.get_mut();
        let before = buffer.filled().len();
        let read = AsyncRead::poll_read(Pin::new(&mut it.socket), cx, buffer);
        if buffer.filled().len() > before {
            it.watched.stalled((it.now)()); // until it is answered; more of the same request does not begin anew
        }
        read
    }
}

impl<N: Fn() -> u64 + Unpin> AsyncWrite for Noting<N> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let it = self.get_mut();
        let written = AsyncWrite::poll_write(Pin::new(&mut it.socket), cx, bytes);
        match written {
            Poll::Ready(_) => it.watched.moved((it.now)()),
            Poll::Pending => it.watched.stalled((it.now)()),
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let it = self.get_mut();
        let flushed = it.socket.poll_flush(cx);
        if flushed.is_pending() {
            it.watched.stalled((it.now)());
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}
