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
//! There is no timer. Whoever asks for a place first sees to it that those whose lease is over are free; until somebody asks
//! nobody can tell.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{Micros, Permits};

/// Who holds places: 128 bits that nobody can guess, written as 32 letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaceId(u128);

/// All places that are held.
#[derive(Debug, Default)]
pub(super) struct Places {
    held: Mutex<Held>,
    /// Two of them, because each makes 64 bits.
    secrets: [RandomState; 2],
}

#[derive(Debug, Default)]
struct Held {
    by_id: HashMap<PlaceId, Holding>,
    /// Whose lease is over when, the first in front.
    ends: BTreeSet<(Micros, PlaceId)>,
    made: u64,
}

#[derive(Debug)]
struct Holding {
    permits: Permits,
    lease: Duration,
    until: Micros,
}

impl Places {
    /// Holds permits for one lease from `now` on.
    pub(super) fn hold(&self, permits: Permits, lease: Duration, now: Micros) -> PlaceId {
        let mut held = self.lock();
        held.made += 1;
        let id = self.id(held.made);
        let until = after(now, lease);
        held.ends.insert((until, id));
        held.by_id.insert(id, Holding { permits, lease, until });
        id
    }

    /// Holds what `id` holds for another lease from `now` on, and tells how long that is. `None` if it holds nothing.
    pub(super) fn renew(&self, id: PlaceId, now: Micros) -> Option<Duration> {
        self.free_overdue(now);
        let mut held = self.lock();
        let Held { by_id, ends, .. } = &mut *held;
        let holding = by_id.get_mut(&id)?;
        ends.remove(&(holding.until, id));
        holding.until = after(now, holding.lease);
        ends.insert((holding.until, id));
        Some(holding.lease)
    }

    /// Gives back what `id` holds. `false` if it holds nothing (any more).
    pub(super) fn release(&self, id: PlaceId, now: Micros) -> bool {
        self.free_overdue(now);
        let holding = self.lock().remove(id); // nobody waits for the lock when the permits are given back
        holding.map(|holding| holding.permits.succeeded()).is_some()
    }

    /// Gives back all whose lease is over.
    pub(super) fn free_overdue(&self, now: Micros) {
        let overdue: Vec<Holding> = {
            let mut held = self.lock();
            std::iter::from_fn(|| held.overdue(now)).collect()
        };
        drop(overdue);
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

    /// How many are held.
    pub(super) fn len(&self) -> usize {
        self.lock().by_id.len()
    }

    fn id(&self, number: u64) -> PlaceId {
        let [high, low] = self.secrets.each_ref().map(|secret| u128::from(secret.hash_one(number)));
        PlaceId(high << 64 | low)
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
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
