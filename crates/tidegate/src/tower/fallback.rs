//! # Another service for those who are refused
//!
//! Sometimes a worse answer is better than none: yesterday's prices, a page without recommendations. A layer can be
//! given another service, to which it hands the requests that the limits do not let pass. That one finds the
//! [`Refusal`](crate::http::Refusal) in the extensions of the request.

use std::future::Ready;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

/// Where requests go that are refused: nowhere, or to another service.
pub trait Fallback<Request, Response, Error>: Clone {
    /// What comes of it.
    type Future: Future<Output = Result<Response, Error>>;

    /// Whether every request is served, so that nobody need be told of the refusal.
    const SERVES: bool;

    /// Serves a request that was refused. `None` if it is to be answered with the refusal.
    fn serve(&mut self, request: Request, prepare: impl FnOnce(&mut Request)) -> Option<Self::Future>;
}

/// Nowhere: who is refused is told so.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFallback;

/// To another service.
#[derive(Clone, Copy, Debug)]
pub struct FallbackService<T>(pub(super) T);

impl<Request, Response, Error> Fallback<Request, Response, Error> for NoFallback {
    type Future = Ready<Result<Response, Error>>;

    const SERVES: bool = false;

    fn serve(&mut self, _: Request, _: impl FnOnce(&mut Request)) -> Option<Self::Future> {
        None
    }
}

impl<T, Request> Fallback<Request, T::Response, T::Error> for FallbackService<T>
where
    T: Service<Request> + Clone,
{
    type Future = Once<T, T::Future, Request>;

    const SERVES: bool = true;

    fn serve(&mut self, mut request: Request, prepare: impl FnOnce(&mut Request)) -> Option<Self::Future> {
        prepare(&mut request);
        Some(Once { state: State::Waiting { service: self.0.clone(), request: Some(request) } })
    }
}

pin_project! {
    /// One call of a service, made when that is ready.
    #[derive(Debug)]
    pub struct Once<T, F, Request> {
        #[pin]
        state: State<T, F, Request>,
    }
}

pin_project! {
    #[project = StateProjected]
    #[derive(Debug)]
    enum State<T, F, Request> {
        Waiting { service: T, request: Option<Request> },
        Called { #[pin] future: F },
    }
}

impl<T, Request> Future for Once<T, T::Future, Request>
where
    T: Service<Request>,
{
    type Output = Result<T::Response, T::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let mut state = self.as_mut().project().state;
            let future = match state.as_mut().project() {
                StateProjected::Called { future } => return future.poll(cx),
                StateProjected::Waiting { service, request } => {
                    ready!(service.poll_ready(cx))?;
                    service.call(request.take().expect("it is called once"))
                }
            };
            state.set(State::Called { future });
        }
    }
}
