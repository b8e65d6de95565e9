//! # Step: an operation on its way to a state
//!
//! A table knows nothing of operations, algorithms and clocks; it runs a [`Step`] on the state of a key. This step
//! executes an operation by the algorithm of one version, and checks whether that version is still current.

use super::states::Version;
use crate::operation::{Operation, OperationResult};
use crate::state_cell::{DecisionTime, run};
use crate::table::Step;
use crate::versioned::Versions;
use tidegate_core::{Algorithm, ClockKind, Decision, Micros, Wait, Words, WordsMut};

/// An operation, with everything it needs.
#[derive(Debug)]
pub(crate) struct KeyedStep<'a, A, V> {
    pub(crate) algorithm: &'a A,
    pub(crate) operation: &'a V,
    pub(crate) when: DecisionTime,
    pub(crate) versions: &'a Versions<Version<A>>,
    pub(crate) number: usize,
}

impl<A: Algorithm, V: Operation> Step for KeyedStep<'_, A, V> {
    type Answer = V::Answer;

    #[inline]
    fn run<S: WordsMut + ?Sized>(&self, state: &mut S) -> V::Answer {
        run(self.algorithm, self.operation, state, self.when)
    }

    fn run_anew<S: WordsMut + ?Sized>(&self, state: &mut S, evicted_at: Micros) -> V::Answer {
        let now = match self.when.clock {
            ClockKind::Monotonic => self.when.now.max(evicted_at),
            ClockKind::MayStepBack => self.when.now,
        };
        run(self.algorithm, self.operation, state, DecisionTime { now, ..self.when })
    }

    #[inline(always)]
    fn fast_path(&self, word: u64) -> Option<(u64, V::Answer)> {
        self.operation.fast_path(self.algorithm, word, self.when.now)
    }

    fn refuse(&self, room_after: Wait) -> V::Answer {
        let limit = self.algorithm.peek(&Unseen, self.when.now, 0).limit();
        OperationResult::refused(Decision::closed(self.when.now, room_after, limit))
    }

    #[inline]
    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        self.algorithm.idle_at(state)
    }

    #[inline]
    fn now(&self) -> Micros {
        self.when.now
    }

    #[inline]
    fn is_current(&self) -> bool {
        self.versions.current() == self.number
    }

    fn is_ordered(&self) -> bool {
        self.algorithm.is_ordered()
    }

    fn repair(&self, state: &mut [u64]) {
        if self.when.clock == ClockKind::MayStepBack {
            self.algorithm.repair(state, self.when.now);
        }
    }

    fn passed(&self, answer: &V::Answer) -> Option<bool> {
        answer.decision().filter(|_| V::OBSERVED).map(|decision| decision.is_allowed())
    }

    fn sketched(&self, answer: V::Answer) -> V::Answer {
        answer.sketched()
    }
}

/// The state of a key never seen.
struct Unseen;

impl Words for Unseen {
    fn get(&self, _: usize) -> u64 {
        0
    }
}
