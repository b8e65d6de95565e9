//! # Pacing with warm-up
//!
//! A service that has been idle for a while is slow at first: its caches are empty, its connections closed. A burst as
//! a reward for idle time is the opposite of what it needs. So here idle time makes requests *more expensive*: the
//! first leave `cold_factor` intervals apart, and the distance shrinks to one interval as the pacer warms up.
//!
//! The state is a store of permits, as in [`Bursty`](super::Bursty): idle time fills it, requests take from it. But
//! stored permits are not free. The fuller the store, the colder the pacer, and the more expensive each permit:
//!
//! ```text
//!   time per
//!    permit  ▲
//!   c × I    ┤                         ╱│        c  cold factor
//!            │                      ╱   │        I  interval of the quota
//!            │                   ╱ ░░░░░│
//!            │                ╱ ░░░░░░░░│  ◄── this area is `warm_up`: the time from cold to warm
//!       I    ┤─────────────╱ ░░░░░░░░░░░│
//!            │            │░░░░░░░░░░░░░│
//!            ┼────────────┼─────────────┼────► stored permits
//!            0        threshold        max
//!           warm                       cold
//!                     ◄── taking moves left; idle time moves right, from 0 to max within `warm_up`
//! ```
//!
//! Taking permits costs the time under the curve. An area does not depend on how it is cut: ten permits cost the same
//! whether they are taken together or one by one. This must hold to the last part of time although areas are rounded.
//! Let Φ(s) be the area from 0 to s, *rounded up once*. A step from s to s − k costs Φ(s) − Φ(s − k), and any chain of
//! such steps telescopes to its ends.
//!
//! Store and instant share a unit if the store is measured in the *time it took to fill it*. Then a microsecond of
//! idle time is a microsecond in the store, whatever the rate, and the maximum is `warm_up` itself. One permit is
//! worth I·2(c+1)/(c+5) of it. A microsecond has enough parts to make this value, I, the threshold and the maximum
//! whole numbers; that number is then doubled, again and again, until the rounding of Φ is negligible.
//!
//! The state holds the complement of the store, its *warmth*: the maximum minus what is stored. A new pacer is cold,
//! and its warmth is zero.
//!
//! A change of the rate leaves both instant and store where they are. As time they are the same, so the store keeps
//! its fill level.

use core::time::Duration;

use super::{parts_at, read, write};
use crate::invalid_quota::{InvalidQuota, Reason};
use crate::{Micros, Quota, WordsMut};

/// Pacing that starts cold after idle time, and warms up within `warm_up` of steady work.
///
/// ```
/// use core::time::Duration;
/// use tidegate_core::{Micros, Pacing, Quota, WarmUp};
///
/// let pacing = Pacing::from(WarmUp::new(Quota::per_second(5), Duration::from_secs(1)));
/// let (mut state, mut now, mut waits) = ([0; 3], Micros::ZERO, [0; 6]);
/// for wait in &mut waits {
///     let reserved = pacing.reserve(&mut state, now, 1)?;
///     now = reserved.from();
///     *wait = reserved.wait().as_micros() / 1_000;
/// }
/// assert_eq!(waits, [0, 520, 360, 220, 200, 200]); // ms
/// # Ok::<(), tidegate_core::Wait>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarmUp {
    quota: Quota,
    warm_up: Duration,
    /// The cold factor, in lowest terms.
    cold: Ratio,
    curve: Curve,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ratio {
    numerator: u64,
    denominator: u64,
}

/// The curve drawn above, in parts of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Curve {
    /// The number of parts per microsecond.
    parts: u64,
    /// The interval: the cost of a permit when warm.
    warm: u64,
    /// The amount that a permit takes from the store.
    token_value: u64,
    /// The level of the store from which permits cost more; `full` is its maximum.
    threshold: u64,
    full: u64,
}

/// Enough parts per microsecond; more would only leave less room for long warm-ups.
const FINE: u64 = 1 << 40;
/// All lengths of a curve are below this, so permits times a length are below 2¹²⁶.
const MAX: u128 = 1 << 62;

impl WarmUp {
    /// The pace of `quota`, reached after `warm_up`; a cold pacer is three times as slow.
    ///
    /// The burst of the quota is ignored.
    ///
    /// # Panics
    /// If `warm_up` is zero or not a whole number of microseconds, or the curve cannot be counted exactly; in a `const`
    /// that is a compile error. See [`WarmUp::try_new`].
    #[must_use]
    pub const fn new(quota: Quota, warm_up: Duration) -> Self {
        match WarmUp::checked(quota, warm_up, Ratio { numerator: 3, denominator: 1 }) {
            Ok(warm_up) => warm_up,
            Err(reason) => panic!("{}", reason.sentence()),
        }
    }

    /// As [`WarmUp::new`], for values that have not been validated. Never panics.
    ///
    /// # Errors
    /// [`InvalidQuota`] if `warm_up` is zero or not a whole number of microseconds, or the curve cannot be counted
    /// exactly.
    pub fn try_new(quota: Quota, warm_up: Duration) -> Result<Self, InvalidQuota> {
        let cold = Ratio { numerator: 3, denominator: 1 };
        WarmUp::checked(quota, warm_up, cold).map_err(InvalidQuota::because)
    }

    /// The same, `times` times as slow when cold.
    ///
    /// With 1 the pace is constant: idle time neither slows requests down nor allows a burst.
    ///
    /// # Panics
    /// If `times` is 0, or the curve cannot be counted exactly. See [`WarmUp::try_cold_factor`].
    #[must_use]
    pub const fn cold_factor(self, times: u32) -> Self {
        match WarmUp::checked(self.quota, self.warm_up, Ratio { numerator: times as u64, denominator: 1 }) {
            Ok(warm_up) => warm_up,
            Err(reason) => panic!("{}", reason.sentence()),
        }
    }

    /// The same with a cold factor of `numerator` ÷ `denominator`, as 5 and 2 for 2.5.
    ///
    /// Never panics.
    ///
    /// # Errors
    /// [`InvalidQuota`] if the factor is below 1 or the denominator is 0, or the curve cannot be counted exactly.
    pub fn try_cold_factor(self, numerator: u32, denominator: u32) -> Result<Self, InvalidQuota> {
        let cold = Ratio { numerator: numerator.into(), denominator: denominator.into() };
        WarmUp::checked(self.quota, self.warm_up, cold).map_err(InvalidQuota::because)
    }

    const fn checked(quota: Quota, warm_up: Duration, cold: Ratio) -> Result<Self, Reason> {
        let micros = warm_up.as_micros();
        if micros == 0 || !warm_up.as_nanos().is_multiple_of(1_000) {
            return Err(Reason::WarmUpNotWhole { warm_up });
        }
        let Ratio { numerator, denominator } = cold;
        if denominator == 0 || numerator < denominator {
            return Err(Reason::ColdFactor { numerator, denominator });
        }
        let cold = cold.reduced();
        match Curve::new(quota, micros, cold) {
            Some(curve) => Ok(WarmUp { quota, warm_up, cold, curve }),
            None => {
                let (limit, period) = (quota.limit(), quota.period());
                Err(Reason::WarmUpInexact { limit, period, warm_up, numerator, denominator })
            }
        }
    }

    pub(super) const fn quota(&self) -> Quota {
        self.quota
    }

    pub(super) fn with_quota(self, quota: Quota) -> Result<Self, InvalidQuota> {
        WarmUp::checked(quota, self.warm_up, self.cold).map_err(InvalidQuota::because)
    }

    #[inline]
    pub(super) const fn parts(&self) -> u64 {
        self.curve.parts
    }

    pub(super) fn charge<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, permits: u64) {
        let (free, here) = (read(state), parts_at(now, self.parts()));
        let idle = u64::try_from(here.saturating_sub(free)).unwrap_or(u64::MAX);
        let stored = self.curve.full - state.get(2).saturating_sub(idle).min(self.curve.full);
        let taken = u128::from(permits) * u128::from(self.curve.token_value);
        let left = stored - u64::try_from(taken).unwrap_or(u64::MAX).min(stored);
        let due = free.max(here) + self.cost(stored, permits);
        write(state, due.min(parts_at(Micros::MAX, self.parts())));
        state.set(2, self.curve.full - left);
    }

    /// Converts the warmth of a state written under `old`. Rounded down: colder is slower.
    pub(super) fn as_warm_as(&self, old: &WarmUp, warmth: u64) -> u64 {
        let warmth = u128::from(warmth) * u128::from(self.curve.full) / u128::from(old.curve.full);
        u64::try_from(warmth).unwrap_or(u64::MAX).min(self.curve.full)
    }

    /// The cost of `permits` while `stored` is in the store.
    fn cost(&self, stored: u64, permits: u64) -> u128 {
        let all = u128::from(permits) * u128::from(self.curve.warm);
        if stored == 0 {
            return all;
        }
        let taken = u128::from(permits) * u128::from(self.curve.token_value);
        match u128::from(stored).checked_sub(taken) {
            Some(left) => self.area(u128::from(stored)) - self.area(left),
            // More than is stored: the missing permits cost as much as when warm. The level part of the curve continues
            // to the left of zero, rounded as on its right, so that a chain of requests telescopes here too.
            None => self.area(u128::from(stored)) - self.even(u128::from(stored)) + all,
        }
    }

    /// The area under the curve from 0 to `stored`, rounded up once: Φ of the module docs.
    fn area(&self, stored: u128) -> u128 {
        let (threshold, full) = (u128::from(self.curve.threshold), u128::from(self.curve.full));
        let Some(beyond) = stored.checked_sub(threshold) else { return self.even(stored) };
        // A triangle on top of a rectangle, over the length from the threshold to the end. Their area together is
        // `full`.
        let (cold, one, length) = (self.cold.numerator(), self.cold.denominator(), full - threshold);
        let height_twice = 2 * one * length + (cold - one) * beyond;
        full / 2 + ((cold + 5 * one) * beyond * height_twice).div_ceil(4 * one * (cold + one) * length)
    }

    /// The area under the level part of the curve, extended beyond the threshold.
    fn even(&self, stored: u128) -> u128 {
        let (cold, one) = (self.cold.numerator(), self.cold.denominator());
        (stored * (cold + 5 * one)).div_ceil(2 * (cold + one))
    }
}

// === impl Ratio ===

impl Ratio {
    const fn reduced(self) -> Self {
        let common = crate::quota::gcd(self.numerator(), self.denominator());
        #[expect(clippy::cast_possible_truncation, reason = "a divisor of a number is no larger than it")]
        let common = common as u64;
        Ratio { numerator: self.numerator / common, denominator: self.denominator / common }
    }

    const fn numerator(self) -> u128 {
        self.numerator as u128
    }

    const fn denominator(self) -> u128 {
        self.denominator as u128
    }
}

// === impl Curve ===

impl Curve {
    /// The finest curve that fits; `None` if there is none.
    const fn new(quota: Quota, warm_up: u128, cold: Ratio) -> Option<Self> {
        let (p, q) = (quota.p() as u128, quota.q() as u128);
        let (cold, one) = (cold.numerator(), cold.denominator());
        // With these, every length of the curve is whole.
        let (parts, warm, token_value) = (q * (cold + 5 * one), p * (cold + 5 * one), 2 * p * (cold + one));
        let (below, beyond) = (q * (cold + one), q * 4 * one);
        let common = gcd_of([parts, warm, token_value, below, beyond]);
        let mut finer = 2; // at least 2: half of the whole area lies below the threshold
        let mut found = None;
        while let Some(curve) = Curve::scaled([parts, warm, token_value, below], common, finer, warm_up)
            && curve.is_exact(cold, one)
        {
            if curve.parts >= FINE && found.is_some() {
                break;
            }
            found = Some(curve);
            finer *= 2;
        }
        found
    }

    const fn scaled(lengths: [u128; 4], common: u128, finer: u128, warm_up: u128) -> Option<Self> {
        let [parts, warm, token_value, below] = lengths;
        if warm_up >= MAX {
            return None;
        }
        let (parts, warm, token_value) =
            (parts / common * finer, warm / common * finer, token_value / common * finer);
        let below = below / common * finer;
        if parts >= MAX || warm >= MAX || token_value >= MAX || parts * warm_up >= MAX {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "all were just checked to be below 2⁶²")]
        Some(Curve {
            parts: parts as u64,
            warm: warm as u64,
            token_value: token_value as u64,
            threshold: (below * warm_up) as u64,
            full: (parts * warm_up) as u64,
        })
    }

    /// Whether the products in the computation of an area fit into 128 bits.
    const fn is_exact(&self, cold: u128, one: u128) -> bool {
        let length = (self.full - self.threshold) as u128;
        let Some(area) = (length * length).checked_mul(cold + 5 * one) else { return false };
        area.checked_mul(cold + one).is_some()
    }
}

const fn gcd_of(lengths: [u128; 5]) -> u128 {
    let (mut common, mut index) = (0, 0);
    while index < lengths.len() {
        common = crate::quota::gcd(common, lengths[index]);
        index += 1;
    }
    common
}
