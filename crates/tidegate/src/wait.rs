//! # Waiting
//!
//! A caller that may not pass now can wait. That takes three things, and none of them knows what the caller waits for:
//!
//! ```text
//!    WaitQueue  the waiters, in order of arrival            join ► ► ► ► wake_first
//!    a Waker    how to reach a waiter: the waker of a       wake = schedule the task
//!               task, or one that unparks a thread                 or unpark the thread
//!    a timer    how to limit the wait                       Park for threads, Sleep for tasks
//! ```
//!
//! A task and a blocked thread wait in the same queue and are woken in the same way, through a
//! [`Waker`](std::task::Waker), which needs no runtime. Only timeouts need more: something has to watch the clock
//! during the wait. A thread can park until an instant. A task needs a timer of its runtime, so on the
//! [`SteadyClock`](crate::SteadyClock) this takes the feature `tokio`. On a [`ManualClock`](crate::ManualClock) the
//! code that moves the clock acts as the timer.

mod poll;
mod queue;
mod thread;
mod timer;

pub(crate) use poll::{Progress, block_on, monotonic_now, wait_on};
pub(crate) use queue::{QueueExit, QueuePoll, QueueTicket, WaitQueue};
pub(crate) use thread::{block, block_until, thread_waker};
pub(crate) use timer::until;
pub use timer::{Park, Sleep};
