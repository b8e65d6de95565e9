//! How long a case runs, and how often.

use std::time::Duration;

/// Rounds that take turns among the cases.
#[derive(Debug)]
pub struct Turns {
    pub rounds: usize,
    /// How long a case runs, timed, in each round.
    pub slice: Duration,
    /// How long it runs before that, untimed: the case before it has left its own data in the caches.
    pub warm_up: Duration,
}

impl Turns {
    /// So many rounds, and milliseconds of each.
    #[must_use]
    pub const fn new(rounds: usize, slice: u64, warm_up: u64) -> Self {
        Turns { rounds, slice: Duration::from_millis(slice), warm_up: Duration::from_millis(warm_up) }
    }
}
