//! # All-or-nothing commit
//!
//! Decides a request. Its parts are stored in different tables, each under its own key. The protocol of a single
//! state, and why no thread ever waits for a word while it holds another, is documented at
//! [`Claim`](crate::table::Claim). This module defines the order of the steps:
//!
//! ```text
//!   judge the words ─► make room ─► lock and judge the wide states ─► lock the words ─► take the permits ─► charge
//!       └──────────────────┴──────────────────┴── one part refuses: unlock ────────────────────┘
//! ```
//!
//! After the last word is locked, only the permits can still fail, and each of them is a single atomic step. So there
//! is one moment at which all parts are charged together. Before it nothing is charged, and a refusal changes no
//! state.
//!
//! The word of a global key is locked last and only for a few instructions, because all threads contend for it.
//!
//! A state also refuses a request, whatever quota it has left, while an earlier waiter is in its
//! [queue](super::wait_queues).

use super::participant::{Mode, Participant};
use super::wait_queues::WaitQueues;
use crate::lock_bit::Backoff;
use crate::state_cell::DecisionTime;
use crate::table::Locks;
use tidegate_core::{Algorithm, Decision};

/// Decides all parts of a request together.
///
/// Afterwards each part has its own decision. If the request is allowed, each concurrency part has its permit.
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

/// Tries once to decide; `None` if another thread interfered and all parts must start again.
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
    // After judging: a request that joins a queue later sets the slow-path flag, so the version number no longer
    // matches.
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
    Some(strictest(participants)) // again: the word of a global key may have been judged a second time
}

/// Returns the decision of the binding rule.
#[inline]
fn strictest<A: Algorithm>(participants: &[Participant<'_, A>]) -> Decision {
    let (first, others) = participants.split_first().expect("a request has at least one part");
    others.iter().fold(first.decision(), |strictest, participant| strictest.and(participant.decision()))
}

/// Locks each word; the words of global keys come last because all threads contend for them.
#[inline]
fn lock_words<A: Algorithm>(participants: &mut [Participant<'_, A>], mode: Mode) -> bool {
    let mut lock_bit = |global_key| {
        let mut those =
            participants.iter_mut().filter(|participant| participant.is_global_key() == global_key);
        those.all(|participant| participant.lock_word(mode))
    };
    lock_bit(false) && lock_bit(true)
}
