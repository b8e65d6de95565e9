//! # Encoding of rules for external stores
//!
//! A script in a database decides by the same arithmetic as this crate, but cannot use its types. A rule is passed to
//! it as a letter, for the algorithm, and a few numbers:
//!
//! | letter | algorithm | numbers |
//! |---|---|---|
//! | `b` | token bucket | p, q, burst: a token each p/q microseconds |
//! | `q` | leaky queue | p, q, full, free: the last two in q-ths of a microsecond |
//! | `g` | leaky queue with nginx's rounding | rate, burst, delay: thousandths of a request |
//! | `s` | stepped bucket | step, period, offset, burst |
//! | `w` | fixed window aligned to the clock | limit, period, offset |
//! | `h` | fixed window from the first hit | limit, period |
//! | `l` | sliding log | limit, period |
//! | `c` | sliding window | limit, period, cells, oldest: 0 strict, 1 interpolated, 2 plain |
//!
//! Periods and offsets are in microseconds.

use crate::{Rule, TokenBucket};

/// A rule as a letter and a few numbers, for a store that decides by itself.
///
/// Their meaning is listed by letter in the source of this module and, for Redis, in `WIRE.md`.
///
/// ```
/// use tidegate_core::Rule;
/// let rule: Rule = "fixed_window 5/min offset 10s".parse()?;
/// assert_eq!(rule.encode().letter(), b'w');
/// assert_eq!(rule.encode().numbers(), [5, 60_000_000, 10_000_000]);
/// # Ok::<(), tidegate_core::InvalidQuota>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedRule {
    letter: u8,
    numbers: [u64; MAX],
    len: usize,
}

const MAX: usize = 4;

impl EncodedRule {
    pub(crate) fn new<const N: usize>(letter: u8, of: [u64; N]) -> Self {
        const { assert!(N <= MAX) };
        let mut numbers = [0; MAX];
        numbers[..N].copy_from_slice(&of);
        EncodedRule { letter, numbers, len: N }
    }

    /// The letter of the algorithm.
    #[must_use]
    pub const fn letter(&self) -> u8 {
        self.letter
    }

    /// The numbers, as many as the algorithm has.
    #[must_use]
    pub fn numbers(&self) -> &[u64] {
        &self.numbers[..self.len]
    }
}

impl Rule {
    /// Encodes the rule for a store that decides by itself.
    #[must_use]
    pub fn encode(&self) -> EncodedRule {
        match self {
            Rule::TokenBucket(bucket) => bucket.encode(),
            Rule::LeakyQueue(queue) => queue.encode(),
            Rule::NginxQueue(queue) => queue.encode(),
            Rule::SteppedBucket(bucket) => bucket.encode(),
            Rule::FixedWindow(window) => window.encode(),
            Rule::SlidingLog(log) => log.encode(),
            Rule::SlidingWindow(window) => window.encode(),
        }
    }

    /// The share of one of `nodes` that each enforce the rule on their own.
    ///
    /// A bucket or a queue becomes a slower one with a smaller burst. Windows, logs, cells and stepped buckets become a
    /// token bucket at the pace of the limit, so that a share that starts empty does not have to wait for the end of a
    /// window.
    ///
    /// `None` if the share would be less than one.
    ///
    /// ```
    /// use tidegate_core::Rule;
    /// let rule: Rule = "100/s burst 10".parse()?;
    /// assert_eq!(rule.share(4), Some("25/s burst 2".parse()?));
    /// assert_eq!(rule.share(11), None); // a burst of less than one
    /// let window: Rule = "fixed_window 10000/day".parse()?;
    /// assert_eq!(window.share(2), Some("5000/day".parse()?));
    /// # Ok::<(), tidegate_core::InvalidQuota>(())
    /// ```
    #[must_use]
    pub fn share(&self, nodes: u32) -> Option<Rule> {
        let nodes = u64::from(nodes.max(1));
        Some(match self {
            Rule::TokenBucket(bucket) => Rule::TokenBucket(bucket.share(nodes)?),
            Rule::LeakyQueue(queue) => Rule::LeakyQueue(queue.share(nodes)?),
            Rule::NginxQueue(queue) => Rule::NginxQueue(queue.share(nodes)?),
            Rule::SteppedBucket(_) | Rule::FixedWindow(_) | Rule::SlidingLog(_) | Rule::SlidingWindow(_) => {
                Rule::TokenBucket(self.paced_share(nodes)?)
            }
        })
    }

    /// A token bucket of limit ÷ nodes per period.
    fn paced_share(&self, nodes: u64) -> Option<TokenBucket> {
        let encoded_rule = self.encode();
        let (limit, period, burst) = match (encoded_rule.letter(), encoded_rule.numbers()) {
            (b's', [step, period, _, burst]) => (*step, *period, *burst),
            (_, [limit, period, ..]) => (*limit, *period, *limit),
            _ => return None,
        };
        share_of(limit, nodes)?;
        TokenBucket::at_pace(limit, period, nodes, share_of(burst, nodes)?)
    }
}

/// An equal share of `many`, if it is at least one.
pub(crate) fn share_of(many: u64, nodes: u64) -> Option<u64> {
    Some(many / nodes).filter(|share| *share > 0)
}
