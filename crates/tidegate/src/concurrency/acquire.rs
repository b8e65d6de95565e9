//! # The five ways to acquire a permit
//!
//! Written once for every limiter that has slots; a limiter only supplies the [`PermitSource`]. Each function first
//! tries to take the slots without a lock. The waiting functions then join the queue; dropping the wait leaves the
//! queue.

use std::future::poll_fn;
use std::time::Duration;

use super::permit::{HeldPermit, PermitSource};
use super::refused::Refused;
use super::slots::Acquiring;
use crate::clock::Clock;
use crate::wait::{Park, Sleep, block, block_until, until};
use tidegate_core::Micros;

type Answer<H> = Result<HeldPermit<H>, Refused>;

#[inline]
pub(crate) fn try_acquire<H: PermitSource>(source: H, cost: u32) -> Answer<H> {
    if source.slots().try_take(cost) {
        return Ok(HeldPermit::new(source, cost));
    }
    Err(source.slots().refusal(cost))
}

#[inline]
pub(crate) async fn wait<H: PermitSource>(source: H, cost: u32) -> Answer<H> {
    if !source.slots().try_take(cost) {
        let mut place = Acquiring::new(source.slots(), cost);
        poll_fn(|cx| place.poll(cx)).await?;
    }
    Ok(HeldPermit::new(source, cost))
}

pub(crate) async fn wait_timeout<H, C>(source: H, cost: u32, clock: &C, timeout: Duration) -> Answer<H>
where
    H: PermitSource,
    C: Sleep,
{
    if !source.slots().try_take(cost) {
        let deadline = deadline(clock, timeout, || source.slots().refusal(cost))?;
        let mut place = Acquiring::new(source.slots(), cost);
        let answer = until(poll_fn(|cx| place.poll(cx)), clock, deadline).await;
        answer.unwrap_or(Err(Refused::TimedOut { timeout }))?;
    }
    Ok(HeldPermit::new(source, cost))
}

pub(crate) fn wait_blocking<H: PermitSource>(source: H, cost: u32) -> Answer<H> {
    if !source.slots().try_take(cost) {
        let mut place = Acquiring::new(source.slots(), cost);
        block(poll_fn(|cx| place.poll(cx)))?;
    }
    Ok(HeldPermit::new(source, cost))
}

pub(crate) fn wait_blocking_timeout<H, C>(source: H, cost: u32, clock: &C, timeout: Duration) -> Answer<H>
where
    H: PermitSource,
    C: Park,
{
    if !source.slots().try_take(cost) {
        let deadline = deadline(clock, timeout, || source.slots().refusal(cost))?;
        let mut place = Acquiring::new(source.slots(), cost);
        let answer = block_until(poll_fn(|cx| place.poll(cx)), clock, deadline);
        answer.unwrap_or(Err(Refused::TimedOut { timeout }))?;
    }
    Ok(HeldPermit::new(source, cost))
}

/// Returns the deadline of a wait; a zero timeout is refused without joining the queue.
fn deadline<C: Clock>(
    clock: &C,
    timeout: Duration,
    refusal: impl FnOnce() -> Refused,
) -> Result<Micros, Refused> {
    match Micros::from(timeout).get() {
        0 => Err(match refusal() {
            Refused::Busy { .. } => Refused::TimedOut { timeout },
            never => never,
        }),
        micros => Ok(clock.now().plus(micros)),
    }
}
