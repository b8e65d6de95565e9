//! # Poll loops for waiters
//!
//! A waiter polls the object that it waits for. If the wait is not over, the poll returns an instant; the waiter sleeps
//! until then, or until it is woken, and polls again. What a poll examines is up to the caller. This module
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
pub(crate) fn monotonic_now<C: Clock>(clock: &C) -> Micros {
    const {
        assert!(
            matches!(C::KIND, ClockKind::Monotonic),
            "waiting requires a monotonic clock; this clock may step back (ClockKind::MayStepBack)"
        )
    };
    clock.now()
}

/// Blocks this thread until `poll` returns [`Progress::Done`].
pub(crate) fn block_on<T, C: Park>(clock: &C, mut poll: impl FnMut(&Waker) -> Progress<T>) -> T {
    let waker = thread_waker();
    loop {
        match poll(&waker) {
            Progress::Done(done) => return done,
            Progress::Until(instant) => clock.park_until(instant),
        }
    }
}

/// Waits, as a task, until `poll` returns [`Progress::Done`].
pub(crate) async fn wait_on<T, C: Sleep>(clock: &C, mut poll: impl FnMut(&Waker) -> Progress<T>) -> T {
    let (mut until, mut timer) = (Micros::ZERO, pin!(None));
    poll_fn(|cx| {
        loop {
            let instant = match poll(cx.waker()) {
                Progress::Done(done) => return Poll::Ready(done),
                Progress::Until(instant) => instant,
            };
            if until != instant {
                timer.set(Some(clock.sleep_until(instant)));
                until = instant;
            }
            if poll_timer(timer.as_mut(), cx).is_pending() {
                return Poll::Pending;
            }
            until = Micros::ZERO; // time has passed, or the timer was early: poll again
        }
    })
    .await
}

/// Polls the timer; ready if none is set.
fn poll_timer<F: Future<Output = ()>>(timer: Pin<&mut Option<F>>, cx: &mut Context<'_>) -> Poll<()> {
    timer.as_pin_mut().map_or(Poll::Ready(()), |timer| timer.poll(cx))
}
