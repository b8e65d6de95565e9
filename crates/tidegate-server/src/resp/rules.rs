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

use std::time::Duration;

use tidegate::{Clock, Decision, Outcome, Part, RuleId, Source};

use super::call::whole;
use super::parse::Request;
use super::reply::Reply;
use super::session::{Flow, Session};
use crate::engine::{Acquired, Answer, Engine, Fault, PlaceId};

type Decided = Answer<Result<Decision, Fault>>;

impl<C: Clock + Send + Sync + 'static> Session<C> {
    pub(crate) fn tg_check(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.decide(request, reply, Engine::check)
    }

    pub(crate) fn tg_peek(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.decide(request, reply, Engine::peek)
    }

    pub(crate) fn tg_refund(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.decide(request, reply, Engine::refund)
    }

    pub(crate) fn tg_reset(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.decide(request, reply, Engine::reset)
    }

    pub(crate) fn tg_acquire(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.ask(request, reply, Engine::acquire, |engine, acquired, reply| match acquired {
            Ok(acquired) => tell_acquired(engine, acquired, reply),
            Err(fault) => tell_fault(engine, fault, reply),
        })
    }

    pub(crate) fn tg_renew(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        let Some(id) = place_id(request) else { return no_id(reply) };
        self.tell(self.service.engine.renew(id), reply, |_, lease, reply| match lease {
            Some(lease) => reply.count(micros(lease)),
            None => reply.number(0),
        })
    }

    pub(crate) fn tg_release(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        let Some(id) = place_id(request) else { return no_id(reply) };
        self.tell(self.service.engine.release(id), reply, |_, held, reply| reply.number(held.into()))
    }

    fn decide(
        &self,
        request: Request<'_>,
        reply: &mut Reply<'_>,
        verb: impl FnOnce(&Engine<C>, &[Part<'_>]) -> Decided,
    ) -> Flow {
        self.ask(request, reply, verb, |engine, decided, reply| match decided {
            Ok(decision) => {
                reply.array(8);
                tell_decision(engine, decision, reply);
            }
            Err(fault) => tell_fault(engine, fault, reply),
        })
    }

    fn ask<T: Send + 'static>(
        &self,
        request: Request<'_>,
        reply: &mut Reply<'_>,
        verb: impl FnOnce(&Engine<C>, &[Part<'_>]) -> Answer<T>,
        write: impl FnOnce(&Engine<C>, T, &mut Reply<'_>) + Send + 'static,
    ) -> Flow {
        let engine = &self.service.engine;
        let mut parts = [Part::of(RuleId(0)); FEW];
        let answer = match few_parts(engine, request, &mut parts) {
            Err(sentence) => Err(sentence),
            Ok(Some(few)) => Ok(verb(engine, &parts[..few])),
            Ok(None) => all_parts(engine, request).map(|parts| verb(engine, &parts)),
        };
        match answer {
            Ok(answer) => self.tell(answer, reply, write),
            Err(sentence) => {
                reply.error(sentence);
                Flow::Next
            }
        }
    }
}

/// So many parts are read without an allocation.
const FEW: usize = 4;

/// How many parts there are; `None` if they are not few.
fn few_parts<'a, C: Clock>(
    engine: &Engine<C>,
    request: Request<'a>,
    parts: &mut [Part<'a>; FEW],
) -> Result<Option<usize>, String> {
    let (mut count, mut at) = (0, 1);
    while at < request.len() {
        let Some(place) = parts.get_mut(count) else { return Ok(None) };
        (*place, at) = part(engine, request, at)?;
        count += 1;
    }
    Ok(Some(count))
}

fn all_parts<'a, C: Clock>(engine: &Engine<C>, request: Request<'a>) -> Result<Vec<Part<'a>>, String> {
    let (mut parts, mut at) = (Vec::new(), 1);
    while at < request.len() {
        let (next, after) = part(engine, request, at)?;
        parts.push(next);
        at = after;
    }
    Ok(parts)
}

/// The part that begins with this argument, and where the next one does.
fn part<'a, C: Clock>(
    engine: &Engine<C>,
    request: Request<'a>,
    at: usize,
) -> Result<(Part<'a>, usize), String> {
    let (Some(name), Some(key)) = (request.arg(at), request.arg(at + 1)) else {
        return Err(format!("{SYNTAX}; a rule is followed by a key"));
    };
    let rule = engine.rule(name).ok_or_else(|| unknown_rule(name))?;
    let (part, at) = (Part::of(rule).key(key), at + 2);
    let is = |word: &[u8], at| request.arg(at).is_some_and(|arg: &[u8]| arg.eq_ignore_ascii_case(word));
    let (part, at) =
        if is(b"COST", at) { (part.cost(cost(request.arg(at + 1))?), at + 2) } else { (part, at) };
    match request.arg(at) {
        None => Ok((part, at)),
        Some(_) if is(b"AND", at) && request.len() > at + 1 => Ok((part, at + 1)),
        Some(other) => Err(format!("{SYNTAX}; {} is neither COST nor AND", quoted(other))),
    }
}

const SYNTAX: &str = "ERR syntax error: rule key [COST n] [AND rule key [COST n]] ...";

fn cost(text: Option<&[u8]>) -> Result<u32, String> {
    let text = text.unwrap_or_default();
    let cost = whole(text).and_then(|cost| u32::try_from(cost).ok());
    cost.ok_or_else(|| format!("ERR COST is {}; use a whole number from 0 to {}", quoted(text), u32::MAX))
}

fn unknown_rule(name: &[u8]) -> String {
    format!("ERR there is no rule {}; the configuration has the names", quoted(name))
}

fn quoted(bytes: &[u8]) -> String {
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
fn tell_decision<C: Clock>(engine: &Engine<C>, decision: Decision, reply: &mut Reply<'_>) {
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
    reply.bytes(engine.name(decision.rule));
    reply.bytes(source(decision.source));
}

/// As it is written everywhere, without a string being made for it.
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

fn tell_acquired<C: Clock>(engine: &Engine<C>, acquired: Acquired, reply: &mut Reply<'_>) {
    reply.array(10);
    tell_decision(engine, acquired.decision, reply);
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

fn tell_fault<C: Clock>(engine: &Engine<C>, fault: Fault, reply: &mut Reply<'_>) {
    reply.error(match fault {
        Fault::NeedsPlace(rule) => {
            let name = engine.name(rule);
            format!("ERR rule '{name}' is about places at work; use TG.ACQUIRE, and TG.RELEASE when the work is done")
        }
        Fault::NothingToHold => "ERR a cost of 0 holds no place; use TG.PEEK, or another COST".to_owned(),
        Fault::NoPlaces => "ERR no rule of the request is about places at work; use TG.CHECK".to_owned(),
        Fault::Request(invalid) => format!("ERR {invalid}"),
    });
}

fn micros(lease: Duration) -> u64 {
    u64::try_from(lease.as_micros()).unwrap_or(u64::MAX)
}
