//! # From an outcome to a response
//!
//! ```text
//!   Asking ──► Passing ──► the service's response, with the remaining quota
//!      └─────► Elsewhere ─► the fallback's response
//!      └─────► Answered ──► the refusal
//! ```
//!
//! Dropping the future at any point leaves the queue and releases the permits.

use std::convert::identity;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::{PermitBody, end};
use super::fallback::Fallback;
use super::on_response::OnResponse;
use super::service::RateLimit;
use crate::gate::Permits;
use crate::http::{LimitOutcome, PendingOutcome};

pin_project! {
    /// The state of a request.
    #[project = Projected]
    pub(super) enum Deciding<S, A, B, O>
    where
        S: Service<Request<A>, Response = Response<B>>,
        O: Fallback<Request<A>, Response<B>, S::Error>,
    {
        /// Waits for the outcome. Boxed: few wait, and all would pay for the size.
        Asking { asking: Option<Box<Asking<S, A, B, O>>> },
        /// In the service, with nothing to do on its response.
        Passing { #[pin] future: S::Future },
        /// In the service, with something to do on its response.
        PassingFirst { #[pin] future: S::Future, on_response: OnResponse },
        /// In the fallback service.
        Elsewhere { #[pin] future: O::Future },
        /// Refused.
        Answered { response: Option<Response<B>> },
    }
}

/// A request that waits for its outcome, and the service that will serve it.
pub(super) struct Asking<S, A, B, O> {
    pub(super) later: PendingOutcome,
    pub(super) service: RateLimit<S, B, O>,
    pub(super) request: Request<A>,
}

impl<S, A, B, O> Deciding<S, A, B, O>
where
    S: Service<Request<A>, Response = Response<B>>,
    O: Fallback<Request<A>, Response<B>, S::Error>,
{
    /// Polls for the response and the permits that go with it, in any state.
    #[inline(never)]
    fn poll_served(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Served<B, S::Error>> {
        loop {
            let next = match self.as_mut().project() {
                Projected::Passing { future } => return future.poll(cx).map_ok(with_no_permits),
                Projected::PassingFirst { future, on_response } => {
                    let mut response = ready!(future.poll(cx))?;
                    let permits = mem::take(on_response).finish(&mut response);
                    return Poll::Ready(Ok((response, permits)));
                }
                Projected::Elsewhere { future } => return future.poll(cx).map_ok(with_no_permits),
                Projected::Answered { response } => {
                    let response = response.take().expect("polled after completion");
                    return Poll::Ready(Ok(with_no_permits(response)));
                }
                Projected::Asking { asking } => ready!(poll_asking(asking, cx)),
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
fn poll_asking<S, A, B, O>(
    asking: &mut Option<Box<Asking<S, A, B, O>>>,
    cx: &mut Context<'_>,
) -> Poll<Deciding<S, A, B, O>>
where
    S: Service<Request<A>, Response = Response<B>>,
    O: Fallback<Request<A>, Response<B>, S::Error>,
{
    let waiting = asking.as_mut().expect("polled after completion");
    let outcome = ready!(Pin::new(&mut waiting.later).poll(cx));
    let Asking { mut service, request, .. } = *asking.take().expect("checked just above");
    Poll::Ready(match outcome {
        LimitOutcome::Pass(passed) => service.pass(request, passed),
        LimitOutcome::Refuse(refusal) => service.refuse(request, refusal),
    })
}

macro_rules! future {
    ($(#[$about:meta])* $name:ident gives $response:ty, $without_permit:expr, or with permits $finish:expr) => {
        pin_project! {
            $(#[$about])*
            pub struct $name<S, A, B, O>
            where
                S: Service<Request<A>, Response = Response<B>>,
                O: Fallback<Request<A>, Response<B>, S::Error>,
            {
                #[pin]
                pub(super) deciding: Deciding<S, A, B, O>,
            }
        }

        impl<S, A, B, O> Future for $name<S, A, B, O>
        where
            S: Service<Request<A>, Response = Response<B>>,
            O: Fallback<Request<A>, Response<B>, S::Error>,
        {
            type Output = Result<$response, S::Error>;

            // Responses are large, and are copied each time they are passed on: the fast path passes on nothing else.
            fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                let mut deciding = self.project().deciding;
                match deciding.as_mut().project() {
                    Projected::Passing { future } => future.poll(cx).map_ok($without_permit),
                    Projected::PassingFirst { future, on_response } => future.poll(cx).map_ok(|mut response| {
                        let permits = mem::take(on_response).finish(&mut response);
                        $finish(response, permits)
                    }),
                    _ => deciding.poll_served(cx).map_ok(|(response, permits)| $finish(response, permits)),
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
    /// The response of a [`RateLimit`](super::RateLimit).
    RateLimitFuture gives Response<B>, identity, or with permits ended
}

future! {
    /// The response of a [`Concurrency`](super::Concurrency).
    ConcurrencyFuture gives Response<PermitBody<B>>,
        |response| response.map(PermitBody::without_permit), or with permits gated
}

/// Releases the permits with the response head: the end of the body is not seen here.
fn ended<B>(response: Response<B>, permits: Permits) -> Response<B> {
    end(permits, response.status());
    response
}

fn gated<B>(response: Response<B>, permits: Permits) -> Response<PermitBody<B>> {
    let status = response.status();
    response.map(|body| {
        if permits.is_empty() {
            PermitBody::without_permit(body)
        } else {
            PermitBody::new(body, permits, status)
        }
    })
}
