//! An engine with the rules of a file, on a clock that the test moves.

use std::time::Duration;

use tidegate::ManualClock;
use tidegate_server::config::{Config, Format, Store};
use tidegate_server::engine::{Acquired, Decided, Engine, Fault, InForce, Question, Verdict};
use tidegate_server::rules::{Call, Compiled};

pub(crate) struct Asked {
    pub(crate) engine: Engine<ManualClock>,
    pub(crate) clock: ManualClock,
}

pub(crate) fn compiled(rules: &str) -> Compiled {
    let loaded = Config::load("test.yaml", rules.as_bytes(), Format::Yaml, &|_| None);
    let config = loaded.config.unwrap_or_else(|| {
        panic!("{}", loaded.faults.iter().map(|fault| fault.message.as_str()).collect::<Vec<_>>().join("; "))
    });
    Compiled::new(config.rules)
}

impl Asked {
    pub(crate) fn new(rules: &str) -> Self {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(1_000_000));
        let engine = Engine::start(compiled(rules), &Store::default(), clock.clone()).expect("valid rules");
        Asked { engine, clock }
    }

    pub(crate) fn put<T>(
        &self,
        call: &Call<'_>,
        verb: impl FnOnce(Question<'_, ManualClock>) -> tidegate_server::engine::Answer<Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let rules = self.engine.in_force();
        verb(rules.ask().call(call)).now().expect("in memory everything is ready")
    }

    pub(crate) fn check(&self, descriptors: &[(&str, &str)]) -> Decided {
        self.put(&Call::of(descriptors), |question| question.check()).expect("a valid request")
    }

    pub(crate) fn passes(&self, descriptors: &[(&str, &str)]) -> bool {
        self.check(descriptors).is_allowed()
    }

    pub(crate) fn acquire(&self, descriptors: &[(&str, &str)]) -> Acquired {
        self.put(&Call::of(descriptors), |question| question.acquire()).expect("a valid request")
    }

    /// What is left for a request of this rule, and of no other.
    pub(crate) fn left(&self, rule: &str, key: &str) -> u64 {
        let rules = self.engine.in_force();
        let number = rules.rule(rule.as_bytes()).expect("a rule of this name");
        let question = rules.ask().rule(number, [key.as_bytes()].into_iter(), Some(0));
        let seen = question.peek().now().expect("in memory").expect("a valid request");
        seen.decision().map_or(u64::MAX, |decision| decision.remaining())
    }
}

/// Who decided, by name.
pub(crate) fn binding<'a>(rules: &'a InForce<ManualClock>, decided: &Decided) -> &'a str {
    match decided.verdict {
        Verdict::Limited(decision) => rules.name(decision.rule),
        _ => "",
    }
}
