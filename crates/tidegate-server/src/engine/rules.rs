//! # Rules without a file
//!
//! For those who have no file: embedders, and tests.

use std::fmt;
use std::time::Duration;

use tidegate::{InvalidPolicy, Rule};

use crate::config::Store;
use crate::rules::{Compiled, KeyPart, Limit, RuleSet};

/// Rules on their way to an [`Engine`](super::Engine), numbered in the order in which they were added.
#[derive(Clone, Debug, Default)]
#[must_use = "rules limit nothing until an engine has them"]
pub struct Rules {
    pub(super) rules: Vec<(String, Kind)>,
    pub(super) max_keys: Option<usize>,
}

/// What a rule counts.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// What passes.
    Rate(Rule),
    /// Who is at work, each for so long unless it is renewed.
    Places { limit: u32, lease: Duration },
}

/// Why rules are none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidRules {
    /// Two of one name, or too many.
    Policy(InvalidPolicy),
    /// A lease of no time, or of more than a year.
    Lease {
        /// The rule.
        rule: String,
        /// Its lease.
        lease: Duration,
    },
    /// A name that cannot be written in a request.
    Name {
        /// The rule.
        rule: String,
    },
    /// No gate to Redis can be made, for these reasons.
    Redis(String),
}

/// Longer than anybody is at work.
const LONGEST_LEASE: Duration = Duration::from_secs(366 * 24 * 60 * 60);

impl Rules {
    /// None yet.
    pub fn new() -> Self {
        Rules::default()
    }

    /// Adds a limit on what passes: a quota, or any algorithm.
    pub fn rate(self, name: impl Into<String>, rule: impl Into<Rule>) -> Self {
        self.with(name, Kind::Rate(rule.into()))
    }

    /// Adds a limit on how many are at work at once. A place that is neither renewed nor given back within `lease` is free
    /// again: whoever held it has vanished.
    pub fn places(self, name: impl Into<String>, limit: u32, lease: Duration) -> Self {
        self.with(name, Kind::Places { limit, lease })
    }

    /// At most so many keys for each rule, and for limits that come with the call; four million unless said otherwise.
    pub fn max_keys(self, max_keys: usize) -> Self {
        Rules { max_keys: Some(max_keys), ..self }
    }

    fn with(mut self, name: impl Into<String>, kind: Kind) -> Self {
        self.rules.push((name.into(), kind));
        self
    }

    /// As if they had been read from a file, with keys that are taken as they come.
    pub(super) fn compiled(self) -> Result<(Compiled, Store), InvalidRules> {
        self.validate()?;
        let store = self.max_keys.map_or(Store::default(), |max_keys| Store::Memory { max_keys });
        let rules = self.rules.into_iter().map(|(name, kind)| {
            let limit = match kind {
                Kind::Rate(rule) => Limit::Rate(rule),
                Kind::Places { limit, lease } => Limit::AtOnce { limit, lease },
            };
            let key = vec![KeyPart::Value("key".into())];
            crate::rules::Rule { key, ..crate::rules::Rule::new(name, [limit]) }
        });
        let set = RuleSet { rules: rules.collect(), ..RuleSet::default() };
        Ok((Compiled::new(set), store))
    }

    fn validate(&self) -> Result<(), InvalidRules> {
        self.rules.iter().try_for_each(|(name, kind)| {
            let rule = || name.clone();
            if name.is_empty() || name.chars().any(char::is_control) {
                return Err(InvalidRules::Name { rule: rule() });
            }
            match kind {
                Kind::Places { lease, .. } if lease.as_micros() == 0 || *lease > LONGEST_LEASE => {
                    Err(InvalidRules::Lease { rule: rule(), lease: *lease })
                }
                _ => Ok(()),
            }
        })
    }
}

// === impl InvalidRules ===

impl fmt::Display for InvalidRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidRules::Policy(invalid) => invalid.fmt(f),
            InvalidRules::Redis(reasons) => f.write_str(reasons),
            InvalidRules::Lease { rule, lease } => {
                write!(f, "rule {rule:?} has a lease of {lease:?}; use one from a microsecond to a year")
            }
            InvalidRules::Name { rule } => {
                write!(f, "a rule is named {rule:?}; use at least one letter, and no control characters")
            }
        }
    }
}

impl std::error::Error for InvalidRules {}
