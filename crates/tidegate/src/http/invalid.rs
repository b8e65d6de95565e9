//! # Why there are no limits
//!
//! Whatever can be wrong with limits is found when they are built, with the place and the remedy, and not by the first
//! request.

use std::error::Error;
use std::fmt;

use super::key::InvalidKey;
use super::limits::MOST_RULES;

/// Why limits cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidLimits {
    /// There are no rules.
    NoRules,
    /// There are too many for one service.
    TooManyRules {
        /// How many there are.
        rules: usize,
    },
    /// The gate has no such rule.
    UnknownRule {
        /// The name.
        rule: String,
    },
    /// A rule is named twice.
    SameRule {
        /// The name it is named by.
        rule: String,
    },
    /// Clients cannot be told of a rule by this name.
    NotAName {
        /// The name.
        rule: String,
    },
    /// A rule has a key that cannot be one.
    Key {
        /// The rule.
        rule: String,
        /// What is wrong.
        why: InvalidKey,
    },
    /// Something was said of a rule before there was one.
    BeforeAnyRule {
        /// What was said.
        said: &'static str,
    },
}

impl fmt::Display for InvalidLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidLimits::NoRules => f.write_str("no rule is named, so nothing would be limited; add one"),
            InvalidLimits::TooManyRules { rules } => {
                write!(f, "{rules} rules are named, and {MOST_RULES} may be; use several layers")
            }
            InvalidLimits::UnknownRule { rule } => {
                write!(f, "the gate has no rule {rule:?}; name one that it was built with")
            }
            InvalidLimits::SameRule { rule } => {
                write!(
                    f,
                    "{rule:?} is a rule that was named before; name each once, and join keys in a tuple"
                )
            }
            InvalidLimits::NotAName { rule } => {
                write!(f, "clients cannot be told of a rule {rule:?}; name it in printable ASCII")
            }
            InvalidLimits::Key { rule, why } => write!(f, "rule {rule:?}: {why}"),
            InvalidLimits::BeforeAnyRule { said } => {
                write!(f, "`{said}` goes for the rule before it, and there is none; call `rule` first")
            }
        }
    }
}

impl Error for InvalidLimits {}
