//! # The settings of a limiter, one after the other
//!
//! A quota may change while threads decide by it. Each setting, once made, stays where it is until the limiter is dropped, so a
//! thread can go on reading one that has just been replaced; it finds out when it is about to write. Settings are
//! few and small, so keeping them costs less than asking each decision to sign in and out.
//!
//! Every decision looks at the number in force, so that number is also where a limiter can leave word that decisions
//! have to look further: a [mark](Versions::set_slow_path) in its topmost bit. A decision that was made without having seen the
//! mark finds another number than it began with, and is made again.

use std::sync::OnceLock;

use crate::sync::{AtomicUsize, Ordering};

/// An append-only list of settings, the last of which is in force.
///
/// The first lies in place, where a limiter that never changes finds it at no cost.
#[derive(Debug)]
pub(crate) struct Versions<T> {
    first: T,
    /// How many came after the first. The lists double in length, so none ever moves.
    later: AtomicUsize,
    lists: [OnceLock<Box<[OnceLock<T>]>>; LISTS],
}

/// Enough for 2³² − 1 changes.
const LISTS: usize = 32;
/// The bit of a number that says: somebody has reserved ahead.
const SLOW_PATH: usize = 1 << (usize::BITS - 1);

/// Whether a number carries the mark.
#[inline]
pub(crate) fn is_slow_path(number: usize) -> bool {
    number & SLOW_PATH != 0
}

impl<T> Versions<T> {
    pub(crate) fn new(first: T) -> Self {
        Versions { first, later: AtomicUsize::new(0), lists: [const { OnceLock::new() }; LISTS] }
    }

    /// The number of the setting in force, with its mark.
    #[inline]
    pub(crate) fn current(&self) -> usize {
        self.later.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn get(&self, number: usize) -> &T {
        if number == 0 { &self.first } else { self.later(number) }
    }

    #[cold]
    fn later(&self, number: usize) -> &T {
        let number = number & !SLOW_PATH;
        if number == 0 {
            return &self.first;
        }
        let (list, index) = place(number);
        self.lists[list]
            .get()
            .and_then(|list| list[index].get())
            .expect("a number is handed out after its setting")
    }

    /// Every setting, in the order in which they came into force.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        (0..=self.current() & !SLOW_PATH).map(|number| self.get(number))
    }

    /// Puts the next setting in force. Only one thread may do so at a time.
    pub(crate) fn push(&self, next: T) -> usize {
        let number = (self.current() & !SLOW_PATH) + 1;
        let (list, index) = place(number);
        let list = self.lists[list].get_or_init(|| (0..1 << list).map(|_| OnceLock::new()).collect());
        assert!(list[index].set(next).is_ok(), "settings are pushed by one thread at a time");
        self.later.fetch_add(1, Ordering::AcqRel); // whatever becomes of the mark meanwhile
        number
    }

    /// Marks the number in force, and those that follow.
    pub(crate) fn set_slow_path(&self) {
        self.later.fetch_or(SLOW_PATH, Ordering::AcqRel);
    }

    /// Takes the mark away.
    pub(crate) fn clear_slow_path(&self) {
        self.later.fetch_and(!SLOW_PATH, Ordering::AcqRel);
    }
}

/// List `n` holds the settings from number 2ⁿ on.
fn place(number: usize) -> (usize, usize) {
    let list = number.ilog2();
    (list as usize, number - (1 << list))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_found_under_its_number() {
        let versions = Versions::new(0);
        for number in 1..1_000 {
            assert_eq!(versions.push(number), number);
        }
        assert_eq!(versions.current(), 999);
        assert!((0..1_000).all(|number| *versions.get(number) == number));
    }

    #[test]
    fn a_mark_changes_the_number_and_not_the_setting() {
        let versions = Versions::new(0);
        for number in 0..3 {
            let before = versions.current();
            versions.set_slow_path();
            assert!(versions.current() != before && is_slow_path(versions.current()));
            assert_eq!(*versions.get(versions.current()), number);
            assert_eq!(versions.push(number + 1), number + 1);
            assert!(is_slow_path(versions.current()));
            assert_eq!(*versions.get(versions.current()), number + 1);
            versions.clear_slow_path();
            assert_eq!(versions.current(), number + 1);
        }
    }
}
