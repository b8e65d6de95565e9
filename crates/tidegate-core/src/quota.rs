//! # Quota: limit, period and burst
//!
//! `limit` per `period` is the pace; `burst` is how much may pass at one instant after a pause. The burst defaults
//! to the limit: `100/s` lets an idle key take 100 together.
//!
//! The pace is stored as an interval per unit, a fraction p/q of microseconds in lowest terms. Three per
//! second are 1000000/3 µs apart, and no rounding ever makes them 333333.
//!
//! A quota that could not be counted exactly is rejected at construction, not at use.

mod text;

use core::fmt;
use core::time::Duration;

use crate::invalid_quota::{InvalidQuota, Reason};
pub(crate) use text::{Reader, UNLIMITED as UNLIMITED_TEXT};

/// How much may pass: `limit` per `period`, and up to `burst` at one instant.
///
/// In code the quota is usually a constant, and a mistake in it does not compile:
///
/// ```
/// use tidegate_core::Quota;
/// const LOGIN: Quota = Quota::per_minute(5).burst(2);
/// assert_eq!(LOGIN.to_string(), "5/min burst 2");
/// ```
/// ```compile_fail
/// # use tidegate_core::Quota;
/// const NOTHING: Quota = Quota::per_second(0); // a limit of zero does not compile
/// ```
///
/// A quota from configuration is parsed, or validated by [`Quota::try_new`]:
///
/// ```
/// # use tidegate_core::Quota;
/// # use core::time::Duration;
/// let quota: Quota = "300 per 20s burst 50".parse()?;
/// assert_eq!(quota, Quota::try_new(300, Duration::from_secs(20), 50)?);
/// # Ok::<(), tidegate_core::InvalidQuota>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u64,
    period: Duration,
    burst: u64,
    p: u64,
    q: u64,
}

impl Quota {
    /// `limit` per second.
    ///
    /// # Panics
    /// If `limit` is 0 or too large to be counted exactly; in a `const` that is a compile error.
    #[must_use]
    pub const fn per_second(limit: u64) -> Self {
        Quota::per(limit, Duration::from_secs(1))
    }

    /// `limit` per minute.
    ///
    /// # Panics
    /// As [`Quota::per_second`].
    #[must_use]
    pub const fn per_minute(limit: u64) -> Self {
        Quota::per(limit, Duration::from_secs(60))
    }

    /// `limit` per hour.
    ///
    /// # Panics
    /// As [`Quota::per_second`].
    #[must_use]
    pub const fn per_hour(limit: u64) -> Self {
        Quota::per(limit, Duration::from_secs(3_600))
    }

    /// `limit` per day of 24 hours.
    ///
    /// # Panics
    /// As [`Quota::per_second`].
    #[must_use]
    pub const fn per_day(limit: u64) -> Self {
        Quota::per(limit, Duration::from_secs(86_400))
    }

    /// One per `interval`, with a burst of one.
    ///
    /// # Panics
    /// As [`Quota::per_second`].
    #[must_use]
    pub const fn every(interval: Duration) -> Self {
        Quota::per(1, interval)
    }

    /// `limit` per `period`.
    ///
    /// # Panics
    /// As [`Quota::per_second`], and if the period is zero.
    #[must_use]
    pub const fn per(limit: u64, period: Duration) -> Self {
        match Quota::checked(limit, period, limit) {
            Ok(quota) => quota,
            Err(reason) => panic!("{}", reason.sentence()),
        }
    }

    /// The same pace with another burst.
    ///
    /// # Panics
    /// If `burst` is 0 or too large to be counted exactly.
    #[must_use]
    pub const fn burst(self, burst: u64) -> Self {
        match Quota::checked(self.limit, self.period, burst) {
            Ok(quota) => quota,
            Err(reason) => panic!("{}", reason.sentence()),
        }
    }

    /// A quota that no caller can exhaust in practice: 2⁵² per microsecond, with a burst of 2⁵².
    ///
    /// For plans without a limit. It is an ordinary exact quota, so a [`TokenBucket`](crate::TokenBucket) or a
    /// [`PerCallBucket`](crate::PerCallBucket) needs no special case for it: a million requests of cost `u32::MAX` pass
    /// at one instant, and one microsecond later the bucket is full again. As text it is `unlimited`.
    ///
    /// Only token buckets and [pacing](crate::Pacing) accept it. Windows, logs, queues and stepped buckets return an
    /// error from `try_new`, and panic in `new`.
    ///
    /// ```
    /// use tidegate_core::{Quota, SlidingLog};
    /// const PARTNER: Quota = Quota::unlimited();
    /// assert_eq!(PARTNER.to_string(), "unlimited");
    /// assert_eq!("unlimited".parse(), Ok(PARTNER));
    /// assert!(SlidingLog::try_new(PARTNER).is_err());
    /// ```
    #[must_use]
    pub const fn unlimited() -> Self {
        Quota { limit: UNLIMITED, period: Duration::from_micros(1), burst: UNLIMITED, p: 1, q: UNLIMITED }
    }

    /// Whether pace and burst are those of [`Quota::unlimited`].
    ///
    /// ```
    /// # use tidegate_core::Quota;
    /// assert!(Quota::unlimited().is_unlimited());
    /// assert!(!Quota::unlimited().burst(5).is_unlimited()); // at most 5 at one instant
    /// ```
    #[must_use]
    pub const fn is_unlimited(&self) -> bool {
        self.p == 1 && self.q == UNLIMITED && self.burst == UNLIMITED
    }

    /// This quota, for algorithms that cannot count an unlimited one.
    pub(crate) const fn finite(self) -> Result<Self, Reason> {
        if self.is_unlimited() { Err(Reason::Unlimited) } else { Ok(self) }
    }

    /// A quota from values that have not been validated. Never panics.
    ///
    /// # Errors
    /// [`InvalidQuota`] if a value is zero, or the quota cannot be counted exactly.
    pub fn try_new(limit: u64, period: Duration, burst: u64) -> Result<Self, InvalidQuota> {
        Quota::checked(limit, period, burst).map_err(InvalidQuota::because)
    }

    /// How much may pass per period.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The period that the limit applies to.
    #[must_use]
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// How much may pass at one instant.
    #[must_use]
    pub const fn max_burst(&self) -> u64 {
        self.burst
    }

    /// The interval per unit is p/q microseconds in lowest terms: this is p.
    #[inline]
    #[must_use]
    pub const fn p(&self) -> u64 {
        self.p
    }

    /// The interval per unit is p/q microseconds in lowest terms: this is q.
    #[inline]
    #[must_use]
    pub const fn q(&self) -> u64 {
        self.q
    }

    pub(crate) const fn checked(limit: u64, period: Duration, burst: u64) -> Result<Self, Reason> {
        if limit == 0 {
            return Err(Reason::ZeroLimit);
        }
        if period.is_zero() {
            return Err(Reason::ZeroPeriod);
        }
        if burst == 0 {
            return Err(Reason::ZeroBurst);
        }
        let nanos = period.as_nanos();
        let units = limit as u128 * 1_000;
        let common = gcd(nanos, units);
        let (p, q) = (nanos / common, units / common);
        // p · burst < 2⁵³ keeps every sum of debts exact, here and in a double.
        if p >= EXACT || q >= EXACT || p * burst as u128 >= EXACT {
            return Err(Reason::Inexact { limit, period, burst });
        }
        #[expect(clippy::cast_possible_truncation, reason = "both were just checked to be below 2⁵³")]
        Ok(Quota { limit, period, burst, p: p as u64, q: q as u64 })
    }
}

/// The limit and the burst of an unlimited quota.
const UNLIMITED: u64 = 1 << 52;

/// Products of a cost and an interval stay below this, so that they are exact everywhere.
const EXACT: u128 = 1 << 53;

/// An interval of p/q microseconds, `times` times as long, if it can be counted exactly.
pub(crate) fn slower(p: u64, q: u64, times: u64) -> Option<(u64, u64)> {
    let (longer, q) = (u128::from(p) * u128::from(times), u128::from(q));
    let common = gcd(longer, q);
    let (p, q) = (u64::try_from(longer / common).ok()?, u64::try_from(q / common).ok()?);
    (u128::from(p) < EXACT).then_some((p, q))
}

pub(crate) const fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl fmt::Display for Quota {
    /// Writes the text that [`str::parse`] reads back as the same quota.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::write_quota(self, f)
    }
}
