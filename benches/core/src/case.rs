//! A case is one limiter asked one kind of question by some threads. The loops around the question are the same for
//! everybody and live here; a limiter only says how it is asked, and whether it said yes.

use std::fmt;
use std::hint::black_box;

use crate::keys::{Text, Walk, number};

/// One limiter under one kind of load.
pub(crate) struct Case {
    /// The kind of load: a column of the report.
    pub(crate) what: &'static str,
    /// The limiter: a row of the report.
    pub(crate) who: &'static str,
    pub(crate) threads: usize,
    pub(crate) expect: Expect,
    /// Decides so many times and tells how often the answer was yes.
    pub(crate) run: Box<dyn Fn(u64) -> u64 + Send + Sync>,
}

/// What every single answer has to be, or the figure means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    Allowed,
    Refused,
}

/// How many keys of text are written ahead of being asked about. A key that was written just now would be read out
/// of the store buffer, which no server does.
pub(crate) const AHEAD: u64 = 64;

impl Case {
    pub(crate) fn new(
        what: &'static str,
        who: &'static str,
        run: impl Fn(u64) -> u64 + Send + Sync + 'static,
    ) -> Self {
        Case { what, who, threads: 1, expect: Expect::Allowed, run: Box::new(run) }
    }

    pub(crate) fn threads(self, threads: usize) -> Self {
        Case { threads, ..self }
    }

    pub(crate) fn refused(self) -> Self {
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
    pub(crate) fn share(self) -> f64 {
        match self {
            Expect::Allowed => 1.0,
            Expect::Refused => 0.0,
        }
    }
}

/// Asks `n` times about nothing in particular.
#[inline]
pub(crate) fn each<S>(limiter: &S, n: u64, ask: impl Fn(&S) -> bool) -> u64 {
    (0..n).map(|_| u64::from(ask(black_box(limiter)))).sum()
}

/// Asks `n` times about numbers among the live keys.
#[inline]
pub(crate) fn each_number(n: u64, ask: impl Fn(u64) -> bool) -> u64 {
    let mut walk = Walk::new();
    (0..n).map(|_| u64::from(ask(black_box(number(walk.step()))))).sum()
}

/// Asks `n` times, rounded up to a multiple of [`AHEAD`], about texts among the live keys.
#[inline]
pub(crate) fn each_text(n: u64, mut ask: impl FnMut(&String) -> bool) -> u64 {
    let mut walk = Walk::new();
    let mut texts: Vec<Text> = (0..AHEAD).map(|_| Text::new()).collect();
    let mut allowed = 0;
    for _ in 0..n.div_ceil(AHEAD) {
        for text in &mut texts {
            text.set(walk.step());
        }
        for text in &texts {
            allowed += u64::from(ask(black_box(text.get())));
        }
    }
    allowed
}
