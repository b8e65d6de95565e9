//! # All or nothing
//!
//! Decides on a request whose parts lie anywhere: each in the table of its rule, under a key of its own. The steps, and why
//! nobody ever waits for a word while holding another, are told where a state is [claimed](crate::table::Claim). Here is
//! their order:
//!
//! ```text
//!   judge the words ─► make room ─► lock_bit and judge the larger states ─► lock_bit the words ─► take the permits ─► charge
//!        └───────────────┴────────────────────┴── one refuses: let go ──────────────────────────┘
//! ```
//!
//! From the last hold on nothing can fail any more but the permits, which are one atomic step each. So there is a moment
//! at which everything is charged at once; before it nothing is, and a refusal has touched nothing.
//!
//! What is everybody's is held last, and only for a few instructions: it is what all threads meet at.
//!
//! A state at which somebody stands in [line](super::wait_queues) who came before refuses, too, whatever is left there.

use super::participant::{Mode, Participant};
use super::wait_queues::WaitQueues;
use crate::lock_bit::Backoff;
use crate::state_cell::DecisionTime;
use crate::table::Locks;
use tidegate_core::{Algorithm, Decision};

/// Decides on all parts together. Afterwards each knows its own decision, and has its permit if there is one to have.
pub(super) fn decide<A: Algorithm>(
    participants: &mut [Participant<'_, A>],
    mode: Mode,
    when: DecisionTime,
    queues: &WaitQueues,
) -> Decision {
    let mut backoff = Backoff::new();
    loop {
        let decision = attempt(participants, mode, when, queues);
        participants.iter_mut().for_each(Participant::unlock);
        match decision {
            Some(decision) => return decision,
            None => backoff.wait(),
        }
    }
}

/// The decision, or `None` if somebody else was in the way and all must begin again.
#[inline]
fn attempt<A: Algorithm>(
    participants: &mut [Participant<'_, A>],
    mode: Mode,
    when: DecisionTime,
    queues: &WaitQueues,
) -> Option<Decision> {
    let mut locks = Locks::default();
    for participant in &mut *participants {
        participant.judge(mode, when)?;
    }
    // After they were judged, by the settings in force: who comes to stand in line later changes their numbers.
    if queues.waiting() > 0 {
        participants.iter_mut().for_each(|participant| participant.yield_to(queues, mode));
    }
    if mode != Mode::Look
        && participants.iter().any(Participant::is_new)
        && participants.iter().all(Participant::may_pass)
    {
        participants.iter_mut().try_for_each(|participant| participant.make_room(&mut locks))?;
    }
    participants.iter_mut().try_for_each(Participant::lock_wide)?;
    let decision = strictest(participants);
    if mode == Mode::Look || !mode.is_met_by(&decision) {
        return participants
            .iter_mut()
            .all(|participant| participant.leave(mode, &mut locks))
            .then_some(decision);
    }
    if !lock_words(participants, mode) {
        return None;
    }
    if !participants.iter_mut().all(Participant::take_permit) {
        participants.iter_mut().for_each(Participant::give_permit_back);
        let decision = strictest(participants);
        return participants
            .iter_mut()
            .all(|participant| participant.leave(mode, &mut locks))
            .then_some(decision);
    }
    participants.iter_mut().for_each(|participant| participant.charge(&mut locks));
    Some(strictest(participants)) // once more: a word that is everybody's may have been judged again
}

/// The decision of the binding rule.
#[inline]
fn strictest<A: Algorithm>(participants: &[Participant<'_, A>]) -> Decision {
    let (first, others) = participants.split_first().expect("a request has a part");
    others.iter().fold(first.decision(), |strictest, participant| strictest.and(participant.decision()))
}

/// Holds each word, those that everybody needs last.
#[inline]
fn lock_words<A: Algorithm>(participants: &mut [Participant<'_, A>], mode: Mode) -> bool {
    let mut lock_bit = |everybodys| {
        let mut those =
            participants.iter_mut().filter(|participant| participant.is_global_key() == everybodys);
        those.all(|participant| participant.lock_word(mode))
    };
    lock_bit(false) && lock_bit(true)
}
