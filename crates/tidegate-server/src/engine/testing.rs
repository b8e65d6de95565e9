//! # An engine that is put to the test
//!
//! Whoever wants to know whether a service decides as it should needs two things that a service never gives away: the
//! time, and the rules. An engine that is made [for testing](Engine::for_testing) gives away both, and decides like
//! every other: the same states, the same way from a question to its answer.
//!
//! It is another engine from the start, with a clock that can be set. No engine becomes one, so there is nothing in the
//! others that somebody could turn on.

use std::sync::{Arc, PoisonError};

use tidegate::clock::{Clock, Micros, SettableClock};

use super::in_force::InForce;
use super::rules::InvalidRules;
use super::{Engine, Grants};
use crate::config::Store as StoreConfig;
use crate::rules::Compiled;

/// What is set in an engine that is put to the test.
#[derive(Debug)]
#[non_exhaustive]
pub enum Case {
    /// The time, also back.
    At(Micros),
    /// The rules of another story: nothing has been used.
    Rules(Box<Compiled>),
    /// Other rules in the middle of a story, as [`Engine::replace`] puts them in force: what was used stays used.
    Change(Box<Compiled>),
}

/// How a case is set in an engine whose clock is a `C`.
pub(super) type Set<C> = fn(&Engine<C>, Case) -> Result<(), InvalidRules>;

impl Engine<SettableClock> {
    /// An engine whose time and rules are [set](Engine::set) by those who test it. Its clock begins at 0.
    ///
    /// ```
    /// use tidegate::clock::Micros;
    /// use tidegate::Quota;
    /// use tidegate_server::engine::{Case, Engine};
    /// use tidegate_server::rules::{Compiled, RuleSet};
    ///
    /// let engine = Engine::for_testing(Compiled::new(RuleSet::default()), &Default::default())?;
    /// assert!(engine.set(Case::At(Micros::new(1_000_000))).is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`of`](Engine::of).
    pub fn for_testing(compiled: Compiled, store: &StoreConfig) -> Result<Self, InvalidRules> {
        let engine = Engine::start(compiled, store, SettableClock::new())?;
        Ok(Engine { set: Some(set), ..engine })
    }
}

impl<C> Engine<C> {
    /// Sets a case. `None` if the engine was not made for that, and then nothing has changed; nor has it where the
    /// rules are none.
    pub fn set(&self, case: Case) -> Option<Result<(), InvalidRules>> {
        self.set.map(|set| set(self, case))
    }

    /// Whether the time and the rules are set by those who test it.
    pub fn is_for_testing(&self) -> bool {
        self.set.is_some()
    }
}

fn set(engine: &Engine<SettableClock>, case: Case) -> Result<(), InvalidRules> {
    match case {
        Case::At(instant) => engine.clock.set(instant),
        Case::Rules(compiled) => engine.begin_anew(*compiled)?,
        Case::Change(compiled) => drop(engine.replace(*compiled)?),
    }
    Ok(())
}

impl<C: Clock + Clone> Engine<C> {
    /// Puts rules in force that nobody has used anything of; who held places holds them no more.
    fn begin_anew(&self, compiled: Compiled) -> Result<(), InvalidRules> {
        let _one_at_a_time = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let (places, blocks, meter) = (self.places.clone(), self.blocks.clone(), self.meter.clone());
        let beside = (places, blocks, meter, Arc::<Grants>::default(), self.budget.clone());
        let first = InForce::first(compiled, &self.store, beside, self.clock.clone())?;
        self.force.store(Arc::new(first));
        self.places.free_all();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate::Quota;

    use super::*;
    use crate::engine::Rules;

    fn compiled(rules: Rules) -> Box<Compiled> {
        Box::new(rules.compiled().expect("rules").0)
    }

    fn left(engine: &Engine<SettableClock>, cost: u32) -> Option<u64> {
        let rules = engine.in_force();
        let asked = rules.ask().rule(0, [b"alice".as_slice()].into_iter(), Some(cost)).check();
        asked.now()?.ok()?.decision().map(|decision| decision.remaining())
    }

    fn set(engine: &Engine<SettableClock>, case: Case) {
        engine.set(case).expect("it is for testing").expect("rules");
    }

    #[test]
    fn time_and_rules_are_set() {
        let rules = |limit| compiled(Rules::new().rate("user", Quota::per_second(limit)));
        let engine = Engine::for_testing(*rules(5), &StoreConfig::default()).expect("an engine");
        assert_eq!(left(&engine, 5), Some(0));
        set(&engine, Case::At(Micros::new(400_000)));
        assert_eq!(left(&engine, 0), Some(2));
        set(&engine, Case::Change(rules(10)));
        assert_eq!(left(&engine, 0), Some(7), "what was used stays used");
        set(&engine, Case::At(Micros::ZERO));
        assert_eq!(left(&engine, 0), Some(3), "three are owed until 700 ms, so seven at 0");
        set(&engine, Case::Rules(rules(10)));
        assert_eq!(left(&engine, 0), Some(10), "another story");
    }

    #[test]
    fn places_are_free_in_another_story() {
        let places = || compiled(Rules::new().places("work", 1, Duration::from_secs(30)));
        let engine = Engine::for_testing(*places(), &StoreConfig::default()).expect("an engine");
        let acquire = || {
            let rules = engine.in_force();
            let asked = rules.ask().rule(0, [b"alice".as_slice()].into_iter(), None).acquire();
            asked.now().expect("in memory").expect("a place").place.is_some()
        };
        assert!(acquire() && !acquire());
        set(&engine, Case::Rules(places()));
        assert_eq!(engine.places(), 0);
        assert!(acquire());
    }

    #[test]
    fn nobody_sets_anything_in_another_engine() {
        let engine = Engine::with_clock(Rules::new(), SettableClock::new()).expect("no rules");
        assert!(engine.set(Case::At(Micros::new(5))).is_none() && !engine.is_for_testing());
        assert_eq!(engine.clock.now(), Micros::ZERO);
    }
}
