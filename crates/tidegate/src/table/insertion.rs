//! # Insertion of new keys
//!
//! A key without a state is decided on like a key never seen, or by what the [sketch](super::sketch) remembers of it,
//! under the lock of its segment. Most such decisions have to be remembered, and then the key needs a slot: a free one,
//! the slot of an idle key, one in a new segment if its own is nearly full, or, at the cap, one that the
//! [eviction](super::eviction) of an idle key elsewhere in the table makes available. If there is none, the key shares
//! cells of the sketch, or is refused.

use super::segment::{Location, Owners, Segment};
use super::sketch::Recalled;
use super::{Scratch, Step, Table, idle_at, is_past, lock};
use crate::sync::Ordering;
use tidegate_core::{Micros, Wait};

/// The decision on a key without a state: the answer, and the state to keep.
pub(super) struct Insertion<'a, T> {
    pub(super) answer: T,
    pub(super) state: Scratch,
    pub(super) placement: Placement<'a>,
}

/// Where the state of a new key is to be kept.
pub(super) enum Placement<'a> {
    /// There is nothing to keep, or no room for it.
    None,
    /// In a slot, which is already counted as taken.
    Slot(Location<'a>),
    /// In the cells of the sketch.
    Sketch,
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
        let Insertion { answer, mut state, placement } =
            self.decide_new_key(segment, &mut owners, fingerprint, step, &|_| false)?;
        match placement {
            Placement::None => {}
            Placement::Slot(place) => {
                let idle_at = step.idle_at(state.words());
                self.store_new_key(place, &mut owners, fingerprint, state.words(), idle_at);
            }
            Placement::Sketch => self.sketch.raise(fingerprint, state.words()),
        }
        Some(answer)
    }

    /// Decides for a key without a state, and finds a slot if it must be remembered.
    ///
    /// Skips slots for which `is_taken` holds. Requires the lock of the segment. Returns `None` if the segment had to
    /// divide first.
    pub(super) fn decide_new_key<'a, T: Step>(
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
            return Some(Insertion { answer: self.refuse(instant, step), state, placement: Placement::None });
        }
        let mut before = state.clone();
        let answer = step.run_anew(state.words(), owners.evicted_at);
        let mut placement = Placement::None;
        if must_be_kept(&recalled, before.words(), state.words(), step) {
            placement = match self.make_room(segment, owners, fingerprint, step, is_taken)? {
                Room::At(place) => Placement::Slot(place),
                Room::NotBefore(_) if self.sketch.serves(step) => Placement::Sketch,
                Room::NotBefore(instant) => {
                    return Some(Insertion { answer: self.refuse(instant, step), state, placement });
                }
            };
        }
        let answer = match (&recalled, &placement) {
            (Recalled::Nothing, Placement::None | Placement::Slot(_)) => answer,
            _ => self.sketch.label(step, answer),
        };
        Some(Insertion { answer, state, placement })
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
            self.count_evicted(1);
        }
        let crowded = owners.keys >= segment.slots() * 7 / 8;
        if crowded || self.keys.load(Ordering::Relaxed) >= self.max_keys {
            self.count_evicted(segment.sweep(owners, &|place| idle_at(place, step), step.now()));
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

    pub(super) fn store_new_key(
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

    /// Counts one more key, unless the table is at its cap.
    pub(super) fn reserve(&self) -> bool {
        // Never above the cap, not even for a moment: in that moment another key would be refused needlessly.
        let one_more = |keys: usize| (keys < self.max_keys).then_some(keys + 1);
        self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }
}

/// Returns whether a new key's state has to be kept.
///
/// It was `before` when it was recalled.
fn must_be_kept<T: Step>(recalled: &Recalled, before: &[u64], state: &[u64], step: &T) -> bool {
    match recalled {
        // Shared cells cannot be refunded, and what other keys have used needs no slot until this key adds to it.
        Recalled::Estimate => state > before,
        _ => !is_past(step.idle_at(state), step),
    }
}
