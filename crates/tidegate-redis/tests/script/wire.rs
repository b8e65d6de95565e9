//! # Requests and replies, as `WIRE.md` describes them

use std::{env, fs};

use redis::{Cmd, Pipeline};
use tidegate_core::{Decision, EncodedRule, Micros, Outcome, Rule};

/// The script that ships; or the one that `TIDEGATE_SCRIPT` names, to see these tests fail on a broken one.
pub(crate) fn script() -> String {
    script_from("TIDEGATE_SCRIPT", tidegate_redis::SCRIPT)
}

pub(crate) fn script_from(variable: &str, default: &str) -> String {
    match env::var(variable) {
        Ok(path) => fs::read_to_string(path).expect("a file with a script"),
        Err(_) => default.to_owned(),
    }
}

/// One rule of a request, with its key and cost.
#[derive(Clone, Debug)]
pub(crate) struct RuleArgs {
    pub(crate) key: String,
    pub(crate) cost: String,
    pub(crate) rule: Vec<u8>,
}

impl RuleArgs {
    pub(crate) fn rate(key: &str, cost: u32, rule: &Rule) -> Self {
        RuleArgs { key: key.to_owned(), cost: cost.to_string(), rule: encoded_rule(rule.encode()) }
    }

    /// A rule that the core does not have: `limit` permits, with a lease in microseconds.
    pub(crate) fn concurrency(key: &str, cost: u32, limit: u64, lease: u64) -> Self {
        RuleArgs { key: key.to_owned(), cost: cost.to_string(), rule: encode(b'n', &[limit, lease]) }
    }
}

fn encoded_rule(encoded: EncodedRule) -> Vec<u8> {
    encode(encoded.letter(), encoded.numbers())
}

pub(crate) fn encode(letter: u8, numbers: &[u64]) -> Vec<u8> {
    let mut bytes = vec![letter];
    bytes.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
    bytes
}

/// The call of the script with this hash.
pub(crate) fn call(sha: &str, operation: &str, args: &[RuleArgs], id: Option<&[u8]>) -> Cmd {
    let mut cmd = redis::cmd("EVALSHA");
    cmd.arg(sha).arg(args.len());
    for rule in args {
        cmd.arg(&rule.key);
    }
    cmd.arg(format!("1:{operation}"));
    for rule in args {
        cmd.arg(&rule.cost).arg(&rule.rule);
    }
    if let Some(id) = id {
        cmd.arg(id);
    }
    cmd
}

/// The same after setting the clock.
pub(crate) fn call_at(pipe: &mut Pipeline, at: Micros, cmd: Cmd) {
    pipe.cmd("SET").arg("test:now").arg(at.get()).ignore();
    pipe.add_command(cmd);
}

/// A decoded reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) now: u64,
    /// The index of the binding rule, from 1.
    pub(crate) binding: u64,
    pub(crate) rules: Vec<RuleReply>,
    pub(crate) taken: Option<u64>,
}

/// The decision on one rule in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleReply {
    pub(crate) outcome: u64,
    pub(crate) remaining: u64,
    pub(crate) wait: u64,
    pub(crate) reset: u64,
}

impl Reply {
    pub(crate) fn decode(numbers: &[u64]) -> Self {
        let [now, binding, rest @ ..] = numbers else { panic!("too short a reply: {numbers:?}") };
        let (rules, taken) = rest.as_chunks();
        let reply =
            |&[outcome, remaining, wait, reset]: &[u64; 4]| RuleReply { outcome, remaining, wait, reset };
        let rules = rules.iter().map(reply).collect();
        Reply { now: *now, binding: *binding, rules, taken: taken.first().copied() }
    }
}

impl RuleReply {
    pub(crate) fn of(decision: &Decision) -> Self {
        let (outcome, wait) = match decision.outcome {
            Outcome::Allowed => (0, 0),
            Outcome::AllowedAfter(wait) => (1, wait.as_micros()),
            Outcome::RetryAfter(wait) => (2, wait.as_micros()),
            Outcome::Busy => (3, 0),
            Outcome::Never => (4, 0),
        };
        let (remaining, reset) = (decision.remaining(), decision.reset_after().as_micros());
        RuleReply { outcome, remaining, wait, reset }
    }
}
