//! # Retry time of a refusal
//!
//! `Retry-After` is in whole seconds. Rounded down, it would send clients back a moment too early, to be refused again;
//! so it is rounded up, and is never 0. Clients that are refused in the same moment would also return in the same
//! moment. Jitter, always upward, spreads them.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Wait;

/// Random extra time for retries: up to `percent` percent of the wait.
#[derive(Debug, Default)]
pub(super) struct Jitter {
    percent: u8,
    chance: RandomState,
    drawn: AtomicU64,
}

impl Jitter {
    pub(super) fn new(percent: u8) -> Self {
        Jitter { percent, chance: RandomState::new(), drawn: AtomicU64::new(0) }
    }

    /// Adds jitter. The result is never less than the wait.
    pub(super) fn on(&self, wait: Wait) -> Wait {
        let most = u128::from(wait.as_micros()) * u128::from(self.percent) / 100;
        if most == 0 {
            return wait;
        }
        let draw = self.chance.hash_one(self.drawn.fetch_add(1, Ordering::Relaxed));
        let more = u64::try_from(u128::from(draw) % (most + 1)).unwrap_or(0);
        Wait::micros(wait.as_micros().saturating_add(more))
    }
}

/// The value of `Retry-After`: whole seconds, rounded up, at least 1.
pub(super) fn seconds(wait: Wait) -> u64 {
    wait.as_secs_up().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_round_up_and_are_never_0() {
        let micros = [1_000, 0, 1_000_000, 1_200_000, 1_000_001];
        assert_eq!(micros.map(|micros| seconds(Wait::micros(micros))), [1, 1, 1, 2, 2]);
    }

    #[test]
    fn jitter_is_upward_and_bounded_and_spreads() {
        let (jitter, wait) = (Jitter::new(20), Wait::micros(10_000_000));
        let drawn: Vec<u64> = (0..1_000).map(|_| seconds(jitter.on(wait))).collect();
        assert!(drawn.iter().all(|seconds| (10..=12).contains(seconds)), "{drawn:?}");
        assert!([11, 12].iter().all(|seconds| drawn.contains(seconds)), "{drawn:?}");
        assert_eq!(Jitter::new(0).on(wait), wait);
        assert_eq!(jitter.on(Wait::micros(u64::MAX)), Wait::micros(u64::MAX));
    }
}
