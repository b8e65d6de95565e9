//! # Poll loops for waiters
//!
//! A waiter polls the object that it waits for. If the wait is not over, the poll returns an instant; the waiter sleeps
//! until then, or until its waker is woken, and polls again. What a poll examines is up to the caller. This module
//! defines how a task and how a thread sleeps in between.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use super::{Park, Sleep, thread_waker};
use crate::clock::Clock;
use tidegate_core::{ClockKind, Micros};

/// The result of one poll by a waiter.
#[derive(Debug)]
pub(crate) enum Progress<T> {
    /// The wait is over.
    Done(T),
    /// Not before this instant, as far as is known now.
    Until(Micros),
}

/// Reads the clock for a waiter. Requires a monotonic clock, checked at compile time.
pub(crate) fn steady_now<C: Clock>(clock: &C) -> Micros {
    const {
        assert!(
            matches!(C::KIND, ClockKind::Monotonic),
            "waiting requires a monotonic clock: a reservation is an instant"
        )
    };
    clock.now()
}

/// Blocks this thread until `look` reports that the wait is over.
pub(crate) fn block_on<T, C: Park>(clock: &C, mut look: impl FnMut(&Waker) -> Progress<T>) -> T {
    let waker = thread_waker();
    loop {
        match look(&waker) {
            Progress::Done(done) => return done,
            Progress::Until(instant) => clock.park_until(instant),
        }
    }
}

/// Waits, as a task, until `look` reports that the wait is over.
pub(crate) async fn wait_on<T, C: Sleep>(clock: &C, mut look: impl FnMut(&Waker) -> Progress<T>) -> T {
    let (mut until, mut alarm) = (Micros::ZERO, pin!(None));
    poll_fn(|cx| {
        loop {
            let instant = match look(cx.waker()) {
                Progress::Done(done) => return Poll::Ready(done),
                Progress::Until(instant) => instant,
            };
            if until != instant {
                alarm.set(Some(clock.sleep_until(instant)));
                until = instant;
            }
            if ring(alarm.as_mut(), cx).is_pending() {
                return Poll::Pending;
            }
            until = Micros::ZERO; // time has passed, or the timer was early: poll again
        }
    })
    .await
}

/// Polls the alarm; ready if none is set.
fn ring<F: Future<Output = ()>>(alarm: Pin<&mut Option<F>>, cx: &mut Context<'_>) -> Poll<()> {
    alarm.as_pin_mut().map_or(Poll::Ready(()), |alarm| alarm.poll(cx))
}
