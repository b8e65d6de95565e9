//! # Errors of building limits
//!
//! Configuration errors are reported when limits are built, not by the first request. Each message names the rule and
//! the remedy.

use std::error::Error;
use std::fmt;

use super::key::InvalidKey;
use super::limits::MAX_RULES;

/// Why limits cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidLimits {
    /// No rule was added.
    NoRules,
    /// More rules were added than one `Limits` can have.
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
    DuplicateRule {
        /// The name.
        rule: String,
    },
    /// The name of a rule cannot be sent in a header: it is empty or not printable ASCII.
    InvalidName {
        /// The name.
        rule: String,
    },
    /// A rule has an invalid key.
    InvalidKey {
        /// The name of the rule.
        rule: String,
        /// The error of the key.
        error: InvalidKey,
    },
    /// A setting of a rule was given before the first rule.
    SettingBeforeRule {
        /// The name of the setting.
        setting: &'static str,
    },
}

impl fmt::Display for InvalidLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidLimits::NoRules => {
                f.write_str("no rule was added, so no request would be limited; call `rule` at least once")
            }
            InvalidLimits::TooManyRules { rules } => {
                write!(f, "{rules} rules exceed the maximum of {MAX_RULES}; split them over several layers")
            }
            InvalidLimits::UnknownRule { rule } => {
                write!(
                    f,
                    "the gate has no rule {rule:?}; use the name of a rule that the gate was built with"
                )
            }
            InvalidLimits::DuplicateRule { rule } => {
                write!(f, "rule {rule:?} was added twice; add each rule once, and combine keys in a tuple")
            }
            InvalidLimits::InvalidName { rule } => {
                write!(f, "rule name {rule:?} cannot be sent in a header; use printable ASCII")
            }
            InvalidLimits::InvalidKey { rule, error } => write!(f, "rule {rule:?}: {error}"),
            InvalidLimits::SettingBeforeRule { setting } => {
                write!(f, "`{setting}` applies to the rule before it, and there is none; call `rule` first")
            }
        }
    }
}

impl Error for InvalidLimits {}
