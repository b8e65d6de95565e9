//! # Where limits that come with the call are counted
//!
//! Where the rules are: in this process, or in Redis, so that a key has one count however many services there are. By
//! the same arithmetic: here that of [`Throttle`], there that of a script, which is held against it.
//!
//! ```text
//!                      ┌─ in memory ──► decided
//!   key, limit, cost ──┤
//!                      └─ in Redis ───► decided, or lost ──► open │ closed │ local: in memory, as if there were no Redis
//! ```
//!
//! No rule says what is to be done while Redis does not answer, so the store does.

use std::sync::Arc;
use std::time::Instant;

use tidegate::{Clock, Decision, KeyedLimiter, Outcome, Source, Wait};
use tidegate_redis::RedisGate;

use super::Answer;
use super::meter::Meter;
use super::throttle::{Throttle, Throttled};
use super::verdict::Fault;
use crate::config::Store;
use crate::rules::WhenLost;

/// The keys of limits that come with the call, as far as they are in this process.
pub(super) struct Throttles<C> {
    keys: KeyedLimiter<[u8], Throttle, C>,
    when_lost: WhenLost,
    clock: C,
}

/// How soon to ask again who was refused without being counted.
const ASK_AGAIN: Wait = Wait::micros(1_000_000);

impl<C: Clock + Clone> Throttles<C> {
    pub(super) fn new(store: &Store, clock: C) -> Self {
        let keys = KeyedLimiter::with(Throttle::of_any_limit()).with_clock(clock.clone());
        match store {
            Store::Memory { max_keys } => {
                Throttles { keys: keys.max_keys(*max_keys), when_lost: WhenLost::default(), clock }
            }
            Store::Redis(redis) => Throttles { keys, when_lost: redis.when_lost, clock },
        }
    }
}

impl<C: Clock> Throttles<C> {
    #[inline]
    pub(super) fn decide(&self, key: &[u8], call: Throttle) -> Decision {
        let plan = self.keys.by(call);
        if call.is_peek() { plan.peek(key) } else { plan.check(key) }
    }

    pub(super) fn owes(&self, key: &[u8]) -> Option<Wait> {
        owed(&self.keys.by(Throttle::of_any_limit()).peek(key))
    }

    /// Whether it owed anything.
    pub(super) fn forget(&self, key: &[u8]) -> bool {
        let owed = self.owes(key);
        self.keys.reset(key);
        owed.is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.keys.keys()
    }

    fn decide_without_redis(&self, key: &[u8], call: Throttle) -> Decision {
        let (limit, at) = (call.limit(), self.clock.now());
        let (mut decision, source) = match self.when_lost {
            WhenLost::Open => {
                (Decision::counted(Outcome::Allowed, at, limit, limit, Wait::micros(0)), Source::Open)
            }
            WhenLost::Closed => (Decision::closed(at, ASK_AGAIN, limit), Source::Closed),
            WhenLost::Local => (self.decide(key, call), Source::Local),
        };
        decision.source = source;
        decision
    }
}

impl<C: Clock + Send + Sync + 'static> Throttles<C> {
    /// Asks Redis, and does without if it does not answer.
    pub(super) fn ask(
        self: &Arc<Self>,
        gate: RedisGate,
        key: &[u8],
        call: Throttle,
        meter: &Arc<Meter>,
    ) -> Answer<Throttled> {
        let (throttles, meter, key) = (self.clone(), meter.clone(), Box::<[u8]>::from(key));
        Answer::Pending(Box::pin(async move {
            let started = Instant::now();
            let asked = gate.charge(&key, call.brought()).await;
            meter.store.saw(started.elapsed());
            let decision = match asked {
                Ok(owed) => call.told(owed),
                Err(_) => throttles.decide_without_redis(&key, call), // why, the gate's health tells
            };
            meter.throttled(&decision);
            decision.into()
        }))
    }
}

/// What a key owes in Redis.
pub(super) fn owes_there(gate: RedisGate, key: &[u8]) -> Answer<Result<Option<Wait>, Fault>> {
    let (key, look) = (Box::<[u8]>::from(key), Throttle::of_any_limit());
    Answer::Pending(Box::pin(async move {
        let seen = gate.owed(&key).await;
        seen.map(|seen| owed(&look.told(seen))).map_err(|trouble| Fault::Store(trouble.to_string()))
    }))
}

/// Forgets what a key owes in Redis.
pub(super) fn forget_there(gate: RedisGate, key: &[u8]) -> Answer<Result<bool, Fault>> {
    let (key, look) = (Box::<[u8]>::from(key), Throttle::of_any_limit());
    Answer::Pending(Box::pin(async move {
        let forgotten = gate.forget(&key).await;
        forgotten
            .map(|seen| owed(&look.told(seen)).is_some())
            .map_err(|trouble| Fault::Store(trouble.to_string()))
    }))
}

fn owed(seen: &Decision) -> Option<Wait> {
    Some(seen.reset_after()).filter(|owed| owed.as_micros() > 0)
}
