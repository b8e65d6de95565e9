//! # Places at work
//!
//! In a program a permit is a value, and whoever drops it gives the place back. A client on the other side of a network
//! drops nothing when its machine loses power. So a place is held by an *id* and for a *lease*: renewed in time it goes on,
//! given back it is free at once, and forgotten it is free when the lease is over.
//!
//! ```text
//!   acquire ──► id, lease ──► renew ──► renew ──► release        free at once
//!                    └─────────────────────► (silence)           free when the lease is over
//! ```
//!
//! There is no timer. Whoever asks for a place first frees some of those whose lease is over, and all of them before it is refused
//! for want of a place; until somebody asks nobody can tell.
//!
//! Permits take memory, and a client can ask for many. So there is a bound on how many ids hold any, for each rule and in all.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::Permits;
use tidegate::clock::Micros;

/// Who holds places: 128 bits that nobody can guess, written as 32 letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaceId(u128);

/// All places that are held.
#[derive(Debug)]
pub(super) struct Places {
    held: Mutex<Held>,
    counts: Mutex<Counts>,
    most: AtomicUsize,
    most_of_rule: AtomicUsize,
    /// How often there was no room.
    refused: AtomicU64,
}

/// How many ids hold permits, or are about to.
#[derive(Debug, Default)]
struct Counts {
    all: usize,
    by_rule: HashMap<Arc<str>, usize>,
}

/// Room for one id more. Given back when it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    places: Arc<Places>,
    rule: Arc<str>,
}

/// So many ids hold permits already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    OfRule(usize),
    All(usize),
}

/// So many ids hold permits at most, unless somebody says otherwise: in all, and of each rule.
pub(crate) const MOST_PERMITS: usize = 100_000;
pub(crate) const MOST_PERMITS_OF_RULE: usize = 50_000;
/// So many are freed in one step, so that nobody waits long for those whose lease is over.
const STEP: usize = 256;
/// A table that has room for so many times what it holds is made smaller.
const ROOMY: usize = 8;

#[derive(Debug, Default)]
struct Held {
    by_id: HashMap<PlaceId, Holding>,
    /// Whose lease is over when, the first in front.
    ends: BTreeSet<(Micros, PlaceId)>,
}

#[derive(Debug)]
struct Holding {
    permits: Permits,
    _room: Room,
    lease: Duration,
    until: Micros,
}

impl Default for Places {
    fn default() -> Self {
        let (held, counts, refused) = Default::default();
        let [most, most_of_rule] = [MOST_PERMITS, MOST_PERMITS_OF_RULE].map(AtomicUsize::new);
        Places { held, counts, most, most_of_rule, refused }
    }
}

impl Places {
    /// No more ids than these hold permits.
    pub(super) fn bound(&self, all: usize, of_rule: usize) {
        self.most.store(all, Ordering::Relaxed);
        self.most_of_rule.store(of_rule, Ordering::Relaxed);
    }

    /// Room for one id more that holds permits of this rule.
    pub(super) fn room(self: &Arc<Self>, rule: &str) -> Result<Room, Full> {
        let (most, most_of_rule) =
            (self.most.load(Ordering::Relaxed), self.most_of_rule.load(Ordering::Relaxed));
        let mut counts = self.counts();
        if counts.all >= most {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Full::All(most));
        }
        let (rule, count) = match counts.by_rule.get_key_value(rule) {
            Some((rule, count)) => (rule.clone(), *count),
            None => (rule.into(), 0),
        };
        if count >= most_of_rule {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Full::OfRule(most_of_rule));
        }
        counts.all += 1;
        counts.by_rule.insert(rule.clone(), count + 1);
        Ok(Room { places: self.clone(), rule })
    }

    /// Holds permits for one lease from `now` on.
    pub(super) fn hold(&self, permits: Permits, room: Room, lease: Duration, now: Micros) -> PlaceId {
        let (id, until) = (PlaceId(super::id::random()), after(now, lease));
        let mut held = self.lock();
        held.ends.insert((until, id));
        held.by_id.insert(id, Holding { permits, _room: room, lease, until });
        id
    }

    /// Holds what `id` holds for another lease from `now` on, and tells how long that is. `None` if it holds nothing.
    pub(super) fn renew(&self, id: PlaceId, now: Micros) -> Option<Duration> {
        let mut held = self.lock();
        let Held { by_id, ends, .. } = &mut *held;
        let holding = by_id.get_mut(&id).filter(|holding| holding.until > now)?;
        ends.remove(&(holding.until, id));
        holding.until = after(now, holding.lease);
        ends.insert((holding.until, id));
        Some(holding.lease)
    }

    /// Gives back what `id` holds. `false` if it holds nothing (any more).
    pub(super) fn release(&self, id: PlaceId, now: Micros) -> bool {
        let holding = self.lock().remove(id); // nobody waits for the lock when the permits are given back
        let holding = holding.filter(|holding| holding.until > now);
        holding.map(|holding| holding.permits.succeeded()).is_some()
    }

    /// Gives back some of those whose lease is over. Whether there may be more.
    pub(super) fn free_overdue(&self, now: Micros) -> bool {
        let overdue: Vec<Holding> = {
            let mut held = self.lock();
            let overdue = std::iter::from_fn(|| held.overdue(now)).take(STEP).collect();
            held.shrink();
            overdue
        };
        overdue.len() == STEP // the permits are given back now, and nobody waits for the lock
    }

    /// Gives back all.
    pub(super) fn free_all(&self) {
        let held = {
            let mut held = self.lock();
            held.ends.clear();
            std::mem::take(&mut held.by_id)
        };
        drop(held); // nobody waits for the lock when the permits are given back
    }

    /// How often there was no room for another.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many are held.
    pub(super) fn len(&self) -> usize {
        self.lock().by_id.len()
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut counts = self.places.counts();
        counts.all -= 1;
        if let Some(count) = counts.by_rule.get_mut(&self.rule) {
            *count -= 1;
            if *count == 0 {
                counts.by_rule.remove(&self.rule);
            }
        }
    }
}

impl Held {
    /// Gives memory back that is no longer needed.
    fn shrink(&mut self) {
        let len = self.by_id.len().max(STEP);
        if self.by_id.capacity() > ROOMY * len {
            self.by_id.shrink_to(2 * len);
        }
    }

    fn overdue(&mut self, now: Micros) -> Option<Holding> {
        let (until, id) = *self.ends.first()?;
        if until > now { None } else { self.remove(id) }
    }

    fn remove(&mut self, id: PlaceId) -> Option<Holding> {
        let holding = self.by_id.remove(&id)?;
        self.ends.remove(&(holding.until, id));
        Some(holding)
    }
}

fn after(now: Micros, lease: Duration) -> Micros {
    now.plus(u64::try_from(lease.as_micros()).unwrap_or(u64::MAX))
}

// === impl PlaceId ===

impl fmt::Display for PlaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A text that is no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPlaceId;

impl FromStr for PlaceId {
    type Err = NoPlaceId;

    /// Of exactly 32 small hexadecimal letters: an id has one spelling.
    fn from_str(text: &str) -> Result<Self, NoPlaceId> {
        let is_id = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_id);
        number.map(PlaceId).ok_or(NoPlaceId)
    }
}

impl fmt::Display for NoPlaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this is no id of a place; use the 32 letters that came with it")
    }
}

impl std::error::Error for NoPlaceId {}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(places: &Arc<Places>, rule: &str, now: u64) -> Result<PlaceId, Full> {
        let room = places.room(rule)?;
        Ok(places.hold(Permits::none(), room, Duration::from_secs(1), Micros::new(now)))
    }

    #[test]
    fn the_number_of_ids_is_bounded_for_each_rule_and_in_all() {
        let places = Arc::new(Places::default());
        places.bound(5, 3);
        let first = held(&places, "a", 0).expect("room");
        let others = [held(&places, "a", 0), held(&places, "a", 0)];
        assert!(others.iter().all(Result::is_ok));
        assert_eq!(held(&places, "a", 0), Err(Full::OfRule(3)));
        assert!(held(&places, "b", 0).is_ok() && held(&places, "b", 0).is_ok());
        assert_eq!(held(&places, "c", 0), Err(Full::All(5)));
        assert!(places.release(first, Micros::new(1)));
        assert!(held(&places, "c", 1).is_ok());
        drop(places.room("a")); // not held after all
        let counts = places.counts();
        assert_eq!((counts.all, counts.by_rule["a"]), (5, 2));
    }

    #[test]
    fn those_whose_lease_is_over_are_freed_in_steps_and_their_memory_with_them() {
        let places = Arc::new(Places::default());
        places.bound(usize::MAX, usize::MAX);
        assert!((0..20_000).all(|_| held(&places, "a", 0).is_ok()));
        let late = Micros::new(1_000_000);
        let mut steps = 1;
        while places.free_overdue(late) {
            steps += 1;
            assert_eq!(places.len(), 20_000 - (steps - 1) * STEP, "one step at a time");
        }
        assert_eq!((places.len(), places.counts().all, steps), (0, 0, 20_000 / STEP + 1));
        assert!(places.lock().by_id.capacity() <= ROOMY * STEP);
    }

    #[test]
    fn a_lease_that_is_over_is_over_before_it_is_freed() {
        let places = Arc::new(Places::default());
        places.bound(9, 9);
        let id = held(&places, "a", 0).expect("room");
        assert_eq!(places.renew(id, Micros::new(999_999)), Some(Duration::from_secs(1)));
        assert_eq!(places.renew(id, Micros::new(2_000_000)), None);
        assert!(!places.release(id, Micros::new(2_000_000)));
    }
}
