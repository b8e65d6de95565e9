//! # A mistake in a vector file
//!
//! Whoever writes a vector file has only its documentation, so a mistake must teach: where it is, what stands there
//! and what should. All mistakes of a file are told at once; nobody should have to run it ten times to find ten.

use std::fmt;

/// Where a file is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mistake {
    /// Counted from 1, as editors do.
    pub(crate) line: usize,
    /// In characters, counted from 1.
    pub(crate) column: usize,
    /// The offending text; empty where the line ends too early.
    pub(crate) found: String,
    /// What should be there instead, as a clause of its own.
    pub(crate) says: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        match self.found.as_str() {
            "" => write!(f, "the line ends")?,
            found => write!(f, "found {found:?}")?,
        }
        write!(f, "; {}", self.says)
    }
}
