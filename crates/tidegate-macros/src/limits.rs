//! # Limits of a function
//!
//! Converts the arguments of one or more attributes on a function into the request to a limiter before each call.
//! Arguments that contradict each other, and limits that could never allow a call, are rejected here.

use proc_macro2::Span;
use quote::ToTokens;
use syn::{Error, Expr, ExprLit, Ident, Lit, LitInt, LitStr, Path, Result};
use tidegate_core::{Algorithm, Micros, Outcome, Rule};

use crate::arguments::{Arguments, Named};
use crate::text::{in_parts, length_of_time, rate};

/// All limits that are checked before a call.
pub(crate) struct Limits {
    pub(crate) limiter: Limiter,
    /// Key and cost of each attribute, in order.
    pub(crate) terms: Vec<Terms>,
    pub(crate) asks: Vec<Ask>,
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
    Rate { text: String, queues: bool },
    Concurrency(u32),
}

/// The key that a limit applies to, and the cost of a call.
pub(crate) struct Terms {
    pub(crate) key: Option<Expr>,
    pub(crate) cost: Option<Expr>,
    place: Span,
}

/// The query of one rule, with the terms of the attribute with index `terms`.
pub(crate) struct Ask {
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
            return unlimited_alone(unlimited, &attributes);
        }
        let mut common = Common::default();
        let (mut own, mut asks, mut terms) = (Vec::new(), Vec::new(), Vec::new());
        for arguments in attributes {
            let arguments = common.take_from(arguments)?;
            let limits = limits_of(&arguments, common.limiter.as_ref())?;
            check_key(arguments.key.as_ref())?;
            check_cost(arguments.cost.as_ref(), &limits, common.limiter.is_some())?;
            let place = place_of(&arguments);
            ask(arguments.rule, terms.len(), limits, &mut own, &mut asks)?;
            let [key, cost] = [arguments.key, arguments.cost].map(|named| named.map(|named| named.value));
            terms.push(Terms { key, cost, place });
        }
        if let (Some(limiter), false) = (&common.limiter, own.is_empty()) {
            return Err(two_limiters(&limiter.name));
        }
        check_asked_once(&asks, &terms)?;
        let limiter = match common.limiter {
            Some(limiter) => Limiter::Given(limiter.value),
            None => Limiter::Own(own),
        };
        let wait = common.wait.map(|wait| length_of_time(&wait)).transpose()?;
        let [otherwise, tidegate] =
            [common.otherwise, common.tidegate].map(|path| path.map(|named| named.value));
        Ok(Some(Limits { limiter, terms, asks, wait, otherwise, tidegate }))
    }

    /// Whether an allowed call may have to wait first.
    pub(crate) fn may_queue(&self) -> bool {
        match &self.limiter {
            Limiter::Own(limits) => {
                limits.iter().any(|limit| matches!(limit, Limit::Rate { queues: true, .. }))
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
        once(&mut self.wait, arguments.wait.take())?;
        once(&mut self.otherwise, arguments.otherwise.take())?;
        once(&mut self.limiter, arguments.limiter.take())?;
        once(&mut self.tidegate, arguments.tidegate.take())?;
        Ok(arguments)
    }
}

fn once<T>(into: &mut Option<Named<T>>, from: Option<Named<T>>) -> Result<()> {
    match from {
        Some(named) if into.is_some() => {
            let Named { name, .. } = named;
            Err(Error::new(
                name.span(),
                format!("`{name}` is for the whole function; write it in one of its attributes"),
            ))
        }
        Some(named) => {
            *into = Some(named);
            Ok(())
        }
        None => Ok(()),
    }
}

fn unlimited_alone(unlimited: &Ident, attributes: &[Arguments]) -> Result<Option<Limits>> {
    let other = attributes.iter().find_map(Arguments::others);
    if attributes.len() > 1 || other.is_some() {
        let other = other.map_or_else(|| "another attribute".to_owned(), |other| format!("`{other}`"));
        let why = format!("`unlimited` and {other} contradict each other; keep one");
        return Err(Error::new(unlimited.span(), why));
    }
    Ok(None)
}

/// The limits in one attribute.
fn limits_of(arguments: &Arguments, limiter: Option<&Named<Expr>>) -> Result<Vec<Limit>> {
    let mut limits = Vec::new();
    for text in &arguments.texts {
        limits.push(rate(&text.value()).map_err(|why| Error::new(text.span(), why))?);
    }
    if let Some(part) = arguments.parts().next() {
        if !arguments.texts.is_empty() {
            let why = format!(
                "a limit is said as text or in parts, not both; put `{part}` into the text, or leave the text out"
            );
            return Err(Error::new(part.span(), why));
        }
        limits.push(in_parts(arguments, part)?);
    }
    if let Some(Named { name, value }) = &arguments.concurrency {
        limits.push(concurrency(name, value)?);
    }
    match limiter {
        Some(limiter) if !limits.is_empty() => return Err(two_limiters(&limiter.name)),
        Some(_) => {}
        None => check_own(arguments, &limits)?,
    }
    Ok(limits)
}

fn two_limiters(limiter: &Ident) -> Error {
    let why =
        "a limiter has limits of its own; leave out `limiter`, or write the limits where the limiter is made";
    Error::new(limiter.span(), why)
}

fn check_own(arguments: &Arguments, limits: &[Limit]) -> Result<()> {
    if let Some(rule) = &arguments.rule {
        let why = "`rule` is one of a limiter's; add `limiter = …`, or leave it out";
        return Err(Error::new(rule.name.span(), why));
    }
    if limits.is_empty() {
        let why = "no limit is given; write a quota as in `#[rate_limit(\"5/s burst 10\")]`, \
                   or `concurrency = 10`, or `limiter = …`";
        return Err(Error::new(Span::call_site(), why));
    }
    Ok(())
}

fn concurrency(name: &Ident, number: &LitInt) -> Result<Limit> {
    match number.base10_parse::<u32>()? {
        0 => Err(Error::new(number.span(), format!("a {name} of 0 lets nobody in; use 1 or more"))),
        limit => Ok(Limit::Concurrency(limit)),
    }
}

// === Key, cost and rule ===

fn check_key(key: Option<&Named<Expr>>) -> Result<()> {
    match key {
        Some(Named { name, value: Expr::Tuple(tuple) }) if tuple.elems.is_empty() => Err(Error::new(
            name.span(),
            "an empty tuple is nobody's key; leave out `key` for a limit that is everybody's",
        )),
        _ => Ok(()),
    }
}

fn check_cost(cost: Option<&Named<Expr>>, limits: &[Limit], given: bool) -> Result<()> {
    let Some(Named { name, value }) = cost else { return Ok(()) };
    let is_rate = |limit: &Limit| matches!(limit, Limit::Rate { .. });
    if !given && !limits.iter().any(is_rate) {
        let why =
            "`cost` is what a call takes of a rate, and here is none; leave it out: a call takes one place";
        return Err(Error::new(name.span(), why));
    }
    let Some(number) = number_of(value) else { return Ok(()) };
    if number.base10_parse::<u32>()? == 0 {
        let why = "a cost of 0 is never refused; use 1 or more, or leave it out";
        return Err(Error::new(number.span(), why));
    }
    limits.iter().try_for_each(|limit| fits(limit, number))
}

/// Checks that a limit can ever allow this cost.
fn fits(limit: &Limit, cost: &LitInt) -> Result<()> {
    let Limit::Rate { text, .. } = limit else { return Ok(()) };
    let Ok(rule) = text.parse::<Rule>() else { return Ok(()) };
    let unused = vec![0; rule.words()];
    let decision = rule.peek(unused.as_slice(), Micros::ZERO, cost.base10_parse()?);
    match decision.outcome {
        Outcome::Never => {
            let why = format!(
                "a cost of {cost} exceeds the limit of {}; use {0} or less, or another quota",
                decision.limit()
            );
            Err(Error::new(cost.span(), why))
        }
        _ => Ok(()),
    }
}

fn number_of(value: &Expr) -> Option<&LitInt> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => Some(number),
        _ => None,
    }
}

/// Adds the queries of one attribute.
fn ask(
    rule: Option<Named<Expr>>,
    terms: usize,
    limits: Vec<Limit>,
    own: &mut Vec<Limit>,
    asks: &mut Vec<Ask>,
) -> Result<()> {
    if limits.is_empty() {
        let rule = rule.map_or(Ok(RuleRef::Numbered(0)), |named| rule_of(named.value))?;
        asks.push(Ask { rule, terms, with_cost: true });
    }
    for limit in limits {
        let number = u16::try_from(own.len())
            .map_err(|_| Error::new(Span::call_site(), "more limits than can be numbered; use fewer"))?;
        let with_cost = matches!(limit, Limit::Rate { .. }); // with concurrency, a call takes one permit
        asks.push(Ask { rule: RuleRef::Numbered(number), terms, with_cost });
        own.push(limit);
    }
    Ok(())
}

/// The span of the argument that determines the query, for error messages.
fn place_of(arguments: &Arguments) -> Span {
    let named = [&arguments.rule, &arguments.key, &arguments.cost].into_iter().flatten().next();
    named.map_or_else(Span::call_site, |named| named.name.span())
}

/// Checks that no query repeats an earlier one.
fn check_asked_once(asks: &[Ask], terms: &[Terms]) -> Result<()> {
    let text = |ask: &Ask| {
        let rule = match &ask.rule {
            RuleRef::Numbered(number) => number.to_string(),
            RuleRef::Named(rule) => rule.to_token_stream().to_string(),
        };
        (rule, terms[ask.terms].key.as_ref().map(|key| key.to_token_stream().to_string()))
    };
    let texts: Vec<_> = asks.iter().map(text).collect();
    match (1..asks.len()).find(|last| texts[..*last].contains(&texts[*last])) {
        None => Ok(()),
        Some(again) => {
            let why = "the limiter is asked for the same rule and key by another attribute; \
                       add `rule = …` to one of them, or leave it out";
            Err(Error::new(terms[asks[again].terms].place, why))
        }
    }
}

fn rule_of(value: Expr) -> Result<RuleRef> {
    match number_of(&value) {
        Some(number) => Ok(RuleRef::Numbered(number.base10_parse()?)),
        None => Ok(RuleRef::Named(value)),
    }
}
