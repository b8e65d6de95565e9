//! # State cell: one state, many threads
//!
//! A state of one word is decided on as a copy, and locked for a moment to change it. A wide state is stored next to
//! its word, which then is only its lock: the word is locked first, and the state is changed in place.

use crate::lock_bit::{Backoff, LOCKED, lock_bit, try_lock_bit, unlock_bit};
use crate::operation::Operation;
use crate::reservation::{self, Reservations, StateStore};
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::versioned::{Versions, is_slow_path};
use tidegate_core::{Algorithm, ClockKind, Keep, Micros, Words, WordsMut};

/// Words shared by threads.
///
/// Only the thread that has locked their guard word may use them.
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

/// The instant at which an operation is executed, and the kind of clock it was read from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionTime {
    pub(crate) now: Micros,
    pub(crate) clock: ClockKind,
}

impl DecisionTime {
    /// Moves the instant to `instant` if it is earlier and the clock is monotonic.
    ///
    /// An earlier reading of a monotonic clock was merely slow to get here.
    #[inline]
    pub(crate) fn not_before(self, instant: Micros) -> Self {
        match self.clock {
            ClockKind::MayStepBack => self,
            ClockKind::Monotonic => DecisionTime { now: self.now.max(instant), ..self },
        }
    }

    /// Returns the earliest instant for decisions of a version that starts at this one.
    pub(crate) fn since(self) -> Micros {
        match self.clock {
            ClockKind::MayStepBack => Micros::ZERO,
            ClockKind::Monotonic => self.now,
        }
    }

    /// Returns the instant to decide at, given the last instant that the state has seen.
    #[inline]
    pub(crate) fn for_state<A: Algorithm, S: Words + ?Sized>(self, algorithm: &A, state: &S) -> Micros {
        match self.clock {
            ClockKind::MayStepBack => self.now,
            // A thread may be preempted between reading the clock and reading the state. Its old reading would look
            // like a step back of the clock, and would undo what other threads have done meanwhile.
            ClockKind::Monotonic => self.now.max(algorithm.last_seen(state)),
        }
    }
}

#[inline]
pub(crate) fn run<A, V, S>(algorithm: &A, operation: &V, state: &mut S, when: DecisionTime) -> V::Answer
where
    A: Algorithm,
    V: Operation,
    S: WordsMut + ?Sized,
{
    let now = when.for_state(algorithm, state);
    operation.apply(algorithm, state, now)
}

/// One state, with the versions of its algorithm.
#[derive(Debug)]
pub(crate) struct StateCell<A> {
    /// The state itself if it is one word, otherwise the lock of the wide state.
    word: AlignedWord,
    versions: Versions<Version<A>>,
    changing: Mutex<()>,
    reservations: Reservations<A>,
}

/// A word in a cache line of its own.
///
/// So threads of one limiter do not slow down neighbouring limiters.
#[derive(Debug)]
#[repr(align(128))]
struct AlignedWord(AtomicU64);

/// An algorithm, and its state if that is wide.
#[derive(Debug)]
struct Version<A> {
    algorithm: A,
    /// When this version became current.
    ///
    /// At an earlier instant, a state would be judged by the rate of the wrong version.
    since: Micros,
    one_word: bool,
    state: Box<[AtomicU64]>,
}

impl<A: Algorithm> Version<A> {
    fn new(algorithm: A) -> Self {
        let words = algorithm.words();
        let wide = if words == 1 { 0 } else { words };
        let state = (0..wide).map(|_| AtomicU64::new(0)).collect();
        Version { algorithm, since: Micros::ZERO, one_word: words == 1, state }
    }
}

impl<A: Algorithm> StateCell<A> {
    pub(crate) fn new(algorithm: A, max_waiting: usize) -> Self {
        StateCell {
            word: AlignedWord(AtomicU64::new(0)),
            versions: Versions::new(Version::new(algorithm)),
            changing: Mutex::new(()),
            reservations: Reservations::new(1, max_waiting),
        }
    }

    /// Executes an operation on the fast path.
    ///
    /// The fast path needs a state of one word that is not locked, and an operation that can be decided from the word
    /// alone.
    #[inline(always)]
    pub(crate) fn apply_fast<V: Operation>(&self, operation: &V, now: Micros) -> Option<V::Answer> {
        let number = self.versions.current();
        let version = self.versions.get(number);
        let found = self.word.0.load(Ordering::Acquire);
        if !version.one_word || found & LOCKED != 0 {
            return None;
        }
        let now = match number {
            0 => now,
            flag if is_slow_path(flag) => return None,
            _ => now.max(version.since),
        };
        let (next, answer) = operation.fast_path(&version.algorithm, found, now)?;
        self.put(found, next, number).then_some(answer)
    }

    /// Replaces the word if it is still `found`, and version `number` is still current.
    #[inline(always)]
    fn put(&self, found: u64, next: u64, number: usize) -> bool {
        if next == found {
            return self.versions.current() == number;
        }
        if !try_lock_bit(&self.word.0, found) {
            return false;
        }
        let is_current = self.versions.current() == number;
        unlock_bit(&self.word.0, if is_current { next } else { found });
        is_current
    }

    /// Executes an operation on the slow path.
    ///
    /// It is for wide states, and for operations that missed the fast path.
    #[inline(never)]
    pub(crate) fn apply<V: Operation>(&self, operation: &V, when: DecisionTime) -> V::Answer {
        loop {
            if is_slow_path(self.versions.current()) {
                if let Some(answer) = reservation::apply(self, None, SOLE_KEY, operation, when) {
                    return answer;
                }
            } else if let Some(answer) = self.apply_while(false, operation, when) {
                return answer;
            }
        }
    }

    /// Executes an operation as long as the slow-path flag equals `flag`.
    fn apply_while<V: Operation>(&self, flag: bool, operation: &V, when: DecisionTime) -> Option<V::Answer> {
        let mut backoff = Backoff::new();
        loop {
            let number = self.versions.current();
            if is_slow_path(number) != flag {
                return None;
            }
            let version = self.versions.get(number);
            let when = when.not_before(version.since);
            let answer = if version.one_word {
                self.apply_to_word(version, number, operation, when)
            } else {
                self.apply_guarded(version, number, operation, when)
            };
            if answer.is_some() {
                return answer;
            }
            backoff.wait();
        }
    }

    fn apply_to_word<V: Operation>(
        &self,
        version: &Version<A>,
        number: usize,
        operation: &V,
        when: DecisionTime,
    ) -> Option<V::Answer> {
        let found = self.word.0.load(Ordering::Acquire);
        if found & LOCKED != 0 {
            return None;
        }
        let mut state = [found];
        let answer = run(&version.algorithm, operation, &mut state, when);
        self.put(found, state[0], number).then_some(answer)
    }

    fn apply_guarded<V: Operation>(
        &self,
        version: &Version<A>,
        number: usize,
        operation: &V,
        when: DecisionTime,
    ) -> Option<V::Answer> {
        if !try_lock_bit(&self.word.0, 0) {
            return None;
        }
        let is_current = self.versions.current() == number;
        let answer =
            is_current.then(|| run(&version.algorithm, operation, &mut Guarded(&version.state), when));
        unlock_bit(&self.word.0, 0);
        answer
    }

    /// Returns the current algorithm.
    pub(crate) fn algorithm(&self) -> &A {
        &self.versions.get(self.versions.current()).algorithm
    }

    /// Makes `next` the current algorithm.
    pub(crate) fn change(&self, keep: Keep, next: A, when: impl FnOnce() -> DecisionTime) {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // First, so that a thread that has locked a shard does not find the state locked for long.
        let guards = self.reservations.lock_all_shards();
        let mut next = Version::new(next);
        let found = lock_bit(&self.word.0);
        // Read only after locking: an earlier reading could precede that of a thread that decided meanwhile.
        let when = when();
        next.since = when.since();
        let old = self.versions.get(self.versions.current());
        let mut word = [0];
        match (old.one_word, next.one_word) {
            (true, true) => migrate(keep, &next, old, &[found], &mut word, when),
            (true, false) => migrate(keep, &next, old, &[found], &mut Guarded(&next.state), when),
            (false, true) => migrate(keep, &next, old, &Guarded(&old.state), &mut word, when),
            (false, false) => {
                migrate(keep, &next, old, &Guarded(&old.state), &mut Guarded(&next.state), when);
            }
        }
        self.versions.push(next);
        unlock_bit(&self.word.0, word[0]);
        reservation::migrate(self, keep, guards, &old.algorithm, when);
    }
}

/// The fingerprint of the only state.
pub(crate) const SOLE_KEY: u64 = 0;

impl<A: Algorithm> StateStore for StateCell<A> {
    type Algorithm = A;

    fn reservations(&self) -> &Reservations<A> {
        &self.reservations
    }

    fn algorithm(&self) -> &A {
        self.algorithm()
    }

    fn is_slow_path(&self) -> bool {
        is_slow_path(self.versions.current())
    }

    fn set_slow_path(&self) {
        self.versions.set_slow_path();
    }

    fn clear_slow_path(&self) {
        self.versions.clear_slow_path();
    }

    fn apply_under_lock<V: Operation>(
        &self,
        _: Option<&A>,
        _: u64,
        operation: &V,
        when: DecisionTime,
    ) -> V::Answer {
        loop {
            let flag = is_slow_path(self.versions.current());
            if let Some(answer) = self.apply_while(flag, operation, when) {
                return answer;
            }
        }
    }
}

fn migrate<A, F, S>(
    keep: Keep,
    next: &Version<A>,
    old: &Version<A>,
    from: &F,
    state: &mut S,
    when: DecisionTime,
) where
    A: Algorithm,
    F: Words + ?Sized,
    S: WordsMut + ?Sized,
{
    let now = when.for_state(&old.algorithm, from);
    keep.migrate(&next.algorithm, &old.algorithm, from, state, now);
}
