//! A small seeded generator (SplitMix64), so that a run can be repeated with the same faults and the same demand.

use std::ops::Range;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates the generator of one `stream` of a seed. Streams are independent.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut random = Random(seed ^ stream.wrapping_mul(0xD134_2543_DE82_EF95));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % end).unwrap_or(0)
    }

    /// Returns a duration in this range, evenly distributed on a logarithmic scale.
    pub(crate) fn between(&mut self, range: Range<Duration>) -> Duration {
        let (low, high) = (range.start.as_secs_f64().ln(), range.end.as_secs_f64().ln());
        Duration::from_secs_f64((low + (high - low) * self.fraction()).exp())
    }

    /// Returns `true` with a probability of 1 in `times`.
    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// From 0 to 1.
    #[allow(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// An index, chosen by weight.
    pub(crate) fn weighted(&mut self, weights: &[f64]) -> usize {
        let mut left = self.fraction() * weights.iter().sum::<f64>();
        for (index, weight) in weights.iter().enumerate() {
            left -= weight;
            if left < 0.0 {
                return index;
            }
        }
        weights.len() - 1
    }
}
