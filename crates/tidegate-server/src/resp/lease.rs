//! # `TG.LEASE`, `TG.RETURN`: tokens to be spent elsewhere
//!
//! ```text
//!   TG.LEASE  rule key amount [TTL ms]      up to so many, to be spent by the client without asking
//!   TG.RETURN rule key id unspent           what it does not need
//! ```
//!
//! The answer to the first is the decision, as of `TG.CHECK`, and the grant: its id, how many, how many of them may be
//! spent at once, and for how long. Times are lengths of time, so that nobody's clock has to agree with ours.

use std::time::Duration;

use tidegate::clock::Clock;

use super::call::whole;
use super::parse::Request;
use super::reply::Reply;
use super::rules::{key, micros, quoted, tell_decided, tell_fault, unknown_rule};
use super::session::{Flow, Session};
use crate::engine::{GrantId, InForce, Lent, NoGrantId};

const LEASE: &str = "ERR syntax error: rule key amount [TTL milliseconds]";
const RETURN: &str = "ERR syntax error: rule key id unspent";
/// In milliseconds.
const TTLS: std::ops::RangeInclusive<i64> = 20..=3_600_000;

/// A rule, the places of its key among the arguments, and where those after it begin.
type Named = (u32, std::ops::Range<usize>);

impl<C: Clock + Send + Sync + 'static> Session<C> {
    pub(crate) fn tg_lease(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        let rules = self.service.engine.in_force();
        let asked =
            named(&rules, request, LEASE).and_then(|named| Ok((wanted(request, named.1.end)?, named)));
        let ((amount, ttl), (rule, key)) = match asked {
            Ok(asked) => asked,
            Err(sentence) => return wrong(sentence, reply),
        };
        let parts = key.filter_map(|at| request.arg(at));
        let answer = rules.ask().rule(rule, parts, Some(amount)).lend(amount, ttl);
        let rules = std::sync::Arc::clone(&rules);
        self.tell(answer, reply, move |lent, reply| match lent {
            Ok(lent) => tell_lent(&rules, &lent, reply),
            Err(fault) => tell_fault(fault, reply),
        })
    }

    pub(crate) fn tg_return(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        let rules = self.service.engine.in_force();
        let asked =
            named(&rules, request, RETURN).and_then(|named| Ok((unspent(request, named.1.end)?, named)));
        let ((id, unspent), (rule, key)) = match asked {
            Ok(asked) => asked,
            Err(sentence) => return wrong(sentence, reply),
        };
        let parts = key.filter_map(|at| request.arg(at));
        let answer = rules.ask().rule(rule, parts, Some(unspent)).take_back(id, unspent);
        let rules = std::sync::Arc::clone(&rules);
        self.tell(answer, reply, move |decided, reply| match decided {
            Ok(decided) => {
                reply.array(8);
                tell_decided(&rules, decided, reply);
            }
            Err(fault) => tell_fault(fault, reply),
        })
    }
}

fn wrong(sentence: String, reply: &mut Reply<'_>) -> Flow {
    reply.error(sentence);
    Flow::Next
}

fn named<C>(rules: &InForce<C>, request: Request<'_>, syntax: &str) -> Result<Named, String> {
    let name = request.arg(1).unwrap_or_default();
    if request.len() < 3 {
        return Err(format!("{syntax}; a rule is followed by a key"));
    }
    let rule = rules.rule(name).ok_or_else(|| unknown_rule(name))?;
    let (parts, after) = key(rules, rule, request, 2)?;
    // A rule with one count for all has no parts, and yet an argument that is empty.
    Ok((rule, if parts == 0 { after..after } else { 2..after }))
}

/// How many, and for how long.
fn wanted(request: Request<'_>, at: usize) -> Result<(u32, Option<Duration>), String> {
    let amount = number(request, at, "the amount", LEASE)?;
    if amount == 0 {
        return Err("ERR an amount of 0 leases nothing; use TG.PEEK to see what is left".to_owned());
    }
    let ttl = match (request.arg(at + 1), request.arg(at + 2)) {
        (None, _) => None,
        (Some(word), Some(text)) if word.eq_ignore_ascii_case(b"TTL") => Some(ttl(text)?),
        (Some(other), _) => {
            return Err(format!("{LEASE}; {} is not TTL and a number", quoted(other)));
        }
    };
    match request.arg(at + 3) {
        Some(more) => Err(format!("{LEASE}; {} is too much", quoted(more))),
        None => Ok((amount, ttl)),
    }
}

fn ttl(text: &[u8]) -> Result<Duration, String> {
    let millis =
        whole(text).filter(|millis| TTLS.contains(millis)).and_then(|millis| u64::try_from(millis).ok());
    millis.map(Duration::from_millis).ok_or_else(|| {
        format!("ERR TTL is {}; use milliseconds from {} to {}", quoted(text), TTLS.start(), TTLS.end())
    })
}

/// Which grant, and how many of it.
fn unspent(request: Request<'_>, at: usize) -> Result<(GrantId, u32), String> {
    let text = request.arg(at).ok_or_else(|| RETURN.to_owned())?;
    let id = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let id = id.ok_or_else(|| format!("ERR id {}: {NoGrantId}", quoted(text)))?;
    let unspent = number(request, at + 1, "unspent", RETURN)?;
    match request.arg(at + 2) {
        Some(more) => Err(format!("{RETURN}; {} is too much", quoted(more))),
        None => Ok((id, unspent)),
    }
}

fn number(request: Request<'_>, at: usize, what: &str, syntax: &str) -> Result<u32, String> {
    let text = request.arg(at).ok_or_else(|| syntax.to_owned())?;
    let number = whole(text).and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| format!("ERR {what} is {}; use a whole number up to {}", quoted(text), u32::MAX))
}

/// Twelve replies: the decision, and the grant.
fn tell_lent<C>(rules: &InForce<C>, lent: &Lent, reply: &mut Reply<'_>) {
    let loan = &lent.loan;
    reply.array(12);
    tell_decided(rules, lent.decided, reply);
    reply.bytes(loan.id.map(|id| id.to_string()).unwrap_or_default());
    reply.count(loan.amount.into());
    reply.count(loan.ready.into());
    reply.count(micros(loan.lasts));
}
