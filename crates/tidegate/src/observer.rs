//! # Observing decisions
//!
//! A limiter can be given an [`Observer`], which sees every decision that takes effect: allowed or refused, and by
//! which rule. Without an observer, a decision only pays for one pointer test.

use crate::operation::{Operation, OperationResult};
use tidegate_core::Decision;

/// Observes every decision of a limiter, right after it is made, on the thread that made it.
///
/// Keep the implementation short, because the caller waits for it. A counter per rule is typical:
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tidegate::stats::{Charge, Observer};
/// use tidegate::{Decision, Limiter, Quota};
///
/// #[derive(Default)]
/// struct Totals {
///     tokens: AtomicU64,
///     refusals: AtomicU64,
/// }
///
/// impl Observer for Totals {
///     fn allowed(&self, _: &Decision, charges: &[Charge<'_>]) {
///         let tokens = charges.iter().map(|charge| u64::from(charge.cost)).sum();
///         self.tokens.fetch_add(tokens, Ordering::Relaxed);
///     }
///     fn denied(&self, _: &Decision, _: &[Charge<'_>]) {
///         self.refusals.fetch_add(1, Ordering::Relaxed);
///     }
/// }
///
/// let totals = Arc::new(Totals::default());
/// let limiter = Limiter::builder(Quota::per_hour(5)).observer(totals.clone()).build();
/// let _ = (limiter.request().cost(4).check(), limiter.request().cost(2).check());
/// assert_eq!((totals.tokens.load(Ordering::Relaxed), totals.refusals.load(Ordering::Relaxed)), (4, 1));
/// ```
pub trait Observer: Send + Sync {
    /// A request was allowed. [`Decision::rule`] is the rule that has the least left.
    ///
    /// `charges` has every rule of the request, with what was charged.
    fn allowed(&self, decision: &Decision, charges: &[Charge<'_>]) {
        let _ = (decision, charges);
    }

    /// A request was refused. [`Decision::rule`] is the rule that refused it.
    ///
    /// `charges` has every rule of the request, with what would have been charged.
    fn denied(&self, decision: &Decision, charges: &[Charge<'_>]) {
        let _ = (decision, charges);
    }
}

/// What a request takes of one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Charge<'a> {
    /// The name of the rule in its policy. Empty for a limiter, which has a single limit without a name.
    pub rule: &'a str,
    /// What the request takes.
    pub cost: u32,
}

impl<'a> Charge<'a> {
    pub(crate) fn new(rule: &'a str, cost: u32) -> Self {
        Charge { rule, cost }
    }
}

/// Returns the charge of a request to a single limit.
pub(crate) fn charge(cost: u32) -> [Charge<'static>; 1] {
    [Charge::new("", cost)]
}

/// Shows the decision in an answer to the observer, if the operation is observed.
///
/// The observer gets a copy: if it got the decision itself, the compiler would have to build all of it for callers that
/// read only two fields.
#[cold]
pub(crate) fn observe<V: Operation>(observer: &dyn Observer, operation: &V, answer: &V::Answer) {
    if let Some(decision) = answer.decision().filter(|_| V::OBSERVED) {
        observe_decision(observer, decision, &charge(operation.charged(answer)));
    }
}

#[cold]
pub(crate) fn observe_decision(observer: &dyn Observer, decision: Decision, charges: &[Charge<'_>]) {
    if decision.is_allowed() {
        observer.allowed(&decision, charges);
    } else {
        observer.denied(&decision, charges);
    }
}
