//! # What became of requests, counted
//!
//! One number that all threads add to is a line of memory that all of them fight for. So each number is there several
//! times, and a thread adds to the one that is its own, or nearly so; who wants to know adds them up. There is
//! no lock and no allocation, and no key: however many keys there are, there are as many numbers as rules.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tidegate::{Outcome, Source};

/// So often is a number there, unless there are very many of them.
pub(crate) const SHARDS: usize = 8;
/// Sets of more rules than this have each number once: then it is the memory that counts.
pub(super) const MANY_RULES: usize = 2_000;

thread_local! {
    static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A number for this thread, the same for as long as it lives.
#[inline]
pub(crate) fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    SHARD.get().unwrap_or_else(|| {
        let shard = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
        SHARD.set(Some(shard));
        shard
    })
}

/// What a request can come to, as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// It may pass.
    Allowed,
    /// It may pass after a wait.
    Delayed,
    /// It was refused: for now, because all places are taken, or because it never can pass.
    Refused,
}

/// How many requests came to what, of one rule. Kept over reloads, by the name of the rule.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) name: Box<str>,
    shards: Box<[Cells]>,
}

/// Two lines of memory or more, so that threads do not share one.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cells {
    limited: [[AtomicU64; OUTCOMES]; SOURCES],
    denied: AtomicU64,
}

const OUTCOMES: usize = 3;
const SOURCES: usize = 6;

impl Counted {
    /// Each of them.
    pub const ALL: [Counted; OUTCOMES] = [Counted::Allowed, Counted::Delayed, Counted::Refused];

    pub(crate) fn of(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Allowed => Counted::Allowed,
            Outcome::AllowedAfter(_) => Counted::Delayed,
            Outcome::RetryAfter(_) | Outcome::Busy | Outcome::Never => Counted::Refused,
        }
    }

    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Counted::Allowed => "allowed",
            Counted::Delayed => "delayed",
            Counted::Refused => "refused",
        }
    }
}

/// All sources, in the order in which they are counted.
pub(crate) const ALL_SOURCES: [Source; SOURCES] =
    [Source::Strict, Source::Lease, Source::Local, Source::Open, Source::Closed, Source::Sketch];

fn place(source: Source) -> usize {
    ALL_SOURCES.iter().position(|other| *other == source).unwrap_or_default()
}

/// Of no rule.
impl Default for Tally {
    fn default() -> Self {
        Tally::new("", SHARDS)
    }
}

impl Tally {
    pub(super) fn new(name: &str, shards: usize) -> Self {
        Tally { name: name.into(), shards: (0..shards.max(1)).map(|_| Cells::default()).collect() }
    }

    #[inline]
    pub(super) fn limited(&self, source: Source, counted: Counted) {
        self.own().limited[place(source)][counted as usize].fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn denied(&self) {
        self.own().denied.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn own(&self) -> &Cells {
        &self.shards[shard() % self.shards.len()]
    }

    /// How many requests were decided so by its limits.
    pub(crate) fn sum(&self, source: Source, counted: Counted) -> u64 {
        self.add(|cells| &cells.limited[place(source)][counted as usize])
    }

    /// How many requests were decided by its limits.
    pub(crate) fn sum_of(&self, source: Source) -> u64 {
        Counted::ALL.iter().map(|counted| self.sum(source, *counted)).sum()
    }

    /// How many were refused without looking at a limit.
    pub(crate) fn sum_denied(&self) -> u64 {
        self.add(|cells| &cells.denied)
    }

    fn add(&self, number: impl Fn(&Cells) -> &AtomicU64) -> u64 {
        self.shards.iter().map(|cells| number(cells).load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_between_threads() {
        for shards in [1, SHARDS] {
            let tally = Tally::new("user", shards);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..1_000).for_each(|_| tally.limited(Source::Open, Counted::Refused)));
                    scope.spawn(|| (0..1_000).for_each(|_| tally.denied()));
                }
            });
            assert_eq!((tally.sum(Source::Open, Counted::Refused), tally.sum_denied()), (4_000, 4_000));
            assert_eq!(tally.sum(Source::Strict, Counted::Refused), 0);
        }
    }
}
