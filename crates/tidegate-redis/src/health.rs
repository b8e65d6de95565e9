//! # Health: whether limits are really enforced
//!
//! A rule with `on_outage: open` lets everything pass during an outage, and this may go unnoticed: that is the danger
//! of it. So every decision is counted by its source. In addition, a canary checks enforcement: a limit of one is
//! requested twice every few seconds, and the second request must be refused.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::Error;
use crate::lease;
use tidegate_core::Source;

/// The health of a [`RedisGate`](crate::RedisGate).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Whether the last canary was refused as it should be. `None` before the first one.
    pub enforced: Option<bool>,
    /// The number of established connections, and of connections that should be established.
    pub connections: (usize, usize),
    /// Whether the breaker is open: Redis failed so often that no requests are sent.
    pub not_asked: bool,
    /// How many times the breaker has opened.
    pub openings: u64,
    /// Name and version that the server reports.
    pub server: String,
    /// Problems of the servers, one sentence each.
    pub warnings: Vec<String>,
    /// The most recent reason why Redis did not decide.
    pub last_trouble: Option<Error>,
    /// The number of decisions by source.
    pub decisions: Decisions,
    /// The number of decisions made without Redis, by reason.
    ///
    /// A failed [`charge`](crate::RedisGate::charge) counts as one.
    pub fallbacks: Fallbacks,
    /// How many times the script was called, including canaries, renewals and refunds.
    pub commands: u64,
}

/// The number of decisions made without Redis, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fallbacks {
    /// Redis did not reply within the deadline.
    pub deadline: u64,
    /// There was no connection.
    pub not_connected: u64,
    /// The breaker was open.
    pub breaker_open: u64,
    /// Too many requests were in flight.
    pub too_many_in_flight: u64,
    /// Redis replied with an error, or with something that is not a reply of the script.
    pub error: u64,
}

/// The number of decisions by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decisions {
    /// Decided by Redis, from the one exact state.
    pub strict: u64,
    /// Decided from this node's share.
    pub local: u64,
    /// Allowed without counting.
    pub open: u64,
    /// Refused without counting.
    pub closed: u64,
}

/// The counters of a gate, updated with each decision.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) numbers: Arc<Numbers>,
    /// 0: not known, 1: not enforced, 2: enforced.
    canary: AtomicU64,
    last_trouble: RwLock<Option<Error>>,
}

/// Counters that only grow. A gate that replaces another continues them.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    strict: AtomicU64,
    local: AtomicU64,
    open: AtomicU64,
    closed: AtomicU64,
    commands: AtomicU64,
    /// In the order of [`Fallbacks::REASONS`].
    fallbacks: [AtomicU64; Fallbacks::REASONS.len()],
    /// Openings of the breaker.
    pub(crate) openings: Arc<AtomicU64>,
    pub(crate) leases: lease::Counts,
}

impl Counts {
    pub(crate) fn going_on(numbers: Arc<Numbers>) -> Self {
        Counts { numbers, ..Counts::default() }
    }

    #[inline]
    pub(crate) fn count(&self, source: Source) {
        let Numbers { strict, local, open, closed, .. } = &*self.numbers;
        let count = match source {
            Source::Local | Source::Sketch => local,
            Source::Open => open,
            Source::Closed => closed,
            _ => strict,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a decision made without Redis.
    pub(crate) fn fell_back(&self, error: &Error) {
        self.numbers.fallbacks[reason(error)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn fallbacks(&self) -> Fallbacks {
        let [deadline, not_connected, breaker_open, too_many_in_flight, error] =
            self.numbers.fallbacks.each_ref().map(|count| count.load(Ordering::Relaxed));
        Fallbacks { deadline, not_connected, breaker_open, too_many_in_flight, error }
    }

    /// Counts a call of the script.
    #[inline]
    pub(crate) fn asked(&self) {
        self.numbers.commands.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn commands(&self) -> u64 {
        self.numbers.commands.load(Ordering::Relaxed)
    }

    pub(crate) fn decisions(&self) -> Decisions {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Numbers { strict, local, open, closed, .. } = &*self.numbers;
        Decisions { strict: read(strict), local: read(local), open: read(open), closed: read(closed) }
    }

    pub(crate) fn saw_canary(&self, enforced: bool) {
        self.canary.store(1 + u64::from(enforced), Ordering::Relaxed);
    }

    pub(crate) fn enforced(&self) -> Option<bool> {
        match self.canary.load(Ordering::Relaxed) {
            0 => None,
            canary => Some(canary == 2),
        }
    }

    pub(crate) fn saw(&self, error: &Error) {
        if *error == Error::NotAsked {
            return; // the error before it says more
        }
        let mut last = self.last_trouble.write().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref() != Some(error) {
            *last = Some(error.clone());
        }
    }

    pub(crate) fn last_trouble(&self) -> Option<Error> {
        self.last_trouble.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns the index of a reason in [`Fallbacks::REASONS`].
fn reason(error: &Error) -> usize {
    match error {
        Error::TooLate => 0,
        Error::NotConnected { .. } => 1,
        Error::NotAsked => 2,
        Error::TooManyInFlight => 3,
        Error::Refused { .. } | Error::Nonsense => 4,
    }
}

// === impl Fallbacks ===

impl Fallbacks {
    const REASONS: [&'static str; 5] =
        ["deadline", "not_connected", "breaker_open", "too_many_in_flight", "error"];

    /// Returns each reason, as metrics name it, with its number of decisions.
    pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Fallbacks { deadline, not_connected, breaker_open, too_many_in_flight, error } = *self;
        let counts = [deadline, not_connected, breaker_open, too_many_in_flight, error];
        Fallbacks::REASONS.into_iter().zip(counts)
    }

    /// Returns the number of decisions made without Redis, for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_reason().map(|(_, count)| count).sum()
    }
}
