//! # What an administrator is told, in JSON

use std::time::Duration;

use serde_json::{Value, json};

use crate::engine::{Block, InForce, Left, RefusedKey};
use crate::rules::{Diff, read_key};

pub(super) fn rules<C>(rules: &InForce<C>) -> String {
    let compiled = rules.compiled();
    let all = compiled.rules().enumerate().map(|(number, rule)| {
        let limits = compiled.limits().iter().filter(|numbered| numbered.rule == number);
        let key: Vec<_> = rule.key.iter().map(|part| part.name()).collect();
        let limits: Vec<_> = limits.map(|numbered| json!(numbered.identity.name)).collect();
        json!({"name": rule.name, "shadow": rule.shadow, "key": key, "limits": limits})
    });
    json!({"rules": all.collect::<Vec<_>>()}).to_string()
}

pub(super) fn inspected<C>(
    rules: &InForce<C>,
    rule: u32,
    key: &[u8],
    left: &[Left],
    blocked: Option<Duration>,
) -> String {
    let name = rules.compiled().rule(rule as usize).map_or("", |rule| &rule.name);
    let limits = left.iter().map(|(name, decision)| match decision {
        Some(decision) => json!({
            "name": name,
            "limit": decision.limit(),
            "remaining": decision.remaining(),
            "reset": seconds(Duration::from_micros(decision.reset_after().as_micros())),
        }),
        None => json!({"name": name}),
    });
    let limits: Vec<_> = limits.collect();
    let mut told = json!({"rule": name, "key": parts(rules, name, key), "limits": limits});
    if let Some(left) = blocked {
        told["blocked"] = seconds(left);
    }
    told.to_string()
}

pub(super) fn blocks<C>(rules: &InForce<C>, blocks: &[Block]) -> String {
    let all = blocks.iter().map(|block| {
        let key = parts(rules, &block.rule, &block.key);
        json!({"rule": block.rule, "key": key, "blocked": seconds(block.left)})
    });
    json!({"blocks": all.collect::<Vec<_>>()}).to_string()
}

pub(super) fn refused<C>(rules: &InForce<C>, most: &[RefusedKey]) -> String {
    let all = most.iter().map(|key| {
        let mut told = json!({
            "rule": key.rule,
            "key": parts(rules, &key.rule, &key.key),
            "refused": key.refused,
            "too_many": key.too_many,
        });
        if !key.is_whole {
            told["cut"] = json!(true);
        }
        told
    });
    json!({"keys": all.collect::<Vec<_>>()}).to_string()
}

pub(super) fn reloaded(diff: &Diff, waiting: &[&str]) -> String {
    json!({"in_force": true, "changes": diff.to_string(), "restart_for": waiting}).to_string()
}

/// The values that the key of a rule is made of. A rule that is gone has left no word on which of them were networks.
pub(super) fn parts<C>(rules: &InForce<C>, rule: &str, key: &[u8]) -> Value {
    let number = rules.rule(rule.as_bytes());
    let parts = number.and_then(|number| rules.compiled().rule(number as usize)).map(|rule| &*rule.key);
    json!(read_key(parts.unwrap_or_default(), key))
}

fn seconds(time: Duration) -> Value {
    json!(time.as_secs_f64())
}
