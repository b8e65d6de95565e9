//! # The short cut
//!
//! Nearly always every key of a request is here already, every state is one word, and nobody else is at any of them. Then
//! the request is a few loads and one compare-and-swap per key, and what the [long way](super::charge) keeps in mind for
//! every other case need not be. It goes by the same rules: judge copies, hold all words or none, let go.

use super::{Limit, Limits};
use crate::gate::Part;
use crate::hold::{HELD, release, try_hold};
use crate::keyed::{FIRST, Keyed};
use crate::sync::Ordering;
use crate::table::Place;
use tidegate_core::{Algorithm, Decision, Micros};

/// One part of a request, found.
struct Found<'a, A> {
    keyed: &'a Keyed<A>,
    fingerprint: u64,
    place: Place<'a>,
    /// What the word was, and what is to become of it.
    word: u64,
    next: u64,
}

/// The decision on a valid request, or `None` to go the long way, with nothing done.
#[inline]
pub(super) fn at_once<A: Algorithm, const N: usize>(
    limits: &Limits<A>,
    request: &[Part<'_>; N],
    now: impl FnOnce() -> Micros,
) -> Option<Decision> {
    let mut found = [const { None }; N];
    for (found, part) in found.iter_mut().zip(request) {
        *found = Some(Found::find(limits, part)?);
    }
    let mut found = found.map(|it| it.expect("all are found"));
    let now = now();
    let (first, others) = found.split_first_mut()?;
    let mut decision = first.judge(&request[0], now)?;
    for (found, part) in others.iter_mut().zip(&request[1..]) {
        decision = decision.and(found.judge(part, now)?);
    }
    let done =
        if decision.is_allowed() { charge(&found, request) } else { found.iter().all(Found::is_still) };
    done.then_some(decision)
}

/// Charges all or none: see [`super::charge`].
#[inline]
fn charge<A: Algorithm, const N: usize>(found: &[Found<'_, A>; N], request: &[Part<'_>; N]) -> bool {
    let mut held = [false; N];
    let mut hold = |everybodys: bool| {
        (0..N).filter(|n| request[*n].key.is_empty() == everybodys).all(|n| {
            held[n] = try_hold(found[n].place.word(), found[n].word);
            held[n]
        })
    };
    let all = hold(false) && hold(true) && found.iter().all(Found::is_ours);
    for (found, held) in found.iter().zip(held) {
        if held {
            release(found.place.word(), if all { found.next } else { found.word });
        }
    }
    all
}

impl<'a, A: Algorithm> Found<'a, A> {
    #[inline]
    fn find(limits: &'a Limits<A>, part: &Part<'_>) -> Option<Self> {
        let Limit::Rate(keyed) = limits.limit(part.rule) else { return None };
        if keyed.regimes.current() != FIRST {
            return None;
        }
        let fingerprint = keyed.fingerprint_of(part.key);
        let place = keyed.regimes.get(FIRST).table.find_word(fingerprint)?;
        Some(Found { keyed, fingerprint, place, word: 0, next: 0 })
    }

    /// Judges a copy of the word.
    #[inline(always)]
    fn judge(&mut self, part: &Part<'_>, now: Micros) -> Option<Decision> {
        self.word = self.place.word().load(Ordering::Acquire);
        if self.word & HELD != 0 {
            return None;
        }
        let (next, decision) =
            self.keyed.regimes.get(FIRST).algorithm.decide_word(self.word, now, part.cost)?;
        self.next = next;
        (decision.is_allowed() || next == self.word).then_some(decision.of_rule(part.rule))
    }

    /// Whether what is held is what was looked for.
    #[inline]
    fn is_ours(&self) -> bool {
        self.place.owner() == self.fingerprint && self.keyed.regimes.current() == FIRST
    }

    /// Whether what was judged is still so.
    #[inline]
    fn is_still(&self) -> bool {
        self.place.is_still(self.fingerprint, self.word) && self.keyed.regimes.current() == FIRST
    }
}
