//! # Limits as text or as arguments
//!
//! A limit given by arguments (`limit = 100, per = "1m"`) is assembled into a text, so that one parser reads both: the
//! parser of the core crate, which also parses the text at run time. Errors have the messages of that parser.

use syn::{Error, Ident, LitInt, LitStr, Result};
use tidegate_core::{Quota, Rule};

use crate::arguments::{Arguments, Named};
use crate::limits::Limit;
use crate::suggest::nearest;

const BUCKET_ALGORITHMS: [&str; 4] = ["token_bucket", "gcra", "leaky_meter", "stepped_bucket"];
const ALGORITHMS: [&str; 8] = [
    "token_bucket",
    "gcra",
    "leaky_meter",
    "stepped_bucket",
    "leaky_queue",
    "fixed_window",
    "sliding_log",
    "sliding_window",
];
/// The default number of cells of a sliding window.
const DEFAULT_CELLS: u32 = 10;

/// Parses a limit from text. The error is the message of the parser.
pub(crate) fn parse_rate(text: &str) -> std::result::Result<Limit, String> {
    let rule: Rule = text.parse().map_err(|invalid| format!("{invalid}"))?;
    let is_queue = matches!(rule, Rule::LeakyQueue(_) | Rule::NginxQueue(_));
    Ok(Limit::Rate { text: text.trim().to_owned(), is_queue })
}

/// Assembles a limit given by arguments into a text and parses that.
pub(crate) fn from_parts(arguments: &Arguments, first: &Ident) -> Result<Limit> {
    let algorithm = algorithm(arguments.algorithm.as_ref())?;
    let limit = required(arguments.limit.as_ref(), first, "limit", "100")?;
    let per = required(arguments.per.as_ref(), first, "per", "\"1m\"")?;
    duration_nanos(per)?; // only for its error, which points at `per`
    let number = |named: &Named<LitInt>| named.value.base10_parse::<u64>();
    let mut text = format!("{algorithm} {} per {}", number(limit)?, per.value.value().trim());
    if let Some(burst) = &arguments.burst {
        only_for(&burst.name, &BUCKET_ALGORITHMS, &algorithm)?;
        text += &format!(" burst {}", number(burst)?);
    }
    if let Some(cells) = &arguments.cells {
        only_for(&cells.name, &["sliding_window"], &algorithm)?;
        text += &format!(" cells {}", number(cells)?);
    } else if algorithm == "sliding_window" {
        text += &format!(" cells {DEFAULT_CELLS}");
    }
    if let Some(queue) = &arguments.queue {
        only_for(&queue.name, &["leaky_queue"], &algorithm)?;
        text += &format!(" queue {}", number(queue)?);
    } else if algorithm == "leaky_queue" {
        required(arguments.queue.as_ref(), first, "queue", "5")?;
    }
    parse_rate(&text).map_err(|message| Error::new(limit.value.span(), without_position(&message)))
}

fn algorithm(named: Option<&Named<Ident>>) -> Result<String> {
    let Some(Named { value, .. }) = named else { return Ok(ALGORITHMS[0].to_owned()) };
    let name = value.to_string();
    if ALGORITHMS.contains(&name.as_str()) {
        return Ok(name);
    }
    let remedy = match nearest(&name, &ALGORITHMS) {
        Some(suggestion) => format!("did you mean `{suggestion}`?"),
        None => format!("expected one of {}", ALGORITHMS.join(", ")),
    };
    Err(Error::new(value.span(), format!("unknown algorithm `{name}`; {remedy}")))
}

fn required<'a, T>(
    named: Option<&'a Named<T>>,
    first: &Ident,
    name: &str,
    value: &str,
) -> Result<&'a Named<T>> {
    let message = || {
        format!("missing argument `{name}` of a limit given by arguments; add it, as in `{name} = {value}`")
    };
    named.ok_or_else(|| Error::new(first.span(), message()))
}

fn only_for(name: &Ident, algorithms: &[&str], algorithm: &str) -> Result<()> {
    if algorithms.contains(&algorithm) {
        return Ok(());
    }
    let message =
        format!("`{name}` does not apply to {algorithm}, only to {}; remove it", algorithms.join(", "));
    Err(Error::new(name.span(), message))
}

/// Parses a duration as the period of a quota. Returns nanoseconds.
pub(crate) fn duration_nanos(named: &Named<LitStr>) -> Result<u64> {
    let Named { name, value } = named;
    let quota = format!("1 per {}", value.value().trim()).parse::<Quota>().map_err(|message| {
        let message = message.to_string();
        let problem = without_position(&message);
        Error::new(value.span(), format!("`{name}` is not a duration: {problem}; write it as in \"200ms\""))
    })?;
    u64::try_from(quota.period().as_nanos())
        .map_err(|_| Error::new(value.span(), format!("`{name}` is too long; use a shorter duration")))
}

/// The parser's message without its position, for a text that is not in the source.
fn without_position(message: &str) -> &str {
    message
        .strip_prefix("at character ")
        .and_then(|rest| rest.split_once(": "))
        .map_or(message, |(_, message)| message)
}
