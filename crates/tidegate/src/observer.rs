//! # Observing decisions
//!
//! A limiter can be given an [`Observer`], which sees every decision that takes effect: allowed or refused, and by
//! which rule. Without an observer, a decision only pays for one pointer test.

use crate::operation::{Answer, Operation};
use tidegate_core::Decision;

/// Observes every decision of a limiter, right after it is made, on the thread that made it.
///
/// Keep the implementation short, because the caller waits for it. A counter per rule is typical:
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tidegate::{Decision, Limiter, Observer, Quota};
///
/// #[derive(Default)]
/// struct Refusals(AtomicU64);
///
/// impl Observer for Refusals {
///     fn denied(&self, _: &Decision) {
///         self.0.fetch_add(1, Ordering::Relaxed);
///     }
/// }
///
/// let refusals = Arc::new(Refusals::default());
/// let limiter = Limiter::new(Quota::per_hour(1)).with_observer(refusals.clone());
/// let _ = (limiter.check(), limiter.check());
/// assert_eq!(refusals.0.load(Ordering::Relaxed), 1);
/// ```
pub trait Observer: Send + Sync {
    /// A request was allowed. [`Decision::rule`] is the rule that has the least left.
    fn allowed(&self, decision: &Decision) {
        let _ = decision;
    }

    /// A request was refused. [`Decision::rule`] is the rule that refused it.
    fn denied(&self, decision: &Decision) {
        let _ = decision;
    }
}

/// Shows the decision in an answer to the observer, if the operation is observed.
///
/// The observer gets a copy: if it got the decision itself, the compiler would have to build all of it for callers that
/// read only two fields.
#[cold]
pub(crate) fn observe<V: Operation>(observer: &dyn Observer, answer: &V::Answer) {
    if let Some(decision) = answer.decision().filter(|_| V::OBSERVED) {
        observe_decision(observer, decision);
    }
}

#[cold]
pub(crate) fn observe_decision(observer: &dyn Observer, decision: Decision) {
    if decision.is_allowed() {
        observer.allowed(&decision);
    } else {
        observer.denied(&decision);
    }
}
