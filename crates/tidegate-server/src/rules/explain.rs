//! # Why, and why not
//!
//! Whoever wonders why a request was limited, or why it was not, asks every rule and gets a sentence from each. It
//! takes its time and allocates; it is for people.

use std::fmt;

use super::compiled::{Compiled, Ready};
use super::find::{Call, Listed, Refusal, Verdict};

/// What all rules say of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// What the lists of the whole file say; with it, no rule is asked.
    pub listed: Option<Listed>,
    /// What each rule says, in the order of the file, had the lists said nothing.
    pub rules: Vec<Why>,
}

/// What one rule says of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// It applies.
    Applies {
        /// The override that counts, by its name.
        by_override: Option<String>,
        /// What the request takes.
        cost: u32,
        /// Whose limit it is: names and values; `None` for a value that is missing.
        key: Vec<(String, Option<String>)>,
    },
    /// It is for another domain.
    OtherDomain {
        /// Its domain.
        domain: String,
    },
    /// A condition does not hold.
    Unmet {
        /// The descriptor it is about.
        name: String,
        /// What the request says there; `None` if nothing.
        found: Option<String>,
        /// What the rule wants there, as it is written.
        wanted: String,
    },
    /// The request is on its list of those that are not counted.
    Exempt,
    /// A part of the key is missing, and the rule skips such requests.
    KeySkipped {
        /// The part.
        name: String,
    },
    /// It refuses without looking at any limit.
    Refused {
        /// Why.
        refusal: Refusal,
        /// The descriptor that has to do with it.
        name: Option<String>,
    },
}

impl Compiled {
    /// What each rule says of a request.
    #[must_use]
    pub fn explain(&self, call: &Call<'_>) -> Explained {
        let rules = self.rules.iter().map(|ready| ready.why(call)).collect();
        Explained { listed: self.listed(call), rules }
    }
}

impl Ready {
    fn why(&self, call: &Call<'_>) -> Why {
        if let Some(domain) = self.rule.domain.as_deref().filter(|domain| *domain != call.domain) {
            return Why::OtherDomain { domain: domain.to_owned() };
        }
        match self.judge(call, &mut Vec::new(), &mut Vec::new()) {
            Verdict::Unmet { condition } => {
                let condition = &self.rule.conditions[condition];
                let name = condition.name.to_string();
                Why::Unmet { found: found(&name, call), name, wanted: condition.test.to_string() }
            }
            Verdict::Exempt => Why::Exempt,
            Verdict::KeySkipped => Why::KeySkipped { name: self.missing_part(call).unwrap_or_default() },
            Verdict::Refuses(refusal) => Why::Refused { refusal, name: self.culprit(refusal, call) },
            Verdict::Applies { cost, by_override } => {
                let label = |place: u32| self.rule.overrides[place as usize].label.clone();
                Why::Applies { by_override: by_override.map(label), cost, key: self.key_of(call) }
            }
        }
    }

    fn key_of(&self, call: &Call<'_>) -> Vec<(String, Option<String>)> {
        self.rule.key.iter().map(|part| (part.name().to_owned(), found(part.name(), call))).collect()
    }

    fn missing_part(&self, call: &Call<'_>) -> Option<String> {
        let is_missing = |part: &&super::KeyPart| !part.write(call.descriptors, &mut Vec::new());
        self.rule.key.iter().find(is_missing).map(|part| part.name().to_owned())
    }

    fn culprit(&self, refusal: Refusal, call: &Call<'_>) -> Option<String> {
        match (refusal, &self.rule.cost) {
            (Refusal::KeyMissing, _) => self.missing_part(call),
            (Refusal::CostMissing, super::Cost::From { name, .. }) => Some(name.to_string()),
            _ => None,
        }
    }
}

/// All that a request says under a name.
fn found(name: &str, call: &Call<'_>) -> Option<String> {
    let values: Vec<_> =
        call.descriptors.iter().filter(|(given, _)| *given == name).map(|(_, value)| *value).collect();
    (!values.is_empty()).then(|| values.join(", "))
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Applies { by_override, cost, key } => {
                write!(f, "applies, cost {cost}, key [")?;
                for (index, (name, value)) in key.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { ", " })?;
                    write!(f, "{name}={}", value.as_deref().unwrap_or("(missing)"))?;
                }
                f.write_str("]")?;
                by_override.iter().try_for_each(|label| write!(f, ", with the override `{label}`"))
            }
            Why::OtherDomain { domain } => write!(f, "is for the domain `{domain}`"),
            Why::Unmet { name, found: Some(found), wanted } => {
                write!(f, "`{name}` is `{found}`, and not {wanted}")
            }
            Why::Unmet { name, found: None, wanted } => {
                write!(f, "there is no `{name}`, and it should be {wanted}")
            }
            Why::Exempt => f.write_str("does not count this request: it is on the list `allow`"),
            Why::KeySkipped { name } => write!(f, "skips requests without `{name}`"),
            Why::Refused { refusal, name } => {
                let name = name.as_deref().unwrap_or_default();
                match refusal {
                    Refusal::Denied => f.write_str("refuses: the request is on the list `deny`"),
                    Refusal::Blocked => f.write_str("refuses: an administrator has blocked the key"),
                    Refusal::KeyMissing => write!(f, "refuses: there is no `{name}` for the key"),
                    Refusal::CostMissing => write!(f, "refuses: there is no number in `{name}` for the cost"),
                }
            }
        }
    }
}
