//! # Division by a constant
//!
//! A division takes longer than the rest of a decision, and nearly always has the same divisor: the period of a
//! window, the interval of a bucket. Multiplication by a precomputed inverse gives the same quotient or one less, and
//! the remainder tells which.
//!
//! ```text
//!   n · ⌊(2⁶⁴ − 1) / d⌋ / 2⁶⁴   =   ⌊n / d⌋, or one less
//! ```
//!
//! The inverse is too small by less than one, the rounding of 2⁶⁴/d. So the product is too small by less than n/2⁶⁴,
//! which is less than one too.

/// A divisor with its precomputed inverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divisor {
    by: u64,
    inverse: u64,
}

impl Divisor {
    /// Prepares division by `by`, which is not 0.
    pub(crate) const fn new(by: u64) -> Self {
        Divisor { by, inverse: u64::MAX / by }
    }

    #[inline(always)]
    pub(crate) const fn get(self) -> u64 {
        self.by
    }

    /// Returns ⌊number / divisor⌋ and the remainder.
    #[inline(always)]
    pub(crate) const fn divide(self, number: u64) -> (u64, u64) {
        let estimate = ((number as u128 * self.inverse as u128) >> 64) as u64;
        let left = number - estimate * self.by;
        let one_more = (left >= self.by) as u64;
        (estimate + one_more, left - one_more * self.by)
    }

    #[inline(always)]
    pub(crate) const fn quotient(self, number: u64) -> u64 {
        self.divide(number).0
    }

    #[inline(always)]
    pub(crate) const fn remainder(self, number: u64) -> u64 {
        self.divide(number).1
    }

    /// The quotient, rounded up.
    #[inline(always)]
    pub(crate) const fn quotient_up(self, number: u64) -> u64 {
        let (quotient, left) = self.divide(number);
        quotient + (left > 0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::Divisor;

    #[test]
    fn a_divisor_equals_integer_division() {
        let mut numbers = [0u64; 400];
        let mut mixed = 1u64;
        for (n, number) in (0..).zip(numbers.iter_mut()) {
            mixed = mixed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *number = mixed >> (n % 64);
        }
        let edges =
            [0, 1, 2, 3, 7, 1_000, (1 << 53) - 1, 1 << 53, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX];
        for by in numbers.iter().chain(&edges).filter(|by| **by > 0) {
            let divisor = Divisor::new(*by);
            for number in numbers.iter().chain(&edges) {
                let around = [*number, number / by * by, (number / by * by).saturating_sub(1)];
                for number in around {
                    assert_eq!(divisor.divide(number), (number / by, number % by), "{number} / {by}");
                    assert_eq!(divisor.quotient_up(number), number.div_ceil(*by), "{number} / {by}");
                }
            }
        }
    }
}
