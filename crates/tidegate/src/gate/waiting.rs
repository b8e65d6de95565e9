//! # Gates that can wait
//!
//! How a request waits differs as much as where it is decided: by reservations, in queues, or by asking Redis again.
//! What is common is small: *decide, and wait up to this long if necessary*. Middleware asks in this way and need not
//! know how the gate waits: the layers for tower, and the attribute's `wait = "200ms"`.

use std::borrow::Borrow;
use std::time::Duration;

use super::{Admission, AnyPermit, BoxFuture, Gate, InvalidRequest, Part, Permits, only_part};
use crate::clock::Clock;
use crate::concurrency::{ConcurrencyLimiter, KeyedConcurrencyLimiter, Permit};
use crate::error::{AcquireError, RefusalKind};
use crate::keyed::KeyedLimiter;
use crate::limiter::Limiter;
use crate::pacer::Pacer;
use crate::policy::Policy;
use crate::request::Deadline;
use crate::wait::{Park, Sleep};
use tidegate_core::{Algorithm, Decision, Micros, Outcome, Source, Wait};

/// A gate at which tasks can wait until they pass.
///
/// ```
/// # #[cfg(feature = "tokio")] {
/// use std::time::Duration;
/// use tidegate::gate::{Part, RuleId, WaitingGate};
/// use tidegate::{Limiter, Quota, TokioClock};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
/// # runtime.block_on(async {
/// let limiter = Limiter::builder(Quota::per_second(10).burst(1)).clock(TokioClock::new()).build();
/// let request = [Part::of(RuleId(0))];
/// let first = limiter.decide_within(&request, Duration::from_millis(100)).await?;
/// let second = limiter.decide_within(&request, Duration::from_millis(100)).await?; // 100 ms later
/// let third = limiter.decide_within(&request, Duration::from_millis(99)).await?; // refused at once
/// assert!(first.is_allowed() && second.is_allowed() && !third.is_allowed());
/// # Ok::<(), tidegate::InvalidRequest>(())
/// # }).unwrap();
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "tasks cannot wait at `{Self}`",
    note = "on `SteadyClock` tasks wait by tokio's timers: enable the feature `tokio` of `tidegate`",
    note = "for a gate of your own implement `tidegate::gate::WaitingGate`, or leave out the wait"
)]
pub trait WaitingGate: Gate {
    /// Waits until all parts of `request` may pass, at most `within`. Refuses at once if that cannot suffice.
    ///
    /// A request that did not pass is not charged. A gate that knows no reason may return an admission that refuses.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point, and leaves the queue.
    fn wait_within<'a>(
        &'a self,
        request: &'a [Part<'a>],
        within: Duration,
    ) -> BoxFuture<'a, Result<Admission, AcquireError>>;

    /// The remaining quota, if it is known: for the numbers of a request that did not pass in time.
    fn peek_remaining(&self, request: &[Part<'_>]) -> Option<Decision> {
        let _ = request;
        None
    }

    /// As [`wait_within`](WaitingGate::wait_within), with a decision also for a request that did not pass.
    ///
    /// The decision is [`Outcome::Busy`] if the wait could not be predicted, or the queue is full.
    fn decide_within<'a>(
        &'a self,
        request: &'a [Part<'a>],
        within: Duration,
    ) -> BoxFuture<'a, Result<Admission, InvalidRequest>> {
        Box::pin(async move {
            let error = match self.wait_within(request, within).await {
                Ok(admission) => return Ok(admission),
                Err(error) => error,
            };
            match (error.refusal(), error.invalid_request()) {
                (_, Some(invalid)) => Err(invalid.clone()),
                (refusal, None) => {
                    let refusal = refusal.unwrap_or(RefusalKind::TimedOut { within: Wait::default() });
                    let decision = refused(refusal, self.peek_remaining(request)).of_rule(error.rule_id());
                    Ok(Admission::without_permits(decision))
                }
            }
        })
    }
}

/// A gate at which threads can wait until they pass.
#[diagnostic::on_unimplemented(
    message = "threads cannot wait at `{Self}`",
    note = "make the function `async`, or leave out `wait = …`",
    note = "for a gate of your own implement `tidegate::gate::BlockingGate`"
)]
pub trait BlockingGate: Gate {
    /// As [`WaitingGate::wait_within`], for a thread.
    ///
    /// # Errors
    ///
    /// [`AcquireError`] if the request did not pass.
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, AcquireError>;
}

// === impl Policy ===

impl<A, C> WaitingGate for Policy<A, C>
where
    A: Algorithm + Send + Sync,
    C: Sleep + Send + Sync,
{
    fn wait_within<'a>(
        &'a self,
        request: &'a [Part<'a>],
        within: Duration,
    ) -> BoxFuture<'a, Result<Admission, AcquireError>> {
        Box::pin(async move { self.wait(request, within.instant(self.clock())).await })
    }

    fn peek_remaining(&self, request: &[Part<'_>]) -> Option<Decision> {
        self.request().parts(request).peek().ok()
    }
}

impl<A, C> BlockingGate for Policy<A, C>
where
    A: Algorithm + Send + Sync,
    C: Park + Send + Sync,
{
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, AcquireError> {
        self.wait_blocking(request, within.instant(self.clock()))
    }
}

// === impl Limiter ===

impl<A, C> WaitingGate for Limiter<A, C>
where
    A: Algorithm + Send + Sync,
    C: Sleep + Send + Sync,
{
    fn wait_within<'a>(
        &'a self,
        request: &'a [Part<'a>],
        within: Duration,
    ) -> BoxFuture<'a, Result<Admission, AcquireError>> {
        Box::pin(async move {
            let part = only_part(request)?;
            of_rate(self.request().cost(part.cost).timeout(within).acquire().await)
        })
    }

    fn peek_remaining(&self, request: &[Part<'_>]) -> Option<Decision> {
        let _ = request;
        Some(self.request().cost(0).peek())
    }
}

impl<A, C> BlockingGate for Limiter<A, C>
where
    A: Algorithm + Send + Sync,
    C: Park + Send + Sync,
{
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, AcquireError> {
        let part = only_part(request)?;
        of_rate(self.request().cost(part.cost).timeout(within).acquire_blocking())
    }
}

// === impl KeyedLimiter ===

impl<K, A, C> WaitingGate for KeyedLimiter<K, A, C>
where
    K: Borrow<str> + ?Sized,
    A: Algorithm + Send + Sync,
    C: Sleep + Send + Sync,
{
    fn wait_within<'a>(
        &'a self,
        request: &'a [Part<'a>],
        within: Duration,
    ) -> BoxFuture<'a, Result<Admission, AcquireError>> {
        Box::pin(async move {
            let part = only_part(request)?;
            of_rate(self.request_for(part.key).cost(part.cost).timeout(within).acquire().await)
        })
    }

    fn peek_remaining(&self, request: &[Part<'_>]) -> Option<Decision> {
        only_part(request).ok().map(|part| self.peek_key(part.key))
    }
}

impl<K, A, C> BlockingGate for KeyedLimiter<K, A, C>
where
    K: Borrow<str> + ?Sized,
    A: Algorithm + Send + Sync,
    C: Park + Send + Sync,
{
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, AcquireError> {
        let part = only_part(request)?;
        of_rate(self.request_for(part.key).cost(part.cost).timeout(within).acquire_blocking())
    }
}

// === impl ConcurrencyLimiter ===

impl<C: Sleep + Send + Sync> WaitingGate for ConcurrencyLimiter<C> {
    fn wait_within<'a>(
        &'a self,
        request: &'a [Part<'a>],
        within: Duration,
    ) -> BoxFuture<'a, Result<Admission, AcquireError>> {
        Box::pin(async move {
            let part = only_part(request)?;
            let permit = self.request().cost(part.cost).timeout(within).acquire().await;
            of_permit(permit.map(Permit::into_owned), self.now(), self.stats().limit, free(self))
        })
    }

    fn peek_remaining(&self, request: &[Part<'_>]) -> Option<Decision> {
        let _ = request;
        Some(busy(self.now(), self.stats().limit))
    }
}

impl<C: Park + Send + Sync> BlockingGate for ConcurrencyLimiter<C> {
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, AcquireError> {
        let part = only_part(request)?;
        let permit = self.request().cost(part.cost).timeout(within).acquire_blocking();
        of_permit(permit.map(Permit::into_owned), self.now(), self.stats().limit, free(self))
    }
}

// === impl KeyedConcurrencyLimiter ===

impl<K, C> WaitingGate for KeyedConcurrencyLimiter<K, C>
where
    K: Borrow<str> + ?Sized,
    C: Sleep + Send + Sync,
{
    fn wait_within<'a>(
        &'a self,
        request: &'a [Part<'a>],
        within: Duration,
    ) -> BoxFuture<'a, Result<Admission, AcquireError>> {
        Box::pin(async move {
            let part = only_part(request)?;
            let permit = self.request_for(part.key).cost(part.cost).timeout(within).acquire().await;
            let free = permit.as_ref().map_or(0, |permit| permit.free());
            of_permit(permit, self.now(), self.stats().limit, free)
        })
    }

    fn peek_remaining(&self, request: &[Part<'_>]) -> Option<Decision> {
        let _ = request;
        Some(busy(self.now(), self.stats().limit))
    }
}

impl<K, C> BlockingGate for KeyedConcurrencyLimiter<K, C>
where
    K: Borrow<str> + ?Sized,
    C: Park + Send + Sync,
{
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, AcquireError> {
        let part = only_part(request)?;
        let permit = self.request_for(part.key).cost(part.cost).timeout(within).acquire_blocking();
        let free = permit.as_ref().map_or(0, |permit| permit.free());
        of_permit(permit, self.now(), self.stats().limit, free)
    }
}

// === impl Pacer ===

impl<C: Sleep + Send + Sync> WaitingGate for Pacer<C> {
    fn wait_within<'a>(
        &'a self,
        request: &'a [Part<'a>],
        within: Duration,
    ) -> BoxFuture<'a, Result<Admission, AcquireError>> {
        Box::pin(async move {
            let part = only_part(request)?;
            of_rate(self.request().cost(part.cost).timeout(within).acquire().await)
        })
    }

    fn peek_remaining(&self, request: &[Part<'_>]) -> Option<Decision> {
        let _ = request;
        Some(Decision::counted(Outcome::Allowed, self.now(), self.quota().max_burst(), 0, Wait::default()))
    }
}

impl<C: Park + Send + Sync> BlockingGate for Pacer<C> {
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, AcquireError> {
        let part = only_part(request)?;
        of_rate(self.request().cost(part.cost).timeout(within).acquire_blocking())
    }
}

fn of_rate(answer: Result<Decision, AcquireError>) -> Result<Admission, AcquireError> {
    answer.map(Admission::without_permits)
}

fn of_permit(
    answer: Result<impl Into<AnyPermit>, AcquireError>,
    at: Micros,
    limit: u32,
    free: u64,
) -> Result<Admission, AcquireError> {
    let permit = answer?;
    let decision = Decision::counted(Outcome::Allowed, at, limit.into(), free, Wait::default());
    Ok(Admission { permits: Permits(vec![permit.into()]), ..Admission::without_permits(decision) })
}

/// Returns how many slots are free.
fn free<C: Clock>(limiter: &ConcurrencyLimiter<C>) -> u64 {
    let stats = limiter.stats();
    u64::from(stats.limit).saturating_sub(stats.in_use)
}

/// Returns the decision for slots that did not become free in time.
fn busy(at: Micros, limit: u32) -> Decision {
    Decision::counted(Outcome::Busy, at, limit.into(), 0, Wait::default())
}

/// Returns the decision on a request that did not pass in time, with the numbers that were found then.
fn refused(refusal: RefusalKind, found: Option<Decision>) -> Decision {
    let found = found.unwrap_or(busy(Micros::ZERO, 0));
    let (at, limit, reset_after) = (found.at(), found.limit(), found.reset_after());
    let mut decision = Decision::counted(refusal.outcome(), at, limit, found.remaining(), reset_after);
    if let RefusalKind::TooManyKeys { .. } = refusal {
        decision.source = Source::Closed; // there was no state to count in
    }
    decision
}
