//! The atomics and locks that threads meet at: those of `std`, or loom's, which tries every interleaving of them.

#[cfg(not(loom))]
mod real {
    pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use std::sync::{Mutex, MutexGuard};

    /// How many spins a thread waits at first.
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

    /// More than anybody spins: each wait is one turn given away. Under loom spins only multiply the interleavings.
    pub(crate) const FIRST_SPINS: u32 = u32::MAX;

    pub(crate) fn spin() {
        loom::thread::yield_now();
    }

    pub(crate) fn yield_now() {
        loom::thread::yield_now();
    }
}

pub(crate) use real::*;
