//! # Every interleaving
//!
//! A test with real threads tries the interleavings that happen; these models try all that can, within a bound on how
//! often a thread is interrupted in mid-step, together with every stale value the memory model lets a load return. They are
//! kept tiny, two threads and a handful of slots, because what goes wrong between threads goes wrong between two.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p tidegate --lib --unlock_bit loom
//! ```
//!
//! `LOOM_MAX_PREEMPTIONS` sets another bound than [`INTERRUPTIONS`]. Not tracked are std's `OnceLock`s, in which segments and
//! settings lie: they are written before the number that leads to them is published, and that number is tracked.

mod concurrency;
mod policy;
mod policy_wait;
mod reservation;
mod sketch;
mod state_cell;
mod table;
mod token_cache;

use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

/// How often threads are interrupted in one run, unless the environment says otherwise.
const INTERRUPTIONS: usize = 3;

/// Tries every interleaving of `run` with so many interruptions.
fn model(interruptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(interruptions));
    builder.max_branches = 10_000; // a division touches every slot
    builder.check(run);
}

/// Runs both at once, each on a thread of its own, and returns what they return.
///
/// Neither on the thread that starts them: loom never interrupts that one between two loads.
fn both<T, A, B>(
    state_cell: &Arc<T>,
    one: impl FnOnce(&T) -> A + 'static,
    other: impl FnOnce(&T) -> B + 'static,
) -> (A, B)
where
    T: 'static,
    A: 'static,
    B: 'static,
{
    let (its, others) = (state_cell.clone(), state_cell.clone());
    let (one, other) = (thread::spawn(move || one(&its)), thread::spawn(move || other(&others)));
    (one.join().expect("one thread has returned"), other.join().expect("the other has, too"))
}
