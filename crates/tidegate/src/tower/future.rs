//! # From a ruling to a response
//!
//! ```text
//!   Asking ──► Passing ──► the service's response, with what is left told in it
//!      └─────► Elsewhere ─► another service's
//!      └─────► Answered ──► ours
//! ```
//!
//! Dropping the future at any point gives back the place in line and the permits.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::GatedBody;
use super::otherwise::Otherwise;
use super::service::RateLimit;
use crate::gate::Permits;
use crate::http::{Decisions, Later, Limits, Ruling};

pin_project! {
    /// Where a request is.
    #[project = Projected]
    pub(super) enum Deciding<S, A, B, O>
    where
        S: Service<Request<A>, Response = Response<B>>,
        O: Otherwise<Request<A>, Response<B>, S::Error>,
    {
        /// Waits for the ruling. In a box: few do, and all pay for the room.
        Asking { asking: Option<Box<Asking<S, A, B, O>>> },
        /// With the service.
        Passing {
            #[pin] future: S::Future,
            permits: Option<Permits>,
            telling: Option<Box<(Limits, Decisions)>>,
        },
        /// With another service.
        Elsewhere { #[pin] future: O::Future },
        /// Refused.
        Answered { response: Option<Response<B>> },
    }
}

/// A request that waits for the ruling, and the service that will serve it.
pub(super) struct Asking<S, A, B, O> {
    pub(super) later: Later,
    pub(super) service: RateLimit<S, B, O>,
    pub(super) request: Request<A>,
}

type Served<B, E> = Result<(Response<B>, Permits), E>;

impl<S, A, B, O> Deciding<S, A, B, O>
where
    S: Service<Request<A>, Response = Response<B>>,
    O: Otherwise<Request<A>, Response<B>, S::Error>,
{
    /// The response, and the permits that go with it.
    fn poll_served(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Served<B, S::Error>> {
        loop {
            let next = match self.as_mut().project() {
                Projected::Asking { asking } => {
                    let waiting = asking.as_mut().expect("polled after it was ready");
                    let ruling = ready!(Pin::new(&mut waiting.later).poll(cx));
                    let Asking { mut service, request, .. } = *asking.take().expect("it was there just now");
                    match ruling {
                        Ruling::Pass(passed) => service.pass(request, passed),
                        Ruling::Refuse(refusal) => service.refuse(request, refusal),
                    }
                }
                Projected::Passing { future, permits, telling } => {
                    let mut response = ready!(future.poll(cx))?;
                    if let Some((limits, decisions)) = telling.take().as_deref() {
                        limits.tell(&mut response, decisions);
                    }
                    return Poll::Ready(Ok((response, permits.take().unwrap_or_default())));
                }
                Projected::Elsewhere { future } => {
                    return future.poll(cx).map_ok(|response| (response, Permits::none()));
                }
                Projected::Answered { response } => {
                    let response = response.take().expect("polled after it was ready");
                    return Poll::Ready(Ok((response, Permits::none())));
                }
            };
            self.set(next);
        }
    }
}

macro_rules! future {
    ($(#[$about:meta])* $name:ident gives $response:ty, by $finish:expr) => {
        pin_project! {
            $(#[$about])*
            pub struct $name<S, A, B, O>
            where
                S: Service<Request<A>, Response = Response<B>>,
                O: Otherwise<Request<A>, Response<B>, S::Error>,
            {
                #[pin]
                deciding: Deciding<S, A, B, O>,
            }
        }

        impl<S, A, B, O> $name<S, A, B, O>
        where
            S: Service<Request<A>, Response = Response<B>>,
            O: Otherwise<Request<A>, Response<B>, S::Error>,
        {
            #[inline(always)]
            pub(super) fn new(deciding: Deciding<S, A, B, O>) -> Self {
                $name { deciding }
            }
        }

        impl<S, A, B, O> Future for $name<S, A, B, O>
        where
            S: Service<Request<A>, Response = Response<B>>,
            O: Otherwise<Request<A>, Response<B>, S::Error>,
        {
            type Output = Result<$response, S::Error>;

            fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                self.project().deciding.poll_served(cx).map_ok($finish)
            }
        }

        impl<S, A, B, O> fmt::Debug for $name<S, A, B, O>
        where
            S: Service<Request<A>, Response = Response<B>>,
            O: Otherwise<Request<A>, Response<B>, S::Error>,
        {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}

future! {
    /// The response of a [`RateLimit`](super::RateLimit).
    RateLimitFuture gives Response<B>, by |(response, _)| response
}

future! {
    /// The response of a [`Concurrency`](super::Concurrency).
    ConcurrencyFuture gives Response<GatedBody<B>>, by |(response, permits)| {
        let status = response.status();
        response.map(|body| {
            if permits.is_empty() { GatedBody::bare(body) } else { GatedBody::new(body, permits, status) }
        })
    }
}
