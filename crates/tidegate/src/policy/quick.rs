//! # The short cut
//!
//! Nearly always every key of a request is here already, and every state is one word. Then the request is a few loads and
//! one compare-and-swap per key, and what the [long way](super::charge) keeps in mind for every other case need not be. It
//! goes by the same rules: judge copies, hold all words or none, let go.
//!
//! ```text
//!   judge one's own words ──► hold them ──► judge what is everybody's, and hold it ──► write all, let go
//!                │                              │       └── lost: judge that one again
//!                └── one refuses ───────────────┴──► look whether all is still so, and say by whom
//! ```
//!
//! What is everybody's is where threads meet: its cache line goes from processor to processor, and that takes longer than the
//! rest of the decision. So it is not looked at before everything else is done, not even to find it: where it was found last is
//! remembered, and whether it still lives there is seen when it is held. Whoever loses it to another thread has lost that word
//! only; the words that nobody else wants stay held.

use super::turn::TRIES;
use super::{Limit, Limits};
use crate::gate::Part;
use crate::hold::{HELD, Patience, release, try_hold};
use crate::keyed::{FIRST, Keyed};
use crate::sync::Ordering;
use crate::table::Place;
use tidegate_core::{Algorithm, Decision, Micros, Outcome};

/// One part of a request, and where its state is.
#[derive(Debug)]
struct Found<'a, A> {
    keyed: &'a Keyed<A>,
    fingerprint: u64,
    place: Place<'a>,
    part: &'a Part<'a>,
}

/// What a word was, what is to become of it, and how much is left then.
///
/// No decision: building one for each part takes longer than deciding. Only that of the binding part is told, and the same
/// word always gives the same decision.
#[derive(Clone, Copy)]
struct Judged {
    word: u64,
    next: u64,
    remaining: u64,
}

/// What came of trying.
enum Tried {
    Decided(Decision),
    /// Somebody else was faster.
    Again,
    /// This takes the long way.
    TooMuch,
}

/// The decision on a valid request, or `None` to go the long way, with nothing done.
#[inline]
pub(super) fn at_once<A: Algorithm, const N: usize>(
    limits: &Limits<A>,
    request: &[Part<'_>; N],
    now: impl FnOnce() -> Micros,
) -> Option<Decision> {
    // Every place is that of the first part until its own is found: so there is never a place that is none.
    let mut found = [Found::find(limits, &request[0])?; N];
    for n in 1..N {
        found[n] = Found::find(limits, &request[n])?;
    }
    let now = now();
    match attempt(&found, now) {
        Tried::Decided(decision) => Some(decision),
        Tried::Again => at_last(&found, now),
        Tried::TooMuch => None,
    }
}

/// Tries again for a while.
#[cold]
#[inline(never)]
fn at_last<A: Algorithm, const N: usize>(found: &[Found<'_, A>; N], now: Micros) -> Option<Decision> {
    if found.iter().any(Found::is_gone) {
        return None;
    }
    let mut patience = Patience::new();
    for _ in 0..TRIES {
        patience.wait();
        match attempt(found, now) {
            Tried::Decided(decision) => return Some(decision),
            Tried::Again => {}
            Tried::TooMuch => return None,
        }
    }
    None
}

#[inline(always)]
fn attempt<A: Algorithm, const N: usize>(found: &[Found<'_, A>; N], now: Micros) -> Tried {
    let mut judged = [Judged { word: 0, next: 0, remaining: 0 }; N];
    let mut held = [false; N];
    let outcome = hold_all(found, &mut judged, &mut held, now);
    let mut all = outcome.is_ok();
    for found in found {
        all = all && found.is_ours();
    }
    for everybodys in [true, false] {
        for n in 0..N {
            if held[n] && found[n].is_everybodys() == everybodys {
                release(found[n].place.word(), if all { judged[n].next } else { judged[n].word });
            }
        }
    }
    match outcome {
        _ if all => Tried::Decided(binding(found, &judged, now)),
        Err(NotHeld::Refused) => refuse(found, now),
        Ok(()) | Err(NotHeld::Lost) => Tried::Again,
    }
}

/// The decision of the part that has the least left.
#[inline(always)]
fn binding<A: Algorithm, const N: usize>(
    found: &[Found<'_, A>; N],
    judged: &[Judged; N],
    now: Micros,
) -> Decision {
    let mut least = 0;
    for n in 1..N {
        if judged[n].remaining == judged[least].remaining {
            return strictest(found, judged, now);
        }
        if judged[n].remaining < judged[least].remaining {
            least = n;
        }
    }
    found[least].decision(judged[least].word, now).expect("as it was judged")
}

/// The strictest of all decisions, by every criterion.
#[cold]
#[inline(never)]
fn strictest<A: Algorithm, const N: usize>(
    found: &[Found<'_, A>; N],
    judged: &[Judged; N],
    now: Micros,
) -> Decision {
    let decisions = found.iter().zip(judged).filter_map(|(found, judged)| found.decision(judged.word, now));
    decisions.reduce(Decision::and).expect("a request has a part")
}

/// Ends a request that is not allowed by all, if what it is judged by stays so meanwhile.
#[inline(never)]
fn refuse<A: Algorithm, const N: usize>(found: &[Found<'_, A>; N], now: Micros) -> Tried {
    let words = found.each_ref().map(|found| found.place.word().load(Ordering::Acquire));
    if words.iter().any(|word| word & HELD != 0) {
        return Tried::Again;
    }
    let judged = words.map(|word| Judged { word, next: word, remaining: 0 });
    if !found.iter().zip(words).all(|(found, word)| found.is_plain(word, now)) {
        return Tried::TooMuch;
    }
    let decision = strictest(found, &judged, now);
    let still = !decision.is_allowed() && found.iter().zip(words).all(|(found, word)| found.is_still(word));
    if still { Tried::Decided(decision) } else { Tried::Again }
}

/// Why not every word is held.
enum NotHeld {
    Refused,
    Lost,
}

/// Holds one's own words, and then those that are everybody's.
#[inline(always)]
fn hold_all<A: Algorithm, const N: usize>(
    found: &[Found<'_, A>; N],
    judged: &mut [Judged; N],
    held: &mut [bool; N],
    now: Micros,
) -> Result<(), NotHeld> {
    // Plain loops, which the compiler unrolls: there are two or three parts, and every instruction counts.
    for n in 0..N {
        if !found[n].is_everybodys() {
            found[n].judge(&mut judged[n], now)?;
        }
    }
    for n in 0..N {
        if !found[n].is_everybodys() {
            held[n] = try_hold(found[n].place.word(), judged[n].word);
            if !held[n] {
                return Err(NotHeld::Lost);
            }
        }
    }
    for n in 0..N {
        if found[n].is_everybodys() {
            match found[n].hold(&mut judged[n], now) {
                Err(NotHeld::Lost) => found[n].hold_at_last(&mut judged[n], now)?,
                held_or_refused => held_or_refused?,
            }
            held[n] = true;
        }
    }
    Ok(())
}

impl<A> Clone for Found<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Found<'_, A> {}

impl<'a, A: Algorithm> Found<'a, A> {
    #[inline(always)]
    fn find(limits: &'a Limits<A>, part: &'a Part<'_>) -> Option<Self> {
        let Limit::Rate(keyed) = limits.limit(part.rule) else { return None };
        if keyed.regimes.current() != FIRST {
            return None;
        }
        let (fingerprint, table) = (keyed.fingerprint_of(part.key), &keyed.regimes.get(FIRST).table);
        let place = if part.key.is_empty() {
            table.find_word_by_memory(fingerprint)?
        } else {
            table.find_word(fingerprint)?
        };
        Some(Found { keyed, fingerprint, place, part })
    }

    #[inline]
    fn is_everybodys(&self) -> bool {
        self.part.key.is_empty()
    }

    #[inline(always)]
    fn decide(&self, word: u64, now: Micros) -> Option<(u64, Decision)> {
        self.keyed.regimes.get(FIRST).algorithm.decide_word(word, now, self.part.cost)
    }

    #[inline(always)]
    fn decision(&self, word: u64, now: Micros) -> Option<Decision> {
        self.decide(word, now).map(|(_, decision)| decision.of_rule(self.part.rule))
    }

    /// Judges a copy of the word.
    #[inline(always)]
    fn judge(&self, judged: &mut Judged, now: Micros) -> Result<(), NotHeld> {
        judged.word = self.place.word().load(Ordering::Acquire);
        if judged.word & HELD != 0 {
            return Err(NotHeld::Lost);
        }
        match self.decide(judged.word, now) {
            Some((next, decision)) if decision.outcome == Outcome::Allowed => {
                (judged.next, judged.remaining) = (next, decision.remaining());
                Ok(())
            }
            _ => Err(NotHeld::Refused),
        }
    }

    /// Judges a word that others want too, and holds it.
    #[inline(always)]
    fn hold(&self, judged: &mut Judged, now: Micros) -> Result<(), NotHeld> {
        self.judge(judged, now)?;
        if try_hold(self.place.word(), judged.word) { Ok(()) } else { Err(NotHeld::Lost) }
    }

    /// The same, as often as others are faster.
    #[cold]
    #[inline(never)]
    fn hold_at_last(&self, judged: &mut Judged, now: Micros) -> Result<(), NotHeld> {
        let mut patience = Patience::new();
        for _ in 0..TRIES {
            patience.wait();
            match self.hold(judged, now) {
                Err(NotHeld::Lost) => {}
                held_or_refused => return held_or_refused,
            }
        }
        Err(NotHeld::Lost)
    }

    /// Whether the short cut knows what to say, and it is nothing that has to be written.
    fn is_plain(&self, word: u64, now: Micros) -> bool {
        self.decide(word, now).is_some_and(|(next, decision)| match decision.outcome {
            Outcome::Allowed => true,
            // A refusal that writes is one after the clock stepped back.
            _ => !decision.is_allowed() && next == word,
        })
    }

    /// Whether the key does not live any more where it was found, or remembered to have been.
    fn is_gone(&self) -> bool {
        let gone = self.place.owner() != self.fingerprint;
        if gone && self.is_everybodys() {
            self.keyed.regimes.get(FIRST).table.forget_place();
        }
        gone
    }

    /// Whether what is held is what was looked for.
    #[inline]
    fn is_ours(&self) -> bool {
        self.place.owner() == self.fingerprint && self.keyed.regimes.current() == FIRST
    }

    /// Whether what was judged is still so.
    #[inline]
    fn is_still(&self, word: u64) -> bool {
        self.place.is_still(self.fingerprint, word) && self.keyed.regimes.current() == FIRST
    }
}
