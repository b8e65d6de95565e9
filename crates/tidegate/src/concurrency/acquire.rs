//! # Acquiring a permit, with or without waiting
//!
//! Written once for every limiter that has slots; a limiter only supplies the [`PermitSource`]. Each function first
//! tries to take the slots without a lock. The waiting functions then join the queue; dropping the wait leaves the
//! queue.

use std::future::poll_fn;

use super::permit::{HeldPermit, PermitSource};
use super::slots::Acquiring;
use crate::clock::Clock;
use crate::error::RefusalKind;
use crate::request::{Deadline, TaskDeadline};
use crate::wait::{Park, block, block_until};
use tidegate_core::{Micros, Wait};

type AcquireResult<H> = Result<HeldPermit<H>, RefusalKind>;

#[inline]
pub(crate) fn try_acquire<H: PermitSource>(source: H, cost: u32) -> AcquireResult<H> {
    if source.slots().try_take(cost) {
        return Ok(HeldPermit::new(source, cost));
    }
    Err(source.slots().refusal(cost))
}

#[inline]
pub(crate) async fn wait<H, C, D>(source: H, cost: u32, clock: &C, deadline: D) -> AcquireResult<H>
where
    H: PermitSource,
    C: Clock,
    D: TaskDeadline<C>,
{
    if !source.slots().try_take(cost) {
        let (until, within) = time_left(&source, cost, clock, deadline)?;
        let mut place = Acquiring::new(source.slots(), cost);
        let answer = deadline.race(poll_fn(|cx| place.poll(cx)), clock, until).await;
        answer.unwrap_or(Err(RefusalKind::TimedOut { within }))?;
    }
    Ok(HeldPermit::new(source, cost))
}

pub(crate) fn wait_blocking<H, C, D>(source: H, cost: u32, clock: &C, deadline: D) -> AcquireResult<H>
where
    H: PermitSource,
    C: Park,
    D: Deadline,
{
    if !source.slots().try_take(cost) {
        let (until, within) = time_left(&source, cost, clock, deadline)?;
        let mut place = Acquiring::new(source.slots(), cost);
        let answer = match until {
            Micros::MAX => Some(block(poll_fn(|cx| place.poll(cx)))),
            until => block_until(poll_fn(|cx| place.poll(cx)), clock, until),
        };
        answer.unwrap_or(Err(RefusalKind::TimedOut { within }))?;
    }
    Ok(HeldPermit::new(source, cost))
}

/// Returns when a wait ends, and how long that is. If no time is left, the queue is not joined.
fn time_left<H, C, D>(source: &H, cost: u32, clock: &C, deadline: D) -> Result<(Micros, Wait), RefusalKind>
where
    H: PermitSource,
    C: Clock,
    D: Deadline,
{
    let until = deadline.instant(clock);
    if until == Micros::MAX {
        return Ok((until, Wait::default()));
    }
    match until.since(clock.now()) {
        0 => Err(match source.slots().refusal(cost) {
            RefusalKind::Busy { .. } => RefusalKind::TimedOut { within: Wait::default() },
            never => never,
        }),
        left => Ok((until, Wait::micros(left))),
    }
}
