//! # Subjects under test
//!
//! The same vectors must hold for the bare algorithms and for everything built on them. A [`Subject`] is
//! one key of such an implementation, called with an instant and a cost. To test another one, implement the
//! trait and add a line to [`SUBJECTS`].

use tidegate::algorithm::Algorithm;
use tidegate::clock::{Clock, Micros, SettableClock};
use tidegate::gate::RuleId;
use tidegate::{Decision, KeyedLimiter, Limiter, ManualClock, Rule};

use super::format::Case;

/// One key under some rules. Each operation happens at an instant that the vector file gives.
pub(crate) trait Subject {
    fn check(&mut self, at: Micros, cost: u32) -> Answer;
    /// Returns what `check` would answer; changes nothing.
    fn peek(&mut self, at: Micros, cost: u32) -> Answer;
    fn force(&mut self, at: Micros, cost: u32) -> Answer;
    /// Returns the state afterwards, as a check of cost 0 does.
    fn refund(&mut self, at: Micros, cost: u32) -> Answer;
    /// Returns the state afterwards, as a check of cost 0 does.
    fn reset(&mut self, at: Micros) -> Answer;
    fn take(&mut self, at: Micros, most: u32) -> Answer;
    /// Replaces the rules one for one; usage carries over.
    fn change(&mut self, at: Micros, rules: &[Rule]);
}

/// The answer of a subject to one request.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The binding decision.
    pub(crate) decision: Decision,
    /// The amount that `take` took.
    pub(crate) took: Option<u32>,
    /// The state of each rule after the request. Empty if the subject cannot report it; then `[…]` is not
    /// checked.
    pub(crate) each: Vec<Decision>,
}

/// How a subject is created, and which cases it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Whether the subject can run the case. A subject with a monotonic clock skips the cases that step
    /// back: see [`Case::steps_back`].
    pub(crate) runs: fn(&Case) -> bool,
    /// Creates a subject with a new key.
    pub(crate) make: fn(&[Rule]) -> Box<dyn Subject>,
}

/// All subjects that are tested.
pub(crate) const SUBJECTS: &[Kind] = &[
    Kind { name: "rule", runs: is_single, make: |rules| Core::boxed(one(rules)) },
    Kind { name: "policy", runs: has_rules, make: |rules| Core::boxed(all(rules)) },
    Kind { name: "limiter", runs: is_single, make: |rules| Memory::boxed(one(rules), SettableClock::new()) },
    Kind {
        name: "limiter, policy",
        runs: has_rules,
        make: |rules| Memory::boxed(all(rules), SettableClock::new()),
    },
    Kind {
        name: "limiter, steady",
        runs: is_single_steady,
        make: |rules| Memory::boxed(one(rules), ManualClock::new()),
    },
    Kind {
        name: "limiter, policy, steady",
        runs: is_steady,
        make: |rules| Memory::boxed(all(rules), ManualClock::new()),
    },
    Kind { name: "keyed", runs: is_single, make: |rules| Keyed::boxed(one(rules), SettableClock::new()) },
    Kind {
        name: "keyed, policy",
        runs: has_rules,
        make: |rules| Keyed::boxed(all(rules), SettableClock::new()),
    },
    Kind {
        name: "keyed, steady",
        runs: is_single_steady,
        make: |rules| Keyed::boxed(one(rules), ManualClock::new()),
    },
    Kind {
        name: "keyed, policy, steady",
        runs: is_steady,
        make: |rules| Keyed::boxed(all(rules), ManualClock::new()),
    },
];

fn is_single(case: &Case) -> bool {
    case.rules.len() == 1
}

/// Cases about a pacer have no rules.
fn has_rules(case: &Case) -> bool {
    !case.rules.is_empty()
}

fn is_steady(case: &Case) -> bool {
    has_rules(case) && !case.steps_back()
}

fn is_single_steady(case: &Case) -> bool {
    is_single(case) && is_steady(case)
}

fn one(rules: &[Rule]) -> Rule {
    rules[0]
}

fn all(rules: &[Rule]) -> Box<[Rule]> {
    rules.into()
}

/// The bare algorithm and its state words: a single rule, or a policy, which has another code path for
/// decisions.
#[derive(Debug)]
struct Core<A> {
    rules: A,
    words: Vec<u64>,
}

impl<A: FromRules> Core<A> {
    fn boxed(rules: A) -> Box<dyn Subject> {
        let words = vec![0; rules.words()];
        Box::new(Core { rules, words })
    }

    fn answer(&self, at: Micros, decision: Decision) -> Answer {
        Answer { decision, took: None, each: each(&self.rules, &self.words, at) }
    }

    fn current_state(&self, at: Micros) -> Answer {
        self.answer(at, self.rules.peek(self.words.as_slice(), at, 0))
    }
}

impl<A: FromRules> Subject for Core<A> {
    fn check(&mut self, at: Micros, cost: u32) -> Answer {
        let decision = self.rules.decide(self.words.as_mut_slice(), at, cost);
        self.answer(at, decision)
    }

    fn peek(&mut self, at: Micros, cost: u32) -> Answer {
        let decision = self.rules.peek(self.words.as_slice(), at, cost);
        // The rules are reported as the check would leave them, so the check runs on a copy.
        let mut copy = self.words.clone();
        let _ = self.rules.decide(copy.as_mut_slice(), at, cost);
        Answer { decision, took: None, each: each(&self.rules, &copy, at) }
    }

    fn force(&mut self, at: Micros, cost: u32) -> Answer {
        let decision = self.rules.force(self.words.as_mut_slice(), at, cost);
        self.answer(at, decision)
    }

    fn refund(&mut self, at: Micros, cost: u32) -> Answer {
        self.rules.refund(self.words.as_mut_slice(), at, cost);
        self.current_state(at)
    }

    fn reset(&mut self, at: Micros) -> Answer {
        self.rules.reset(self.words.as_mut_slice());
        self.current_state(at)
    }

    fn take(&mut self, at: Micros, most: u32) -> Answer {
        let taken = self.rules.take(self.words.as_mut_slice(), at, most);
        Answer { took: Some(taken.amount), ..self.answer(at, taken.decision) }
    }

    fn change(&mut self, at: Micros, rules: &[Rule]) {
        let new = A::from_rules(rules);
        let mut words = vec![0; new.words()];
        new.migrate_from(&self.rules, self.words.as_slice(), words.as_mut_slice(), at);
        (self.rules, self.words) = (new, words);
    }
}

fn each<A: Algorithm>(rules: &A, words: &[u64], at: Micros) -> Vec<Decision> {
    let mut each = Vec::new();
    rules.explain(words, at, 0, RuleId(0), &mut |decision| each.push(decision));
    each
}

/// A clock that the vectors set.
trait SetClock: Clock + Clone + 'static {
    fn move_to(&self, at: Micros);
}

impl SetClock for ManualClock {
    fn move_to(&self, at: Micros) {
        self.advance_to(at);
    }
}

impl SetClock for SettableClock {
    fn move_to(&self, at: Micros) {
        self.set(at);
    }
}

/// A single rule or a policy, created from a slice of rules.
trait FromRules: Algorithm + Clone + 'static {
    fn from_rules(rules: &[Rule]) -> Self;
}

impl FromRules for Rule {
    fn from_rules(rules: &[Rule]) -> Self {
        one(rules)
    }
}

impl FromRules for Box<[Rule]> {
    fn from_rules(rules: &[Rule]) -> Self {
        all(rules)
    }
}

/// The limiter with one state.
struct Memory<A, C> {
    limiter: Limiter<A, C>,
    clock: C,
}

impl<A: FromRules, C: SetClock> Memory<A, C> {
    fn boxed(rules: A, clock: C) -> Box<dyn Subject> {
        Box::new(Memory { limiter: Limiter::builder_with(rules).clock(clock.clone()).build(), clock })
    }

    fn answer(&self, decision: Decision) -> Answer {
        Answer { decision, took: None, each: self.limiter.request().cost(0).check_each().rules }
    }
}

/// The limiter with many states, of which the vectors use one.
struct Keyed<A, C> {
    limiter: KeyedLimiter<String, A, C>,
    clock: C,
}

const KEY: &str = "the key under test";

impl<A: FromRules, C: SetClock> Keyed<A, C> {
    fn boxed(rules: A, clock: C) -> Box<dyn Subject> {
        let limiter = KeyedLimiter::builder_with(rules).max_keys(8).clock(clock.clone()).build();
        Box::new(Keyed { limiter, clock })
    }

    fn answer(&self, decision: Decision) -> Answer {
        Answer { decision, took: None, each: self.limiter.request(KEY).cost(0).check_each().rules }
    }
}

/// The operations of both limiters differ only in the key.
macro_rules! limiter_subject {
    ($limiter:ident $(, $key:expr)?) => {
        impl<A: FromRules, C: SetClock> Subject for $limiter<A, C> {
            fn check(&mut self, at: Micros, cost: u32) -> Answer {
                self.clock.move_to(at);
                self.answer(self.limiter.request($($key)?).cost(cost).check())
            }

            fn peek(&mut self, at: Micros, cost: u32) -> Answer {
                self.clock.move_to(at);
                let decision = self.limiter.request($($key)?).cost(cost).peek();
                Answer { decision, took: None, each: Vec::new() }
            }

            fn force(&mut self, at: Micros, cost: u32) -> Answer {
                self.clock.move_to(at);
                self.answer(self.limiter.request($($key)?).cost(cost).force())
            }

            fn refund(&mut self, at: Micros, cost: u32) -> Answer {
                self.clock.move_to(at);
                self.limiter.request($($key)?).cost(cost).refund();
                self.answer(self.limiter.request($($key)?).cost(0).peek())
            }

            fn reset(&mut self, at: Micros) -> Answer {
                self.clock.move_to(at);
                self.limiter.request($($key)?).reset();
                self.answer(self.limiter.request($($key)?).cost(0).peek())
            }

            fn take(&mut self, at: Micros, most: u32) -> Answer {
                self.clock.move_to(at);
                let taken = self.limiter.request($($key)?).cost(most).take();
                Answer { took: Some(taken.amount), ..self.answer(taken.decision) }
            }

            fn change(&mut self, at: Micros, rules: &[Rule]) {
                self.clock.move_to(at);
                self.limiter.change(A::from_rules(rules));
            }
        }
    };
}

limiter_subject!(Memory);
limiter_subject!(Keyed, KEY);
