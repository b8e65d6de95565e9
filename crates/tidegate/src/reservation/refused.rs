//! # Why nobody waits
//!
//! A wait ends well or is refused at once; what is refused was never charged. Each reason calls for something else, so
//! they are told apart, with the numbers that were compared.

use std::error::Error;
use std::fmt;

use tidegate_core::{Micros, Wait};

/// Why a limiter did not let somebody wait for their turn, or not any longer. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitRefused {
    /// It would take longer than the caller has.
    TooLong {
        /// How long it would have taken.
        wait: Wait,
        /// How long there was.
        within: Wait,
    },
    /// Too many wait already.
    LineFull {
        /// How many may wait.
        max_waiting: usize,
    },
    /// Not ever under this limit: more was asked for than it gives at once.
    Never {
        /// What was asked for.
        cost: u32,
        /// The most that can pass at once.
        limit: u64,
    },
    /// Another key, while there are as many as may be and none is idle. Only with keys.
    TooManyKeys {
        /// When there may be room.
        retry_after: Wait,
    },
    /// The time is up. Only where nobody could tell how long it would take: in a line of a [`Policy`](crate::Policy).
    TimedOut {
        /// How long there was.
        within: Wait,
    },
    /// Its turn would come after the clock has ended, in the year 2255.
    BeyondTime {
        /// What was asked for.
        cost: u32,
    },
}

impl WaitRefused {
    /// That `ready` comes after `deadline`, seen from `now`.
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
