//! # Waiting
//!
//! Some who may not pass now would rather wait. Three things are needed for that, and none of them knows what is waited
//! for:
//!
//! ```text
//!    WaitQueue       who waits, in the order they came          join ► ► ► ► wake_first
//!    a Waker    how to reach them: a task's own, or        wake = schedule the task
//!               one that unparks a blocked thread               or unpark the thread
//!    a timer    how not to wait for ever                   Park for threads, Sleep for tasks
//! ```
//!
//! A task and a blocked thread wait in the same line and are called alike. That is what [`Waker`](std::task::Waker)s
//! are for, and it needs no runtime. Only time-outs do: somebody has to look at the clock while everybody waits. A
//! thread can park until an instant; a task needs a timer, which is its runtime's, so on the
//! [`SteadyClock`](crate::SteadyClock) it takes the feature `tokio`. On a [`ManualClock`](crate::ManualClock) whoever
//! moves the clock is the timer.

mod poll;
mod queue;
mod thread;
mod timer;

pub(crate) use poll::{Progress, block_on, steady_now, wait_on};
pub(crate) use queue::{QueueExit, QueuePoll, Ticket, WaitQueue};
pub(crate) use thread::{block, block_until, thread_waker};
pub(crate) use timer::until;
pub use timer::{Park, Sleep};
