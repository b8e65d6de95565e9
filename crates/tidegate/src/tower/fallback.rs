//! # Fallback service for refused requests
//!
//! A degraded response is sometimes better than a refusal: yesterday's prices, a page without recommendations. A layer
//! can send refused requests to a fallback service. That service finds the [`Refusal`](crate::http::Refusal) in
//! the extensions of the request.

use std::future::Ready;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

/// Serves refused requests. Implemented by [`FallbackService`] and [`NoFallback`].
pub trait Fallback<Request, Response, Error>: Clone {
    /// The future of the fallback's response.
    type Future: Future<Output = Result<Response, Error>>;

    /// Whether refused requests are served by a fallback, so that no refusal is sent.
    const SERVES: bool;

    /// Serves a refused request. `None` if the refusal is to be sent instead.
    fn serve(&mut self, request: Request, prepare: impl FnOnce(&mut Request)) -> Option<Self::Future>;
}

/// No fallback: the response to a refused request is the refusal.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFallback;

/// Sends refused requests to a fallback service.
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
    type Future = FallbackFuture<T, T::Future, Request>;

    const SERVES: bool = true;

    fn serve(&mut self, mut request: Request, prepare: impl FnOnce(&mut Request)) -> Option<Self::Future> {
        prepare(&mut request);
        Some(FallbackFuture { state: State::Waiting { service: self.0.clone(), request: Some(request) } })
    }
}

pin_project! {
    /// Waits until the fallback service is ready, then calls it.
    #[derive(Debug)]
    pub struct FallbackFuture<T, F, Request> {
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

impl<T, Request> Future for FallbackFuture<T, T::Future, Request>
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
                    service.call(request.take().expect("the service is called once"))
                }
            };
            state.set(State::Called { future });
        }
    }
}
