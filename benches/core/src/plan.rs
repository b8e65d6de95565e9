//! How long everything takes: the one place to turn when a run should be longer or shorter.

use bench_harness::turns::Turns;

/// How much to measure.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Rounds of the cases of one limiter without keys, and how long each case runs in each.
    pub(crate) direct: Turns,
    /// The same for cases with a million keys, which need longer to warm the caches.
    pub(crate) keyed: Turns,
    /// The same for peers that are there for orientation.
    pub(crate) others: Turns,
    /// How often a measurement that needs a process to itself is repeated.
    pub(crate) repeats: usize,
}

impl Plan {
    /// What the published figures come from.
    pub(crate) const FULL: Plan = Plan {
        direct: Turns::new(101, 8, 2),
        keyed: Turns::new(25, 60, 50),
        others: Turns::new(5, 60, 50),
        repeats: 11,
    };

    /// For a look while working. Too short to quote.
    pub(crate) const QUICK: Plan = Plan {
        direct: Turns::new(21, 5, 1),
        keyed: Turns::new(5, 30, 25),
        others: Turns::new(3, 30, 25),
        repeats: 3,
    };
}
