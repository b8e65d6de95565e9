//! # Why there is no permit
//!
//! Each reason calls for something else: come back, wait, send less, or ask for less. So they are told apart, with the
//! numbers that were compared.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tidegate_core::{Decision, Micros, Outcome, Source, Wait};

/// Why no permit was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// Not now: fewer are free than asked for, or others wait who came first. Only from `try_acquire`.
    Busy {
        /// How many were asked for.
        cost: u32,
        /// How many there are, free or not.
        limit: u32,
    },
    /// Too many wait already.
    LineFull {
        /// How many may wait.
        max_waiting: usize,
    },
    /// The time is up.
    TimedOut {
        /// The time there was.
        timeout: Duration,
    },
    /// Not ever under this limit: more was asked for than there is.
    Never {
        /// How many were asked for.
        cost: u32,
        /// How many there are, free or not.
        limit: u32,
    },
    /// Another key, while as many as may be are in use. Only with keys.
    TooManyKeys {
        /// How many keys may be in use at once.
        max_keys: usize,
    },
}

/// Why there is no permit, as a decision.
pub(crate) fn refusal(refused: Refused, at: Micros) -> Decision {
    let (outcome, limit) = match refused {
        Refused::Never { limit, .. } => (Outcome::Never, limit),
        Refused::Busy { limit, .. } => (Outcome::Busy, limit),
        _ => (Outcome::Busy, 0),
    };
    let mut decision = Decision::counted(outcome, at, limit.into(), 0, Wait::micros(0));
    if matches!(refused, Refused::TooManyKeys { .. }) {
        decision.source = Source::Closed; // there was nothing to count in
    }
    decision
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Refused::Busy { limit: 0, .. } => f.write_str("the limit is 0, so nobody passes; raise it"),
            Refused::Busy { cost, limit } => {
                write!(f, "{cost} of {limit} permits are not free now; try later, or wait for them")
            }
            Refused::LineFull { max_waiting } => {
                write!(f, "{max_waiting} wait already, which is the most that may; try later")
            }
            Refused::TimedOut { timeout } => {
                write!(f, "no permit within {timeout:?}; try later, or wait longer")
            }
            Refused::Never { cost, limit } => {
                write!(f, "{cost} permits exceed the limit of {limit}; ask for {limit} or fewer")
            }
            Refused::TooManyKeys { max_keys } => {
                write!(f, "{max_keys} keys are in use, which is the most that may be; try later")
            }
        }
    }
}

impl Error for Refused {}
