//! # Timers
//!
//! A clock says what time it is. To wait until an instant somebody has to watch it, and who that is depends on who
//! waits: the operating system wakes a parked thread, a runtime wakes its tasks, and whoever moves a manual clock
//! wakes both. So there are two small traits beside [`Clock`], and a clock implements those it can.
//!
//! | | [`Park`], for threads | [`Sleep`], for tasks |
//! |---|---|---|
//! | [`SteadyClock`] | always | with the feature `tokio` |
//! | [`ManualClock`](crate::ManualClock) | always | always |
//! | `TokioClock` | no: its time may stand still while a thread is blocked | yes |

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use crate::clock::{Clock, SteadyClock};
use tidegate_core::Micros;

/// A clock that blocked threads can wait by.
pub trait Park: Clock {
    /// Blocks this thread until it is unparked or the clock reads `until` or later.
    ///
    /// May return early for no reason, as [`std::thread::park`] may; the caller looks at the clock again.
    fn park_until(&self, until: Micros);
}

/// A clock that tasks can wait by.
#[diagnostic::on_unimplemented(
    message = "tasks cannot wait by `{Self}`",
    label = "no timer for tasks",
    note = "on `SteadyClock` tasks wait by tokio's timers: enable the feature `tokio` of `tidegate`",
    note = "threads can wait without it: see `acquire_blocking_timeout`"
)]
pub trait Sleep: Clock {
    /// What [`sleep_until`](Sleep::sleep_until) returns.
    type Sleeping: Future<Output = ()> + Send;

    /// A future that is ready when the clock reads `until` or later.
    ///
    /// Where the timer is not the clock itself, as on the steady clock, it may be off by the thousandth by which the
    /// two can differ. Who needs to be exact looks at the clock again.
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

/// With the feature `tokio`. The timers are those of the runtime that polls.
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

/// What becomes of `future` until the clock has reached `deadline`; `None` if nothing.
pub(crate) async fn until<F, C>(mut future: F, clock: &C, deadline: Micros) -> Option<F::Output>
where
    F: Future + Unpin,
    C: Sleep,
{
    let mut sleeping = pin!(clock.sleep_until(deadline));
    poll_fn(|cx| {
        // The future first: what is ready at the last moment is ready.
        if let Poll::Ready(output) = Pin::new(&mut future).poll(cx) {
            return Poll::Ready(Some(output));
        }
        sleeping.as_mut().poll(cx).map(|()| None)
    })
    .await
}
