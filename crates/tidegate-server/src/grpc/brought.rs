//! # A limit that a descriptor brings along
//!
//! Envoy may be told to take a limit from elsewhere, from the metadata of a route for one, and sends it with the
//! descriptor. It is in force in the place of the rules, for just these entries. There is nothing of it in the file. It
//! is counted as those of `CL.THROTTLE` are, by the same arithmetic, here or in Redis: a bucket of so many.

use tidegate::Source;
use tidegate::clock::Clock;

use super::generated::messages::{
    RateLimitDescriptor, RateLimitDescriptorRateLimitOverride as Override, RateLimitResponseCode as Verdict,
    RateLimitResponseDescriptorStatus as DescriptorStatus, RateLimitResponseRateLimit as CurrentLimit,
    RateLimitUnit,
};
use super::told::{seconds, small};
use super::unit::UNITS;
use crate::engine::{Engine, Throttle, Throttled};

/// A limit that was brought along, and what is wanted of it.
#[derive(Clone, Debug)]
pub(super) struct Brought {
    limit: u32,
    unit: i32,
    /// Nanoseconds for all of them.
    period: i64,
    cost: u32,
    is_refund: bool,
    key: Vec<u8>,
}

impl Brought {
    /// What is asked of it, or what is wrong with it.
    pub(super) fn new(
        domain: &str,
        descriptor: &RateLimitDescriptor,
        limit: &Override,
        cost: u32,
    ) -> Result<Self, String> {
        let Override { requests_per_unit, unit } = *limit;
        let known = UNITS.iter().find(|(number, _)| *number == unit && unit <= RateLimitUnit::YEAR);
        let (_, seconds) = known.ok_or_else(|| {
            format!(".limit.unit is {unit}; use one from 1, a second, to {}, a year", RateLimitUnit::YEAR)
        })?;
        if requests_per_unit > MOST_PER_SECOND && unit == RateLimitUnit::SECOND {
            return Err(format!(".limit is {requests_per_unit} a second; use at most {MOST_PER_SECOND}"));
        }
        let period = i64::try_from(*seconds).unwrap_or(i64::MAX).saturating_mul(NANOS);
        let (is_refund, key) = (descriptor.is_negative_hits, key(domain, descriptor));
        Ok(Brought { limit: requests_per_unit, unit, period, cost, is_refund, key })
    }

    /// What is left, and whether it may pass. Charges nothing.
    pub(super) async fn look<C: Clock + Send + Sync + 'static>(
        &self,
        engine: &Engine<C>,
    ) -> DescriptorStatus {
        let seen = self.throttled(engine, 0).await;
        let left = seen.map_or(0, |seen| seen.remaining);
        if self.is_refund || u64::from(self.cost) <= left {
            let reset = seen.map_or(0, |seen| seen.reset_after.as_secs_up());
            return self.status(Verdict::OK, left, reset);
        }
        let lacking = u64::from(self.cost) - left;
        let interval = self.period.unsigned_abs() / u64::from(self.limit.max(1));
        let wait = lacking.saturating_mul(interval).min(self.period.unsigned_abs());
        let wait = wait.div_ceil(NANOS.unsigned_abs());
        // In an outage waits are capped, and what comes in is not known from the limit.
        let most = seen.filter(|seen| seen.source != Source::Strict);
        let wait = most.map_or(wait, |seen| wait.min(seen.reset_after.as_secs_up().max(1)));
        self.status(Verdict::OVER_LIMIT, 0, wait)
    }

    /// Takes what is wanted of it, or gives it back.
    pub(super) async fn charge<C: Clock + Send + Sync + 'static>(
        &self,
        engine: &Engine<C>,
    ) -> DescriptorStatus {
        let cost = i64::from(self.cost.min(self.limit));
        match self.throttled(engine, if self.is_refund { -cost } else { cost }).await {
            Some(taken) if !taken.limited => {
                self.status(Verdict::OK, taken.remaining, taken.reset_after.as_secs_up())
            }
            _ => self.look(engine).await,
        }
    }

    /// `None` of a limit of nothing at all.
    async fn throttled<C: Clock + Send + Sync + 'static>(
        &self,
        engine: &Engine<C>,
        quantity: i64,
    ) -> Option<Throttled> {
        let limit = u64::from(self.limit);
        let throttle =
            Throttle::new(limit, i64::from(self.limit), self.period, quantity).ok().filter(|_| limit > 0)?;
        Some(engine.throttle(&self.key, throttle).wait().await)
    }

    fn status(&self, code: i32, left: u64, reset: u64) -> DescriptorStatus {
        let Brought { limit, unit, .. } = *self;
        let name = String::new();
        DescriptorStatus {
            code,
            current_limit: Some(CurrentLimit { requests_per_unit: limit, unit, name }),
            limit_remaining: small(left),
            duration_until_reset: Some(seconds(reset)),
        }
    }
}

const NANOS: i64 = 1_000_000_000;
/// More than one each nanosecond cannot be counted.
const MOST_PER_SECOND: u32 = 1_000_000_000;

/// Everything with its length before it, so that no two are alike.
fn key(domain: &str, descriptor: &RateLimitDescriptor) -> Vec<u8> {
    let mut key = b"envoy\0".to_vec();
    let entries = descriptor.entries.iter().flat_map(|entry| [entry.key.as_str(), entry.value.as_str()]);
    for text in [domain].into_iter().chain(entries) {
        key.extend_from_slice(&(text.len() as u64).to_be_bytes());
        key.extend_from_slice(text.as_bytes());
    }
    key
}
