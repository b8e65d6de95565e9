//! # Operations of a schedule on its state
//!
//! The first scheduled charge must read the state and charge it in one step: until then another thread may still be
//! deciding without having seen the slow-path flag. From then on only threads that have locked the shard change the
//! state, and a plain write is sufficient.

use super::schedule::{AcquireRequest, ScheduledCharge};
use crate::error::RefusalKind;
use crate::operation::{Operation, OperationResult};
use tidegate_core::{Algorithm, Decision, Micros, Words, WordsMut};

/// Finds the first possible instant and charges it, if it meets the deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin(pub(super) AcquireRequest);

/// The state from before the charge, and the charge that was scheduled.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) base: Vec<u64>,
    pub(super) now: Micros,
    pub(super) turn: ScheduledCharge,
}

/// Replaces the state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Put<'a>(pub(super) &'a [u64]);

/// Whether there was room for the state.
#[derive(Debug)]
pub(super) struct Stored(pub(super) Result<(), RefusalKind>);

type Beginning = Result<Begun, RefusalKind>;

impl Operation for Begin {
    type Answer = Beginning;
    const OBSERVED: bool = false;

    fn apply<A: Algorithm, S: WordsMut + ?Sized>(
        &self,
        algorithm: &A,
        state: &mut S,
        now: Micros,
    ) -> Beginning {
        let base = (0..algorithm.words()).map(|index| Words::get(state, index)).collect();
        let turn = ScheduledCharge::find(algorithm, state, now, self.0.cost)?.in_time(self.0, now)?;
        let _ = algorithm.decide(state, turn.at, self.0.cost);
        Ok(Begun { base, now, turn })
    }
}

impl Operation for Put<'_> {
    type Answer = Stored;
    const OBSERVED: bool = false;

    fn apply<A: Algorithm, S: WordsMut + ?Sized>(&self, _: &A, state: &mut S, _: Micros) -> Stored {
        self.0.iter().enumerate().for_each(|(index, word)| state.set(index, *word));
        Stored(Ok(()))
    }
}

fn no_room(closed: &Decision) -> RefusalKind {
    RefusalKind::TooManyKeys { retry_after: closed.retry_after().unwrap_or_default() }
}

impl OperationResult for Beginning {
    fn refused(closed: Decision) -> Self {
        Err(no_room(&closed))
    }

    fn decision(&self) -> Option<Decision> {
        None
    }

    fn sketched(self) -> Self {
        self.map(|begun| Begun { turn: begun.turn.sketched(), ..begun })
    }
}

impl OperationResult for Stored {
    fn refused(closed: Decision) -> Self {
        Stored(Err(no_room(&closed)))
    }

    fn decision(&self) -> Option<Decision> {
        None
    }
    fn sketched(self) -> Self {
        self
    }
}
