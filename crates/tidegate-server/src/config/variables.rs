//! # Secrets that are not in the file
//!
//! `${NAME}` inside a value is what the environment says, `${NAME:-otherwise}` has something to fall back on, and
//! `$${` is `${`. Variables are put in after the file was parsed, value by value: whatever a variable holds, it stays
//! one value and cannot become a field. Names of fields are left alone.

use super::fault::{Fault, Faults, VARIABLE};
use super::node::{Kind, Node, Scalar};
use super::source::Span;

/// What the environment says of a name. A function, so that a test has an environment of its own.
pub type Variables<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Puts the variables into every value of a tree.
pub(crate) fn fill(node: &mut Node, variables: &Variables<'_>, faults: &mut Faults) {
    let span = node.span;
    match &mut node.kind {
        Kind::Nothing => {}
        Kind::Scalar(scalar) => fill_scalar(scalar, span, variables, faults),
        Kind::List(items) => items.iter_mut().for_each(|item| fill(item, variables, faults)),
        Kind::Table(entries) => entries.iter_mut().for_each(|(_, value)| fill(value, variables, faults)),
    }
}

fn fill_scalar(scalar: &mut Scalar, span: Span, variables: &Variables<'_>, faults: &mut Faults) {
    if !scalar.text.contains("${") {
        return;
    }
    let mut names = Vec::new();
    match filled(&scalar.text, variables, &mut names) {
        Ok(text) => (scalar.text, scalar.variables) = (text, names),
        Err(fault) => faults.push(fault.at(span)),
    }
}

fn filled(text: &str, variables: &Variables<'_>, names: &mut Vec<String>) -> Result<String, Box<Fault>> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, after) = (&rest[..at], &rest[at + 2..]);
        if let Some(before) = before.strip_suffix('$') {
            filled.push_str(before);
            filled.push_str("${");
            rest = after;
            continue;
        }
        let (inside, after) = after.split_once('}').ok_or_else(unclosed)?;
        filled.push_str(before);
        filled.push_str(&value_of(inside, variables)?);
        names.push(name_in(inside).0.to_owned());
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

fn value_of(inside: &str, variables: &Variables<'_>) -> Result<String, Box<Fault>> {
    let (name, otherwise) = name_in(inside);
    if !is_name(name) {
        let fault = Fault::error(VARIABLE, format!("`{name}` is no name of a variable"))
            .label("expected letters, digits and `_` after `${`")
            .help("write `$${` if you mean the characters `${`");
        return Err(Box::new(fault));
    }
    let set = variables(name).filter(|value| !value.is_empty());
    set.or(otherwise.map(str::to_owned)).ok_or_else(|| {
        let fault = Fault::error(VARIABLE, format!("the environment variable {name} is not set"))
            .label(format!("expected {name} in the environment"))
            .help(format!("set it, or give a value to fall back on: `${{{name}:-value}}`"));
        Box::new(fault)
    })
}

/// The name, and what to fall back on.
fn name_in(inside: &str) -> (&str, Option<&str>) {
    match inside.split_once(":-") {
        Some((name, otherwise)) => (name, Some(otherwise)),
        None => (inside, None),
    }
}

fn is_name(name: &str) -> bool {
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts_well && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn unclosed() -> Box<Fault> {
    let fault = Fault::error(VARIABLE, "`${` without `}`")
        .label("expected `${NAME}` or `${NAME:-otherwise}`")
        .help("write `$${` if you mean the characters `${`");
    Box::new(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(text: &str) -> Result<String, String> {
        let environment = |name: &str| match name {
            "HOST" => Some("redis.internal".to_owned()),
            "EMPTY" => Some(String::new()),
            "TRICK" => Some("x}\nrules: ${HOST}".to_owned()),
            _ => None,
        };
        filled(text, &environment, &mut Vec::new()).map_err(|fault| fault.message)
    }

    #[test]
    fn variables_are_put_in() {
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(fill("redis://${HOST}:6379/${DB:-0}"), ok("redis://redis.internal:6379/0"));
        assert_eq!(fill("${EMPTY:-x}${NONE:-}"), ok("x"));
        assert_eq!(fill("$${HOST} costs 5$"), ok("${HOST} costs 5$"));
        assert_eq!(
            fill("${TRICK}"),
            ok("x}\nrules: ${HOST}"),
            "what a variable holds is not looked at again"
        );
    }

    #[test]
    fn a_missing_variable_is_named() {
        let not = |text: &str| Err(text.to_owned());
        assert_eq!(fill("${NONE}"), not("the environment variable NONE is not set"));
        assert_eq!(fill("${EMPTY}"), not("the environment variable EMPTY is not set"));
        assert_eq!(fill("${HOST"), not("`${` without `}`"));
        assert_eq!(fill("${a b}"), not("`a b` is no name of a variable"));
        assert_eq!(fill("${}"), not("`` is no name of a variable"));
    }
}
