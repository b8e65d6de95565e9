//! # Rulings
//!
//! What becomes of a request: it passes, with permits and with something to tell its client, or it is refused. Some rulings
//! take time.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::answer::Refusal;
use crate::gate::Permits;
use tidegate_core::Decision;

/// Whether a request may pass.
#[derive(Debug)]
pub enum Ruling {
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
    /// What the rules said, if clients are to be told.
    pub decisions: Decisions,
}

/// What the rules said, if clients are to be told: the one that was binding, or each of them.
#[derive(Debug, Default)]
pub struct Decisions(Option<Box<[Decision]>>);

/// A ruling, now or later.
#[derive(Debug)]
pub enum Asked {
    /// At once.
    Now(Ruling),
    /// To be waited for. It is under way.
    Later(Later),
}

/// A ruling that is under way.
#[must_use = "a ruling protects nothing until you act on it"]
pub struct Later(pub(super) Pin<Box<dyn Future<Output = Ruling> + Send>>);

impl Future for Later {
    type Output = Ruling;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ruling> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later(..)")
    }
}

impl Decisions {
    pub(super) fn of(decisions: impl Into<Box<[Decision]>>) -> Self {
        Decisions(Some(decisions.into()))
    }

    /// Whether there is nothing to tell.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn as_slice(&self) -> &[Decision] {
        self.0.as_deref().unwrap_or_default()
    }
}
