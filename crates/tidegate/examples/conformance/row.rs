//! # One row: a request at an instant, and the expected result
//!
//! ```text
//!   at  [every STEP] [xN]  [verb] cost   [outcome  [remaining  [reset]]]  [rule NAME] [limit N]
//! ```
//!
//! The columns are parsed from left to right. After a mistake in one column parsing continues with the
//! next, so that a row with two mistakes reports two.

use tidegate::clock::Micros;

use super::line::{Kind, Line};
use super::mistake::Mistake;
use super::time;

/// A request, its repetitions, and the expected result.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) times: u32,
    /// Microseconds from one request to the next.
    pub(crate) every: u64,
    pub(crate) verb: Verb,
    pub(crate) cost: u32,
    pub(crate) want: Want,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Check,
    Peek,
    Force,
    Refund,
    Reset,
    Take,
}

/// The expected result; a `None` is not checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Want {
    pub(crate) outcome: Option<Expected>,
    pub(crate) remaining: Option<Values<u64>>,
    pub(crate) reset: Option<Values<Within>>,
    /// The position of the binding rule, from 0.
    pub(crate) rule: Option<usize>,
    pub(crate) limit: Option<Values<u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Allow,
    After(Within),
    Retry(Within),
    /// A denial with a wait of any length.
    Refuse,
    Never,
    Took(u32),
    /// The number of requests of the row that are allowed.
    Pass {
        fewest: u32,
        most: u32,
    },
}

/// The decision's own value, or one for each rule of the policy.
#[derive(Clone, Debug)]
pub(crate) enum Values<T> {
    Lone(T),
    Each(Vec<Option<T>>),
}

/// A length of time in microseconds, or an interval of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Within {
    pub(crate) least: u64,
    pub(crate) most: u64,
}

/// The rules that the columns of a row can refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules<'a> {
    /// Their names in order; `None` if a mistake in the rules leaves open what they are.
    pub(crate) names: Option<&'a [Option<String>]>,
}

/// More requests in one row are a typing error.
const MOST_TIMES: u32 = 1_000_000;

const VERBS: [(&str, Verb); 6] = [
    ("check", Verb::Check),
    ("peek", Verb::Peek),
    ("force", Verb::Force),
    ("refund", Verb::Refund),
    ("reset", Verb::Reset),
    ("take", Verb::Take),
];
const OUTCOMES: [&str; 7] = ["allow", "retry", "refuse", "never", "took", "after", "pass"];

const A_VERB: &str = "a cost, or one of the verbs check, peek, force, refund, reset, take";
const A_COST: &str = "a cost, a whole number from 0 to 4294967295";
const AN_OUTCOME: &str = "an outcome: allow, retry WAIT, refuse, never, took N, after WAIT, pass N, or -";
const A_COUNT: &str = "a whole number, or - to leave the column unchecked";
const NO_OUTCOME: &str = "- for the outcome, because a refund or a reset is not decided";
const TOOK: &str = "'took' and a number, or -, because this row takes what there is";
const NOT_TOOK: &str = "another outcome, because only the verb take can have taken a part";
const TIMES: &str = "a number of requests from 1 to 1000000, as in x16";
const EVERY_NEEDS_TIMES: &str = "x and a number of requests after 'every', as in every 50s x12";
const PASS_NEEDS_TIMES: &str = "a row of several requests, as in x16, for 'pass' to count";
const NOTHING_MORE: &str = "'rule' and a name, 'limit' and a number, or nothing more";

/// Parses the rest of a row, after its instant.
pub(crate) fn row(line: &mut Line<'_>, rules: Rules<'_>, mistakes: &mut Vec<Mistake>) -> Option<Row> {
    let before = mistakes.len();
    let mut columns = Columns { rules, ..Columns::new(line, mistakes) };
    let (times, every) = columns.repeat();
    let verb = columns.verb();
    let cost = if verb == Verb::Reset { 0 } else { columns.cost() };
    let want = columns.want(verb, times);
    (columns.mistakes.len() == before).then_some(Row { times, every, verb, cost, want })
}

pub(crate) struct Columns<'a, 'l> {
    line: &'a mut Line<'l>,
    rules: Rules<'a>,
    mistakes: &'a mut Vec<Mistake>,
}

impl<'a, 'l> Columns<'a, 'l> {
    pub(crate) fn new(line: &'a mut Line<'l>, mistakes: &'a mut Vec<Mistake>) -> Self {
        Columns { line, rules: Rules { names: None }, mistakes }
    }

    /// Parses one column; after a mistake continues with the next.
    pub(crate) fn column<T>(&mut self, read: impl FnOnce(&mut Line<'l>) -> Result<T, Mistake>) -> Option<T> {
        match read(self.line) {
            Ok(value) => Some(value),
            Err(mistake) => {
                self.line.skip_past(&mistake);
                self.mistakes.push(mistake);
                None
            }
        }
    }

    /// The number of requests, and the time between them.
    pub(crate) fn repeat(&mut self) -> (u32, u64) {
        let mut every = None;
        if self.line.takes("every") {
            every = Some(self.column(time::span).unwrap_or(0));
        }
        let times = if at_times(self.line) { self.column(times) } else { None };
        // `x12 every 50s` is as clear as the other way round.
        if every.is_none() && self.line.takes("every") {
            every = Some(self.column(time::span).unwrap_or(0));
        }
        if every.is_some() && times.is_none() {
            self.mistakes.push(self.line.mistake(EVERY_NEEDS_TIMES));
        }
        (times.unwrap_or(1), every.unwrap_or(0))
    }

    fn verb(&mut self) -> Verb {
        let Some(word) = self.line.peek().filter(|token| token.kind == Kind::Word) else {
            return Verb::Check;
        };
        if let Some(&(_, verb)) = VERBS.iter().find(|(name, _)| *name == word.text) {
            self.line.next_of(Kind::Word);
            return verb;
        }
        // An outcome here means that the cost is missing, which the next column reports.
        if !OUTCOMES.contains(&word.text) {
            self.column(|line| Err::<(), _>(line.mistake(A_VERB)));
        }
        Verb::Check
    }

    fn cost(&mut self) -> u32 {
        if self.line.peek().is_none_or(|token| token.kind != Kind::Word) {
            return self.column(|line| count::<u32>(line, A_COST)).unwrap_or(0);
        }
        // Nothing is skipped: a word belongs to the next column.
        self.mistakes.push(self.line.mistake(A_COST));
        0
    }

    fn want(&mut self, verb: Verb, times: u32) -> Want {
        let rules = self.rules;
        let mut want = Want { outcome: self.outcome(verb, times), ..Want::default() };
        want.remaining = self.optional(|line| counts(line, rules));
        want.reset = self.optional(|line| values(line, rules, within, within_single));
        while !self.line.is_done() {
            if self.line.takes("rule") {
                want.rule = self.column(|line| rules.position(line)).flatten();
            } else if self.line.takes("limit") {
                want.limit = self.column(|line| counts(line, rules)).flatten();
            } else {
                self.mistakes.push(self.line.mistake(NOTHING_MORE));
                break;
            }
        }
        want
    }

    /// A column that may be left out, or be `-`.
    fn optional<T>(&mut self, read: impl FnOnce(&mut Line<'l>) -> Result<Option<T>, Mistake>) -> Option<T> {
        if self.line.is_done() || at_named_column(self.line) || self.line.takes("-") {
            return None;
        }
        self.column(read).flatten()
    }

    fn outcome(&mut self, verb: Verb, times: u32) -> Option<Expected> {
        if self.line.is_done() || at_named_column(self.line) || self.line.takes("-") {
            return None;
        }
        if self.line.peek().is_some_and(|token| token.kind == Kind::Number) {
            // The outcome is missing; this is probably the remaining column.
            let expected = if has_no_outcome(verb) { NO_OUTCOME } else { AN_OUTCOME };
            self.mistakes.push(self.line.mistake(expected));
            return None;
        }
        let mark = self.line.mark();
        let Some(outcome) = self.column(outcome) else {
            if time::at_stretch(self.line) {
                let _ = time::span(self.line); // the wait of an outcome that was not understood
            }
            return None;
        };
        if let Some(expected) = misplaced(outcome, verb, times) {
            self.mistakes.push(self.line.mistake_at(mark, expected));
        }
        Some(outcome)
    }
}

fn has_no_outcome(verb: Verb) -> bool {
    matches!(verb, Verb::Refund | Verb::Reset)
}

/// The expected text in place of an outcome that `verb` cannot have.
fn misplaced(outcome: Expected, verb: Verb, times: u32) -> Option<&'static str> {
    match (verb, outcome) {
        (verb, _) if has_no_outcome(verb) => Some(NO_OUTCOME),
        (Verb::Take, Expected::Took(_)) => None,
        (Verb::Take, _) => Some(TOOK),
        (_, Expected::Took(_)) => Some(NOT_TOOK),
        (_, Expected::Pass { .. }) if times == 1 => Some(PASS_NEEDS_TIMES),
        _ => None,
    }
}

fn at_named_column(line: &Line<'_>) -> bool {
    line.peek().is_some_and(|token| matches!(token.text, "rule" | "limit"))
}

pub(crate) fn outcome(line: &mut Line<'_>) -> Result<Expected, Mistake> {
    let word = line.peek().filter(|token| OUTCOMES.contains(&token.text));
    let Some(word) = word else { return Err(line.mistake(AN_OUTCOME)) };
    line.next_of(Kind::Word);
    Ok(match word.text {
        "retry" => Expected::Retry(within(line)?),
        "after" => Expected::After(within(line)?),
        "refuse" => Expected::Refuse,
        "never" => Expected::Never,
        "took" => Expected::Took(count(line, A_COST)?),
        "pass" => pass(line)?,
        _ => Expected::Allow,
    })
}

/// `pass 3`, or `pass 989..990` where both counts are correct.
fn pass(line: &mut Line<'_>) -> Result<Expected, Mistake> {
    let mark = line.mark();
    let fewest = count(line, A_COUNT)?;
    let most = if line.takes("..") { count(line, A_COUNT)? } else { fewest };
    if most < fewest {
        return Err(line.mistake_at(mark, "the smaller number first, as in 989..990"));
    }
    Ok(Expected::Pass { fewest, most })
}

fn at_times(line: &Line<'_>) -> bool {
    line.peek().is_some_and(|token| match token.text.strip_prefix('x') {
        Some(digits) => digits.chars().all(|c| c.is_ascii_digit() || c == '_'),
        None => token.text == "×",
    })
}

/// `x16`, `x 16` or `×16`.
fn times(line: &mut Line<'_>) -> Result<u32, Mistake> {
    let mark = line.mark();
    let glued = line.next_of(Kind::Word).map_or("", |word| &word.text[1..]);
    let digits = match glued {
        "" => {
            line.takes("×");
            line.next_of(Kind::Number).map_or("", |number| number.text)
        }
        digits => digits,
    };
    let times = digits.replace('_', "").parse().ok().filter(|times| (1..=MOST_TIMES).contains(times));
    times.ok_or_else(|| line.mistake_at(mark, TIMES))
}

/// A whole number that fits its type.
pub(crate) fn count<T: std::str::FromStr>(line: &mut Line<'_>, expected: &str) -> Result<T, Mistake> {
    let mark = line.mark();
    let has_unit = time::at_stretch(line);
    let number = line.next_of(Kind::Number).filter(|_| !has_unit);
    let number = number.and_then(|number| number.text.replace('_', "").parse().ok());
    number.ok_or_else(|| line.mistake_at(mark, expected))
}

/// A length of time; with `~` before it, give or take a microsecond.
fn within(line: &mut Line<'_>) -> Result<Within, Mistake> {
    let slack = u64::from(line.takes("~"));
    Ok(Within::around(time::span(line)?, slack))
}

/// As [`within`], for lists.
fn within_single(line: &mut Line<'_>) -> Result<Within, Mistake> {
    let slack = u64::from(line.takes("~"));
    Ok(Within::around(time::single(line)?, slack))
}

fn counts(line: &mut Line<'_>, rules: Rules<'_>) -> Result<Option<Values<u64>>, Mistake> {
    let number = |line: &mut Line<'_>| count(line, A_COUNT);
    values(line, rules, number, number)
}

/// One value, or `[…]` with one for each rule.
fn values<'l, T>(
    line: &mut Line<'l>,
    rules: Rules<'_>,
    lone: impl Fn(&mut Line<'l>) -> Result<T, Mistake>,
    each: impl Fn(&mut Line<'l>) -> Result<T, Mistake>,
) -> Result<Option<Values<T>>, Mistake> {
    let mark = line.mark();
    if !line.takes("[") {
        return lone(line).map(|value| Some(Values::Lone(value)));
    }
    let mut list = Vec::new();
    while !line.takes("]") {
        list.push(if line.takes("-") { None } else { Some(each(line)?) });
        line.takes(",");
    }
    match rules.names {
        Some(names) if names.len() != list.len() => {
            Err(line
                .mistake_at(mark, format_args!("in brackets one value for each rule, {} here", names.len())))
        }
        _ => Ok(Some(Values::Each(list))),
    }
}

// === impl Within ===

impl Within {
    fn around(micros: u64, slack: u64) -> Self {
        Within { least: micros.saturating_sub(slack), most: micros.saturating_add(slack) }
    }
}

// === impl Rules ===

impl Rules<'_> {
    /// The position of the rule that the line names, by its name or its number from 1.
    ///
    /// `None` if it is unknown, because the rules themselves have mistakes.
    pub(crate) fn position(self, line: &mut Line<'_>) -> Result<Option<usize>, Mistake> {
        let mark = line.mark();
        let token = line.next_of(Kind::Number).or_else(|| line.next_of(Kind::Word));
        let Some(names) = self.names else { return Ok(None) };
        let position = token.and_then(|token| match token.text.parse::<usize>() {
            Ok(number) => number.checked_sub(1).filter(|&position| position < names.len()),
            Err(_) => names.iter().position(|name| name.as_deref() == Some(token.text)),
        });
        position.map(Some).ok_or_else(|| line.mistake_at(mark, self.choices()))
    }

    /// The available rules, as text.
    pub(crate) fn choices(self) -> String {
        let names = self.names.unwrap_or_default().iter().flatten().map(String::as_str);
        let count = self.names.unwrap_or_default().len();
        let numbers = if count == 1 { "1".to_owned() } else { format!("1 to {count}") };
        let choices: Vec<_> = [numbers.as_str()].into_iter().chain(names).collect();
        format!("a rule of this case: {}", choices.join(", "))
    }
}

/// The instant of the `index`-th request of a row that starts at `first`.
pub(crate) fn instant_of(first: Micros, every: u64, index: u32) -> Micros {
    first.plus(every.saturating_mul(u64::from(index)))
}
