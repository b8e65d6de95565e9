//! # Insertion of new keys
//!
//! A key without a state is decided on like a key never seen, or by what the [sketch](super::sketch) remembers of it,
//! under the lock of its segment. Most such decisions have to be remembered, and then the key needs a slot: a free one,
//! the slot of an idle key, one in a new segment if its own is nearly full, or, at the cap, one that the eviction of an
//! idle key elsewhere in the table makes available. If there is none, the key shares cells of the sketch, or is
//! refused.

use super::segment::{Location, Owners, Segment};
use super::sketch::Recalled;
use super::{Scratch, Step, Table, idle_at, is_past, lock};
use crate::sync::{Ordering, try_lock};
use tidegate_core::{Micros, Wait};

/// The decision on a key without a state: the answer, and the state to keep.
pub(super) struct Insertion<'a, T> {
    pub(super) answer: T,
    pub(super) state: Scratch,
    pub(super) stays: Stays<'a>,
}

/// Where the state of a new key is to be kept.
pub(super) enum Stays<'a> {
    /// There is nothing to keep, or no room for it.
    Nowhere,
    /// In a slot, which is already counted as taken.
    At(Location<'a>),
    InSketch,
}

/// A slot, or the instant at which one may become free.
enum Room<'a> {
    At(Location<'a>),
    NotBefore(Micros),
}

impl Table {
    /// Decides for a key without a state, and stores one if it must be remembered.
    #[inline(never)]
    pub(super) fn insert_or_decide<T: Step>(&self, fingerprint: u64, step: &T) -> Option<T::Answer> {
        let segment = self.segments.of(fingerprint);
        let mut owners = lock(segment);
        // Checked again under the lock: the segment may have divided, or the key may have been inserted, meanwhile.
        if !std::ptr::eq(segment, self.segments.of(fingerprint))
            || segment.find(fingerprint).is_some()
            || !step.is_current()
        {
            return None;
        }
        let Insertion { answer, mut state, stays } =
            self.receive(segment, &mut owners, fingerprint, step, &|_| false)?;
        match stays {
            Stays::Nowhere => {}
            Stays::At(place) => {
                let idle_at = step.idle_at(state.words());
                self.move_in(place, &mut owners, fingerprint, state.words(), idle_at);
            }
            Stays::InSketch => self.sketch.raise(fingerprint, state.words()),
        }
        Some(answer)
    }

    /// Decides for a key without a state, and finds a slot if it must be remembered.
    ///
    /// Skips slots for which `is_taken` holds. Requires the lock of the segment. Returns `None` if the segment had to
    /// divide first.
    pub(super) fn receive<'a, T: Step>(
        &'a self,
        segment: &'a Segment,
        owners: &mut Owners,
        fingerprint: u64,
        step: &T,
        is_taken: &dyn Fn(Location<'_>) -> bool,
    ) -> Option<Insertion<'a, T::Answer>> {
        let mut state = Scratch::new(self.words);
        let recalled = self.sketch.recall(fingerprint, step, state.words());
        if let Recalled::OwesUntil(instant) = recalled {
            return Some(Insertion { answer: self.refuse(instant, step), state, stays: Stays::Nowhere });
        }
        let mut before = state.clone();
        let answer = step.run_anew(state.words(), owners.evicted_at);
        let mut stays = Stays::Nowhere;
        if is_worth_keeping(&recalled, before.words(), state.words(), step) {
            stays = match self.make_room(segment, owners, fingerprint, step, is_taken)? {
                Room::At(place) => Stays::At(place),
                Room::NotBefore(_) if self.sketch.serves(step) => Stays::InSketch,
                Room::NotBefore(instant) => {
                    return Some(Insertion { answer: self.refuse(instant, step), state, stays });
                }
            };
        }
        let answer = match (&recalled, &stays) {
            (Recalled::Nothing, Stays::Nowhere | Stays::At(_)) => answer,
            _ => self.sketch.label(step, answer),
        };
        Some(Insertion { answer, state, stays })
    }

    /// Refuses a new key until `instant`.
    fn refuse<T: Step>(&self, instant: Micros, step: &T) -> T::Answer {
        self.refused.fetch_add(1, Ordering::Relaxed);
        step.refuse(Wait::micros(instant.since(step.now())))
    }

    /// Finds a slot for a new key and counts it as taken.
    ///
    /// Skips slots for which `is_taken` holds. Returns `None` if the segment had to divide first.
    fn make_room<'a, T: Step>(
        &'a self,
        segment: &'a Segment,
        owners: &mut Owners,
        fingerprint: u64,
        step: &T,
        is_taken: &dyn Fn(Location<'_>) -> bool,
    ) -> Option<Room<'a>> {
        let is_idle = |place: Location<'_>| is_past(idle_at(place, step), step);
        // Only if the home line has no free slot: frequent keys are often idle, and would be reinserted each time.
        let home_is_full = segment.home_places(fingerprint).all(|place| !place.is_empty());
        if home_is_full
            && let Some(place) = segment.home_places(fingerprint).find(|place| is_idle(*place))
            && place.evict_if(owners, step.now(), &is_idle)
        {
            self.gone(1);
        }
        let crowded = owners.keys >= segment.slots() * 7 / 8;
        if crowded || self.keys.load(Ordering::Relaxed) >= self.max_keys {
            self.gone(segment.sweep(owners, &|place| idle_at(place, step), step.now()));
        }
        if owners.keys >= segment.slots() * 7 / 8 && self.segments.can_grow(segment, owners) {
            self.segments.grow(segment, owners);
            return None;
        }
        let at_the_cap = self.keys.load(Ordering::Relaxed) >= self.max_keys;
        let elsewhere = if at_the_cap { self.sweep_elsewhere(segment, owners, step) } else { Micros::MAX };
        let place = segment.find_room(fingerprint, is_taken);
        // One request may set aside more slots than a small segment has.
        if place.is_none() && !at_the_cap && self.segments.can_grow(segment, owners) {
            self.segments.grow(segment, owners);
            return None;
        }
        let place = place.filter(|_| self.reserve());
        Some(place.map_or(Room::NotBefore(owners.none_idle_before.min(elsewhere)), Room::At))
    }

    pub(super) fn move_in(
        &self,
        place: Location<'_>,
        owners: &mut Owners,
        fingerprint: u64,
        state: &[u64],
        idle_at: Micros,
    ) {
        let word = if self.words == 1 { state[0] } else { idle_at.get() };
        owners.none_idle_before = owners.none_idle_before.min(idle_at);
        self.eviction_hint.idle_from(idle_at);
        owners.keys += 1;
        place.insert_owner(fingerprint, word, |wide| {
            wide.iter().zip(state).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
        });
    }

    /// Evicts the idle keys of another segment, for a new key that finds none in its own.
    ///
    /// Returns the instant before which no further key can be idle.
    fn sweep_elsewhere<T: Step>(&self, own: &Segment, owners: &Owners, step: &T) -> Micros {
        if step.now() < self.eviction_hint.none_idle_before() {
            return self.eviction_hint.none_idle_before();
        }
        let arrivals = self.eviction_hint.arrivals();
        let (made, first) = (self.segments.made(), self.swept.load(Ordering::Relaxed));
        let (mut next, mut everywhere) = (owners.none_idle_before, true);
        for number in (first..made).chain(0..first) {
            match self.sweep_other(number, own, step) {
                Some((0, none_before)) => next = next.min(none_before),
                Some((_, none_before)) => {
                    self.swept.store(number, Ordering::Relaxed);
                    return next.min(none_before);
                }
                None => everywhere = false,
            }
        }
        if everywhere {
            self.eviction_hint.looked_everywhere(arrivals, next);
        }
        next
    }

    /// Evicts the idle keys of one segment.
    ///
    /// Returns their number, and when the next key can be idle. Returns `None` if the segment could not be locked.
    fn sweep_other<T: Step>(&self, number: u32, own: &Segment, step: &T) -> Option<(usize, Micros)> {
        let segment = self.segments.nth(number)?;
        if std::ptr::eq(segment, own) {
            return Some((0, Micros::MAX));
        }
        // Without waiting: this thread has its own segment locked, and the holder of the other lock may wait for that
        // one.
        let mut owners = try_lock(segment.owners())?;
        let gone = segment.sweep(&mut owners, &|place| idle_at(place, step), step.now());
        self.gone(gone);
        Some((gone, owners.none_idle_before))
    }

    /// Counts one more key, unless the table is at its cap.
    pub(super) fn reserve(&self) -> bool {
        // Never above the cap, not even for a moment: in that moment another key would be refused needlessly.
        let one_more = |keys: usize| (keys < self.max_keys).then_some(keys + 1);
        self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    fn gone(&self, keys: usize) {
        self.keys.fetch_sub(keys, Ordering::Relaxed);
        self.evicted.fetch_add(keys as u64, Ordering::Relaxed);
    }
}

/// Returns whether a new key's state has to be kept.
///
/// It was `before` when it was recalled.
fn is_worth_keeping<T: Step>(recalled: &Recalled, before: &[u64], state: &[u64], step: &T) -> bool {
    match recalled {
        // Shared cells cannot be refunded, and what other keys have used needs no slot until this key adds to it.
        Recalled::Estimate => state > before,
        _ => !is_past(step.idle_at(state), step),
    }
}
