//! # Where ad-hoc limits are counted
//!
//! An ad-hoc limit comes with the call. It is counted where the rules are: in this process, or in Redis, so that a key has
//! one count however many services there are. By the same arithmetic: here that of [`Throttle`], there that of a script,
//! which is held against it.
//!
//! ```text
//!                      ┌─ in memory ──► decided
//!   key, limit, cost ──┤
//!                      └─ in Redis ───► decided, or an outage ──► open │ closed │ local: this node's share
//! ```
//!
//! No rule says what to do in an outage, so the store does. [`share`](super::share) has what `local` means.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use tidegate::clock::Clock;
use tidegate::{Decision, KeyedLimiter, SteadyClock, Wait};
use tidegate_redis::RedisGate;

use super::Answer;
use super::meter::Meter;
use super::share::{Fallback, Outage};
use super::throttle::{ONE_WORD, Throttle, Throttled};
use super::verdict::Fault;
use crate::config::Store;

/// The keys of ad-hoc limits, as far as they are in this process.
pub(super) struct Throttles<C> {
    /// Where counts are in memory.
    keys: KeyedLimiter<[u8], Throttle, C>,
    /// What an outage of the store means; `None` where counts are in memory.
    fallback: Option<Fallback>,
    /// From the first decision without the store to its next answer.
    outage: ArcSwapOption<Outage<SteadyClock>>,
}

impl<C: Clock + Clone> Throttles<C> {
    pub(super) fn new(store: &Store, clock: C) -> Self {
        let keys = KeyedLimiter::builder_with(Throttle::of_any_limit()).clock(clock);
        let (keys, fallback) = match store {
            Store::Memory { max_keys } => (keys.max_keys(*max_keys), None),
            Store::Redis(redis) => (keys, Some(Fallback::of(redis))),
        };
        Throttles { keys: keys.build(), fallback, outage: ArcSwapOption::empty() }
    }
}

impl<C: Clock> Throttles<C> {
    #[inline]
    pub(super) fn decide(&self, key: &[u8], call: Throttle) -> Decision {
        let request = self.keys.request(key).by(call).expect(ONE_WORD);
        if call.is_peek() { request.peek() } else { request.check() }
    }

    pub(super) fn owes(&self, key: &[u8]) -> Option<Wait> {
        owed(&self.keys.request(key).by(Throttle::of_any_limit()).expect(ONE_WORD).peek())
    }

    /// Whether it owed anything.
    pub(super) fn forget(&self, key: &[u8]) -> bool {
        let owed = self.owes(key);
        self.keys.request(key).reset();
        owed.is_some()
    }

    /// How many keys have a state here: in an outage, those that were charged since it began.
    pub(super) fn len(&self) -> usize {
        self.outage.load().as_ref().map_or_else(|| self.keys.keys(), |outage| outage.keys())
    }

    fn decide_without_redis(&self, key: &[u8], call: Throttle) -> Decision {
        match &self.fallback {
            Some(fallback) => fallback.decide(&self.outage(), key, call),
            None => self.decide(key, call), // nothing but a store in Redis has outages
        }
    }

    /// The outage that goes on, or one that begins now.
    fn outage(&self) -> Arc<Outage<SteadyClock>> {
        if let Some(outage) = self.outage.load_full() {
            return outage;
        }
        let begun = Arc::new(Outage::begin(SteadyClock::new()));
        let before = self.outage.compare_and_swap(&None::<Arc<_>>, Some(begun.clone()));
        before.as_ref().map_or(begun, Arc::clone)
    }

    /// The store has answered, so the outage is over and its states are dropped.
    fn end_outage(&self) {
        if self.outage.load().is_some() {
            self.outage.store(None);
        }
    }
}

impl<C: Clock + Send + Sync + 'static> Throttles<C> {
    /// Asks Redis, and decides without it if it does not answer.
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
                Ok(owed) => {
                    throttles.end_outage();
                    call.told(owed)
                }
                Err(_) => throttles.decide_without_redis(&key, call), // the gate counts the reason
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
