//! # Reasons to refuse a wait
//!
//! A wait succeeds or is refused; a refused wait charges nothing. Each reason calls for a different reaction of the
//! caller, so each has its own variant, with the numbers that were compared.

use std::error::Error;
use std::fmt;

use tidegate_core::{Micros, Wait};

/// Why a limiter did not let a request wait, or not any longer. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitRefused {
    /// The wait would exceed the caller's deadline.
    TooLong {
        /// How long the wait would have been.
        wait: Wait,
        /// The time that was left until the deadline.
        within: Wait,
    },
    /// The queue is full.
    LineFull {
        /// The maximum number of waiters.
        max_waiting: usize,
    },
    /// The cost exceeds what the limit can ever allow at one instant.
    Never {
        /// The requested cost.
        cost: u32,
        /// The maximum cost that can pass at one instant.
        limit: u64,
    },
    /// The key is new, the maximum number of keys is reached, and none of them is idle.
    ///
    /// Only for keyed limiters.
    TooManyKeys {
        /// When there may be room.
        retry_after: Wait,
    },
    /// The timeout elapsed in a wait queue of a [`Policy`](crate::Policy).
    ///
    /// Only there the wait cannot be predicted.
    TimedOut {
        /// The time that was left until the deadline.
        within: Wait,
    },
    /// The request would pass only after the end of the clock, in the year 2255.
    BeyondTime {
        /// The requested cost.
        cost: u32,
    },
}

impl WaitRefused {
    /// Returns the error for an instant `ready` that is after `deadline`, seen from `now`.
    pub(crate) fn too_long(now: Micros, ready: Micros, deadline: Micros) -> Self {
        let (wait, within) = (Wait::micros(ready.since(now)), Wait::micros(deadline.since(now)));
        WaitRefused::TooLong { wait, within }
    }
}

impl fmt::Display for WaitRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            WaitRefused::TooLong { wait, within } => {
                write!(f, "the wait would be {wait}, and may be {within}; wait longer, or try later")
            }
            WaitRefused::LineFull { max_waiting } => {
                write!(f, "{max_waiting} wait already, which is the most that may; try later")
            }
            WaitRefused::Never { cost, limit } => {
                write!(f, "a cost of {cost} exceeds the limit of {limit}; ask for {limit} or less")
            }
            WaitRefused::TooManyKeys { retry_after } if retry_after == Wait::default() => {
                f.write_str("there are as many keys as may be; try later")
            }
            WaitRefused::TooManyKeys { retry_after } => {
                write!(f, "there are as many keys as may be; try again after {retry_after}")
            }
            WaitRefused::TimedOut { within } => {
                write!(f, "it was not its turn within {within}; wait longer, or try later")
            }
            WaitRefused::BeyondTime { cost } => {
                write!(f, "the turn of a cost of {cost} would come after the end of the clock; ask for less")
            }
        }
    }
}

impl Error for WaitRefused {}
