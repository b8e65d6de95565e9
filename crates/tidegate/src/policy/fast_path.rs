//! # Fast path of a policy
//!
//! Nearly always every key of a request is already in its table and every state is a single word. Then the request
//! needs a few loads and one compare-and-swap per key, without the bookkeeping that the [slow path](super::commit)
//! needs for all other cases. The protocol is the same: judge copies, lock all words or none, unlock.
//!
//! ```text
//!   judge the per-key words ──► lock them ──► judge the global word and lock it ──► write all, unlock
//!                │                              │       └── lost the race: judge that word again
//!                └── one part refuses ──────────┴──► verify that nothing has changed, and report which rule refused
//! ```
//!
//! The word of the global key is where threads contend: its cache line moves from processor to processor, which takes
//! longer than the rest of the decision. So the word comes last and is not touched before everything else is done, not
//! even to look it up: its last known location is remembered, and the check that the key is still there happens once
//! the word is locked. A thread that loses the race for the global word retries only that word; the uncontended words
//! stay locked.
//!
//! A cache line that is read early and written late is fetched twice from the other processor; that is why
//! the global word is judged and locked in one go. It is retried a few times only. Then the request releases
//! all words and starts again, so this is no exception to the rule that no thread waits while it holds a
//! lock.
//!
//! Every instruction counts here. So loops are plain and have a fixed length, which lets the compiler unroll them.
//! Rarely called functions take the lookup results by value, so that on the common path these need not be spilled to
//! memory.

use super::participant::TRIES;
use super::{Limit, RuleStates};
use crate::gate::Part;
use crate::keyed::{FIRST, Keyed};
use crate::lock_bit::{Backoff, LOCKED, try_lock_bit, unlock_bit};
use crate::sync::Ordering;
use crate::table::Location;
use tidegate_core::{Algorithm, Decision, Micros, Outcome};

/// One part of a request, and the location of its state.
#[derive(Debug)]
struct Found<'a, A> {
    keyed: &'a Keyed<A>,
    fingerprint: u64,
    place: Location<'a>,
    part: &'a Part<'a>,
}

/// A word as it was read, the word to write, and the quota that remains after that.
///
/// It holds no [`Decision`]: building one for each part takes longer than deciding. Only the decision of the binding
/// part is reported, and it can be derived again, because the same word always gives the same decision.
#[derive(Clone, Copy)]
struct Judged {
    word: u64,
    next: u64,
    remaining: u64,
}

const NOT_JUDGED: Judged = Judged { word: 0, next: 0, remaining: 0 };

/// The part of an allowed request with the least quota left, and its word after the charge.
pub(super) struct Binding<'a, A> {
    keyed: &'a Keyed<A>,
    part: &'a Part<'a>,
    word: u64,
    now: Micros,
}

/// Why a request was not charged.
enum NotCharged {
    /// At least one part refuses the request.
    Refused,
    /// Another thread won the race for a word.
    Lost,
}

/// Charges or refuses a valid request.
///
/// `Err(None)` means that the request needs the slow path; nothing has changed then.
///
/// An allowed request, by far the most frequent case, returns a few numbers instead of a decision: a decision is large,
/// and each hand-over writes and reads it again.
#[inline(always)]
pub(super) fn check<'a, A: Algorithm, const N: usize>(
    limits: &'a RuleStates<A>,
    request: &'a [Part<'a>; N],
    now: impl FnOnce() -> Micros,
) -> Result<Binding<'a, A>, Option<Decision>> {
    let parts = global_key_last(request);
    // Every entry starts as the location of the first part until its own is found: so no entry is ever empty.
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

/// Orders the parts so that a part with the global key, if there is one, comes last.
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

/// Refuses a request that was not charged at first, or retries it up to `TRIES` times.
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

/// Returns the refusal of a request.
///
/// `Some(None)` if a word changes while the parts are judged; `None` if the decision needs the slow path.
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

/// Charges all parts or none.
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
        found[N - 1].judge(now)?; // a refusal here comes before any word is locked
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

/// Unlocks the first `held` words and restores their old values.
#[cold]
#[inline(never)]
fn unlock<A: Algorithm, const N: usize>(found: [Found<'_, A>; N], judged: [Judged; N], held: usize) {
    for (found, judged) in found.iter().zip(judged).take(held) {
        unlock_bit(found.place.word(), judged.word);
    }
}

/// Returns the part with the least quota left.
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

/// Returns the strictest part by every criterion, where several have equally little left.
#[cold]
#[inline(never)]
fn strictest<'a, A: Algorithm, const N: usize>(
    found: [Found<'a, A>; N],
    judged: [Judged; N],
    now: Micros,
) -> Binding<'a, A> {
    let bindings = found.iter().zip(judged).map(|(found, judged)| found.binding(judged.next, now));
    bindings.reduce(Binding::and).expect("a request has at least one part")
}

/// Locks a contended word, with up to `TRIES` attempts while other threads are faster.
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
    /// Returns the stricter of the two.
    fn and(self, other: Self) -> Self {
        let (ours, theirs) = (self.decision(), other.decision());
        if ours.and(theirs) == ours { self } else { other }
    }

    /// Returns the decision of the charge.
    ///
    /// A peek of cost 0 at the word just charged gives the same numbers as the charge itself.
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
    fn find(limits: &'a RuleStates<A>, part: &'a Part<'a>) -> Option<Self> {
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

    /// Judges the word and locks it; fails if another thread is faster.
    #[inline(always)]
    fn try_lock_bit(&self, now: Micros) -> Result<Judged, NotCharged> {
        let judged = self.judge(now)?;
        if try_lock_bit(self.place.word(), judged.word) { Ok(judged) } else { Err(NotCharged::Lost) }
    }

    /// Judges the word and locks it; retries while other threads are faster.
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

    /// Returns the decision about a word if the fast path supports it and it writes nothing.
    fn plain(&self, word: u64, now: Micros) -> Option<Decision> {
        let (next, decision) = self.decide(word, now)?;
        let plain = match decision.outcome {
            Outcome::Allowed => true,
            // A refusal writes only after the clock has stepped back.
            _ => !decision.is_allowed() && next == word,
        };
        plain.then(|| decision.of_rule(self.part.rule))
    }

    /// Whether the key is no longer at the location where it was found or remembered.
    fn is_gone(&self) -> bool {
        let gone = self.place.owner() != self.fingerprint;
        if gone && self.is_global_key() {
            self.keyed.versions.get(FIRST).table.forget_place();
        }
        gone
    }

    /// Whether the locked word still belongs to the key and the first version of the rule.
    #[inline]
    fn is_ours(&self) -> bool {
        self.place.owner() == self.fingerprint && self.keyed.versions.current() == FIRST
    }

    /// Whether the judged word is unchanged and still belongs to the key and the first version.
    #[inline]
    fn is_still(&self, word: u64) -> bool {
        self.place.is_still(self.fingerprint, word) && self.keyed.versions.current() == FIRST
    }
}
