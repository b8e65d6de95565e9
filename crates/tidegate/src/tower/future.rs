//! # From an outcome to a response
//!
//! ```text
//!   Waiting ──► Serving ──► the service's response, with the remaining quota
//!      └──────► Fallback ─► the fallback's response
//!      └──────► Refused ──► the refusal
//! ```
//!
//! Dropping the future in any state removes the request from the queue and releases its permits.

use std::convert::identity;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::{PermitBody, release_finished};
use super::fallback::Fallback;
use super::on_response::OnResponse;
use super::service::RateLimit;
use crate::gate::Permits;
use crate::http::{LimitOutcome, PendingOutcome};

pin_project! {
    /// The state of a request from its evaluation to its response.
    #[project = Projected]
    pub(super) enum ResponseState<S, A, B, O>
    where
        S: Service<Request<A>, Response = Response<B>>,
        O: Fallback<Request<A>, Response<B>, S::Error>,
    {
        /// Waits for the outcome. Boxed, because it is large and few requests wait.
        Waiting { waiting: Option<Box<WaitingRequest<S, A, B, O>>> },
        /// In the service. Nothing is to be done on its response.
        Serving { #[pin] future: S::Future },
        /// In the service. Its response needs fields, or has permits.
        ServingThenFinish { #[pin] future: S::Future, on_response: OnResponse },
        /// In the fallback service.
        Fallback { #[pin] future: O::Future },
        /// Refused.
        Refused { response: Option<Response<B>> },
    }
}

/// A request that waits for its outcome, and the service that will serve it.
pub(super) struct WaitingRequest<S, A, B, O> {
    pub(super) outcome: PendingOutcome,
    pub(super) service: RateLimit<S, B, O>,
    pub(super) request: Request<A>,
}

impl<S, A, B, O> ResponseState<S, A, B, O>
where
    S: Service<Request<A>, Response = Response<B>>,
    O: Fallback<Request<A>, Response<B>, S::Error>,
{
    /// Polls for the response and the permits that go with it, in any state.
    #[inline(never)]
    fn poll_served(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Served<B, S::Error>> {
        loop {
            let next = match self.as_mut().project() {
                Projected::Serving { future } => return future.poll(cx).map_ok(with_no_permits),
                Projected::ServingThenFinish { future, on_response } => {
                    let mut response = ready!(future.poll(cx))?;
                    let permits = mem::take(on_response).finish(&mut response);
                    return Poll::Ready(Ok((response, permits)));
                }
                Projected::Fallback { future } => return future.poll(cx).map_ok(with_no_permits),
                Projected::Refused { response } => {
                    let response = response.take().expect("polled after completion");
                    return Poll::Ready(Ok(with_no_permits(response)));
                }
                Projected::Waiting { waiting } => ready!(poll_waiting(waiting, cx)),
            };
            self.set(next);
        }
    }
}

type Served<B, E> = Result<(Response<B>, Permits), E>;

fn with_no_permits<B>(response: Response<B>) -> (Response<B>, Permits) {
    (response, Permits::none())
}

/// The state that follows the outcome.
fn poll_waiting<S, A, B, O>(
    waiting: &mut Option<Box<WaitingRequest<S, A, B, O>>>,
    cx: &mut Context<'_>,
) -> Poll<ResponseState<S, A, B, O>>
where
    S: Service<Request<A>, Response = Response<B>>,
    O: Fallback<Request<A>, Response<B>, S::Error>,
{
    let pending = waiting.as_mut().expect("polled after completion");
    let outcome = ready!(Pin::new(&mut pending.outcome).poll(cx));
    let WaitingRequest { mut service, request, .. } = *waiting.take().expect("checked just above");
    Poll::Ready(match outcome {
        LimitOutcome::Pass(passed) => service.pass(request, passed),
        LimitOutcome::Refuse(refusal) => service.refuse(request, refusal),
    })
}

macro_rules! future {
    ($(#[$about:meta])* $name:ident returns $response:ty, $without_permits:expr, or with permits $finish:expr) => {
        pin_project! {
            $(#[$about])*
            pub struct $name<S, A, B, O>
            where
                S: Service<Request<A>, Response = Response<B>>,
                O: Fallback<Request<A>, Response<B>, S::Error>,
            {
                #[pin]
                pub(super) state: ResponseState<S, A, B, O>,
            }
        }

        impl<S, A, B, O> Future for $name<S, A, B, O>
        where
            S: Service<Request<A>, Response = Response<B>>,
            O: Fallback<Request<A>, Response<B>, S::Error>,
        {
            type Output = Result<$response, S::Error>;

            // Responses are large, and each function that returns one may copy it: the fast path returns only the response.
            fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                let mut state = self.project().state;
                match state.as_mut().project() {
                    Projected::Serving { future } => future.poll(cx).map_ok($without_permits),
                    Projected::ServingThenFinish { future, on_response } => future.poll(cx).map_ok(|mut response| {
                        let permits = mem::take(on_response).finish(&mut response);
                        $finish(response, permits)
                    }),
                    _ => state.poll_served(cx).map_ok(|(response, permits)| $finish(response, permits)),
                }
            }
        }

        impl<S, A, B, O> fmt::Debug for $name<S, A, B, O>
        where
            S: Service<Request<A>, Response = Response<B>>,
            O: Fallback<Request<A>, Response<B>, S::Error>,
        {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}

future! {
    /// The response future of a [`RateLimit`](super::RateLimit).
    RateLimitFuture returns Response<B>, identity, or with permits released_response
}

future! {
    /// The response future of a [`Concurrency`](super::Concurrency).
    ConcurrencyFuture returns Response<PermitBody<B>>,
        |response| response.map(PermitBody::without_permits), or with permits permit_response
}

/// Releases the permits with the response head: the end of the body is not observed.
fn released_response<B>(response: Response<B>, permits: Permits) -> Response<B> {
    release_finished(permits, response.status());
    response
}

fn permit_response<B>(response: Response<B>, permits: Permits) -> Response<PermitBody<B>> {
    let status = response.status();
    response.map(|body| {
        if permits.is_empty() {
            PermitBody::without_permits(body)
        } else {
            PermitBody::new(body, permits, status)
        }
    })
}
