//! # Counter of a numbered time slice
//!
//! Windows and steps divide the time line into slices of equal length and number them. The state of a key is
//! the number of a slice and a count, and the two usually fit into one word: the shorter the slice, the more
//! bits its number takes, and the remaining bits are for the count.
//!
//! ```text
//!   period 1 s   │0│  number, 34 bits  │     count, 29 bits      │
//!   period 1 ms  │0│     number, 44 bits        │ count, 19 bits │
//! ```
//!
//! If the limit does not fit beside the number, each of the two takes a word.

use core::time::Duration;

use crate::divisor::Divisor;
use crate::invalid_quota::Reason;
use crate::{Micros, Words, WordsMut};

/// Time slices of equal length, aligned to `offset` after zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    period: Divisor,
    offset: u64,
}

/// How a number and a count are stored in their words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counter {
    /// The number of bits of the count in the one word; 0 if there are two words.
    bits: u32,
    largest: u64,
}

/// The largest count; a larger one is stored as this.
const COUNT_MAX: u64 = Micros::MAX.get();

// === impl Grid ===

impl Grid {
    pub(crate) const fn of(period: Duration) -> Result<Self, Reason> {
        match whole_micros(period) {
            Ok(period) => Ok(Grid { period: Divisor::new(period), offset: 0 }),
            Err(reason) => Err(reason),
        }
    }

    pub(crate) const fn offset(self, offset: Duration) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the remainder is below a period, which fits")]
        let offset = (offset.as_micros() % self.period() as u128) as u64;
        Grid { offset, ..self }
    }

    #[inline(always)]
    pub(crate) const fn period(self) -> u64 {
        self.period.get()
    }

    pub(crate) const fn get_offset(self) -> u64 {
        self.offset
    }

    /// The number of the slice that contains `now`. Instants before the offset have number 0.
    #[inline]
    pub(crate) const fn number(self, now: Micros) -> u64 {
        // Counting from one period before the offset keeps the first, shorter slice apart from the next.
        self.period.quotient(now.get() + (self.period() - self.offset))
    }

    /// The instant at which slice `number` starts.
    #[inline]
    pub(crate) const fn start(self, number: u64) -> Micros {
        Micros::new(
            (number.saturating_mul(self.period())).saturating_add(self.offset).saturating_sub(self.period()),
        )
    }
}

/// The length of a window, if it is a whole number of microseconds on the time line.
pub(crate) const fn whole_micros(period: Duration) -> Result<u64, Reason> {
    let micros = period.as_micros();
    if micros == 0 || !period.as_nanos().is_multiple_of(1_000) || micros > Micros::MAX.get() as u128 {
        return Err(Reason::PeriodNotWhole { period });
    }
    #[expect(clippy::cast_possible_truncation, reason = "just checked to be on the time line")]
    Ok(micros as u64)
}

// === impl Counter ===

impl Counter {
    /// A counter for slices of length `period`, and counts of at least `limit`.
    pub(crate) const fn aligned(period: u64, limit: u64) -> Self {
        Counter::beside(Micros::MAX.get() / period + 1, limit)
    }

    /// A counter with an instant in place of the number.
    pub(crate) const fn instant(limit: u64) -> Self {
        Counter::beside(Micros::MAX.get(), limit)
    }

    const fn beside(largest_number: u64, limit: u64) -> Self {
        let bits = largest_number.leading_zeros() - 1;
        if limit < 1 << bits {
            Counter { bits, largest: (1 << bits) - 1 }
        } else {
            Counter { bits: 0, largest: COUNT_MAX }
        }
    }

    #[inline]
    pub(crate) const fn words(self) -> usize {
        if self.bits > 0 { 1 } else { 2 }
    }

    /// Returns the number and the count.
    #[inline]
    pub(crate) fn read<S: Words + ?Sized>(self, state: &S) -> (u64, u64) {
        let word = state.get(0);
        if self.bits > 0 { (word >> self.bits, word & self.largest()) } else { (word, state.get(1)) }
    }

    /// The word of `number` with a count of 0, to which a count can be added.
    ///
    /// `None` if number and count take two words.
    #[inline(always)]
    pub(crate) const fn empty_word(self, number: u64) -> Option<u64> {
        if self.bits > 0 { Some(number << self.bits) } else { None }
    }

    /// Writes number and count. A count of 0 clears the state.
    #[inline]
    pub(crate) fn write<S: WordsMut + ?Sized>(self, state: &mut S, number: u64, count: u64) {
        let number = if count == 0 { 0 } else { number };
        let count = count.min(self.largest());
        if self.bits > 0 {
            state.set(0, number << self.bits | count);
        } else {
            state.set(0, number);
            state.set(1, count);
        }
    }

    /// Moves a state that was written in a later slice back to the current one.
    #[inline]
    pub(crate) fn repair<S: WordsMut + ?Sized>(self, state: &mut S, current: u64) {
        let (written, count) = self.read(state);
        if written > current {
            self.write(state, current, count);
        }
    }

    /// The largest count that can be stored exactly.
    #[inline(always)]
    pub(crate) const fn largest(self) -> u64 {
        self.largest
    }
}
