//! # Pacing that catches up
//!
//! Requests leave an interval apart. Idle time is stored, up to `max_burst`, and later requests leave without
//! waiting as long as the stored time lasts.
//!
//! Usually this takes two numbers, the stored permits and the instant at which the next one is free. But stored
//! permits are idle time divided by the interval, and there are none while a request waits. So both are one
//! number, the instant *up to which all time is spent*. In the past, it tells how much time is stored; in the
//! future, when the next request may leave.
//!
//! ```text
//!        stored: 3 intervals                           wait: 2 intervals
//!      ◄────────────────────►                             ◄──────────────►
//!   ───┼────────────────────┼──────────► t      ──────────┼──────────────┼──────► t
//!    spent                 now                           now           spent
//!      └─► a charge moves it by permits × interval; it is never further back than max_burst
//! ```
//!
//! A change of the rate leaves the instant where it is. The stored time is the same, so the stored permits grow
//! with the rate: the store keeps its fill level, and every promised instant stays.
//!
//! In any time span Δ at most rate·(Δ + `max_burst`) permits leave, and one request more, whatever its size: that
//! request is paid for by the ones after it.

use core::time::Duration;

use super::{parts_at, read, write};
use crate::invalid_quota::{InvalidQuota, Reason};
use crate::{Micros, Quota, WordsMut};

/// Pacing that stores idle time and lets later requests catch up with it.
///
/// ```
/// use core::time::Duration;
/// use tidegate_core::{Bursty, Micros, Pacing, Quota, Wait};
///
/// let pacing = Pacing::from(Bursty::new(Quota::per_second(1)).max_burst(Duration::from_secs(10)));
/// let mut state = [0; 3];
/// let after_a_rest = Micros::new(10_000_000);
/// assert_eq!(pacing.reserve(&mut state, after_a_rest, 3)?.wait(), Wait::micros(0));
/// assert_eq!(pacing.reserve(&mut state, after_a_rest, 10)?.wait(), Wait::micros(0)); // 7 were stored
/// assert_eq!(pacing.reserve(&mut state, after_a_rest, 1)?.wait(), Wait::micros(3_000_000));
/// # Ok::<(), tidegate_core::Wait>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bursty {
    quota: Quota,
    /// In microseconds.
    max_burst: u64,
}

impl Bursty {
    /// Pacing at the rate of `quota` that stores up to one second. The burst is ignored.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Bursty { quota, max_burst: 1_000_000 }
    }

    /// The same, with up to `max_burst` of stored time.
    ///
    /// With zero nothing is stored: then no two requests ever leave together.
    ///
    /// # Panics
    /// If `max_burst` is not a whole number of microseconds; in a `const` that is a compile error. See
    /// [`Bursty::try_max_burst`].
    #[must_use]
    pub const fn max_burst(self, max_burst: Duration) -> Self {
        match self.checked(max_burst) {
            Ok(bursty) => bursty,
            Err(reason) => panic!("{}", reason.sentence()),
        }
    }

    /// As [`Bursty::max_burst`], for a value that has not been validated. Never panics.
    ///
    /// # Errors
    /// [`InvalidQuota`] if `max_burst` is not a whole number of microseconds.
    pub fn try_max_burst(self, max_burst: Duration) -> Result<Self, InvalidQuota> {
        self.checked(max_burst).map_err(InvalidQuota::because)
    }

    /// Caps `max_burst` at the length of the time line: more can never be stored.
    const fn checked(self, max_burst: Duration) -> Result<Self, Reason> {
        let micros = max_burst.as_micros();
        if !max_burst.as_nanos().is_multiple_of(1_000) {
            return Err(Reason::MaxBurstNotWhole { max_burst });
        }
        #[expect(clippy::cast_possible_truncation, reason = "just found to be on the time line")]
        let max_burst = if micros > Micros::MAX.get() as u128 { Micros::MAX.get() } else { micros as u64 };
        Ok(Bursty { max_burst, ..self })
    }

    pub(super) const fn quota(&self) -> Quota {
        self.quota
    }

    pub(super) const fn with_quota(self, quota: Quota) -> Self {
        Bursty { quota, ..self }
    }

    /// The parts per microsecond: q, because the interval is p/q microseconds.
    #[inline]
    pub(super) const fn parts(&self) -> u64 {
        self.quota.q()
    }

    #[inline]
    pub(super) fn charge<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, permits: u64) {
        let furthest_back = parts_at(now.minus(self.max_burst), self.parts());
        let spent = read(state).max(furthest_back);
        let charge = u128::from(permits) * u128::from(self.quota.p());
        write(state, (spent + charge).min(parts_at(Micros::MAX, self.parts())));
    }
}
