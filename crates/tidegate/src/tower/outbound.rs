//! # Calling others
//!
//! Whoever we call has limits of its own, and it is better to keep them than to be told. In front of a client a layer
//! waits instead of refusing: the calls of a burst leave one after the other. And it obeys: after a `Retry-OnResponse`, or
//! a `RateLimit` of which nothing is left, that host is not called before the time is up.
//!
//! ```text
//!   request ─► held off? sleep ─► limits: wait for a turn ─► call ─► response, heeded
//!                   ▲                               │
//!                   └── held off by now? once more ─┘
//! ```
//!
//! A response that refuses is still the caller's, as it came; sending the request again is for whoever can send its
//! body again.

use std::error::Error;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::http::{Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::body::PermitBody;
use super::host_backoff::{HostBackoff, at_most, host_of};
use crate::gate::Permits;
use crate::http::{Evaluation, Head, LimitOutcome, Limits, Passed, PendingOutcome, Refusal, Sleeping};
use tidegate_core::Wait;

/// Keeps to the limits of those we call.
///
/// ```
/// use std::time::Duration;
/// use tidegate::http::{Limits, by};
/// use tidegate::tower::OutboundLayer;
/// use tidegate::{Limiter, Quota};
///
/// # #[cfg(feature = "tokio")] {
/// let limits = Limits::over(Limiter::new(Quota::per_second(30).burst(1)))
///     .rule("partner", by::global())
///     .wait_at_most(Duration::from_secs(10))
///     .build()?;
/// let layer = OutboundLayer::new(limits);
/// # }
/// # Ok::<(), tidegate::http::InvalidLimits>(())
/// ```
///
/// Permits are held until the body of the response has ended or is dropped.
#[derive(Clone, Debug)]
pub struct OutboundLayer {
    limits: Limits,
    holds: Option<Arc<HostBackoff>>,
    longest_hold: Duration,
}

/// A client that keeps to limits: see [`OutboundLayer`].
#[derive(Clone, Debug)]
pub struct Outbound<S> {
    inner: S,
    layer: OutboundLayer,
}

/// Why a call was not made, or failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum OutboundError<E> {
    /// Our own limits do not let it pass in the time it has.
    Refused(Box<Refusal>),
    /// The other side has asked for more time than it has.
    HeldOff {
        /// How long it is until then.
        wait: Wait,
    },
    /// The call was made, and failed.
    Service(E),
}

/// Hosts that ask for longer than this are not waited for, unless it is said otherwise.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

impl OutboundLayer {
    /// By these limits. Unless they [wait](crate::http::LimitsBuilder::wait_at_most), calls beyond them fail at once.
    ///
    /// What others ask for is heeded by the clock of these limits; without any, only these limits are kept.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let holds = limits.timer().map(|timer| Arc::new(HostBackoff::new(timer)));
        OutboundLayer { limits, holds, longest_hold: LONGEST_HOLD }
    }

    /// Waits for at most so long if the other side asks for it; a minute unless said otherwise. Calls that would have
    /// to wait longer fail at once.
    #[must_use]
    pub fn longest_hold(self, longest_hold: Duration) -> Self {
        OutboundLayer { longest_hold, ..self }
    }
}

impl<S> Layer<S> for OutboundLayer {
    type Service = Outbound<S>;

    fn layer(&self, inner: S) -> Outbound<S> {
        Outbound { inner, layer: self.clone() }
    }
}

impl<S> Outbound<S> {
    /// Where a request goes next.
    fn begin<A>(&mut self, request: Request<A>) -> Next<A>
    where
        S: Service<Request<A>>,
    {
        let OutboundLayer { limits, longest_hold, .. } = &self.layer;
        if let Some((wait, holds)) = self.held_off(&request) {
            return match at_most(wait, *longest_hold) {
                Some(time) => Next::Wait(For::Host(holds.timer.sleep(time)), request),
                None => Next::Fail(Failure::HeldOff(wait)),
            };
        }
        match limits.evaluate(&Head::of(&request)) {
            Evaluation::Now(LimitOutcome::Pass(passed)) => Next::Call(request, passed),
            Evaluation::Now(LimitOutcome::Refuse(refusal)) => Next::Fail(Failure::Refused(refusal)),
            Evaluation::PendingOutcome(later) => Next::Wait(For::Turn(later), request),
        }
    }

    /// Where a request goes whose turn it is. If its host has asked for time meanwhile, it begins anew: those who had their
    /// turns one after the other are not to leave all at once when the time is up.
    fn go<A>(&mut self, request: Request<A>, passed: Passed) -> Next<A>
    where
        S: Service<Request<A>>,
    {
        if self.held_off(&request).is_none() {
            return Next::Call(request, passed);
        }
        drop(passed);
        self.begin(request)
    }

    /// For how long the host is not to be called, if so.
    fn held_off<A>(&self, request: &Request<A>) -> Option<(Wait, &HostBackoff)> {
        let holds = self.layer.holds.as_deref()?;
        Some((holds.left(request)?, holds))
    }

    fn state<A>(&mut self, next: Next<A>) -> State<S, S::Future, A>
    where
        S: Service<Request<A>> + Clone,
    {
        match next {
            Next::Fail(failure) => State::Failed { failure: Some(failure) },
            Next::Wait(what, request) => {
                // The clone may not be ready yet; the one that is goes with the request.
                let clone = self.clone();
                let service = mem::replace(self, clone);
                State::Waiting { waiting: Some(Box::new(Waiting { what, service, request })) }
            }
            Next::Call(request, passed) => {
                let heeding = self.layer.holds.clone().map(|holds| (holds, host_of(&request)));
                State::Calling { future: self.inner.call(request), permits: Some(passed.permits), heeding }
            }
        }
    }
}

enum Next<A> {
    Wait(For, Request<A>),
    Call(Request<A>, Passed),
    Fail(Failure),
}

/// What is waited for.
enum For {
    Host(Sleeping),
    Turn(PendingOutcome),
}

enum Failure {
    Refused(Box<Refusal>),
    HeldOff(Wait),
}

struct Waiting<S, A> {
    what: For,
    service: Outbound<S>,
    request: Request<A>,
}

impl<S, A, B> Service<Request<A>> for Outbound<S>
where
    S: Service<Request<A>, Response = Response<B>> + Clone,
{
    type Response = Response<PermitBody<B>>;
    type Error = OutboundError<S::Error>;
    type Future = OutboundFuture<S, S::Future, A>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(OutboundError::Service)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let next = self.begin(request);
        OutboundFuture { state: self.state(next) }
    }
}

pin_project! {
    /// The response of an [`Outbound`].
    pub struct OutboundFuture<S, F, A> {
        #[pin]
        state: State<S, F, A>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<S, F, A> {
        Waiting { waiting: Option<Box<Waiting<S, A>>> },
        Calling { #[pin] future: F, permits: Option<Permits>, heeding: Option<(Arc<HostBackoff>, Vec<u8>)> },
        Failed { failure: Option<Failure> },
    }
}

impl<S, A, B> Future for OutboundFuture<S, S::Future, A>
where
    S: Service<Request<A>, Response = Response<B>> + Clone,
{
    type Output = Result<Response<PermitBody<B>>, OutboundError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                Projected::Failed { failure } => {
                    return Poll::Ready(Err(failure.take().expect("polled after it was ready").into()));
                }
                Projected::Calling { future, permits, heeding } => {
                    let response = ready!(future.poll(cx)).map_err(OutboundError::Service)?;
                    if let Some((holds, host)) = heeding.take() {
                        holds.heed(host, &response);
                    }
                    return Poll::Ready(Ok(gated(response, permits.take().unwrap_or_default())));
                }
                Projected::Waiting { waiting } => {
                    let outcome = ready!(waiting.as_mut().expect("polled after it was ready").what.poll(cx));
                    let Waiting { mut service, request, .. } =
                        *waiting.take().expect("it was there just now");
                    let next = match outcome {
                        None => service.begin(request),
                        Some(LimitOutcome::Pass(passed)) => service.go(request, passed),
                        Some(LimitOutcome::Refuse(refusal)) => Next::Fail(Failure::Refused(refusal)),
                    };
                    service.state(next)
                }
            };
            state.set(next);
        }
    }
}

impl For {
    /// The ruling, or `None` when the host may be called again.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<LimitOutcome>> {
        match self {
            For::Host(sleeping) => sleeping.as_mut().poll(cx).map(|()| None),
            For::Turn(later) => Pin::new(later).poll(cx).map(Some),
        }
    }
}

fn gated<B>(response: Response<B>, permits: Permits) -> Response<PermitBody<B>> {
    let status = response.status();
    response.map(|body| PermitBody::new(body, permits, status))
}

impl<E> From<Failure> for OutboundError<E> {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) => OutboundError::Refused(refusal),
            Failure::HeldOff(wait) => OutboundError::HeldOff { wait },
        }
    }
}

impl<S, F, A> fmt::Debug for OutboundFuture<S, F, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundFuture").finish_non_exhaustive()
    }
}

impl<E> fmt::Display for OutboundError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OutboundError::Refused(refusal) => write!(f, "not called: {refusal}"),
            OutboundError::HeldOff { wait } => {
                write!(f, "not called: the other side has asked us to wait {wait}, which is too long")
            }
            OutboundError::Service(_) => f.write_str("the call has failed"),
        }
    }
}

impl<E: Error + 'static> Error for OutboundError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            OutboundError::Service(source) => Some(source),
            OutboundError::Refused(_) | OutboundError::HeldOff { .. } => None,
        }
    }
}
