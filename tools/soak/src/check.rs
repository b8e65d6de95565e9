//! Checks that decisions keep to a contract, from time bounds alone.
//!
//! The soak cannot see when a decision is made. It knows the instant before the request was sent and the instant after
//! the reply arrived, and the decision lies between them. A check reports only what is certain: an over-admission is
//! reported if no placement of the decisions within their bounds satisfies the contract. So a report needs no
//! tolerance for latency, however slow the network or a stopped process was.
//!
//! | module | checks |
//! |---|---|
//! | `curve` | token buckets and fixed windows: supply over any interval |
//! | `window` | sliding logs and sliding windows: a limit in any period |
//! | `share` | what one node admits without the store |
//! | `refusal` | refusals of a strict token bucket that had tokens |

pub(crate) mod curve;
pub(crate) mod refusal;
pub(crate) mod share;
pub(crate) mod window;

/// Nanoseconds on the monotonic clock of the soak, from its start.
pub(crate) type Nanos = i64;

pub(crate) const SECOND: Nanos = 1_000_000_000;
pub(crate) const MILLISECOND: Nanos = 1_000_000;

/// An admitted request. The decision was made at some instant from `sent` to `received`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) sent: Nanos,
    pub(crate) received: Nanos,
    pub(crate) cost: i64,
}

/// A time in which Redis lost the state of a key, at some instant from `from` to `to`.
///
/// A loss that is not over yet ends at `Nanos::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataLoss {
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
}

/// The interval that comes closest to its bound, or exceeds it by most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Worst {
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
    pub(crate) admitted: i64,
    pub(crate) bound: i64,
}

impl Worst {
    /// Tokens admitted beyond the bound; negative if some were left.
    pub(crate) fn excess(&self) -> i64 {
        self.admitted - self.bound
    }

    /// Keeps the larger excess of both.
    pub(crate) fn keep_larger(worst: &mut Option<Worst>, other: Worst) {
        if worst.is_none_or(|worst| other.excess() > worst.excess()) {
            *worst = Some(other);
        }
    }
}
