//! # Models that try every interleaving
//!
//! A test with real threads tries the interleavings that happen. These models try all that can happen, within a bound
//! on the number of preemptions, together with every stale value that the memory model lets a load return. They are
//! kept tiny, two threads and a handful of slots, because errors between threads already occur between two.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p tidegate --lib --release loom
//! ```
//!
//! `LOOM_MAX_PREEMPTIONS` overrides the bound [`INTERRUPTIONS`]. loom does not track the `OnceLock`s of `std` that
//! contain segments and versions. They are written before the number that leads to them is published, and that number
//! is tracked.

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

/// The default number of preemptions in one run; the environment can override it.
const INTERRUPTIONS: usize = 3;

/// Tries every interleaving of `run` with up to `interruptions` preemptions.
fn model(interruptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(interruptions));
    builder.max_branches = 10_000; // a division touches every slot
    builder.check(run);
}

/// Runs both closures concurrently on a thread each, and returns their results.
///
/// Neither runs on the thread that starts them: loom never preempts that one between two loads.
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
    (one.join().expect("the first thread returned"), other.join().expect("the second thread returned"))
}
