//! # The settings of a limiter, one after the other
//!
//! A quota may change while threads decide by it. Each setting, once made, stays where it is until the limiter is dropped, so a
//! thread can go on reading one that has just been replaced; it finds out when it is about to write. Settings are
//! few and small, so keeping them costs less than asking each decision to sign in and out.

use std::sync::OnceLock;

use crate::sync::{AtomicUsize, Ordering};

/// An append-only list of settings, the last of which is in force.
///
/// The first lies in place, where a limiter that never changes finds it at no cost.
#[derive(Debug)]
pub(crate) struct Regimes<T> {
    first: T,
    /// How many came after the first. The lists double in length, so none ever moves.
    later: AtomicUsize,
    lists: [OnceLock<Box<[OnceLock<T>]>>; usize::BITS as usize],
}

impl<T> Regimes<T> {
    pub(crate) fn new(first: T) -> Self {
        Regimes {
            first,
            later: AtomicUsize::new(0),
            lists: [const { OnceLock::new() }; usize::BITS as usize],
        }
    }

    /// The number of the setting in force.
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
        let (list, index) = place(number);
        self.lists[list]
            .get()
            .and_then(|list| list[index].get())
            .expect("a number is handed out after its setting")
    }

    /// Puts the next setting in force. Only one thread may do so at a time.
    pub(crate) fn push(&self, next: T) -> usize {
        let number = self.current() + 1;
        let (list, index) = place(number);
        let list = self.lists[list].get_or_init(|| (0..1 << list).map(|_| OnceLock::new()).collect());
        assert!(list[index].set(next).is_ok(), "settings are pushed by one thread at a time");
        self.later.store(number, Ordering::Release);
        number
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
        let regimes = Regimes::new(0);
        for number in 1..1_000 {
            assert_eq!(regimes.push(number), number);
        }
        assert_eq!(regimes.current(), 999);
        assert!((0..1_000).all(|number| *regimes.get(number) == number));
    }
}
