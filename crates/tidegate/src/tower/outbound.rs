//! # Outbound requests
//!
//! The servers that we call have limits of their own, and it is better to keep them than to be refused. In front of a
//! client, a layer waits instead of refusing: the calls of a burst leave one after the other. The layer also obeys the
//! servers: after a `Retry-After`, or a `RateLimit` with nothing remaining, that host is not called before the time is
//! up.
//!
//! ```text
//!   request ─► backoff? sleep ──► limits: wait in queue ───► call ─► response, its backoff recorded
//!                   ▲                               │
//!                   └── backoff by now? once more ──┘
//! ```
//!
//! A refusal by the server is returned to the caller unchanged. Retries are left to code that can send the body of the
//! request again.

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

/// Keeps to the limits of the servers that are called.
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
    /// Our own limits do not allow the call in the time it may wait.
    Refused(Box<Refusal>),
    /// The server has asked for a longer wait than the call may have.
    HeldOff {
        /// How long it is until the host may be called again.
        wait: Wait,
    },
    /// The call was made, and failed.
    Service(E),
}

/// The default of the longest wait for a host that asks for one.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

impl OutboundLayer {
    /// Applies these limits to calls.
    ///
    /// Calls beyond them fail immediately, unless the limits [wait](crate::http::LimitsBuilder::wait_at_most).
    ///
    /// The waits that servers ask for are timed by the clock of these limits. Without a clock these waits are ignored.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let holds = limits.timer().map(|timer| Arc::new(HostBackoff::new(timer)));
        OutboundLayer { limits, holds, longest_hold: LONGEST_HOLD }
    }

    /// Sets the longest wait for a server that asks for one; a minute by default.
    ///
    /// Calls that would have to wait longer fail immediately.
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
    /// What a request does next.
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
            Evaluation::Pending(later) => Next::Wait(For::Turn(later), request),
        }
    }

    /// What a request does next when the limits have allowed it.
    ///
    /// If its host has asked for a wait meanwhile, it starts over: requests that the limits have spaced out must not
    /// all leave at the same moment when the wait is over.
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

    /// How long the host must not be called, if it has asked for a wait.
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
                // The clone may not be ready yet; the service that is ready goes with the request.
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

/// What a request waits for.
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
                    return Poll::Ready(Err(failure.take().expect("polled after completion").into()));
                }
                Projected::Calling { future, permits, heeding } => {
                    let response = ready!(future.poll(cx)).map_err(OutboundError::Service)?;
                    if let Some((holds, host)) = heeding.take() {
                        holds.heed(host, &response);
                    }
                    return Poll::Ready(Ok(gated(response, permits.take().unwrap_or_default())));
                }
                Projected::Waiting { waiting } => {
                    let outcome = ready!(waiting.as_mut().expect("polled after completion").what.poll(cx));
                    let Waiting { mut service, request, .. } =
                        *waiting.take().expect("it is there: see above");
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
    /// The outcome, or `None` when the host may be called again.
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
