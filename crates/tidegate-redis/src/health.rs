//! # Health: whether limits are really enforced
//!
//! A rule with `on_outage: open` lets everything pass during an outage, which may go unnoticed. So every decision is counted by its source. In addition, a canary checks enforcement: a limit of one is
//! requested twice every few seconds, and the second request must be refused.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::Error;
use crate::lease;
use tidegate_core::Source;

/// Reports whether a [`RedisGate`](crate::RedisGate) enforces its limits, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Whether the last canary was refused as it should be. `None` before the first one.
    pub enforced: Option<bool>,
    /// The number of established connections, and of connections that should be established.
    pub connections: (usize, usize),
    /// Whether the breaker is open: Redis failed repeatedly, so no requests are sent until a probe succeeds.
    pub breaker_open: bool,
    /// How many times the breaker has opened.
    pub breaker_openings: u64,
    /// Name and version that the server reports.
    pub server: String,
    /// Problems of the servers, one sentence each.
    pub warnings: Vec<String>,
    /// The most recent reason why Redis did not decide.
    pub last_error: Option<Error>,
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

/// The counters of a gate, and what was observed last.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    pub(crate) counters: Arc<Counters>,
    /// 0: not known, 1: not enforced, 2: enforced.
    canary: AtomicU64,
    last_error: RwLock<Option<Error>>,
}

/// Counters that only grow. A gate that replaces another continues them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    strict: AtomicU64,
    local: AtomicU64,
    open: AtomicU64,
    closed: AtomicU64,
    commands: AtomicU64,
    /// In the order of [`Error::REASONS`].
    fallbacks: [AtomicU64; Error::REASONS.len()],
    /// Openings of the breaker.
    pub(crate) openings: Arc<AtomicU64>,
    pub(crate) leases: lease::LeaseCounters,
}

impl Monitor {
    pub(crate) fn continuing(counters: Arc<Counters>) -> Self {
        Monitor { counters, ..Monitor::default() }
    }

    #[inline]
    pub(crate) fn count_decision(&self, source: Source) {
        let Counters { strict, local, open, closed, .. } = &*self.counters;
        let count = match source {
            Source::Local | Source::Sketch => local,
            Source::Open => open,
            Source::Closed => closed,
            _ => strict,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a decision made without Redis.
    pub(crate) fn count_fallback(&self, error: &Error) {
        self.counters.fallbacks[error.reason_index()].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn fallbacks(&self) -> Fallbacks {
        let [deadline, not_connected, breaker_open, too_many_in_flight, error] =
            self.counters.fallbacks.each_ref().map(|count| count.load(Ordering::Relaxed));
        Fallbacks { deadline, not_connected, breaker_open, too_many_in_flight, error }
    }

    /// Counts a call of the script.
    #[inline]
    pub(crate) fn count_command(&self) {
        self.counters.commands.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn commands(&self) -> u64 {
        self.counters.commands.load(Ordering::Relaxed)
    }

    pub(crate) fn decisions(&self) -> Decisions {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counters { strict, local, open, closed, .. } = &*self.counters;
        Decisions { strict: read(strict), local: read(local), open: read(open), closed: read(closed) }
    }

    pub(crate) fn record_canary(&self, enforced: bool) {
        self.canary.store(1 + u64::from(enforced), Ordering::Relaxed);
    }

    pub(crate) fn enforced(&self) -> Option<bool> {
        match self.canary.load(Ordering::Relaxed) {
            0 => None,
            canary => Some(canary == 2),
        }
    }

    pub(crate) fn record_error(&self, error: &Error) {
        if error.is_breaker_open() {
            return; // the error before it says more
        }
        let mut last = self.last_error.write().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref() != Some(error) {
            *last = Some(error.clone());
        }
    }

    pub(crate) fn last_error(&self) -> Option<Error> {
        self.last_error.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

// === impl Fallbacks ===

impl Fallbacks {
    /// Returns each reason, as metrics name it, with its number of decisions.
    pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Fallbacks { deadline, not_connected, breaker_open, too_many_in_flight, error } = *self;
        let counts = [deadline, not_connected, breaker_open, too_many_in_flight, error];
        Error::REASONS.into_iter().zip(counts)
    }

    /// Returns the number of decisions made without Redis, for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_reason().map(|(_, count)| count).sum()
    }
}
