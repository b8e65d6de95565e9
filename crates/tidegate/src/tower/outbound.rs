//! # Outbound requests
//!
//! A client that calls rate-limited servers should stay within their limits instead of being refused. In front of a
//! client, the layer delays calls instead of refusing them: the calls of a burst are sent one after the other. The layer
//! also obeys the servers: after a `Retry-After`, or a `RateLimit` with nothing remaining, it does not call that host
//! before the time has passed.
//!
//! ```text
//!   request ─► backoff? sleep ──► limits: wait in queue ───► call ─► response: record its backoff
//!                   ▲                               │
//!                   └── new backoff? start over ────┘
//! ```
//!
//! A refusal by the server is returned to the caller unchanged. The layer does not retry, because it cannot send the
//! body of the request again.

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

/// Limits the calls of a client, and backs off when servers request it.
///
/// ```
/// use std::time::Duration;
/// use tidegate::http::{Limits, by};
/// use tidegate::tower::OutboundLayer;
/// use tidegate::{Limiter, Quota};
///
/// # #[cfg(feature = "tokio")] {
/// let limits = Limits::builder(Limiter::new(Quota::per_second(30).burst(1)))
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
    backoffs: Option<Arc<HostBackoff>>,
    max_backoff: Duration,
}

/// A client with limits on its calls: see [`OutboundLayer`].
#[derive(Clone, Debug)]
pub struct Outbound<S> {
    inner: S,
    layer: OutboundLayer,
}

/// Why a call was not made, or failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum OutboundError<E> {
    /// The limits of the layer refused the call, or the wait would be too long.
    Refused(Box<Refusal>),
    /// The host has requested a wait that is longer than [`OutboundLayer::max_backoff`].
    BackingOff {
        /// The time until the host may be called again.
        wait: Wait,
    },
    /// The call was made and failed.
    Service(E),
}

/// The default maximum backoff.
const DEFAULT_MAX_BACKOFF: Duration = Duration::from_secs(60);

impl OutboundLayer {
    /// Applies these limits to calls.
    ///
    /// Calls beyond them fail immediately, unless the limits [wait](crate::http::LimitsBuilder::wait_at_most).
    ///
    /// Backoffs that servers request are timed by the clock of these limits. Without a clock they are ignored.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let backoffs = limits.timer().map(|timer| Arc::new(HostBackoff::new(timer)));
        OutboundLayer { limits, backoffs, max_backoff: DEFAULT_MAX_BACKOFF }
    }

    /// Sets the longest wait for a host that has requested a backoff; a minute by default.
    ///
    /// Calls that would have to wait longer fail immediately.
    #[must_use]
    pub fn max_backoff(self, max_backoff: Duration) -> Self {
        OutboundLayer { max_backoff, ..self }
    }
}

impl<S> Layer<S> for OutboundLayer {
    type Service = Outbound<S>;

    fn layer(&self, inner: S) -> Outbound<S> {
        Outbound { inner, layer: self.clone() }
    }
}

impl<S> Outbound<S> {
    /// Returns the next step of a request: wait for its host, call, or fail.
    fn begin<A>(&mut self, request: Request<A>) -> Next<A>
    where
        S: Service<Request<A>>,
    {
        let OutboundLayer { limits, max_backoff, .. } = &self.layer;
        if let Some((wait, backoffs)) = self.backoff_of(&request) {
            return match at_most(wait, *max_backoff) {
                Some(time) => Next::Wait(WaitFor::Host(backoffs.timer.sleep(time)), request),
                None => Next::Fail(Failure::BackingOff(wait)),
            };
        }
        match limits.evaluate(&Head::of(&request)) {
            Evaluation::Now(LimitOutcome::Pass(passed)) => Next::Call(request, passed),
            Evaluation::Now(LimitOutcome::Refuse(refusal)) => Next::Fail(Failure::Refused(refusal)),
            Evaluation::Pending(outcome) => Next::Wait(WaitFor::Limits(outcome), request),
        }
    }

    /// Returns the next step of a request that the limits have allowed.
    ///
    /// If its host has requested a backoff meanwhile, the request starts over: requests that the limits have spaced out
    /// must not all be sent at the same moment when the backoff ends.
    fn after_limits<A>(&mut self, request: Request<A>, passed: Passed) -> Next<A>
    where
        S: Service<Request<A>>,
    {
        if self.backoff_of(&request).is_none() {
            return Next::Call(request, passed);
        }
        drop(passed);
        self.begin(request)
    }

    /// Returns the remaining backoff of the host, if there is one.
    fn backoff_of<A>(&self, request: &Request<A>) -> Option<(Wait, &HostBackoff)> {
        let backoffs = self.layer.backoffs.as_deref()?;
        Some((backoffs.remaining(request)?, backoffs))
    }

    fn state<A>(&mut self, next: Next<A>) -> State<S, S::Future, A>
    where
        S: Service<Request<A>> + Clone,
    {
        match next {
            Next::Fail(failure) => State::Failed { failure: Some(failure) },
            Next::Wait(wait_for, request) => {
                // The clone may not be ready yet; the service that is ready goes with the request.
                let clone = self.clone();
                let service = mem::replace(self, clone);
                State::Waiting { waiting: Some(Box::new(Waiting { wait_for, service, request })) }
            }
            Next::Call(request, passed) => {
                let called_host = self.layer.backoffs.clone().map(|backoffs| (backoffs, host_of(&request)));
                State::Calling {
                    future: self.inner.call(request),
                    permits: Some(passed.permits),
                    called_host,
                }
            }
        }
    }
}

enum Next<A> {
    Wait(WaitFor, Request<A>),
    Call(Request<A>, Passed),
    Fail(Failure),
}

/// What a request waits for.
enum WaitFor {
    Host(Sleeping),
    Limits(PendingOutcome),
}

enum Failure {
    Refused(Box<Refusal>),
    BackingOff(Wait),
}

struct Waiting<S, A> {
    wait_for: WaitFor,
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
    /// The response future of an [`Outbound`].
    pub struct OutboundFuture<S, F, A> {
        #[pin]
        state: State<S, F, A>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<S, F, A> {
        Waiting { waiting: Option<Box<Waiting<S, A>>> },
        Calling { #[pin] future: F, permits: Option<Permits>, called_host: Option<(Arc<HostBackoff>, Vec<u8>)> },
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
                Projected::Calling { future, permits, called_host } => {
                    let response = ready!(future.poll(cx)).map_err(OutboundError::Service)?;
                    if let Some((backoffs, host)) = called_host.take() {
                        backoffs.record(host, &response);
                    }
                    return Poll::Ready(Ok(with_permits(response, permits.take().unwrap_or_default())));
                }
                Projected::Waiting { waiting } => {
                    let outcome =
                        ready!(waiting.as_mut().expect("polled after completion").wait_for.poll(cx));
                    let Waiting { mut service, request, .. } = *waiting.take().expect("checked just above");
                    let next = match outcome {
                        None => service.begin(request),
                        Some(LimitOutcome::Pass(passed)) => service.after_limits(request, passed),
                        Some(LimitOutcome::Refuse(refusal)) => Next::Fail(Failure::Refused(refusal)),
                    };
                    service.state(next)
                }
            };
            state.set(next);
        }
    }
}

impl WaitFor {
    /// Resolves to the outcome of the limits, or to `None` when the host may be called again.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<LimitOutcome>> {
        match self {
            WaitFor::Host(sleeping) => sleeping.as_mut().poll(cx).map(|()| None),
            WaitFor::Limits(outcome) => Pin::new(outcome).poll(cx).map(Some),
        }
    }
}

fn with_permits<B>(response: Response<B>, permits: Permits) -> Response<PermitBody<B>> {
    let status = response.status();
    response.map(|body| PermitBody::new(body, permits, status))
}

impl<E> From<Failure> for OutboundError<E> {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) => OutboundError::Refused(refusal),
            Failure::BackingOff(wait) => OutboundError::BackingOff { wait },
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
            OutboundError::BackingOff { wait } => {
                write!(
                    f,
                    "not called: the host has requested a wait of {wait}, which exceeds the maximum backoff"
                )
            }
            OutboundError::Service(_) => f.write_str("the call failed"),
        }
    }
}

impl<E: Error + 'static> Error for OutboundError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            OutboundError::Service(source) => Some(source),
            OutboundError::Refused(_) | OutboundError::BackingOff { .. } => None,
        }
    }
}
