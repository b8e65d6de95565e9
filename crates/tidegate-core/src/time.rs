//! # Instants
//!
//! Every instant is a whole number of microseconds on one time line. The caller chooses the time line: in
//! a process it runs from the Unix epoch at a steady pace, in Redis it is the server's `TIME`, in a test it
//! starts wherever the test says. Windows that are *aligned to the clock* are aligned to its zero.
//!
//! The time line ends at 2⁵³ µs, in the year 2255: up to there a double, and so a Lua script, represents each
//! instant exactly. Later instants are read as the last one, at which time stands still and nothing refills.

use core::fmt;
use core::time::Duration;

/// An instant in whole microseconds, never beyond [`Micros::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// The beginning of the time line.
    pub const ZERO: Micros = Micros(0);
    /// The end of the time line, 2⁵³ − 1 µs.
    pub const MAX: Micros = Micros((1 << 53) - 1);

    /// The instant `micros` after zero, capped at [`Micros::MAX`], the end of the time line.
    ///
    /// ```
    /// use tidegate_core::Micros;
    /// assert_eq!(Micros::new(1_500).get(), 1_500);
    /// assert_eq!(Micros::new(u64::MAX), Micros::MAX);
    /// ```
    #[inline]
    #[must_use]
    pub const fn new(micros: u64) -> Self {
        if micros > Self::MAX.0 { Self::beyond_the_end() } else { Micros(micros) }
    }

    /// The end of the time line, in a function that is cold on purpose.
    ///
    /// So the comparison in `new` compiles to a predicted branch, not to a value that all later instructions depend on.
    #[cold]
    #[inline(never)]
    const fn beyond_the_end() -> Self {
        Self::MAX
    }

    /// The number of microseconds since zero.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// This instant moved later by whole microseconds, at most to [`Micros::MAX`].
    #[inline]
    #[must_use]
    pub const fn plus(self, micros: u64) -> Self {
        Micros::new(self.0.saturating_add(micros))
    }

    /// This instant moved earlier by whole microseconds, at most to zero.
    #[inline]
    #[must_use]
    pub const fn minus(self, micros: u64) -> Self {
        Micros(self.0.saturating_sub(micros))
    }

    /// The microseconds from `earlier` to this instant; 0 if `earlier` is not earlier.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Micros) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl From<Duration> for Micros {
    /// The instant this long after zero; a fraction of a microsecond is dropped.
    fn from(since_zero: Duration) -> Self {
        Micros::new(u64::try_from(since_zero.as_micros()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0)
    }
}

/// Whether a clock can step back.
///
/// Wall clocks can, Redis's among them. Monotonic clocks cannot, and with them some algorithms need less state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockKind {
    /// No reading is earlier than a reading before it.
    Monotonic,
    /// A reading may be earlier than a reading before it.
    MayStepBack,
}
