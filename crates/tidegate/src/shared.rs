//! # One state, many threads
//!
//! A state of one word is decided on as a copy and changed by holding it for a moment. A larger state lies beside
//! its word, which then serves as a guard only: it is held first, and the state is changed in place.

use crate::ahead::{self, Ahead, Home};
use crate::hold::{HELD, Patience, hold, release, try_hold};
use crate::regime::{Regimes, is_marked};
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::verb::Verb;
use tidegate_core::{Algorithm, ClockKind, Micros, Words, WordsMut};

/// Words that threads share, for whoever holds the guard of them.
#[derive(Debug)]
pub(crate) struct Guarded<'a>(pub(crate) &'a [AtomicU64]);

impl Words for Guarded<'_> {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }
}

impl WordsMut for Guarded<'_> {
    #[inline]
    fn set(&mut self, index: usize, word: u64) {
        self.0[index].store(word, Ordering::Relaxed);
    }
}

/// When a verb is carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct When {
    pub(crate) now: Micros,
    pub(crate) clock: ClockKind,
}

impl When {
    /// As late as `instant`, if the clock cannot step back: then an earlier reading was merely slow to get here.
    #[inline]
    pub(crate) fn not_before(self, instant: Micros) -> Self {
        match self.clock {
            ClockKind::MayStepBack => self,
            ClockKind::Monotonic => When { now: self.now.max(instant), ..self },
        }
    }

    /// The earliest instant to decide at by a setting that was put in force at this one.
    pub(crate) fn since(self) -> Micros {
        match self.clock {
            ClockKind::MayStepBack => Micros::ZERO,
            ClockKind::Monotonic => self.now,
        }
    }

    /// The instant to decide at, given what the state has seen.
    #[inline]
    pub(crate) fn for_state<A: Algorithm, S: Words + ?Sized>(self, algorithm: &A, state: &S) -> Micros {
        match self.clock {
            ClockKind::MayStepBack => self.now,
            // A thread may be interrupted between reading the clock and reading the state. Taken at its word, its old
            // reading would look like a step back and pull back what others have done meanwhile.
            ClockKind::Monotonic => self.now.max(algorithm.last_seen(state)),
        }
    }
}

#[inline]
pub(crate) fn run<A, V, S>(algorithm: &A, verb: &V, state: &mut S, when: When) -> V::Answer
where
    A: Algorithm,
    V: Verb,
    S: WordsMut + ?Sized,
{
    let now = when.for_state(algorithm, state);
    verb.apply(algorithm, state, now)
}

/// One state, with the algorithm in force over it.
#[derive(Debug)]
pub(crate) struct Shared<A> {
    /// The state itself if it is one word, else its guard.
    word: Aligned,
    regimes: Regimes<Regime<A>>,
    changing: Mutex<()>,
    ahead: Ahead<A>,
}

/// A cache line of its own, so that threads at one limiter do not slow down their neighbours.
#[derive(Debug)]
#[repr(align(128))]
struct Aligned(AtomicU64);

/// An algorithm, and the state it keeps if that is more than one word.
#[derive(Debug)]
struct Regime<A> {
    algorithm: A,
    /// When it was put in force. Judged at an earlier instant, a state would have owed at the pace of the wrong setting.
    since: Micros,
    one_word: bool,
    state: Box<[AtomicU64]>,
}

impl<A: Algorithm> Regime<A> {
    fn new(algorithm: A) -> Self {
        let words = algorithm.words();
        let beside = if words == 1 { 0 } else { words };
        let state = (0..beside).map(|_| AtomicU64::new(0)).collect();
        Regime { algorithm, since: Micros::ZERO, one_word: words == 1, state }
    }
}

impl<A: Algorithm> Shared<A> {
    pub(crate) fn new(algorithm: A, max_waiting: usize) -> Self {
        Shared {
            word: Aligned(AtomicU64::new(0)),
            regimes: Regimes::new(Regime::new(algorithm)),
            changing: Mutex::new(()),
            ahead: Ahead::new(1, max_waiting),
        }
    }

    /// The short cut, for whoever may take it: one word, not held, and a verb that needs no more than a look at it.
    #[inline(always)]
    pub(crate) fn apply_at_once<V: Verb>(&self, verb: &V, now: Micros) -> Option<V::Answer> {
        let number = self.regimes.current();
        let regime = self.regimes.get(number);
        let found = self.word.0.load(Ordering::Acquire);
        if !regime.one_word || found & HELD != 0 {
            return None;
        }
        let now = match number {
            0 => now,
            marked if is_marked(marked) => return None,
            _ => now.max(regime.since),
        };
        let (next, answer) = verb.at_once(&regime.algorithm, found, now)?;
        self.put(found, next, number).then_some(answer)
    }

    /// Replaces the word if it is still what was `found`, and setting `number` is still in force.
    #[inline(always)]
    fn put(&self, found: u64, next: u64, number: usize) -> bool {
        if next == found {
            return self.regimes.current() == number;
        }
        if !try_hold(&self.word.0, found) {
            return false;
        }
        let still = self.regimes.current() == number;
        release(&self.word.0, if still { next } else { found });
        still
    }

    /// The long way, for larger states and for those who did not get through at once.
    #[inline(never)]
    pub(crate) fn apply<V: Verb>(&self, verb: &V, when: When) -> V::Answer {
        loop {
            if is_marked(self.regimes.current()) {
                if let Some(answer) = ahead::apply(self, None, THE_ONE, verb, when) {
                    return answer;
                }
            } else if let Some(answer) = self.apply_while(false, verb, when) {
                return answer;
            }
        }
    }

    /// Does it to the state, as long as nobody sets the mark or takes it away.
    fn apply_while<V: Verb>(&self, marked: bool, verb: &V, when: When) -> Option<V::Answer> {
        let mut patience = Patience::new();
        loop {
            let number = self.regimes.current();
            if is_marked(number) != marked {
                return None;
            }
            let regime = self.regimes.get(number);
            let when = when.not_before(regime.since);
            let answer = if regime.one_word {
                self.apply_to_word(regime, number, verb, when)
            } else {
                self.apply_guarded(regime, number, verb, when)
            };
            if answer.is_some() {
                return answer;
            }
            patience.wait();
        }
    }

    fn apply_to_word<V: Verb>(
        &self,
        regime: &Regime<A>,
        number: usize,
        verb: &V,
        when: When,
    ) -> Option<V::Answer> {
        let found = self.word.0.load(Ordering::Acquire);
        if found & HELD != 0 {
            return None;
        }
        let mut state = [found];
        let answer = run(&regime.algorithm, verb, &mut state, when);
        self.put(found, state[0], number).then_some(answer)
    }

    fn apply_guarded<V: Verb>(
        &self,
        regime: &Regime<A>,
        number: usize,
        verb: &V,
        when: When,
    ) -> Option<V::Answer> {
        if !try_hold(&self.word.0, 0) {
            return None;
        }
        let still = self.regimes.current() == number;
        let answer = still.then(|| run(&regime.algorithm, verb, &mut Guarded(&regime.state), when));
        release(&self.word.0, 0);
        answer
    }

    /// How many may wait.
    pub(crate) fn max_waiting(&self) -> usize {
        self.ahead.max_waiting()
    }

    /// The algorithm in force.
    pub(crate) fn algorithm(&self) -> &A {
        &self.regimes.get(self.regimes.current()).algorithm
    }

    /// Puts `next` in force. What was used stays used.
    pub(crate) fn change(&self, next: A, when: impl FnOnce() -> When) {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // First, so that whoever holds one of these locks finds the state not held for long.
        let visits = self.ahead.visit_all();
        let mut next = Regime::new(next);
        let found = hold(&self.word.0);
        // Only now: a reading from before the hold could be earlier than that of somebody who decided meanwhile.
        let when = when();
        next.since = when.since();
        let old = self.regimes.get(self.regimes.current());
        let mut word = [0];
        match (old.one_word, next.one_word) {
            (true, true) => migrate_from(&next, old, &[found], &mut word, when),
            (true, false) => migrate_from(&next, old, &[found], &mut Guarded(&next.state), when),
            (false, true) => migrate_from(&next, old, &Guarded(&old.state), &mut word, when),
            (false, false) => migrate_from(&next, old, &Guarded(&old.state), &mut Guarded(&next.state), when),
        }
        self.regimes.push(next);
        release(&self.word.0, word[0]);
        ahead::migrate_from(self, visits, &old.algorithm, when);
    }
}

/// What the only state is known by.
pub(crate) const THE_ONE: u64 = 0;

impl<A: Algorithm> Home for Shared<A> {
    type Algorithm = A;

    fn ahead(&self) -> &Ahead<A> {
        &self.ahead
    }

    fn algorithm(&self) -> &A {
        self.algorithm()
    }

    fn is_marked(&self) -> bool {
        is_marked(self.regimes.current())
    }

    fn mark(&self) {
        self.regimes.mark();
    }

    fn unmark(&self) {
        self.regimes.unmark();
    }

    fn apply_under_lock<V: Verb>(&self, _: Option<&A>, _: u64, verb: &V, when: When) -> V::Answer {
        loop {
            let marked = is_marked(self.regimes.current());
            if let Some(answer) = self.apply_while(marked, verb, when) {
                return answer;
            }
        }
    }
}

fn migrate_from<A, F, S>(next: &Regime<A>, old: &Regime<A>, from: &F, state: &mut S, when: When)
where
    A: Algorithm,
    F: Words + ?Sized,
    S: WordsMut + ?Sized,
{
    let now = when.for_state(&old.algorithm, from);
    next.algorithm.migrate_from(&old.algorithm, from, state, now);
}
