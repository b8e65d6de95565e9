//! # Timers
//!
//! A clock tells the time. Waiting until an instant needs a timer as well, and which one depends on the waiter: the
//! operating system wakes a parked thread, a runtime wakes its tasks, and the code that moves a manual clock wakes
//! both. So there are two small traits beside [`Clock`], and each clock implements the ones that it can support.
//!
//! | | [`Park`], for threads | [`Sleep`], for tasks |
//! |---|---|---|
//! | [`SteadyClock`] | always | with the feature `tokio` |
//! | [`ManualClock`](crate::ManualClock) | always | always |
//! | `TokioClock` | no: its time may stand still while a thread is blocked | yes |
//!
//! One trait for both would require every clock to support waits that it cannot support. With two, a call
//! that needs a missing timer does not compile. A timer thread of our own would work everywhere, but it would
//! be a second runtime, worse than the one that the program already has. That is why `tokio` is a feature,
//! and why `acquire` without a timeout needs none: waiting for a permit takes only a `Waker`.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use crate::clock::{Clock, SteadyClock};
use tidegate_core::Micros;

/// A clock on which blocked threads can wait.
pub trait Park: Clock {
    /// Blocks this thread until it is unparked or the clock reads `until` or later.
    ///
    /// May return early without a reason, as [`std::thread::park`] may; the caller checks the clock again.
    fn park_until(&self, until: Micros);
}

/// A clock on which tasks can wait.
#[diagnostic::on_unimplemented(
    message = "tasks cannot wait by `{Self}`",
    label = "no timer for tasks",
    note = "on `SteadyClock` tasks wait by tokio's timers: enable the feature `tokio` of `tidegate`",
    note = "threads can wait without it: see `acquire_blocking`"
)]
pub trait Sleep: Clock {
    /// The future that [`sleep_until`](Sleep::sleep_until) returns.
    type Sleeping: Future<Output = ()> + Send;

    /// Returns a future that is ready when the clock reads `until` or later.
    ///
    /// Where the timer is not the clock itself, as on the steady clock, it may be off by one part in a thousand, by
    /// which the two can differ. A caller that needs precision checks the clock again.
    fn sleep_until(&self, until: Micros) -> Self::Sleeping;
}

impl Park for SteadyClock {
    fn park_until(&self, until: Micros) {
        let left = Duration::from_micros(until.since(self.now()));
        if !left.is_zero() {
            std::thread::park_timeout(left);
        }
    }
}

/// Requires the feature `tokio`. Uses the timers of the runtime that polls the future.
///
/// # Panics
///
/// The future panics outside a tokio runtime, or in one without timers (`enable_time`), as [`tokio::time::sleep`] does.
#[cfg(feature = "tokio")]
impl Sleep for SteadyClock {
    type Sleeping = tokio::time::Sleep;

    fn sleep_until(&self, until: Micros) -> tokio::time::Sleep {
        tokio::time::sleep(Duration::from_micros(until.since(self.now())))
    }
}

/// Runs `future` until the clock reaches `deadline`; `None` if it is not ready by then.
pub(crate) async fn until<F, C>(mut future: F, clock: &C, deadline: Micros) -> Option<F::Output>
where
    F: Future + Unpin,
    C: Sleep,
{
    let mut sleeping = pin!(clock.sleep_until(deadline));
    poll_fn(|cx| {
        // The future first: a result that is ready at the deadline counts.
        if let Poll::Ready(output) = Pin::new(&mut future).poll(cx) {
            return Poll::Ready(Some(output));
        }
        sleeping.as_mut().poll(cx).map(|()| None)
    })
    .await
}
