//! # Waiting at a limiter that is given
//!
//! A gate only decides. To wait takes a line and a clock, and who has them waits in a way of its own; these two traits
//! are what the attribute's `wait = "200ms"` asks of a limiter. All of this crate have them.

use std::borrow::Borrow;
use std::future::Future;
use std::time::Duration;

use crate::ahead::WaitRefused;
use crate::clock::Clock;
use crate::concurrency::{ConcurrencyLimiter, KeyedConcurrencyLimiter, Permit, Refused};
use crate::gate::{Admission, AnyPermit, Gate, Part, Permits, only_part};
use crate::keyed::KeyedLimiter;
use crate::limiter::Limiter;
use crate::pacer::Pacer;
use crate::policy::{NotAdmitted, Policy};
use crate::wait::{Park, Sleep};
use tidegate_core::{Algorithm, Decision, Micros, Outcome, RuleId, TooLong, Wait};

/// A gate at which tasks can wait.
#[diagnostic::on_unimplemented(
    message = "tasks cannot wait at `{Self}`",
    note = "on `SteadyClock` tasks wait by tokio's timers: enable the feature `tokio` of `tidegate`",
    note = "for a gate of your own implement `tidegate::attribute::Waits`, or leave out `wait = …`"
)]
pub trait Waits: Gate {
    /// Waits until all parts of `request` may pass, at most so long; refuses at once where that is seen not to suffice.
    ///
    /// An admission that refuses is an answer, too.
    fn wait_within(
        &self,
        request: &[Part<'_>],
        within: Duration,
    ) -> impl Future<Output = Result<Admission, NotAdmitted>> + Send;
}

/// A gate at which threads can wait.
#[diagnostic::on_unimplemented(
    message = "threads cannot wait at `{Self}`",
    note = "make the function `async`, or leave out `wait = …`",
    note = "for a gate of your own implement `tidegate::attribute::Blocks`"
)]
pub trait Blocks: Gate {
    /// As [`Waits::wait_within`], for a thread.
    ///
    /// # Errors
    ///
    /// [`NotAdmitted`], if it was not let in.
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted>;
}

// === impl Policy ===

impl<A, C> Waits for Policy<A, C>
where
    A: Algorithm + Send + Sync,
    C: Sleep + Send + Sync,
{
    async fn wait_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        self.acquire_timeout(request, within).await
    }
}

impl<A, C> Blocks for Policy<A, C>
where
    A: Algorithm + Send + Sync,
    C: Park + Send + Sync,
{
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        self.acquire_blocking_timeout(request, within)
    }
}

// === impl Limiter ===

impl<A, C> Waits for Limiter<A, C>
where
    A: Algorithm + Send + Sync,
    C: Sleep + Send + Sync,
{
    async fn wait_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        let part = only_part(request)?;
        of_rate(self.cost(part.cost).acquire_timeout(within).await)
    }
}

impl<A, C> Blocks for Limiter<A, C>
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

impl<K, A, C> Waits for KeyedLimiter<K, A, C>
where
    K: Borrow<str> + ?Sized,
    A: Algorithm + Send + Sync,
    C: Sleep + Send + Sync,
{
    async fn wait_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        let part = only_part(request)?;
        of_rate(self.acquire_key(part.key, part.cost, within).await)
    }
}

impl<K, A, C> Blocks for KeyedLimiter<K, A, C>
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

impl<C: Sleep + Send + Sync> Waits for ConcurrencyLimiter<C> {
    async fn wait_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        let part = only_part(request)?;
        let permit = self.cost(part.cost).acquire_timeout(within).await;
        of_permit(permit.map(Permit::into_owned), self.now(), self.stats().limit)
    }
}

impl<C: Park + Send + Sync> Blocks for ConcurrencyLimiter<C> {
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        let part = only_part(request)?;
        let permit = self.cost(part.cost).acquire_blocking_timeout(within);
        of_permit(permit.map(Permit::into_owned), self.now(), self.stats().limit)
    }
}

// === impl KeyedConcurrencyLimiter ===

impl<K, C> Waits for KeyedConcurrencyLimiter<K, C>
where
    K: Borrow<str> + ?Sized,
    C: Sleep + Send + Sync,
{
    async fn wait_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        let part = only_part(request)?;
        let permit = self.acquire_key(part.key, part.cost, within).await;
        of_permit(permit, self.now(), self.stats().limit)
    }
}

impl<K, C> Blocks for KeyedConcurrencyLimiter<K, C>
where
    K: Borrow<str> + ?Sized,
    C: Park + Send + Sync,
{
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        let part = only_part(request)?;
        let permit = self.acquire_key_blocking(part.key, part.cost, within);
        of_permit(permit, self.now(), self.stats().limit)
    }
}

// === impl Pacer ===

impl<C: Sleep + Send + Sync> Waits for Pacer<C> {
    async fn wait_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        let part = only_part(request)?;
        of_pace(self, self.acquire_timeout(part.cost.into(), within).await, within)
    }
}

impl<C: Park + Send + Sync> Blocks for Pacer<C> {
    fn block_within(&self, request: &[Part<'_>], within: Duration) -> Result<Admission, NotAdmitted> {
        let part = only_part(request)?;
        of_pace(self, self.acquire_blocking_timeout(part.cost.into(), within), within)
    }
}

fn of_rate(answer: Result<Decision, WaitRefused>) -> Result<Admission, NotAdmitted> {
    answer.map(Admission::bare).map_err(refused)
}

fn of_permit(
    answer: Result<impl Into<AnyPermit>, Refused>,
    at: Micros,
    limit: u32,
) -> Result<Admission, NotAdmitted> {
    let permit = answer.map_err(|why| refused(why_not(why)))?;
    let decision = Decision::counted(Outcome::Allowed, at, limit.into(), 0, Wait::default());
    Ok(Admission { permits: Permits(vec![permit.into()]), ..Admission::bare(decision) })
}

fn of_pace<C: Clock>(
    pacer: &Pacer<C>,
    answer: Result<Wait, TooLong>,
    within: Duration,
) -> Result<Admission, NotAdmitted> {
    let within = Wait::micros(u64::try_from(within.as_micros()).unwrap_or(u64::MAX));
    answer.map_err(|TooLong { wait }| refused(WaitRefused::TooLong { wait, within }))?;
    let limit = pacer.quota().max_burst();
    Ok(Admission::bare(Decision::counted(Outcome::Allowed, pacer.now(), limit, 0, Wait::default())))
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
