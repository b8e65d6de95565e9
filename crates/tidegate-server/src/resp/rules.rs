//! # `TG.…`: asking by the name of a rule
//!
//! ```text
//!   TG.CHECK   rule key [COST n] [AND rule key [COST n]] …       decides and charges, all rules or none
//!   TG.PEEK    …the same                                         decides and charges nothing
//!   TG.REFUND  …the same                                         gives back
//!   TG.RESET   …the same                                         forgets
//!   TG.ACQUIRE …the same                                         and holds places, by the id in the reply
//!   TG.RENEW   id                                                holds them for another lease
//!   TG.RELEASE id                                                gives them back
//! ```
//!
//! The first five are answered with the whole decision, so that a client computes nothing: whether it may pass, and
//! how long to wait if it must, are there as they are used. `docs/resp.md` has the table.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::{Decision, Outcome, Source};

use super::call::whole;
use super::parse::Request;
use super::reply::Reply;
use super::session::{Flow, Session};
use crate::engine::{Acquired, Answer, Decided, Fault, InForce, PlaceId, Question, Verdict};

type Checked = Answer<Result<Decided, Fault>>;

impl<C: Clock + Send + Sync + 'static> Session<C> {
    pub(crate) fn tg_check(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.decide(request, reply, |question| question.check())
    }

    pub(crate) fn tg_peek(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.decide(request, reply, |question| question.peek())
    }

    pub(crate) fn tg_refund(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.decide(request, reply, |question| question.refund())
    }

    pub(crate) fn tg_reset(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.decide(request, reply, |question| question.reset())
    }

    pub(crate) fn tg_acquire(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.ask(
            request,
            reply,
            |question| question.acquire(),
            |rules, acquired, reply| match acquired {
                Ok(acquired) => tell_acquired(rules, acquired, reply),
                Err(fault) => tell_fault(fault, reply),
            },
        )
    }

    pub(crate) fn tg_renew(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        let Some(id) = place_id(request) else { return no_id(reply) };
        self.tell(self.service.engine.renew(id), reply, |lease, reply| match lease {
            Some(lease) => reply.count(micros(lease)),
            None => reply.number(0),
        })
    }

    pub(crate) fn tg_release(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        let Some(id) = place_id(request) else { return no_id(reply) };
        self.tell(self.service.engine.release(id), reply, |held, reply| reply.number(held.into()))
    }

    fn decide(
        &self,
        request: Request<'_>,
        reply: &mut Reply<'_>,
        verb: impl FnOnce(Question<'_, C>) -> Checked,
    ) -> Flow {
        self.ask(request, reply, verb, |rules, decided, reply| match decided {
            Ok(decided) => {
                reply.array(8);
                tell_decided(rules, decided, reply);
            }
            Err(fault) => tell_fault(fault, reply),
        })
    }

    fn ask<T: Send + 'static>(
        &self,
        request: Request<'_>,
        reply: &mut Reply<'_>,
        verb: impl FnOnce(Question<'_, C>) -> Answer<T>,
        write: impl FnOnce(&InForce<C>, T, &mut Reply<'_>) + Send + 'static,
    ) -> Flow {
        let rules = self.service.engine.in_force();
        match question(&rules, request).map(verb) {
            Ok(Answer::Ready(answer)) => {
                write(&rules, answer, reply);
                Flow::Next
            }
            Ok(pending) => {
                let rules = Arc::clone(&rules);
                self.tell(pending, reply, move |answer, reply| write(&rules, answer, reply))
            }
            Err(sentence) => {
                reply.error(sentence);
                Flow::Next
            }
        }
    }
}

/// What the request asks of these rules.
fn question<'f, C: Clock + Send + Sync + 'static>(
    rules: &'f Arc<InForce<C>>,
    request: Request<'_>,
) -> Result<Question<'f, C>, String> {
    let (mut question, mut at) = (rules.ask(), 1);
    while at < request.len() {
        at = part(rules, &mut question, request, at)?;
    }
    Ok(question)
}

/// Adds the part that begins with this argument, and tells where the next one does.
fn part<C: Clock + Send + Sync + 'static>(
    rules: &InForce<C>,
    question: &mut Question<'_, C>,
    request: Request<'_>,
    at: usize,
) -> Result<usize, String> {
    let name = request.arg(at).unwrap_or_default();
    if request.len() < at + 2 {
        return Err(format!("{SYNTAX}; a rule is followed by a key"));
    }
    let rule = rules.rule(name).ok_or_else(|| unknown_rule(name))?;
    let (keys, after) = key(rules, rule, request, at + 1)?;
    let is = |word: &[u8], at| request.arg(at).is_some_and(|arg: &[u8]| arg.eq_ignore_ascii_case(word));
    let (cost, next) =
        if is(b"COST", after) { (Some(cost(request.arg(after + 1))?), after + 2) } else { (None, after) };
    let parts = (at + 1..at + 1 + keys).filter_map(|at| request.arg(at));
    question.add_rule(rule, parts, cost);
    match request.arg(next) {
        None => Ok(next),
        Some(_) if is(b"AND", next) && request.len() > next + 1 => Ok(next + 1),
        Some(other) => Err(format!("{SYNTAX}; {} is neither COST nor AND", quoted(other))),
    }
}

/// Of how many arguments the key is made, and what comes after it.
pub(super) fn key<C>(
    rules: &InForce<C>,
    rule: u32,
    request: Request<'_>,
    at: usize,
) -> Result<(usize, usize), String> {
    let Some(rule) = rules.compiled().rule(rule as usize) else { return Ok((0, at + 1)) };
    match rule.key.len() {
        0 if request.arg(at).is_some_and(|key| !key.is_empty()) => {
            Err(format!("ERR rule '{}' has one count for all; its key is empty", rule.name))
        }
        0 => Ok((0, at + 1)),
        parts if request.len() < at + parts => {
            let names: Vec<_> = rule.key.iter().map(|part| part.name()).collect();
            let names = names.join(" ");
            Err(format!("ERR the key of rule '{}' has {parts} parts; give all of them: {names}", rule.name))
        }
        parts => Ok((parts, at + parts)),
    }
}

const SYNTAX: &str = "ERR syntax error: rule key [COST n] [AND rule key [COST n]] ...";

fn cost(text: Option<&[u8]>) -> Result<u32, String> {
    let text = text.unwrap_or_default();
    let cost = whole(text).and_then(|cost| u32::try_from(cost).ok());
    cost.ok_or_else(|| format!("ERR COST is {}; use a whole number from 0 to {}", quoted(text), u32::MAX))
}

pub(super) fn unknown_rule(name: &[u8]) -> String {
    format!("ERR there is no rule {}; the configuration has the names", quoted(name))
}

pub(super) fn quoted(bytes: &[u8]) -> String {
    const MOST: usize = 64;
    format!("'{}'", bytes[..bytes.len().min(MOST)].escape_ascii())
}

fn place_id(request: Request<'_>) -> Option<PlaceId> {
    std::str::from_utf8(request.arg(1)?).ok()?.parse().ok()
}

fn no_id(reply: &mut Reply<'_>) -> Flow {
    reply.error(format!("ERR {}", crate::engine::NoPlaceId));
    Flow::Next
}

/// Eight replies.
pub(super) fn tell_decided<C>(rules: &InForce<C>, decided: Decided, reply: &mut Reply<'_>) {
    match decided.verdict {
        Verdict::Limited(decision) => tell_decision(rules, decision, reply),
        Verdict::Unlimited | Verdict::Exempt => tell_unlimited("allowed", "", reply),
        Verdict::Denied => tell_unlimited("denied", "", reply),
        Verdict::Refused { rule, .. } => {
            let rule = rules.compiled().rule(rule as usize);
            tell_unlimited("denied", rule.map_or("", |rule| &rule.name), reply);
        }
    }
}

/// No limit was asked.
fn tell_unlimited(outcome: &str, rule: &str, reply: &mut Reply<'_>) {
    reply.number((outcome == "allowed").into());
    reply.bytes(outcome);
    (0..4).for_each(|_| reply.number(0));
    reply.bytes(rule);
    reply.bytes("strict");
}

fn tell_decision<C>(rules: &InForce<C>, decision: Decision, reply: &mut Reply<'_>) {
    let (outcome, wait) = match decision.outcome {
        Outcome::Allowed => ("allowed", 0),
        Outcome::AllowedAfter(wait) => ("delayed", wait.as_micros()),
        Outcome::RetryAfter(wait) => ("refused", wait.as_micros()),
        Outcome::Busy => ("busy", 0),
        Outcome::Never => ("never", 0),
    };
    reply.number(decision.is_allowed().into());
    reply.bytes(outcome);
    reply.count(wait);
    reply.count(decision.limit());
    reply.count(decision.remaining());
    reply.count(decision.reset_after().as_micros());
    reply.bytes(rules.name(decision.rule));
    reply.bytes(source(decision.source));
}

/// As it is written everywhere, without a string being made for it.
pub(crate) fn source(source: Source) -> &'static str {
    match source {
        Source::Strict => "strict",
        Source::Lease => "lease",
        Source::Local => "local",
        Source::Open => "open",
        Source::Sketch => "sketch",
        _ => "closed",
    }
}

fn tell_acquired<C>(rules: &InForce<C>, acquired: Acquired, reply: &mut Reply<'_>) {
    reply.array(10);
    tell_decided(rules, acquired.decided, reply);
    match acquired.place {
        Some((id, lease)) => {
            reply.bytes(id.to_string());
            reply.count(micros(lease));
        }
        None => {
            reply.bytes("");
            reply.number(0);
        }
    }
}

pub(super) fn tell_fault(fault: Fault, reply: &mut Reply<'_>) {
    reply.error(match fault {
        Fault::NeedsPlace { rule, .. } => {
            format!("ERR rule '{rule}' is about places at work; use TG.ACQUIRE, and TG.RELEASE when the work is done")
        }
        Fault::NothingToHold => "ERR a cost of 0 holds no place; use TG.PEEK, or another COST".to_owned(),
        Fault::NoPlaces => "ERR no rule of the request is about places at work; use TG.CHECK".to_owned(),
        other => format!("ERR {other}"),
    });
}

pub(super) fn micros(lease: Duration) -> u64 {
    u64::try_from(lease.as_micros()).unwrap_or(u64::MAX)
}
