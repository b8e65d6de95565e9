//! # A clock that goes back and comes again
//!
//! What happened has its place on the time line. After a far step back of the clock that place is far ahead, and it moves back with
//! the clock; when the clock comes again, it moves ahead. [`SlidingLog`](crate::SlidingLog) shifts instants,
//! [`SlidingWindow`](crate::SlidingWindow) the numbers of cells.

/// By how much everything moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shift {
    None,
    Back(u64),
    Ahead(u64),
}

impl Shift {
    /// Where `place` moves to.
    #[inline(always)]
    pub(crate) const fn apply(self, place: u64) -> u64 {
        match self {
            Shift::None => place,
            Shift::Back(by) => place.saturating_sub(by),
            Shift::Ahead(by) => place + by,
        }
    }
}
