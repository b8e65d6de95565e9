//! # Retry time and jitter
//!
//! `Retry-After` is in whole seconds. Rounded down, it would send clients back a moment too early, to be refused again;
//! so it is rounded up, and is never 0. Clients that are refused at the same moment would also retry at the same
//! moment. Jitter, which only lengthens the time, spreads them.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Wait;

/// Random extra time for retries: up to `percent` percent of the wait.
#[derive(Debug, Default)]
pub(super) struct Jitter {
    percent: u8,
    hasher: RandomState,
    draws: AtomicU64,
}

impl Jitter {
    pub(super) fn new(percent: u8) -> Self {
        Jitter { percent, hasher: RandomState::new(), draws: AtomicU64::new(0) }
    }

    /// Adds jitter. The result is never less than the wait.
    pub(super) fn add_to(&self, wait: Wait) -> Wait {
        let max = u128::from(wait.as_micros()) * u128::from(self.percent) / 100;
        if max == 0 {
            return wait;
        }
        let random = self.hasher.hash_one(self.draws.fetch_add(1, Ordering::Relaxed));
        let extra = u64::try_from(u128::from(random) % (max + 1)).unwrap_or(0);
        Wait::micros(wait.as_micros().saturating_add(extra))
    }
}

/// The value of `Retry-After`: whole seconds, rounded up, at least 1.
pub(super) fn retry_after_seconds(wait: Wait) -> u64 {
    wait.as_secs_up().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_round_up_and_are_never_0() {
        let micros = [1_000, 0, 1_000_000, 1_200_000, 1_000_001];
        assert_eq!(micros.map(|micros| retry_after_seconds(Wait::micros(micros))), [1, 1, 1, 2, 2]);
    }

    #[test]
    fn jitter_is_upward_and_bounded_and_spreads() {
        let (jitter, wait) = (Jitter::new(20), Wait::micros(10_000_000));
        let draws: Vec<u64> = (0..1_000).map(|_| retry_after_seconds(jitter.add_to(wait))).collect();
        assert!(draws.iter().all(|seconds| (10..=12).contains(seconds)), "{draws:?}");
        assert!([11, 12].iter().all(|seconds| draws.contains(seconds)), "{draws:?}");
        assert_eq!(Jitter::new(0).add_to(wait), wait);
        assert_eq!(jitter.add_to(Wait::micros(u64::MAX)), Wait::micros(u64::MAX));
    }
}
