//! # All or nothing
//!
//! Decides on a request whose parts lie anywhere: each in the table of its rule, under a key of its own. The steps, and why
//! nobody ever waits for a word while holding another, are told where a state is [claimed](crate::table::Claim). Here is
//! their order:
//!
//! ```text
//!   judge the words ─► make room ─► hold and judge the larger states ─► hold the words ─► take the permits ─► charge
//!        └───────────────┴────────────────────┴── one refuses: let go ──────────────────────────┘
//! ```
//!
//! From the last hold on nothing can fail any more but the permits, which are one atomic step each. So there is a moment
//! at which everything is charged at once; before it nothing is, and a refusal has touched nothing.
//!
//! What is everybody's is held last, and only for a few instructions: it is what all threads meet at.
//!
//! A state at which somebody stands in [line](super::line) who came before refuses, too, whatever is left there.

use super::line::Lines;
use super::turn::{Turn, Wish};
use crate::hold::Patience;
use crate::shared::When;
use crate::table::Locks;
use tidegate_core::{Algorithm, Decision};

/// Decides on all parts together. Afterwards each knows its own decision, and has its permit if there is one to have.
pub(super) fn decide<A: Algorithm>(
    turns: &mut [Turn<'_, A>],
    wish: Wish,
    when: When,
    lines: &Lines,
) -> Decision {
    let mut patience = Patience::new();
    loop {
        let decision = attempt(turns, wish, when, lines);
        turns.iter_mut().for_each(Turn::let_go);
        match decision {
            Some(decision) => return decision,
            None => patience.wait(),
        }
    }
}

/// The decision, or `None` if somebody else was in the way and all must begin again.
#[inline]
fn attempt<A: Algorithm>(
    turns: &mut [Turn<'_, A>],
    wish: Wish,
    when: When,
    lines: &Lines,
) -> Option<Decision> {
    let mut locks = Locks::default();
    for turn in &mut *turns {
        turn.judge(wish, when)?;
    }
    // After they were judged, by the settings in force: who comes to stand in line later changes their numbers.
    if lines.waiting() > 0 {
        turns.iter_mut().for_each(|turn| turn.give_way(lines, wish));
    }
    if wish != Wish::Look && turns.iter().any(Turn::is_new) && turns.iter().all(Turn::may_pass) {
        turns.iter_mut().try_for_each(|turn| turn.make_room(&mut locks))?;
    }
    turns.iter_mut().try_for_each(Turn::hold_beside)?;
    let decision = strictest(turns);
    if wish == Wish::Look || !wish.is_met_by(&decision) {
        return turns.iter_mut().all(|turn| turn.leave(wish, &mut locks)).then_some(decision);
    }
    if !hold_words(turns, wish) {
        return None;
    }
    if !turns.iter_mut().all(Turn::take_permit) {
        turns.iter_mut().for_each(Turn::give_permit_back);
        let decision = strictest(turns);
        return turns.iter_mut().all(|turn| turn.leave(wish, &mut locks)).then_some(decision);
    }
    turns.iter_mut().for_each(|turn| turn.charge(&mut locks));
    Some(strictest(turns)) // once more: a word that is everybody's may have been judged again
}

/// The decision of the binding rule.
#[inline]
fn strictest<A: Algorithm>(turns: &[Turn<'_, A>]) -> Decision {
    let (first, others) = turns.split_first().expect("a request has a part");
    others.iter().fold(first.decision(), |strictest, turn| strictest.and(turn.decision()))
}

/// Holds each word, those that everybody needs last.
#[inline]
fn hold_words<A: Algorithm>(turns: &mut [Turn<'_, A>], wish: Wish) -> bool {
    let mut hold = |everybodys| {
        let mut those = turns.iter_mut().filter(|turn| turn.is_everybodys() == everybodys);
        those.all(|turn| turn.hold_word(wish))
    };
    hold(false) && hold(true)
}
