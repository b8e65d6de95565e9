//! # What became of a request

use std::fmt;
use std::time::Duration;

use tidegate::gate::RuleId;
use tidegate::{Decision, InvalidRequest};

use super::{GrantId, PlaceId};
use crate::rules::{Listed, Refusal, Why};

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a decision protects nothing until you act on it"]
pub struct Decided {
    /// What was decided.
    pub verdict: Verdict,
    /// The first rule that only watches and would have refused it, by its place in the file.
    pub would_refuse: Option<u32>,
}

/// What was decided, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// By limits. Its rule is the number of the limit that was binding: [`InForce::name`](super::InForce::name) has
    /// its name.
    Limited(Decision),
    /// It passes: no rule is for it.
    Unlimited,
    /// It passes: the file says so, whatever the rules say.
    Exempt,
    /// It is refused: the file says so, whatever the rules say.
    Denied,
    /// A rule refuses it without looking at any limit.
    Refused {
        /// The rule, by its place in the file.
        rule: u32,
        /// Why.
        refusal: Refusal,
    },
}

/// What became of a request for places, and the places.
#[derive(Clone, Copy, Debug)]
#[must_use = "a decision protects nothing until you act on it"]
pub struct Acquired {
    /// What was decided.
    pub decided: Decided,
    /// Who holds the places, and for how long unless renewed. `None` if the request was refused, or no rule for it is
    /// about places.
    pub place: Option<(PlaceId, Duration)>,
}

/// What was lent to a client.
#[derive(Clone, Copy, Debug)]
#[must_use = "what is lent is charged, and spent or given back by whoever hears of it"]
pub struct Lent {
    /// Allowed if anything is lent; else, when to ask again.
    pub decided: Decided,
    /// What is lent.
    pub loan: Loan,
}

/// Tokens that a client spends without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// By this they are given back; `None` if there is nothing to give back.
    pub id: Option<GrantId>,
    /// How many.
    pub amount: u32,
    /// How many of them may be spent from the answer on.
    pub ready: u32,
    /// Nothing may be spent later than so long after the question was sent.
    pub lasts: Duration,
}

/// Why a request was decided as it was.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// What the lists of the whole file say; with it, no rule is asked.
    pub listed: Option<Listed>,
    /// What each rule says, in the order of the file, had the lists said nothing.
    pub rules: Vec<RuleExplained>,
}

/// What one rule says of a request.
#[derive(Clone, Debug)]
pub struct RuleExplained {
    /// Its name.
    pub name: String,
    /// Whether it only watches.
    pub shadow: bool,
    /// Whether it applies, and if not, why.
    pub why: Why,
    /// If it applies: the name of each of its limits, and what is left of it. `None` if the store does not tell.
    pub limits: Vec<(String, Option<Decision>)>,
}

/// A request that cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It asks for nothing, or twice for the same.
    Request(InvalidRequest),
    /// A place is not something to be charged and forgotten.
    NeedsPlace {
        /// The limit that is about places, by its number.
        limit: RuleId,
        /// The name of its rule.
        rule: String,
    },
    /// It asks to hold a place, and names no rule about places.
    NoPlaces,
    /// It asks to hold places, but none of them.
    NothingToHold,
    /// So many permits are held that there is no room for more.
    TooManyHeld {
        /// The name of the rule, if there are so many of it, and not in all.
        rule: Option<String>,
        /// How many may be.
        most: usize,
    },
    /// More limits at once than are decided on together.
    TooMany {
        /// How many.
        parts: usize,
        /// How many may be.
        most: usize,
    },
    /// Of several limits at once nothing is lent.
    SeveralLimits {
        /// The name of the rule.
        rule: String,
        /// How many it has.
        limits: usize,
    },
    /// It is neither a token bucket nor a fixed window.
    CannotLend {
        /// The name of the rule.
        rule: String,
    },
    /// Its bucket is so small that nothing could be lent of it in memory, or full again before a client has heard of it.
    TooSmallToLend {
        /// The name of the rule.
        rule: String,
    },
    /// There is no limit that could be lent of.
    NoLimitToLend,
    /// The store lends nothing of it, for this reason.
    Loan(String),
    /// The store did not answer. What changes or shows counts cannot be done without it.
    Store(String),
}

impl Verdict {
    /// Whether it may pass, at once or after a wait.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        match self {
            Verdict::Limited(decision) => decision.is_allowed(),
            Verdict::Unlimited | Verdict::Exempt => true,
            Verdict::Denied | Verdict::Refused { .. } => false,
        }
    }
}

impl Decided {
    pub(super) const fn by(verdict: Verdict) -> Self {
        Decided { verdict, would_refuse: None }
    }

    /// Whether it may pass, at once or after a wait.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.verdict.is_allowed()
    }

    /// What the limits have decided, if they were asked.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        match self.verdict {
            Verdict::Limited(decision) => Some(decision),
            _ => None,
        }
    }
}

// === impl Fault ===

impl From<InvalidRequest> for Fault {
    fn from(invalid: InvalidRequest) -> Self {
        Fault::Request(invalid)
    }
}

impl From<tidegate_redis::Error> for Fault {
    fn from(error: tidegate_redis::Error) -> Self {
        match (error.invalid_request(), error.cannot_lease()) {
            (Some(invalid), _) => Fault::Request(invalid.clone()),
            (None, Some(cannot)) => Fault::Loan(cannot.to_string()),
            (None, None) => Fault::Store(error.to_string()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Request(invalid) => invalid.fmt(f),
            Fault::NeedsPlace { rule, .. } => {
                write!(
                    f,
                    "rule \"{rule}\" is about places at work; acquire one, and release it when the work is done"
                )
            }
            Fault::NothingToHold => {
                f.write_str("a cost of 0 holds no place; peek to see what is left, or say a cost")
            }
            Fault::NoPlaces => {
                f.write_str("no rule of the request is about places at work; check it instead")
            }
            Fault::TooManyHeld { rule: Some(rule), most } => write!(
                f,
                "{most} permits of rule \"{rule}\" are held, and there is room for no more; release some, or raise \
                 --permits-per-rule"
            ),
            Fault::TooManyHeld { rule: None, most } => {
                write!(
                    f,
                    "{most} permits are held, and there is room for no more; release some, or raise --permits"
                )
            }
            Fault::TooMany { parts, most } => {
                write!(
                    f,
                    "the request has to pass {parts} limits, and at most {most} are decided on together; ask for fewer at once"
                )
            }
            Fault::SeveralLimits { rule, limits } => write!(
                f,
                "rule \"{rule}\" has {limits} quotas, and of one at a time is lent; check it, or name a rule with one"
            ),
            Fault::CannotLend { rule } => write!(
                f,
                "rule \"{rule}\" cannot be lent of, only token buckets and fixed windows can; check it instead"
            ),
            Fault::TooSmallToLend { rule } => write!(
                f,
                "the bucket of rule \"{rule}\" is too small, or full again too soon, to be lent of in memory; raise its \
                 burst, keep the counts in Redis, or check it instead"
            ),
            Fault::NoLimitToLend => f.write_str("there is no limit to lend of; name a rule and its key"),
            Fault::Loan(reason) => f.write_str(reason),
            Fault::Store(trouble) => {
                write!(f, "the store does not answer ({trouble}); ask again in a moment")
            }
        }
    }
}

impl std::error::Error for Fault {}
