//! # Gates one can wait at
//!
//! Some would rather wait than be refused, and how that is done differs as much as who decides: by turns that are
//! charged ahead, in lines, or by asking Redis again. What is common is small: *let me in, but take this long if you
//! must*. Whoever puts a gate in front of something asks it like this and need not know how it waits: the layers for tower,
//! and the attribute's `wait = "200ms"`.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::{Admission, AnyPermit, Gate, InvalidRequest, Part, Permits, only_part};
use crate::clock::Clock;
use crate::concurrency::{ConcurrencyLimiter, KeyedConcurrencyLimiter, Permit, Refused};
use crate::keyed::KeyedLimiter;
use crate::limiter::Limiter;
use crate::pacer::Pacer;
use crate::policy::{NotAdmitted, Policy};
use crate::reservation::WaitRefused;
use crate::wait::{Park, Sleep};
use tidegate_core::{Algorithm, Decision, Micros, Outcome, RuleId, Source, TooLong, Wait};

/// An answer that takes its time: who waited was let in, or not.
pub type Awaited<'a> = Pin<Box<dyn Future<Output = Result<Admission, NotAdmitted>> + Send + 'a>>;

/// An answer that takes its time: what was decided in the end.
pub type Decided<'a> = Pin<Box<dyn Future<Output = Result<Admission, InvalidRequest>> + Send + 'a>>;

/// A gate at which tasks can wait until they pass.
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
#[diagnostic::on_unimplemented(
    message = "tasks cannot wait at `{Self}`",
    note = "on `SteadyClock` tasks wait by tokio's timers: enable the feature `tokio` of `tidegate`",
    note = "for a gate of your own implement `tidegate::WaitingGate`, or leave out the wait"
)]
pub trait WaitingGate: Gate {
    /// Waits until all parts of `request` may pass, at most so long; refuses at once where that is seen not to suffice.
    ///
    /// Who waited in vain was not charged. An admission that refuses is an answer, too, for gates that know no more.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point, and gives up its place.
    fn wait_within<'a>(&'a self, request: &'a [Part<'a>], within: Duration) -> Awaited<'a>;

    /// What is left now, if that is known: for the numbers of those who waited in vain.
    fn seen(&self, request: &[Part<'_>]) -> Option<Decision> {
        let _ = request;
        None
    }

    /// The same as [`wait_within`](WaitingGate::wait_within), with a decision also for who waited in vain. It is
    /// [`Outcome::Busy`] where nobody could tell how long it would take, or too many wait.
    fn decide_within<'a>(&'a self, request: &'a [Part<'a>], within: Duration) -> Decided<'a> {
        Box::pin(async move {
            match self.wait_within(request, within).await {
                Ok(admission) => Ok(admission),
                Err(NotAdmitted::Invalid(invalid)) => Err(invalid),
                Err(NotAdmitted::Refused { rule, why }) => {
                    Ok(Admission::without_permits(in_vain(why, self.seen(request)).of_rule(rule)))
                }
            }
        })
    }
}

/// A gate at which threads can wait until they pass.
#[diagnostic::on_unimplemented(
    message = "threads cannot wait at `{Self}`",
    note = "make the function `async`, or leave out `wait = …`",
    note = "for a gate of your own implement `tidegate::BlockingGate`"
)]
pub trait BlockingGate: Gate {
    /// As [`WaitingGate::wait_within`], for a thread.
    ///
    /// # Errors
    ///
    /// [`NotAdmitted`], if it was not let in.
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted>;
}

// === impl Policy ===

impl<A, C> WaitingGate for Policy<A, C>
where
    A: Algorithm + Send + Sync,
    C: Sleep + Send + Sync,
{
    fn wait_within<'a>(&'a self, request: &'a [Part<'a>], within: Duration) -> Awaited<'a> {
        Box::pin(self.acquire_timeout(request, within))
    }

    fn seen(&self, request: &[Part<'_>]) -> Option<Decision> {
        self.peek(request).ok()
    }
}

impl<A, C> BlockingGate for Policy<A, C>
where
    A: Algorithm + Send + Sync,
    C: Park + Send + Sync,
{
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        self.acquire_blocking_timeout(request, within)
    }
}

// === impl Limiter ===

impl<A, C> WaitingGate for Limiter<A, C>
where
    A: Algorithm + Send + Sync,
    C: Sleep + Send + Sync,
{
    fn wait_within<'a>(&'a self, request: &'a [Part<'a>], within: Duration) -> Awaited<'a> {
        Box::pin(async move {
            let part = only_part(request)?;
            of_rate(self.cost(part.cost).acquire_timeout(within).await)
        })
    }

    fn seen(&self, request: &[Part<'_>]) -> Option<Decision> {
        let _ = request;
        Some(self.cost(0).peek())
    }
}

impl<A, C> BlockingGate for Limiter<A, C>
where
    A: Algorithm + Send + Sync,
    C: Park + Send + Sync,
{
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        let part = only_part(request)?;
        of_rate(self.cost(part.cost).acquire_blocking_timeout(within))
    }
}

// === impl KeyedLimiter ===

impl<K, A, C> WaitingGate for KeyedLimiter<K, A, C>
where
    K: Borrow<str> + ?Sized,
    A: Algorithm + Send + Sync,
    C: Sleep + Send + Sync,
{
    fn wait_within<'a>(&'a self, request: &'a [Part<'a>], within: Duration) -> Awaited<'a> {
        Box::pin(async move {
            let part = only_part(request)?;
            of_rate(self.acquire_key(part.key, part.cost, within).await)
        })
    }

    fn seen(&self, request: &[Part<'_>]) -> Option<Decision> {
        only_part(request).ok().map(|part| self.peek_key(part.key))
    }
}

impl<K, A, C> BlockingGate for KeyedLimiter<K, A, C>
where
    K: Borrow<str> + ?Sized,
    A: Algorithm + Send + Sync,
    C: Park + Send + Sync,
{
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        let part = only_part(request)?;
        of_rate(self.acquire_key_blocking(part.key, part.cost, within))
    }
}

// === impl ConcurrencyLimiter ===

impl<C: Sleep + Send + Sync> WaitingGate for ConcurrencyLimiter<C> {
    fn wait_within<'a>(&'a self, request: &'a [Part<'a>], within: Duration) -> Awaited<'a> {
        Box::pin(async move {
            let part = only_part(request)?;
            let permit = self.cost(part.cost).acquire_timeout(within).await;
            of_permit(permit.map(Permit::into_owned), self.now(), self.stats().limit, free(self))
        })
    }

    fn seen(&self, request: &[Part<'_>]) -> Option<Decision> {
        let _ = request;
        Some(busy(self.now(), self.stats().limit))
    }
}

impl<C: Park + Send + Sync> BlockingGate for ConcurrencyLimiter<C> {
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        let part = only_part(request)?;
        let permit = self.cost(part.cost).acquire_blocking_timeout(within);
        of_permit(permit.map(Permit::into_owned), self.now(), self.stats().limit, free(self))
    }
}

// === impl KeyedConcurrencyLimiter ===

impl<K, C> WaitingGate for KeyedConcurrencyLimiter<K, C>
where
    K: Borrow<str> + ?Sized,
    C: Sleep + Send + Sync,
{
    fn wait_within<'a>(&'a self, request: &'a [Part<'a>], within: Duration) -> Awaited<'a> {
        Box::pin(async move {
            let part = only_part(request)?;
            let permit = self.acquire_key(part.key, part.cost, within).await;
            let free = permit.as_ref().map_or(0, |permit| permit.free());
            of_permit(permit, self.now(), self.stats().limit, free)
        })
    }

    fn seen(&self, request: &[Part<'_>]) -> Option<Decision> {
        let _ = request;
        Some(busy(self.now(), self.stats().limit))
    }
}

impl<K, C> BlockingGate for KeyedConcurrencyLimiter<K, C>
where
    K: Borrow<str> + ?Sized,
    C: Park + Send + Sync,
{
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        let part = only_part(request)?;
        let permit = self.acquire_key_blocking(part.key, part.cost, within);
        let free = permit.as_ref().map_or(0, |permit| permit.free());
        of_permit(permit, self.now(), self.stats().limit, free)
    }
}

// === impl Pacer ===

impl<C: Sleep + Send + Sync> WaitingGate for Pacer<C> {
    fn wait_within<'a>(&'a self, request: &'a [Part<'a>], within: Duration) -> Awaited<'a> {
        Box::pin(async move {
            let part = only_part(request)?;
            of_pace(self, self.acquire_timeout(part.cost.into(), within).await, within)
        })
    }

    fn seen(&self, request: &[Part<'_>]) -> Option<Decision> {
        let _ = request;
        Some(Decision::counted(Outcome::Allowed, self.now(), self.quota().max_burst(), 0, Wait::default()))
    }
}

impl<C: Park + Send + Sync> BlockingGate for Pacer<C> {
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        let part = only_part(request)?;
        of_pace(self, self.acquire_blocking_timeout(part.cost.into(), within), within)
    }
}

fn of_rate(answer: Result<Decision, WaitRefused>) -> Result<Admission, NotAdmitted> {
    answer.map(Admission::without_permits).map_err(refused)
}

fn of_permit(
    answer: Result<impl Into<AnyPermit>, Refused>,
    at: Micros,
    limit: u32,
    free: u64,
) -> Result<Admission, NotAdmitted> {
    let permit = answer.map_err(|why| refused(why_not(why)))?;
    let decision = Decision::counted(Outcome::Allowed, at, limit.into(), free, Wait::default());
    Ok(Admission { permits: Permits(vec![permit.into()]), ..Admission::without_permits(decision) })
}

fn of_pace<C: Clock>(
    pacer: &Pacer<C>,
    answer: Result<Wait, TooLong>,
    within: Duration,
) -> Result<Admission, NotAdmitted> {
    let within = Wait::micros(u64::try_from(within.as_micros()).unwrap_or(u64::MAX));
    answer.map_err(|TooLong { wait }| refused(WaitRefused::TooLong { wait, within }))?;
    let limit = pacer.quota().max_burst();
    Ok(Admission::without_permits(Decision::counted(
        Outcome::Allowed,
        pacer.now(),
        limit,
        0,
        Wait::default(),
    )))
}

/// By the only rule there is.
fn refused(why: WaitRefused) -> NotAdmitted {
    NotAdmitted::Refused { rule: RuleId(0), why }
}

fn why_not(why: Refused) -> WaitRefused {
    match why {
        Refused::LineFull { max_waiting } => WaitRefused::LineFull { max_waiting },
        Refused::Never { cost, limit } => WaitRefused::Never { cost, limit: limit.into() },
        Refused::TooManyKeys { .. } => WaitRefused::TooManyKeys { retry_after: Wait::default() },
        Refused::TimedOut { timeout } => {
            let within = Wait::micros(u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX));
            WaitRefused::TimedOut { within }
        }
        Refused::Busy { .. } => WaitRefused::TimedOut { within: Wait::default() }, // only who does not wait is told so
    }
}

/// How many slots nobody has.
fn free<C: Clock>(limiter: &ConcurrencyLimiter<C>) -> u64 {
    let stats = limiter.stats();
    u64::from(stats.limit).saturating_sub(stats.in_use)
}

/// What is seen of slots that somebody has waited for in vain.
fn busy(at: Micros, limit: u32) -> Decision {
    Decision::counted(Outcome::Busy, at, limit.into(), 0, Wait::default())
}

/// The decision on who waited in vain, with the numbers that were seen then.
fn in_vain(why: WaitRefused, seen: Option<Decision>) -> Decision {
    let outcome = match why {
        WaitRefused::TooManyKeys { retry_after } if retry_after == Wait::default() => Outcome::Busy,
        WaitRefused::TooLong { wait, .. } | WaitRefused::TooManyKeys { retry_after: wait } => {
            Outcome::RetryAfter(wait)
        }
        WaitRefused::LineFull { .. } | WaitRefused::TimedOut { .. } => Outcome::Busy,
        WaitRefused::Never { .. } | WaitRefused::BeyondTime { .. } => Outcome::Never,
    };
    let seen = seen.unwrap_or(busy(Micros::ZERO, 0));
    let mut decision =
        Decision::counted(outcome, seen.at(), seen.limit(), seen.remaining(), seen.reset_after());
    if let WaitRefused::TooManyKeys { .. } = why {
        decision.source = Source::Closed; // there was nothing to count in
    }
    decision
}
