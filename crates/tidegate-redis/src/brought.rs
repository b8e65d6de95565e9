//! # Limits that come with the call
//!
//! A rule is known to everybody who shares it. Some callers bring their limit along instead, with each call, as clients
//! of redis-cell do. Of their keys one instant is remembered, when the key will owe nothing again, and it is read by
//! whatever limit comes next; so there is no rule, and a script of its own (`brought.lua`) decides.
//!
//! ```text
//!   Brought { full, charge } ──► charge the key, or refuse ──► Owed { outcome, nanos }
//! ```
//!
//! All else is as for rules: one round trip, by Redis's clock, in one step; the same connections, deadline, bound and
//! breaker. What to do without an answer is the caller's to say, for nobody here knows what the limit is worth.

use redis::Value;
use tidegate_core::{Micros, Outcome, Wait};

use crate::gate::RedisGate;
use crate::trouble::Trouble;
use crate::wire::{Call, Said, number, outcome_of};

/// The script that decides by limits that come with the call. `WIRE.md` says what it is given and what it answers.
pub const SCRIPT_OF_BROUGHT: &str = include_str!("brought.lua");

/// A limit that comes with the call, and what is asked of it. In nanoseconds; beyond 285 years, as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brought {
    /// How long a key may owe at most: the time in which the whole limit comes back.
    pub full: u64,
    /// For how long more it is to owe: what is asked for. Below zero gives back; 0 only looks, and writes nothing.
    pub charge: i64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a decision protects nothing until you act on it"]
pub struct Owed {
    /// [`Allowed`](Outcome::Allowed), [`Never`](Outcome::Never), or [`RetryAfter`](Outcome::RetryAfter) with a wait
    /// that is rounded *down* to a microsecond, as redis-cell has it.
    pub outcome: Outcome,
    /// Redis's time.
    pub at: Micros,
    /// For how many nanoseconds the key owes now.
    pub nanos: u64,
}

/// What the script is told, after the key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked {
    Charge(Brought),
    Forget,
}

const NANOS: u64 = 1_000;
/// No time has more nanoseconds than this, there and back.
const LONGEST: u64 = Micros::MAX.get() * NANOS + (NANOS - 1);

impl RedisGate {
    /// Decides by a limit that comes with the call, and charges the key if it may pass.
    ///
    /// ```no_run
    /// use tidegate_core::Outcome;
    /// use tidegate_redis::{Brought, RedisGate};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let gate = RedisGate::builder("redis://127.0.0.1/").without_rules().connect().await?;
    /// // One each two seconds, five at once: a whole limit comes back in ten.
    /// let owed = gate.charge(b"alice", Brought { full: 10_000_000_000, charge: 2_000_000_000 }).await?;
    /// if owed.outcome != Outcome::Allowed {
    ///     println!("refused; everything is there again in {} ns", owed.nanos);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Trouble`]: why Redis did not decide. It may have charged the key all the same, if the answer was lost. The caller
    /// decides then, so it is counted in [`Health::fallbacks`](crate::Health::fallbacks).
    pub async fn charge(&self, key: &[u8], brought: Brought) -> Result<Owed, Trouble> {
        let owed = self.ask_brought(key, Asked::Charge(brought)).await;
        owed.inspect_err(|trouble| self.shared.counts.fell_back(trouble))
    }

    /// What a key that limits came with owes. Decides and charges nothing, so a failure is not counted as a fallback.
    ///
    /// # Errors
    ///
    /// [`Trouble`]: why Redis did not answer.
    pub async fn owed(&self, key: &[u8]) -> Result<Owed, Trouble> {
        self.ask_brought(key, Asked::Charge(Brought { full: LONGEST, charge: 0 })).await
    }

    /// Forgets a key that limits came with; and tells what it owed.
    ///
    /// # Errors
    ///
    /// As [`charge`](RedisGate::charge).
    pub async fn forget(&self, key: &[u8]) -> Result<Owed, Trouble> {
        self.ask_brought(key, Asked::Forget).await
    }

    async fn ask_brought(&self, key: &[u8], asked: Asked) -> Result<Owed, Trouble> {
        let shared = &self.shared;
        let key = shared.keys.of_brought(key);
        let call = Call { sha: &shared.sha_of_brought, said: Said::Brought { key: &key, asked } };
        shared.put(shared.link_to(&key), &call, shared.deadline, read).await
    }
}

impl Asked {
    pub(crate) const fn arguments(&self) -> usize {
        match self {
            Asked::Charge(_) => 2,
            Asked::Forget => 1,
        }
    }

    pub(crate) fn each_argument(&self, mut argument: impl FnMut(&[u8])) {
        match self {
            Asked::Charge(brought) => {
                argument(b"1:charge");
                argument(&brought.packed());
            }
            Asked::Forget => argument(b"1:forget"),
        }
    }
}

impl Brought {
    /// Four numbers of eight bytes: of each time whole microseconds, and the nanoseconds beyond them.
    fn packed(self) -> [u8; 32] {
        let full = self.full.min(LONGEST);
        // What is beyond it makes no difference: so much can never be charged, and given back it is everything.
        let longest = LONGEST.cast_signed();
        let charge = self.charge.clamp(-(Micros::MAX.get() * NANOS).cast_signed(), longest);
        let nanos = NANOS.cast_signed();
        let numbers = [
            full / NANOS,
            full % NANOS,
            charge.div_euclid(nanos).cast_unsigned(),
            charge.rem_euclid(nanos).cast_unsigned(),
        ];
        let mut bytes = [0; 32];
        for (place, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
            *place = number.to_be_bytes();
        }
        bytes
    }
}

/// Reads a reply. `None` if it is none.
fn read(reply: &Value) -> Option<Owed> {
    let Value::Array(values) = reply else { return None };
    let [now, outcome, wait, micros, nanos] = values.as_slice() else { return None };
    let outcome = outcome_of(number(outcome)?, Wait::micros(number(wait)?))?;
    let nanos = number(micros)?.checked_mul(NANOS)?.checked_add(number(nanos)?)?;
    Some(Owed { outcome, at: Micros::new(number(now)?), nanos })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(full: u64, charge: i64) -> [i64; 4] {
        let bytes = Brought { full, charge }.packed();
        let mut numbers = [0; 4];
        for (number, chunk) in numbers.iter_mut().zip(bytes.as_chunks().0) {
            *number = i64::from_be_bytes(*chunk);
        }
        numbers
    }

    #[test]
    fn a_time_is_microseconds_and_the_nanoseconds_beyond_them() {
        assert_eq!(numbers(333_333_333, 1_000), [333_333, 333, 1, 0]);
        assert_eq!(numbers(0, -1), [0, 0, -1, 999]);
        assert_eq!(numbers(1 << 62, -1_001), [4_611_686_018_427_387, 904, -2, 999]);
        let end = (1 << 53) - 1;
        assert_eq!(numbers(u64::MAX, i64::MAX), [end, 999, end, 999]);
        assert_eq!(numbers(1, i64::MIN), [0, 1, -end, 0]);
    }

    #[test]
    fn a_reply_is_read_whole_or_not_at_all() {
        let ints = |numbers: &[i64]| Value::Array(numbers.iter().copied().map(Value::Int).collect());
        let owed = read(&ints(&[1_000, 2, 30, 70, 5])).expect("a reply");
        let outcome = Outcome::RetryAfter(Wait::micros(30));
        assert_eq!(owed, Owed { outcome, at: Micros::new(1_000), nanos: 70_005 });
        let nonsense: [&[i64]; 5] = [
            &[],
            &[1_000, 2, 30, 70],
            &[1_000, 9, 30, 70, 5],
            &[1_000, 0, 0, -1, 5],
            &[1_000, 0, 0, i64::MAX, 5],
        ];
        assert!(nonsense.iter().all(|numbers| read(&ints(numbers)).is_none()));
        assert_eq!(read(&Value::Okay), None);
    }
}
