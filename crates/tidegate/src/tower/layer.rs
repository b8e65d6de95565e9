//! # Layers
//!
//! A layer puts [`Limits`] in front of a service. Clones of a layer, and the services it makes, share the limits.

use std::fmt;

use tower_layer::Layer;

use super::fallback::{FallbackService, NoFallback};
use super::service::{Concurrency, RateLimit};
use crate::concurrency::ConcurrencyLimiter;
use crate::http::{Limits, by};

/// Applies rate limits to the requests of a service.
///
/// ```
/// use tidegate::http::{KeyPart, Limits, by};
/// use tidegate::tower::RateLimitLayer;
/// use tidegate::{KeyedLimiter, Quota};
///
/// let limiter = KeyedLimiter::<str>::new(Quota::per_second(10).burst(20));
/// let limits = Limits::single(limiter, by::header("x-api-key").secret().or_refuse())?;
/// let layer = RateLimitLayer::<Vec<u8>>::new(limits); // inferred by router.layer(RateLimitLayer::new(limits))
/// # Ok::<(), tidegate::http::InvalidLimits>(())
/// ```
///
/// The type of the response does not change, so its body cannot hold permits. Permits of concurrency rules are released
/// when the head of the response is ready. If bodies take long to send, use a [`ConcurrencyLayer`].
pub struct RateLimitLayer<B, O = NoFallback> {
    limits: Limits,
    body: fn(Vec<u8>) -> B,
    fallback: O,
}

/// Limits concurrent requests: permits are held until the body of the response has ended.
///
/// Dropping the body releases its permits, too.
///
/// ```
/// use tidegate::tower::ConcurrencyLayer;
/// let layer = ConcurrencyLayer::<Vec<u8>>::with_limit(200);
/// ```
///
/// Otherwise it works like [`RateLimitLayer`]: with any gate and several rules.
pub struct ConcurrencyLayer<B, O = NoFallback>(RateLimitLayer<B, O>);

impl<B> RateLimitLayer<B> {
    /// Applies these limits.
    #[must_use]
    pub fn new(limits: Limits) -> Self
    where
        B: From<Vec<u8>>,
    {
        RateLimitLayer::with_body(limits, B::from)
    }

    /// Applies these limits. The function makes the bodies of refusals.
    ///
    /// With tonic: `|bytes| Body::new(Full::from(bytes))`, or `|_| Body::default()` for services that only speak gRPC,
    /// where refusals have no body.
    #[must_use]
    pub fn with_body(limits: Limits, body: fn(Vec<u8>) -> B) -> Self {
        RateLimitLayer { limits, body, fallback: NoFallback }
    }

    /// Sends refused requests to a fallback service.
    ///
    /// That service finds the [`Refusal`](crate::http::Refusal) in the extensions of the request.
    #[must_use]
    pub fn fallback<T>(self, service: T) -> RateLimitLayer<B, FallbackService<T>> {
        RateLimitLayer { limits: self.limits, body: self.body, fallback: FallbackService(service) }
    }
}

impl<B> ConcurrencyLayer<B> {
    /// Applies these limits.
    #[must_use]
    pub fn new(limits: Limits) -> Self
    where
        B: From<Vec<u8>>,
    {
        ConcurrencyLayer(RateLimitLayer::new(limits))
    }

    /// Limits the number of concurrent requests of all clients together.
    ///
    /// Further requests are refused with 503.
    #[must_use]
    pub fn with_limit(limit: u32) -> Self
    where
        B: From<Vec<u8>>,
    {
        let limits = Limits::single(ConcurrencyLimiter::new(limit), by::global());
        ConcurrencyLayer::new(limits.expect("one rule with a valid name and a valid key"))
    }

    /// As [`RateLimitLayer::with_body`].
    #[must_use]
    pub fn with_body(limits: Limits, body: fn(Vec<u8>) -> B) -> Self {
        ConcurrencyLayer(RateLimitLayer::with_body(limits, body))
    }

    /// As [`RateLimitLayer::fallback`].
    #[must_use]
    pub fn fallback<T>(self, service: T) -> ConcurrencyLayer<B, FallbackService<T>> {
        ConcurrencyLayer(self.0.fallback(service))
    }
}

impl<S, B, O: Clone> Layer<S> for RateLimitLayer<B, O> {
    type Service = RateLimit<S, B, O>;

    fn layer(&self, inner: S) -> RateLimit<S, B, O> {
        RateLimit { inner, limits: self.limits.clone(), body: self.body, fallback: self.fallback.clone() }
    }
}

impl<S, B, O: Clone> Layer<S> for ConcurrencyLayer<B, O> {
    type Service = Concurrency<S, B, O>;

    fn layer(&self, inner: S) -> Concurrency<S, B, O> {
        Concurrency(self.0.layer(inner))
    }
}

impl<B, O: Clone> Clone for RateLimitLayer<B, O> {
    /// Another handle on the same limits.
    fn clone(&self) -> Self {
        RateLimitLayer { limits: self.limits.clone(), body: self.body, fallback: self.fallback.clone() }
    }
}

impl<B, O: Clone> Clone for ConcurrencyLayer<B, O> {
    /// Another handle on the same limits.
    fn clone(&self) -> Self {
        ConcurrencyLayer(self.0.clone())
    }
}

impl<B, O> fmt::Debug for RateLimitLayer<B, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl<B, O> fmt::Debug for ConcurrencyLayer<B, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyLayer").field("limits", &self.0.limits).finish_non_exhaustive()
    }
}
