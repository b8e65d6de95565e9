//! # One connection
//!
//! Many calls at once, over HTTP/2. A call that has begun has to be there in time, from the first byte of its head on,
//! and whoever asks nothing for long is told to go, by a word and not by a closed door: a proxy that is just about to
//! ask takes another connection then, and no call is lost.
//!
//! There is no keeping alive of idle connections by pings; whoever wants that may ping us.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Instant;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate::clock::Clock;
use tokio::sync::watch;

use super::Service;
use super::arriving::Arriving;
use super::route::answer;
use crate::serve::socket::Socket;
use crate::serve::unfinished::Unfinished;
use crate::serve::watch::{Told, Watched};

/// So many calls at once on one connection; those who want more open another.
const CALLS: u32 = 256;
/// The longest head of a call.
const HEAD: u32 = 16 << 10;
/// What may be under way to us, for one call and for all of them.
const WINDOW: u32 = 64 << 10;
const ALL_WINDOWS: u32 = 256 << 10;
/// So many looks of the thread after somebody was told to go, they are gone.
const PATIENCE: u64 = 2;

/// Answers until the client goes, or is told to.
pub(crate) async fn serve<C: Clock + Send + Sync + 'static>(
    service: Arc<Service<C>>,
    socket: Socket,
    watched: Arc<Watched>,
    unfinished: Arc<Unfinished>,
    now: impl Fn() -> u64 + Clone + Send + Sync + Unpin + 'static,
) {
    let (tell, ending) = watch::channel(false);
    let under_way = Arc::new(UnderWay { calls: AtomicUsize::new(0), watched: watched.clone() });
    let socket = Arriving::new(socket, under_way.clone(), now.clone());
    let answering = {
        let now = now.clone();
        service_fn(move |request| {
            let (service, ending, now) = (service.clone(), ending.clone(), now.clone());
            let call = UnderWay::begin(&under_way, now);
            let share = unfinished.share();
            async move {
                let started = Instant::now();
                let answer = answer(&service, request, share, ending).await;
                service.door().answers.saw(started.elapsed());
                drop(call);
                Ok::<_, Infallible>(answer)
            }
        })
    };
    let connection = builder().serve_connection(TokioIo::new(socket), answering);
    let (mut connection, mut since) = (pin!(connection), None);
    poll_fn(|cx| {
        let told = watched.poll_told(cx);
        if told != Told::Nothing {
            if since.is_none() {
                tell.send_replace(true);
                connection.as_mut().graceful_shutdown();
            }
            if told == Told::Leave && now() > *since.get_or_insert_with(&now) + PATIENCE {
                return Poll::Ready(());
            }
            since.get_or_insert_with(&now);
        }
        connection.as_mut().poll(cx).map(|_| ()) // an error of the socket is the end, and nobody is there to be told
    })
    .await;
}

fn builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .max_concurrent_streams(CALLS)
        .max_header_list_size(HEAD)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(ALL_WINDOWS)
        .max_send_buf_size(WINDOW as usize)
        .auto_date_header(false);
    builder
}

/// How many calls are under way. While there are some, the client has to get on with them.
pub(super) struct UnderWay {
    calls: AtomicUsize,
    watched: Arc<Watched>,
}

/// A call, until it is answered or given up.
pub(super) struct Call<N: Fn() -> u64> {
    under_way: Arc<UnderWay>,
    now: N,
}

impl UnderWay {
    pub(super) fn begin<N: Fn() -> u64>(this: &Arc<Self>, now: N) -> Call<N> {
        this.calls.fetch_add(1, Ordering::Relaxed);
        this.watched.stalled(now());
        Call { under_way: this.clone(), now }
    }
}

impl<N: Fn() -> u64> Drop for Call<N> {
    fn drop(&mut self) {
        let now = (self.now)();
        if self.under_way.calls.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.under_way.watched.moved(now);
        }
        self.under_way.watched.active(now);
    }
}
