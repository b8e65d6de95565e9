//! # Gates one can wait at
//!
//! Some would rather wait than be refused, and how that is done differs as much as who decides: by turns that are
//! charged ahead, in lines, or by asking Redis again. What is common is small: *decide, but take this long if you
//! must*. Whoever puts a gate in front of something, such as the layers for tower, asks it like this and need not
//! know how it waits.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::limiters::with_permit;
use super::{Admission, Gate, InvalidRequest, Part, only_part};
use crate::ahead::WaitRefused;
use crate::concurrency::{ConcurrencyLimiter, KeyedConcurrencyLimiter};
use crate::keyed::KeyedLimiter;
use crate::limiter::Limiter;
use crate::pacer::Pacer;
use crate::policy::{NotAdmitted, Policy};
use crate::wait::Sleep;
use tidegate_core::{Algorithm, Decision, Outcome, Wait};

/// An answer that takes its time.
pub type Awaited<'a> = Pin<Box<dyn Future<Output = Result<Admission, InvalidRequest>> + Send + 'a>>;

/// A gate at which a request may wait until it passes.
///
/// ```
/// # #[cfg(feature = "tokio")] {
/// use std::time::Duration;
/// use tidegate::{Limiter, Part, Quota, RuleId, TokioClock, WaitingGate};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
/// # runtime.block_on(async {
/// let limiter = Limiter::new(Quota::per_second(10).burst(1)).with_clock(TokioClock::new());
/// let request = [Part::of(RuleId(0))];
/// let first = limiter.decide_within(&request, Duration::from_millis(100)).await?;
/// let second = limiter.decide_within(&request, Duration::from_millis(100)).await?; // 100 ms later
/// let third = limiter.decide_within(&request, Duration::from_millis(99)).await?; // refused at once
/// assert!(first.is_allowed() && second.is_allowed() && !third.is_allowed());
/// # Ok::<(), tidegate::InvalidRequest>(())
/// # }).unwrap();
/// # }
/// ```
pub trait WaitingGate: Gate {
    /// Decides as [`decide`](Gate::decide), but waits for at most so long if the request may not pass now.
    ///
    /// A wait of which it can be seen that it would be longer is refused at once. A request that waited in vain was not
    /// charged; its decision is [`Outcome::Busy`] where nobody could tell how long it would take, or too many wait.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point, and gives up its place.
    fn decide_within<'a>(&'a self, request: &'a [Part<'a>], at_most: Duration) -> Awaited<'a>;
}

impl<A, C> WaitingGate for Limiter<A, C>
where
    A: Algorithm + Send + Sync,
    C: Sleep + Send + Sync,
{
    fn decide_within<'a>(&'a self, request: &'a [Part<'a>], at_most: Duration) -> Awaited<'a> {
        Box::pin(async move {
            let part = only_part(request)?;
            let answer = self.cost(part.cost).acquire_timeout(at_most).await;
            let decision = answer.unwrap_or_else(|why| in_vain(why, self.cost(0).peek()));
            Ok(Admission::bare(decision))
        })
    }
}

impl<K, A, C> WaitingGate for KeyedLimiter<K, A, C>
where
    K: Borrow<str> + ?Sized,
    A: Algorithm + Send + Sync,
    C: Sleep + Send + Sync,
{
    fn decide_within<'a>(&'a self, request: &'a [Part<'a>], at_most: Duration) -> Awaited<'a> {
        Box::pin(async move {
            let part = only_part(request)?;
            let answer = self.acquire_key(part.key, part.cost, at_most).await;
            let decision = answer.unwrap_or_else(|why| in_vain(why, self.peek_key(part.key)));
            Ok(Admission::bare(decision))
        })
    }
}

impl<A, C> WaitingGate for Policy<A, C>
where
    A: Algorithm + Send + Sync,
    C: Sleep + Send + Sync,
{
    fn decide_within<'a>(&'a self, request: &'a [Part<'a>], at_most: Duration) -> Awaited<'a> {
        Box::pin(async move {
            match self.acquire_timeout(request, at_most).await {
                Ok(admission) => Ok(admission),
                Err(NotAdmitted::Invalid(invalid)) => Err(invalid),
                Err(NotAdmitted::Refused { rule, why }) => {
                    Ok(Admission::bare(in_vain(why, self.peek(request)?).of_rule(rule)))
                }
            }
        })
    }
}

impl<C: Sleep + Send + Sync> WaitingGate for ConcurrencyLimiter<C> {
    fn decide_within<'a>(&'a self, request: &'a [Part<'a>], at_most: Duration) -> Awaited<'a> {
        Box::pin(async move {
            let part = only_part(request)?;
            let answer = self.cost(part.cost).acquire_timeout(at_most).await;
            let permit = answer.map(|permit| permit.into_owned().into());
            let stats = self.stats();
            let free = u64::from(stats.limit).saturating_sub(stats.in_use);
            Ok(with_permit(permit, self.now(), stats.limit, free))
        })
    }
}

impl<K, C> WaitingGate for KeyedConcurrencyLimiter<K, C>
where
    K: Borrow<str> + ?Sized,
    C: Sleep + Send + Sync,
{
    fn decide_within<'a>(&'a self, request: &'a [Part<'a>], at_most: Duration) -> Awaited<'a> {
        Box::pin(async move {
            let part = only_part(request)?;
            let answer = self.acquire_key(part.key, part.cost, at_most).await;
            let free = answer.as_ref().map_or(0, |permit| permit.free());
            Ok(with_permit(answer.map(Into::into), self.now(), self.stats().limit, free))
        })
    }
}

impl<C: Sleep + Send + Sync> WaitingGate for Pacer<C> {
    fn decide_within<'a>(&'a self, request: &'a [Part<'a>], at_most: Duration) -> Awaited<'a> {
        Box::pin(async move {
            let part = only_part(request)?;
            let outcome = match self.acquire_timeout(part.cost.into(), at_most).await {
                Ok(_) => Outcome::Allowed,
                Err(too_long) => Outcome::RetryAfter(too_long.wait),
            };
            let limit = self.quota().max_burst();
            Ok(Admission::bare(Decision::counted(outcome, self.now(), limit, 0, Wait::micros(0))))
        })
    }
}

/// The decision on who waited in vain, with the numbers that were seen then.
fn in_vain(why: WaitRefused, seen: Decision) -> Decision {
    let outcome = match why {
        WaitRefused::TooLong { wait, .. } | WaitRefused::TooManyKeys { retry_after: wait } => {
            Outcome::RetryAfter(wait)
        }
        WaitRefused::LineFull { .. } | WaitRefused::TimedOut { .. } => Outcome::Busy,
        WaitRefused::Never { .. } | WaitRefused::BeyondTime { .. } => Outcome::Never,
    };
    Decision::counted(outcome, seen.at(), seen.limit(), seen.remaining(), seen.reset_after())
        .of_rule(seen.rule)
}
