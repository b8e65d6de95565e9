//! # Ad-hoc limits in an outage
//!
//! The counts are in Redis, and Redis does not answer. With `when_lost: local` this node lets its share of the limit pass:
//! the limit divided by the number of nodes, at the limit's pace. What a key had used is not known, so every key starts
//! empty at the instant the outage began:
//!
//! ```text
//!   share ┤              ┌──────  limit ÷ nodes
//!         │          ╱───┘
//!       0 ┼──────┼──────────► t   1 ÷ (nodes × interval)
//!             outage begins
//! ```
//!
//! So a single missed deadline is no fresh burst, and an outage gives all nodes together no more than the limit's pace. A
//! share below one is closed. The states of an outage are dropped when it is over.
//!
//! An outage may be over any moment, so no decision tells a long wait: `retry_after` and `reset` are capped, with jitter,
//! so that refused clients do not come back all at once.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tidegate::algorithm::{Algorithm, Keep, Words, WordsMut};
use tidegate::clock::{Clock, Micros};
use tidegate::{Decision, KeyedLimiter, Outcome, Source, Wait};

use super::throttle::{ONE_WORD, Throttle};
use crate::config::Redis;
use crate::rules::OnOutage;

/// What an outage means for ad-hoc limits.
#[derive(Debug)]
pub(super) struct Fallback {
    when_lost: OnOutage,
    nodes: u32,
    /// The longest wait that is told, before jitter.
    retry_after: Duration,
    jitter: RandomState,
}

/// One outage of the store, and what keys were charged in it.
pub(super) struct Outage<C> {
    keys: KeyedLimiter<[u8], EmptyShare, C>,
    began: Micros,
    clock: C,
}

/// A node's share of an ad-hoc limit, under which every key was empty at an instant.
#[derive(Clone, Copy, Debug)]
struct EmptyShare {
    share: Throttle,
    began: Micros,
}

impl Fallback {
    pub(super) fn of(redis: &Redis) -> Self {
        let Redis { when_lost, nodes, outage_retry_after, .. } = *redis;
        Fallback { when_lost, nodes, retry_after: outage_retry_after, jitter: RandomState::new() }
    }

    /// Decides without the store.
    pub(super) fn decide<C: Clock>(&self, outage: &Outage<C>, key: &[u8], call: Throttle) -> Decision {
        let (limit, at) = (call.limit(), outage.clock.now());
        let most = self.longest_wait(key, at);
        match self.when_lost {
            OnOutage::Open => {
                let open = Decision::counted(Outcome::Allowed, at, limit, limit, Wait::micros(0));
                labelled(open, Source::Open)
            }
            OnOutage::Closed => Decision::closed(at, most, limit),
            OnOutage::Local => match call.share(self.nodes) {
                Some(share) => labelled(capped(outage.decide(key, share), &call, most), Source::Local),
                None => Decision::closed(at, most, limit),
            },
        }
    }

    /// The longest wait to tell, with jitter of up to a quarter.
    fn longest_wait(&self, key: &[u8], now: Micros) -> Wait {
        const STEPS: u64 = 1 << 10;
        let most = u64::try_from(self.retry_after.as_micros()).unwrap_or(u64::MAX);
        let jitter = self.jitter.hash_one((key, now.get())) % STEPS;
        Wait::micros(most.saturating_add((most / 4).saturating_mul(jitter) / STEPS))
    }
}

/// The decision of a share, with waits of `most` at most. What never fits into the share, but into the limit, may be
/// retried, too: the outage may be over.
fn capped(decision: Decision, call: &Throttle, most: Wait) -> Decision {
    let cap = |wait: Wait| Wait::micros(wait.as_micros().min(most.as_micros()));
    let outcome = match decision.outcome {
        Outcome::RetryAfter(wait) => Outcome::RetryAfter(cap(wait)),
        Outcome::Never if call.has_room() => Outcome::RetryAfter(most),
        other => other,
    };
    let reset = cap(decision.reset_after());
    Decision::counted(outcome, decision.at(), decision.limit(), decision.remaining(), reset)
}

fn labelled(mut decision: Decision, source: Source) -> Decision {
    decision.source = source;
    decision
}

impl<C: Clock + Clone> Outage<C> {
    /// An outage that begins now.
    pub(super) fn begin(clock: C) -> Self {
        let began = clock.now();
        let any = EmptyShare { share: Throttle::of_any_limit(), began };
        Outage { keys: KeyedLimiter::builder_with(any).clock(clock.clone()).build(), began, clock }
    }
}

impl<C: Clock> Outage<C> {
    fn decide(&self, key: &[u8], share: Throttle) -> Decision {
        let setting = EmptyShare { share, began: self.began };
        let request = self.keys.request(key).by(setting).expect(ONE_WORD);
        if share.is_peek() { request.peek() } else { request.check() }
    }

    /// How many keys have a state.
    pub(super) fn keys(&self) -> usize {
        self.keys.keys()
    }
}

impl EmptyShare {
    /// The state of a key; of one that was not charged since the outage began, that of an empty one.
    fn read(&self, word: u64) -> u64 {
        if word == 0 { self.share.empty_at(self.began) } else { word }
    }

    fn step(&self, word: u64, now: Micros) -> (u64, Decision) {
        let from = self.read(word);
        let (next, decision) = self.share.step(from, now);
        (if next == from { word } else { next }, decision) // a refusal writes nothing
    }
}

/// The cost is part of the setting, as of [`Throttle`].
impl Algorithm for EmptyShare {
    fn words(&self) -> usize {
        1
    }

    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, _: u32) -> Decision {
        self.step(state.get(0), now).1
    }

    fn decide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, _: u32) -> Decision {
        let word = state.get(0);
        let (next, decision) = self.step(word, now);
        if next != word {
            state.set(0, next);
        }
        decision
    }

    fn decide_word(&self, word: u64, now: Micros, _: u32) -> Option<(u64, Decision)> {
        Some(self.step(word, now))
    }

    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        self.decide(state, now, cost) // an ad-hoc limit is never forced
    }

    fn refund<S: WordsMut + ?Sized>(&self, _: &mut S, _: Micros, _: u32) {}

    fn repair<S: WordsMut + ?Sized>(&self, _: &mut S, _: Micros) {}

    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        self.share.idle_at(state)
    }

    fn last_seen<S: Words + ?Sized>(&self, _: &S) -> Micros {
        Micros::ZERO
    }

    fn migrate_from<F, S>(&self, _: &Self, from: &F, state: &mut S, _: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        state.set(0, from.get(0));
    }

    /// The cost of a call plays no part, so what remains cannot be measured by charging it: the state stays as it is.
    fn migrate_keeping<F, S>(&self, _: Keep, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        self.migrate_from(old, from, state, now);
    }
}

#[cfg(test)]
mod tests {
    use tidegate::ManualClock;

    use super::*;

    const SECOND: i64 = 1_000_000_000;

    /// Ten a second, ten at once, and an outage of which four nodes each give two.
    fn outage(when_lost: OnOutage, nodes: u32) -> (Fallback, Outage<ManualClock>, ManualClock) {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(1_000_000));
        let retry_after = Duration::from_secs(1);
        let fallback = Fallback { when_lost, nodes, retry_after, jitter: RandomState::new() };
        (fallback, Outage::begin(clock.clone()), clock)
    }

    fn call(limit: u64, quantity: i64) -> Throttle {
        Throttle::new(limit, 10, SECOND, quantity).expect("a limit")
    }

    fn passed(fallback: &Fallback, outage: &Outage<ManualClock>, key: &str, asked: usize) -> usize {
        let pass = |_: &usize| fallback.decide(outage, key.as_bytes(), call(10, 1)).is_allowed();
        (0..asked).filter(pass).count()
    }

    #[test]
    fn a_share_starts_empty_and_comes_in_at_the_pace_of_the_limit() {
        let (fallback, outage, clock) = outage(OnOutage::Local, 4);
        assert_eq!(passed(&fallback, &outage, "alice", 5), 0, "no fresh burst");
        clock.advance(Duration::from_micros(399_999));
        assert_eq!(passed(&fallback, &outage, "alice", 5), 0);
        clock.advance(Duration::from_micros(1));
        assert_eq!(passed(&fallback, &outage, "alice", 5), 1, "one each 4 × 100 ms");
        clock.advance(Duration::from_secs(60));
        assert_eq!(passed(&fallback, &outage, "alice", 5), 2, "10 ÷ 4 at once");
        assert_eq!(passed(&fallback, &outage, "bob", 5), 2, "not seen before, and no better off");
        let decision = fallback.decide(&outage, b"carol", call(10, 1));
        assert_eq!((decision.source, decision.limit()), (Source::Local, 2));
        assert_eq!(outage.keys(), 3);
    }

    #[test]
    fn a_share_below_one_is_closed() {
        let (fallback, outage, clock) = outage(OnOutage::Local, 11);
        clock.advance(Duration::from_secs(60));
        let decision = fallback.decide(&outage, b"alice", call(10, 1));
        assert_eq!((decision.is_allowed(), decision.source), (false, Source::Closed));
    }

    #[test]
    fn waits_are_capped_with_jitter_of_up_to_a_quarter() {
        let (fallback, outage, clock) = outage(OnOutage::Local, 1);
        let wait = |decision: &Decision| decision.retry_after().expect("refused").as_micros();
        let slow = Throttle::new(10, 1, 3_600 * SECOND, 1).expect("a limit");
        let decisions = (0..200u32).map(|key| fallback.decide(&outage, &key.to_be_bytes(), slow));
        let waits: Vec<u64> = decisions
            .map(|decision| {
                assert!(decision.reset_after().as_micros() <= 1_250_000);
                wait(&decision)
            })
            .collect();
        assert!(waits.iter().all(|wait| (1_000_000..=1_250_000).contains(wait)), "{waits:?}");
        assert!(waits.iter().min() != waits.iter().max(), "jitter");
        assert_eq!(wait(&fallback.decide(&outage, b"alice", call(10, 1))), 100_000, "short waits stay exact");
        let (two_nodes, ..) = self::outage(OnOutage::Local, 2);
        clock.advance(Duration::from_secs(60));
        let large = two_nodes.decide(&outage, b"alice", call(10, 7));
        assert!(wait(&large) >= 1_000_000, "more than the share, but not than the limit: not never");
        assert_eq!(two_nodes.decide(&outage, b"alice", call(10, 11)).outcome, Outcome::Never);
    }
}
