//! # The rules that are in force
//!
//! Which rules there are, and where their states lie. A set of rules never changes: when the file does, another set
//! is made and takes its place. Whoever is in the middle of a request has the old one in hand and finishes with it.
//!
//! ```text
//!              in_force()                              replace(new rules)
//!   request ───► set 7 ───────► decision                    │ all of it is made first
//!   request ───► set 7 ──────────────► decision             ▼
//!   request ─────────────────────────► set 8 ───► decision  one pointer is exchanged
//!                   └── the same states ──┘
//! ```
//!
//! A limit of set 8 that is [the same](crate::rules::Identity) as one of set 7 has its states, not a copy of them: see
//! [`Policy::reload`]. So a reload is never a fresh burst, and nothing that is charged meanwhile is lost.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::builder::PolicyBuilder;
use tidegate::clock::Clock;
use tidegate::gate::{Part, RuleId};
use tidegate::stats::Stats;
use tidegate::{Decision, Policy, Rule as Rate, SteadyClock};
use tidegate_redis::{Health, LeaseStats, Leased, RedisGate};

use super::blocks::Blocks;
use super::grants::Grants;
use super::meter::Meter;
use super::places::Places;
use super::question::Question;
use super::redis;
use super::rules::InvalidRules;
use super::tally::{Counted, MANY_RULES, SHARDS, Tally};
use super::verdict::{Decided, Verdict};
use super::window::{Budget, Window};
use crate::config::Store as StoreConfig;
use crate::rules::{Compiled, Identity, Limit, Numbered, Rule};

/// A set of rules, and their states.
pub struct InForce<C = SteadyClock> {
    compiled: Compiled,
    /// By name, in its order: the place in the file.
    numbers: Box<[(Box<[u8]>, u32)]>,
    /// Of each limit: how long a place is held, if it is about places.
    leases: Box<[Option<Duration>]>,
    pub(super) store: Store<C>,
    /// Of each rule that only watches: what it has seen.
    watched: Box<[Option<Arc<Watched>>]>,
    /// Of each rule: what became of requests.
    tallies: Box<[Arc<Tally>]>,
    pub(super) places: Arc<Places>,
    pub(super) blocks: Arc<Blocks>,
    pub(super) meter: Arc<Meter>,
    pub(super) grants: Arc<Grants>,
    budget: Budget,
    pub(super) clock: C,
}

/// What rules that only watch have seen, and what became of requests, by rule.
type Counts = (Box<[Option<Arc<Watched>>]>, Box<[Arc<Tally>]>);

/// What lies beside the rules, and stays when they are replaced.
type Beside = (Arc<Places>, Arc<Blocks>, Arc<Meter>, Arc<Grants>, Budget);

/// Where the states of the rules lie.
pub(super) enum Store<C> {
    /// There are no rules, and no Redis.
    Nothing,
    Memory(Policy<Rate, C>),
    Redis(Leased),
}

/// What a rule that only watches has seen, over reloads too.
#[derive(Debug, Default)]
pub struct Watched {
    passed: AtomicU64,
    refused: AtomicU64,
}

impl<C: Clock + Clone> InForce<C> {
    pub(super) fn first(
        compiled: Compiled,
        store: &StoreConfig,
        beside: Beside,
        clock: C,
    ) -> Result<Self, InvalidRules> {
        let store = Store::first(&compiled, store, &clock, None)?;
        let watched = compiled.rules().map(|rule| rule.shadow.then(Arc::default)).collect();
        let tallies = tallies(&compiled, |_| None);
        Ok(InForce::made(compiled, store, (watched, tallies), beside, clock))
    }

    /// The next set, with the states of what is in both.
    pub(super) fn reload(&self, compiled: Compiled, store: &StoreConfig) -> Result<Self, InvalidRules> {
        let store = self.store.reload(&compiled, store, &self.clock)?;
        let watched = compiled.rules().map(|rule| rule.shadow.then(|| self.watched_as(rule))).collect();
        let tallies = tallies(&compiled, |rule| self.tally_of(rule));
        let beside = (
            self.places.clone(),
            self.blocks.clone(),
            self.meter.clone(),
            self.grants.clone(),
            self.budget.clone(),
        );
        Ok(InForce::made(compiled, store, (watched, tallies), beside, self.clock.clone()))
    }

    fn made(
        compiled: Compiled,
        store: Store<C>,
        (watched, tallies): Counts,
        (places, blocks, meter, grants, budget): Beside,
        clock: C,
    ) -> Self {
        let numbers = (0..).zip(compiled.rules()).map(|(number, rule)| (rule.name.as_bytes().into(), number));
        let mut numbers: Box<[_]> = numbers.collect();
        numbers.sort();
        let leases = compiled.limits().iter().map(lease).collect();
        InForce {
            compiled,
            numbers,
            leases,
            store,
            watched,
            tallies,
            places,
            blocks,
            meter,
            grants,
            budget,
            clock,
        }
    }

    fn watched_as(&self, rule: &Rule) -> Arc<Watched> {
        let number = self.rule(rule.name.as_bytes());
        number.and_then(|number| self.watched[number as usize].clone()).unwrap_or_default()
    }

    fn tally_of(&self, rule: &Rule) -> Option<Arc<Tally>> {
        self.rule(rule.name.as_bytes()).map(|number| self.tallies[number as usize].clone())
    }
}

fn tallies(compiled: &Compiled, before: impl Fn(&Rule) -> Option<Arc<Tally>>) -> Box<[Arc<Tally>]> {
    let shards = if compiled.rules().len() > MANY_RULES { 1 } else { SHARDS };
    let tally = |rule: &Rule| before(rule).unwrap_or_else(|| Arc::new(Tally::new(&rule.name, shards)));
    compiled.rules().map(tally).collect()
}

impl<C> InForce<C> {
    /// The rules.
    #[must_use]
    pub fn compiled(&self) -> &Compiled {
        &self.compiled
    }

    /// The place in the file of the rule with this name.
    #[must_use]
    pub fn rule(&self, name: &[u8]) -> Option<u32> {
        let found = self.numbers.binary_search_by(|(other, _)| (**other).cmp(name)).ok()?;
        Some(self.numbers[found].1)
    }

    /// The name of the rule of a limit, such as the one that was binding.
    #[must_use]
    pub fn name(&self, limit: RuleId) -> &str {
        let numbered = self.limit(limit);
        let rule = numbered.and_then(|numbered| self.compiled.rule(numbered.rule));
        rule.map_or("", |rule| &rule.name)
    }

    /// A limit, by its number: its own name, its rule, what may pass.
    #[must_use]
    pub fn limit(&self, limit: RuleId) -> Option<&Numbered> {
        self.compiled.limits().get(usize::from(limit.0))
    }

    /// What a rule that only watches has seen; `None` if it refuses.
    #[must_use]
    pub fn watched(&self, rule: u32) -> Option<&Watched> {
        self.watched.get(rule as usize)?.as_deref()
    }

    /// How Redis is doing, if the states are there.
    #[must_use]
    pub fn redis(&self) -> Option<Health> {
        self.gate().map(RedisGate::health)
    }

    /// The gate to Redis, if the states are there.
    pub(super) fn gate(&self) -> Option<&RedisGate> {
        match &self.store {
            Store::Redis(gate) => Some(gate.strict()),
            Store::Nothing | Store::Memory(_) => None,
        }
    }

    /// What leases have done, if the states are in Redis.
    #[must_use]
    pub fn leases(&self) -> Option<LeaseStats> {
        match &self.store {
            Store::Redis(gate) => Some(gate.stats()),
            Store::Nothing | Store::Memory(_) => None,
        }
    }

    /// How many of so many requests may be under way at once.
    pub(crate) fn window(&self, wanted: usize) -> Window {
        self.budget.window(wanted)
    }

    /// Gives back what was leased from Redis and is unspent. Whoever asks afterwards leases anew.
    pub(super) async fn give_back(&self) {
        if let Store::Redis(gate) = &self.store {
            gate.return_grants().await;
        }
    }

    pub(super) fn lease(&self, limit: RuleId) -> Option<Duration> {
        *self.leases.get(usize::from(limit.0))?
    }

    /// The key of a rule that is made of these parts, one for each that the rule's key has.
    #[must_use]
    pub fn key<'k>(&self, rule: u32, mut parts: impl Iterator<Item = &'k [u8]>) -> Vec<u8> {
        let mut key = Vec::new();
        for part in self.compiled.rule(rule as usize).into_iter().flat_map(|rule| &rule.key) {
            part.write_value(parts.next(), &mut key);
        }
        key
    }

    /// What became of requests, by rule.
    pub(crate) fn tallies(&self) -> &[Arc<Tally>] {
        &self.tallies
    }

    /// Counts what became of a request for these parts.
    #[inline]
    pub(super) fn count<'p>(&self, decided: &Decided, parts: impl Iterator<Item = Part<'p>>) {
        match decided.verdict {
            Verdict::Limited(decision) => self.count_limited(&decision, parts),
            Verdict::Refused { rule, .. } => {
                if let Some(tally) = self.tallies.get(rule as usize) {
                    tally.denied();
                }
            }
            other => self.meter.no_rule(&other),
        }
    }

    fn count_limited<'p>(&self, decision: &Decision, mut parts: impl Iterator<Item = Part<'p>>) {
        let tally = self.limit(decision.rule).and_then(|numbered| self.tallies.get(numbered.rule));
        let Some(tally) = tally else { return };
        let counted = Counted::of(decision.outcome);
        tally.limited(decision.source, counted);
        if counted == Counted::Refused
            && let Some(part) = parts.find(|part| part.rule == decision.rule)
        {
            self.meter.refused.saw(tally, part.key.bytes());
        }
    }

    pub(super) fn saw(&self, rule: u32, passes: bool) {
        if let Some(watched) = self.watched(rule) {
            let seen = if passes { &watched.passed } else { &watched.refused };
            seen.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<C: Clock + Send + Sync + 'static> InForce<C> {
    /// A question to these rules, with nothing in it yet.
    pub fn ask(self: &Arc<Self>) -> Question<'_, C> {
        Question::new(self)
    }

    /// How many keys a limit has in memory, and what became of others. `None` if it is about places, or not in memory.
    #[must_use]
    pub fn stats(&self, limit: RuleId) -> Option<Stats> {
        match &self.store {
            Store::Memory(policy) => policy.stats_by_id(limit),
            Store::Nothing | Store::Redis(_) => None,
        }
    }
}

fn lease(numbered: &Numbered) -> Option<Duration> {
    match numbered.limit {
        Limit::Rate(_) => None,
        Limit::AtOnce { lease, .. } => Some(lease),
    }
}

// === impl Watched ===

impl Watched {
    /// How many requests it would have let pass.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// How many requests it would have refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

// === impl Store ===

impl<C: Clock + Clone> Store<C> {
    fn first(
        compiled: &Compiled,
        store: &StoreConfig,
        clock: &C,
        before: Option<&Leased>,
    ) -> Result<Self, InvalidRules> {
        match store {
            StoreConfig::Memory { .. } if compiled.limits().is_empty() => Ok(Store::Nothing),
            StoreConfig::Memory { max_keys } => {
                let policy = builder(compiled, *max_keys).clock(clock.clone()).build();
                policy.map(Store::Memory).map_err(InvalidRules::Policy)
            }
            // Without rules, too: there are limits that come with the call.
            StoreConfig::Redis(config) => redis::gate(compiled, config, before).map(Store::Redis),
        }
    }

    fn reload(&self, compiled: &Compiled, store: &StoreConfig, clock: &C) -> Result<Self, InvalidRules> {
        match (self, store) {
            (Store::Memory(policy), StoreConfig::Memory { max_keys }) if !compiled.limits().is_empty() => {
                let next = policy.reload(builder(compiled, *max_keys));
                next.map(Store::Memory).map_err(InvalidRules::Policy)
            }
            (Store::Redis(old), _) => {
                let next = Store::first(compiled, store, clock, Some(old))?;
                if let Store::Redis(gate) = &next {
                    redis::wait_for(gate, old);
                }
                Ok(next)
            }
            _ => Store::first(compiled, store, clock, None),
        }
    }
}

fn builder(compiled: &Compiled, max_keys: usize) -> PolicyBuilder {
    let builder = Policy::builder().max_keys(max_keys);
    compiled.limits().iter().fold(builder, |builder, numbered| match numbered.limit {
        Limit::Rate(rate) => builder.rule(name_of_states(&numbered.identity), rate),
        Limit::AtOnce { limit, .. } => builder.concurrency(name_of_states(&numbered.identity), limit),
    })
}

/// By this the next set finds the states. Names of descriptors are escaped in it, so no two limits are called the same.
fn name_of_states(identity: &Identity) -> String {
    let Identity { name, key, algorithm } = identity;
    format!("{algorithm}\n{key}\n{name}")
}

impl<C> fmt::Debug for InForce<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.compiled.rules().map(|rule| &rule.name).collect();
        f.debug_struct("InForce").field("rules", &names).finish_non_exhaustive()
    }
}
