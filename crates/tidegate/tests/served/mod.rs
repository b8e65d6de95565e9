//! A service to put layers in front of, and requests to send there.
#![allow(dead_code, reason = "no test binary uses all of it")]

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use http::{Request, Response};
use tower_service::Service;

/// Responds with the body `served`, and counts the requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counting(Arc<AtomicUsize>);

impl Counting {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl<A> Service<Request<A>> for Counting {
    type Response = Response<Vec<u8>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Vec<u8>>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<A>) -> Self::Future {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(Response::new(b"served".to_vec())))
    }
}

pub(crate) fn request() -> Request<()> {
    Request::new(())
}

/// A request of this user.
pub(crate) fn of(user: &str) -> Request<()> {
    Request::get("/").header("x-user", user).body(()).expect("valid")
}

/// Sends a request when the service is ready.
pub(crate) async fn send<S, A>(service: &mut S, request: Request<A>) -> S::Response
where
    S: Service<Request<A>>,
    S::Error: std::fmt::Debug,
{
    poll_fn(|cx| service.poll_ready(cx)).await.expect("valid");
    service.call(request).await.expect("valid")
}

/// Polls a future once.
pub(crate) fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}
