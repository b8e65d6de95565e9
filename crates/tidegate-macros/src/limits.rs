//! # Limits of a function
//!
//! Converts the arguments of the attributes of a function into the request that is sent to a limiter before each call.
//! Arguments that contradict each other, and limits that could never allow a call, are rejected here.

use proc_macro2::Span;
use quote::ToTokens;
use syn::{Error, Expr, ExprLit, Ident, Lit, LitInt, LitStr, Path, Result};
use tidegate_core::{Algorithm, Micros, Outcome, Rule};

use crate::arguments::{Arguments, Named};
use crate::rule_text::{duration_nanos, from_parts, parse_rate};

/// All limits that are checked before a call.
pub(crate) struct Limits {
    pub(crate) limiter: Limiter,
    /// Key and cost of each attribute, in order.
    pub(crate) terms: Vec<Terms>,
    pub(crate) queries: Vec<RuleQuery>,
    /// The longest wait, in nanoseconds.
    pub(crate) wait: Option<u64>,
    pub(crate) otherwise: Option<Path>,
    pub(crate) tidegate: Option<Path>,
}

/// The limiter to query.
pub(crate) enum Limiter {
    /// A limiter of the function's own, with these limits.
    Own(Vec<Limit>),
    /// A limiter given by the `limiter` argument.
    Given(Expr),
}

/// A limit of the function's own limiter.
pub(crate) enum Limit {
    Rate { text: String, is_queue: bool },
    Concurrency(u32),
}

/// The key that a limit applies to, and the cost of a call.
pub(crate) struct Terms {
    pub(crate) key: Option<Expr>,
    pub(crate) cost: Option<Expr>,
    span: Span,
}

/// The query of one rule, with the terms of the attribute with index `terms`.
pub(crate) struct RuleQuery {
    pub(crate) rule: RuleRef,
    pub(crate) terms: usize,
    pub(crate) with_cost: bool,
}

pub(crate) enum RuleRef {
    Numbered(u16),
    Named(Expr),
}

impl Limits {
    /// Combines the attributes of a function. `None` if the function is not limited.
    pub(crate) fn new(attributes: Vec<Arguments>) -> Result<Option<Self>> {
        if let Some(unlimited) = attributes.iter().find_map(|arguments| arguments.unlimited.as_ref()) {
            return check_unlimited(unlimited, &attributes);
        }
        let mut common = Common::default();
        let (mut own, mut queries, mut terms) = (Vec::new(), Vec::new(), Vec::new());
        for arguments in attributes {
            let arguments = common.take_from(arguments)?;
            let limits = limits_of(&arguments, common.limiter.as_ref())?;
            check_key(arguments.key.as_ref())?;
            check_cost(arguments.cost.as_ref(), &limits, common.limiter.is_some())?;
            let span = span_of(&arguments);
            add_queries(arguments.rule, terms.len(), limits, &mut own, &mut queries)?;
            let [key, cost] = [arguments.key, arguments.cost].map(|named| named.map(|named| named.value));
            terms.push(Terms { key, cost, span });
        }
        if let (Some(limiter), false) = (&common.limiter, own.is_empty()) {
            return Err(limits_and_limiter(&limiter.name));
        }
        check_no_duplicate(&queries, &terms)?;
        let limiter = match common.limiter {
            Some(limiter) => Limiter::Given(limiter.value),
            None => Limiter::Own(own),
        };
        let wait = common.wait.map(|wait| duration_nanos(&wait)).transpose()?;
        let [otherwise, tidegate] =
            [common.otherwise, common.tidegate].map(|path| path.map(|named| named.value));
        Ok(Some(Limits { limiter, terms, queries, wait, otherwise, tidegate }))
    }

    /// Whether an allowed call may have to wait first.
    pub(crate) fn may_queue(&self) -> bool {
        match &self.limiter {
            Limiter::Own(limits) => {
                limits.iter().any(|limit| matches!(limit, Limit::Rate { is_queue: true, .. }))
            }
            Limiter::Given(_) => true,
        }
    }
}

/// Arguments that apply to all attributes of a function.
#[derive(Default)]
struct Common {
    wait: Option<Named<LitStr>>,
    otherwise: Option<Named<Path>>,
    limiter: Option<Named<Expr>>,
    tidegate: Option<Named<Path>>,
}

impl Common {
    /// Moves the common arguments out of `arguments`.
    fn take_from(&mut self, mut arguments: Arguments) -> Result<Arguments> {
        set_once(&mut self.wait, arguments.wait.take())?;
        set_once(&mut self.otherwise, arguments.otherwise.take())?;
        set_once(&mut self.limiter, arguments.limiter.take())?;
        set_once(&mut self.tidegate, arguments.tidegate.take())?;
        Ok(arguments)
    }
}

fn set_once<T>(into: &mut Option<Named<T>>, from: Option<Named<T>>) -> Result<()> {
    match from {
        Some(named) if into.is_some() => {
            let Named { name, .. } = named;
            Err(Error::new(
                name.span(),
                format!("`{name}` applies to the whole function; keep it in only one of its attributes"),
            ))
        }
        Some(named) => {
            *into = Some(named);
            Ok(())
        }
        None => Ok(()),
    }
}

fn check_unlimited(unlimited: &Ident, attributes: &[Arguments]) -> Result<Option<Limits>> {
    let other = attributes.iter().find_map(Arguments::first_limiting_argument);
    if attributes.len() > 1 || other.is_some() {
        let other = other.map_or_else(|| "another attribute".to_owned(), |other| format!("`{other}`"));
        let message = format!("`unlimited` contradicts {other}; remove one of them");
        return Err(Error::new(unlimited.span(), message));
    }
    Ok(None)
}

/// The limits in one attribute.
fn limits_of(arguments: &Arguments, limiter: Option<&Named<Expr>>) -> Result<Vec<Limit>> {
    let mut limits = Vec::new();
    for text in &arguments.texts {
        limits.push(parse_rate(&text.value()).map_err(|message| Error::new(text.span(), message))?);
    }
    if let Some(part) = arguments.parts().next() {
        if !arguments.texts.is_empty() {
            let message = format!(
                "`{part}` cannot be combined with a limit as text; move `{part}` into the text, or remove the text"
            );
            return Err(Error::new(part.span(), message));
        }
        limits.push(from_parts(arguments, part)?);
    }
    if let Some(Named { name, value }) = &arguments.concurrency {
        limits.push(concurrency(name, value)?);
    }
    match limiter {
        Some(limiter) if !limits.is_empty() => return Err(limits_and_limiter(&limiter.name)),
        Some(_) => {}
        None => check_without_limiter(arguments, &limits)?,
    }
    Ok(limits)
}

fn limits_and_limiter(limiter: &Ident) -> Error {
    let message = "`limiter` cannot be combined with limits in the attribute; \
                   remove `limiter`, or configure the limits in it";
    Error::new(limiter.span(), message)
}

fn check_without_limiter(arguments: &Arguments, limits: &[Limit]) -> Result<()> {
    if let Some(rule) = &arguments.rule {
        let message = "`rule` selects a rule of a limiter; add `limiter = …`, or remove `rule`";
        return Err(Error::new(rule.name.span(), message));
    }
    if limits.is_empty() {
        let message = "missing limit; add a quota as in `#[rate_limit(\"5/s burst 10\")]`, \
                   or `concurrency = 10`, or `limiter = …`";
        return Err(Error::new(Span::call_site(), message));
    }
    Ok(())
}

fn concurrency(name: &Ident, number: &LitInt) -> Result<Limit> {
    match number.base10_parse::<u32>()? {
        0 => Err(Error::new(number.span(), format!("a {name} of 0 would refuse every call; use 1 or more"))),
        limit => Ok(Limit::Concurrency(limit)),
    }
}

// === Key, cost and rule ===

fn check_key(key: Option<&Named<Expr>>) -> Result<()> {
    match key {
        Some(Named { name, value: Expr::Tuple(tuple) }) if tuple.elems.is_empty() => Err(Error::new(
            name.span(),
            "an empty tuple is not a key; remove `key` for a limit that all calls share",
        )),
        _ => Ok(()),
    }
}

fn check_cost(cost: Option<&Named<Expr>>, limits: &[Limit], given: bool) -> Result<()> {
    let Some(Named { name, value }) = cost else { return Ok(()) };
    let is_rate = |limit: &Limit| matches!(limit, Limit::Rate { .. });
    if !given && !limits.iter().any(is_rate) {
        let message = "`cost` applies only to rates: under a concurrency limit, every call takes one permit; \
                       remove `cost`";
        return Err(Error::new(name.span(), message));
    }
    let Some(number) = integer_literal(value) else { return Ok(()) };
    if number.base10_parse::<u32>()? == 0 {
        let message = "a call with cost 0 is never refused; use 1 or more, or remove `cost`";
        return Err(Error::new(number.span(), message));
    }
    limits.iter().try_for_each(|limit| check_cost_fits(limit, number))
}

/// Checks that a limit can ever allow this cost.
fn check_cost_fits(limit: &Limit, cost: &LitInt) -> Result<()> {
    let Limit::Rate { text, .. } = limit else { return Ok(()) };
    let Ok(rule) = text.parse::<Rule>() else { return Ok(()) };
    let fresh = vec![0; rule.words()];
    let decision = rule.peek(fresh.as_slice(), Micros::ZERO, cost.base10_parse()?);
    match decision.outcome {
        Outcome::Never => {
            let message = format!(
                "cost {cost} exceeds the limit of {}: the call would never be allowed; use {0} or less, or another quota",
                decision.limit()
            );
            Err(Error::new(cost.span(), message))
        }
        _ => Ok(()),
    }
}

fn integer_literal(value: &Expr) -> Option<&LitInt> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => Some(number),
        _ => None,
    }
}

/// Adds the queries of one attribute.
fn add_queries(
    rule: Option<Named<Expr>>,
    terms: usize,
    limits: Vec<Limit>,
    own: &mut Vec<Limit>,
    queries: &mut Vec<RuleQuery>,
) -> Result<()> {
    if limits.is_empty() {
        let rule = rule.map_or(Ok(RuleRef::Numbered(0)), |named| rule_ref(named.value))?;
        queries.push(RuleQuery { rule, terms, with_cost: true });
    }
    for limit in limits {
        let number = u16::try_from(own.len()).map_err(|_| {
            Error::new(Span::call_site(), "too many limits on one function; use at most 65536")
        })?;
        let with_cost = matches!(limit, Limit::Rate { .. }); // with concurrency, a call takes one permit
        queries.push(RuleQuery { rule: RuleRef::Numbered(number), terms, with_cost });
        own.push(limit);
    }
    Ok(())
}

/// The span of the argument that determines the query, for error messages.
fn span_of(arguments: &Arguments) -> Span {
    let named = [&arguments.rule, &arguments.key, &arguments.cost].into_iter().flatten().next();
    named.map_or_else(Span::call_site, |named| named.name.span())
}

/// Checks that no query repeats an earlier one.
fn check_no_duplicate(queries: &[RuleQuery], terms: &[Terms]) -> Result<()> {
    let text = |query: &RuleQuery| {
        let rule = match &query.rule {
            RuleRef::Numbered(number) => number.to_string(),
            RuleRef::Named(rule) => rule.to_token_stream().to_string(),
        };
        (rule, terms[query.terms].key.as_ref().map(|key| key.to_token_stream().to_string()))
    };
    let texts: Vec<_> = queries.iter().map(text).collect();
    match (1..queries.len()).find(|last| texts[..*last].contains(&texts[*last])) {
        None => Ok(()),
        Some(duplicate) => {
            let message = "another attribute checks the same rule with the same key; \
                       add `rule = …` to one of them, or remove one";
            Err(Error::new(terms[queries[duplicate].terms].span, message))
        }
    }
}

fn rule_ref(value: Expr) -> Result<RuleRef> {
    match integer_literal(&value) {
        Some(number) => Ok(RuleRef::Numbered(number.base10_parse()?)),
        None => Ok(RuleRef::Named(value)),
    }
}
