//! # A mistake in a vector file
//!
//! The author of a vector file has only its documentation, so the message must teach: where the mistake is,
//! what the file says there and what it should say. All mistakes of a file are reported in one run.

use std::fmt;

/// A mistake and its position in a file.
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
