//! # Services of the layers
//!
//! Each service evaluates the limits in `call`. A request that passes immediately goes to the inner service, which is
//! ready. If a request has to wait, it keeps that service, and a clone serves the next request.
//!
//! Most of the cost of a layer is moving data. A request, the future of a response and the response have some
//! hundred bytes each, and a function that passes one on may copy it. So a request that passes with nothing
//! to do on its response goes straight from `call` to the inner service, and its future is a variant that
//! contains only the inner future. All other cases are in functions that are not inlined.

use std::fmt;
use std::mem;
use std::task::{Context, Poll};

use ::http::{Extensions, Request, Response};
use tower_service::Service;

use super::body::PermitBody;
use super::fallback::{Fallback, NoFallback};
use super::future::{ConcurrencyFuture, RateLimitFuture, ResponseState, WaitingRequest};
use super::on_response::OnResponse;
use crate::http::{Evaluation, FastPath, Head, LimitOutcome, Limits, Passed, PendingOutcome, Refusal};

/// A service with limits on the requests that reach it.
///
/// See [`RateLimitLayer`](super::RateLimitLayer).
pub struct RateLimit<S, B, O = NoFallback> {
    pub(super) inner: S,
    pub(super) limits: Limits,
    pub(super) body: fn(Vec<u8>) -> B,
    pub(super) fallback: O,
}

/// A service with a limit on concurrent requests.
///
/// See [`ConcurrencyLayer`](super::ConcurrencyLayer).
pub struct Concurrency<S, B, O = NoFallback>(pub(super) RateLimit<S, B, O>);

impl<S, B, O> RateLimit<S, B, O> {
    /// The slow path, for requests that did not pass on the fast path.
    #[inline(never)]
    fn decide<A>(&mut self, request: Request<A>) -> ResponseState<S, A, B, O>
    where
        S: Service<Request<A>, Response = Response<B>> + Clone,
        O: Fallback<Request<A>, Response<B>, S::Error>,
    {
        match self.limits.evaluate_slow(&Head::of(&request)) {
            Evaluation::Now(LimitOutcome::Pass(passed)) => self.pass(request, passed),
            Evaluation::Now(LimitOutcome::Refuse(refusal)) => self.refuse(request, refusal),
            Evaluation::Pending(outcome) => self.wait(request, outcome),
        }
    }

    #[cold]
    fn wait<A>(&mut self, request: Request<A>, outcome: PendingOutcome) -> ResponseState<S, A, B, O>
    where
        S: Service<Request<A>, Response = Response<B>> + Clone,
        O: Fallback<Request<A>, Response<B>, S::Error>,
    {
        // The clone may not be ready yet; the service that is ready goes with the request.
        let clone = self.clone();
        let service = mem::replace(self, clone);
        ResponseState::Waiting { waiting: Some(Box::new(WaitingRequest { outcome, service, request })) }
    }

    #[inline]
    pub(super) fn pass<A>(&mut self, request: Request<A>, passed: Passed) -> ResponseState<S, A, B, O>
    where
        S: Service<Request<A>, Response = Response<B>>,
        O: Fallback<Request<A>, Response<B>, S::Error>,
    {
        match OnResponse::of(passed, &self.limits) {
            None => ResponseState::Serving { future: self.inner.call(request) },
            Some(on_response) => {
                ResponseState::ServingThenFinish { future: self.inner.call(request), on_response }
            }
        }
    }

    #[cold]
    pub(super) fn refuse<A>(
        &mut self,
        request: Request<A>,
        refusal: Box<Refusal>,
    ) -> ResponseState<S, A, B, O>
    where
        S: Service<Request<A>, Response = Response<B>>,
        O: Fallback<Request<A>, Response<B>, S::Error>,
    {
        let refusal_response = || self.limits.refusal_response(&Head::of(&request), &refusal).map(self.body);
        let response = if O::SERVES { None } else { Some(refusal_response()) };
        let prepare = |request: &mut Request<A>| drop(request.extensions_mut().insert(*refusal));
        match self.fallback.serve(request, prepare) {
            Some(future) => ResponseState::Fallback { future },
            None => ResponseState::Refused { response },
        }
    }
}

impl<S, A, B, O> Service<Request<A>> for RateLimit<S, B, O>
where
    S: Service<Request<A>, Response = Response<B>> + Clone,
    O: Fallback<Request<A>, Response<B>, S::Error>,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = RateLimitFuture<S, A, B, O>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    // A request is large, and each function that takes one may copy it: the fast path calls the inner service directly.
    fn call(&mut self, mut request: Request<A>) -> Self::Future {
        match self.limits.fast_path() {
            FastPath::InlineKey
                if with_extensions(&mut request, |extensions| self.limits.passes_inline(extensions)) =>
            {
                return RateLimitFuture {
                    state: ResponseState::Serving { future: self.inner.call(request) },
                };
            }
            FastPath::WithQuota => {
                let report = with_extensions(&mut request, |extensions| {
                    self.limits.pass_inline_with_quota(extensions)
                });
                if let Some(report) = report {
                    let on_response = OnResponse::AddFields(self.limits.clone(), report);
                    let future = self.inner.call(request);
                    return RateLimitFuture {
                        state: ResponseState::ServingThenFinish { future, on_response },
                    };
                }
            }
            FastPath::InlineKey | FastPath::Plain | FastPath::None => {}
        }
        RateLimitFuture { state: self.decide(request) }
    }
}

/// Takes the extensions out of a request, passes them to `read`, and puts them back.
///
/// Once a pointer to the request escapes, the compiler copies the request instead of passing it in place; so only the
/// extensions are lent out.
#[inline]
fn with_extensions<A, T>(request: &mut Request<A>, read: impl FnOnce(&Extensions) -> T) -> T {
    let extensions = mem::take(request.extensions_mut());
    let result = read(&extensions);
    *request.extensions_mut() = extensions;
    result
}

impl<S, A, B, O> Service<Request<A>> for Concurrency<S, B, O>
where
    S: Service<Request<A>, Response = Response<B>> + Clone,
    O: Fallback<Request<A>, Response<B>, S::Error>,
{
    type Response = Response<PermitBody<B>>;
    type Error = S::Error;
    type Future = ConcurrencyFuture<S, A, B, O>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        ConcurrencyFuture { state: self.0.decide(request) }
    }
}

impl<S: Clone, B, O: Clone> Clone for RateLimit<S, B, O> {
    /// Another handle on the same limits.
    fn clone(&self) -> Self {
        RateLimit {
            inner: self.inner.clone(),
            limits: self.limits.clone(),
            body: self.body,
            fallback: self.fallback.clone(),
        }
    }
}

impl<S: Clone, B, O: Clone> Clone for Concurrency<S, B, O> {
    /// Another handle on the same limits.
    fn clone(&self) -> Self {
        Concurrency(self.0.clone())
    }
}

impl<S: fmt::Debug, B, O> fmt::Debug for RateLimit<S, B, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl<S: fmt::Debug, B, O> fmt::Debug for Concurrency<S, B, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Concurrency").field(&self.0).finish()
    }
}
