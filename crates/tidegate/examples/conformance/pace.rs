//! # Rows about a pacer
//!
//! ```text
//!   at  [every STEP] [xN]  acquire N [within WAIT] | reserve N | peek    [outcome]
//! ```
//!
//! A caller that acquires waits, and the next row begins when the wait is over. So the instant of a row is
//! known only when the case is run: `+1s` is one second after the wait ends, and an instant that has passed
//! by then means *immediately*.

use tidegate::algorithm::Pacing;
use tidegate::clock::Micros;
use tidegate::{InvalidQuota, Quota};

use super::format::invalid_rule;
use super::line::Line;
use super::mistake::Mistake;
use super::row::{self, Columns, Expected};
use super::time;

/// A request to a pacer, and the expected outcome.
#[derive(Clone, Debug)]
pub(crate) struct PaceRow {
    pub(crate) begins: Begins,
    pub(crate) times: u32,
    /// Microseconds from when one request is done to the next.
    pub(crate) every: u64,
    pub(crate) verb: PaceVerb,
    /// 64 bits, as the bare algorithm takes; a [`Pacer`](tidegate::Pacer) takes 32.
    pub(crate) cost: u64,
    pub(crate) want: Option<Expected>,
}

/// When a row begins, relative to the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Begins {
    At(Micros),
    After(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PaceVerb {
    /// Waits, at most `within` microseconds.
    Acquire { within: Option<u64> },
    /// Charges, and does not wait.
    Reserve,
    /// Queries how long the wait would be.
    Peek,
}

const A_VERB: &str = "one of the verbs acquire, reserve, peek, because this case has a pacer";
const A_COST: &str = "a cost, a whole number from 0 to 18446744073709551615";
const FORWARD: &str = "an instant, or + and a length of time, because a pacer's clock never steps back";
const OUTCOME: &str = "an outcome of a pacer: allow, after WAIT, retry WAIT, refuse, never, pass N, or -";
const NOTHING_MORE: &str = "nothing more";

/// The pacing that the rest of a line describes.
pub(crate) fn pacing(line: &mut Line<'_>) -> Result<Pacing, Mistake> {
    parsed(line)
}

/// The rate that the rest of a line changes to.
pub(crate) fn rate(line: &mut Line<'_>) -> Result<Quota, Mistake> {
    parsed(line)
}

fn parsed<T: std::str::FromStr<Err = InvalidQuota>>(line: &mut Line<'_>) -> Result<T, Mistake> {
    let number = line.number();
    let (text, column) = line.rest();
    text.parse().map_err(|error| invalid_rule(error, number, text, column))
}

/// Parses when a row begins.
pub(crate) fn begins(line: &mut Line<'_>) -> Result<Begins, Mistake> {
    if line.takes("+") {
        return time::span(line).map(Begins::After);
    }
    if line.peek().is_some_and(|token| token.text == "-") {
        return Err(line.mistake(FORWARD));
    }
    time::instant(line, Micros::ZERO).map(Begins::At)
}

/// Parses the rest of a row, after its instant.
pub(crate) fn row(line: &mut Line<'_>, begins: Begins, mistakes: &mut Vec<Mistake>) -> Option<PaceRow> {
    let before = mistakes.len();
    let mut columns = Columns::new(line, mistakes);
    let (times, every) = columns.repeat();
    let (verb, cost) = columns.column(request)?;
    let want = columns.column(outcome).flatten();
    (mistakes.len() == before).then_some(PaceRow { begins, times, every, verb, cost, want })
}

fn request(line: &mut Line<'_>) -> Result<(PaceVerb, u64), Mistake> {
    if line.takes("peek") {
        return Ok((PaceVerb::Peek, 0));
    }
    if line.takes("reserve") {
        return Ok((PaceVerb::Reserve, row::count(line, A_COST)?));
    }
    if !line.takes("acquire") {
        return Err(line.mistake(A_VERB));
    }
    let cost = row::count(line, A_COST)?;
    let within = if line.takes("within") { Some(time::span(line)?) } else { None };
    Ok((PaceVerb::Acquire { within }, cost))
}

fn outcome(line: &mut Line<'_>) -> Result<Option<Expected>, Mistake> {
    if line.is_done() {
        return Ok(None);
    }
    let mark = line.mark();
    let outcome = if line.takes("-") { None } else { Some(row::outcome(line)?) };
    if let Some(Expected::Took(_)) = outcome {
        return Err(line.mistake_at(mark, OUTCOME));
    }
    if line.is_done() { Ok(outcome) } else { Err(line.mistake(NOTHING_MORE)) }
}
