//! # Rules chosen at run time
//!
//! Code names its algorithm as a type. A rule from a configuration file cannot: [`Rule`] is an enum of all algorithms,
//! and a slice of rules is a policy. The text of a rule is the name of the algorithm, the quota, and its options:
//!
//! ```text
//!   token_bucket 10/s burst 3          also gcra, leaky_meter; `unlimited` in place of the quota
//!   leaky_queue 10/s queue 5 [delay 2 | nodelay] [max_wait 300ms | nginx]
//!   stepped_bucket 20/min burst 50 [offset 10s]
//!   fixed_window 5/min [offset 10s | from first hit]
//!   sliding_log 5/min
//!   sliding_window 5/s cells 5 [strict | interpolated | plain]
//! ```
//!
//! A quota without a name is a token bucket.

use core::str::FromStr;

use crate::ClockKind;
use crate::algorithm::Algorithm;
use crate::invalid_quota::InvalidQuota;
use crate::quota::{Reader, UNLIMITED_TEXT};
use crate::{
    Cells, Decision, FixedWindow, Keep, LeakyQueue, Micros, NginxQueue, Quota, SlidingLog, SlidingWindow,
    SteppedBucket, TokenBucket, Words, WordsMut,
};

/// One limit with any of the algorithms.
///
/// ```
/// use tidegate_core::{Algorithm, Micros, Rule};
///
/// let rules: [Rule; 2] = ["10/s".parse()?, "sliding_log 100/min".parse()?];
/// assert_eq!(rules.as_slice().words(), 3 + 101);
/// # Ok::<(), tidegate_core::InvalidQuota>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// Tokens accrue at an even pace.
    TokenBucket(TokenBucket),
    /// Requests leave at an even pace, and a bounded number may wait.
    LeakyQueue(LeakyQueue),
    /// A leaky queue with nginx's rounding.
    NginxQueue(NginxQueue),
    /// Tokens are added in steps, aligned to the clock.
    SteppedBucket(SteppedBucket),
    /// At most `limit` in each window.
    FixedWindow(FixedWindow),
    /// At most `limit` in any period, exactly.
    SlidingLog(SlidingLog),
    /// At most `limit` in any period, counted in cells.
    SlidingWindow(SlidingWindow),
}

/// Calls the same method on the algorithm of a rule.
macro_rules! on_each {
    ($rule:expr, $algorithm:ident => $call:expr) => {
        match $rule {
            Rule::TokenBucket($algorithm) => $call,
            Rule::LeakyQueue($algorithm) => $call,
            Rule::NginxQueue($algorithm) => $call,
            Rule::SteppedBucket($algorithm) => $call,
            Rule::FixedWindow($algorithm) => $call,
            Rule::SlidingLog($algorithm) => $call,
            Rule::SlidingWindow($algorithm) => $call,
        }
    };
}

impl Algorithm for Rule {
    #[inline]
    fn words(&self) -> usize {
        on_each!(self, algorithm => algorithm.words())
    }

    fn for_clock(self, clock: ClockKind) -> Self {
        match self {
            Rule::TokenBucket(bucket) => Rule::TokenBucket(bucket.for_clock(clock)),
            Rule::LeakyQueue(queue) => Rule::LeakyQueue(queue.for_clock(clock)),
            others => others,
        }
    }

    #[inline]
    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        on_each!(self, algorithm => algorithm.peek(state, now, cost))
    }

    #[inline]
    fn decide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        on_each!(self, algorithm => algorithm.decide(state, now, cost))
    }

    #[inline]
    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        on_each!(self, algorithm => algorithm.force(state, now, cost))
    }

    fn force_wide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u64) {
        on_each!(self, algorithm => algorithm.force_wide(state, now, cost));
    }

    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
        on_each!(self, algorithm => algorithm.refund(state, now, cost));
    }

    fn repair<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        on_each!(self, algorithm => algorithm.repair(state, now));
    }

    #[inline]
    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        on_each!(self, algorithm => algorithm.idle_at(state))
    }

    #[inline]
    fn last_seen<S: Words + ?Sized>(&self, state: &S) -> Micros {
        on_each!(self, algorithm => algorithm.last_seen(state))
    }

    #[inline]
    fn is_ordered(&self) -> bool {
        on_each!(self, algorithm => algorithm.is_ordered())
    }

    #[inline]
    fn decide_word(&self, word: u64, now: Micros, cost: u32) -> Option<(u64, Decision)> {
        on_each!(self, algorithm => algorithm.decide_word(word, now, cost))
    }

    /// Migrates a state; a change of algorithm charges the old usage as if it were made now.
    fn migrate_from<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        match (self, old) {
            (Rule::TokenBucket(new), Rule::TokenBucket(old)) => new.migrate_from(old, from, state, now),
            (Rule::LeakyQueue(new), Rule::LeakyQueue(old)) => new.migrate_from(old, from, state, now),
            (Rule::NginxQueue(new), Rule::NginxQueue(old)) => new.migrate_from(old, from, state, now),
            (Rule::SteppedBucket(new), Rule::SteppedBucket(old)) => new.migrate_from(old, from, state, now),
            (Rule::FixedWindow(new), Rule::FixedWindow(old)) => new.migrate_from(old, from, state, now),
            (Rule::SlidingLog(new), Rule::SlidingLog(old)) => new.migrate_from(old, from, state, now),
            (Rule::SlidingWindow(new), Rule::SlidingWindow(old)) => new.migrate_from(old, from, state, now),
            _ => self.carry_over(old, from, state, now),
        }
    }

    fn migrate_keeping<F, S>(&self, keep: Keep, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        match (self, old) {
            // The bucket has a method of its own. All others use the provided one, also across algorithms.
            (Rule::TokenBucket(new), Rule::TokenBucket(old)) => {
                new.migrate_keeping(keep, old, from, state, now);
            }
            _ => keep.migrate_rule(self, old, from, state, now),
        }
    }
}

/// Implements the conversion of an algorithm into a rule.
macro_rules! from {
    ($($algorithm:ident),*) => {
        $(impl From<$algorithm> for Rule {
            fn from(algorithm: $algorithm) -> Self {
                Rule::$algorithm(algorithm)
            }
        })*
    };
}

from!(TokenBucket, LeakyQueue, NginxQueue, SteppedBucket, FixedWindow, SlidingLog, SlidingWindow);

impl From<Quota> for Rule {
    /// Makes a token bucket of the quota.
    fn from(quota: Quota) -> Self {
        TokenBucket::new(quota).into()
    }
}

impl Rule {
    /// Charges the usage counted by `old` here, as if it were made now.
    fn carry_over<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        let found = old.peek(from, now, 0);
        let used = found.limit().saturating_sub(found.remaining());
        self.force_wide(state, now, used);
    }
}

const NAMES: &str = "an algorithm: token_bucket, leaky_queue, stepped_bucket, fixed_window, sliding_log, sliding_window; or a quota alone";
const QUEUE: &str = "'queue' and a number, as in leaky_queue 10/s queue 5";
const AFTER_QUEUE: &str =
    "'delay' and a number, 'nodelay', 'max_wait' and a duration, 'nginx', or nothing more";
const AFTER_DELAY: &str = "'max_wait' and a duration, 'nginx', or nothing more";
const AFTER_MAX_WAIT: &str = "nothing more: 'max_wait' comes last";
const AFTER_NGINX: &str = "nothing more: 'nginx' comes last, and such queues have no 'max_wait'";
const AFTER_STEPPED: &str = "'burst' and a number, 'offset' and a duration, or nothing more";
const AFTER_STEPPED_BURST: &str = "'offset' and a duration, or nothing more";
const AFTER_STEPPED_OFFSET: &str = "nothing more: 'offset' comes last, after 'burst'";
const AFTER_WINDOW: &str = "'offset' and a duration, 'from first hit', or nothing more";
const AFTER_FIRST_HIT: &str = "nothing more: windows from the first hit have no offset";
const AFTER_OFFSET: &str = "nothing more: windows with an offset do not begin with the first hit";
const FIRST_HIT: &str = "'first hit' after 'from'";
const AFTER_LOG: &str = "nothing more";
const CELLS: &str = "'cells' and a number, as in sliding_window 5/s cells 10";
const AFTER_CELLS: &str = "'strict', 'interpolated', 'plain', or nothing more";
const AFTER_OLDEST: &str = "nothing more: a window is strict, interpolated or plain";

impl FromStr for Rule {
    type Err = InvalidQuota;

    fn from_str(text: &str) -> Result<Self, InvalidQuota> {
        let mut reader = Reader::new(text);
        let named = ["token_bucket", "gcra", "leaky_meter"].iter().any(|name| reader.word(name));
        let is_quota =
            text.trim_start().starts_with(|c: char| c.is_ascii_digit()) || reader.at_word(UNLIMITED_TEXT);
        if named || is_quota {
            token_bucket(&mut reader)
        } else if reader.word("leaky_queue") {
            leaky_queue(&mut reader)
        } else if reader.word("stepped_bucket") {
            stepped_bucket(&mut reader)
        } else if reader.word("fixed_window") {
            fixed_window(&mut reader)
        } else if reader.word("sliding_log") {
            sliding_log(&mut reader)
        } else if reader.word("sliding_window") {
            sliding_window(&mut reader)
        } else {
            Err(reader.expected(NAMES))
        }
    }
}

fn token_bucket(reader: &mut Reader<'_>) -> Result<Rule, InvalidQuota> {
    let quota = reader.quota()?;
    reader.end_after(quota)?;
    Ok(Rule::TokenBucket(TokenBucket::new(quota)))
}

fn leaky_queue(reader: &mut Reader<'_>) -> Result<Rule, InvalidQuota> {
    let quota = reader.pace()?;
    if !reader.word("queue") {
        return Err(reader.expected(QUEUE));
    }
    let queue = saturating_u32(reader.count()?);
    let (delay, after_delay) = delay(reader)?;
    let (rule, expected) = if reader.word("nginx") {
        (Rule::NginxQueue(NginxQueue::try_new(quota, queue)?.delay(delay)), AFTER_NGINX)
    } else {
        let exact = LeakyQueue::try_new(quota, queue)?.delay(delay);
        if reader.word("max_wait") {
            (Rule::LeakyQueue(exact.max_wait(reader.period()?)), AFTER_MAX_WAIT)
        } else {
            (Rule::LeakyQueue(exact), after_delay)
        }
    };
    reader.end(expected)?;
    Ok(rule)
}

/// Parses the delay of a queue. Returns it with the words that may follow.
fn delay(reader: &mut Reader<'_>) -> Result<(u32, &'static str), InvalidQuota> {
    if reader.word("nodelay") {
        return Ok((u32::MAX, AFTER_DELAY));
    }
    if reader.word("delay") {
        Ok((saturating_u32(reader.count()?), AFTER_DELAY))
    } else {
        Ok((0, AFTER_QUEUE))
    }
}

/// A count capped at `u32::MAX`.
fn saturating_u32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn stepped_bucket(reader: &mut Reader<'_>) -> Result<Rule, InvalidQuota> {
    let bucket = SteppedBucket::try_new(reader.quota()?)?;
    let (bucket, expected) = if reader.word("offset") {
        (bucket.offset(reader.period()?), AFTER_STEPPED_OFFSET)
    } else {
        (bucket, if reader.has_burst() { AFTER_STEPPED_BURST } else { AFTER_STEPPED })
    };
    reader.end(expected)?;
    Ok(Rule::SteppedBucket(bucket))
}

fn fixed_window(reader: &mut Reader<'_>) -> Result<Rule, InvalidQuota> {
    let aligned = FixedWindow::try_new(reader.quota()?)?;
    let (window, expected) = if reader.word("from") {
        if !(reader.word("first") && reader.word("hit")) {
            return Err(reader.expected(FIRST_HIT));
        }
        (aligned.from_first_hit(), AFTER_FIRST_HIT)
    } else if reader.word("offset") {
        (aligned.offset(reader.period()?), AFTER_OFFSET)
    } else {
        (aligned, AFTER_WINDOW)
    };
    reader.end(expected)?;
    Ok(Rule::FixedWindow(window))
}

fn sliding_log(reader: &mut Reader<'_>) -> Result<Rule, InvalidQuota> {
    let log = SlidingLog::try_new(reader.quota()?)?;
    reader.end(AFTER_LOG)?;
    Ok(Rule::SlidingLog(log))
}

fn sliding_window(reader: &mut Reader<'_>) -> Result<Rule, InvalidQuota> {
    let quota: Quota = reader.quota()?;
    if !reader.word("cells") {
        return Err(reader.expected(CELLS));
    }
    let cells = saturating_u32(reader.count()?);
    let window = SlidingWindow::try_new(quota, cells)?;
    let oldest = oldest(reader);
    reader.end(if oldest.is_some() { AFTER_OLDEST } else { AFTER_CELLS })?;
    Ok(Rule::SlidingWindow(window.oldest(oldest.unwrap_or_default())))
}

fn oldest(reader: &mut Reader<'_>) -> Option<Cells> {
    let words = [("strict", Cells::Strict), ("interpolated", Cells::Interpolated), ("plain", Cells::Plain)];
    words.into_iter().find(|(word, _)| reader.word(word)).map(|(_, oldest)| oldest)
}
