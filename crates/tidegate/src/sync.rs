//! Atomics and locks shared by threads: from `std`, or from loom, which tries every interleaving of them.

#[cfg(not(loom))]
mod real {
    pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use std::sync::{Mutex, MutexGuard};
    pub(crate) use std::thread::{Thread, current as current_thread, park};

    /// The number of spins of the first wait.
    pub(crate) const FIRST_SPINS: u32 = 4;

    pub(crate) fn spin() {
        std::hint::spin_loop();
    }

    pub(crate) fn yield_now() {
        std::thread::yield_now();
    }
}

#[cfg(loom)]
mod real {
    pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
    pub(crate) use loom::thread::{Thread, current as current_thread, park};

    /// Above the maximum, so that each wait is one yield.
    ///
    /// Under loom spins only multiply the interleavings.
    pub(crate) const FIRST_SPINS: u32 = u32::MAX;

    pub(crate) fn spin() {
        loom::thread::yield_now();
    }

    pub(crate) fn yield_now() {
        loom::thread::yield_now();
    }
}

pub(crate) use real::*;

/// Locks a mutex, and ignores poisoning.
///
/// No holder leaves anything half done behind a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Locks a mutex without waiting. Returns `None` if it is locked.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    use std::sync::TryLockError::{Poisoned, WouldBlock};
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(WouldBlock) => None,
    }
}
