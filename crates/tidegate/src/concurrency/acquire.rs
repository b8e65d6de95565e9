//! # The five ways to a permit
//!
//! Written once, for whatever has slots: the limiters only say where those are. Each tries first, without a lock; those
//! that may wait take a place in the line then, and a wait that is given up is a place that is dropped.

use std::future::poll_fn;
use std::time::Duration;

use super::permit::{Held, Home};
use super::refused::Refused;
use super::slots::Place;
use crate::clock::Clock;
use crate::wait::{Park, Sleep, block, block_until, until};
use tidegate_core::Micros;

type Answer<H> = Result<Held<H>, Refused>;

#[inline]
pub(crate) fn at_once<H: Home>(home: H, cost: u32) -> Answer<H> {
    if home.slots().try_take(cost) {
        return Ok(Held::new(home, cost));
    }
    Err(home.slots().refusal(cost))
}

#[inline]
pub(crate) async fn wait<H: Home>(home: H, cost: u32) -> Answer<H> {
    if !home.slots().try_take(cost) {
        let mut place = Place::new(home.slots(), cost);
        poll_fn(|cx| place.poll(cx)).await?;
    }
    Ok(Held::new(home, cost))
}

pub(crate) async fn wait_timeout<H, C>(home: H, cost: u32, clock: &C, timeout: Duration) -> Answer<H>
where
    H: Home,
    C: Sleep,
{
    if !home.slots().try_take(cost) {
        let deadline = deadline(clock, timeout, || home.slots().refusal(cost))?;
        let mut place = Place::new(home.slots(), cost);
        let answer = until(poll_fn(|cx| place.poll(cx)), clock, deadline).await;
        answer.unwrap_or(Err(Refused::TimedOut { timeout }))?;
    }
    Ok(Held::new(home, cost))
}

pub(crate) fn wait_blocking<H: Home>(home: H, cost: u32) -> Answer<H> {
    if !home.slots().try_take(cost) {
        let mut place = Place::new(home.slots(), cost);
        block(poll_fn(|cx| place.poll(cx)))?;
    }
    Ok(Held::new(home, cost))
}

pub(crate) fn wait_blocking_timeout<H, C>(home: H, cost: u32, clock: &C, timeout: Duration) -> Answer<H>
where
    H: Home,
    C: Park,
{
    if !home.slots().try_take(cost) {
        let deadline = deadline(clock, timeout, || home.slots().refusal(cost))?;
        let mut place = Place::new(home.slots(), cost);
        let answer = block_until(poll_fn(|cx| place.poll(cx)), clock, deadline);
        answer.unwrap_or(Err(Refused::TimedOut { timeout }))?;
    }
    Ok(Held::new(home, cost))
}

/// When the time will be up; who has none is refused without taking a place in the line.
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
