//! # Pacing that catches up
//!
//! Requests leave an interval apart. If nobody asks for a while, that time is put by, up to `max_burst`, and
//! requests that come later leave at once for as long as it lasts.
//!
//! Books are usually kept on two numbers, the permits in store and the instant at which the next one is free. But
//! permits in store are idle time divided by the interval, and there are none while anybody waits; so both are one
//! number on one line, the instant *up to which everything is spent*. In the past, it tells what is put by; in the
//! future, when the next may leave.
//!
//! ```text
//!        put by: 3 intervals                       to be waited for: 2 intervals
//!      ◄────────────────────►                             ◄──────────────►
//!   ───┼────────────────────┼──────────► t      ──────────┼──────────────┼──────► t
//!    spent                 now                           now           spent
//!      └─► taking moves it on by permits × interval; it is never further back than max_burst
//! ```
//!
//! A change of the rate leaves the instant where it is. The time put by is the same, so there are as many more
//! permits in store as the rate has become higher: the store is as full as it was, and every promise stands.
//!
//! In any stretch Δ at most rate·(Δ + `max_burst`) permits leave, and one request more, whatever its size: that one
//! is paid by whoever comes after it.

use core::time::Duration;

use super::{parts_at, read, write};
use crate::invalid::{InvalidQuota, Reason};
use crate::{Micros, Quota, WordsMut};

/// Pacing that puts by time in which nobody asked, and lets requests catch up with it.
///
/// ```
/// use core::time::Duration;
/// use tidegate_core::{Bursty, Micros, Pacing, Quota, Wait};
///
/// let pacing = Pacing::from(Bursty::new(Quota::per_second(1)).max_burst(Duration::from_secs(10)));
/// let mut state = [0; 3];
/// let after_a_rest = Micros::new(10_000_000);
/// assert_eq!(pacing.reserve(&mut state, after_a_rest, 3)?.wait(), Wait::micros(0));
/// assert_eq!(pacing.reserve(&mut state, after_a_rest, 10)?.wait(), Wait::micros(0)); // 7 were in store
/// assert_eq!(pacing.reserve(&mut state, after_a_rest, 1)?.wait(), Wait::micros(3_000_000));
/// # Ok::<(), tidegate_core::TooLong>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bursty {
    quota: Quota,
    /// In microseconds.
    max_burst: u64,
}

impl Bursty {
    /// At the pace of `quota`, whose burst plays no part, with up to one second put by.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Bursty { quota, max_burst: 1_000_000 }
    }

    /// The same, with up to so long put by. Zero puts nothing by: then no two requests ever leave together.
    ///
    /// # Panics
    /// If that is no whole number of microseconds; in a `const` it is a compile error. See [`Bursty::try_max_burst`].
    #[must_use]
    pub const fn max_burst(self, max_burst: Duration) -> Self {
        match self.checked(max_burst) {
            Ok(bursty) => bursty,
            Err(reason) => panic!("{}", reason.sentence()),
        }
    }

    /// As [`Bursty::max_burst`], from a value that is not known to be right. Never panics.
    ///
    /// # Errors
    /// [`InvalidQuota`] if `max_burst` is no whole number of microseconds.
    pub fn try_max_burst(self, max_burst: Duration) -> Result<Self, InvalidQuota> {
        self.checked(max_burst).map_err(InvalidQuota::because)
    }

    /// Longer than the time line is as long as that: nobody could put by more.
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

    /// The interval is p/q microseconds, so q parts to each make it whole.
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
