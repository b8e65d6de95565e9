//! # Limits as text or in parts
//!
//! A limit in parts is assembled into a text, so that one parser reads both: the parser of the core crate, which parses
//! the text again at run time. Errors use the parser's own messages.

use syn::{Error, Ident, LitInt, LitStr, Result};
use tidegate_core::{Quota, Rule};

use crate::arguments::{Arguments, Named};
use crate::limits::Limit;
use crate::suggest::nearest;

const BUCKETS: [&str; 4] = ["token_bucket", "gcra", "leaky_meter", "stepped_bucket"];
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
const CELLS: u32 = 10;

/// Parses a limit from text. The error is the message of the parser.
pub(crate) fn rate(text: &str) -> std::result::Result<Limit, String> {
    let rule: Rule = text.parse().map_err(|invalid| format!("{invalid}"))?;
    let queues = matches!(rule, Rule::LeakyQueue(_) | Rule::NginxQueue(_));
    Ok(Limit::Rate { text: text.trim().to_owned(), queues })
}

/// Assembles a limit in parts into a text and parses that.
pub(crate) fn in_parts(arguments: &Arguments, first: &Ident) -> Result<Limit> {
    let algorithm = algorithm(arguments.algorithm.as_ref())?;
    let limit = needed(arguments.limit.as_ref(), first, "limit", "100")?;
    let per = needed(arguments.per.as_ref(), first, "per", "\"1m\"")?;
    length_of_time(per)?;
    let number = |named: &Named<LitInt>| named.value.base10_parse::<u64>();
    let mut text = format!("{algorithm} {} per {}", number(limit)?, per.value.value().trim());
    if let Some(burst) = &arguments.burst {
        only_for(&burst.name, &BUCKETS, &algorithm)?;
        text += &format!(" burst {}", number(burst)?);
    }
    if let Some(cells) = &arguments.cells {
        only_for(&cells.name, &["sliding_window"], &algorithm)?;
        text += &format!(" cells {}", number(cells)?);
    } else if algorithm == "sliding_window" {
        text += &format!(" cells {CELLS}");
    }
    if let Some(queue) = &arguments.queue {
        only_for(&queue.name, &["leaky_queue"], &algorithm)?;
        text += &format!(" queue {}", number(queue)?);
    } else if algorithm == "leaky_queue" {
        needed(arguments.queue.as_ref(), first, "queue", "5")?;
    }
    rate(&text).map_err(|why| Error::new(limit.value.span(), without_place(&why)))
}

fn algorithm(named: Option<&Named<Ident>>) -> Result<String> {
    let Some(Named { value, .. }) = named else { return Ok(ALGORITHMS[0].to_owned()) };
    let written = value.to_string();
    if ALGORITHMS.contains(&written.as_str()) {
        return Ok(written);
    }
    let remedy = match nearest(&written, &ALGORITHMS) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("there are {}", ALGORITHMS.join(", ")),
    };
    Err(Error::new(value.span(), format!("there is no algorithm `{written}`; {remedy}")))
}

fn needed<'a, T>(
    named: Option<&'a Named<T>>,
    first: &Ident,
    name: &str,
    value: &str,
) -> Result<&'a Named<T>> {
    let why =
        || format!("this limit, which is said in parts, has no `{name}`; add one, as in `{name} = {value}`");
    named.ok_or_else(|| Error::new(first.span(), why()))
}

fn only_for(name: &Ident, algorithms: &[&str], algorithm: &str) -> Result<()> {
    if algorithms.contains(&algorithm) {
        return Ok(());
    }
    let why = format!("`{name}` is of {}, and this is a {algorithm}; leave it out", algorithms.join(", "));
    Err(Error::new(name.span(), why))
}

/// The duration in nanoseconds, as the parser of quotas reads it.
pub(crate) fn length_of_time(named: &Named<LitStr>) -> Result<u64> {
    let Named { name, value } = named;
    let quota = format!("1 per {}", value.value().trim()).parse::<Quota>().map_err(|why| {
        let (why, such) = (why.to_string(), "a length of time, such as \"200ms\"");
        Error::new(value.span(), format!("`{name}` takes {such}: {}", without_place(&why)))
    })?;
    u64::try_from(quota.period().as_nanos())
        .map_err(|_| Error::new(value.span(), format!("`{name}` is longer than can be counted; use less")))
}

/// The parser's message without its position, for a text that is not in the source.
fn without_place(why: &str) -> &str {
    why.strip_prefix("at character ").and_then(|rest| rest.split_once(": ")).map_or(why, |(_, why)| why)
}
