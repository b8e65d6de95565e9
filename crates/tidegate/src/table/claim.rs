//! # A claim: one of several states that are charged together
//!
//! A request over several keys charges all of their states or none, and nobody may see some of them charged. Each state
//! is *claimed*: judged, held, and then charged or let go. The holds are what makes several words one:
//!
//! ```text
//!   judge        the words of those who are here, as copies       any refuses? answer, nothing was touched
//!   make room    for those who are new, under their segments' locks
//!   lock_bit         every word, if it is still what was judged       one is not? let go of all, and begin again
//!   charge       and let go
//! ```
//!
//! **Nobody waits for a word while holding another**, nor for a second lock while having one: what cannot be had at once is a
//! reason to let go of everything and to begin again a moment later. So no two requests can wait for each other, nor for
//! anybody who holds every word of a table to change its setting. Room is made before anything is held, because
//! making room may mean to wait until an idle owner can be held.
//!
//! States that are larger than their word cannot be judged without holding it, so they are judged late, and stay held.

use super::insertion::{Insertion, Stays};
use super::segment::{Location, Segment};
use super::sketch::Recalled;
use super::{OwnersGuard, Scratch, Step, Table, lock};
use crate::lock_bit::{LOCKED, try_lock_bit, unlock_bit};
use crate::state_cell::Guarded;
use crate::sync::{Ordering, try_lock};
use tidegate_core::{Micros, Wait};

/// A state on its way to being charged. Dropped before that, it is let go as it was.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    table: &'a Table,
    fingerprint: u64,
    stage: Stage<'a>,
}

#[derive(Debug)]
enum Stage<'a> {
    /// Nothing is known, or everything is done.
    Idle,
    /// One word, judged as a copy.
    Judged { place: Location<'a>, found: u64, next: u64 },
    /// One word, held, with what is to become of it.
    Word { place: Location<'a>, found: u64, next: u64 },
    /// A state beside its word, not looked at yet.
    Unseen { place: Location<'a> },
    /// A state beside its word, held.
    Beside { place: Location<'a>, found: u64 },
    /// Nobody lives there yet.
    New,
    /// There is no place for it, and it shares cells with others.
    Sketched { state: Scratch },
    /// A place was set aside for a newcomer.
    Room { place: Location<'a>, state: Scratch, idle_at: Micros },
}

/// The segments whose owners nobody else changes for now: those that get newcomers.
#[derive(Debug, Default)]
pub(crate) struct Locks<'a>(Vec<Locked<'a>>);

#[derive(Debug)]
struct Locked<'a> {
    segment: &'a Segment,
    owners: OwnersGuard<'a>,
    /// Empty places that are set aside.
    taken: Vec<Location<'a>>,
}

impl<'a> Claim<'a> {
    #[inline]
    pub(crate) fn new(table: &'a Table, fingerprint: u64) -> Self {
        Claim { table, fingerprint, stage: Stage::Idle }
    }

    /// Judges the state if that can be done without holding it: by a copy of its word, or as that of a newcomer.
    ///
    /// `Some(None)` if it lies beside its word; `None` if it was held, and all must begin again.
    #[inline]
    pub(crate) fn judge<T: Step>(&mut self, step: &T) -> Option<Option<T::Answer>> {
        let table = self.table;
        let found = table.segments.find(self.fingerprint).and_then(|segment| segment.find(self.fingerprint));
        let Some(place) = found else {
            return self.judge_newcomer(step);
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

    /// Judges somebody who was not found, under the lock of its segment: only there is it certain. Nothing is held yet, so
    /// the lock can be waited for.
    #[cold]
    fn judge_newcomer<T: Step>(&mut self, step: &T) -> Option<Option<T::Answer>> {
        let mut locks = Locks::default();
        let Locked { segment, .. } = locks.get(self.table.segments.of(self.fingerprint))?;
        if !self.is_absent_from(segment) || !step.is_current() {
            return None;
        }
        self.stage = Stage::New;
        Some(Some(self.run_unseen(step)))
    }

    /// Whether the key lives nowhere, given the segment that is locked.
    fn is_absent_from(&self, segment: &Segment) -> bool {
        let home = self.table.segments.of(self.fingerprint);
        std::ptr::eq(segment, home) && segment.find(self.fingerprint).is_none()
    }

    pub(crate) fn is_new(&self) -> bool {
        matches!(self.stage, Stage::New)
    }

    /// Sets a place aside for a newcomer, under the lock of its segment. `None`: all must begin again.
    ///
    /// The answer is that of the state it begins with, or a refusal if there is no room for it.
    #[cold]
    pub(crate) fn make_room<T: Step>(&mut self, locks: &mut Locks<'a>, step: &T) -> Option<T::Answer> {
        let (table, fingerprint) = (self.table, self.fingerprint);
        let Locked { segment, owners, taken } = locks.get(table.segments.of(fingerprint))?;
        // Only now is it certain: the segment may have divided, or the key arrived, before it was locked.
        if !self.is_absent_from(segment) || !step.is_current() {
            return None;
        }
        let is_taken = |place: Location<'_>| taken.iter().any(|other| other.is(place));
        let Insertion { answer, mut state, stays } =
            table.receive(segment, owners, fingerprint, step, &is_taken)?;
        self.stage = match stays {
            Stays::Nowhere => Stage::Idle,
            Stays::At(place) => {
                taken.push(place);
                let idle_at = step.idle_at(state.words());
                Stage::Room { place, state, idle_at }
            }
            Stays::InSketch => Stage::Sketched { state },
        };
        Some(answer)
    }

    /// What there is to say of somebody without a slot, by what is known of it.
    fn run_unseen<T: Step>(&self, step: &T) -> T::Answer {
        let mut state = Scratch::new(self.table.words);
        match self.table.sketch.recall(self.fingerprint, step, state.words()) {
            Recalled::OwesUntil(instant) => step.refuse(Wait::micros(instant.since(step.now()))),
            Recalled::Nothing => step.run(state.words()),
            Recalled::Estimate => step.sketched(step.run(state.words())),
        }
    }

    /// Holds and judges a state that lies beside its word, by a step that changes nothing. `None`: all must begin again.
    pub(crate) fn lock_wide<T: Step>(&mut self, peek: &T) -> Option<Option<T::Answer>> {
        let Stage::Unseen { place } = self.stage else { return Some(None) };
        let found = place.try_lock_bit(self.fingerprint)?;
        self.stage = Stage::Beside { place, found };
        peek.is_current().then(|| Some(peek.run(&mut Guarded(place.state()))))
    }

    /// Holds a word that was judged, if it is still what it was. `false`: all must begin again.
    #[inline]
    pub(crate) fn lock_word<T: Step>(&mut self, step: &T) -> bool {
        let Stage::Judged { place, found, next } = self.stage else { return true };
        if !try_lock_bit(place.word(), found) {
            return false;
        }
        self.stage = Stage::Word { place, found, next };
        place.owner() == self.fingerprint && step.is_current()
    }

    /// Judges once more what was judged, by a step that changes nothing. `None`: all must begin again.
    pub(crate) fn look<T: Step>(&self, locks: &mut Locks<'a>, peek: &T) -> Option<T::Answer> {
        match self.stage {
            Stage::Judged { found, .. } | Stage::Word { found, .. } => Some(peek.run(&mut [found])),
            Stage::Beside { place, .. } => Some(peek.run(&mut Guarded(place.state()))),
            Stage::New | Stage::Room { .. } | Stage::Sketched { .. } | Stage::Idle => {
                self.is_still_absent(locks, peek).then(|| self.run_unseen(peek))
            }
            Stage::Unseen { .. } => None,
        }
    }

    /// Whether somebody who was new still is. Does not wait for the lock: words may be held.
    fn is_still_absent<T: Step>(&self, locks: &mut Locks<'a>, step: &T) -> bool {
        let segment = self.table.segments.of(self.fingerprint);
        locks.try_get(segment).is_some_and(|locked| self.is_absent_from(locked.segment)) && step.is_current()
    }

    /// Judges a word once more that was judged and could not be held. `None` if somebody else holds it, or it is held by now.
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

    /// Whether a word was judged and is not held.
    pub(crate) fn is_judged(&self) -> bool {
        matches!(self.stage, Stage::Judged { .. })
    }

    /// Charges, and lets go. Everything must be held by now.
    #[inline]
    pub(crate) fn charge<T: Step>(&mut self, locks: &mut Locks<'a>, step: &T) {
        if let Stage::Beside { place, .. } = self.stage {
            return self.run_wide(place, step);
        }
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Word { place, next, .. } => unlock_bit(place.word(), next),
            Stage::Room { place, mut state, idle_at } => {
                let locked = locks.get(place.segment).expect("locked since room was made");
                self.table.move_in(place, &mut locked.owners, self.fingerprint, state.words(), idle_at);
            }
            Stage::Sketched { mut state } => self.table.sketch.raise(self.fingerprint, state.words()),
            Stage::Idle => {} // nothing to remember
            unfinished => unreachable!("a request is charged when all of it is held: {unfinished:?}"),
        }
    }

    /// Does it to a state that lies beside its word and is held, and lets go.
    fn run_wide<T: Step>(&mut self, place: Location<'a>, step: &T) {
        step.run(&mut Guarded(place.state()));
        self.stage = Stage::Idle; // only now: a step that panics leaves a word that is let go
        unlock_bit(place.word(), step.idle_at(&Guarded(place.state())).get());
    }

    /// After a refusal by this very state, or a look at it: writes what a refusal may write, which is something only if the clock
    /// stepped back. `false` if what was judged was not there any more, and all must begin again.
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
            Stage::Beside { place, .. } => {
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

/// What a step makes of a word, by the short cut if there is one.
#[inline]
fn judge_word<T: Step>(step: &T, found: u64) -> (u64, T::Answer) {
    step.fast_path(found).unwrap_or_else(|| {
        let mut state = [found];
        let answer = step.run(&mut state);
        (state[0], answer)
    })
}

impl Drop for Claim<'_> {
    /// Lets go.
    #[inline]
    fn drop(&mut self) {
        match self.stage {
            Stage::Word { place, found, .. } | Stage::Beside { place, found } => {
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
    /// The owners of `segment`, for us alone. The first lock is waited for, so nothing may be held; others are only tried.
    fn get(&mut self, segment: &'a Segment) -> Option<&mut Locked<'a>> {
        if self.0.is_empty() {
            return Some(self.add(segment, lock(segment)));
        }
        self.try_get(segment)
    }

    /// The same without waiting.
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
