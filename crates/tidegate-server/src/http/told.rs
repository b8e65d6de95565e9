//! # What is told, in JSON
//!
//! The same words as in every other protocol. Times are seconds, exact to the microsecond.

use std::time::Duration;

use tidegate::{Decision, Outcome, Source};

use crate::engine::{Acquired, Decided, Explanation, InForce, Lent, Verdict};
use crate::rules::{Listed, Refusal, Why};

/// In microseconds.
const SECOND: u64 = 1_000_000;

/// An object that is being written.
pub(crate) struct Object {
    text: String,
}

impl Object {
    pub(crate) fn new() -> Self {
        let mut text = String::with_capacity(192);
        text.push('{');
        Object { text }
    }

    fn name(&mut self, name: &str) {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        self.text.push('"');
        self.text.push_str(name);
        self.text.push_str("\":");
    }

    pub(crate) fn raw(&mut self, name: &str, json: &str) {
        self.name(name);
        self.text.push_str(json);
    }

    pub(crate) fn flag(&mut self, name: &str, value: bool) {
        self.raw(name, if value { "true" } else { "false" });
    }

    pub(crate) fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        if value.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
            self.text.push('"');
            self.text.push_str(value);
            self.text.push('"');
        } else {
            self.text.push_str(&serde_json::Value::from(value).to_string());
        }
    }

    fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        self.text.push_str(itoa::Buffer::new().format(value));
    }

    fn seconds(&mut self, name: &str, micros: u64) {
        self.number(name, micros / SECOND);
        let part = micros % SECOND;
        if part > 0 {
            // With a second more, which is not written, there are zeros in front.
            self.text.push('.');
            self.text.push_str(&itoa::Buffer::new().format(SECOND + part)[1..]);
        }
    }

    pub(crate) fn lease(&mut self, lease: Duration) {
        self.seconds("lease", u64::try_from(lease.as_micros()).unwrap_or(u64::MAX));
    }

    pub(crate) fn end(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

pub(crate) fn decided<C>(rules: &InForce<C>, decided: &Decided) -> Object {
    let mut object = Object::new();
    object.flag("allowed", decided.is_allowed());
    let rule_name = |rule: u32| rules.compiled().rule(rule as usize).map_or("", |rule| rule.name.as_str());
    match decided.verdict {
        Verdict::Limited(decision) => limited(&mut object, rules, &decision),
        Verdict::Unlimited => object.text("outcome", "unlimited"),
        Verdict::Exempt => object.text("outcome", "exempt"),
        Verdict::Denied => object.text("outcome", "denied"),
        Verdict::Refused { rule, refusal } => {
            object.text("outcome", "denied");
            object.text("rule", rule_name(rule));
            object.text("reason", reason(refusal));
        }
    }
    if let Some(rule) = decided.would_refuse {
        object.text("would_refuse", rule_name(rule));
    }
    object
}

fn limited<C>(object: &mut Object, rules: &InForce<C>, decision: &Decision) {
    let (outcome, wait) = match decision.outcome {
        Outcome::Allowed => ("allowed", None),
        Outcome::AllowedAfter(wait) => ("delayed", Some(wait)),
        Outcome::RetryAfter(wait) => ("refused", Some(wait)),
        Outcome::Busy => ("busy", None),
        Outcome::Never => ("never", None),
    };
    object.text("outcome", outcome);
    if let Some(wait) = wait {
        object.seconds("wait", wait.as_micros());
    }
    left(object, decision);
    object.text("rule", rules.name(decision.rule));
    object.text("source", source(decision.source));
}

fn left(object: &mut Object, decision: &Decision) {
    object.number("limit", decision.limit());
    object.number("remaining", decision.remaining());
    object.seconds("reset", decision.reset_after().as_micros());
}

fn source(source: Source) -> &'static str {
    match source {
        Source::Strict => "strict",
        Source::Lease => "lease",
        Source::Local => "local",
        Source::Open => "open",
        Source::Sketch => "sketch",
        _ => "closed",
    }
}

fn reason(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Denied => "the request is on the list `deny` of the rule",
        Refusal::KeyMissing => "a part of the key is missing; send the descriptor it is made of",
        Refusal::Blocked => "an administrator has blocked the key",
        Refusal::CostMissing => "there is no number for the cost; send the descriptor it is taken from",
    }
}

pub(crate) fn acquired<C>(rules: &InForce<C>, acquired: &Acquired) -> Object {
    let mut object = decided(rules, &acquired.decided);
    if let Some((id, lease)) = acquired.place {
        object.text("place", &id.to_string());
        object.lease(lease);
    }
    object
}

pub(crate) fn lent<C>(rules: &InForce<C>, lent: &Lent) -> Object {
    let (mut object, loan) = (decided(rules, &lent.decided), &lent.loan);
    if let Some(id) = loan.id {
        object.text("grant", &id.to_string());
    }
    object.number("amount", loan.amount.into());
    object.number("ready", loan.ready.into());
    object.seconds("lasts", u64::try_from(loan.lasts.as_micros()).unwrap_or(u64::MAX));
    object
}

pub(crate) fn explained(explanation: &Explanation) -> Object {
    let mut object = Object::new();
    match explanation.listed {
        Some(Listed::Allowed) => object.text("listed", "allowed"),
        Some(Listed::Denied) => object.text("listed", "denied"),
        None => {}
    }
    let rules = explanation.rules.iter().map(|rule| {
        let mut object = Object::new();
        object.text("name", &rule.name);
        object.flag("applies", matches!(rule.why, Why::Applies { .. }));
        object.flag("shadow", rule.shadow);
        object.text("why", &rule.why.to_string());
        let limits = rule.limits.iter().map(|(name, seen)| {
            let mut object = Object::new();
            object.text("name", name);
            if let Some(decision) = seen {
                left(&mut object, decision);
            }
            object.end()
        });
        object.raw("limits", &list(limits));
        object.end()
    });
    object.raw("rules", &list(rules));
    object
}

pub(crate) fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::Object;

    #[test]
    fn times_are_seconds_to_the_microsecond() {
        let rows =
            [(0, "0"), (1, "0.000001"), (999_999, "0.999999"), (1_000_000, "1"), (61_050_000, "61.050000")];
        for (micros, written) in rows {
            let mut object = Object::new();
            object.seconds("t", micros);
            assert_eq!(object.end(), format!("{{\"t\":{written}}}"));
        }
    }
}
