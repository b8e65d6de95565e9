//! # The short cut
//!
//! Nearly always every key of a request is here already, and every state is one word. Then the request is a few loads and
//! one compare-and-swap per key, and what the [long way](super::commit) keeps in mind for every other case need not be. It
//! goes by the same rules: judge copies, hold all words or none, let go.
//!
//! ```text
//!   judge one's own words ──► lock_bit them ──► judge what is everybody's, and lock_bit it ──► write all, let go
//!                │                              │       └── lost: judge that one again
//!                └── one refuses ───────────────┴──► look whether all is still so, and say by whom
//! ```
//!
//! What is everybody's is where threads meet: its cache line goes from processor to processor, and that takes longer than the
//! rest of the decision. So it comes last, and is not looked at before everything else is done, not even to find it: where it
//! was found last is remembered, and whether it still lives there is seen when it is held. Whoever loses it to another thread
//! has lost that word only; the words that nobody else wants stay held.
//!
//! Every instruction counts here. So loops are plain and have a fixed length, for the compiler to unroll; and what was found is
//! handed to functions that are called seldom as a copy, so that for all the others it need not lie in memory.

use super::participant::TRIES;
use super::{Limit, Limits};
use crate::gate::Part;
use crate::keyed::{FIRST, Keyed};
use crate::lock_bit::{Backoff, LOCKED, try_lock_bit, unlock_bit};
use crate::sync::Ordering;
use crate::table::Location;
use tidegate_core::{Algorithm, Decision, Micros, Outcome};

/// One part of a request, and where its state is.
#[derive(Debug)]
struct Found<'a, A> {
    keyed: &'a Keyed<A>,
    fingerprint: u64,
    place: Location<'a>,
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

const NOT_JUDGED: Judged = Judged { word: 0, next: 0, remaining: 0 };

/// The part of an allowed request that has the least left, and the word that it was charged to.
pub(super) struct Binding<'a, A> {
    keyed: &'a Keyed<A>,
    part: &'a Part<'a>,
    word: u64,
    now: Micros,
}

/// Why a request was not charged.
enum NotCharged {
    /// One of its parts would refuse.
    Refused,
    /// Somebody else was faster.
    Lost,
}

/// Charges a valid request, or refuses it, or gives `None` to go the long way, with nothing done.
///
/// What is allowed, as nearly all is, comes back as few numbers: a decision is large, and each time it is handed on it is
/// written and read again.
#[inline(always)]
pub(super) fn check<'a, A: Algorithm, const N: usize>(
    limits: &'a Limits<A>,
    request: &'a [Part<'a>; N],
    now: impl FnOnce() -> Micros,
) -> Result<Binding<'a, A>, Option<Decision>> {
    let parts = global_key_last(request);
    // Every place is that of the first part until its own is found: so there is never a place that is none.
    let mut found = [Found::find(limits, parts[0]).ok_or(None)?; N];
    for n in 1..N {
        found[n] = Found::find(limits, parts[n]).ok_or(None)?;
    }
    let now = now();
    match charge(&found, now) {
        Ok(binding) => Ok(binding),
        Err(not_charged) => Err(at_last(found, now, not_charged)),
    }
}

/// The parts, with one that is everybody's at the end if there is one.
#[inline(always)]
fn global_key_last<'a, const N: usize>(request: &'a [Part<'a>; N]) -> [&'a Part<'a>; N] {
    let mut parts = request.each_ref();
    for n in 0..N - 1 {
        if parts[n].key.is_empty() {
            parts.swap(n, N - 1);
        }
    }
    parts
}

/// What becomes of a request that was not charged at once: it is refused, or tried again for a while.
#[inline(never)]
fn at_last<A: Algorithm, const N: usize>(
    found: [Found<'_, A>; N],
    now: Micros,
    mut not_charged: NotCharged,
) -> Option<Decision> {
    let mut backoff = Backoff::new();
    for _ in 0..TRIES {
        if let NotCharged::Refused = not_charged
            && let Some(refusal) = refusal(&found, now)?
        {
            return Some(refusal);
        }
        if found.iter().any(Found::is_gone) {
            return None;
        }
        backoff.wait();
        match charge(&found, now) {
            Ok(binding) => return Some(binding.decision()),
            Err(again) => not_charged = again,
        }
    }
    None
}

/// The refusal of a request; `Some(None)` if what it is judged by does not stay so meanwhile, `None` if this takes the long way.
fn refusal<A: Algorithm, const N: usize>(found: &[Found<'_, A>; N], now: Micros) -> Option<Option<Decision>> {
    let words = found.each_ref().map(|found| found.place.word().load(Ordering::Acquire));
    if words.iter().any(|word| word & LOCKED != 0) {
        return Some(None);
    }
    let decisions = found.iter().zip(words).map(|(found, word)| found.plain(word, now));
    let decision = decisions.reduce(|one, other| Some(one?.and(other?)))??;
    let still = !decision.is_allowed() && found.iter().zip(words).all(|(found, word)| found.is_still(word));
    Some(still.then_some(decision))
}

/// Charges all or nothing.
#[inline(always)]
fn charge<'a, A: Algorithm, const N: usize>(
    found: &[Found<'a, A>; N],
    now: Micros,
) -> Result<Binding<'a, A>, NotCharged> {
    let mut judged = [NOT_JUDGED; N];
    for n in 0..N - 1 {
        judged[n] = found[n].judge(now)?;
    }
    if !found[N - 1].is_global_key() {
        found[N - 1].judge(now)?; // refused before anything is held
    }
    for n in 0..N - 1 {
        if !try_lock_bit(found[n].place.word(), judged[n].word) {
            unlock(*found, judged, n);
            return Err(NotCharged::Lost);
        }
    }
    match found[N - 1].lock_bit(now) {
        Ok(held) => judged[N - 1] = held,
        Err(not_charged) => {
            unlock(*found, judged, N - 1);
            return Err(not_charged);
        }
    }
    for n in 0..N {
        if !found[n].is_ours() {
            unlock(*found, judged, N);
            return Err(NotCharged::Lost);
        }
    }
    for n in (0..N).rev() {
        unlock_bit(found[n].place.word(), judged[n].next);
    }
    Ok(binding(found, &judged, now))
}

/// Lets go of the first of the words, as they were.
#[cold]
#[inline(never)]
fn unlock<A: Algorithm, const N: usize>(found: [Found<'_, A>; N], judged: [Judged; N], held: usize) {
    for (found, judged) in found.iter().zip(judged).take(held) {
        unlock_bit(found.place.word(), judged.word);
    }
}

/// Who has the least left.
#[inline(always)]
fn binding<'a, A: Algorithm, const N: usize>(
    found: &[Found<'a, A>; N],
    judged: &[Judged; N],
    now: Micros,
) -> Binding<'a, A> {
    let (mut binding, mut least) = (found[0].binding(judged[0].next, now), judged[0].remaining);
    for n in 1..N {
        if judged[n].remaining == least {
            return strictest(*found, *judged, now);
        }
        if judged[n].remaining < least {
            (binding, least) = (found[n].binding(judged[n].next, now), judged[n].remaining);
        }
    }
    binding
}

/// The same by every criterion, where several have as little left.
#[cold]
#[inline(never)]
fn strictest<'a, A: Algorithm, const N: usize>(
    found: [Found<'a, A>; N],
    judged: [Judged; N],
    now: Micros,
) -> Binding<'a, A> {
    let bindings = found.iter().zip(judged).map(|(found, judged)| found.binding(judged.next, now));
    bindings.reduce(Binding::and).expect("a request has a part")
}

/// Holds a word that others want too, as often as they are faster.
#[cold]
#[inline(never)]
fn lock_last<A: Algorithm>(found: Found<'_, A>, now: Micros) -> Result<Judged, NotCharged> {
    let mut backoff = Backoff::new();
    for _ in 0..TRIES {
        backoff.wait();
        match found.try_lock_bit(now) {
            Err(NotCharged::Lost) => {}
            held_or_refused => return held_or_refused,
        }
    }
    Err(NotCharged::Lost)
}

impl<A: Algorithm> Binding<'_, A> {
    /// The stricter of the two.
    fn and(self, other: Self) -> Self {
        let (ours, theirs) = (self.decision(), other.decision());
        if ours.and(theirs) == ours { self } else { other }
    }

    /// What was decided: what there is to say about a word just charged is what there is to say about it at all.
    #[inline(always)]
    pub(super) fn decision(&self) -> Decision {
        let algorithm = &self.keyed.versions.get(FIRST).algorithm;
        algorithm.peek(&[self.word], self.now, 0).of_rule(self.part.rule)
    }
}

impl<A> Clone for Found<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Found<'_, A> {}

impl<'a, A: Algorithm> Found<'a, A> {
    #[inline(always)]
    fn find(limits: &'a Limits<A>, part: &'a Part<'a>) -> Option<Self> {
        let Limit::Rate(keyed) = limits.limit(part.rule) else { return None };
        if keyed.versions.current() != FIRST {
            return None;
        }
        let (fingerprint, table) = (keyed.fingerprint_of(part.key), &keyed.versions.get(FIRST).table);
        let place = if part.key.is_empty() {
            table.find_word_by_memory(fingerprint)?
        } else {
            table.find_word(fingerprint)?
        };
        Some(Found { keyed, fingerprint, place, part })
    }

    #[inline]
    fn is_global_key(&self) -> bool {
        self.part.key.is_empty()
    }

    #[inline(always)]
    fn decide(&self, word: u64, now: Micros) -> Option<(u64, Decision)> {
        self.keyed.versions.get(FIRST).algorithm.decide_word(word, now, self.part.cost)
    }

    /// Judges a copy of the word.
    #[inline(always)]
    fn judge(&self, now: Micros) -> Result<Judged, NotCharged> {
        let word = self.place.word().load(Ordering::Acquire);
        if word & LOCKED != 0 {
            return Err(NotCharged::Lost);
        }
        match self.decide(word, now) {
            Some((next, decision)) if decision.outcome == Outcome::Allowed => {
                Ok(Judged { word, next, remaining: decision.remaining() })
            }
            _ => Err(NotCharged::Refused),
        }
    }

    /// Judges the word and holds it.
    #[inline(always)]
    fn try_lock_bit(&self, now: Micros) -> Result<Judged, NotCharged> {
        let judged = self.judge(now)?;
        if try_lock_bit(self.place.word(), judged.word) { Ok(judged) } else { Err(NotCharged::Lost) }
    }

    /// The same, and if others are faster, again.
    #[inline(always)]
    fn lock_bit(&self, now: Micros) -> Result<Judged, NotCharged> {
        match self.try_lock_bit(now) {
            Err(NotCharged::Lost) => lock_last(*self, now),
            held_or_refused => held_or_refused,
        }
    }

    #[inline(always)]
    fn binding(&self, word: u64, now: Micros) -> Binding<'a, A> {
        Binding { keyed: self.keyed, part: self.part, word, now }
    }

    /// What there is to say about a word, if the short cut knows it and nothing has to be written for it.
    fn plain(&self, word: u64, now: Micros) -> Option<Decision> {
        let (next, decision) = self.decide(word, now)?;
        let plain = match decision.outcome {
            Outcome::Allowed => true,
            // A refusal that writes is one after the clock stepped back.
            _ => !decision.is_allowed() && next == word,
        };
        plain.then(|| decision.of_rule(self.part.rule))
    }

    /// Whether the key does not live any more where it was found, or remembered to have been.
    fn is_gone(&self) -> bool {
        let gone = self.place.owner() != self.fingerprint;
        if gone && self.is_global_key() {
            self.keyed.versions.get(FIRST).table.forget_place();
        }
        gone
    }

    /// Whether what is held is what was looked for.
    #[inline]
    fn is_ours(&self) -> bool {
        self.place.owner() == self.fingerprint && self.keyed.versions.current() == FIRST
    }

    /// Whether what was judged is still so.
    #[inline]
    fn is_still(&self, word: u64) -> bool {
        self.place.is_still(self.fingerprint, word) && self.keyed.versions.current() == FIRST
    }
}
