//! # Invalid quotas and rules
//!
//! One error type for every invalid quota or rule. It names the value, says what is wrong with it and what
//! would be valid. For text it also knows the character.

use core::fmt;
use core::time::Duration;

/// Why a quota, or a rule built from one, is invalid.
///
/// ```
/// use tidegate_core::Quota;
/// let error = "100/x".parse::<Quota>().unwrap_err();
/// assert_eq!(error.position(), Some(4));
/// assert_eq!(
///     error.to_string(),
///     "at character 5: found 'x', expected a unit of time: us, ms, s, min, h, day or week"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidQuota {
    reason: Reason,
    position: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    ZeroLimit,
    ZeroPeriod,
    ZeroBurst,
    Inexact { limit: u64, period: Duration, burst: u64 },
    PeriodNotWhole { period: Duration },
    LimitTooLarge { limit: u64, max: u64 },
    CellCount { cells: u32, max: u32 },
    CellTooShort { cells: u32, period: Duration },
    NginxRate { limit: u64, period: Duration },
    MaxBurstNotWhole { max_burst: Duration },
    WarmUpNotWhole { warm_up: Duration },
    WarmUpInexact { limit: u64, period: Duration, warm_up: Duration, numerator: u64, denominator: u64 },
    ColdFactor { numerator: u64, denominator: u64 },
    OffsetFromFirstHit,
    Unlimited,
    NumberTooLarge,
    Expected { what: &'static str, found: Option<char> },
}

impl InvalidQuota {
    pub(crate) const fn because(reason: Reason) -> Self {
        InvalidQuota { reason, position: None }
    }

    pub(crate) const fn at(reason: Reason, position: usize) -> Self {
        InvalidQuota { reason, position: Some(position) }
    }

    /// The position of the mistake in the text, in characters from 0; `None` if it has none.
    #[must_use]
    pub const fn position(&self) -> Option<usize> {
        self.position
    }
}

impl fmt::Display for InvalidQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(position) = self.position {
            write!(f, "at character {}: ", position + 1)?;
        }
        self.reason.fmt(f)
    }
}

impl core::error::Error for InvalidQuota {}

impl Reason {
    /// The reason without its numbers, which a panic during `const` evaluation cannot print.
    pub(crate) const fn sentence(&self) -> &'static str {
        match self {
            Reason::ZeroLimit => "a limit of 0 lets nothing pass; use 1 or more",
            Reason::ZeroPeriod => "a period of zero has no pace; use 1us or more",
            Reason::ZeroBurst => "a burst of 0 lets nothing pass; use 1 or more",
            Reason::Inexact { .. } => {
                "the quota cannot be counted exactly; use a smaller burst or a rounder limit"
            }
            Reason::PeriodNotWhole { .. } => {
                "a window must be a whole number of microseconds, from 1us to 285 years"
            }
            Reason::LimitTooLarge { .. } => "the limit is too large for this algorithm; use a smaller one",
            Reason::CellCount { .. } => "the number of cells is out of range; use 1 to 1000",
            Reason::CellTooShort { .. } => "a cell must be at least 1us long; use fewer cells",
            Reason::NginxRate { .. } => {
                "nginx counts 0.001 to 4294967 requests per second; use the exact leaky queue for other rates"
            }
            Reason::MaxBurstNotWhole { .. } => {
                "a max burst must be a whole number of microseconds; use 0s, 1us or more"
            }
            Reason::WarmUpNotWhole { .. } => "a warm-up must be a whole number of microseconds, 1us or more",
            Reason::WarmUpInexact { .. } => {
                "the warm-up cannot be counted exactly; use a shorter one, or a rounder limit or cold factor"
            }
            Reason::ColdFactor { .. } => "a cold factor must be 1 or more",
            Reason::OffsetFromFirstHit => {
                "windows from the first hit have no offset; use either `offset` or `from_first_hit`"
            }
            Reason::Unlimited => {
                "only a token bucket accepts an unlimited quota; use a token bucket or a finite limit"
            }
            Reason::NumberTooLarge => "the number is too large",
            Reason::Expected { .. } => "the text is not a quota",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Reason::Inexact { limit, period, burst } => write!(
                f,
                "{limit} per {period:?} with a burst of {burst} cannot be counted exactly; \
                 use a smaller burst, a shorter period or a rounder limit"
            ),
            Reason::PeriodNotWhole { period } => {
                write!(
                    f,
                    "a window of {period:?} cannot be counted; \
                     use a whole number of microseconds, from 1us to 285 years"
                )
            }
            Reason::LimitTooLarge { limit, max } => {
                write!(f, "a limit of {limit} is too large for this algorithm; use {max} or less")
            }
            Reason::CellCount { cells, max } => {
                write!(f, "a window of {cells} cells is out of range; use 1 to {max}")
            }
            Reason::CellTooShort { cells, period } => {
                write!(f, "{cells} cells in {period:?} are shorter than 1us each; use fewer cells")
            }
            Reason::NginxRate { limit, period } => write!(
                f,
                "{limit} per {period:?} is not a rate that nginx can count; \
                 use 0.001 to 4294967 requests per second, or leave out 'nginx' for the exact queue"
            ),
            Reason::MaxBurstNotWhole { max_burst } => write!(
                f,
                "a max burst of {max_burst:?} is not a whole number of microseconds; use 0s, 1us or more"
            ),
            Reason::WarmUpNotWhole { warm_up } => {
                write!(f, "a warm-up of {warm_up:?} is not a whole number of microseconds; use 1us or more")
            }
            Reason::WarmUpInexact { limit, period, warm_up, numerator, denominator } => write!(
                f,
                "{limit} per {period:?} warming up over {warm_up:?} with a cold factor of \
                 {numerator}/{denominator} cannot be counted exactly; \
                 use a shorter warm-up, or a rounder limit or cold factor"
            ),
            Reason::ColdFactor { numerator, denominator: 0 } => {
                write!(f, "a cold factor of {numerator}/0 is not a number; use 1 or more")
            }
            Reason::ColdFactor { numerator, denominator } => {
                write!(f, "a cold factor of {numerator}/{denominator} is below 1; use 1 or more")
            }
            Reason::Expected { what, found: Some(found) } => write!(f, "found {found:?}, expected {what}"),
            Reason::Expected { what, found: None } => write!(f, "the text ends, expected {what}"),
            _ => f.write_str(self.sentence()),
        }
    }
}
