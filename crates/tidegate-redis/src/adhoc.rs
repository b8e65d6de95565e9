//! # Ad-hoc limits: limits that come with the call
//!
//! A rule is known to every gate that shares it. Some callers send their limit with each call instead, as clients of
//! redis-cell do. For their keys Redis stores one instant: when the key will owe nothing again. The limit of the next
//! call interprets it. So there is no rule, and a separate script (`adhoc.lua`) decides.
//!
//! ```text
//!   AdhocLimit { full, charge } ──► charge the key, or refuse ──► AdhocDecision { outcome, nanos }
//! ```
//!
//! Everything else is as for rules: one atomic round trip, on the clock of Redis, with the same connections, deadline,
//! bound on requests in flight and breaker. During an outage the caller has to decide, because the gate has no
//! `on_outage` setting for such a limit.

use redis::Value;
use tidegate_core::{Micros, Outcome, Wait};

use crate::error::Error;
use crate::gate::RedisGate;
use crate::wire::{Call, Payload, decode_outcome, to_u64};

/// The script for ad-hoc limits. `WIRE.md` describes its arguments and replies.
pub const ADHOC_SCRIPT: &str = include_str!("adhoc.lua");

/// A limit that comes with the call, and the requested charge.
///
/// Both are times in nanoseconds; more than 285 years count as 285 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdhocLimit {
    /// The most that a key may owe: the time in which the whole limit refills.
    pub full: u64,
    /// The time to add to what the key owes. Negative refunds; 0 only queries, and writes nothing.
    pub charge: i64,
}

/// The result of an ad-hoc charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a decision protects nothing until you act on it"]
pub struct AdhocDecision {
    /// The outcome of the charge.
    ///
    /// [`Allowed`](Outcome::Allowed), [`Never`](Outcome::Never), or [`RetryAfter`](Outcome::RetryAfter). The wait is
    /// rounded *down* to a microsecond, as redis-cell does.
    pub outcome: Outcome,
    /// The time on the clock of Redis.
    pub at: Micros,
    /// The time that the key owes now, in nanoseconds.
    pub nanos: u64,
}

/// The arguments of the script after the key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AdhocOperation {
    Charge(AdhocLimit),
    Forget,
}

const NANOS_PER_MICRO: u64 = 1_000;
/// The longest time in nanoseconds that converts to microseconds and back.
const MAX_NANOS: u64 = Micros::MAX.get() * NANOS_PER_MICRO + (NANOS_PER_MICRO - 1);

impl RedisGate {
    /// Checks a limit that comes with the call, and charges the key if the request may pass.
    ///
    /// ```no_run
    /// use tidegate_core::Outcome;
    /// use tidegate_redis::{AdhocLimit, RedisGate};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let gate = RedisGate::builder("redis://127.0.0.1/").without_rules().connect().await?;
    /// // One per two seconds, burst of five: the whole limit refills in ten seconds.
    /// let decision = gate.charge(b"alice", AdhocLimit { full: 10_000_000_000, charge: 2_000_000_000 }).await?;
    /// if decision.outcome != Outcome::Allowed {
    ///     println!("refused; the whole limit is available again in {} ns", decision.nanos);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error`]: why Redis did not decide. The key may have been charged all the same, if the reply was lost. Then the
    /// caller decides, and the failure is counted in [`Health::fallbacks`](crate::Health::fallbacks).
    pub async fn charge(&self, key: &[u8], adhoc: AdhocLimit) -> Result<AdhocDecision, Error> {
        let decision = self.call_adhoc(key, AdhocOperation::Charge(adhoc)).await;
        decision.inspect_err(|error| self.shared.monitor.count_fallback(error))
    }

    /// Returns what a key of ad-hoc limits owes, without charging it.
    ///
    /// There is no decision, so a failure is not counted as a fallback.
    ///
    /// # Errors
    ///
    /// [`Error`]: why Redis did not reply.
    pub async fn owed(&self, key: &[u8]) -> Result<AdhocDecision, Error> {
        self.call_adhoc(key, AdhocOperation::Charge(AdhocLimit { full: MAX_NANOS, charge: 0 })).await
    }

    /// Deletes the debt of a key of ad-hoc limits, and returns what it was.
    ///
    /// # Errors
    ///
    /// As [`charge`](RedisGate::charge).
    pub async fn forget(&self, key: &[u8]) -> Result<AdhocDecision, Error> {
        self.call_adhoc(key, AdhocOperation::Forget).await
    }

    async fn call_adhoc(&self, key: &[u8], operation: AdhocOperation) -> Result<AdhocDecision, Error> {
        let shared = &self.shared;
        let key = shared.keys.adhoc_name(key);
        let call = Call { sha: &shared.adhoc_sha, payload: Payload::Adhoc { key: &key, operation } };
        shared.call_script(shared.connection_for(&key), &call, shared.deadline, decode).await
    }
}

impl AdhocOperation {
    pub(crate) const fn arguments(&self) -> usize {
        match self {
            AdhocOperation::Charge(_) => 2,
            AdhocOperation::Forget => 1,
        }
    }

    pub(crate) fn each_argument(&self, mut argument: impl FnMut(&[u8])) {
        match self {
            AdhocOperation::Charge(adhoc) => {
                argument(b"1:charge");
                argument(&adhoc.encode());
            }
            AdhocOperation::Forget => argument(b"1:forget"),
        }
    }
}

impl AdhocLimit {
    /// Encodes both times as four numbers of eight bytes.
    ///
    /// Each time is whole microseconds, and the remaining nanoseconds.
    fn encode(self) -> [u8; 32] {
        let full = self.full.min(MAX_NANOS);
        // Clamping makes no difference: such a charge can never be allowed, and such a refund is complete.
        let max = MAX_NANOS.cast_signed();
        let charge = self.charge.clamp(-(Micros::MAX.get() * NANOS_PER_MICRO).cast_signed(), max);
        let nanos = NANOS_PER_MICRO.cast_signed();
        let numbers = [
            full / NANOS_PER_MICRO,
            full % NANOS_PER_MICRO,
            charge.div_euclid(nanos).cast_unsigned(),
            charge.rem_euclid(nanos).cast_unsigned(),
        ];
        let mut bytes = [0; 32];
        for (slot, to_u64) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
            *slot = to_u64.to_be_bytes();
        }
        bytes
    }
}

/// Parses a reply; `None` if it is malformed.
fn decode(reply: &Value) -> Option<AdhocDecision> {
    let Value::Array(values) = reply else { return None };
    let [now, outcome, wait, micros, nanos] = values.as_slice() else { return None };
    let outcome = decode_outcome(to_u64(outcome)?, Wait::micros(to_u64(wait)?))?;
    let nanos = to_u64(micros)?.checked_mul(NANOS_PER_MICRO)?.checked_add(to_u64(nanos)?)?;
    Some(AdhocDecision { outcome, at: Micros::new(to_u64(now)?), nanos })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(full: u64, charge: i64) -> [i64; 4] {
        let bytes = AdhocLimit { full, charge }.encode();
        let mut numbers = [0; 4];
        for (to_u64, chunk) in numbers.iter_mut().zip(bytes.as_chunks().0) {
            *to_u64 = i64::from_be_bytes(*chunk);
        }
        numbers
    }

    #[test]
    fn a_duration_is_encoded_as_microseconds_and_nanoseconds() {
        assert_eq!(numbers(333_333_333, 1_000), [333_333, 333, 1, 0]);
        assert_eq!(numbers(0, -1), [0, 0, -1, 999]);
        assert_eq!(numbers(1 << 62, -1_001), [4_611_686_018_427_387, 904, -2, 999]);
        let end = (1 << 53) - 1;
        assert_eq!(numbers(u64::MAX, i64::MAX), [end, 999, end, 999]);
        assert_eq!(numbers(1, i64::MIN), [0, 1, -end, 0]);
    }

    #[test]
    fn a_reply_is_decoded_completely_or_not_at_all() {
        let ints = |numbers: &[i64]| Value::Array(numbers.iter().copied().map(Value::Int).collect());
        let decision = decode(&ints(&[1_000, 2, 30, 70, 5])).expect("a reply");
        let outcome = Outcome::RetryAfter(Wait::micros(30));
        assert_eq!(decision, AdhocDecision { outcome, at: Micros::new(1_000), nanos: 70_005 });
        let malformed: [&[i64]; 5] = [
            &[],
            &[1_000, 2, 30, 70],
            &[1_000, 9, 30, 70, 5],
            &[1_000, 0, 0, -1, 5],
            &[1_000, 0, 0, i64::MAX, 5],
        ];
        assert!(malformed.iter().all(|numbers| decode(&ints(numbers)).is_none()));
        assert_eq!(decode(&Value::Okay), None);
    }
}
