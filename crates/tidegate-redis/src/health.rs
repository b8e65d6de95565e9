//! # Whether limits are really enforced
//!
//! A rule that is open lets everything pass while Redis does not answer, and nobody notices: that is the danger of it. So
//! every decision is counted by how it was made, and a canary, a limit of one that is asked twice every few seconds, proves
//! that the second is refused.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::Error;
use crate::lease;
use tidegate_core::Source;

/// How a [`RedisGate`](crate::RedisGate) is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Whether the canary was refused when it should be, the last time it was asked. `None` before the first time.
    pub enforced: Option<bool>,
    /// How many connections there are, and how many there should be.
    pub connections: (usize, usize),
    /// Whether Redis has failed so often that it is not asked.
    pub not_asked: bool,
    /// How often that has begun.
    pub openings: u64,
    /// What the servers call themselves.
    pub server: String,
    /// What is wrong with them, each in a sentence.
    pub warnings: Vec<String>,
    /// Why Redis did not decide, the last time it did not.
    pub last_trouble: Option<Error>,
    /// How decisions were made.
    pub decisions: Decisions,
    /// How many decisions were made without Redis, by the reason. A failed [`charge`](crate::RedisGate::charge) counts as one.
    pub fallbacks: Fallbacks,
    /// How often the script was asked for anything, the canary and what is renewed or given back included.
    pub commands: u64,
}

/// How many decisions were made without Redis, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fallbacks {
    /// Redis did not answer within the deadline.
    pub deadline: u64,
    /// There was no connection.
    pub not_connected: u64,
    /// Redis had failed too often and was not asked.
    pub breaker_open: u64,
    /// Too many requests were waiting for an answer.
    pub too_many_in_flight: u64,
    /// Redis answered with an error, or with something that is no answer of the script.
    pub error: u64,
}

/// How many decisions were made how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decisions {
    /// By Redis, from the one exact state.
    pub strict: u64,
    /// From this node's share.
    pub local: u64,
    /// Let through uncounted.
    pub open: u64,
    /// Refused uncounted.
    pub closed: u64,
}

/// Counts as decisions are made.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) numbers: Arc<Numbers>,
    /// 0: not known, 1: not enforced, 2: enforced.
    canary: AtomicU64,
    last_trouble: RwLock<Option<Error>>,
}

/// Those that only grow. A gate that takes the place of another goes on with them.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    strict: AtomicU64,
    local: AtomicU64,
    open: AtomicU64,
    closed: AtomicU64,
    commands: AtomicU64,
    /// In the order of [`Fallbacks::REASONS`].
    fallbacks: [AtomicU64; Fallbacks::REASONS.len()],
    /// Of the breaker.
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

    /// A decision was made without Redis.
    pub(crate) fn fell_back(&self, error: &Error) {
        self.numbers.fallbacks[reason(error)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn fallbacks(&self) -> Fallbacks {
        let [deadline, not_connected, breaker_open, too_many_in_flight, error] =
            self.numbers.fallbacks.each_ref().map(|count| count.load(Ordering::Relaxed));
        Fallbacks { deadline, not_connected, breaker_open, too_many_in_flight, error }
    }

    /// The script was asked once more.
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
            return; // what came before it says more
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

/// The place of a reason in [`Fallbacks::REASONS`].
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

    /// Each reason, as metrics name it, and how many decisions were made for it.
    pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Fallbacks { deadline, not_connected, breaker_open, too_many_in_flight, error } = *self;
        let counts = [deadline, not_connected, breaker_open, too_many_in_flight, error];
        Fallbacks::REASONS.into_iter().zip(counts)
    }

    /// How many decisions were made without Redis, for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_reason().map(|(_, count)| count).sum()
    }
}
