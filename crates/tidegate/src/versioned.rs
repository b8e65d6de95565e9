//! # Versions of a limiter's configuration
//!
//! A quota may change while threads decide with it. Each version stays in memory until the limiter is dropped, so a
//! thread can continue to read a version that has just been replaced; it notices when it is about to write. Versions
//! are few and small, so keeping them costs less than registering every decision as a reader.
//!
//! Every decision reads the current version number. So that number also carries the
//! [slow-path flag](Versions::set_slow_path) in its topmost bit, which tells decisions that they must check for
//! reservations. A decision that was made without having seen the flag finds a number that differs from the one it
//! started with, and is made again.
//!
//! So the fast path has no extra instruction for reservations and queues. The price: while the flag is set,
//! all decisions of the limiter take the slow path, including decisions on other keys, because one bit cannot
//! name a key. In a policy the flag means that a state of the rule has a queue. Its states are never charged
//! in advance, so the same bit serves both.

use std::sync::OnceLock;

use crate::sync::{AtomicUsize, Ordering};

/// An append-only list of versions, the last of which is current.
///
/// The first is stored inline, where a limiter that never changes reads it at no extra cost.
#[derive(Debug)]
pub(crate) struct Versions<T> {
    first: T,
    /// The number of versions after the first.
    ///
    /// The lists double in length, so none ever moves.
    later: AtomicUsize,
    lists: [OnceLock<Box<[OnceLock<T>]>>; LISTS],
}

/// Enough for 2³² − 1 changes.
const LISTS: usize = 32;
/// The bit of a version number that says that there are reservations.
const SLOW_PATH: usize = 1 << (usize::BITS - 1);

/// Returns whether a version number carries the slow-path flag.
#[inline]
pub(crate) fn is_slow_path(number: usize) -> bool {
    number & SLOW_PATH != 0
}

impl<T> Versions<T> {
    pub(crate) fn new(first: T) -> Self {
        Versions { first, later: AtomicUsize::new(0), lists: [const { OnceLock::new() }; LISTS] }
    }

    /// Returns the number of the current version, with the slow-path flag.
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
        let (list, index) = list_and_index(number);
        self.lists[list]
            .get()
            .and_then(|list| list[index].get())
            .expect("a number is published after its version")
    }

    /// Returns every version, in the order in which they became current.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        (0..=self.current() & !SLOW_PATH).map(|number| self.get(number))
    }

    /// Makes `next` the current version. Only one thread may do so at a time.
    pub(crate) fn push(&self, next: T) -> usize {
        let number = (self.current() & !SLOW_PATH) + 1;
        let (list, index) = list_and_index(number);
        let list = self.lists[list].get_or_init(|| (0..1 << list).map(|_| OnceLock::new()).collect());
        assert!(list[index].set(next).is_ok(), "versions are pushed by one thread at a time");
        self.later.fetch_add(1, Ordering::AcqRel); // keeps the slow-path flag, even if it changes meanwhile
        number
    }

    /// Sets the slow-path flag of the current version and of the versions that follow.
    pub(crate) fn set_slow_path(&self) {
        self.later.fetch_or(SLOW_PATH, Ordering::AcqRel);
    }

    /// Clears the slow-path flag.
    pub(crate) fn clear_slow_path(&self) {
        self.later.fetch_and(!SLOW_PATH, Ordering::AcqRel);
    }
}

/// Returns the list and the index of a version.
///
/// List `n` contains the versions from number 2ⁿ on.
fn list_and_index(number: usize) -> (usize, usize) {
    let list = number.ilog2();
    (list as usize, number - (1 << list))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_version_is_found_under_its_number() {
        let versions = Versions::new(0);
        for number in 1..1_000 {
            assert_eq!(versions.push(number), number);
        }
        assert_eq!(versions.current(), 999);
        assert!((0..1_000).all(|number| *versions.get(number) == number));
    }

    #[test]
    fn slow_path_flag_changes_the_number_and_not_the_value() {
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
