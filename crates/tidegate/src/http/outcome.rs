//! # Rulings
//!
//! What becomes of a request: it passes, with permits and with something to tell its client, or it is refused. Some rulings
//! take time.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::answer::Refusal;
use super::rule::RuleQuota;
use crate::gate::Permits;

/// Whether a request may pass.
#[derive(Debug)]
pub enum LimitOutcome {
    /// It may, now.
    Pass(Passed),
    /// It may not. In a box: most may, and all pay for the room.
    Refuse(Box<Refusal>),
}

/// What goes with a request that may pass.
#[derive(Debug, Default)]
pub struct Passed {
    /// Leave to be at work, to be kept until the response has been sent.
    pub permits: Permits,
    /// What is left of the rules, if clients are to be told.
    pub decisions: Decisions,
}

/// What is left of the rules, if clients are to be told.
#[derive(Clone, Debug, Default)]
pub struct Decisions(Told);

#[derive(Clone, Debug, Default)]
enum Told {
    #[default]
    Nothing,
    /// Of a single rule, as mostly: without a box.
    One(RuleQuota),
    Each(Box<[RuleQuota]>),
}

/// A ruling, now or later.
#[derive(Debug)]
pub enum Evaluation {
    /// At once.
    Now(LimitOutcome),
    /// To be waited for. It is under way.
    PendingOutcome(PendingOutcome),
}

/// A ruling that is under way.
#[must_use = "a ruling protects nothing until you act on it"]
pub struct PendingOutcome(pub(super) Pin<Box<dyn Future<Output = LimitOutcome> + Send>>);

impl Future for PendingOutcome {
    type Output = LimitOutcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LimitOutcome> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for PendingOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later(..)")
    }
}

impl Decisions {
    /// Of these rules, of which there may be none that clients know.
    pub(super) fn of(mut left: impl Iterator<Item = RuleQuota>) -> Self {
        match (left.next(), left.next()) {
            (Some(one), None) => Decisions(Told::One(one)),
            (one, another) => Decisions(Told::Each(one.into_iter().chain(another).chain(left).collect())),
        }
    }

    /// Of a single rule.
    #[inline]
    pub(super) const fn one(left: RuleQuota) -> Self {
        Decisions(Told::One(left))
    }

    /// Whether there is nothing to tell.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        matches!(self.0, Told::Nothing)
    }

    pub(super) fn as_slice(&self) -> &[RuleQuota] {
        match &self.0 {
            Told::Nothing => &[],
            Told::One(one) => std::slice::from_ref(one),
            Told::Each(each) => each,
        }
    }
}
