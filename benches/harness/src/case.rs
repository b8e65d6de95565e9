//! A case is one limiter asked one kind of question by some threads. A limiter only says how it is asked, and whether it
//! said yes.

use std::fmt;
use std::hint::black_box;

/// One limiter under one kind of load.
pub struct Case {
    /// The kind of load: a column of the report.
    pub what: &'static str,
    /// The limiter: a row of the report.
    pub who: &'static str,
    pub threads: usize,
    pub expect: Expect,
    /// Decides so many times and tells how often the answer was yes.
    pub run: Box<dyn Fn(u64) -> u64 + Send + Sync>,
}

/// What every single answer has to be, or the figure means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Allowed,
    Refused,
}

/// How many keys of text are written ahead of being asked about. A key that was written just now would be read out
/// of the store buffer, which no server does.
pub const AHEAD: u64 = 64;

impl Case {
    pub fn new(
        what: &'static str,
        who: &'static str,
        run: impl Fn(u64) -> u64 + Send + Sync + 'static,
    ) -> Self {
        Case { what, who, threads: 1, expect: Expect::Allowed, run: Box::new(run) }
    }

    pub fn threads(self, threads: usize) -> Self {
        Case { threads, ..self }
    }

    pub fn refused(self) -> Self {
        Case { expect: Expect::Refused, ..self }
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.who)
    }
}

impl Expect {
    /// The share of answers that have to be yes.
    pub fn share(self) -> f64 {
        match self {
            Expect::Allowed => 1.0,
            Expect::Refused => 0.0,
        }
    }
}

/// Asks `n` times about nothing in particular.
#[inline]
pub fn each<S>(limiter: &S, n: u64, ask: impl Fn(&S) -> bool) -> u64 {
    (0..n).map(|_| u64::from(ask(black_box(limiter)))).sum()
}
