//! # Shifts of recorded times after a clock step
//!
//! Recorded events have a position on the time line. After a far step back of the clock that position is far ahead, so
//! it moves back with the clock. When the clock returns, it moves ahead. [`SlidingLog`](crate::SlidingLog) shifts
//! instants, [`SlidingWindow`](crate::SlidingWindow) the numbers of cells.

/// The distance and direction by which all positions move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shift {
    None,
    Back(u64),
    Ahead(u64),
}

impl Shift {
    /// The position that `place` moves to.
    #[inline(always)]
    pub(crate) const fn apply(self, place: u64) -> u64 {
        match self {
            Shift::None => place,
            Shift::Back(by) => place.saturating_sub(by),
            Shift::Ahead(by) => place + by,
        }
    }
}
