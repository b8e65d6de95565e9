//! # Claim: one of several states that are charged together
//!
//! A request over several keys charges all of their states or none, and no other thread may observe a partial charge.
//! Each state is *claimed*: judged, locked, and then charged or released. The lock bits make several words change as
//! one:
//!
//! ```text
//!   judge        copies of the words of existing keys             one refuses? answer, nothing was touched
//!   make room    for new keys, under their segments' locks
//!   lock         every word, if it is still what was judged       one is not? release all, and restart
//!   charge       and release
//! ```
//!
//! **No thread waits for a word while it has another one locked**, nor for a second segment lock while it has one. If a
//! lock is not available immediately, the request releases everything and restarts a moment later. So two requests
//! never deadlock with each other, nor with a reload, which locks every word of a table to change its version. Room is
//! made before any word is locked, because making room may have to wait until the word of an idle key can be locked.
//!
//! A global order of locks, the usual remedy against deadlocks, is not sufficient here. A reload locks all
//! words of a table in an order of its own, and an insertion needs the lock of a segment, and its holder may be
//! waiting for a word. The first segment lock is taken by waiting, every other only by trying.
//!
//! A state that is wider than one word cannot be judged without locking its word. It is judged last, and stays locked.

use super::insertion::{Insertion, Placement};
use super::segment::{Location, Segment};
use super::sketch::Recalled;
use super::{OwnersGuard, Scratch, Step, Table, lock};
use crate::lock_bit::{LOCKED, try_lock_bit, unlock_bit};
use crate::state_cell::Guarded;
use crate::sync::{Ordering, try_lock};
use tidegate_core::{Micros, Wait};

/// A state that is about to be charged.
///
/// Dropping the claim earlier releases the state unchanged.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    table: &'a Table,
    fingerprint: u64,
    stage: Stage<'a>,
}

#[derive(Debug)]
enum Stage<'a> {
    /// Nothing is known yet, or the claim is finished.
    Idle,
    /// A state of one word that was judged on a copy.
    Judged { place: Location<'a>, found: u64, next: u64 },
    /// A state of one word that is locked, with its next value.
    Word { place: Location<'a>, found: u64, next: u64 },
    /// A wide state that was not read yet.
    Unseen { place: Location<'a> },
    /// A wide state. Its word is locked.
    Wide { place: Location<'a>, found: u64 },
    /// The key has no state yet.
    New,
    /// The table has no slot for the key, which shares cells of the sketch.
    Sketched { state: Scratch },
    /// An empty slot is set aside for a new key.
    Room { place: Location<'a>, state: Scratch, idle_at: Micros },
}

/// The segments that the request has locked because new keys are inserted into them.
#[derive(Debug, Default)]
pub(crate) struct Locks<'a>(Vec<Locked<'a>>);

#[derive(Debug)]
struct Locked<'a> {
    segment: &'a Segment,
    owners: OwnersGuard<'a>,
    /// Empty slots that are set aside.
    taken: Vec<Location<'a>>,
}

impl<'a> Claim<'a> {
    #[inline]
    pub(crate) fn new(table: &'a Table, fingerprint: u64) -> Self {
        Claim { table, fingerprint, stage: Stage::Idle }
    }

    /// Judges the state if that is possible without locking it.
    ///
    /// That is possible for a state of one word, on a copy, and for a key that has no state yet. Returns `Some(None)`
    /// for a wide state, and `None` if the word was locked and the request must restart.
    #[inline]
    pub(crate) fn judge<T: Step>(&mut self, step: &T) -> Option<Option<T::Answer>> {
        let table = self.table;
        let found = table.segments.find(self.fingerprint).and_then(|segment| segment.find(self.fingerprint));
        let Some(place) = found else {
            return self.judge_new_key(step);
        };
        if table.words != 1 {
            self.stage = Stage::Unseen { place };
            return Some(None);
        }
        let found = place.word().load(Ordering::Acquire);
        if found & LOCKED != 0 {
            return None;
        }
        let (next, answer) = judge_word(step, found);
        self.stage = Stage::Judged { place, found, next };
        Some(Some(answer))
    }

    /// Judges a key that was not found, under the lock of its segment.
    ///
    /// Only under that lock it is certain that the key is absent.
    ///
    /// No word is locked yet, so waiting for the lock is safe.
    #[cold]
    fn judge_new_key<T: Step>(&mut self, step: &T) -> Option<Option<T::Answer>> {
        let mut locks = Locks::default();
        let Locked { segment, .. } = locks.get(self.table.segments.of(self.fingerprint))?;
        if !self.is_absent_from(segment) || !step.is_current() {
            return None;
        }
        self.stage = Stage::New;
        Some(Some(self.run_unseen(step)))
    }

    /// Returns whether the key has no slot, given the segment that is locked.
    fn is_absent_from(&self, segment: &Segment) -> bool {
        let home = self.table.segments.of(self.fingerprint);
        std::ptr::eq(segment, home) && segment.find(self.fingerprint).is_none()
    }

    pub(crate) fn is_new(&self) -> bool {
        matches!(self.stage, Stage::New)
    }

    /// Sets a slot aside for a new key, under the lock of its segment.
    ///
    /// Returns the answer for its initial state, or a refusal if there is no room.
    ///
    /// Returns `None` if the request must restart.
    #[cold]
    pub(crate) fn make_room<T: Step>(&mut self, locks: &mut Locks<'a>, step: &T) -> Option<T::Answer> {
        let (table, fingerprint) = (self.table, self.fingerprint);
        let Locked { segment, owners, taken } = locks.get(table.segments.of(fingerprint))?;
        // Checked again under the lock: the segment may have divided, or the key may have been inserted, before.
        if !self.is_absent_from(segment) || !step.is_current() {
            return None;
        }
        let is_taken = |place: Location<'_>| taken.iter().any(|other| other.is(place));
        let Insertion { answer, mut state, placement } =
            table.decide_new_key(segment, owners, fingerprint, step, &is_taken)?;
        self.stage = match placement {
            Placement::None => Stage::Idle,
            Placement::Slot(place) => {
                taken.push(place);
                let idle_at = step.idle_at(state.words());
                Stage::Room { place, state, idle_at }
            }
            Placement::Sketch => Stage::Sketched { state },
        };
        Some(answer)
    }

    /// Returns the answer for a key without a slot, from what the sketch remembers of it.
    fn run_unseen<T: Step>(&self, step: &T) -> T::Answer {
        let mut state = Scratch::new(self.table.words);
        match self.table.sketch.recall(self.fingerprint, step, state.words()) {
            Recalled::OwesUntil(instant) => step.refuse(Wait::micros(instant.since(step.now()))),
            Recalled::Nothing => step.run(state.words()),
            Recalled::Estimate => step.sketched(step.run(state.words())),
        }
    }

    /// Locks and judges a wide state, by a step that changes nothing.
    ///
    /// Returns `None` if the request must restart.
    pub(crate) fn lock_wide<T: Step>(&mut self, peek: &T) -> Option<Option<T::Answer>> {
        let Stage::Unseen { place } = self.stage else { return Some(None) };
        let found = place.try_lock_bit(self.fingerprint)?;
        self.stage = Stage::Wide { place, found };
        peek.is_current().then(|| Some(peek.run(&mut Guarded(place.state()))))
    }

    /// Locks a word that was judged, if it has not changed since.
    ///
    /// Returns `false` if the request must restart.
    #[inline]
    pub(crate) fn lock_word<T: Step>(&mut self, step: &T) -> bool {
        let Stage::Judged { place, found, next } = self.stage else { return true };
        if !try_lock_bit(place.word(), found) {
            return false;
        }
        self.stage = Stage::Word { place, found, next };
        place.owner() == self.fingerprint && step.is_current()
    }

    /// Judges again what was judged, by a step that changes nothing.
    ///
    /// Returns `None` if the request must restart.
    pub(crate) fn look<T: Step>(&self, locks: &mut Locks<'a>, peek: &T) -> Option<T::Answer> {
        match self.stage {
            Stage::Judged { found, .. } | Stage::Word { found, .. } => Some(peek.run(&mut [found])),
            Stage::Wide { place, .. } => Some(peek.run(&mut Guarded(place.state()))),
            Stage::New | Stage::Room { .. } | Stage::Sketched { .. } | Stage::Idle => {
                self.is_still_absent(locks, peek).then(|| self.run_unseen(peek))
            }
            Stage::Unseen { .. } => None,
        }
    }

    /// Returns whether a new key is still absent.
    ///
    /// Does not wait for the segment's lock: words may be locked.
    fn is_still_absent<T: Step>(&self, locks: &mut Locks<'a>, step: &T) -> bool {
        let segment = self.table.segments.of(self.fingerprint);
        locks.try_get(segment).is_some_and(|locked| self.is_absent_from(locked.segment)) && step.is_current()
    }

    /// Judges again a word that was judged and could not be locked.
    ///
    /// Returns `None` if another thread has it locked, or if this claim has locked it by now.
    pub(crate) fn judge_again<T: Step>(&mut self, step: &T) -> Option<T::Answer> {
        let Stage::Judged { place, .. } = self.stage else { return None };
        let found = place.word().load(Ordering::Acquire);
        if found & LOCKED != 0 {
            return None;
        }
        let (next, answer) = judge_word(step, found);
        self.stage = Stage::Judged { place, found, next };
        Some(answer)
    }

    /// Returns whether a word was judged and is not locked.
    pub(crate) fn is_judged(&self) -> bool {
        matches!(self.stage, Stage::Judged { .. })
    }

    /// Charges the state and unlocks it. All claims of the request must be locked by now.
    #[inline]
    pub(crate) fn charge<T: Step>(&mut self, locks: &mut Locks<'a>, step: &T) {
        if let Stage::Wide { place, .. } = self.stage {
            return self.run_wide(place, step);
        }
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Word { place, next, .. } => unlock_bit(place.word(), next),
            Stage::Room { place, mut state, idle_at } => {
                let locked = locks.get(place.segment).expect("the segment is locked since room was made");
                self.table.store_new_key(place, &mut locked.owners, self.fingerprint, state.words(), idle_at);
            }
            Stage::Sketched { mut state } => self.table.sketch.raise(self.fingerprint, state.words()),
            Stage::Idle => {} // nothing to remember
            unfinished => {
                unreachable!("a request is charged only after all claims are locked: {unfinished:?}")
            }
        }
    }

    /// Runs `step` on a wide state with a locked word, and unlocks the word.
    fn run_wide<T: Step>(&mut self, place: Location<'a>, step: &T) {
        step.run(&mut Guarded(place.state()));
        self.stage = Stage::Idle; // only now: if the step panics, dropping the claim unlocks the word
        unlock_bit(place.word(), step.idle_at(&Guarded(place.state())).get());
    }

    /// Writes what a refusal or a peek may write: something only if the clock stepped back.
    ///
    /// Called after this state refused, or was peeked at.
    ///
    /// Returns `false` if the judged state has changed since, and the request must restart.
    pub(crate) fn repair<T: Step>(&mut self, locks: &mut Locks<'a>, step: &T) -> bool {
        match self.stage {
            Stage::Judged { place, found, next } if next == found => {
                place.is_still(self.fingerprint, found) && step.is_current()
            }
            Stage::Judged { place, next, .. } => {
                let done = self.lock_word(step);
                if done {
                    self.stage = Stage::Idle;
                    unlock_bit(place.word(), next);
                }
                done
            }
            Stage::Wide { place, .. } => {
                self.run_wide(place, step);
                true
            }
            Stage::New | Stage::Room { .. } | Stage::Sketched { .. } | Stage::Idle => {
                self.is_still_absent(locks, step)
            }
            Stage::Word { .. } | Stage::Unseen { .. } => true,
        }
    }
}

/// Returns the next word and the answer of a step, by the fast path if there is one.
#[inline]
fn judge_word<T: Step>(step: &T, found: u64) -> (u64, T::Answer) {
    step.fast_path(found).unwrap_or_else(|| {
        let mut state = [found];
        let answer = step.run(&mut state);
        (state[0], answer)
    })
}

impl Drop for Claim<'_> {
    /// Unlocks the word unchanged, or gives up the slot that was set aside.
    #[inline]
    fn drop(&mut self) {
        match self.stage {
            Stage::Word { place, found, .. } | Stage::Wide { place, found } => {
                unlock_bit(place.word(), found)
            }
            Stage::Room { .. } => {
                self.table.keys.fetch_sub(1, Ordering::Relaxed);
            }
            Stage::Idle
            | Stage::New
            | Stage::Unseen { .. }
            | Stage::Judged { .. }
            | Stage::Sketched { .. } => {}
        }
    }
}

// === impl Locks ===

impl<'a> Locks<'a> {
    /// Returns the owners of `segment`, locked.
    ///
    /// Waits for the first lock, so no word may be locked yet. Further locks are only tried.
    fn get(&mut self, segment: &'a Segment) -> Option<&mut Locked<'a>> {
        if self.0.is_empty() {
            return Some(self.add(segment, lock(segment)));
        }
        self.try_get(segment)
    }

    /// Like [`get`](Locks::get), without waiting.
    fn try_get(&mut self, segment: &'a Segment) -> Option<&mut Locked<'a>> {
        match self.0.iter().position(|locked| std::ptr::eq(locked.segment, segment)) {
            Some(known) => self.0.get_mut(known),
            None => try_lock(segment.owners()).map(|owners| self.add(segment, owners)),
        }
    }

    fn add(&mut self, segment: &'a Segment, owners: OwnersGuard<'a>) -> &mut Locked<'a> {
        self.0.push_mut(Locked { segment, owners, taken: Vec::new() })
    }
}
