//! # What the engine tells about itself
//!
//! Numbers that only grow, beside those that each rule has. Whoever counts adds to a number that is nearly its own; see
//! [`tally`](super::tally). How many numbers there are is known when the program is built: neither keys nor what
//! callers say makes more of them.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate::Decision;

use super::refused::RefusedKeys;
use super::tally::{Counted, SHARDS, Tally, shard};
use super::verdict::Verdict;
use tokio::sync::watch;

use crate::config::Protocol;

/// What is counted for all rules together.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) refused: RefusedKeys,
    /// Requests that no limit was asked about: unlimited, exempt, denied.
    pub(crate) listed: [Number; 3],
    /// Limits that come with the call.
    pub(crate) throttled: Tally,
    /// Tokens lent to clients: granted, returned.
    pub(crate) lent: [Number; 2],
    /// By protocol, in the order of [`Protocol::ALL`].
    pub(crate) doors: [DoorMeter; 4],
    /// How long Redis took, from being asked to the decision, whoever has made it.
    pub(crate) store: Histogram,
    pub(crate) reloads: Reloads,
    protection: Mutex<Protection>,
    draining: watch::Sender<bool>,
    /// Whether the configuration file is not there.
    pub(crate) is_file_missing: AtomicBool,
}

/// What is counted at the doors of one protocol.
#[derive(Debug, Default)]
pub(crate) struct DoorMeter {
    /// From when a request has arrived to when its answer is ready.
    pub(crate) answers: Histogram,
    pub(crate) open: AtomicUsize,
    pub(crate) came: AtomicU64,
    pub(crate) turned_away: AtomicU64,
}

/// How often the file was read again, and what came of it.
#[derive(Debug, Default)]
pub(crate) struct Reloads {
    pub(crate) good: AtomicU64,
    pub(crate) bad: AtomicU64,
    pub(crate) is_last_bad: AtomicBool,
    /// When the rules that are in force came into force, in seconds since 1970; 0 if they are those of the start.
    pub(crate) at: AtomicU64,
}

/// A number that many threads add to.
#[derive(Debug, Default)]
pub(crate) struct Number([Padded; SHARDS]);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

/// How many answers took how long.
#[derive(Debug, Default)]
pub(crate) struct Histogram([Buckets; SHARDS]);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Buckets {
    counts: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

/// What a histogram has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Up to each of [`BOUNDS`], and all.
    pub(crate) up_to: [u64; BOUNDS.len() + 1],
    pub(crate) nanos: u64,
}

/// In microseconds.
pub(crate) const BOUNDS: [u64; 14] =
    [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 20_000, 100_000, 1_000_000];

/// Of how many decisions how many were enforced, lately.
#[derive(Debug, Default)]
struct Protection {
    /// All, and those that were let through uncounted, at the last few looks; the newest last.
    looks: Vec<(u64, u64)>,
}

/// Looks that are remembered: with one every half second, the last five seconds.
const LOOKS: usize = 10;

impl Meter {
    pub(super) fn no_rule(&self, verdict: &Verdict) {
        let number = match verdict {
            Verdict::Exempt => 1,
            Verdict::Denied => 2,
            _ => 0,
        };
        self.listed[number].add(1);
    }

    #[inline]
    pub(super) fn throttled(&self, decision: &Decision) {
        self.throttled.limited(decision.source, Counted::of(decision.outcome));
    }

    /// What is counted at the doors of this protocol.
    pub(crate) fn door(&self, protocol: Protocol) -> &DoorMeter {
        &self.doors[protocol as usize]
    }

    /// The file was read again.
    pub(crate) fn reloaded(&self, is_in_force: bool) {
        let Reloads { good, bad, is_last_bad, at } = &self.reloads;
        is_last_bad.store(!is_in_force, Ordering::Relaxed);
        if is_in_force {
            good.fetch_add(1, Ordering::Relaxed);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            at.store(now.as_secs(), Ordering::Relaxed);
        } else {
            bad.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Nobody new should come: the service is about to end.
    pub(crate) fn drain(&self) {
        self.draining.send_replace(true);
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Tells when nobody new should come.
    pub(crate) fn draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// Notes how many decisions there were by now, and how many of them were let through uncounted.
    pub(crate) fn look(&self, decisions: u64, open: u64) {
        let mut protection = self.protection.lock().unwrap_or_else(PoisonError::into_inner);
        protection.looks.push((decisions, open));
        let old = protection.looks.len().saturating_sub(LOOKS);
        protection.looks.drain(..old);
    }

    /// Of the decisions since the oldest look, the part that was enforced; `None` if there were none.
    pub(crate) fn protection(&self, decisions: u64, open: u64) -> Option<f64> {
        let protection = self.protection.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, open_before) = protection.looks.first().copied().unwrap_or_default();
        let (all, open) = (decisions.saturating_sub(before), open.saturating_sub(open_before));
        (all > 0).then(|| ratio(all.saturating_sub(open), all))
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio that somebody looks at")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

impl Number {
    #[inline]
    pub(crate) fn add(&self, more: u64) {
        self.0[shard()].0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().map(|one| one.0.load(Ordering::Relaxed)).sum()
    }
}

impl Histogram {
    #[inline]
    pub(crate) fn saw(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| bound.saturating_mul(1_000) < nanos);
        let own = &self.0[shard()];
        own.counts[bucket].fetch_add(1, Ordering::Relaxed);
        own.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn seen(&self) -> Seen {
        let (mut up_to, mut nanos) = ([0; BOUNDS.len() + 1], 0);
        for buckets in &self.0 {
            for (sum, count) in up_to.iter_mut().zip(&buckets.counts) {
                *sum += count.load(Ordering::Relaxed);
            }
            nanos += buckets.nanos.load(Ordering::Relaxed);
        }
        let mut before = 0;
        for count in &mut up_to {
            *count += before;
            before = *count;
        }
        Seen { up_to, nanos }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_what_is_below_it() {
        let histogram = Histogram::default();
        for nanos in [0, 1_000, 1_001, 2_000, 999_999_999, 1_000_000_001] {
            histogram.saw(Duration::from_nanos(nanos));
        }
        let Seen { up_to, nanos } = histogram.seen();
        assert_eq!((up_to[0], up_to[1], up_to[12], up_to[13], up_to[14]), (2, 4, 4, 5, 6));
        assert_eq!(nanos, 2_000_004_001);
    }

    #[test]
    fn protection_is_that_of_the_last_looks() {
        let meter = Meter::default();
        assert_eq!(meter.protection(0, 0), None);
        assert_eq!(meter.protection(4, 1), Some(0.75));
        (0..20).for_each(|_| meter.look(100, 50));
        assert_eq!(meter.protection(100, 50), None, "nobody has asked since");
        assert_eq!(meter.protection(104, 54), Some(0.0));
        assert_eq!(meter.protection(108, 50), Some(1.0));
    }
}
