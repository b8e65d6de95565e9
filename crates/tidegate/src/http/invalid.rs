//! # Errors of building limits
//!
//! Every configuration error is found when limits are built, not by the first request. Its message names the place and
//! the remedy.

use std::error::Error;
use std::fmt;

use super::key::InvalidKey;
use super::limits::MOST_RULES;

/// Why limits cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidLimits {
    /// No rule was added.
    NoRules,
    /// More rules were added than one service can have.
    TooManyRules {
        /// The number of rules.
        rules: usize,
    },
    /// The gate has no rule of this name.
    UnknownRule {
        /// The name.
        rule: String,
    },
    /// A rule was added twice.
    SameRule {
        /// The name.
        rule: String,
    },
    /// The name of a rule cannot be sent to clients: it is empty or not printable ASCII.
    NotAName {
        /// The name.
        rule: String,
    },
    /// A rule has an invalid key.
    Key {
        /// The name of the rule.
        rule: String,
        /// What is wrong with the key.
        why: InvalidKey,
    },
    /// A setting of a rule was given before the first rule.
    BeforeAnyRule {
        /// The name of the setting.
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
