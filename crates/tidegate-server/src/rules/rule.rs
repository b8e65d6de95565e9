//! # A rule, as it is meant
//!
//! What a file says of one limit once every text in it is understood. Whoever has no file can write it down as it is.

use std::fmt;
use std::time::Duration;

use tidegate_core::Rule as Rate;
use tidegate_redis::Lease;

use super::condition::Condition;
use super::key::KeyPart;

/// All rules, and who is exempt from all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// Who passes without being counted: whoever meets all conditions of one of these.
    pub allow: Vec<Vec<Condition>>,
    /// Who is refused. Stronger than `allow`.
    pub deny: Vec<Vec<Condition>>,
    /// The rules.
    pub rules: Vec<Rule>,
}

/// One limit on one key, and when it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it is called; no two are called the same.
    pub name: String,
    /// The domain it is for; `None` is every domain.
    pub domain: Option<String>,
    /// It applies if all of these hold.
    pub conditions: Vec<Condition>,
    /// Whose limit it is. No parts: everybody's.
    pub key: Vec<KeyPart>,
    /// What becomes of a request without one of the parts.
    pub missing: Missing,
    /// What may pass, by each of these.
    pub limits: Vec<Limit>,
    /// What a request takes.
    pub cost: Cost,
    /// Other limits for some; the first that fits counts.
    pub overrides: Vec<Override>,
    /// Who is not counted by this rule.
    pub allow: Vec<Vec<Condition>>,
    /// Who is refused by this rule. Stronger than `allow`.
    pub deny: Vec<Vec<Condition>>,
    /// Whether it only watches: it is decided and counted, and refuses nobody.
    pub shadow: bool,
    /// What it does while the store does not answer.
    pub when_lost: OnOutage,
    /// How its limits are leased from a Redis, if they are.
    pub lease: Option<Lease>,
}

/// Other limits for some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// What it is called within its rule.
    pub label: String,
    /// It applies if all of these hold.
    pub conditions: Vec<Condition>,
    /// What may pass instead.
    pub limits: Vec<Limit>,
}

/// So much may pass, or so many may be at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So much, by any algorithm.
    Rate(Rate),
    /// So many at once.
    AtOnce {
        /// How many.
        limit: u32,
        /// How long a place is kept for somebody who is not heard of again.
        lease: Duration,
    },
}

/// What a request takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// What the caller says, 1 if nothing.
    Asked,
    /// Always the same.
    Fixed(u32),
    /// The number that a descriptor holds.
    From {
        /// The name of the descriptor.
        name: Box<str>,
        /// One unit for so many of them, begun ones counted.
        per: u32,
        /// What it is if there is no such number; `None` refuses the request.
        missing: Option<u32>,
    },
}

/// What becomes of a request that lacks a part of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// All requests that lack it share one key.
    #[default]
    Shared,
    /// The rule does not apply to it.
    Skip,
    /// It is refused.
    Reject,
}

/// What a rule does while the store does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnOutage {
    /// Everything passes, uncounted.
    Open,
    /// Everything is refused.
    Closed,
    /// What passes is this node's share of the limit.
    #[default]
    Local,
}

impl Rule {
    /// A rule for everybody, with nothing else said.
    pub fn new(name: impl Into<String>, limits: impl IntoIterator<Item = Limit>) -> Self {
        Rule {
            name: name.into(),
            domain: None,
            conditions: Vec::new(),
            key: Vec::new(),
            missing: Missing::default(),
            limits: limits.into_iter().collect(),
            cost: Cost::Asked,
            overrides: Vec::new(),
            allow: Vec::new(),
            deny: Vec::new(),
            shadow: false,
            when_lost: OnOutage::default(),
            lease: None,
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cost::Asked => f.write_str("what the caller says"),
            Cost::Fixed(cost) => cost.fmt(f),
            Cost::From { name, per, missing } => {
                write!(f, "from {name}, per {per}, ")?;
                match missing {
                    Some(missing) => write!(f, "{missing} if missing"),
                    None => f.write_str("refused if missing"),
                }
            }
        }
    }
}
