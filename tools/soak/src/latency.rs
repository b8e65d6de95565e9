//! A histogram of latencies, with sixteen buckets for each doubling.

use std::time::Duration;

use crate::check::Nanos;

#[derive(Debug, Default)]
pub(crate) struct Latency {
    counts: Vec<u64>,
    worst: Nanos,
}

impl Latency {
    pub(crate) fn add(&mut self, length: Nanos) {
        let index = index(length.unsigned_abs());
        if self.counts.len() <= index {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += 1;
        self.worst = self.worst.max(length);
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn worst(&self) -> Duration {
        Duration::from_nanos(self.worst.unsigned_abs())
    }

    /// Returns this percentile, at most a sixteenth too large.
    pub(crate) fn percentile(&self, percent: u64) -> Duration {
        let rank = (self.count() * percent).div_ceil(100);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        let end = found.map_or(0, |index| start(index + 1));
        Duration::from_nanos(end).min(self.worst())
    }
}

fn index(length: u64) -> usize {
    let length = length.max(16);
    let shift = length.ilog2() - 4;
    usize::try_from(u64::from(shift) * 16 + (length >> shift) - 16).unwrap_or(usize::MAX)
}

fn start(index: usize) -> u64 {
    let (shift, rest) = (index / 16, index % 16);
    (16 + rest as u64) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_close() {
        let mut latency = Latency::default();
        (1..=1_000).for_each(|n| latency.add(n * 1_000));
        assert_eq!((latency.count(), latency.worst()), (1_000, Duration::from_millis(1)));
        let p50 = latency.percentile(50);
        assert!((Duration::from_micros(500)..Duration::from_micros(532)).contains(&p50), "{p50:?}");
        assert_eq!(latency.percentile(100), latency.worst());
    }

    #[test]
    fn every_length_lies_in_its_bucket() {
        for length in (16..5_000).chain([1 << 40, (1 << 40) - 1]) {
            let index = index(length);
            assert!(start(index) <= length && length < start(index + 1), "{length}");
        }
    }
}
