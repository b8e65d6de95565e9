//! # Looking again and again
//!
//! Who waits looks how things stand. If it is not its turn yet it is told until when to rest, and looks again then, or
//! earlier if somebody wakes it. What there is to look at is the business of whoever is waited for; here is how a task and
//! how a thread rests in between.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use super::{Park, Sleep, thread_waker};
use crate::clock::Clock;
use tidegate_core::{ClockKind, Micros};

/// What somebody finds who waits and looks.
#[derive(Debug)]
pub(crate) enum Progress<T> {
    /// The wait is over.
    Done(T),
    /// Not before this instant, as it stands.
    Until(Micros),
}

/// What time it is, for somebody who waits.
pub(crate) fn steady_now<C: Clock>(clock: &C) -> Micros {
    const {
        assert!(
            matches!(C::KIND, ClockKind::Monotonic),
            "to wait takes a clock that never steps back: a promise is an instant"
        )
    };
    clock.now()
}

/// Blocks this thread until a look finds the wait over.
pub(crate) fn block_on<T, C: Park>(clock: &C, mut look: impl FnMut(&Waker) -> Progress<T>) -> T {
    let waker = thread_waker();
    loop {
        match look(&waker) {
            Progress::Done(done) => return done,
            Progress::Until(instant) => clock.park_until(instant),
        }
    }
}

/// Waits, as a task, until a look finds the wait over.
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
            until = Micros::ZERO; // time has passed, or the timer was early: look again
        }
    })
    .await
}

/// Polls an alarm that is set.
fn ring<F: Future<Output = ()>>(alarm: Pin<&mut Option<F>>, cx: &mut Context<'_>) -> Poll<()> {
    alarm.as_pin_mut().map_or(Poll::Ready(()), |alarm| alarm.poll(cx))
}
